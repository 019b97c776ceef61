//! Data directories that cannot be used, and disks that stop taking anything.

use std::fs;

use penstock_runner::SeriesQuery;
use penstock_types::run::RunState;
use rusqlite::Connection;
use serde_json::json;

use crate::support::{end_of, open, stores, submission, submit, try_open};

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_will_not_do_is_told_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = try_open(&file, stores(folder.path())).unwrap_err();
    assert!(error.to_string().starts_with("cannot use `"), "{error}");

    let newer = folder.path().join("newer");
    drop(open(&newer, stores(folder.path())));
    Connection::open(newer.join("penstock.sqlite")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = try_open(&newer, stores(folder.path())).unwrap_err();
    assert!(error.to_string().contains("written by a newer Penstock (its schema is 99"), "{error}");

    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    let theirs = Connection::open(foreign.join("penstock.sqlite")).unwrap();
    theirs.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
    let error = try_open(&foreign, stores(folder.path())).unwrap_err();
    assert!(error.to_string().contains("is a database of another program"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_history_cannot_be_written_goes_on_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({
        "threads": 1, "source": { "range": { "count": 300 } },
        "stages": [{ "sleep": { "mean_ms": 5 } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    // As with a full disk, every write fails from now on.
    let break_it = "ALTER TABLE chunks RENAME TO hidden";
    Connection::open(data.join("penstock.sqlite")).unwrap().execute_batch(break_it).unwrap();
    let run = end_of(&runs, &id).await;
    assert_eq!((run.summary.state, run.summary.samples), (RunState::Completed, Some(300)));
    assert!(run.history.unwrap().starts_with("the history cannot be written"));
    assert!(run.snapshot.unwrap().ledger.balanced);
    // When the disk takes it again, nothing is lost.
    let mend_it = "ALTER TABLE hidden RENAME TO chunks";
    Connection::open(data.join("penstock.sqlite")).unwrap().execute_batch(mend_it).unwrap();
    let stored = crate::support::until(&runs, &id, |run| run.history.is_none()).await;
    assert_eq!(stored.summary.state, RunState::Completed);
    let series = runs.series(&id, SeriesQuery { points: Some(1), ..SeriesQuery::default() }).await.unwrap();
    assert!(series.columns.iter().any(|column| column.mean[0].is_some()));
    // One that cannot be registered is not half there.
    Connection::open(data.join("penstock.sqlite"))
        .unwrap()
        .execute_batch("DROP TABLE run_modules; ALTER TABLE runs RENAME TO gone")
        .unwrap();
    assert_eq!(runs.submit(submission(&document)).await.unwrap_err().kind(), "history");
    assert_eq!(runs.use_now().runs_alive, 0);
}
