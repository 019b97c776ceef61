//! Data as people bring it in their first week: folders with leftovers, links, nulls, mixed numbers and damage. No run may deliver a wrong
//! value or lose a sample without a word. Each test says what earlier builds did.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use penstock_tests::{Call, Finished, Folder, lines, repository};
use penstock_types::run::{FailureRecord, RunSnapshot};
use serde_json::{Value, json};

use crate::examples::tar;
use crate::files::{header, objects};

/// Document that writes batches of this size to the store `out`.
fn document(source: &Value, size: u32, collate: &Value) -> Value {
    json!({
        "source": source, "stages": [{ "aggregate": { "size": size } }, { "collate": collate }],
        "consumer": { "files": { "store": "out", "prefix": "train" } }, "max_failures": null
    })
}

/// Call that runs a document over the store `d`, the folder `data` of `folder`.
fn call(folder: &Folder, document: &Value) -> Call {
    let (data, out) = (folder.join("data"), folder.join("out"));
    fs::create_dir_all(&out).unwrap();
    Call::run(&folder.document(document)).store("d", &data).store("out", &out).json()
}

/// Result of a run over the store `d` that writes batches of this size.
fn run(folder: &Folder, source: &Value, size: u32) -> Finished {
    call(folder, &document(source, size, &json!({}))).finish()
}

/// Snapshot of a completed run over the store `d`.
fn completed(folder: &Folder, source: &Value, size: u32) -> RunSnapshot {
    run(folder, source, size).exits(0).snapshot()
}

/// Type and elements of a field in each batch that was written, e.g. `I64 [1, 2]`.
fn values(folder: &Folder, field: &str) -> Vec<String> {
    let written = objects(&folder.join("out"));
    let batches = written.iter().filter(|(name, _)| name.ends_with(".safetensors"));
    batches.map(|(_, file)| shown(file, field)).collect()
}

fn shown(file: &[u8], field: &str) -> String {
    let described = &header(file)[field];
    let [start, end] = serde_json::from_value::<[usize; 2]>(described["data_offsets"].clone()).unwrap();
    let data = &file[8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize..][start..end];
    let elements = match described["dtype"].as_str() {
        Some("I64") => format!("{:?}", of(data, i64::from_le_bytes)),
        Some("F64") => format!("{:?}", of(data, f64::from_le_bytes)),
        Some("F32") => format!("{:?}", of(data, f32::from_le_bytes)),
        Some("BOOL") => format!("{data:?}"),
        other => panic!("`{field}` is {other:?}"),
    };
    format!("{} {elements}", described["dtype"].as_str().unwrap())
}

fn of<T, const N: usize>(data: &[u8], number: fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&bytes| number(bytes)).collect()
}

/// Writes files whose content is their name into the folder `data`.
fn write_all(folder: &Folder, names: &[&str]) {
    for name in names {
        folder.write(&format!("data/{name}"), name);
    }
}

/// Copies files of `tests/data/first_week` into the folder `data`, under other names.
fn copy_all(folder: &Folder, names: &[(&str, &str)]) {
    for (name, copy) in names {
        let content = fs::read(repository().join("tests/data/first_week").join(name)).unwrap();
        folder.write(&format!("data/{copy}"), content);
    }
}

/// Writes the shards `s-0.tar`, `s-1.tar` and so on, each with ten samples of the files `txt` and `cls`.
fn shards(folder: &Folder, count: u32) {
    for shard in 0..count {
        let named = |row: u32| {
            ["txt", "cls"].map(|ending| (format!("{shard}{row}.{ending}"), row.to_string().into_bytes()))
        };
        folder.write(&format!("data/s-{shard}.tar"), tar((0..10).flat_map(named)));
    }
}

fn cut(folder: &Folder, name: &str, length: u64) {
    fs::File::options().write(true).open(folder.join("data").join(name)).unwrap().set_len(length).unwrap();
}

/// Classes of the source, and the reasons with the numbers of what it left out.
fn found(snapshot: &RunSnapshot) -> (Vec<&str>, BTreeMap<&str, u64>) {
    let classes = snapshot.labels.get("0:src").map(|labels| &labels.classes);
    let left_out =
        snapshot.left_out.values().flatten().map(|left_out| (left_out.reason.name(), left_out.count));
    (classes.into_iter().flatten().map(String::as_str).collect(), left_out.collect())
}

fn labelled(prefix: &str) -> Value {
    json!({ "list": { "store": "d", "prefix": prefix, "label": "folder" } })
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

/// The class `cat` was missing without a word, and `dog` had the number 0.
#[test]
fn a_class_folder_may_be_a_link_to_another_folder_of_the_store() {
    let folder = Folder::new();
    write_all(&folder, &["pool/cat/0.jpg", "train/dog/0.jpg"]);
    symlink("../pool/cat", folder.join("data/train/cat")).unwrap();
    symlink("..", folder.join("data/train/dog/up")).unwrap();
    let snapshot = completed(&folder, &labelled("train/"), 2);
    assert_eq!(found(&snapshot), (vec!["cat", "dog"], BTreeMap::new()));
    assert_eq!(values(&folder, "label"), ["I64 [0, 1]"]);
}

/// The class `cat` was missing without a word, and `dog` had the number 0.
#[test]
fn a_class_folder_outside_of_the_store_is_a_fault_unless_the_operator_permits_it() {
    let folder = Folder::new();
    folder.write("pool/cat/0.jpg", "cat");
    write_all(&folder, &["dog/0.jpg"]);
    symlink("../pool/cat", folder.join("data/cat")).unwrap();
    let source = labelled("");
    let refused = run(&folder, &source, 2).exits(1).stderr;
    assert_says(
        &refused,
        &[
            "has the link `cat` in the folder of its classes",
            "`--store-links DIR`, in Python `links`, lets it",
        ],
    );
    let permitted = call(&folder, &document(&source, 2, &json!({})));
    let permitted = permitted.argument("--store-links").argument(folder.join("pool"));
    assert_eq!(found(&permitted.finish().exits(0).snapshot()).0, ["cat", "dog"]);
    assert_eq!(values(&folder, "label"), ["I64 [0, 1]"]);
}

/// "holds no object whose key starts with `t-`" was all that a run said.
#[test]
fn files_in_the_cache_of_hugging_face_are_read_and_other_links_out_of_the_store_are_named() {
    let folder = Folder::new();
    let hash = "0123456789".repeat(4);
    let source = json!({ "parquet": { "store": "d", "prefix": "t-" } });
    copy_all(&folder, &[("texts.parquet", &format!("hub/blobs/{hash}")), ("texts.parquet", "hub/blobs/77")]);
    for blob in [hash.as_str(), "77"] {
        let snapshot = folder.join(&format!("data/hub/snapshots/{blob}"));
        fs::create_dir_all(&snapshot).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join("t-0.parquet")).unwrap();
        let document = folder.document(&json!({ "source": source, "stages": [] }));
        let finished = Call::run(&document).store("d", &snapshot).json().finish();
        match blob {
            "77" => assert_says(
                &finished.exits(1).stderr,
                &[
                    "1 link leads out of the folder: `t-0.parquet`; `--store-links DIR`, in Python `links`, lets it",
                ],
            ),
            _ => assert_eq!(finished.exits(0).snapshot().ledger.total.delivered, 2),
        }
    }
}

/// `c` had the number 1, as the second folder with files, or with files of the suffix; a model trained on `train/` knows it as 2.
#[test]
fn a_class_folder_keeps_its_number_without_files() {
    for leftover in ["val/b", "val/b/0.png"] {
        let folder = Folder::new();
        write_all(&folder, &["val/a/0.jpg", "val/c/0.jpg"]);
        match leftover.contains('.') {
            true => write_all(&folder, &[leftover]),
            false => fs::create_dir(folder.join("data").join(leftover)).unwrap(),
        }
        let mut source = labelled("val/");
        source["list"]["suffix"] = json!(".jpg");
        let snapshot = completed(&folder, &source, 2);
        assert_eq!(found(&snapshot).0, ["a", "b", "c"]);
        assert_eq!(values(&folder, "label"), ["I64 [0, 2]"], "{leftover}");
    }
}

/// `.ipynb_checkpoints` and `__MACOSX` were the first classes, so that all others had wrong numbers.
#[test]
fn hidden_folders_are_no_classes_and_their_files_are_counted() {
    let folder = Folder::new();
    write_all(
        &folder,
        &["train/.ipynb_checkpoints/0.jpg", "train/__MACOSX/a/0.jpg", "train/a/0.jpg", "train/b/0.jpg"],
    );
    let snapshot = completed(&folder, &labelled("train/"), 2);
    assert_eq!(found(&snapshot), (vec!["a", "b"], BTreeMap::from([("hidden", 2)])));
    assert_eq!(values(&folder, "label"), ["I64 [0, 1]"]);
    let warning = "the source `0:src` left out 2 hidden files (`train/.ipynb_checkpoints/0.jpg`, `train/__MACOSX/a/0.jpg`)";
    assert_says(&snapshot.warnings.join("\n"), &[warning, "\"hidden\": true"]);
}

/// A document could not name its classes, and `compare` was silent about two runs with different ones.
#[test]
fn classes_of_a_document_have_its_numbers_and_compare_names_different_ones() {
    let folder = Folder::new();
    write_all(&folder, &["val/a/0.jpg", "val/c/0.jpg"]);
    let mut source = labelled("val/");
    let first = call(&folder, &json!({ "source": source, "stages": [] })).out(&folder.join("first"));
    first.finish().exits(0);
    source["list"]["classes"] = json!(["a", "b", "c"]);
    let second = call(&folder, &document(&source, 2, &json!({}))).out(&folder.join("second"));
    second.finish().exits(0);
    assert_eq!(values(&folder, "label"), ["I64 [0, 2]"]);
    let compared = Call::new(&["compare"]).argument(folder.join("first")).argument(folder.join("second"));
    assert_says(&compared.finish().exits(0).stdout, &["`b`", "`c`"]);
    source["list"]["classes"] = json!(["a", "b"]);
    let refused = call(&folder, &json!({ "source": source, "stages": [] })).finish().exits(1).stderr;
    assert_says(&refused, &["has the folder `val/c/`, which is none of the 2 `classes`"]);
}

/// One of five pictures was taken, and nothing said so.
#[test]
fn keys_with_other_endings_are_counted_and_a_list_of_endings_takes_them() {
    let folder = Folder::new();
    write_all(
        &folder,
        &["x/a.jpg", "x/b.JPG", "x/c.jpeg", "x/d.PNG", "x/e.webp", "x/notes.txt", "x/Thumbs.db"],
    );
    let taken = |suffix: Value| {
        let document = json!({ "source": { "list": { "store": "d", "suffix": suffix } }, "stages": [] });
        let snapshot = call(&folder, &document).finish().exits(0).snapshot();
        let (_, left_out) = found(&snapshot);
        (snapshot.ledger.total.delivered, left_out["suffix"])
    };
    assert_eq!(taken(json!(".jpg")), (1, 6));
    assert_eq!(taken(json!([".jpg", ".jpeg", ".png", ".webp"])), (5, 2));
    assert_eq!(taken(json!({ "of": "std/image" })), (5, 2));
    let document = folder.document(&json!({ "source": { "list": { "store": "d", "suffix": ".jpg" } } }));
    let report = Call::run(&document).store("d", &folder.join("data")).finish().exits(0).stdout;
    assert_says(
        &report,
        &["6 keys with other endings (`.JPG` 1, `.PNG` 1, `.db` 1, `.jpeg` 1, `.txt` 1, ...)"],
    );
}

/// The run ended at the damaged shard, and there was no way to read the others.
#[test]
fn shards_behind_a_damaged_one_are_read_on_request() {
    type Damage = fn(&Folder);
    // The second sample of `s-1.tar` ends at the damage, so that a file of it may be lost.
    let damages: [(&str, Damage, u64, &str); 3] = [
        (
            "a header",
            |folder| patch(folder, "s-1.tar", 512 * 8 + 3),
            21,
            "has a header with a wrong checksum",
        ),
        ("a cut", |folder| cut(folder, "s-1.tar", 512 * 8 + 100), 21, "ends within a header"),
        ("a loss", |folder| fs::remove_file(folder.join("data/s-1.tar")).unwrap(), 20, "has no object"),
    ];
    for (damage, make, delivered, reason) in damages {
        let folder = Folder::new();
        shards(&folder, 3);
        make(&folder);
        let mut source = json!({ "tar": { "store": "d", "shards": "s-{0..2}.tar" } });
        run(&folder, &source, 10).exits(1);
        source["tar"]["on_damage"] = json!("skip");
        let snapshot = call(&folder, &json!({ "source": source, "stages": [] })).finish().exits(0).snapshot();
        assert_eq!(snapshot.ledger.total.delivered, delivered, "{damage}");
        assert_eq!(found(&snapshot).1, BTreeMap::from([("damage", 1)]), "{damage}");
        assert_says(&snapshot.warnings.join("\n"), &["`s-1.tar`", reason]);
    }
}

/// Compressed shards ended the run with "ends within a header", and a prefix did not find them.
#[test]
fn compressed_shards_are_read_in_order_and_refused_by_name_elsewhere() {
    let folder = Folder::new();
    let file = |path: &str| fs::read(repository().join(path)).unwrap();
    let [plain, gzip] = ["runner/formats/tests/data/odd.tar", "tests/fuzz/corpus/reader/tar/gzip"].map(file);
    folder.write("data/plain.tar", plain);
    let source =
        |name: &str, value: &str| json!({ "source": { "tar": { "store": "d", name: value } }, "stages": [] });
    let delivered = |document| call(&folder, &document).finish().exits(0).snapshot().ledger.total.delivered;
    let one = delivered(source("shards", "plain.tar"));
    assert!(one > 0);
    ["s-0.tar.gz", "s-1.TGZ", "s-2.tar"]
        .iter()
        .for_each(|name| drop(folder.write(&format!("data/{name}"), &gzip)));
    assert_eq!(delivered(source("prefix", "s-")), 3 * one);
    let index = Call::new(&["index", "create", "--tar", "--prefix", "s-"]).store("d", &folder.join("data"));
    assert_says(
        &index.finish().exits(1).stderr,
        &["`s-0.tar.gz`", "is compressed with gzip as a whole", "decompress it"],
    );
    folder.write("data/b.tar", b"BZh91AY&SY");
    let refused = call(&folder, &source("shards", "b.tar")).finish().exits(1).stderr;
    assert_says(&refused, &["`b.tar`", "is compressed with bzip2, which is not read: decompress it"]);
}

/// The run ended with "the object changed while it was read", also where a copy had the time of the original.
#[test]
fn an_index_is_good_for_a_copy_of_its_folder_and_says_where_it_is_stale() {
    let folder = Folder::new();
    shards(&folder, 2);
    let create = Call::new(&["index", "create", "--tar", "--upload", "train.index"]);
    create.store("d", &folder.join("data")).finish().exits(0);
    for name in ["s-0.tar", "s-1.tar"] {
        let (path, copy) = (folder.join("data").join(name), folder.join("copy"));
        fs::copy(&path, &copy).unwrap();
        fs::rename(copy, path).unwrap();
    }
    let document = json!({ "source": { "tar": { "store": "d", "index": "train.index", "shuffle": true } }, "stages": [] });
    let snapshot = call(&folder, &document).finish().exits(0).snapshot();
    assert_eq!(snapshot.ledger.total.delivered, 20);
    // A shard of the same size, with other members.
    let names =
        |row: u32| ["txt", "cls"].map(|ending| (format!("2{row}.{ending}"), row.to_string().into_bytes()));
    folder.write("other", tar((0..10).flat_map(names)));
    fs::rename(folder.join("other"), folder.join("data/s-1.tar")).unwrap();
    let refused = call(&folder, &document).finish().exits(1).stderr;
    assert_says(&refused, &["`s-1.tar`", "has changed since `train.index` was made: make it again"]);
}

/// Changes a byte of a file in the folder `data`.
fn patch(folder: &Folder, name: &str, place: usize) {
    let path = folder.join("data").join(name);
    let mut content = fs::read(&path).unwrap();
    content[place] ^= 0xff;
    fs::write(path, content).unwrap();
}

/// A flipped bit in a record ended the run.
#[test]
fn records_around_a_flipped_bit_of_a_tfrecord_file_are_read_on_request() {
    let folder = Folder::new();
    copy_all(&folder, &[("objects.tfrecord", "o-0.tfrecord"), ("objects.tfrecord", "o-1.tfrecord")]);
    // A byte of the second record's data.
    patch(&folder, "o-0.tfrecord", 100);
    let mut source = json!({ "tfrecord": { "store": "d", "prefix": "o-", "lists": ["label", "xmin"] } });
    let document = |source: &Value| json!({ "source": source, "stages": [], "max_failures": null });
    let failed = call(&folder, &document(&source)).finish().exits(1).stderr;
    assert_says(&failed, &["`o-0.tfrecord`"]);
    source["tfrecord"]["on_damage"] = json!("skip");
    let snapshot = call(&folder, &document(&source)).finish().exits(0).snapshot();
    let total = snapshot.ledger.total;
    assert_eq!((total.delivered, total.skipped), (7, 1));
    let [failure] = snapshot.failures.as_slice() else { panic!("{:?}", snapshot.failures) };
    assert_says(
        &failure.message,
        &[
            "the TFRecord file `o-0.tfrecord` in store `d`, at byte 62, has a record that has a wrong checksum",
        ],
    );
}

/// A bad line ended the run.
#[test]
fn a_bad_line_is_a_failed_sample_on_request() {
    let folder = Folder::new();
    folder.write("data/n.ndjson", "{\"n\": 1}\n{\"n\": \n{\"n\": 3}\n");
    let mut source = json!({ "records": { "store": "d", "key": "n.ndjson" } });
    let reason =
        "line 2 of `n.ndjson` in store `d` is not a JSON object: EOF while parsing a value, at column 5";
    assert_says(&run(&folder, &source, 2).exits(1).stderr, &[reason]);
    fs::remove_dir_all(folder.join("out")).unwrap();
    source["records"]["on_damage"] = json!("skip");
    let out = folder.join("written");
    let skipping = call(&folder, &document(&source, 2, &json!({}))).out(&out).finish().exits(0);
    let total = skipping.snapshot().ledger.total;
    assert_eq!((total.delivered, total.skipped + total.dead_lettered), (2, 1));
    assert_eq!(values(&folder, "n"), ["I64 [1, 3]"]);
    let errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    assert_eq!(errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>(), [reason]);
    assert_eq!(lines::<Value>(&out.join("dead_letters.ndjson")).len(), 1);
    // It counts under the limit of the run.
    let limited = call(&folder, &document(&source, 2, &json!({}))).set(r#"/max_failures={"count": 0}"#);
    assert_says(&limited.finish().exits(1).stderr, &["max_failures"]);
}

/// 8 of 20 rows failed, and batches came in both types, exit code 0.
#[test]
fn parquet_files_of_whole_and_broken_numbers_have_one_type() {
    let folder = Folder::new();
    copy_all(&folder, &[("broken.parquet", "q-0.parquet"), ("whole.parquet", "q-1.parquet")]);
    let source = json!({ "parquet": { "store": "d", "prefix": "q-", "shuffle": true } });
    let snapshot = completed(&folder, &source, 8);
    assert_eq!((snapshot.ledger.total.delivered, snapshot.failures.len()), (20, 0));
    let scores = values(&folder, "score");
    // Each row has its number in both columns.
    let ids: Vec<String> = values(&folder, "id").iter().map(|ids| ids.replace("I64", "F64")).collect();
    assert_eq!(scores.len(), 3);
    assert_eq!(scores.iter().map(|scores| scores.replace(".0", "")).collect::<Vec<_>>(), ids);
    assert!(scores.iter().all(|scores| scores.starts_with("F64 ")), "{scores:?}");
}

/// 8 of 20 rows failed, and some batches lacked the column, exit code 0.
#[test]
fn a_column_that_one_of_the_parquet_files_lacks_is_named_or_masked() {
    let folder = Folder::new();
    copy_all(&folder, &[("whole.parquet", "q-0.parquet"), ("more.parquet", "q-1.parquet")]);
    let mut source = json!({ "parquet": { "store": "d", "prefix": "q-", "shuffle": true } });
    let failed = run(&folder, &source, 20).exits(1).stderr;
    assert_says(
        &failed,
        &["sample `q-0.parquet#", "field `lang` is missing, in the data set it is a text", "set `missing`"],
    );
    fs::remove_dir_all(folder.join("out")).unwrap();
    source["parquet"]["missing"] = json!({ "lang": "mask" });
    source["parquet"]["shuffle"] = json!(false);
    completed(&folder, &source, 10);
    let present = [0, 1].map(|has| format!("BOOL {:?}", [has; 10]));
    assert_eq!(values(&folder, "lang.present"), present);
}

/// All rows with a label were dropped from batches in which most had none: the model saw no label, exit code 0.
#[test]
fn rows_with_nulls_fail_the_run_or_are_treated_as_stated() {
    let folder = Folder::new();
    copy_all(&folder, &[("nulls.parquet", "c.parquet")]);
    let source = json!({ "parquet": { "store": "d", "shards": "c.parquet" } });
    let failed = run(&folder, &source, 10).exits(1).stderr;
    assert_says(
        &failed,
        &[
            "sample `c.parquet#1`",
            "field `label` is missing, in the data set it is a single int64",
            "set `missing`",
        ],
    );
    let with = |missing: Value| {
        let mut source = source.clone();
        source["parquet"]["missing"] = json!({ "label": missing });
        fs::remove_dir_all(folder.join("out")).unwrap();
        let snapshot = completed(&folder, &source, 10);
        (snapshot.ledger.total.delivered, snapshot.ledger.total.dropped, values(&folder, "label").join(" "))
    };
    let filled = "I64 [0, -1, 2, -1, -1, 0, -1, 2, -1, -1]";
    assert_eq!(with(json!({ "value": -1 })), (10, 0, filled.to_owned()));
    assert_eq!(with(json!("drop")), (4, 6, "I64 [0, 2, 0, 2]".to_owned()));
    assert_eq!(with(json!("mask")), (10, 0, filled.replace("-1", "0")));
    assert_eq!(values(&folder, "label.present"), ["BOOL [1, 0, 1, 0, 0, 1, 0, 1, 0, 0]"]);
}

/// The record with one box failed, exit code 0.
#[test]
fn a_feature_with_one_value_in_some_records_is_a_list_in_all() {
    for ragged in ["pad", "list"] {
        let folder = Folder::new();
        copy_all(&folder, &[("objects.tfrecord", "o.tfrecord")]);
        let source = json!({ "tfrecord": { "store": "d", "shards": "o.tfrecord" } });
        let finished = call(&folder, &document(&source, 4, &json!({ "ragged": ragged }))).finish().exits(0);
        assert_eq!(finished.snapshot().ledger.total.delivered, 4);
        let (labels, lengths) = match ragged {
            "pad" => ("I64 [0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0]", values(&folder, "label.shape")),
            _ => ("I64 [0, 1, 2, 0, 0, 1]", values(&folder, "label.shapes")),
        };
        assert_eq!(
            (values(&folder, "label"), lengths),
            (vec![labels.to_owned()], vec!["I64 [3, 1, 0, 2]".to_owned()])
        );
    }
}

/// Broken numbers failed, 3 of 10 samples, and the batches were ints, exit code 0.
#[test]
fn whole_and_broken_numbers_of_a_member_are_floats() {
    let folder = Folder::new();
    let scores = ["1", "0.5", "2", "0.25", "3", "1.0", "0", "1", "0", "0"];
    folder.write("data/m.ndjson", scores.map(|score| format!("{{\"score\": {score}}}\n")).concat());
    for shuffle in [false, true] {
        let source = json!({ "records": { "store": "d", "key": "m.ndjson", "shuffle": shuffle } });
        let snapshot = completed(&folder, &source, 5);
        assert_eq!((snapshot.ledger.total.delivered, snapshot.failures.len()), (10, 0));
        let found = values(&folder, "score");
        match shuffle {
            false => assert_eq!(found, ["F64 [1.0, 0.5, 2.0, 0.25, 3.0]", "F64 [1.0, 0.0, 1.0, 0.0, 0.0]"]),
            true => assert!(found.iter().all(|batch| batch.starts_with("F64 ")), "{found:?}"),
        }
        fs::remove_dir_all(folder.join("out")).unwrap();
    }
}

/// Samples with texts failed, 2 of 5, exit code 0.
#[test]
fn a_text_beside_a_number_ends_the_run_with_both_places() {
    let folder = Folder::new();
    folder.write("data/m.ndjson", "{\"label\": 1}\n{\"label\": \"2\"}\n{\"label\": 3}\n");
    let source = json!({ "records": { "store": "d", "key": "m.ndjson" } });
    let failed = run(&folder, &source, 5).exits(1).stderr;
    let parts = [
        "the field `label` is a single int64 in line 1 of `m.ndjson`",
        "is a text in line 2 of `m.ndjson`",
        "`types`",
    ];
    assert_says(&failed, &parts);
}

/// A cut shard gave fewer samples, and an empty one none, without a word.
#[test]
fn a_shard_without_its_end_mark_is_warned_of_and_an_empty_one_is_damaged() {
    let folder = Folder::new();
    shards(&folder, 2);
    let mut source = json!({ "tar": { "store": "d", "shards": "s-{0..1}.tar" } });
    let document = |source: &Value| json!({ "source": source, "stages": [] });
    // Between two samples.
    cut(&folder, "s-1.tar", 1024 * 16);
    let snapshot = call(&folder, &document(&source)).finish().exits(0).snapshot();
    assert_eq!(snapshot.ledger.total.delivered, 18);
    assert_says(&snapshot.warnings.join("\n"), &["without an end mark", "`s-1.tar`"]);
    cut(&folder, "s-1.tar", 0);
    let failed = call(&folder, &document(&source)).finish().exits(1).stderr;
    assert_says(&failed, &["the tar archive `s-1.tar` in store `d`, at byte 0, is empty"]);
    source["tar"]["on_damage"] = json!("skip");
    let snapshot = call(&folder, &document(&source)).finish().exits(0).snapshot();
    assert_eq!((snapshot.ledger.total.delivered, found(&snapshot).1), (10, BTreeMap::from([("damage", 1)])));
}

/// Every label of a mixture of one list per class was 0. A slash at the end of a prefix failed, and without it `train/a` took `train/ab/`.
#[test]
fn a_mixture_of_one_list_per_class_has_the_classes_of_all() {
    let folder = Folder::new();
    write_all(&folder, &["train/a/0.jpg", "train/ab/0.jpg", "train/b/0.jpg"]);
    let mixture = |end: &str| {
        let of = |class| json!({ "source": labelled(&format!("train/{class}{end}")) });
        json!({ "mix": { "sources": { "a": of("a"), "b": of("b") } } })
    };
    for (end, expected) in [("", vec!["I64 [0]", "I64 [1]", "I64 [2]"]), ("/", vec!["I64 [0]", "I64 [2]"])] {
        let snapshot = completed(&folder, &mixture(end), 1);
        assert!(
            snapshot.labels.values().all(|labels| labels.classes == ["a", "ab", "b"]),
            "{:?}",
            snapshot.labels
        );
        let mut labels = values(&folder, "label");
        labels.sort();
        assert_eq!(labels, expected);
        let warnings = snapshot.warnings.join("\n");
        assert_eq!(
            warnings.contains("class folders that begin with the whole `prefix`"),
            end.is_empty(),
            "{warnings}"
        );
        fs::remove_dir_all(folder.join("out")).unwrap();
    }
    // The classes beside the only one are not known to be classes.
    let refused =
        call(&folder, &json!({ "source": labelled("train/a/"), "stages": [] })).finish().exits(1).stderr;
    assert_says(&refused, &["omit the slash at the end of the prefix: `train/a`"]);
}

/// Neither `missing` nor `types` of a source could fill a field that the other source had.
#[test]
fn a_source_of_a_mixture_can_fill_a_field_that_only_another_one_has() {
    let folder = Folder::new();
    folder.write("data/a.ndjson", "{\"v\": 1, \"w\": 0.5}\n");
    folder.write("data/b.ndjson", "{\"v\": 2}\n");
    folder.write("data/c.csv", "v\n3\n");
    let records = |key: &str| json!({ "records": { "store": "d", "key": key } });
    let mut source = json!({ "mix": { "sources": {
        "a": { "source": records("a.ndjson") }, "b": { "source": records("b.ndjson") },
        "c": { "source": { "csv": { "store": "d", "key": "c.csv", "types": { "v": "int" } } } }
    } } });
    assert_says(&run(&folder, &source, 3).exits(1).stderr, &["field `w` ", "set `missing` of the source"]);
    for (part, kind) in [("b", "records"), ("c", "csv")] {
        source["mix"]["sources"][part]["source"][kind]["missing"] = json!({ "w": { "value": 0 } });
    }
    fs::remove_dir_all(folder.join("out")).unwrap();
    completed(&folder, &source, 3);
    let checked =
        Call::check(&folder.document(&json!({ "source": source }))).store("d", &folder.join("data"));
    assert_says(&checked.finish().exits(0).stdout, &["fields: v int64, w float64"]);
    let (v, w) = (&values(&folder, "v")[0], &values(&folder, "w")[0]);
    assert!(v.starts_with("I64 ") && w.starts_with("F64 ") && w.matches("0.5").count() == 1, "{v} {w}");
    source["mix"]["sources"]["b"]["source"]["records"]["missing"] = json!({ "elsewhere": "mask" });
    fs::remove_dir_all(folder.join("out")).unwrap();
    let refused = run(&folder, &source, 3).exits(1).stderr;
    assert_says(
        &refused,
        &["`missing` names the field `elsewhere`, which the data set does not have; `types` declares"],
    );
}

/// The records of a split without labels ended the run whatever `types` and `missing` said.
#[test]
fn a_field_that_no_record_has_is_filled_if_its_type_is_declared() {
    let folder = Folder::new();
    folder.write("data/r.ndjson", "{\"v\": 1}\n{\"v\": 2}\n");
    for shuffle in [false, true] {
        let source = json!({ "records": {
            "store": "d", "key": "r.ndjson", "shuffle": shuffle,
            "types": { "label": "int" }, "missing": { "label": { "value": -1 } }
        } });
        completed(&folder, &source, 2);
        assert_eq!(values(&folder, "label"), ["I64 [-1, -1]"]);
        fs::remove_dir_all(folder.join("out")).unwrap();
    }
}

/// The message named the type `float`, with which the data were refused again.
#[test]
fn the_cure_for_a_number_that_float_does_not_hold_works() {
    let folder = Folder::new();
    folder.write("data/r.ndjson", "{\"n\": 9007199254740993}\n{\"n\": 0.5}\n");
    let mut source = json!({ "records": { "store": "d", "key": "r.ndjson" } });
    let refused = run(&folder, &source, 2).exits(1).stderr;
    assert_says(&refused, &["float64 does not hold exactly", "such as `{\"NAME\": \"text\"}`"]);
    source["records"]["types"] = json!({ "n": "text" });
    fs::remove_dir_all(folder.join("out")).unwrap();
    completed(&folder, &source, 2);
}

/// A source whose files are all damaged gave no sample, exit code 0.
#[test]
fn a_source_of_which_damage_leaves_nothing_fails() {
    let folder = Folder::new();
    ["e.parquet", "e.csv", "e.tar"].iter().for_each(|name| drop(folder.write(&format!("data/{name}"), "")));
    for kind in ["parquet", "csv", "tar"] {
        for shuffle in [false, kind != "tar"] {
            let name = if kind == "csv" { "key" } else { "shards" };
            let source = json!({ kind: {
                "store": "d", name: format!("e.{kind}"), "on_damage": "skip", "shuffle": shuffle
            } });
            let failed = call(&folder, &json!({ "source": source, "stages": [] })).finish().exits(1).stderr;
            assert_says(&failed, &["the source has no sample: it left out 1 damaged part of the data"]);
        }
    }
}

/// `3.0`, as pandas writes the ints of a column with nulls, ended the run.
#[test]
fn a_column_of_ints_accepts_whole_numbers_with_a_point() {
    let folder = Folder::new();
    folder.write("data/t.csv", "id,label\n0,3.0\n1,\n2,5.0\n");
    let mut source =
        json!({ "csv": { "store": "d", "key": "t.csv", "types": { "id": "int", "label": "int" } } });
    let failed = run(&folder, &source, 3).exits(1).stderr;
    assert_says(&failed, &["field `label` is missing", "set `missing`"]);
    source["csv"]["missing"] = json!({ "label": { "value": -1 } });
    fs::remove_dir_all(folder.join("out")).unwrap();
    completed(&folder, &source, 3);
    assert_eq!(values(&folder, "label"), ["I64 [3, -1, 5]"]);
}

/// "Additional properties are not allowed" was all that a check said.
#[test]
fn a_mistyped_op_is_told_with_the_near_name() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "list": { "store": "d" } },
        "stages": [{ "fetch": {} }, { "wasm": { "module": "std/image", "params": { "ops": [{ "RandomResizeCrop": { "size": 8 } }] } } }]
    }));
    let refused = Call::check(&document).store("d", folder.path()).finish().exits(2).stderr;
    assert_says(&refused, &["/stages/1/wasm/params/ops/0: ", "did you mean `RandomResizedCrop`?"]);
}

/// A resumed run read other records in the place of those that it had delivered, without a word.
#[test]
fn lines_that_were_swapped_after_a_stop_are_noticed() {
    for shuffle in [false, true] {
        let folder = Folder::new();
        let mut lines: Vec<String> = (0..40).map(|number| format!("{{\"n\": {}}}\n", number % 10)).collect();
        let file = folder.write("data/r.ndjson", lines.concat());
        let document = json!({
            "source": { "records": { "store": "d", "key": "r.ndjson", "shuffle": shuffle } },
            "stages": [{ "sleep": { "mean_ms": 0, "fail_rate": 0.1, "on_error": "fail", "order": "input" } }]
        });
        let state = folder.join("state.json");
        let stopped =
            call(&folder, &document).argument("--state").argument(&state).finish().exits(1).snapshot();
        assert!((1..40).contains(&stopped.ledger.total.delivered), "{:?}", stopped.ledger.total);
        let resume =
            || call(&folder, &document).argument("--resume").argument(&state).finish().exits(1).stderr;
        assert_says(&resume(), &["failed on purpose"]);
        let written = fs::metadata(&file).unwrap().modified().unwrap();
        lines.swap(0, 39);
        fs::write(&file, lines.concat()).unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_modified(written).unwrap();
        assert_says(&resume(), &["has other files, keys, sizes or bytes"]);
    }
}

/// A state of a build that counted other keys or classes would have continued with other samples or labels.
#[test]
fn states_of_earlier_builds_resume_over_the_keys_that_those_took_alone() {
    let document = json!({ "source": labelled("train/"), "stages": [] });
    // As such a build wrote it, after four of ten samples.
    let state = json!({
        "version": 1, "recipe": { "`/seed`": "5feceb66ffc86f38", "`/source`": "452b83aa6dc4a35a" },
        "count": 10, "first_epoch": 0, "world": 1, "uneven": "drop",
        "ranks": { "0": {
            "epochs": [{ "epoch": 0, "frontier": 4 }], "items": 4,
            "settled": { "made": 4, "delivered": 4, "dropped": 0, "skipped": 0, "dead_lettered": 0, "discarded": 0, "left": 0 }
        } },
        "before": { "made": 0, "delivered": 0, "dropped": 0, "skipped": 0, "dead_lettered": 0, "discarded": 0, "left": 0 }
    });
    type Change = fn(&Folder);
    // A change of the folder, the rule that the message names, and the setting that restores what was before.
    let changes: [(Change, &str, Value); 4] = [
        (|_| (), "", json!({ "classes": ["a", "b"] })),
        (
            |folder| drop(folder.write("data/train/.h/x.jpg", "")),
            "files in hidden folders are left out; `\"hidden\": true` takes them, as before",
            Value::Null,
        ),
        (
            |folder| fs::create_dir(folder.join("data/train/c")).unwrap(),
            "class folders without listed keys",
            Value::Null,
        ),
        (
            |folder| symlink("../train/a", folder.join("data/train/z")).unwrap(),
            "links to folders and absolute links are followed; `\"links\": \"files\"` leaves them out, as before",
            json!({ "links": "files" }),
        ),
    ];
    for (make, rule, setting) in changes {
        let folder = Folder::new();
        (0..5).for_each(|row| {
            write_all(&folder, &[&format!("train/a/{row}.jpg"), &format!("train/b/{row}.jpg")])
        });
        make(&folder);
        let state = folder.write("state.json", state.to_string());
        let resume =
            |document: &Value| call(&folder, document).argument("--resume").argument(&state).finish();
        let resumed = resume(&document);
        match rule {
            "" => assert_eq!(resumed.exits(0).snapshot().ledger.total.delivered, 6),
            _ => assert_says(
                &resumed.exits(1).stderr,
                &["the state was saved by an earlier version of Penstock", rule],
            ),
        }
        if let Some(setting) = setting.as_object() {
            let mut restored = document.clone();
            restored["source"]["list"].as_object_mut().unwrap().extend(setting.clone());
            assert_eq!(resume(&restored).exits(0).snapshot().ledger.total.delivered, 6, "{setting:?}");
        }
    }
    // With the setting, the keys in hidden folders are those that the state counts.
    let folder = Folder::new();
    (0..5)
        .for_each(|row| write_all(&folder, &[&format!("train/.h/{row}.jpg"), &format!("train/b/{row}.jpg")]));
    let mut restored = document;
    restored["source"]["list"]["hidden"] = json!(true);
    let state = folder.write("state.json", state.to_string());
    let resumed = call(&folder, &restored).argument("--resume").argument(state).finish();
    assert_eq!(resumed.exits(0).snapshot().ledger.total.delivered, 6);
}
