//! Warns of boxes and masks beside pictures whose pixels are moved.

use std::collections::BTreeSet;

use penstock_types::data_set::DataFields;
use penstock_types::fault::listed;
use penstock_types::plan::{Plan, StageKind};
use serde_json::{Map, Value};

/// Module whose ops change the field `image` alone.
const IMAGE_MODULE: &str = "std/image";

/// Ops of [`IMAGE_MODULE`] that move pixels.
const SPATIAL_OPS: [&str; 9] = [
    "Resize",
    "CenterCrop",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "Pad",
    "RandomRotation",
    "RandAugment",
];

/// Words in names of fields whose values are places in a picture.
const PLACES: [&str; 16] = [
    "box",
    "boxes",
    "bbox",
    "bboxes",
    "mask",
    "masks",
    "segmentation",
    "segmentations",
    "keypoint",
    "keypoints",
    "polygon",
    "polygons",
    "landmark",
    "landmarks",
    "segm",
    "rle",
];

/// Words in names of fields that are masks of other things.
const OTHERS: [&str; 5] = ["attention", "padding", "pad", "text", "token"];

/// Warnings about the stages of a plan, one for each stage whose ops leave the places in a field as they are. The fields are those of the
/// data set, if these are known, and those that the document names.
pub(crate) fn spatial_warnings(plan: &Plan, fields: Option<&DataFields>) -> Vec<String> {
    let stages = plan.stages.iter().filter_map(|stage| match &stage.kind {
        StageKind::Wasm(wasm) if wasm.module.split('@').next() == Some(IMAGE_MODULE) => {
            Some((stage.id.to_string(), spatial_ops(&wasm.params)))
        }
        _ => None,
    });
    let mut stages = stages.filter(|(_, ops)| !ops.is_empty()).peekable();
    if stages.peek().is_none() {
        return Vec::new();
    }
    let written = plan.source.spec.rules().fields();
    let known = fields.iter().flat_map(|fields| fields.fields.iter().map(|field| &*field.name));
    let places: BTreeSet<&str> = written.names().chain(known).filter(|name| is_place(name)).collect();
    if places.is_empty() {
        return Vec::new();
    }
    let warning = |(stage, ops): (String, Vec<&str>)| {
        format!(
            "stage `{stage}`: {} of `{IMAGE_MODULE}` {} `image` alone, so that {} no longer fit the picture if they contain boxes, masks \
             or points in it",
            listed(ops.iter().copied()),
            if ops.len() == 1 { "changes" } else { "change" },
            listed(places.iter().copied())
        )
    };
    stages.map(warning).collect()
}

/// Ops in params that move pixels, each once.
fn spatial_ops(params: &Map<String, Value>) -> Vec<&'static str> {
    let ops = params.get("ops").and_then(Value::as_array).into_iter().flatten();
    let names: BTreeSet<&str> =
        ops.filter_map(Value::as_object).flat_map(|op| op.keys().map(String::as_str)).collect();
    SPATIAL_OPS.into_iter().filter(|op| names.contains(op)).collect()
}

/// True if the name of a field says that its values are places in a picture.
fn is_place(name: &str) -> bool {
    let name = name.to_lowercase();
    if name.ends_with(".present") || name.ends_with(".shape") {
        return false;
    }
    let words = || name.split(|letter: char| !letter.is_alphanumeric());
    words().any(|word| PLACES.contains(&word)) && !words().any(|word| OTHERS.contains(&word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_boxes_masks_and_points_are_recognized() {
        for name in ["boxes", "gt_boxes", "objects.bbox", "image-mask", "Masks", "segmentation", "keypoints"]
        {
            assert!(is_place(name), "{name}");
        }
        for name in [
            "image",
            "label",
            "boxer",
            "attention_mask",
            "boxes.present",
            "mask.shape",
            "boxoffice",
            "masked",
            "",
        ] {
            assert!(!is_place(name), "{name}");
        }
    }

    #[test]
    fn ops_that_move_pixels_are_found_in_params() {
        let ops = |ops: Value| spatial_ops(json!({ "ops": ops }).as_object().unwrap());
        let flipped = json!([{ "RandomHorizontalFlip": {} }, { "ToDtype": {} }, { "Resize": { "size": 3 } }, { "Resize": {} }]);
        assert_eq!(ops(flipped), ["Resize", "RandomHorizontalFlip"]);
        assert!(ops(json!([{ "ColorJitter": {} }, 7])).is_empty());
        assert!(ops(json!("Resize")).is_empty());
    }
}
