//! The stored figures of a run agree with the figures of the run itself.

use penstock_server::{ErrorQuery, RunQuery, RunSort, SeriesQuery, WindowQuery};
use penstock_types::run::{FailureClass, RunState};
use penstock_types::series::Metric;
use serde_json::json;

use crate::support::{Kind, PATIENCE, end_of, open, stores, submission, submit, until};

#[tokio::test(flavor = "multi_thread")]
async fn series_windows_errors_and_times_add_up_to_the_runs_own_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({
        "name": "sums", "threads": 2, "interval_s": 0.4, "max_failures": null,
        "source": { "range": { "count": 700 } },
        "stages": [
            { "sleep": { "mean_ms": 2, "concurrency": 2, "fail_rate": 0.1, "jitter": 0.5 } },
            { "aggregate": { "size": 4 } },
        ],
        "consumer": { "simulate": { "step_ms": 3 } }
    });
    let id = submit(&runs, &document).await.summary.id;
    let run = end_of(&runs, &id).await;
    assert_eq!(run.summary.state, RunState::Completed, "{run:?}");
    let snapshot = run.snapshot.unwrap();
    assert!(snapshot.ledger.balanced);
    assert_eq!(run.summary.samples, Some(snapshot.ledger.total.delivered));
    assert_eq!((run.history, run.errors_left_out), (None, 0));

    // A single bucket covers the whole run.
    let whole = runs.series(&id, SeriesQuery { points: Some(1), ..SeriesQuery::default() }).await.unwrap();
    assert_eq!(whole.t_s.len(), 1);
    // A range beyond the end of the run adds no buckets.
    let far = SeriesQuery { points: Some(5_000), to_s: Some(3.9e9), ..SeriesQuery::default() };
    assert_eq!(runs.series(&id, far).await.unwrap().t_s.len(), 1);
    let far = WindowQuery { to_s: Some(3.9e9), every_s: Some(0.25), ..WindowQuery::default() };
    assert!(runs.windows(&id, far).await.unwrap().len() < 1_000);
    let value = |id: &str, metric: Metric| {
        let column = whole.columns.iter().find(|column| column.id == id && column.metric == metric);
        column.unwrap().mean[0]
    };
    for queue in &snapshot.queues {
        assert_eq!(value(&queue.id, Metric::Readiness), queue.figures.readiness, "{}", queue.id);
        let (kept, own) = (value(&queue.id, Metric::AvePutTimeS), queue.figures.ave_put_time_s);
        assert!((kept.unwrap() - own.unwrap()).abs() < 1e-9, "{}: {kept:?} {own:?}", queue.id);
    }
    for stage in &snapshot.stages {
        let busy = value(&stage.id, Metric::Busy).unwrap();
        let slots = f64::from(stage.concurrency) * stage.task.elapsed_s;
        assert!((busy - stage.task.busy_s / slots).abs() < 1e-9, "{}: {busy}", stage.id);
    }

    // Windows of any width have the same totals, and follow each other without gaps.
    for every_s in [0.25, 0.5, 3.0] {
        let query = WindowQuery { every_s: Some(every_s), ..WindowQuery::default() };
        let windows = runs.windows(&id, query).await.unwrap();
        assert!(windows.is_sorted_by(|one, next| one.t1_s <= next.t0_s));
        for (place, stage) in snapshot.stages.iter().enumerate() {
            let tasks = |window: &penstock_types::run::Window| window.stages[place].task.num_tasks;
            assert_eq!(windows.iter().map(tasks).sum::<u64>(), stage.task.num_tasks);
        }
        for (place, queue) in snapshot.queues.iter().enumerate() {
            let items = |window: &penstock_types::run::Window| window.queues[place].figures.num_items;
            assert_eq!(windows.iter().map(items).sum::<u64>(), queue.figures.num_items);
        }
    }

    let task = &snapshot.stages[0].task;
    let times = runs.times(&id, &snapshot.stages[0].id).await.unwrap();
    let counted: u64 = times.buckets.iter().map(|bucket| bucket.count).sum();
    assert_eq!(counted, task.num_tasks - task.num_failures);
    assert_eq!((times.p50_s, times.p99_s), (task.p50_time_s, task.p99_time_s));

    let mut cursor = None;
    let mut errors = Vec::new();
    loop {
        let query = ErrorQuery { cursor, limit: Some(20), ..ErrorQuery::default() };
        let page = runs.errors(&id, query).await.unwrap();
        errors.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(errors.len() as u64, task.failed_samples);
    assert!(errors.is_sorted_by(|one, next| one.number < next.number));
    assert!(errors.iter().all(|error| error.at_s <= snapshot.elapsed_s));
    let storage = ErrorQuery { class: Some(FailureClass::Storage), ..ErrorQuery::default() };
    assert_eq!(runs.errors(&id, storage).await.unwrap().items, []);

    let counts = runs.counts().await.unwrap();
    assert_eq!(counts.runs[&RunState::Completed], 1);
    assert_eq!(counts.samples, snapshot.ledger.total.delivered);
    assert_eq!(counts.failures.values().sum::<u64>(), task.failed_samples);

    // The figures are the same after the next start, read from the file alone.
    let before = runs.series(&id, SeriesQuery::default()).await.unwrap();
    runs.shutdown().await;
    drop(runs);
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    assert_eq!(runs.detail(&id).await.unwrap().snapshot.unwrap(), snapshot);
    let after = runs.series(&id, SeriesQuery::default()).await.unwrap();
    assert_eq!((after.columns, after.t_s), (before.columns, before.t_s));
    assert_eq!(runs.times(&id, &snapshot.stages[0].id).await.unwrap(), times);
    let summary = runs.list(RunQuery::default()).await.unwrap().items.remove(0);
    assert_eq!(summary, run.summary);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_runs_are_stable_while_runs_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = |name: &str| json!({ "name": name, "threads": 1, "source": { "range": { "count": 1 } } });
    for number in 0..5 {
        let id = submit(&runs, &document(&format!("r{number}"))).await.summary.id;
        end_of(&runs, &id).await;
    }
    let sorts = [
        "-submitted_at",
        "submitted_at",
        "name",
        "-name",
        "-elapsed_s",
        "qps",
        "readiness",
        "state",
        "samples",
        "samples_per_s",
        "-samples_per_s",
        "-verdict",
        "modules",
    ];
    for sort in sorts {
        let sort = RunSort::parse(sort).unwrap();
        let mut seen = Vec::new();
        let mut cursor = None;
        let mut pages = 0;
        loop {
            let query = RunQuery { sort, cursor, limit: Some(2), ..RunQuery::default() };
            let page = runs.list(query).await.unwrap();
            seen.extend(page.items.into_iter().map(|run| run.id));
            pages += 1;
            if pages == 1 {
                let id = submit(&runs, &document("later")).await.summary.id;
                end_of(&runs, &id).await;
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "{sort:?} listed a run twice");
        assert!(count >= 5, "{sort:?} left out runs");
    }
    let named = RunQuery { text: Some("r_".to_owned()), ..RunQuery::default() };
    assert_eq!(runs.list(named).await.unwrap().items, [], "the text is not a pattern");
    let wrong = RunQuery { cursor: Some("x".to_owned()), ..RunQuery::default() };
    assert_eq!(runs.list(wrong).await.unwrap_err().kind(), "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_live_runs_is_filtered_and_sorted_by_current_figures() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = |ms: u32| {
        json!({
            "threads": 1, "source": { "range": { "count": 1_000_000 } }, "stages": [{ "sleep": { "mean_ms": ms } }]
        })
    };
    let slow = submit(&runs, &document(50)).await.summary.id;
    until(&runs, &slow, |run| run.summary.samples > Some(0)).await;
    let fast = submit(&runs, &document(1)).await.summary.id;
    // `fast` has more samples than `slow` now, but the stored figures may still have the opposite order.
    until(&runs, &fast, |run| run.summary.samples > Some(500)).await;
    let listed = async |states: Vec<RunState>| {
        let sort = RunSort::parse("-samples").unwrap();
        runs.list(RunQuery { sort, states, ..RunQuery::default() }).await.unwrap().items
    };
    assert_eq!(listed(vec![RunState::Queued]).await, []);
    for _ in 0..20 {
        let samples: Vec<_> = listed(Vec::new()).await.into_iter().map(|run| run.samples).collect();
        assert!(samples.len() == 2 && samples[0] >= samples[1], "{samples:?}");
    }
    let alive = async {
        while listed(vec![RunState::Running]).await.len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, alive).await.expect("a state is written when it changes");
    runs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_runs_the_same_document_and_a_removed_run_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({ "name": "a", "threads": 1, "source": { "range": { "count": 9 } } });
    let first = submit(&runs, &document).await.summary.id;
    end_of(&runs, &first).await;
    let second = runs.clone_run(&first).await.unwrap();
    assert_eq!(second.cloned_from.as_deref(), Some(&*first));
    assert_eq!(runs.spec(&second.summary.id).await.unwrap().document, document);
    assert_eq!(end_of(&runs, &second.summary.id).await.summary.samples, Some(9));
    runs.delete(&first).await.unwrap();
    for kind in [
        runs.detail(&first).await.unwrap_err().kind(),
        runs.series(&first, SeriesQuery::default()).await.unwrap_err().kind(),
        runs.delete(&first).await.unwrap_err().kind(),
    ] {
        assert_eq!(kind, "not-found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_as_completed_after_its_requested_time() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({
        "threads": 1, "source": { "range": { "count": 1_000_000 } },
        "stages": [{ "sleep": { "mean_ms": 5 } }]
    });
    let timed = penstock_server::Submission { for_s: Some(0.5), ..submission(&document) };
    let id = runs.submit(timed).await.unwrap().run.summary.id;
    let run = end_of(&runs, &id).await;
    assert_eq!(run.summary.state, RunState::Completed);
    assert!(run.summary.elapsed_s.unwrap() >= 0.5);
}
