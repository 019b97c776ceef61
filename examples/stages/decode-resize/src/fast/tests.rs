use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use penstock_guest::{Item, Rng};

use super::*;
use crate::{decode, resize};

fn rng() -> Rng {
    Item::new("fast").with_seed(3).rng()
}

/// Smooth colours with a little grain, as in a photo.
fn soft(width: u16, height: u16) -> Vec<u8> {
    let mut rng = rng();
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

fn settings(size: u32, mode: Mode, draft: bool) -> Settings {
    Settings { size, mode, draft, ..Settings::default() }
}

fn made(file: &[u8], settings: &Settings) -> Option<Vec<u8>> {
    let size = settings.size as usize;
    let mut pixels = vec![0; size * size * 3];
    decode_resize(file, settings, &mut Pixels::Bytes(&mut pixels)).map(|()| pixels)
}

fn fast(file: &[u8], size: u32) -> Option<Vec<u8>> {
    made(file, &settings(size, Mode::Crop, false))
}

/// Mean and largest difference, in grey levels, between the fast path and the plain one.
fn differences(file: &[u8], settings: &Settings) -> (f64, u8) {
    let made = made(file, settings).expect("the fast path takes it");
    let plain = resize(&decode(file, settings).unwrap(), settings).unwrap();
    assert_eq!(made.len(), plain.len());
    let differences = || made.iter().zip(&plain).map(|(made, plain)| made.abs_diff(*plain));
    let sum: u64 = differences().map(u64::from).sum();
    (sum as f64 / made.len() as f64, differences().max().unwrap())
}

#[test]
fn colours_of_every_sampling_agree_with_the_plain_path() {
    let samplings =
        [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2];
    // Sides that are no multiple of a block or of a unit of the scan; results that are larger than the image, equally large, and
    // smaller, down to an eighth of its size.
    let sizes = [
        ((97, 61), 32),
        ((97, 61), 61),
        ((61, 97), 200),
        ((160, 160), 81),
        ((203, 161), 30),
        ((203, 161), 20),
        ((17, 9), 13),
        ((1, 1), 5),
    ];
    for (shape, size) in sizes {
        for sampling in samplings {
            let file = encode(shape, |encoder| encoder.set_sampling_factor(sampling));
            for mode in [Mode::Crop, Mode::Stretch] {
                let (mean, greatest) = differences(&file, &settings(size, mode, false));
                assert!(
                    mean < 1.0 && greatest <= 16,
                    "{shape:?} {size} {sampling:?} {mode:?}: {mean}, {greatest}"
                );
            }
        }
    }
}

#[test]
fn grey_images_agree_with_the_plain_path() {
    let grey: Vec<u8> = soft(100, 75).chunks(3).map(|pixel| pixel[0]).collect();
    let mut file = Vec::new();
    Encoder::new(&mut file, 92).encode(&grey, 100, 75, ColorType::Luma).unwrap();
    let (mean, greatest) = differences(&file, &settings(41, Mode::Crop, false));
    assert!(mean < 0.5 && greatest <= 2, "{mean}, {greatest}");
}

/// Sizes at which an image of 405x322 pixels is decoded at its full size, at a half, a quarter and an eighth of it.
const DRAFTS: [u32; 5] = [162, 161, 80, 41, 20];

#[test]
fn drafts_of_every_size_agree_with_the_plain_path() {
    for sampling in [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2] {
        let file = encode((405, 322), |encoder| encoder.set_sampling_factor(sampling));
        for size in DRAFTS {
            for mode in [Mode::Crop, Mode::Stretch] {
                let (mean, greatest) = differences(&file, &settings(size, mode, true));
                assert!(mean < 2.0 && greatest <= 16, "{size} {sampling:?} {mode:?}: {mean}, {greatest}");
            }
        }
    }
}

#[test]
fn drafts_keep_the_resolution_of_colours_that_the_plain_path_halves_again() {
    let file = encode((405, 322), |encoder| encoder.set_sampling_factor(SamplingFactor::F_2_2));
    for size in DRAFTS.into_iter().skip(1) {
        let exact = made(&file, &settings(size, Mode::Crop, false)).unwrap();
        let error = |pixels: &[u8]| -> u32 {
            pixels.iter().zip(&exact).map(|(made, exact)| u32::from(made.abs_diff(*exact))).sum()
        };
        let settings = settings(size, Mode::Crop, true);
        let plain = resize(&decode(&file, &settings).unwrap(), &settings).unwrap();
        let (fast, plain) = (error(&made(&file, &settings).unwrap()), error(&plain));
        assert!(fast < plain, "{size}: {fast} and {plain}");
    }
}

#[test]
fn a_draft_changes_an_image_only_if_both_sides_are_twice_as_large() {
    let file = encode((405, 322), |_| {});
    let of = |size, draft| made(&file, &settings(size, Mode::Crop, draft)).unwrap();
    assert_eq!(of(162, true), of(162, false));
    assert_ne!(of(161, true), of(161, false));
}

#[test]
fn restart_markers_change_nothing() {
    let plain = encode((120, 90), |_| {});
    let marked = encode((120, 90), |encoder| encoder.set_restart_interval(3));
    assert!(marked.windows(2).any(|pair| pair == [0xff, 0xd7]));
    assert_eq!(fast(&marked, 64).expect("the fast path takes it"), fast(&plain, 64).unwrap());
    // Markers in the wrong order mean that data is missing.
    let mut swapped = marked.clone();
    let first = marked.windows(2).position(|pair| pair == [0xff, 0xd1]).unwrap();
    swapped[first + 1] = 0xd2;
    assert_eq!(fast(&swapped, 64), None);
}

#[test]
fn unusual_files_take_the_plain_path() {
    let file = encode((100, 100), |_| {});
    assert!(fast(&file, 64).is_some());
    assert_eq!(fast(&encode((100, 100), |encoder| encoder.set_progressive(true)), 64), None);
    let mut cmyk = Vec::new();
    Encoder::new(&mut cmyk, 90).encode(&[9; 64 * 64 * 4], 64, 64, ColorType::Cmyk).unwrap();
    assert_eq!(fast(&cmyk, 64), None);
}

#[test]
fn truncated_files_take_the_plain_path() {
    let file = encode((40, 30), |_| {});
    for length in 0..file.len() {
        assert_eq!(fast(&file[..length], 30), None, "{length} of {} bytes", file.len());
    }
    assert!(fast(&file, 30).is_some());
}

#[test]
fn damaged_files_never_cause_a_panic() {
    let mut rng = rng();
    for set in [3, 0] {
        let file = encode((48, 40), |encoder| encoder.set_restart_interval(set));
        for _ in 0..3000 {
            let mut damaged = file.clone();
            for _ in 0..=rng.index(4) {
                let place = rng.index(damaged.len());
                damaged[place] = rng.below(256) as u8;
            }
            // Some damaged files are still plain JPEGs. Drafts of 24 and 6 pixels read blocks in other ways.
            for size in [30, 24, 6] {
                made(&damaged, &settings(size, Mode::Crop, true));
            }
        }
    }
}

#[test]
fn a_result_does_not_depend_on_the_previous_image() {
    let (small, large) = (encode((50, 40), |_| {}), encode((90, 120), |_| {}));
    let first = fast(&small, 30);
    assert!(fast(&large, 64).is_some());
    assert_eq!(fast(&small, 30), first);
}
