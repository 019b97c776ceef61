use penstock_guest::testing::{Instance, manifest};

use super::*;

fn image(height: u32, width: u32, channels: u32) -> Item {
    let pixels = (0..height * width * channels).map(|at| (at * 7 % 256) as u8).collect();
    Item::new("a.jpg").with("image", Tensor::<u8>::new([height, width, channels], pixels).unwrap())
}

fn reference(item: &Item, settings: &Settings) -> Vec<f32> {
    let image = item.tensor::<u8>("image").unwrap();
    let [height, width, channels] = image.dimensions().unwrap();
    let mut out = Vec::new();
    for channel in 0..channels {
        for pixel in 0..height * width {
            let value = f32::from(image.as_slice()[pixel * channels + channel]) / 255.0;
            let of = |numbers: &[f32]| numbers[channel.min(numbers.len() - 1)];
            out.push((value - of(&settings.mean)) / of(&settings.std));
        }
    }
    out
}

#[test]
fn every_pixel_is_normalised_and_moved_to_its_plane() {
    let single = Settings { mean: vec![0.5], std: vec![0.25] };
    // 5 x 7 pixels end within a chunk, 1 x 1 is less than one chunk, 8 x 8 fills two chunks.
    for (size, settings) in [
        ((5, 7, 3), Settings::default()),
        ((1, 1, 3), Settings::default()),
        ((8, 8, 3), single.clone()),
        ((9, 11, 1), single.clone()),
        ((3, 3, 4), single),
    ] {
        let item = image(size.0, size.1, size.2);
        let expected = reference(&item, &settings);
        let out = normalize(item, &settings).unwrap();
        let planes = out.tensor::<f32>("image").unwrap();
        assert_eq!(planes.shape(), [size.2, size.0, size.1]);
        for (made, expected) in planes.as_slice().iter().zip(&expected) {
            assert!((made - expected).abs() < 1e-5, "{size:?}: {made} instead of {expected}");
        }
    }
}

#[test]
fn an_image_of_another_shape_is_refused_by_name() {
    let flat = Item::new("a").with("image", Tensor::<u8>::zeros([4, 4]));
    let error = normalize(flat, &Settings::default()).unwrap_err();
    assert_eq!(
        error.message(),
        "`image` is not [height, width, channels]: the tensor has 2 dimensions, not 3: [4, 4]"
    );
    let error = normalize(image(2, 2, 4), &Settings::default()).unwrap_err();
    assert_eq!(error.message(), "`mean` has 3 numbers, but the image has 4 channels");
}

#[test]
fn a_deviation_of_zero_is_refused() {
    let settings = Settings { mean: vec![0.5], std: vec![0.0] };
    let error = normalize(image(2, 2, 3), &settings).unwrap_err();
    assert_eq!(error.message(), "`std` of channel 0 is 0, which cannot be a divisor");
}

#[test]
fn params_that_fit_no_image_are_refused_before_any_image() {
    let refusal = |params| Instance::<Normalize>::new(params).unwrap_err();
    assert_eq!(refusal(r#"{"std": [1.0, 0.0, 1.0]}"#), "`std` of channel 1 is 0, which cannot be a divisor");
    assert_eq!(
        refusal(r#"{"std": [1.0, 1.0]}"#),
        "`mean` has 3 numbers and `std` 2; use the same number for both, or one for all channels"
    );
    assert_eq!(
        refusal(r#"{"mean": []}"#),
        "`mean` has 0 numbers and `std` 3; use the same number for both, or one for all channels"
    );
    let mut stage = Instance::<Normalize>::new(r#"{"mean": [0.5], "std": [0.25, 0.5]}"#).unwrap();
    assert!(matches!(stage.process(vec![image(2, 2, 2)])[..], [Outcome::Keep(_)]));
    assert!(matches!(stage.process(vec![image(2, 2, 3)])[..], [Outcome::Failed(_)]));
}

#[test]
fn params_of_another_type_are_refused_by_name() {
    let error = Instance::<Normalize>::new(r#"{"mean": "bright", "sdt": [1.0]}"#).unwrap_err();
    assert_eq!(
        error,
        "`mean`: invalid type: string \"bright\", expected a sequence; `sdt` is unknown: the params are `mean`, `std`"
    );
}

#[test]
fn the_manifest_names_the_field() {
    assert!(manifest::<Normalize>().contains(r#""wants":["image"],"makes":["image"]"#));
}
