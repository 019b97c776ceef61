//! Tests of labels, against what torchvision's `ImageFolder` finds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use penstock_engine::item::{Sample, Value};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_formats::{
    Classes, LabelTable, Labelling, NEW_CLASSES, RecordFormat, SharedClasses, labelled_samples,
};
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore, Wanted};
use penstock_types::data_set::{DataField, DataFields, FieldType};
use penstock_types::left_out::LeftOutReason;
use penstock_types::run::LabelsRecord;
use penstock_types::spec::{ColumnType, KeyPart, Missing, Suffix};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};
use proptest::prelude::*;
use serde::Deserialize;

use crate::records::drain;
use crate::{data, store_of, wanted};

#[derive(Deserialize)]
struct Folders {
    keys: Vec<String>,
    classes: Vec<String>,
    samples: BTreeMap<String, i64>,
}

type Found = Arc<Mutex<LabelsRecord>>;

fn open(store: &BoundedStore, prefix: &str, suffix: &str, labelling: Labelling, most: u64) -> (Open, Found) {
    let table = labelling.table.as_ref().map(|table| table.key.to_string());
    let wanted = Wanted { except: table, ..wanted(prefix, suffix) };
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
    Labelling { classes: Some(Classes::Found), table: None }
}

fn table(store: &BoundedStore, key: &str, matches: KeyPart, missing: Missing) -> Labelling {
    let types = BTreeMap::from([("n".to_owned(), ColumnType::Int)]);
    let format =
        if key.ends_with(".csv") { RecordFormat::rows(b',', types) } else { RecordFormat::lines([].into()) };
    let format = format.with_key(Some("id"));
    Labelling {
        classes: None,
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
async fn fields_of_a_table_have_the_types_of_all_its_records() {
    let lines = "{\"id\": \"x/a.jpg\", \"n\": 1}\n{\"id\": \"x/b.jpg\", \"n\": 2.5, \"t\": \"b\"}\n";
    let store = store(&["x/a.jpg", "x/b.jpg"], Some(("l.ndjson", lines))).await;
    let of_table = table(&store, "l.ndjson", KeyPart::Key, Missing::Fail);
    let labelling = Labelling { classes: Some(Classes::Found), ..of_table };
    let (open, _) = open(&store, "", ".jpg", labelling, u64::MAX);
    let fields = open.await.unwrap().fields().unwrap();
    let field = |name: &str, kind, optional| DataField { name: name.into(), kind, optional: Some(optional) };
    let expected = [
        field("n", FieldType::Real, false),
        field("t", FieldType::Text, true),
        field("label", FieldType::Int, false),
    ];
    assert_eq!(fields, DataFields::of(expected.into()));
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
    let both =
        Labelling { classes: Some(Classes::Found), ..table(&store, "l.csv", KeyPart::Key, Missing::Fail) };
    faults.push(read(open(&store, "", "", both, u64::MAX).0).await.unwrap_err());
    faults.push(read(open(&store, "x/", "", folders(), u64::MAX).0).await.unwrap_err());
    let (small, _) = open(&store, "x/", "", table(&store, "l.csv", KeyPart::Key, Missing::Fail), 60);
    faults.push(read(small).await.unwrap_err());
    let (small, _) = open(&store, "x/", "", table(&store, "l.csv", KeyPart::Key, Missing::Fail), 100);
    faults.push(read(small).await.unwrap_err());
    insta::assert_snapshot!(faults.join("\n"));
}

/// A folder with these files and empty folders, which end with `/`.
fn folder(paths: &[&str]) -> (tempfile::TempDir, BoundedStore) {
    let folder = tempfile::tempdir().unwrap();
    for path in paths {
        let whole = folder.path().join(path);
        match path.strip_suffix('/') {
            Some(_) => std::fs::create_dir_all(whole).unwrap(),
            None => {
                std::fs::create_dir_all(whole.parent().unwrap()).unwrap();
                std::fs::write(whole, b"x").unwrap();
            }
        }
    }
    let store = Arc::new(FolderStore::open("d", folder.path()).unwrap());
    (folder, BoundedStore::new(store, DEFAULT_READS))
}

/// Keys and labels of the samples, with the names of the classes, or the fault; and the notes.
async fn labelled(
    store: &BoundedStore,
    prefix: &str,
    suffix: &str,
    classes: Classes,
) -> (Result<(Vec<(String, i64)>, Vec<String>), String>, Notes) {
    let (notes, found) = (Notes::default(), Found::default());
    let (wanted, on_found) = (Wanted { notes: notes.clone(), ..wanted(prefix, suffix) }, found.clone());
    let labelling = Labelling { classes: Some(classes), table: None };
    let set = move |labels| *on_found.lock().unwrap() = labels;
    let open = labelled_samples(store.clone(), wanted, labelling, set, u64::MAX);
    let samples = read(open).await.map(|samples| {
        let labels = samples.iter().map(|sample| (sample.key.to_string(), int(sample, "label"))).collect();
        (labels, noted(&found).classes)
    });
    (samples, notes)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn labels(labels: &[(&str, i64)]) -> Vec<(String, i64)> {
    labels.iter().map(|(key, label)| ((*key).to_owned(), *label)).collect()
}

/// The numbers of torchvision's `ImageFolder(allow_empty=True)`.
#[tokio::test]
async fn a_class_folder_keeps_its_number_without_files() {
    let (_folder, store) = folder(&[
        "train/a/0.jpg",
        "train/b/0.jpg",
        "train/c/0.jpg",
        "train/.ipynb_checkpoints/0.jpg",
        "val/a/0.jpg",
        "val/b/",
        "val/c/0.jpg",
        "val/b2/0.txt",
        "val/__MACOSX/0.jpg",
    ]);
    let (found, notes) = labelled(&store, "val/", ".jpg", Classes::Found).await;
    assert_eq!(
        found.unwrap(),
        (labels(&[("val/a/0.jpg", 0), ("val/c/0.jpg", 3)]), names(&["a", "b", "b2", "c"]))
    );
    assert!(notes.rules().contains(&NEW_CLASSES), "{:?}", notes.rules());
    let (found, notes) = labelled(&store, "train/", ".jpg", Classes::Found).await;
    assert_eq!(found.unwrap().0, labels(&[("train/a/0.jpg", 0), ("train/b/0.jpg", 1), ("train/c/0.jpg", 2)]));
    assert_eq!((notes.left_out()[0].reason, notes.left_out()[0].count), (LeftOutReason::Hidden, 1));
    assert!(!notes.rules().contains(&NEW_CLASSES), "{:?}", notes.rules());
    let given = |classes: &[&str]| Classes::Given(names(classes));
    let (found, _) = labelled(&store, "val/", ".jpg", given(&["c", "b2", "b", "a", "z"])).await;
    assert_eq!(found.unwrap().0, labels(&[("val/a/0.jpg", 3), ("val/c/0.jpg", 0)]));
    let (found, _) = labelled(&store, "val/", ".jpg", given(&["a", "b2", "c"])).await;
    assert_eq!(
        found.unwrap_err(),
        "store `d` has the folder `val/b/`, which is none of the 3 `classes`; add it to them, or move it"
    );
}

#[tokio::test]
async fn linked_folders_are_classes_and_links_that_lead_outside_are_refused() {
    let (root, store) = folder(&["pool/cat/0.jpg", "train/dog/0.jpg"]);
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, root.path().join(name)).unwrap();
    link("../pool/cat", "train/cat");
    let (found, _) = labelled(&store, "train/", "", Classes::Found).await;
    assert_eq!(
        found.unwrap(),
        (labels(&[("train/cat/0.jpg", 0), ("train/dog/0.jpg", 1)]), names(&["cat", "dog"]))
    );
    link("/nowhere", "train/bird");
    let (found, _) = labelled(&store, "train/", "", Classes::Found).await;
    assert_eq!(
        found.unwrap_err(),
        "store `d` has the link `train/bird` in the folder of its classes, which leads out of the store, so that a class may be missing; \
         `--store-links DIR`, in Python `links`, lets it; `classes` names the classes if it is none"
    );
    let (found, notes) = labelled(&store, "train/", "", Classes::Given(names(&["cat", "dog"]))).await;
    assert_eq!((found.unwrap().0.len(), notes.left_out()[0].reason), (2, LeftOutReason::Link));
    let (found, _) = labelled(&store, "train/", "", Classes::Given(names(&["bird", "cat", "dog"]))).await;
    assert!(found.unwrap_err().contains("`train/bird`"));
}

/// Weighted sampling as a mixture of one list for each class.
#[tokio::test]
async fn sources_of_a_mixture_share_their_classes() {
    let (_folder, in_folder) = folder(&["train/a/0", "train/b/0", "train/c/0", "train/note"]);
    let in_bucket = store(&["train/a/0", "train/b/0", "train/c/0", "train/note"], None).await;
    for store in [&in_folder, &in_bucket] {
        let shared = SharedClasses::of(3);
        let part = |prefix| labelled(store, prefix, "", Classes::Shared(shared.clone()));
        let undrawn = shared.add(store.clone(), wanted("train/b", ""));
        let ((a, _), (c, notes), undrawn) = tokio::join!(part("train/a"), part("train/c"), undrawn);
        undrawn.unwrap();
        assert_eq!(a.unwrap(), (labels(&[("train/a/0", 0)]), names(&["a", "b", "c"])));
        assert_eq!(c.unwrap(), (labels(&[("train/c/0", 2)]), names(&["a", "b", "c"])));
        assert_eq!(notes.rules(), [NEW_CLASSES]);
    }
    let (found, _) = labelled(&in_folder, "train/a/", "", Classes::Found).await;
    assert_eq!(
        found.unwrap_err(),
        "store `d` has no folder below `train/a/` that the listed keys, 1, lie in; if `train/a/` is itself the folder of one class, omit \
         the slash at the end of the prefix: `train/a`"
    );
    let (_, notes) = labelled(&in_folder, "train/", "", Classes::Found).await;
    assert_eq!(
        (notes.left_out()[0].reason, &*notes.left_out()[0].first[0]),
        (LeftOutReason::NoClass, "train/note")
    );
}

#[tokio::test]
async fn stems_have_any_of_several_endings_but_not_two() {
    let table_text = "id,n\na,1\nb,2\nc.d,3\n";
    let store =
        store(&["x/a.jpg", "x/a.txt", "x/b.PNG", "x/c.d.jpeg", "x/e.JPG"], Some(("l.csv", table_text))).await;
    let of = |keys: &BoundedStore, missing| {
        let labelling = table(keys, "l.csv", KeyPart::Stem, missing);
        let notes = Notes::default();
        let suffix = Suffix::Several(names(&[".jpg", ".jpeg", ".png"]));
        let wanted = Wanted { suffix, notes: notes.clone(), ..wanted("x/", "") };
        (labelled_samples(keys.clone(), wanted, labelling, |_| {}, u64::MAX), notes)
    };
    let (open, notes) = of(&store, Missing::Skip);
    let samples = read(open).await.unwrap();
    let seen: Vec<_> = samples.iter().map(|sample| (&*sample.key, int(sample, "n"))).collect();
    assert_eq!(seen, [("x/a.jpg", 1), ("x/b.PNG", 2), ("x/c.d.jpeg", 3)]);
    let left_out = notes.left_out();
    assert_eq!(
        left_out.iter().map(|left_out| (left_out.reason, left_out.count)).collect::<Vec<_>>(),
        [(LeftOutReason::Suffix, 1), (LeftOutReason::NoLabel, 1)]
    );
    store.put(Arc::from("x/b.jpg"), b"".as_slice().into()).await.unwrap();
    assert_eq!(
        read(of(&store, Missing::Skip).0).await.unwrap_err(),
        "the labels `l.csv` in store `data` name `b`, which is the stem of both `x/b.PNG` and `x/b.jpg`"
    );
}

#[tokio::test]
async fn samples_with_labels_have_a_digest_of_their_keys_and_classes() {
    let digest = async |paths: &[&str], classes: Classes| {
        let (_folder, store) = folder(paths);
        let labelling = Labelling { classes: Some(classes), table: None };
        labelled_samples(store, wanted("", ""), labelling, |_| {}, u64::MAX).await.unwrap().digest().unwrap()
    };
    let first = digest(&["a/0", "b/0"], Classes::Found).await;
    assert_eq!(first, digest(&["a/0", "b/0"], Classes::Given(names(&["a", "b"]))).await);
    assert_ne!(first, digest(&["a/0", "b/0", "a2/"], Classes::Found).await);
    assert_ne!(first, digest(&["a/0", "b/1"], Classes::Found).await);
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
                let labelling = Labelling { classes: by_folder.then_some(Classes::Found), ..table(&store, "l.csv", KeyPart::Key, Missing::Skip) };
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
