//! Every example runs, on a small data set. The pipelines in `examples/pipelines/seeds` have separate tests.

use std::collections::BTreeSet;
use std::fs;

use penstock_engine::item::Item;
use penstock_tests::{Call, Folder, photos, repository};
use penstock_types::run::{RunSnapshot, RunState};

use crate::delivered::Example;

fn example(name: &str) -> Call {
    Call::run(&repository().join("examples/pipelines").join(name)).json()
}

fn completed(call: Call) -> RunSnapshot {
    let snapshot = call.finish().exits(0).snapshot();
    assert_eq!(snapshot.state, RunState::Completed);
    assert!(snapshot.failures.is_empty(), "{:#?}", snapshot.failures);
    snapshot
}

/// Runs one example; panics for an unknown one.
fn run(name: &str) {
    let folder = Folder::new();
    let call = example(name);
    let snapshot = match name {
        "audio.json" => {
            folder.sounds(20);
            completed(call.store("audio", folder.path()))
        }
        "imagenet-train.json" | "imagenet-validation.json" => completed(call.store("photos", photos())),
        "mixup.json" => {
            let label =
                |index: u64| format!("{{\"key\": \"000/{index:06}.jpg\", \"label\": {}}}\n", index % 10);
            folder.write("labels.ndjson", (0..32).map(label).collect::<String>());
            let call = call.store("labels", folder.path()).store("photos", photos());
            completed(call.module("mixup", "mixup"))
        }
        "mu-law.json" => {
            folder.sounds(20);
            completed(call.store("audio", folder.path()).module("mu-law", "mu-law"))
        }
        "photos.json" => {
            let call = call.store("photos", photos());
            completed(call.set("/source/list/limit=24").set("/consumer/simulate/step_ms=1"))
        }
        "photos-max.json" => completed(call.store("photos", photos())),
        "table.json" => {
            let person = |index: u32| {
                let (age, income) = (18 + index % 60, 1000 * (index % 97));
                let colour = ["red", "green", "blue"][index as usize % 3];
                format!(
                    "{{\"key\": \"{index}\", \"age\": {age}, \"income\": {income}.5, \"colour\": \"{colour}\", \"label\": {}, \"note\": \"x\"}}\n",
                    index % 2
                )
            };
            folder.write("people.ndjson", (0..64).map(person).collect::<String>());
            completed(call.store("table", folder.path()))
        }
        "text.json" => {
            folder.texts(500);
            completed(call.store("text", folder.path()).module("text-filter", "text-filter"))
        }
        "pack.json" | "tokens.json" => {
            folder.texts(200);
            folder.tokenizer();
            completed(call.store("text", folder.path()))
        }
        "tour.json" => completed(call.set("/source/range/count=60").set("/consumer/simulate/step_ms=1")),
        "toy-baseline.json" => completed(call),
        "toy-slow-training.json" | "toy-slow-loading.json" => completed(call.set("/source/range/count=5")),
        _ => panic!("`examples/pipelines/{name}` is run by no test: add its data here"),
    };
    let total = snapshot.ledger.total;
    assert!(total.delivered > 0, "{name}: {total:?}");
    assert_eq!(total.delivered + total.dropped, total.made, "{name}: {total:?}");
}

#[test]
fn every_example_pipeline_runs_to_its_end() {
    let folder = repository().join("examples/pipelines");
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        run(&name);
    }
}

#[test]
fn the_text_filter_counts_what_it_drops_and_splits() {
    let texts = Folder::new();
    texts.texts(300);
    let call = example("text.json").store("text", texts.path()).module("text-filter", "text-filter");
    let snapshot = completed(call.set("/stages/0/wasm/params={\"min_chars\": 60, \"max_chars\": 150}"));
    let (counted, total) = (&snapshot.counters["1:text-filter"], &snapshot.ledger.total);
    assert!(counted["split"] > 0.0 && total.made > 300, "{counted:?} {total:?}");
    // The counter also counts dropped parts of texts, but the ledger does not: such parts have not become samples.
    assert!(counted["dropped"] >= total.dropped as f64 && counted["dropped"] > 0.0, "{counted:?} {total:?}");
}

/// Keys of the samples in the order of their delivery.
fn keys(document: &str) -> Vec<String> {
    let (_, items) = Example::new(document, &[]).run();
    let key = |item: Item| match item {
        Item::Sample(sample) => sample.key.to_string(),
        other => panic!("the document makes no batches: {other:?}"),
    };
    items.into_iter().map(key).collect()
}

#[test]
fn results_come_in_order_of_completion_unless_input_order_is_set() {
    let numbers = |document| -> Vec<u64> {
        keys(document).iter().map(|key| key.parse().expect("keys of a range are numbers")).collect()
    };
    let ordered = numbers("seeds/003-order-of-input.json");
    assert_eq!(ordered, (0..300).collect::<Vec<_>>());
    let ready = numbers("seeds/003-order-of-completion.json");
    assert!(!ready.is_sorted(), "three tasks of very different length never overtook each other");
    assert_eq!(ready.into_iter().collect::<BTreeSet<_>>(), (0..300).collect());
}
