//! A server that is killed while runs are active.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penstock_server::{SeriesQuery, WindowQuery};
use penstock_types::run::RunState;
use rusqlite::Connection;
use serde_json::json;

use crate::support::{open, stores, submit};

const FOLDER: &str = "PENSTOCK_KILLED_FOLDER";

/// Helper that runs in the child process, which is killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test below, in a separate process"]
async fn writes_until_it_is_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let runs = open(&folder.join("data"), stores(folder));
    let document = json!({
        "name": "killed", "threads": 3, "source": { "range": { "count": 10_000_000 } },
        "stages": [{ "sleep": { "mean_ms": 1, "fail_rate": 0.01, "concurrency": 4 } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    submit(&runs, &document).await;
    loop {
        // Reading errors makes the server write its pending data first.
        runs.errors(&id, Default::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_a_killed_server_opens_and_balances_and_its_runs_are_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::writes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let file = folder.path().join("data/penstock.sqlite");
    #[expect(clippy::disallowed_methods, reason = "a test's own patience")]
    let start = Instant::now();
    let delivered = || -> Option<i64> {
        let connection = Connection::open(&file).ok()?;
        connection.query_row("SELECT max(samples) FROM runs", [], |row| row.get(0)).ok()?
    };
    while delivered().unwrap_or(0) < 1000 {
        assert!(start.elapsed() < Duration::from_secs(60), "no samples were written");
        assert!(child.try_wait().unwrap().is_none(), "the child ended before it was killed");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The child holds a lock on the directory, so no other server can open it while the child lives.
    let taken = crate::support::try_open(&folder.path().join("data"), stores(folder.path()));
    assert!(taken.unwrap_err().to_string().contains("is used by another server"));
    child.kill().unwrap();
    child.wait().unwrap();

    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let mut list = runs.list(Default::default()).await.unwrap().items;
    assert!(list.iter().all(|run| run.state == RunState::Interrupted && run.ended_at.is_some()), "{list:?}");
    assert_eq!(list.len(), 2);
    let run = runs.detail(&list.remove(1).id).await.unwrap();
    let snapshot = run.snapshot.unwrap();
    assert_eq!(snapshot.state, RunState::Interrupted);
    assert!(snapshot.ledger.balanced);
    let id = &run.summary.id;
    let windows = runs.windows(id, WindowQuery::default()).await.unwrap();
    let kept: u64 = windows.iter().map(|window| window.stages[0].task.num_tasks).sum();
    let own = snapshot.stages[0].task.num_tasks;
    // Stored rows cover complete intervals only, so they may count fewer tasks than the snapshot, which was taken at the write.
    assert!(kept > 0 && kept <= own, "{kept} of {own}");
    let errors = runs.errors(id, Default::default()).await.unwrap().items;
    assert!(!errors.is_empty());
    let series = runs.series(id, SeriesQuery { points: Some(1), ..SeriesQuery::default() }).await.unwrap();
    assert!(series.columns.iter().any(|column| column.mean[0].is_some()));
    // The other run had not started when the server was killed.
    assert_eq!(list[0].started_at, None);
    let check: String =
        Connection::open(&file).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}
