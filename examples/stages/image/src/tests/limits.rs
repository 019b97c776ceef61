//! The limit of pixels.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use penstock_guest::DEFAULT_MEMORY_BYTES;
use penstock_guest::testing::{counter, set_memory_limit};

use super::*;

/// A JPEG of one colour, of this size.
fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let mut made = Vec::new();
    let mut encoder = Encoder::new(&mut made, 90);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    let pixels = [90, 120, 200].repeat(usize::from(width) * usize::from(height));
    encoder.encode(&pixels, width, height, ColorType::Rgb).unwrap();
    made
}

#[test]
fn the_decoded_pixels_count_and_not_those_of_the_file() {
    let large = jpeg(400, 300);
    let run = |ops: serde_json::Value, draft: bool, most: u32| {
        item(&large, 0, &json!({ "ops": ops, "draft": draft, "max_pixels": most }))
            .map(|item| item.tensor::<u8>("image").unwrap().shape().to_vec())
    };
    let message = |found: Result<Vec<u32>>| found.unwrap_err().message().to_owned();
    let resize = json!([{ "Resize": { "size": 30 } }]);
    assert_eq!(run(resize.clone(), false, 120_000).unwrap(), [3, 30, 40]);
    assert_eq!(
        message(run(resize.clone(), false, 119_999)),
        "the image is too large: 400 x 300 pixels, more than `max_pixels`, 119999"
    );
    // An eighth of each side.
    assert_eq!(run(resize.clone(), true, 1875).unwrap(), [3, 30, 40]);
    assert_eq!(
        message(run(resize, true, 1874)),
        "the image is too large: 1875 of its 400 x 300 pixels, more than `max_pixels`, 1874"
    );
    let crop = json!([{ "CenterCrop": { "size": 100 } }]);
    assert_eq!(run(crop.clone(), false, 10_000).unwrap(), [3, 100, 100]);
    assert_eq!(
        message(run(crop, false, 9999)),
        "the image is too large: 10000 of its 400 x 300 pixels, more than `max_pixels`, 9999"
    );
    let part = json!([{ "RandomResizedCrop": { "size": 20, "scale": [0.1, 0.1] } }]);
    assert_eq!(run(part, false, 15_000).unwrap(), [3, 20, 20]);
}

#[test]
fn a_progressive_jpeg_whose_coefficients_take_too_much_is_refused_although_it_is_cropped() {
    let mut bomb = file("progressive-420.jpg");
    let frame = bomb.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    bomb[frame + 5..frame + 9].fill(0xff);
    let ops = json!([{ "CenterCrop": { "size": 64 } }]);
    let message = item(&bomb, 0, &json!({ "ops": ops, "draft": true })).unwrap_err().message().to_owned();
    assert_eq!(
        message,
        "the image is too large: it takes 12288 MiB of memory, more than 200 for one image; raise `memory_mib`"
    );
    // Of a sequential one, the compressed data ends first.
    let mut bomb = file("baseline-420.jpg");
    let frame = bomb.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bomb[frame + 5..frame + 9].fill(0xff);
    assert!(item(&bomb, 0, &json!({ "ops": ops, "draft": true })).is_err());
}

#[test]
fn all_pixels_of_other_formats_count() {
    for name in ["colour.png", "lossy.webp", "still.gif", "colour.bmp"] {
        let most = |most: u32| {
            item(&file(name), 0, &json!({ "ops": [{ "CenterCrop": { "size": 9 } }], "max_pixels": most }))
        };
        assert!(most(61 * 47).is_ok(), "{name}");
        assert_eq!(
            most(61 * 47 - 1).unwrap_err().message(),
            "the image is too large: 61 x 47 pixels, more than `max_pixels`, 2866",
            "{name}"
        );
    }
}

#[test]
fn a_jpeg_of_100_megapixels_is_decoded_in_part_or_with_a_higher_limit() {
    penstock_guest::testing::reset();
    let large = jpeg(10_000, 10_000);
    let run = |params: serde_json::Value| {
        item(&large, 0, &params).map(|item| item.tensor::<u8>("image").unwrap().as_slice().to_vec())
    };
    let resize = json!([{ "Resize": { "size": 64 } }]);
    let small = run(json!({ "ops": resize, "draft": true })).unwrap();
    assert!(small.iter().all(|&value| value.abs_diff(small[0]) < 2 || value > 80));
    assert_eq!(run(json!({ "ops": [{ "CenterCrop": { "size": 64 } }] })).unwrap().len(), 3 * 64 * 64);
    assert_eq!(counter("drafted"), 0.0);
    let message = run(json!({ "ops": resize })).unwrap_err().message().to_owned();
    assert_eq!(message, "the image is too large: 10000 x 10000 pixels, more than `max_pixels`, 50000000");
    set_memory_limit(1 << 30);
    assert_eq!(run(json!({ "ops": resize })).unwrap().len(), 3 * 64 * 64);
    assert_eq!(counter("drafted"), 0.0);
    set_memory_limit(32 << 20);
    let message = run(json!({ "ops": resize, "max_pixels": 100_000_000 })).unwrap_err().message().to_owned();
    assert!(message.ends_with("MiB of memory, more than 25 for one image; raise `memory_mib`"), "{message}");
    set_memory_limit(DEFAULT_MEMORY_BYTES);
    // Too large for planes of all colours, which is counted.
    assert_eq!(run(json!({ "ops": resize, "max_pixels": 100_000_000 })).unwrap().len(), 3 * 64 * 64);
    assert_eq!(counter("drafted"), 1.0);
}
