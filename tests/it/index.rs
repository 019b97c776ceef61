//! `penstock index create`, and runs over its indexes.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use penstock_pipeline::Stores;
use penstock_tests::{Call, Finished, Folder, photos, shown};
use serde_json::{Value, json};

use crate::photos::{batches_of, in_input_order};

macro_rules! assert_shown {
    ($text:expr) => {
        shown().bind(|| insta::assert_snapshot!($text))
    };
}

/// A folder whose keys sort differently from its file names: `a-b` precedes `a/1`.
fn store() -> Folder {
    let folder = Folder::new();
    for key in [
        "data/b.jpg",
        "data/a/1.jpg",
        "data/a/2.JPG",
        "data/a-b.jpg",
        "data/note \"1\".txt",
        "data/\u{e4}.jpg",
    ] {
        folder.write(key, b"x");
    }
    folder
}

fn create(folder: &Folder) -> Call {
    Call::new(&["index", "create"]).store("data", &folder.join("data"))
}

fn keys(index: &str) -> Vec<String> {
    serde_json::from_str(index).unwrap_or_else(|error| panic!("{error}: {index}"))
}

#[test]
fn an_index_is_printed_with_a_key_per_line_in_byte_order() {
    let finished = create(&store()).finish().exits(0);
    assert_shown!(finished.stdout);
    assert_shown!(finished.stderr);
}

#[test]
fn a_dash_names_standard_output() {
    let folder = store();
    let expected = create(&folder).finish().exits(0).stdout;
    let mut command = create(&folder).argument("--output").argument("-").command();
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert!(!folder.join("-").exists());
}

#[test]
fn prefix_and_suffix_choose_the_keys() {
    let folder = store();
    let with = |flags: &[&str]| {
        let call = flags.iter().fold(create(&folder), |call, flag| call.argument(*flag));
        keys(&call.finish().exits(0).stdout)
    };
    assert_eq!(with(&["--suffix=.jpg"]), ["a-b.jpg", "a/1.jpg", "b.jpg", "\u{e4}.jpg"]);
    assert_eq!(with(&["--prefix=a", "--suffix", ".jpg"]), ["a-b.jpg", "a/1.jpg"]);
}

#[test]
fn an_index_in_the_listed_folder_omits_its_own_key() {
    let folder = store();
    let file = folder.join("data/lists/index.json");
    fs::create_dir(folder.join("data/lists")).unwrap();
    symlink(folder.join("data"), folder.join("link")).unwrap();
    let expected = keys(&create(&folder).finish().exits(0).stdout);
    assert_eq!(expected.len(), 6);
    for _again in 0..2 {
        let finished = create(&folder).argument("-o").argument(&file).finish().exits(0);
        assert_eq!(finished.stdout, "");
        assert_eq!(keys(&fs::read_to_string(&file).unwrap()), expected);
        // Writes to a link to the same file.
        let link = create(&folder).argument("-o").argument(folder.join("link/lists/index.json"));
        assert_eq!(link.finish().exits(0).stdout, "");
        assert_eq!(keys(&fs::read_to_string(&file).unwrap()), expected);
    }
    // The shell creates the file before the store is listed.
    let mut command = create(&folder).command();
    let status = command.stdout(fs::File::create(&file).unwrap()).status().unwrap();
    assert!(status.success());
    assert_eq!(keys(&fs::read_to_string(&file).unwrap()), expected);
    let files: Vec<_> = fs::read_dir(folder.join("data/lists")).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

#[test]
fn an_uploaded_index_replaces_the_existing_one() {
    let folder = store();
    for _again in 0..2 {
        let finished = create(&folder).argument("--upload=lists/index.json").finish().exits(0);
        let index = fs::read_to_string(folder.join("data/lists/index.json")).unwrap();
        assert_eq!(keys(&index).len(), 6);
        assert_eq!(finished.stdout, "");
        assert_eq!(finished.stderr, "6 keys of store `data` were written to its object `lists/index.json`\n");
    }
}

#[test]
fn a_link_is_followed_and_its_target_is_replaced_atomically() {
    let folder = store();
    folder.write("lists/index.json", "before");
    let link = folder.join("link.json");
    symlink("lists/index.json", &link).unwrap();
    let before = fs::metadata(&link).unwrap().ino();
    create(&folder).argument("-o").argument(&link).finish().exits(0);
    assert!(link.is_symlink());
    assert_eq!(keys(&fs::read_to_string(folder.join("lists/index.json")).unwrap()).len(), 6);
    assert_ne!(fs::metadata(&link).unwrap().ino(), before, "the target was written in place");
    assert_eq!(fs::read_dir(folder.join("lists")).unwrap().count(), 1);
}

#[test]
fn an_index_that_cannot_be_written_leaves_nothing_behind() {
    let folder = store();
    let before = fs::read_dir(folder.join("data")).unwrap().count();
    let inner = create(&folder).argument("-o").argument(folder.join("data/index.json")).command();
    // Limits files to 0 bytes, so that every write fails as on a full disk.
    let mut limited = Command::new("bash");
    limited.args(["-c", r#"trap "" XFSZ; ulimit -f 0; exec "$0" "$@""#]);
    limited.arg(inner.get_program()).args(inner.get_args());
    let output = limited.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("data/index.json`: ") && stderr.contains("File too large"), "{stderr}");
    assert_eq!(fs::read_dir(folder.join("data")).unwrap().count(), before);
}

#[test]
fn a_path_that_is_not_a_regular_file_is_not_replaced() {
    let folder = store();
    let null = std::path::Path::new("/dev/null");
    assert_eq!(create(&folder).argument("-o").argument(null).finish().exits(0).stdout, "");
    assert!(!fs::metadata(null).unwrap().is_file());
}

#[test]
fn faults_of_index_create_are_reported() {
    let folder = store();
    let missing = folder.join("missing/index.json");
    let told = |code: i32, call: Call| {
        let Finished { stdout, stderr, .. } = call.finish().exits(code);
        assert_eq!(stdout, "");
        stderr
    };
    let two = || create(&folder).store("more", folder.path());
    assert_shown!(
        [
            told(2, Call::new(&["index", "create"])),
            told(2, two()),
            told(2, two().argument("dat")),
            told(2, create(&folder).argument("--prefix=../")),
            told(2, create(&folder).argument("--upload=/index.json")),
            told(2, create(&folder).argument("--upload=a.json").argument("-o").argument("a.json")),
            told(1, create(&folder).argument("--suffix=.png")),
            told(1, create(&folder).argument("--prefix=b/")),
            told(1, create(&folder).argument("-o").argument(&missing)),
            told(1, create(&folder).argument("--upload=a/1.jpg/index.json")),
        ]
        .join("\n")
    );
    assert!(!folder.join("missing").exists());
}

#[test]
fn photos_by_index_are_the_same_batches_as_by_listing() {
    let folder = Folder::new();
    let index = folder.join("index.json");
    let call = Call::new(&["index", "create", "--suffix=.jpg"]).store("photos", photos());
    assert_eq!(call.argument("-o").argument(&index).finish().exits(0).stdout, "");
    let stores = || {
        let mut stores = Stores::default();
        stores.add_folder("photos", photos()).unwrap();
        stores
    };
    let listed = batches_of(stores(), in_input_order(7, 2));
    assert_eq!(listed.len(), 25);

    let copy = Folder::new();
    copy.copy_photos();
    copy.write("index.json", fs::read(&index).unwrap());
    let mut document = in_input_order(7, 2);
    document["source"] = json!({ "index": { "store": "photos", "index": "index.json", "shuffle": true } });
    let mut stores = Stores::default();
    stores.add_folder("photos", copy.path()).unwrap();
    assert_eq!(batches_of(stores, document), listed);
}

#[test]
fn a_run_over_an_index_knows_the_number_of_samples() {
    let folder = store();
    let upload = create(&folder).argument("--suffix=.jpg").argument("--upload=index.json");
    assert_eq!(upload.finish().exits(0).stdout, "");
    let document = folder.document(&json!({
        "source": { "index": { "store": "data", "index": "index.json", "epochs": 3 } }, "stages": [{ "fetch": {} }]
    }));
    let finished = Call::run(&document).store("data", &folder.join("data")).json().finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.expected, snapshot.ledger.total.delivered), (Some(12), 12));
}

#[test]
fn a_missing_key_of_the_index_fails_only_its_sample() {
    let folder = store();
    folder.write("data/index.json", r#"["b.jpg", "gone.jpg", "a/1.jpg"]"#);
    let document = folder.document(&json!({
        "source": { "index": { "store": "data", "index": "index.json" } }, "stages": [{ "fetch": {} }]
    }));
    let finished = Call::run(&document).store("data", &folder.join("data")).finish().exits(0);
    assert_shown!(finished.section("Failures"));
}

#[test]
fn an_unreadable_index_ends_the_run_with_a_reason() {
    let folder = store();
    let told = |index: Value, content: &[u8]| {
        folder.write("data/index.json", content);
        let document = folder.document(&json!({ "source": { "index": index }, "stages": [{ "fetch": {} }] }));
        let finished = Call::run(&document).argument("--quiet").store("data", &folder.join("data")).finish();
        format!("{:?}: {}", finished.code, finished.stderr)
    };
    let here = || json!({ "store": "data", "index": "index.json" });
    assert_shown!(
        [
            told(json!({ "store": "data" }), b"[]"),
            told(json!({ "store": "data", "index": "../index.json" }), b"[]"),
            told(json!({ "store": "data", "index": "none.json" }), b"[]"),
            told(here(), b""),
            told(here(), b"[]"),
            told(here(), br#"{"keys": []}"#),
            told(here(), br#"["b.jpg", 7]"#),
            told(here(), br#"["b.jpg", "../b.jpg"]"#),
            told(here(), br#"["b.jpg", "a/1.j"#),
        ]
        .join("\n")
    );
}

/// A fixture of the formats, which the writers of the formats wrote.
fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../runner/formats/tests/data").join(name)).unwrap()
}

#[test]
fn an_index_of_records_lets_a_run_shuffle_them() {
    let folder = Folder::new();
    for file in ["train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002"] {
        folder.write(&format!("data/{file}"), fixture(&format!("tfrecord/{file}")));
    }
    let finished = create(&folder).argument("--tfrecord").argument("--upload=train.index").finish().exits(0);
    assert_eq!(
        finished.stderr,
        "8 records in 2 files of store `data` were written to its object `train.index`\n"
    );
    let run = |source: Value| {
        let document = folder.document(&json!({ "source": source }));
        Call::run(&document).store("data", &folder.join("data")).json().finish()
    };
    let fields = json!({ "bytes": "image/encoded" });
    let indexed = run(
        json!({ "tfrecord": { "store": "data", "index": "train.index", "shuffle": true, "fields": fields } }),
    );
    let snapshot = indexed.exits(0).snapshot();
    assert_eq!((snapshot.expected, snapshot.ledger.total.delivered), (Some(8), 8));
    let streamed =
        run(json!({ "tfrecord": { "store": "data", "prefix": "train", "sample_key": "id", "epochs": 2 } }));
    assert_eq!(streamed.exits(0).snapshot().ledger.total.delivered, 16);
    let refused =
        run(json!({ "tfrecord": { "store": "data", "prefix": "train", "shuffle": true } })).exits(2);
    assert!(
        refused.stderr.contains("make one with `penstock index create --tfrecord`"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_samples_of_mds_shards_are_shuffled_without_another_index() {
    let folder = Folder::new();
    for file in ["index.json", "shard.00000.mds.gz", "shard.00001.mds.gz"] {
        folder.write(&format!("data/train/{file}"), fixture(&format!("mds/gz/{file}")));
    }
    let fields = json!({ "bytes": "image" });
    let source = json!({ "mds": { "store": "data", "prefix": "train", "fields": fields, "sample_key": "id", "shuffle": true } });
    let document = folder.document(&json!({ "source": source }));
    let finished = Call::run(&document).store("data", &folder.join("data")).json().finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.expected, snapshot.ledger.total.delivered), (Some(6), 6));
}
