//! Views of JPEGs, compared with the same views of whole images.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::*;
use crate::params::Interpolation;
use crate::step::{Rect, Resizing};

/// Smooth colours with a little grain, as in a photo.
fn soft(width: u16, height: u16) -> Vec<u8> {
    let mut rng = Item::new("jpegs").with_seed(3).rng();
    let mut pixels = Vec::new();
    for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (f64::from(x), f64::from(y)))) {
        let grain = rng.below(13) as f64 - 6.0;
        for (wide, high) in [(23.0, 31.0), (47.0, 19.0), (61.0, 83.0)] {
            let value = 128.0 + 110.0 * (x / wide).sin() * (y / high).cos() + grain;
            pixels.push(value.clamp(0.0, 255.0) as u8);
        }
    }
    pixels
}

fn encode((width, height): (u16, u16), set: impl Fn(&mut Encoder<&mut Vec<u8>>)) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 92);
    set(&mut encoder);
    encoder.encode(&soft(width, height), width, height, ColorType::Rgb).unwrap();
    file
}

fn decode(file: &[u8], view: &View, shrink: u32) -> Result<Vec<u8>> {
    Ok(opened(file)?.view_of_jpeg(view, shrink, shrink > 1)?.pixels)
}

/// With colours resized at the resolution of the file.
fn draft(file: &[u8], view: &View) -> Vec<u8> {
    opened(file).unwrap().view_of_jpeg(view, 1, true).unwrap().pixels
}

/// The view of the whole image, which is decoded first.
fn plain(file: &[u8], view: &View) -> Vec<u8> {
    resize::view(&opened(file).unwrap().decode().unwrap(), view, 1).pixels
}

fn whole(width: u32, height: u32) -> View {
    View::whole(Size { width, height })
}

/// View of a part at another size, of which a part is needed, mirrored.
fn view((width, height): (u16, u16), resized: (u32, u32), interpolation: Interpolation) -> View {
    let (width, height) = (u32::from(width), u32::from(height));
    let crop =
        Rect { left: width / 9, top: height / 7, width: width - width / 5, height: height - height / 6 };
    let size = Size { width: resized.0, height: resized.1 };
    let window =
        Rect { left: size.width / 8, top: 0, width: size.width - size.width / 4, height: size.height };
    let resize = Some(Resizing { size, interpolation, antialias: true });
    View { crop, resize, window, flip_across: true, flip_down: false }
}

const SAMPLINGS: [SamplingFactor; 8] = [
    SamplingFactor::F_1_1,
    SamplingFactor::F_2_1,
    SamplingFactor::F_1_2,
    SamplingFactor::F_2_2,
    SamplingFactor::F_4_1,
    SamplingFactor::F_4_2,
    SamplingFactor::F_1_4,
    SamplingFactor::F_2_4,
];

#[test]
fn parts_of_every_sampling_agree_with_the_whole() {
    // Sides that are no multiple of a block or of a unit of the scan; results that are larger, equally large, and smaller.
    let sizes = [
        ((97, 61), (32, 40)),
        ((61, 97), (200, 210)),
        ((203, 161), (30, 33)),
        ((17, 9), (13, 13)),
        ((1, 1), (5, 5)),
    ];
    for (shape, resized) in sizes {
        for sampling in SAMPLINGS {
            let file = encode(shape, |encoder| encoder.set_sampling_factor(sampling));
            for interpolation in [Interpolation::Bilinear, Interpolation::Box, Interpolation::Hamming] {
                let view = view(shape, resized, interpolation);
                let plain = plain(&file, &view);
                let place = format!("{shape:?} {resized:?} {sampling:?} {interpolation:?}");
                let (most, mean) = differences(&decode(&file, &view, 1).unwrap(), &plain);
                assert!(most <= 1 && mean < 0.3, "{place}: {most}, {mean}");
                let (most, mean) = differences(&draft(&file, &view), &plain);
                assert!(most <= 16 && mean < 0.6, "draft {place}: {most}, {mean}");
            }
            // Without a resize, all pixels are equal.
            let crop = view(shape, resized, Interpolation::Box).crop;
            let part = View { crop, ..View::whole(crop.size()) };
            assert_eq!(decode(&file, &part, 1).unwrap(), plain(&file, &part), "{shape:?} {sampling:?}");
        }
    }
}

#[test]
fn parts_of_inks_and_grey_agree_with_the_whole() {
    let picture = soft(100, 75);
    let inks: Vec<u8> = picture.as_chunks::<3>().0.iter().flat_map(|&[c, m, y]| [c, m, y, c / 3]).collect();
    let grey: Vec<u8> = picture.iter().step_by(3).copied().collect();
    for (colours, pixels) in
        [(ColorType::Luma, &grey), (ColorType::Cmyk, &inks), (ColorType::CmykAsYcck, &inks)]
    {
        let mut file = Vec::new();
        Encoder::new(&mut file, 92).encode(pixels, 100, 75, colours).unwrap();
        let view = view((100, 75), (41, 41), Interpolation::Bilinear);
        let plain = plain(&file, &view);
        let (most, mean) = differences(&decode(&file, &view, 1).unwrap(), &plain);
        assert!(most <= 1 && mean < 0.3, "{colours:?}: {most}, {mean}");
        let (most, mean) = differences(&draft(&file, &view), &plain);
        assert!(most <= 1 && mean < 0.3, "draft {colours:?}: {most}, {mean}");
    }
}

#[test]
fn interpolations_of_another_pass_decode_only_the_crop() {
    let file = encode((203, 161), |encoder| encoder.set_sampling_factor(SamplingFactor::F_2_2));
    for interpolation in ["bicubic", "lanczos", "nearest"] {
        let ops = json!([
            { "CenterCrop": { "size": [111, 90] } },
            { "Resize": { "size": [40, 50], "interpolation": interpolation } },
            { "RandomHorizontalFlip": { "p": 1 } },
        ]);
        let (_, made) = bytes(&file, &json!({ "ops": ops, "layout": "hwc" }));
        let opened = opened(&file).unwrap();
        let steps =
            draw(&settings(&json!({ "ops": ops })).ops, opened.shown(), &mut Rng::from_seed(0)).unwrap();
        let (view, rest) = View::of(opened.shown(), &steps);
        assert!(rest.is_empty());
        assert_eq!(made, plain(&file, &view), "{interpolation}");
    }
}

#[test]
fn drafts_of_every_size_agree_with_the_whole() {
    for sampling in SAMPLINGS {
        let file = encode((405, 322), |encoder| encoder.set_sampling_factor(sampling));
        for (side, shrink) in [(162, 1), (161, 2), (80, 4), (40, 8)] {
            let resize = Some(Resizing {
                size: Size { width: side, height: side },
                interpolation: Interpolation::Bilinear,
                antialias: true,
            });
            let window = Rect { left: 0, top: 0, width: side, height: side };
            let view = View { resize, window, ..whole(405, 322) };
            assert_eq!(view.reduction(), shrink, "{side}");
            let (_, mean) = differences(&decode(&file, &view, shrink).unwrap(), &plain(&file, &view));
            assert!(mean < 4.0, "{side} {sampling:?}: {mean}");
        }
    }
}

#[test]
fn drafts_of_another_pass_agree_with_the_whole() {
    for sampling in [SamplingFactor::F_2_2, SamplingFactor::F_4_1] {
        let file = encode((405, 322), |encoder| encoder.set_sampling_factor(sampling));
        for side in [160, 80, 40] {
            let ops = json!([
                { "CenterCrop": { "size": [321, 341] } },
                { "Resize": { "size": [side, side], "interpolation": "bicubic" } },
            ]);
            let of = |draft: bool| bytes(&file, &json!({ "ops": ops, "draft": draft })).1;
            let (_, mean) = differences(&of(true), &of(false));
            assert!(mean < 5.0, "{side} {sampling:?}: {mean}");
        }
    }
}

#[test]
fn a_draft_reduces_only_images_of_twice_the_size() {
    let file = encode((405, 322), |_| {});
    let of = |size: u32, draft: bool| {
        bytes(&file, &json!({ "ops": [{ "Resize": { "size": [size, size] } }], "draft": draft }))
    };
    let mean = |size: u32| differences(&of(size, true).1, &of(size, false).1).1;
    assert!(mean(162) < 0.2 && mean(161) > 0.4, "{}, {}", mean(162), mean(161));
    let progressive = encode((405, 322), |encoder| encoder.set_progressive(true));
    let draft = bytes(&progressive, &json!({ "ops": [{ "Resize": { "size": [40, 40] } }], "draft": true }));
    assert!(differences(&draft.1, &of(40, true).1).1 < 2.0);
}

#[test]
fn restart_markers_change_nothing() {
    let plain = encode((120, 90), |_| {});
    let marked = encode((120, 90), |encoder| encoder.set_restart_interval(3));
    assert!(marked.windows(2).any(|pair| pair == [0xff, 0xd7]));
    let view = view((120, 90), (64, 64), Interpolation::Bilinear);
    assert_eq!(decode(&marked, &view, 1).unwrap(), decode(&plain, &view, 1).unwrap());
    // Markers in the wrong order mean that data is missing.
    let mut swapped = marked.clone();
    let first = marked.windows(2).position(|pair| pair == [0xff, 0xd1]).unwrap();
    swapped[first + 1] = 0xd2;
    assert!(decode(&swapped, &view, 1).is_err());
}

#[test]
fn progressive_images_have_the_pixels_of_baseline_ones() {
    for sampling in SAMPLINGS {
        for shape in [(97, 61), (17, 9), (1, 1)] {
            for interval in [0, 3] {
                let of = |progressive: bool| {
                    encode(shape, |encoder| {
                        encoder.set_sampling_factor(sampling);
                        encoder.set_progressive(progressive);
                        encoder.set_restart_interval(interval);
                    })
                };
                let (view, whole) =
                    (view(shape, (30, 40), Interpolation::Bilinear), whole(shape.0.into(), shape.1.into()));
                for view in [view, whole] {
                    let made = decode(&of(true), &view, 1).unwrap();
                    assert_eq!(
                        made,
                        decode(&of(false), &view, 1).unwrap(),
                        "{shape:?} {sampling:?} {interval}"
                    );
                }
            }
        }
    }
}

#[test]
fn truncated_files_have_no_result() {
    let file = encode((100, 100), |_| {});
    let progressive = encode((100, 100), |encoder| encoder.set_progressive(true));
    let view = whole(100, 100);
    for file in [file, progressive] {
        assert!(decode(&file, &view, 1).is_ok());
        for length in (0..file.len()).step_by(7) {
            assert!(decode(&file[..length], &view, 1).is_err(), "{length} of {} bytes", file.len());
        }
    }
}

#[test]
fn data_after_the_compressed_data_changes_nothing() {
    for progressive in [false, true] {
        let file = encode((50, 40), |encoder| encoder.set_progressive(progressive));
        let (data, end) = file.split_at(file.len() - 2);
        let longer = [data, &[0; 30], end, b"more"].concat();
        assert_eq!(decode(&longer, &whole(50, 40), 1).unwrap(), decode(&file, &whole(50, 40), 1).unwrap());
    }
}

#[test]
fn a_result_does_not_depend_on_the_previous_image() {
    let (small, large) = (encode((50, 40), |_| {}), encode((90, 120), |_| {}));
    let (small_view, large_view) = (
        view((50, 40), (30, 30), Interpolation::Bilinear),
        view((90, 120), (64, 64), Interpolation::Bilinear),
    );
    let first = decode(&small, &small_view, 1).unwrap();
    assert!(decode(&large, &large_view, 1).is_ok());
    assert_eq!(decode(&small, &small_view, 1).unwrap(), first);
}
