//! Every example runs, on a small data set. The pipelines in `examples/pipelines/seeds` have separate tests.

use std::collections::BTreeSet;
use std::fs;

use penstock_engine::item::{Dtype, Item};
use penstock_tests::{Call, Folder, photos, repository};
use penstock_types::run::{RunSnapshot, RunState};
use serde_json::json;

use crate::delivered::{Example, batches, stacked};

fn example(name: &str) -> Call {
    Call::run(&repository().join("examples/pipelines").join(name)).json()
}

fn completed(call: Call) -> RunSnapshot {
    let snapshot = call.finish().exits(0).snapshot();
    assert_eq!(snapshot.state, RunState::Completed);
    assert!(snapshot.failures.is_empty(), "{:#?}", snapshot.failures);
    snapshot
}

/// Number of photos in each of the class folders `train/ant`, `train/bee` and `train/cat`.
const CLASSES: [(&str, usize); 3] = [("ant", 5), ("bee", 9), ("cat", 2)];

fn photo(number: usize) -> Vec<u8> {
    fs::read(photos().join(format!("000/{number:06}.jpg"))).unwrap()
}

fn class_folders(folder: &Folder) {
    folder.write("train/readme.jpg", "in no class");
    for (class, count) in CLASSES {
        (0..count)
            .for_each(|number| drop(folder.write(&format!("train/{class}/{number}.jpg"), photo(number))));
    }
}

/// Writes shards of four photos with labels, and their index `SET.index`.
fn tar_set(folder: &Folder, set: &str, shards: usize) {
    for shard in 0..shards {
        let samples = (4 * shard..4 * (shard + 1)).flat_map(|number| {
            [
                (format!("{set}/{number}.jpg"), photo(number)),
                (format!("{set}/{number}.cls"), number.to_string().into_bytes()),
            ]
        });
        folder.write(&format!("{set}-{shard}.tar"), tar(samples));
    }
    let store = format!("shards={}", folder.path().display());
    let (prefix, index) = (format!("--prefix={set}-"), format!("--upload={set}.index"));
    Call::new(&["index", "create", "--tar", "--store", &store, &prefix, &index]).finish().exits(0);
}

/// A tar archive of these files.
pub(crate) fn tar(files: impl Iterator<Item = (String, Vec<u8>)>) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(&content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
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
        "image-folder.json" => {
            class_folders(&folder);
            completed(call.store("photos", folder.path()))
        }
        "imagenet-train.json" | "imagenet-validation.json" => completed(call.store("photos", photos())),
        "media.json" => {
            folder.sounds(6);
            let photo = |index: u64| format!("{{\"key\": \"000/{index:06}.jpg\", \"media\": \"photo\"}}\n");
            let mut list: String = (0..12).map(photo).collect();
            let sound = |index: u64| {
                format!(
                    "{{\"key\": \"000/{index:06}.wav\", \"media\": \"sound\"}}\n{{\"key\": \"text {index}\"}}\n"
                )
            };
            list.extend((0..6).map(sound));
            folder.write("media.ndjson", list);
            completed(
                call.store("lists", folder.path()).store("photos", photos()).store("sounds", folder.path()),
            )
        }
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
        "webdataset-mix.json" => {
            for (set, shards) in [("photos", 2), ("drawings", 1), ("scans", 3)] {
                tar_set(&folder, set, shards);
            }
            completed(call.store("shards", folder.path()))
        }
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
fn batches_of_class_folders_have_the_numbers_of_their_folders() {
    let folder = Folder::new();
    class_folders(&folder);
    let (snapshot, items) = Example::new("image-folder.json", &[]).store("photos", folder.path()).run();
    let labels = &snapshot.labels["0:src"];
    assert_eq!(labels.classes, CLASSES.map(|(class, _)| class));
    assert_eq!((labels.class_count, labels.without_class, snapshot.ledger.total.made), (3, 1, 16));
    let mut seen = 0;
    for batch in batches(items) {
        let (shape, numbers) = stacked(&batch, "label", Dtype::Int64, i64::from_le_bytes);
        assert_eq!(shape, [batch.keys.len() as u32]);
        for (key, number) in batch.keys.iter().zip(numbers) {
            assert!(key.starts_with(&format!("train/{}/", CLASSES[number as usize].0)), "{key}: {number}");
            seen += 1;
        }
    }
    assert_eq!(seen, 16);
}

#[test]
fn tables_and_labels_run_as_documents_and_the_report_says_what_is_left_out() {
    let folder = Folder::new();
    (0..4).for_each(|number| drop(folder.write(&format!("faces/{number}.jpg"), photo(number))));
    folder.write("tables/a-1.csv", "id,path,age\nx,faces/0.jpg,31\ny,faces/1.jpg,\n");
    folder.write("tables/a-2.csv", "path,id\r\n\"faces/2.jpg\",z");
    let run = |source: serde_json::Value, fetch: serde_json::Value| {
        let document = json!({ "source": source, "stages": [{ "fetch": fetch }] });
        Call::run(&folder.document(&document))
            .store("data", folder.path())
            .store("tables", &folder.join("tables"))
    };
    let tables = json!({ "csv": { "store": "tables", "shards": "a-{1..2}.csv", "sample_key": "id", "shuffle": true } });
    let snapshot = completed(run(tables, json!({ "store": "data", "object": "path" })).json());
    assert_eq!((snapshot.ledger.total.delivered, snapshot.labels.len()), (3, 0));
    folder.write("tables/ages.csv", "key,age\n0,31\n2,58\n9,0\n");
    let labels = json!({ "store": "tables", "key": "ages.csv", "match": "stem", "types": { "age": "int" }, "missing": "skip" });
    let list = json!({ "list": { "store": "data", "prefix": "faces/", "suffix": ".jpg", "labels": labels } });
    let finished = run(list, json!({})).finish().exits(0);
    let lines = finished.stdout.lines().filter(|line| line.starts_with("[0:src] "));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "[0:src] left out 2 listed keys without a label (`faces/1.jpg`, `faces/3.jpg`)",
            "[0:src] fields: age int64",
            "[0:src] 1 labels of keys that are not listed (9)"
        ]
    );
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
