use std::fs;
use std::path::{Path, PathBuf};

use penstock_guest::testing::{Instance, manifest};
use serde_json::json;

use super::*;

mod bmps;
mod damage;
mod jpegs;
mod limits;
mod order;
mod orientations;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn file(name: &str) -> Vec<u8> {
    fs::read(data("files").join(name)).unwrap()
}

/// Names of all files of `tests/data/files`.
fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(data("files"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn settings(params: &serde_json::Value) -> Settings {
    Settings::from_json(&params.to_string()).unwrap()
}

fn item(bytes: &[u8], seed: u64, params: &serde_json::Value) -> Result<Item> {
    let item = transform(Item::new("a").with_seed(seed).with("bytes", bytes), &settings(params))?;
    assert!(item.get("bytes").is_none(), "the file goes no further");
    Ok(item)
}

/// A file with the limits of the default.
fn opened(file: &[u8]) -> Result<File<'_>> {
    File::open(file, true, Limits::of(None))
}

/// Shape and bytes of the result.
fn bytes(file: &[u8], params: &serde_json::Value) -> (Vec<u32>, Vec<u8>) {
    let item = item(file, 0, params).unwrap();
    let image = item.tensor::<u8>("image").unwrap();
    (image.shape().to_vec(), image.as_slice().to_vec())
}

fn floats(file: &[u8], seed: u64, params: &serde_json::Value) -> Vec<f32> {
    item(file, seed, params).unwrap().tensor::<f32>("image").unwrap().as_slice().to_vec()
}

/// Image of the file, with the exact sizes and pixels of a PNG that Pillow wrote.
fn expected(path: &Path) -> (Vec<u32>, Vec<u8>) {
    let (shape, pixels) = bytes(&fs::read(path).unwrap(), &json!({ "layout": "hwc" }));
    (shape, pixels)
}

/// Largest and mean difference.
fn differences(made: &[u8], expected: &[u8]) -> (u8, f64) {
    assert_eq!(made.len(), expected.len());
    let each = || made.iter().zip(expected).map(|(made, expected)| made.abs_diff(*expected));
    (each().max().unwrap(), each().map(f64::from).sum::<f64>() / made.len() as f64)
}

#[test]
fn files_of_all_kinds_are_decoded_as_pillow_decodes_them() {
    for name in names() {
        let (shape, made) = bytes(&file(&name), &json!({ "layout": "hwc" }));
        let (expected_shape, expected) = expected(&data("decoded").join(format!("{name}.png")));
        assert_eq!(shape, expected_shape, "{name}");
        assert_eq!(made, expected, "{name}");
    }
}

#[test]
fn ops_have_the_results_of_torchvision() {
    let table: serde_json::Value = serde_json::from_slice(&fs::read(data("ops.json")).unwrap()).unwrap();
    let picture = file("colour.png");
    for case in table.as_array().unwrap() {
        let (shape, expected) = expected(&data("ops").join(case["result"].as_str().unwrap()));
        let (made_shape, made) = match case.get("step") {
            None => bytes(&picture, &json!({ "ops": case["ops"], "layout": "hwc" })),
            Some(step) => {
                let image = opened(&picture).unwrap().decode().unwrap();
                let image = crate::apply::after(image, &step_of(step)).unwrap();
                (vec![image.size.height, image.size.width, 3], image.pixels)
            }
        };
        // PNG files of one channel are read as grey colours.
        let made = if made_shape[2] == 1 { made.iter().flat_map(|&grey| [grey; 3]).collect() } else { made };
        assert_eq!(made_shape[..2], shape[..2], "{}", case["name"]);
        let (most, mean) = differences(&made, &expected);
        // Resizes have the very pixels.
        let allowed = u8::from(!case["name"].as_str().unwrap().starts_with("Resize"));
        assert!(most <= allowed && mean < 0.1, "{}: {most}, {mean}", case["name"]);
    }
}

/// Step that `ops.json` names.
fn step_of(step: &serde_json::Value) -> Step {
    let number = |name: &str| step[name].as_f64().map(|number| number as f32);
    match step.as_str() {
        Some("AutoContrast") => Step::AutoContrast,
        Some("Equalize") => Step::Equalize,
        Some(other) => panic!("no step `{other}`"),
        None => None
            .or(number("Sharpness").map(Step::Sharpness))
            .or(number("Solarize").map(Step::Solarize))
            .or(number("Posterize").map(|bits| Step::Posterize(bits as u8)))
            .unwrap(),
    }
}

#[test]
fn layouts_and_types_hold_the_same_numbers() {
    let picture = file("colour.png");
    let (shape, rows) = bytes(&picture, &json!({ "layout": "hwc" }));
    let (planes_shape, planes) = bytes(&picture, &json!({}));
    assert_eq!((&shape[..], &planes_shape[..]), (&[47, 61, 3][..], &[3, 47, 61][..]));
    let size = 47 * 61;
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let ops = json!([
        { "ToDtype": { "dtype": "float32", "scale": true } },
        { "Normalize": { "mean": mean, "std": std } },
    ]);
    let row_floats = floats(&picture, 0, &json!({ "ops": ops, "layout": "hwc" }));
    let plane_floats = floats(&picture, 0, &json!({ "ops": ops }));
    for at in 0..size {
        for channel in 0..3 {
            let byte = rows[3 * at + channel];
            assert_eq!(planes[channel * size + at], byte);
            let number = (f64::from(byte) / 255.0 - mean[channel]) / std[channel];
            for found in [row_floats[3 * at + channel], plane_floats[channel * size + at]] {
                assert!((f64::from(found) - number).abs() < 1e-6, "{found} instead of {number}");
            }
        }
    }
}

#[test]
fn moves_after_the_conversion_are_those_before_it() {
    let to_float = json!({ "ToDtype": { "dtype": "float32" } });
    let normalize = json!({ "Normalize": { "mean": [1, 2, 3], "std": [4] } });
    let moves =
        [json!({ "RandomHorizontalFlip": { "p": 1 } }), json!({ "CenterCrop": { "size": [20, 30] } })];
    for name in ["colour.png", "baseline-420.jpg"] {
        for layout in ["chw", "hwc"] {
            let run = |ops: Vec<&serde_json::Value>| {
                floats(&file(name), 0, &json!({ "ops": ops, "layout": layout }))
            };
            let before = run(vec![&moves[0], &moves[1], &to_float, &normalize]);
            assert_eq!(before.len(), 20 * 30 * 3);
            assert_eq!(run(vec![&to_float, &moves[0], &normalize, &moves[1]]), before);
            // After erasing, flips take the erased part along.
            let erase = json!({ "RandomErasing": { "p": 1, "value": [7, 8, 9] } });
            let erased = run(vec![&to_float, &erase]);
            let mut mirrored = run(vec![&to_float, &erase, &moves[0]]);
            let line = if layout == "chw" { 61 } else { 61 * 3 };
            for row in mirrored.chunks_exact_mut(line) {
                match layout {
                    "chw" => row.reverse(),
                    _ => row.as_chunks_mut::<3>().0.reverse(),
                }
            }
            assert_eq!(mirrored, erased);
            assert!(
                [7.0, 8.0, 9.0]
                    .iter()
                    .all(|value| erased.iter().filter(|found| *found == value).count() > 50)
            );
        }
    }
}

#[test]
fn the_seed_alone_determines_the_result() {
    let params = json!({ "ops": [
        { "RandomResizedCrop": { "size": 32 } },
        { "RandAugment": {} },
        { "ColorJitter": { "brightness": 0.5, "hue": 0.2 } },
        { "RandomRotation": { "degrees": 20 } },
        { "ToDtype": { "dtype": "float32", "scale": true } },
        { "RandomErasing": { "value": "random", "p": 1 } },
    ]});
    for name in ["baseline-420.jpg", "lossy.webp"] {
        let made: Vec<Vec<f32>> = (0..20).map(|seed| floats(&file(name), seed, &params)).collect();
        let other = file("orientation-6.jpg");
        floats(&other, 5, &params);
        for (seed, made_before) in made.iter().enumerate() {
            assert_eq!(floats(&file(name), seed as u64, &params), *made_before);
        }
        let distinct = made.iter().enumerate().filter(|(at, one)| !made[..*at].contains(one)).count();
        assert_eq!(distinct, made.len());
    }
}

#[test]
fn random_ops_with_probability_zero_change_nothing() {
    let ops = json!([
        { "RandomHorizontalFlip": { "p": 0 } },
        { "RandomVerticalFlip": { "p": 0 } },
        { "RandomErasing": { "p": 0 } },
        { "RandAugment": { "num_ops": 0 } },
        { "ColorJitter": {} },
    ]);
    let picture = file("colour.png");
    assert_eq!(bytes(&picture, &json!({ "ops": ops })), bytes(&picture, &json!({})));
}

#[test]
fn the_orientation_is_applied_unless_it_is_switched_off() {
    let upright = file("baseline-420.jpg");
    let turned = file("orientation-8.jpg");
    let (shape, _) = bytes(&turned, &json!({}));
    assert_eq!(shape, [3, 61, 47]);
    let stored = bytes(&turned, &json!({ "apply_exif_orientation": false }));
    assert_eq!(stored, bytes(&upright, &json!({})));
}

#[test]
fn params_are_checked_before_the_first_image() {
    let refused =
        |ops: serde_json::Value| Instance::<Transform>::new(&json!({ "ops": ops }).to_string()).unwrap_err();
    for (ops, message) in [
        (json!([{ "Rezise": {} }]), "`ops`: `Rezise` is not an op: the ops are `Resize`, `CenterCrop`"),
        (json!([{}]), "`ops`: an op is an object with one member, its name, not 0"),
        (json!([{ "Resize": 224 }]), "`ops`: the params of `Resize` are 224, not an object"),
        (json!([{ "CenterCrop": {} }]), "`ops`: `CenterCrop`: `size` is missing"),
        (
            json!([{ "CenterCrop": { "size": [1, 2, 3] } }]),
            "`ops[0]`: `CenterCrop`: `size` is not one number or",
        ),
        (
            json!([{ "CenterCrop": { "size": 0 } }]),
            "`ops[0]`: `CenterCrop`: the result is empty: 0 x 0 pixels",
        ),
        (json!([{ "CenterCrop": { "size": 100000 } }]), "`ops[0]`: `CenterCrop`: the result is too large"),
        (json!([{ "Resize": {} }]), "`ops[0]`: `Resize`: needs `size` or `max_size`"),
        (
            json!([{ "RandomHorizontalFlip": { "p": 2 } }]),
            "`ops`: `RandomHorizontalFlip`: `p`: 2 is more than 1",
        ),
        (
            json!([{ "ColorJitter": { "hue": 0.6 } }]),
            "`ops[0]`: `ColorJitter`: the limits -0.6 and 0.6 are not between",
        ),
        (
            json!([{ "GaussianBlur": { "kernel_size": 4 } }]),
            "`ops[0]`: `GaussianBlur`: `kernel_size` is 4; use odd",
        ),
        (
            json!([{ "Normalize": { "mean": [0], "std": [1] } }]),
            "`ops[0]`: `Normalize`: needs floating-point numbers: put `ToDtype` with `float32` before it",
        ),
        (
            json!([{ "ToDtype": { "dtype": "float32" } }, { "Normalize": { "mean": [0, 0], "std": [1] } }]),
            "`ops[1]`: `Normalize`: `mean` has 2 numbers; use one, or one per channel: 3",
        ),
        (
            json!([{ "ToDtype": { "dtype": "float32" } }, { "Normalize": { "mean": [0], "std": [1, 0, 1] } }]),
            "`ops[1]`: `Normalize`: `std` of channel 1 is 0, which cannot be a divisor",
        ),
        (
            json!([{ "ToDtype": { "dtype": "float32" } }, { "Resize": { "size": 3 } }]),
            "`ops[1]`: `Resize`: works on bytes: put it before `ToDtype`",
        ),
        (
            json!([{ "ToDtype": { "dtype": "int8" } }]),
            "`ops`: `ToDtype`: `dtype`: `int8` is not one of `uint8`, `float32`",
        ),
        (
            json!([{ "RandomErasing": { "value": "black" } }]),
            "`ops`: `RandomErasing`: `value`: `black` is not a number",
        ),
        (
            json!([{ "RandomRotation": { "degrees": 3, "interpolation": "bicubic" } }]),
            "`ops[0]`: `RandomRotation`: the interpolation `bicubic` cannot rotate; use `nearest` or `bilinear`",
        ),
        (
            json!([{ "RandAugment": { "magnitude": 31 } }]),
            "`ops[0]`: `RandAugment`: `magnitude` is 31, which is not less than `num_magnitude_bins`, 31",
        ),
    ] {
        let found = refused(ops);
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn an_image_to_which_an_op_does_not_apply_is_refused() {
    let refused = |ops: serde_json::Value| item(&file("colour.png"), 0, &json!({ "ops": ops })).unwrap_err();
    assert_eq!(
        refused(json!([{ "RandomCrop": { "size": 50 } }])).message(),
        "RandomCrop: the image has 61 x 47 pixels, fewer than the crop of 50 x 50; set `pad_if_needed` to pad it"
    );
    assert_eq!(
        refused(json!([{ "Pad": { "padding": 47, "padding_mode": "reflect" } }])).message(),
        "Pad: cannot pad an image of 61 x 47 pixels by 47, 47, 47 and 47 mirrored ones"
    );
    assert_eq!(
        refused(json!([{ "GaussianBlur": { "kernel_size": 95 } }])).message(),
        "GaussianBlur: the kernel of 95 x 95 pixels is too large for an image of 61 x 47"
    );
    assert_eq!(
        refused(json!([{ "Pad": { "padding": 4000 } }])).message(),
        "Pad: the padded image is too large: 8061 x 8047 pixels, more than the limit of 50000000"
    );
}

#[test]
fn only_the_file_is_copied_into_the_module_and_the_schema_lists_the_ops() {
    let manifest = manifest::<Transform>();
    assert!(manifest.contains(r#""wants":["bytes"],"makes":["image"]"#));
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let ops = &manifest["params"]["properties"]["ops"]["items"]["properties"];
    assert_eq!(ops["RandomResizedCrop"]["properties"]["scale"]["default"], json!([0.08, 1.0]));
    assert_eq!(ops.as_object().unwrap().len(), 15);
}

#[test]
fn a_bmp_whose_pixels_begin_after_its_end_is_refused() {
    let mut bmp = file("palette.bmp");
    bmp[10..14].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    let error = item(&bmp, 0, &json!({})).unwrap_err();
    assert_eq!(error.message(), "the BMP is damaged: its pixels would begin after its end");
}
