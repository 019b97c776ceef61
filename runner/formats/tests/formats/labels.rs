//! Tests of labels, against what torchvision's `ImageFolder` finds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use penstock_engine::item::{Sample, Value};
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_formats::{LabelTable, Labelling, RecordFormat, labelled_samples};
use penstock_storage::{BoundedStore, Wanted};
use penstock_types::run::LabelsRecord;
use penstock_types::spec::{ColumnType, KeyPart, Missing};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};
use proptest::prelude::*;
use serde::Deserialize;

use crate::records::drain;
use crate::{data, store_of};

#[derive(Deserialize)]
struct Folders {
    keys: Vec<String>,
    classes: Vec<String>,
    samples: BTreeMap<String, i64>,
}

type Found = Arc<Mutex<LabelsRecord>>;

fn open(store: &BoundedStore, prefix: &str, suffix: &str, labelling: Labelling, most: u64) -> (Open, Found) {
    let table = labelling.table.as_ref().map(|table| table.key.to_string());
    let wanted = Wanted { prefix: prefix.to_owned(), suffix: suffix.to_owned(), except: table };
    let found = Found::default();
    let on_found = found.clone();
    let open = labelled_samples(
        store.clone(),
        wanted,
        labelling,
        move |labels| *on_found.lock().unwrap() = labels,
        most,
    );
    (open, found)
}

fn noted(found: &Found) -> LabelsRecord {
    found.lock().unwrap().clone()
}

fn folders() -> Labelling {
    Labelling { by_folder: true, table: None }
}

fn table(store: &BoundedStore, key: &str, matches: KeyPart, missing: Missing) -> Labelling {
    let types = BTreeMap::from([("n".to_owned(), ColumnType::Int)]);
    let format = if key.ends_with(".csv") { RecordFormat::rows(b',', types) } else { RecordFormat::lines() };
    let format = format.with_key(Some("id"));
    Labelling {
        by_folder: false,
        table: Some(LabelTable { store: store.clone(), key: Arc::from(key), format, matches, missing }),
    }
}

async fn store(keys: &[&str], table: Option<(&str, &str)>) -> BoundedStore {
    let objects = keys.iter().map(|key| (*key, Vec::new()));
    store_of(&objects.chain(table.map(|(key, text)| (key, text.as_bytes().to_vec()))).collect::<Vec<_>>())
        .await
}

async fn read(open: Open) -> Result<Vec<Sample>, String> {
    let found = drain(NumberedSource::new(open, TraversalSettings::IN_ORDER, 0)).await;
    match found.fault {
        None => Ok(found.samples),
        Some(fault) => Err(fault.to_string()),
    }
}

fn int(sample: &Sample, field: &str) -> i64 {
    match sample.field(field) {
        Some(Value::Int(number)) => *number,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn class_folders_have_the_numbers_of_torchvision() {
    let Folders { keys, classes, samples } = serde_json::from_slice(&data("folders.json")).unwrap();
    let below: Vec<String> = keys.iter().map(|key| format!("train/{key}")).collect();
    let store =
        store(&below.iter().map(String::as_str).chain(["val/x/1.jpg"]).collect::<Vec<_>>(), None).await;
    let (open, found) = open(&store, "train/", ".jpg", folders(), u64::MAX);
    let read = read(open).await.unwrap();
    let labels = read
        .iter()
        .map(|sample| (sample.key.strip_prefix("train/").unwrap().to_owned(), int(sample, "label")));
    assert_eq!(labels.collect::<BTreeMap<_, _>>(), samples);
    let found = noted(&found);
    assert_eq!((&found.classes, found.class_count, found.without_class), (&classes, classes.len() as u64, 1));
}

#[tokio::test]
async fn fields_of_a_table_are_joined_by_whole_keys_or_by_stems() {
    let csv = "n,id,text\n2,b,two\n1,a/1,\"o,ne\"\n9,c,nine\n";
    let store = store(&["x/a/1.jpg", "x/b.jpg"], Some(("x/labels.csv", csv))).await;
    let (stems, found) =
        open(&store, "x/", ".jpg", table(&store, "x/labels.csv", KeyPart::Stem, Missing::Fail), u64::MAX);
    let samples = read(stems).await.unwrap();
    let seen: Vec<_> =
        samples.iter().map(|sample| (&*sample.key, int(sample, "n"), sample.origin.index)).collect();
    assert_eq!(seen, [("x/a/1.jpg", 1, 0), ("x/b.jpg", 2, 1)]);
    assert_eq!(samples[0].field("text"), Some(&Value::Text("o,ne".to_owned())));
    assert_eq!(
        noted(&found),
        LabelsRecord { unused: 1, unused_keys: vec!["c".to_owned()], ..LabelsRecord::default() }
    );
    let (keys, _) =
        open(&store, "x/", "", table(&store, "x/labels.csv", KeyPart::Key, Missing::Skip), u64::MAX);
    assert_eq!(
        read(keys).await.unwrap_err(),
        "the labels `x/labels.csv` in store `data` lack 2 of the 2 listed keys, such as `x/a/1.jpg`, and have 3 others, such as `b`; \
         set `sample_key` and `match`"
    );
    let lines = "{\"id\": \"x/b.jpg\", \"n\": 5}\n{\"id\": \"x/a/1.jpg\", \"n\": null}\n";
    store.put(Arc::from("lines.ndjson"), lines.into()).await.unwrap();
    let (keys, _) =
        open(&store, "x/", ".jpg", table(&store, "lines.ndjson", KeyPart::Key, Missing::Fail), u64::MAX);
    let samples = read(keys).await.unwrap();
    assert_eq!((samples[0].fields.len(), int(&samples[1], "n")), (0, 5));
}

#[tokio::test]
async fn keys_without_a_label_fail_or_are_left_out_and_counted() {
    let store = store(&["a", "b", "c", "d"], Some(("l.csv", "id,n\nd,4\nz,0\nb,2\n"))).await;
    let (fails, _) = open(&store, "", "", table(&store, "l.csv", KeyPart::Key, Missing::Fail), u64::MAX);
    assert_eq!(
        read(fails).await.unwrap_err(),
        "the labels `l.csv` in store `data` lack 2 of the 4 listed keys, such as `a`, and have 1 others, such as `z`; add them, or set \
         `missing` to `skip`"
    );
    let (skips, found) = open(&store, "", "", table(&store, "l.csv", KeyPart::Key, Missing::Skip), u64::MAX);
    let samples = read(skips).await.unwrap();
    let seen: Vec<_> =
        samples.iter().map(|sample| (&*sample.key, int(sample, "n"), sample.origin.index)).collect();
    assert_eq!(seen, [("b", 2, 0), ("d", 4, 1)]);
    let (without_label, unused) = (noted(&found).without_label, noted(&found).unused);
    assert_eq!((without_label, unused), (2, 1));
}

#[tokio::test]
async fn labels_that_contradict_each_other_or_do_not_fit_are_refused_with_a_reason() {
    let store = store(&["x/a", "x/b"], Some(("l.csv", "id,n,label\nx/a,1,2\nx/b,2,1\n"))).await;
    for (name, text) in [
        ("twice.csv", "id,n\nx/a,1\nx/b,2\nx/a,3\n"),
        ("nokey.csv", "id,n\nx/a,1\n,2\n"),
        ("nocolumn.csv", "key,n\nx/a,1\n"),
        ("type.csv", "id,n\nx/a,one\n"),
        ("nokey.ndjson", "{\"key\": \"x/a\"}\n"),
    ] {
        store.put(Arc::from(name), text.into()).await.unwrap();
    }
    let mut faults = Vec::new();
    for key in ["twice.csv", "nokey.csv", "nocolumn.csv", "type.csv", "nokey.ndjson", "none.csv"] {
        let (open, _) = open(&store, "x/", "", table(&store, key, KeyPart::Key, Missing::Fail), u64::MAX);
        faults.push(read(open).await.unwrap_err());
    }
    let both = Labelling { by_folder: true, ..table(&store, "l.csv", KeyPart::Key, Missing::Fail) };
    faults.push(read(open(&store, "", "", both, u64::MAX).0).await.unwrap_err());
    faults.push(read(open(&store, "x/", "", folders(), u64::MAX).0).await.unwrap_err());
    let (small, _) = open(&store, "x/", "", table(&store, "l.csv", KeyPart::Key, Missing::Fail), 60);
    faults.push(read(small).await.unwrap_err());
    let (small, _) = open(&store, "x/", "", table(&store, "l.csv", KeyPart::Key, Missing::Fail), 100);
    faults.push(read(small).await.unwrap_err());
    insta::assert_snapshot!(faults.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn each_labelled_key_is_visited_once_over_all_ranks_with_its_own_labels(
        keys in proptest::collection::btree_map("[ab-]{1,2}/[a-d]{1,3}", proptest::option::of(0_i64..100), 1..30),
        others in proptest::collection::btree_set("[xy]{1,3}", 0..5), world in 1_u32..4, seed: u64, shuffle: bool, by_folder: bool, held: bool,
    ) {
        let labelled: BTreeMap<&String, i64> = keys.iter().filter_map(|(key, n)| Some((key, (*n)?))).collect();
        prop_assume!(!labelled.is_empty());
        let mut rows: Vec<(&str, i64)> = labelled.iter().map(|(key, n)| (key.as_str(), *n)).chain(others.iter().map(|key| (key.as_str(), -1))).collect();
        rows.sort_by_key(|(key, n)| (n.wrapping_mul(7919) % 13, *key));
        let csv: String = std::iter::once("n,id\n".to_owned()).chain(rows.iter().map(|(key, n)| format!("{n},{key}\n"))).collect();
        let classes: BTreeSet<&str> = keys.keys().filter_map(|key| key.split_once('/')).map(|(class, _)| class).collect();
        let classes: Vec<&str> = classes.into_iter().collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut seen = Vec::new();
        for rank in 0..world {
            let shard = Some(Shard { rank, world: NonZeroU32::new(world).unwrap(), uneven: Uneven::Keep });
            let settings = TraversalSettings { seed, shuffle, shard, ..TraversalSettings::IN_ORDER };
            let found = runtime.block_on(async {
                let store = store(&keys.keys().map(String::as_str).collect::<Vec<_>>(), Some(("l.csv", &csv))).await;
                let labelling = Labelling { by_folder, ..table(&store, "l.csv", KeyPart::Key, Missing::Skip) };
                // The smaller limit does not let the table stay in memory.
                let most = if held { u64::MAX } else { 4 * (csv.len() as u64 - 1).min(700) + 3000 };
                drain(NumberedSource::new(open(&store, "", "", labelling, most).0, settings, 0)).await
            });
            prop_assert!(found.fault.is_none(), "{:?}", found.fault);
            seen.extend(found.samples);
        }
        let expected: Vec<(String, i64)> = labelled.iter().map(|(key, n)| ((*key).clone(), *n)).collect();
        let mut got: Vec<(String, i64)> = seen.iter().map(|sample| (sample.key.to_string(), int(sample, "n"))).collect();
        got.sort();
        prop_assert_eq!(got, expected);
        for sample in seen.iter().filter(|_| by_folder) {
            let (class, _) = sample.key.split_once('/').unwrap();
            prop_assert_eq!(classes[int(sample, "label") as usize], class);
        }
    }
}
