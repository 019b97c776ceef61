//! Limits of the data that a server stores.

use std::fs;

use penstock_server::{RunQuery, RunsError};
use penstock_types::run::RunState;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{Kind, PATIENCE, end_of, guest, open, open_with, stores, submission, submit, upload};

/// Document of a run in which every sample fails and becomes a dead letter.
fn failing(count: u32) -> Value {
    json!({
        "threads": 1, "max_failures": null, "source": { "range": { "count": count } },
        "stages": [{ "sleep": { "mean_ms": 0, "fail_rate": 1.0, "on_error": "dead_letter", "concurrency": 8 } }]
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_of_a_run_are_kept_up_to_a_limit_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open_with(&data, stores(folder.path()), |settings| {
        settings.bounds.dead_letters_mib = 1.try_into().unwrap();
    });
    let id = submit(&runs, &failing(10_000)).await.summary.id;
    let run = end_of(&runs, &id).await;
    assert_eq!((run.summary.state, run.summary.failed_samples), (RunState::Failed, 10_000));
    let letters = runs.dead_letters(&id).await.unwrap();
    let kept = letters.stages[0].letters;
    assert!(letters.left_out > 0 && kept > 1_000, "{letters:?}");
    assert_eq!(kept + letters.left_out, 10_000);
    assert!(fs::metadata(data.join("runs").join(&*id).join("dead_letters.ndjson")).unwrap().len() <= 1 << 20);
    let message = run.history.unwrap();
    let wanted = format!(
        "the dead letters are incomplete: {} dead letters were left out, since at most 1 MiB are kept (`limits.runs.dead_letters_mib`)",
        letters.left_out
    );
    assert_eq!(message, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_quota_refuses_new_data_and_deletions_free_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    drop(open(&data, stores(folder.path())));
    let open = |disk_bytes: Option<u64>| {
        open_with(&data, stores(folder.path()), |settings| settings.disk_bytes = disk_bytes)
    };
    let runs = open(None);
    let empty = runs.storage().await.unwrap();
    assert_eq!(empty.data_dir_limit_bytes, None);
    drop(runs);

    let most = empty.data_dir_bytes + (1 << 20);
    let runs = open(Some(most));
    let used = async || runs.storage().await.unwrap().data_dir_bytes;
    let id = submit(&runs, &failing(10_000)).await.summary.id;
    let run = end_of(&runs, &id).await;
    let letters = runs.dead_letters(&id).await.unwrap();
    let kept = letters.stages[0].letters;
    assert!(letters.left_out > 0 && kept > 100 && kept + letters.left_out == 10_000, "{letters:?}");
    let message = run.history.unwrap();
    let wanted = "left out, since the data directory is full (`limits.disk_mib`)";
    assert!(message.ends_with(wanted), "{message}");
    assert!(used().await <= most, "{} of {most}", used().await);

    let module = guest("guest-misbehaving");
    let mut draft = runs.begin_upload().await.unwrap();
    let refused = draft.write(&module).await.unwrap_err();
    assert_eq!(refused.kind(), "disk-full");
    let message = refused.to_string();
    assert!(message.contains("(`limits.disk_mib`)") && message.contains("delete runs"), "{message}");
    drop(draft);
    assert_eq!(runs.submit(submission(&failing(1))).await.unwrap_err().kind(), "disk-full");
    // Hexadecimal digits of digests have four random bits in each byte, so that compression saves at most half of the size.
    let digits = |number: u64| format!("{:x}", Sha256::digest(number.to_le_bytes()));
    let report = json!({ "x": (0..1_000).map(digits).collect::<String>() }).to_string().into_bytes();
    let refused = runs.keep_benchmark(json!({}), report.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), "disk-full");

    let before = used().await;
    runs.delete(&id).await.unwrap();
    assert!(used().await < before - 200_000, "{} after {before}", used().await);
    let kept = runs.keep_benchmark(json!({}), report.clone()).await.unwrap();
    let again = runs.keep_benchmark(json!({}), report).await.unwrap();
    assert!(kept.is_new && !again.is_new);
    end_of(&runs, &submit(&runs, &failing(1)).await.summary.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_unreadable_dead_letters_contain_no_path() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let id = submit(&runs, &failing(3)).await.summary.id;
    end_of(&runs, &id).await;
    fs::write(data.join("runs").join(&*id).join("spec.json"), "{").unwrap();
    let message = runs.dead_letters(&id).await.unwrap_err().to_string();
    assert!(message.starts_with("the document stored with the run's dead letters is damaged: "), "{message}");
    assert!(!message.contains(data.to_str().unwrap()), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_surplus_runs_are_removed_with_their_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open_with(&data, stores(folder.path()), |settings| {
        settings.bounds.kept = 3.try_into().unwrap();
    });
    let mut ids = Vec::new();
    for _ in 0..6 {
        let id = submit(&runs, &failing(1)).await.summary.id;
        end_of(&runs, &id).await;
        ids.push(id);
    }
    let wait = async {
        while runs.list(RunQuery::default()).await.unwrap().items.len() > 3 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the oldest runs are removed");
    ids.reverse();
    let kept = runs.list(RunQuery::default()).await.unwrap().items;
    assert_eq!(kept.into_iter().map(|run| run.id).collect::<Vec<_>>(), ids[..3]);
    for (place, id) in ids.iter().enumerate() {
        assert_eq!(data.join("runs").join(&**id).exists(), place < 3, "{place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_beyond_the_limit_is_refused_but_known_bytes_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.sandbox.gate.versions = 1;
    });
    let first = guest("guest-misbehaving");
    upload(&runs, &first).await;
    assert!(!upload(&runs, &first).await.created);
    let mut draft = runs.begin_upload().await.unwrap();
    draft.write(&guest("guest-carrying")).await.unwrap();
    match draft.finish(None).await.unwrap_err() {
        RunsError::Refused(message) => {
            assert!(message.contains("at most 1 versions of modules"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    runs.delete_module("misbehaving", "1").await.unwrap();
    upload(&runs, &guest("guest-carrying")).await;
}
