//! Modules are uploaded, named, tried and removed.

use std::fs;
use std::time::Duration;

use penstock_server::{ModuleContent, ModuleQuery, Runs, TryRequest, VersionQuery};
use penstock_types::run::RunState;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Kind, end_of, guest, open, open_with, stores, submit, until, upload};

/// File of an uploaded version.
async fn file_of(runs: &Runs, version: &str) -> fs::File {
    match runs.module_file("misbehaving", version).await.unwrap().content {
        ModuleContent::File(file) => file,
        ModuleContent::Program(_) => panic!("the module was uploaded"),
    }
}

fn files(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_bytes_uploaded_a_hundred_times_at_once_are_one_module() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let bytes = std::sync::Arc::new(guest("guest-misbehaving"));
    let mut uploads = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (runs, bytes) = (runs.clone(), bytes.clone());
        uploads.spawn(async move { upload(&runs, &bytes).await });
    }
    let uploads = uploads.join_all().await;
    assert_eq!(uploads.iter().filter(|upload| upload.created).count(), 1);
    assert!(uploads.iter().all(|upload| upload.version.version == 1 && upload.previous.is_none()));
    assert_eq!(files(&data.join("modules/sha256")).len(), 1);
    assert_eq!(files(&data.join("modules/drafts")), [""; 0]);
    let listed = runs
        .modules(ModuleQuery { text: Some("misbehaving".to_owned()), ..ModuleQuery::default() })
        .await
        .unwrap();
    assert_eq!((listed.items.len(), listed.items[0].versions), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_is_deleted_during_its_upload_is_complete_or_gone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let bytes = guest("guest-misbehaving");
    upload(&runs, &bytes).await;
    for _ in 0..40 {
        let (other, own) = (runs.clone(), bytes.clone());
        let mut uploading = JoinSet::new();
        uploading.spawn(async move { upload(&other, &own).await });
        match runs.delete_module("misbehaving", "latest").await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), "not-found"),
        }
        uploading.join_next().await.unwrap().unwrap();
        match runs.module_version("misbehaving", "latest").await {
            Ok(version) => {
                let file = file_of(&runs, "latest").await;
                assert_eq!(file.metadata().unwrap().len(), version.report.size_bytes);
            }
            Err(error) => {
                assert_eq!((error.kind(), files(&data.join("modules/sha256")).len()), ("not-found", 0));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_leave_no_files_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let drafts = data.join("modules/drafts");
    let mut dropped = runs.begin_upload().await.unwrap();
    dropped.write(b"\0asm").await.unwrap();
    assert_eq!(files(&drafts).len(), 1);
    drop(dropped);
    let mut nonsense = runs.begin_upload().await.unwrap();
    nonsense.write(b"hello").await.unwrap();
    assert_eq!(nonsense.finish(None).await.unwrap_err().kind(), "refused");
    let mut large = runs.begin_upload().await.unwrap();
    let piece = vec![0; 1 << 20];
    let too_large = loop {
        if let Err(error) = large.write(&piece).await {
            break error;
        }
    };
    assert_eq!(too_large.kind(), "too-large");
    drop(large);
    let mut looked_at = runs.begin_upload().await.unwrap();
    looked_at.write(&guest("guest-batch")).await.unwrap();
    assert_eq!(looked_at.inspect().await.unwrap().manifest.name, "batch");
    assert_eq!(files(&drafts), [""; 0]);
    assert_eq!(files(&data.join("modules/sha256")), [""; 0]);
    // Files left by a killed server are removed at the next start.
    upload(&runs, &guest("guest-batch")).await;
    runs.shutdown().await;
    drop(runs);
    fs::write(drafts.join("half"), "x").unwrap();
    fs::write(data.join("modules/sha256").join("00"), "x").unwrap();
    let _runs = open(&data, stores(folder.path()));
    assert_eq!(files(&drafts), [""; 0]);
    assert_eq!(files(&data.join("modules/sha256")).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_numbered_and_aliased_and_can_be_removed_when_unused() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let first = guest("guest-misbehaving");
    // An additional custom section makes other bytes of the same name, and so another version.
    let mut second = first.clone();
    second.extend([0, 3, 1, b'x', 0]);
    assert_eq!(upload(&runs, &first).await.version.version, 1);
    let later = upload(&runs, &second).await;
    assert_eq!((later.version.version, later.created), (2, true));
    assert_eq!(runs.module_version("misbehaving", "latest").await.unwrap().version, 2);
    runs.set_alias("misbehaving", "stable", 1).await.unwrap();
    assert_eq!(runs.module_version("misbehaving", "stable").await.unwrap().version, 1);
    for alias in ["latest", "7", "", "a b"] {
        assert_eq!(runs.set_alias("misbehaving", alias, 1).await.unwrap_err().kind(), "refused");
    }
    assert_eq!(runs.set_alias("misbehaving", "x", 3).await.unwrap_err().kind(), "not-found");

    // A run keeps the versions to which its document referred at the submission.
    let document = json!({
        "name": "uses", "threads": 1, "source": { "range": { "count": 100_000 } },
        "stages": [
            { "sleep": { "mean_ms": 5 } },
            { "wasm": { "module": "misbehaving@stable", "params": { "how": "good" } } }
        ]
    });
    let run = submit(&runs, &document).await;
    assert_eq!(run.summary.modules, ["misbehaving@1"]);
    runs.set_alias("misbehaving", "stable", 2).await.unwrap();
    assert_eq!(runs.delete_module("misbehaving", "1").await.unwrap_err().kind(), "conflict");
    until(&runs, &run.summary.id, |run| run.summary.samples > Some(0)).await;
    let used = runs.module_version("misbehaving", "1").await.unwrap();
    assert_eq!((used.runs, used.in_use.as_slice()), (1, std::slice::from_ref(&run.summary.id)));
    runs.stop(&run.summary.id).await.unwrap();
    let digest = runs.spec(&run.summary.id).await.unwrap().modules["2:misbehaving"].clone();
    assert_eq!(digest, used.report.digest);

    assert_eq!(
        runs.delete_module("misbehaving", "2").await.unwrap_err().kind(),
        "conflict",
        "an alias stands for the version"
    );
    runs.delete_module("misbehaving", "1").await.unwrap();
    assert_eq!(runs.module_file("misbehaving", "1").await.unwrap_err().kind(), "not-found");
    let mut bytes = Vec::new();
    let mut file = file_of(&runs, "2").await;
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    assert_eq!(bytes, second);
    // The number of a version is not reused.
    assert_eq!(upload(&runs, &first).await.version.version, 3);
    let versions = async |cursor, limit| {
        let page = runs.module("misbehaving", VersionQuery { cursor, limit }).await.unwrap();
        (page.versions.iter().map(|version| version.version).collect::<Vec<_>>(), page.next)
    };
    assert_eq!(versions(None, None).await, (vec![3, 2], None));
    let (newest, next) = versions(None, Some(1)).await;
    assert_eq!((newest, next.is_some()), (vec![3], true));
    assert_eq!(versions(next, Some(1)).await, (vec![2], None));
    let unknown = runs.module("misbehaving", VersionQuery { cursor: Some("?".to_owned()), limit: None });
    assert_eq!(unknown.await.unwrap_err().kind(), "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_is_tried_on_samples_of_a_request_and_of_a_store() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), [1, 2, 3]).unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    upload(&runs, &guest("guest-misbehaving")).await;
    let request = |request: Value| serde_json::from_value::<TryRequest>(request).unwrap();
    let given = request(json!({
        "params": { "how": "failed-on-bad" },
        "samples": [{ "key": "fine", "text": "x", "fields": { "n": 1 } }, { "key": "bad", "base64": "AAEC" }]
    }));
    let report = runs.try_module("misbehaving", "latest", given).await.unwrap();
    let outcomes: Vec<&str> = report.samples().map(|sample| sample.outcome.name()).collect();
    assert_eq!(outcomes, ["kept", "failed"]);
    assert_eq!(report.input_fields, ["bytes", "n", "text"]);
    let stored =
        request(json!({ "params": { "how": "good" }, "from": { "store": "in", "keys": ["a.bin"] } }));
    let report = runs.try_module("misbehaving", "1", stored).await.unwrap();
    assert_eq!(report.samples().map(|sample| sample.bytes_in).collect::<Vec<_>>(), [3]);
    let refused = [
        (json!({}), "refused"),
        (json!({ "samples": [] }), "refused"),
        (json!({ "samples": [{ "key": "a" }], "params": { "how": 3 } }), "invalid-pipeline"),
        (json!({ "samples": [{ "key": "a" }], "deadline_ms": 60_000 }), "refused"),
        (json!({ "from": { "store": "in", "keys": ["missing"] } }), "not-found"),
        (json!({ "from": { "store": "in", "keys": ["../data/penstock.sqlite"] } }), "refused"),
        (json!({ "from": { "store": "other", "keys": ["a"] } }), "not-found"),
    ];
    for (wrong, kind) in refused {
        let error = runs.try_module("misbehaving", "1", request(wrong.clone())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{wrong}: {error}");
    }
    let keys = runs.store_keys("in", "a", Some(1)).await.unwrap();
    assert_eq!((keys.items, keys.more), (vec!["a.bin".to_owned()], false));
}

#[tokio::test(flavor = "multi_thread")]
async fn trials_end_in_time_or_when_their_clients_disconnect() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.trial_time = Duration::from_secs(4);
    });
    upload(&runs, &guest("guest-misbehaving")).await;
    let request = |how: &str, deadline: u32| {
        let samples: Vec<Value> = (0..16).map(|number| json!({ "key": format!("k{number}") })).collect();
        let request = json!({ "params": { "how": how }, "samples": samples, "deadline_ms": deadline });
        serde_json::from_value::<TryRequest>(request).unwrap()
    };
    for unwritten in ["01", "+1"] {
        let error = runs.module_version("misbehaving", unwritten).await.unwrap_err();
        assert_eq!(error.kind(), "not-found", "{unwritten}");
    }
    let late = runs.try_module("misbehaving", "1", request("loop", 10_000)).await.unwrap_err();
    assert_eq!(
        late.to_string(),
        "the trial did not end within 4 s; try fewer samples, a smaller `repeat` or a shorter `deadline_ms`"
    );
    drop(runs);
    // Two endless trials take both permits until their clients disconnect. If the disconnects did not end them, the trial below
    // would get no permit.
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.trial_time = Duration::from_secs(600);
    });
    let mut gone = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (runs, request) = (runs.clone(), request("loop", 10_000));
        gone.spawn(async move { runs.try_module("misbehaving", "1", request).await.map(drop) });
    }
    // Gives the trials time to begin.
    tokio::time::sleep(Duration::from_millis(300)).await;
    gone.shutdown().await;
    runs.try_module("misbehaving", "1", request("good", 1_000)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_modules_are_kept_when_the_history_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let objects = || fs::read_dir(data.join("modules/sha256")).unwrap().count();
    let runs = open(&data, stores(folder.path()));
    upload(&runs, &guest("guest-misbehaving")).await;
    upload(&runs, &guest("guest-carrying")).await;
    runs.shutdown().await;
    drop(runs);
    let beside = fs::metadata(data.join("penstock.sqlite-wal")).map_or(0, |file| file.len());
    assert_eq!(beside, 0, "the whole history is in its main file");
    // The bytes of an upload that a killed server left are removed.
    fs::write(data.join("modules/sha256").join("0".repeat(64)), "x").unwrap();
    drop(open(&data, stores(folder.path())));
    assert_eq!(objects(), 2);
    fs::rename(data.join("penstock.sqlite"), data.join("mislaid")).unwrap();
    let runs = open(&data, stores(folder.path()));
    assert_eq!(objects(), 2);
    // Module files that the new history does not list are kept, even after another module was uploaded.
    upload(&runs, &guest("guest-batch")).await;
    drop(runs);
    drop(open(&data, stores(folder.path())));
    assert_eq!(objects(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_cannot_start_fails_the_run_with_its_message() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    upload(&runs, &guest("guest-misbehaving")).await;
    let document = json!({
        "threads": 1, "source": { "range": { "count": 1 } },
        "stages": [{ "wasm": { "module": "misbehaving", "params": { "how": "init-error" } } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    let run = end_of(&runs, &id).await;
    assert_eq!(run.summary.state, RunState::Failed);
    assert!(run.summary.error.unwrap().contains("no `size` given"));
}
