use jpeg_encoder::{ColorType, Encoder};
use penstock_guest::testing::{Instance, manifest};

use super::*;

/// A picture whose left, middle and right thirds are red, green and blue.
fn stripes(width: u16, height: u16) -> Vec<u8> {
    let colours = [[220, 30, 30], [30, 200, 30], [30, 30, 210]];
    let row = (0..u32::from(width)).flat_map(|x| colours[(x * 3 / u32::from(width)) as usize]);
    let row: Vec<u8> = row.collect();
    row.repeat(height.into())
}

fn jpeg(width: u16, height: u16, colour: ColorType, pixels: &[u8], progressive: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, 95);
    encoder.set_progressive(progressive);
    encoder.encode(pixels, width, height, colour).unwrap();
    out
}

fn striped(width: u16, height: u16) -> Vec<u8> {
    jpeg(width, height, ColorType::Rgb, &stripes(width, height), false)
}

fn settings(params: &str) -> Settings {
    Settings::from_json(params).unwrap()
}

fn run(file: &[u8], params: &str) -> Result<Vec<u8>> {
    let out = decode_resize(Item::new("a.jpg").with("bytes", file), &settings(params))?;
    assert!(out.get("bytes").is_none(), "the file goes no further");
    let image = out.tensor::<u8>("image")?;
    let size = settings(params).size;
    assert_eq!(image.shape(), [size, size, 3]);
    Ok(image.as_slice().to_vec())
}

/// Colour of the pixel at `x` in the middle row.
fn at(pixels: &[u8], size: usize, x: usize) -> [u8; 3] {
    let start = (size / 2 * size + x) * 3;
    [pixels[start], pixels[start + 1], pixels[start + 2]]
}

fn assert_near(found: [u8; 3], expected: [u8; 3]) {
    let far = found.iter().zip(expected).any(|(found, expected)| found.abs_diff(expected) > 8);
    assert!(!far, "{found:?} instead of {expected:?}");
}

#[test]
fn a_crop_keeps_the_middle_and_a_stretch_keeps_all() {
    let file = striped(300, 100);
    let cropped = run(&file, r#"{"size": 50}"#).unwrap();
    // The middle 100 of 300 columns are the green third.
    for x in [2, 25, 47] {
        assert_near(at(&cropped, 50, x), [30, 200, 30]);
    }
    let stretched = run(&file, r#"{"size": 60, "mode": "stretch"}"#).unwrap();
    assert_near(at(&stretched, 60, 8), [220, 30, 30]);
    assert_near(at(&stretched, 60, 30), [30, 200, 30]);
    assert_near(at(&stretched, 60, 52), [30, 30, 210]);
}

#[test]
fn a_small_image_is_enlarged() {
    let pixels = run(&striped(30, 30), r#"{"size": 90}"#).unwrap();
    assert_near(at(&pixels, 90, 10), [220, 30, 30]);
    assert_near(at(&pixels, 90, 80), [30, 30, 210]);
}

#[test]
fn a_draft_of_a_large_image_is_decoded_at_a_fraction_of_its_size() {
    let file = striped(900, 460);
    for (size, expected) in [(224, (450, 230)), (231, (900, 460)), (57, (113, 58)), (4000, (900, 460))] {
        let mut settings = Settings { size, draft: true, ..Settings::default() };
        let image = decode(&file, &settings).unwrap();
        assert_eq!((image.width, image.height), expected, "for {size}");
        assert_eq!(image.pixels.len() as u32, image.width * image.height * 3);
        settings.draft = false;
        let image = decode(&file, &settings).unwrap();
        assert_eq!((image.width, image.height), (900, 460), "for {size}");
    }
    for draft in [true, false] {
        let params = format!(r#"{{"size": 100, "mode": "stretch", "draft": {draft}}}"#);
        assert_near(at(&run(&file, &params).unwrap(), 100, 50), [30, 200, 30]);
    }
}

#[test]
fn the_output_f32_has_the_numbers_of_the_stage_normalize() {
    let baseline = striped(150, 100);
    let progressive = jpeg(150, 100, ColorType::Rgb, &stripes(150, 100), true);
    // 16 is a multiple of the eight rows and columns computed at a time, 61 is not.
    for (file, size) in [(&baseline, 16), (&baseline, 61), (&progressive, 61)] {
        let bytes = run(file, &format!(r#"{{"size": {size}}}"#)).unwrap();
        for (mean, std) in [("[0.485, 0.456, 0.406]", "[0.229, 0.224, 0.225]"), ("[0.5]", "[0.25]")] {
            let params = format!(r#"{{"size": {size}, "output": "f32", "mean": {mean}, "std": {std}}}"#);
            let out = decode_resize(Item::new("a.jpg").with("bytes", &file[..]), &settings(&params)).unwrap();
            let image =
                Item::new("a.jpg").with("image", Tensor::<u8>::new([size, size, 3], bytes.clone()).unwrap());
            let params =
                normalize::Settings::from_json(&format!(r#"{{"mean": {mean}, "std": {std}}}"#)).unwrap();
            let normalised = normalize::normalize(image, &params).unwrap();
            assert_eq!(out.tensor::<f32>("image").unwrap(), normalised.tensor::<f32>("image").unwrap());
        }
    }
}

#[test]
fn progressive_grey_and_cmyk_images_become_rgb() {
    let progressive = jpeg(90, 90, ColorType::Rgb, &stripes(90, 90), true);
    assert_near(at(&run(&progressive, r#"{"size": 30}"#).unwrap(), 30, 4), [220, 30, 30]);
    let grey = jpeg(64, 64, ColorType::Luma, &[77; 64 * 64], false);
    assert_near(at(&run(&grey, r#"{"size": 30}"#).unwrap(), 30, 9), [77, 77, 77]);
    // All of the cyan ink, and a fifth of the black ink.
    for colour in [ColorType::Cmyk, ColorType::CmykAsYcck] {
        let inks = [255, 0, 0, 51].repeat(64 * 64);
        let image = run(&jpeg(64, 64, colour, &inks, false), r#"{"size": 30}"#).unwrap();
        assert_near(at(&image, 30, 9), [0, 204, 204]);
    }
}

#[test]
fn damaged_files_are_refused_with_the_reason() {
    let file = striped(200, 100);
    let refused = |bytes: &[u8]| run(bytes, "{}").unwrap_err().message().to_owned();
    assert_eq!(refused(b""), "the file is empty");
    assert_eq!(refused(b"\x89PNG\r\n"), "the file is not a JPEG: it does not start with ff d8");
    let truncated = |len: usize| format!("the JPEG is truncated: its {len} bytes end before the image");
    for len in [2, 100, file.len() / 2, file.len() - 40] {
        assert_eq!(refused(&file[..len]), truncated(len));
    }
    let mut corrupt = file.clone();
    let scan = file.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    corrupt[scan + 20..scan + 60].fill(0xff);
    assert!(refused(&corrupt).starts_with("the JPEG is corrupt: "), "{}", refused(&corrupt));
    let mut other = file.clone();
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    other[frame + 1] = 0xc9;
    assert!(refused(&other).contains("ArithmeticEntropyCoding"), "{}", refused(&other));
}

#[test]
fn an_image_that_is_too_large_for_memory_is_refused() {
    let mut file = striped(64, 64);
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    file[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    let error = run(&file, "{}").unwrap_err();
    assert_eq!(
        error.message(),
        "the image is too large: 65535 x 65535 pixels, more than the limit of 50000000"
    );
}

#[test]
fn damaged_files_never_cause_a_panic() {
    let baseline = striped(48, 40);
    let progressive = jpeg(48, 40, ColorType::Rgb, &stripes(48, 40), true);
    let mut rng = Item::new("damage").with_seed(5).rng();
    for file in [baseline, progressive] {
        for _ in 0..1500 {
            let mut damaged = file.clone();
            for _ in 0..=rng.index(3) {
                let place = rng.index(damaged.len());
                damaged[place] = rng.below(256) as u8;
            }
            damaged.truncate(damaged.len() - rng.index(damaged.len() / 4));
            // Some damaged files can still be decoded.
            if let Ok(image) = decode(&damaged, &Settings::default()) {
                assert_eq!(image.pixels.len() as u32, image.width * image.height * 3);
            }
        }
    }
}

#[test]
fn params_are_checked_by_name() {
    let refused = |params| Instance::<DecodeResize>::new(params).unwrap_err();
    assert_eq!(refused(r#"{"size": 0}"#), "`size`: 0 is less than 1");
    assert_eq!(refused(r#"{"mode": "fit"}"#), "`mode`: `fit` is not one of `crop`, `stretch`");
    assert_eq!(refused(r#"{"output": "f16"}"#), "`output`: `f16` is not one of `u8`, `f32`");
    assert_eq!(refused(r#"{"mean": [0.5, 0.5]}"#), "`mean` has 2 numbers; use one, or one per channel: 3");
    assert_eq!(refused(r#"{"std": [1.0, 0.0, 1.0]}"#), "`std` of channel 1 is 0, which cannot be a divisor");
    assert_eq!(
        refused(r#"{"sise": 1}"#),
        "`sise` is unknown: the params are `size`, `mode`, `draft`, `output`, `mean`, `std`"
    );
}

#[test]
fn only_the_file_is_copied_into_the_module() {
    assert!(manifest::<DecodeResize>().contains(r#""wants":["bytes"],"makes":["image"]"#));
}
