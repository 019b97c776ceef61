//! The mixup pipeline: its batches depend only on the seed, and labels stay weights.

use penstock_engine::item::{Collated, Dtype};
use penstock_tests::{Folder, photos};
use serde_json::json;

use crate::delivered::{Example, batches, stacked};

fn labels() -> Folder {
    let folder = Folder::new();
    let line =
        |index: u64| format!("{}\n", json!({ "key": format!("000/{index:06}.jpg"), "label": index % 10 }));
    folder.write("labels.ndjson", (0..48).map(line).collect::<String>());
    folder
}

fn mixed(seed: u64, threads: u32, alpha: f64) -> Vec<Collated> {
    let labels = labels();
    let example = Example::new("mixup.json", &["mixup"])
        .store("labels", labels.path())
        .store("photos", photos())
        .set("/seed", seed)
        .set("/threads", threads)
        .set("/stages/3/wasm/params/alpha", alpha)
        .set("/stages/4/collate/order", "input");
    let (snapshot, items) = example.run();
    assert_eq!((snapshot.ledger.total.delivered, snapshot.threads), (48, threads));
    batches(items)
}

#[test]
fn images_and_labels_of_a_batch_are_mixed() {
    for batch in mixed(7, 2, 1.0) {
        let (shape, labels) = stacked(&batch, "label", Dtype::Float32, f32::from_le_bytes);
        assert_eq!((shape, batch.keys.len()), (vec![16, 10], 16));
        for (key, weights) in batch.keys.iter().zip(labels.chunks(10)) {
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{weights:?}");
            assert!(weights.iter().filter(|&&weight| weight > 0.0).count() <= 2, "{weights:?}");
            let own = key[4..10].parse::<usize>().unwrap() % 10;
            assert!(weights[own] > 0.0, "{key}: {weights:?}");
        }
        let (shape, pixels) = stacked(&batch, "image", Dtype::Float32, f32::from_le_bytes);
        assert_eq!(shape, [16, 3, 64, 64]);
        assert!(pixels.iter().all(|pixel| (-2.2..2.7).contains(pixel)));
    }
}

#[test]
fn batches_are_the_same_for_any_number_of_threads_and_differ_for_another_seed() {
    let one = mixed(7, 1, 0.2);
    for threads in [2, 8] {
        assert!(mixed(7, threads, 0.2) == one, "{threads} threads");
    }
    assert!(mixed(8, 2, 0.2) != one);
}
