//! Checks that a data folder of an earlier version is migrated.

use std::fs;
use std::path::{Path, PathBuf};

use penstock_server::{ErrorQuery, LogQuery, RunQuery, SeriesQuery, WindowQuery};
use penstock_types::run::{RunId, RunSummary};
use penstock_types::series::Metric;
use serde::Serialize;
use serde_json::{Value, json};

use crate::support::{open, stores};

/// Returns true if `now` contains all values of `then`, and possibly more.
fn holds(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            then.iter().all(|(key, then)| now.get(key).is_some_and(|now| holds(now, then)))
        }
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| holds(now, then))
        }
        // The order of floating-point operations may have changed, so numbers may differ slightly.
        (Value::Number(now), Value::Number(then)) => {
            let (now, then) = (now.as_f64().unwrap(), then.as_f64().unwrap());
            (now - then).abs() <= 1e-9 * then.abs()
        }
        (now, then) => now == then,
    }
}

/// Unpacks the data folder of a server with schema 2, which the script `make-schema-2.sh` next to the archive has created.
fn data_of_schema_2(folder: &Path) -> PathBuf {
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("penstock.sqlite"), include_bytes!("../data/schema-2.sqlite")).unwrap();
    data
}

fn check(now: &impl Serialize, then: &Value) {
    let now = serde_json::to_value(now).unwrap();
    assert!(holds(&now, then), "{now}\n{then}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_schema_2_opens_and_gives_the_answers_of_its_own_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_of_schema_2(folder.path());
    let told: Vec<Value> = serde_json::from_slice(include_bytes!("../data/schema-2.json")).unwrap();
    assert_eq!(told.len(), 3);
    // The first iteration migrates the folder; the second one opens the migrated folder.
    for _ in 0..2 {
        let runs = open(&data, stores(folder.path()));
        for told in &told {
            let id = &RunId::from(told["id"].as_str().unwrap());
            let coarse = SeriesQuery { points: Some(8), ..SeriesQuery::default() };
            let mut series = runs.series(id, coarse).await.unwrap();
            // The server with schema 2 did not measure waits for permits, so the expected series lack them.
            series.columns.retain(|column| column.metric != Metric::PermitWait);
            check(&series, &told["series"]);
            let metrics = vec![Metric::Readiness, Metric::Busy];
            let fine = SeriesQuery { points: Some(600), metrics, ..SeriesQuery::default() };
            let mut fine = runs.series(id, fine).await.unwrap();
            fine.columns.truncate(2);
            check(&fine, &told["fine"]);
            let windows = WindowQuery { every_s: Some(20.0), ..WindowQuery::default() };
            let windows = runs.windows(id, windows).await.unwrap();
            check(&windows, &told["windows"]["items"]);
            check(&runs.times(id, &windows[0].stages[0].id).await.unwrap(), &told["times"]);
            let errors = ErrorQuery { limit: Some(3), ..ErrorQuery::default() };
            check(&runs.errors(id, errors).await.unwrap().items, &told["errors"]);
            let logs = LogQuery { limit: Some(3), ..LogQuery::default() };
            check(&runs.logs(id, logs).await.unwrap().items, &told["logs"]);
        }
        runs.shutdown().await;
    }
}

/// Expected summaries: the values in the columns of the database, and `samples_per_s`, which is computed from two columns.
fn summaries() -> Vec<RunSummary> {
    let summaries = json!([
        {
            "id": "01a2042a-21de-73de-a4fa-b8393e2164a3", "name": "stopped", "state": "stopped", "error": null,
            "submitted_at": "2026-11-22T16:49:59.774Z", "started_at": "2026-11-22T16:49:59.787Z",
            "ended_at": "2026-11-22T16:50:02.809Z", "elapsed_s": 3.020209581, "threads": 1, "memory_mib": 1088,
            "samples": 145, "expected": 1000000, "failed_samples": 0, "readiness": 0.0014118303134762885,
            "wait_s": 0.020819480468965517, "qps": 48.01253050491026, "samples_per_s": 145.0 / 3.020209581,
            "verdict": "stage", "verdict_stage": "1:sleep", "modules": []
        },
        {
            "id": "01a2042a-213e-7131-9bee-cdc77751e99f", "name": "logs", "state": "completed", "error": null,
            "submitted_at": "2026-11-22T16:49:59.614Z", "started_at": "2026-11-22T16:49:59.615Z",
            "ended_at": "2026-11-22T16:50:00.834Z", "elapsed_s": 1.217255757, "threads": 1, "memory_mib": 1344,
            "samples": 60, "expected": null, "failed_samples": 0, "readiness": 0.0005728122047692329,
            "wait_s": 0.020276394916666666, "qps": 49.296360348822226, "samples_per_s": 60.0 / 1.217255757,
            "verdict": "stage", "verdict_stage": "1:sleep", "modules": ["misbehaving@1"]
        },
        {
            "id": "01a2042a-20c7-70f3-8019-48ab7d354a95", "name": "long", "state": "completed", "error": null,
            "submitted_at": "2026-11-22T16:49:59.495Z", "started_at": "2026-11-22T16:49:59.499Z",
            "ended_at": "2026-11-22T16:51:09.515Z", "elapsed_s": 70.001995124, "threads": 1, "memory_mib": 1088,
            "samples": 4308, "expected": 1000000, "failed_samples": 67, "readiness": 0.21799481811368965,
            "wait_s": 0.017521497495821724, "qps": 15.385301745112452, "samples_per_s": 4308.0 / 70.001995124,
            "verdict": "stage", "verdict_stage": "1:download", "modules": []
        }
    ]);
    serde_json::from_value(summaries).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_folder_of_schema_2_are_listed_and_shown_with_their_exact_figures() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&data_of_schema_2(folder.path()), stores(folder.path()));
    let listed = runs.list(RunQuery::default()).await.unwrap();
    assert_eq!((listed.items, listed.next), (summaries(), None));
    // For each run: the name; the share of time that the consumer waited, and the numbers of samples delivered and left; and the
    // task rate of the first stage.
    let figures = [
        ("stopped", (0.9995959411125903, 145, 4), 145.0 / 3.020044944),
        ("logs", (0.9995524703870272, 60, 0), 60.0 / 1.216998271),
        ("long", (0.2695735259994495, 4308, 11), 4379.0 / 70.001876976),
    ];
    for (summary, (name, (waited, delivered, left), tasks_per_s)) in summaries().into_iter().zip(figures) {
        let shown = runs.detail(&summary.id).await.unwrap();
        assert_eq!((shown.summary.name.as_str(), &shown.summary), (name, &summary));
        assert_eq!((shown.waiting, shown.cloned_from, shown.history), (None, None, None));
        assert_eq!((shown.errors_left_out, shown.logs_left_out), (0, 0));
        let snapshot = shown.snapshot.unwrap();
        assert_eq!((&snapshot.id, snapshot.state), (&summary.id, summary.state));
        assert_eq!(
            (Some(snapshot.elapsed_s), snapshot.samples_per_s),
            (summary.elapsed_s, summary.samples_per_s)
        );
        let total = snapshot.ledger.total;
        assert_eq!((snapshot.consumer_waited, total.delivered, total.left), (Some(waited), delivered, left));
        assert_eq!(snapshot.stages[0].task.tasks_per_s, Some(tasks_per_s));
        // Only the run `long` delivers batches of four samples.
        let in_fours = [
            ("0:src_queue", 0.25),
            ("1:download", 0.25),
            ("1:download_queue", 0.25),
            ("2:aggregate", 0.25),
            ("2:aggregate_queue", 1.0),
            ("3:augment", 1.0),
            ("3:augment_queue", 1.0),
            ("4:sink_queue", 1.0),
        ];
        let in_fours =
            in_fours.iter().filter(|_| name == "long").map(|(id, items)| ((*id).to_owned(), *items));
        assert_eq!(snapshot.sink_items, in_fours.collect());
    }
    runs.shutdown().await;
}
