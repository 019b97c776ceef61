//! Figures of windows: the figures of adjacent windows add up, and a window of the whole run has the figures that the run itself
//! reports.

use penstock_server::{FiguresQuery, Runs};
use penstock_types::figures::{RunFigures, WindowKind};
use penstock_types::run::{RunId, RunState};
use penstock_types::verdict::VerdictKind;
use rusqlite::Connection;
use serde_json::json;

use crate::support::{end_of, open, stores, submit, until};

async fn figures(runs: &Runs, id: &RunId, from_s: Option<f64>, to_s: Option<f64>) -> RunFigures {
    runs.figures(id, FiguresQuery { from_s, to_s, last_s: None }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_add_up_to_the_run_and_have_verdicts_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({
        "name": "windows", "threads": 2,
        "source": { "range": { "count": 900 } },
        "stages": [
            { "sleep": { "name": "read", "mean_ms": 2, "concurrency": 2, "fail_rate": 0.1 } },
            { "sleep": { "name": "decode", "mean_ms": 4 } },
            { "aggregate": { "size": 4 } },
        ],
        "max_failures": { "rate": 1 },
        "consumer": { "simulate": { "step_ms": 2 } }
    });
    let id = submit(&runs, &document).await.summary.id;
    let run = end_of(&runs, &id).await;
    assert_eq!(run.summary.state, RunState::Completed, "{run:?}");
    let snapshot = run.snapshot.unwrap();
    let failed: u64 = snapshot.stages.iter().map(|stage| stage.task.failed_samples).sum();

    // A window that includes warm-up is the whole run, so its figures are those of the run's snapshot, percentiles included.
    let whole = figures(&runs, &id, Some(0.0), None).await;
    assert_eq!((whole.window.kind, whole.window.to_s), (WindowKind::Whole, snapshot.elapsed_s));
    assert_eq!((&whole.stages, &whole.queues), (&snapshot.stages, &snapshot.queues));
    assert!(whole.stages[0].task.p99_time_s.is_some() && whole.stages[0].task.max_time_s.is_some());
    let movement = whole.ledger.unwrap();
    assert_eq!(movement.total.delivered, snapshot.ledger.total.delivered);
    assert_eq!((whole.samples, whole.failed_samples), (Some(movement.total.delivered), failed));
    assert_eq!((whole.total.samples.made, whole.total.failed_samples), (900, failed));

    // The figures of two adjacent windows add up to the figures of the run, wherever the windows meet.
    for cut in [0.25, 1.0, 1.3, snapshot.elapsed_s - 0.1] {
        let parts =
            [figures(&runs, &id, Some(0.0), Some(cut)).await, figures(&runs, &id, Some(cut), None).await];
        let [first, second] = &parts;
        assert_eq!((first.window.kind, second.window.kind), (WindowKind::Range, WindowKind::Range));
        assert!(first.window.from_s == 0.0 && first.window.to_s <= second.window.to_s);
        // If the windows meet inside a row of 0.25 s, both windows contain this row.
        let shared = match cut % 0.25 == 0.0 {
            true => None,
            false => {
                let end_of_row = (cut / 0.25).ceil() * 0.25;
                Some(figures(&runs, &id, Some(cut), Some(f64::midpoint(cut, end_of_row))).await)
            }
        };
        let sum = |of: &dyn Fn(&RunFigures) -> u64| {
            parts.iter().map(of).sum::<u64>() - shared.as_ref().map_or(0, of)
        };
        for (place, stage) in snapshot.stages.iter().enumerate() {
            assert_eq!(sum(&|part| part.stages[place].task.num_tasks), stage.task.num_tasks, "{cut}");
            assert_eq!(
                sum(&|part| part.ledger.as_ref().unwrap().stages[place + 1].out),
                movement.stages[place + 1].out
            );
        }
        assert_eq!(sum(&|part| part.failed_samples), failed, "{cut}");
        assert_eq!(sum(&|part| part.samples.unwrap()), movement.total.delivered, "{cut}");
        let longest = |part: &RunFigures| part.stages[0].task.max_time_s;
        match cut {
            // Task times are stored for whole seconds, in histogram buckets that are a few percent wide.
            1.0 => {
                let longest = longest(first).unwrap().max(longest(second).unwrap());
                let of_run = snapshot.stages[0].task.max_time_s.unwrap();
                assert!((longest / of_run - 1.0).abs() < 0.2, "{longest} s in parts, {of_run} s in the run");
            }
            0.25 | 1.3 => assert!(parts.iter().all(|part| longest(part).is_none()), "{cut}"),
            _ => {}
        }
        let verdict = second.verdict.as_ref().unwrap();
        assert_eq!((verdict.from_s, verdict.to_s), (second.window.from_s, second.window.to_s));
    }

    // Without warm-up, the verdict is the final verdict of the run, whose sentence names the rate in samples before the rate in
    // batches.
    let steady = figures(&runs, &id, None, None).await;
    assert_eq!(steady.window.kind, WindowKind::Steady);
    let verdict = steady.verdict.clone().unwrap();
    let own = snapshot.verdict.clone().unwrap();
    assert_eq!((verdict.kind, &verdict.stage, verdict.from_s), (own.kind, &own.stage, own.from_s));
    assert_eq!(verdict.sentence, own.sentence);
    assert_eq!((verdict.rate, verdict.kind), (steady.batches_per_s, VerdictKind::Stage));
    let (samples, batches) = (steady.samples_per_s.unwrap(), steady.batches_per_s.unwrap());
    assert!((samples / batches - 4.0).abs() < 0.05, "{samples} samples and {batches} batches a second");
    assert!(
        verdict.sentence.contains("samples/s (") && verdict.sentence.contains("batches/s)"),
        "{}",
        verdict.sentence
    );

    // A window as long as the run leaves out warm-up; a shorter window ends with the run.
    let last = |last_s| runs.figures(&id, FiguresQuery { last_s: Some(last_s), ..FiguresQuery::default() });
    assert_eq!(last(3_600.0).await.unwrap(), steady);
    let end = last(0.5).await.unwrap();
    assert_eq!((end.window.kind, end.window.to_s), (WindowKind::Last, steady.window.to_s));
    assert!(last(0.5).await.unwrap().samples < steady.samples);
    let both = FiguresQuery { from_s: Some(1.0), to_s: None, last_s: Some(1.0) };
    assert!(runs.figures(&id, both).await.is_err());
    assert!(
        runs.figures(&id, FiguresQuery { from_s: Some(2.0), to_s: Some(1.0), last_s: None }).await.is_err()
    );
    // A window after the end of the run has no measurements.
    let behind = figures(&runs, &id, Some(500.0), Some(600.0)).await;
    assert_eq!(
        (behind.samples_per_s, behind.stages[0].task.ave_time_s, behind.failed_samples),
        (None, None, 0)
    );

    // A restarted server returns the same figures. If the rows are removed, it returns the figures of the last snapshot.
    drop(runs);
    let runs = open(&data, stores(folder.path()));
    assert_eq!(figures(&runs, &id, None, None).await, steady);
    let range = figures(&runs, &id, Some(1.0), Some(2.0)).await;
    assert_eq!(range.window.kind, WindowKind::Range);
    drop(runs);
    let file = Connection::open(data.join("penstock.sqlite")).unwrap();
    file.execute("DELETE FROM chunks", []).unwrap();
    drop(file);
    let runs = open(&data, stores(folder.path()));
    for found in [figures(&runs, &id, None, None).await, figures(&runs, &id, Some(1.0), Some(2.0)).await] {
        assert_eq!((found.window.kind, &found.stages), (WindowKind::Whole, &snapshot.stages));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_has_figures_up_to_now() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({
        "name": "live", "threads": 1,
        "source": { "range": { "count": 1_000_000 } },
        "stages": [{ "sleep": { "name": "nap", "mean_ms": 2 } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    until(&runs, &id, |run| run.summary.samples >= Some(300)).await;
    let found = figures(&runs, &id, None, None).await;
    assert_eq!(found.window.kind, WindowKind::Steady);
    assert_eq!(found.ledger.unwrap().total.delivered, found.samples.unwrap());
    assert!(found.samples.unwrap() <= found.total.samples.delivered + 500);
    assert_eq!(found.failed_samples, 0);
    runs.stop(&id).await.unwrap();
    let stopped = figures(&runs, &id, Some(0.0), None).await;
    assert_eq!((stopped.state, stopped.samples), (RunState::Stopped, Some(stopped.total.samples.delivered)));
}
