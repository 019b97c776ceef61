use penstock_guest::testing::{Instance, manifest};

use super::*;

/// A sample whose image is `[2, 20]` of one value: more than one chunk, and not a multiple of the chunk size.
fn sample(key: &str, seed: u64, value: f32, class: i64) -> Item {
    let image = Tensor::new([2, 20], vec![value; 40]).unwrap();
    Item::new(key).with_seed(seed).with("image", image).with("label", class)
}

fn mixed(params: &str, items: Vec<Item>) -> Vec<Item> {
    let outcomes = Instance::<Mixup>::new(params).unwrap().process(items);
    let keep = |outcome| match outcome {
        Outcome::Keep(item) => item,
        other => panic!("{other:?}"),
    };
    outcomes.into_iter().map(keep).collect()
}

fn label(item: &Item) -> Vec<f32> {
    item.tensor::<f32>("label").unwrap().as_slice().to_vec()
}

fn image(item: &Item) -> Vec<f32> {
    let image = item.tensor::<f32>("image").unwrap();
    assert_eq!(image.shape(), [2, 20]);
    image.as_slice().to_vec()
}

#[test]
fn images_and_labels_are_mixed_by_the_same_weight() {
    let batch = vec![sample("a", 30, 100.0, 0), sample("b", 10, 200.0, 1), sample("c", 20, 400.0, 2)];
    let out = mixed(r#"{"alpha": 1, "classes": 3}"#, batch);
    // The partner of a sample is the next one by seed: b, c, a, then b again.
    for (at, (own, partner)) in [(0, 1), (1, 2), (2, 0)].into_iter().enumerate() {
        let values = [100.0, 200.0, 400.0];
        let weights = label(&out[at]);
        let weight = weights[own];
        assert!(0.0 < weight && weight < 1.0);
        assert_eq!(weights[partner], 1.0 - weight);
        assert_eq!(weights.iter().filter(|&&weight| weight == 0.0).count(), 1);
        let expected = values[own] * weight + values[partner] * (1.0 - weight);
        assert!(image(&out[at]).iter().all(|value| *value == expected), "{expected}: {:?}", image(&out[at]));
    }
    assert_eq!(out.iter().map(Item::key).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(label(&out[0])[0] != label(&out[1])[1], "each sample has a separate weight");
}

#[test]
fn the_order_within_a_batch_changes_nothing() {
    let batch =
        || (0..9).map(|at| sample(&at.to_string(), at * 7919 % 31, at as f32, at as i64)).collect::<Vec<_>>();
    let params = r#"{"classes": 9}"#;
    let in_order = mixed(params, batch());
    let mut turned: Vec<Item> = mixed(params, batch().into_iter().rev().collect());
    turned.reverse();
    assert_eq!(in_order, turned);
}

#[test]
fn a_single_sample_keeps_its_image_and_has_its_label_as_weights() {
    let out = mixed(r#"{"classes": 2, "alpha": 1}"#, vec![sample("a", 1, 5.0, 1)]);
    assert_eq!((label(&out[0]), image(&out[0])), (vec![0.0, 1.0], vec![5.0; 40]));
    assert!(Instance::<Mixup>::new("").unwrap().process(vec![]).is_empty());
}

#[test]
fn chance_zero_mixes_nothing_and_alpha_zero_swaps_whole_images() {
    let batch = || (0..64).map(|at| sample(&at.to_string(), 1 + at, at as f32, 0)).collect::<Vec<_>>();
    let unmixed = mixed(r#"{"classes": 1, "chance": 0}"#, batch());
    assert!(unmixed.iter().enumerate().all(|(at, item)| image(item)[0] == at as f32));
    let swapped = mixed(r#"{"classes": 1, "alpha": 0}"#, batch());
    let own = swapped.iter().enumerate().filter(|(at, item)| image(item)[0] == *at as f32).count();
    assert!((10..54).contains(&own), "{own} of 64 kept their own image");
    assert!(swapped.iter().all(|item| image(item)[0].fract() == 0.0));
}

#[test]
fn labels_that_are_already_weights_are_mixed() {
    let soft = |key, seed, weights: [f32; 2]| {
        sample(key, seed, 1.0, 0).with("label", Tensor::new([2], weights.to_vec()).unwrap())
    };
    let out = mixed(r#"{"alpha": 1}"#, vec![soft("a", 1, [0.75, 0.25]), soft("b", 2, [0.25, 0.75])]);
    for item in &out {
        let weights = label(item);
        assert!(
            (weights[0] + weights[1] - 1.0).abs() < 1e-6 && (0.25..=0.75).contains(&weights[0]),
            "{weights:?}"
        );
    }
}

#[test]
fn a_mismatched_sample_is_refused_and_the_others_are_mixed() {
    let odd = sample("odd", 4, 1.0, 0).with("image", Tensor::<f32>::zeros([3, 3]));
    let bytes = sample("bytes", 5, 1.0, 0).with("image", Tensor::<u8>::zeros([2, 20]));
    let far = sample("far", 6, 1.0, 3);
    let nameless = Item::new("nameless").with("image", Tensor::<f32>::zeros([2, 20]));
    let batch = vec![odd, sample("a", 1, 1.0, 0), bytes, sample("b", 2, 2.0, 1), far, nameless];
    let outcomes = Instance::<Mixup>::new(r#"{"classes": 3}"#).unwrap().process(batch);
    let told: Vec<&str> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Outcome::Keep(item) => item.key(),
            Outcome::Failed(reason) => reason,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        [
            "`image` has shape [3, 3] and `label` 3 classes, but most of the batch have [2, 20] and 3",
            "a",
            "field `image` has elements of type uint8, not float32",
            "b",
            "`label` is 3, but the classes are 0 to 2",
            "`label` must be a whole number or weights: no field `label`: the item has `image`",
        ]
    );
    let outcomes = Instance::<Mixup>::new("").unwrap().process(vec![sample("a", 1, 1.0, 0)]);
    let expected = "`label` is a whole number; set the param `classes` to the number of classes";
    assert_eq!(outcomes, [Outcome::Failed(expected.to_owned())]);
}

#[test]
fn the_manifest_declares_batch_mode() {
    assert!(
        manifest::<Mixup>().contains(r#""mode":"batch","wants":["image","label"],"makes":["image","label"]"#)
    );
    let error = Instance::<Mixup>::new(r#"{"alpha": -1, "chance": 2}"#).unwrap_err();
    assert_eq!(error, "`alpha`: -1 is less than 0; `chance`: 2 is more than 1");
}
