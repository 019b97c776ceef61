//! Data directories that cannot be used, and disks on which writes fail.

use std::fs;

use penstock_server::{Event, RunQuery, SeriesQuery};
use penstock_types::run::RunState;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::{
    Kind, PATIENCE, end_of, event, guest, open, stores, submission, submit, try_open, until, upload,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_data_directory_is_reported_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = try_open(&file, stores(folder.path())).unwrap_err();
    assert!(error.to_string().starts_with("cannot use `"), "{error}");

    let newer = folder.path().join("newer");
    drop(open(&newer, stores(folder.path())));
    Connection::open(newer.join("penstock.sqlite")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = try_open(&newer, stores(folder.path())).unwrap_err();
    assert!(
        error.to_string().contains("written by a newer version of Penstock (its schema is 99"),
        "{error}"
    );

    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    let theirs = Connection::open(foreign.join("penstock.sqlite")).unwrap();
    theirs.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
    let error = try_open(&foreign, stores(folder.path())).unwrap_err();
    assert!(error.to_string().contains("is a database of another program"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_history_cannot_be_written_continues_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({
        "threads": 1, "source": { "range": { "count": 300 } },
        "stages": [{ "sleep": { "mean_ms": 5 } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    // Without the table of chunks, every write fails, as on a full disk.
    let break_it = "ALTER TABLE chunks RENAME TO hidden";
    Connection::open(data.join("penstock.sqlite")).unwrap().execute_batch(break_it).unwrap();
    let run = end_of(&runs, &id).await;
    assert_eq!((run.summary.state, run.summary.samples), (RunState::Completed, Some(300)));
    assert!(run.history.unwrap().starts_with("the history cannot be written"));
    assert!(run.snapshot.unwrap().ledger.balanced);
    // No data is lost once writes succeed again.
    let mend_it = "ALTER TABLE hidden RENAME TO chunks";
    Connection::open(data.join("penstock.sqlite")).unwrap().execute_batch(mend_it).unwrap();
    let stored = crate::support::until(&runs, &id, |run| run.history.is_none()).await;
    assert_eq!(stored.summary.state, RunState::Completed);
    let series = runs.series(&id, SeriesQuery { points: Some(1), ..SeriesQuery::default() }).await.unwrap();
    assert!(series.columns.iter().any(|column| column.mean[0].is_some()));
    // A failed registration leaves no partial state.
    Connection::open(data.join("penstock.sqlite"))
        .unwrap()
        .execute_batch("DROP TABLE run_modules; ALTER TABLE runs RENAME TO gone")
        .unwrap();
    assert_eq!(runs.submit(submission(&document)).await.unwrap_err().kind(), "history");
    assert_eq!(runs.use_now().runs_alive, 0);
}

/// Makes every write of rows fail, or succeed again.
fn break_rows(data: &std::path::Path, is_broken: bool) {
    let (from, to) = if is_broken { ("chunks", "hidden") } else { ("hidden", "chunks") };
    let rename = format!("ALTER TABLE {from} RENAME TO {to}");
    Connection::open(data.join("penstock.sqlite")).unwrap().execute_batch(&rename).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_could_not_be_stored_are_tried_again_even_under_constant_load() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 1 } } });
    let id = submit(&runs, &document).await.summary.id;
    end_of(&runs, &id).await;
    break_rows(&data, true);
    let id = submit(&runs, &document).await.summary.id;
    assert!(end_of(&runs, &id).await.history.is_some());
    break_rows(&data, false);
    let busy = async {
        loop {
            let other = submit(&runs, &document).await.summary.id;
            end_of(&runs, &other).await;
        }
    };
    tokio::select! {
        never = busy => never,
        stored = until(&runs, &id, |run| run.history.is_none()) => {
            assert_eq!(stored.summary.state, RunState::Completed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_can_be_neither_stored_nor_kept_in_memory_still_report_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 1 } } });
    break_rows(&data, true);
    let mut ids = Vec::new();
    for _ in 0..20 {
        let id = submit(&runs, &document).await.summary.id;
        end_of(&runs, &id).await;
        ids.push(id);
    }
    for id in &ids {
        let run = until(&runs, id, |run| run.summary.state.is_over() && run.history.is_some()).await;
        assert_eq!(run.summary.state, RunState::Completed);
        assert!(run.history.unwrap().contains("cannot be written"), "{id}");
        // A client that subscribes to the events of the ended run gets the end of the run.
        let mut events = runs.events(std::slice::from_ref(id), None).await.unwrap();
        let first = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        assert!(matches!(event(&first[0].1), Event::End(summary) if summary.state == RunState::Completed));
    }
    let query = RunQuery { states: vec![RunState::Completed], ..RunQuery::default() };
    let all = async {
        while runs.list(query.clone()).await.unwrap().items.len() < 20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("the end of each run is stored");
    break_rows(&data, false);
    runs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_damaged_row_does_not_affect_others() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 1 } } });
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = submit(&runs, &document).await.summary.id;
        end_of(&runs, &id).await;
        ids.push(id);
    }
    upload(&runs, &guest("guest-misbehaving")).await;
    upload(&runs, &guest("guest-carrying")).await;
    drop(runs);
    let damage = Connection::open(data.join("penstock.sqlite")).unwrap();
    damage.execute("UPDATE runs SET state = 'rtnning' WHERE id = ?1", [&*ids[0]]).unwrap();
    damage.execute("UPDATE runs SET state = 'running', snapshot = '{' WHERE id = ?1", [&*ids[1]]).unwrap();
    damage.execute("UPDATE modules SET report = '{' WHERE name = 'misbehaving'", []).unwrap();
    drop(damage);
    let runs = open(&data, stores(folder.path()));
    let kept = runs.list(RunQuery::default()).await.unwrap().items;
    let kept: Vec<_> = kept.iter().map(|run| (&run.id, run.state)).collect();
    assert_eq!(kept, [(&ids[2], RunState::Completed), (&ids[1], RunState::Interrupted)]);
    let interrupted = runs.detail(&ids[1]).await.unwrap();
    assert_eq!(interrupted.snapshot, None);
    assert_eq!(interrupted.history.as_deref(), Some("the last snapshot is damaged"));
    let modules = runs.modules(Default::default()).await.unwrap().items;
    let uploaded = modules.iter().filter(|module| module.latest.uploaded_at.is_some());
    assert_eq!(uploaded.map(|module| module.name.as_str()).collect::<Vec<_>>(), ["carrying"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_run_holds_no_state_and_reads_it_when_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({
        "threads": 4, "source": { "range": { "count": 1_000 } }, "stages": [{ "sleep": { "mean_ms": 5 } }]
    });
    let first = submit(&runs, &document).await.summary.id;
    until(&runs, &first, |run| run.summary.samples.is_some_and(|samples| samples > 0)).await;
    runs.stop(&first).await.unwrap();
    for is_damaged in [false, true] {
        // All threads of the budget.
        let other = submit(&runs, &document).await.summary.id;
        let resumed = runs.resume(&first, false).await.unwrap();
        assert_eq!((resumed.summary.state, resumed.waiting.is_some()), (RunState::Queued, true));
        let id = resumed.summary.id;
        let history = Connection::open(data.join("penstock.sqlite")).unwrap();
        let read = "SELECT state FROM resume_states WHERE run = ?1";
        let text: String = history.query_row(read, [&*id], |row| row.get(0)).unwrap();
        let mut state: Value = serde_json::from_str(&text).unwrap();
        state["ranks"]["0"]["epochs"] =
            json!([{ "epoch": 0, "frontier": if is_damaged { 1_001 } else { 990 } }]);
        let write = "UPDATE resume_states SET state = ?2 WHERE run = ?1";
        history.execute(write, [&*id, &state.to_string()]).unwrap();
        runs.stop(&other).await.unwrap();
        let run = end_of(&runs, &id).await.summary;
        if is_damaged {
            let error = run.error.unwrap();
            assert!(error.starts_with("the state is damaged: rank 0 of 1 has settled 1001"), "{error}");
        } else {
            assert_eq!((run.state, run.samples), (RunState::Completed, Some(10)));
        }
    }
}
