//! Admission: runs that start, runs that wait, and documents that can never run.

use penstock_server::{ClientId, RunQuery, RunsError, Submission};
use penstock_types::run::RunState;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Kind, end_of, guest, open, refusal, stores, submission, submit, until, upload};

fn endless(name: &str, threads: u32) -> Value {
    json!({
        "name": name, "threads": threads, "buffer_mib": 16,
        "source": { "range": { "count": 1_000_000 } },
        "stages": [{ "sleep": { "mean_ms": 20 } }]
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_start_in_the_order_of_their_submission() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let first = submit(&runs, &endless("first", 3)).await.summary.id;
    until(&runs, &first, |run| run.summary.state == RunState::Running).await;
    let large = submit(&runs, &endless("large", 4)).await;
    assert_eq!(large.summary.state, RunState::Queued);
    assert_eq!(large.waiting.as_deref(), Some("not enough capacity: 4 threads needed, 1 of 4 free"));
    // The run would fit, but an earlier run comes first.
    let small = submit(&runs, &endless("small", 1)).await;
    assert_eq!(small.waiting.as_deref(), Some("1 earlier run of the same client is waiting"));
    let told = runs.validate(submission(&endless("other", 1)).document).await.unwrap();
    assert_eq!(told.would_wait.as_deref(), Some("2 earlier runs of the same client are waiting"));
    assert_eq!((runs.use_now().threads_used, runs.use_now().runs_queued), (3, 2));

    let stopped = runs.stop(&first).await.unwrap();
    assert_eq!(stopped.summary.state, RunState::Stopped);
    assert!(stopped.snapshot.unwrap().ledger.balanced);
    until(&runs, &large.summary.id, |run| run.summary.state == RunState::Running).await;
    assert_eq!(runs.detail(&small.summary.id).await.unwrap().summary.state, RunState::Queued);
    // A waiting run is stopped before it starts.
    let small = runs.stop(&small.summary.id).await.unwrap();
    assert_eq!((small.summary.state, small.summary.started_at), (RunState::Stopped, None));
    let again = runs.stop(&large.summary.id).await.unwrap();
    assert_eq!(again.summary.state, RunState::Stopped);
    assert_eq!(runs.use_now().threads_used, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_beyond_the_whole_budget_is_refused_with_the_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let faults = refusal(&runs, &endless("wide", 5)).await;
    assert_eq!(
        faults[0].to_string(),
        "/threads: the pipeline needs 5 worker threads, but the server has 4 for all runs together"
    );
    let mut large = endless("large", 1);
    large["buffer_mib"] = json!(5000);
    let faults = refusal(&runs, &large).await;
    assert_eq!(
        faults[0].to_string(),
        "/buffer_mib: the pipeline may use 5064 MiB of memory (5000 MiB for items between ops (`buffer_mib`) + 64 MiB for the run itself), but the server has 4096 MiB for all runs together"
    );
    let nothing =
        json!({ "source": { "range": { "count": 1 } }, "stages": [{ "wasm": { "module": "decode@2" } }] });
    let faults = refusal(&runs, &nothing).await;
    assert_eq!(
        faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["/stages/0/wasm/module: there is no module `decode@2`: known: none; upload the module first"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_fetches_assets_and_tasks_show_the_arithmetic() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let told = |faults: Vec<penstock_types::fault::SpecFault>| {
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let fetching = |concurrency: u32| {
        json!({
            "threads": 1, "buffer_mib": 64, "source": { "list": { "store": "in" } },
            "stages": [{ "fetch": { "concurrency": concurrency } }, { "sleep": { "mean_ms": 1, "concurrency": 100 } }]
        })
    };
    assert_eq!(
        told(refusal(&runs, &fetching(4_000)).await),
        [
            "/buffer_mib: the pipeline may use 4128 MiB of memory (4000 fetches at a time x 1 MiB + 64 MiB for items between ops (`buffer_mib`) + 64 MiB for the run itself), but the server has 4096 MiB for all runs together",
            "/stages: the `concurrency` of all 2 stages adds up to 4100, but this server allows at most 4096 (`limits.runs.concurrency`)"
        ]
    );
    let valid = runs.validate(submission(&fetching(32)).document).await.unwrap();
    assert_eq!(valid.memory_mib, 32 + 64 + 64);
    upload(&runs, &guest("guest-misbehaving")).await;
    std::fs::File::create(folder.path().join("large")).unwrap().set_len(300 << 20).unwrap();
    let document = json!({
        "threads": 1, "source": { "list": { "store": "in" } },
        "stages": [{ "wasm": { "module": "misbehaving", "assets": { "table": { "store": "in", "key": "large" } } } }]
    });
    assert_eq!(
        told(refusal(&runs, &document).await),
        [
            "/stages/0/wasm/assets: the assets of all stages have 300 MiB, but this server allows at most 256 MiB (`limits.runs.assets_mib`)"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_faults_are_reported_at_once_in_the_order_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let stages: Vec<Value> =
        (0..11).map(|number| json!({ "wasm": { "module": format!("m{number}") } })).collect();
    let document = json!({ "threads": 1024, "source": { "list": { "store": "nowhere" } }, "stages": stages });
    let faults = refusal(&runs, &document).await;
    let places: Vec<String> = faults.iter().map(|fault| fault.pointer.to_string()).collect();
    let mut wanted: Vec<String> = (0..11).map(|number| format!("/stages/{number}/wasm/module")).collect();
    // 11 modules on 1024 threads also need too much memory and too many instances.
    wanted.insert(10, "/stages/10/wasm/memory_mib".to_owned());
    wanted.splice(0..0, ["/source/list/store".to_owned(), "/stages".to_owned()]);
    wanted.push("/threads".to_owned());
    assert_eq!(places, wanted);
    assert!(faults.iter().all(|fault| !fault.message().contains("--store")), "{faults:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_waiting_runs_is_limited_in_total_and_per_client() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let first = submit(&runs, &endless("first", 4)).await.summary.id;
    until(&runs, &first, |run| run.summary.state == RunState::Running).await;
    for _ in 0..3 {
        submit(&runs, &endless("next", 4)).await;
    }
    let [other, third] = ["10.0.0.1", "10.0.0.2"].map(|name| runs.for_client(ClientId::new(name)));
    let refused = runs.submit(submission(&endless("late", 4))).await.unwrap_err();
    assert_eq!(
        (refused.kind(), &*refused.to_string()),
        (
            "quota",
            "`this server` has 3 waiting runs, which is the limit of one client now: 75 % of the places for waiting runs that other clients do not use, 4 of 4 (`limits.clients.share_percent`, `limits.runs.queued`); stop one, or try again when one has started"
        )
    );
    submit(&other, &endless("other", 4)).await;
    for late in [&runs, &other, &third] {
        match late.submit(submission(&endless("late", 4))).await {
            Err(RunsError::QueueFull { most: 4 }) => {}
            other => panic!("{other:?}"),
        }
    }
    let ended = runs.shutdown().await;
    assert_eq!((ended.stopped, ended.unfinished), (5, Vec::new()));
    assert_eq!(runs.submit(submission(&endless("x", 1))).await.unwrap_err().kind(), "closed");
    drop((runs, other, third));
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let kept = runs.list(RunQuery::default()).await.unwrap().items;
    assert_eq!(kept.iter().map(|run| run.state).collect::<Vec<_>>(), [RunState::Stopped; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_acknowledged_during_a_shutdown_are_ended_by_it() {
    let document = json!({ "threads": 4, "source": { "range": { "count": 1 } } });
    let mut count = 0;
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let runs = open(&folder.path().join("data"), stores(folder.path()));
        let mut submitting = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (runs, submission) = (runs.clone(), submission(&document));
            submitting.spawn(async move {
                let mut acknowledged = Vec::new();
                loop {
                    match runs.submit(submission.clone()).await {
                        Ok(submitted) => acknowledged.push(submitted.run.summary.id),
                        Err(RunsError::QueueFull { .. } | RunsError::Quota(_) | RunsError::Busy(_)) => {
                            tokio::task::yield_now().await;
                        }
                        Err(RunsError::Closed) => return acknowledged,
                        Err(other) => panic!("{other:?}"),
                    }
                }
            });
        }
        while runs.list(RunQuery::default()).await.unwrap().items.len() < 4 {}
        let ended = runs.shutdown().await;
        let acknowledged = submitting.join_all().await.concat();
        count += acknowledged.len();
        drop(runs);
        let runs = open(&folder.path().join("data"), stores(folder.path()));
        for id in acknowledged.iter().filter(|id| !ended.unfinished.contains(id)) {
            let state = runs.detail(id).await.unwrap().summary.state;
            assert!(matches!(state, RunState::Completed | RunState::Stopped), "{id}: {state:?}");
        }
        runs.shutdown().await;
    }
    assert!(count > 0, "no run was acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_for_one_run_however_often_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 3 } } });
    let keyed =
        |document: &Value| Submission { idempotency_key: Some("k-1".to_owned()), ..submission(document) };
    let mut sent = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (runs, submission) = (runs.clone(), keyed(&document));
        sent.spawn(async move { runs.submit(submission).await.unwrap() });
    }
    let answers = sent.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_new).count(), 1);
    let id = &answers[0].run.summary.id;
    assert!(answers.iter().all(|answer| answer.run.summary.id == *id));
    end_of(&runs, id).await;
    let other = json!({ "threads": 1, "source": { "range": { "count": 4 } } });
    assert_eq!(runs.submit(keyed(&other)).await.unwrap_err().kind(), "key-reused");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_one_token_are_not_those_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 3 } } });
    let keyed = || Submission { idempotency_key: Some("nightly".to_owned()), ..submission(&document) };
    let sent = async |token: &str| runs.for_token(&token.into(), false).submit(keyed()).await.unwrap();
    let first = sent("ci").await;
    let other = sent("ci-2").await;
    assert!(first.is_new && other.is_new);
    for (token, run) in [("ci", &first.run), ("ci-2", &other.run)] {
        let again = sent(token).await;
        assert_eq!((again.is_new, &again.run.summary.id), (false, &run.summary.id), "{token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_an_earlier_version_stay_valid_for_their_day() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let document = json!({ "threads": 1, "source": { "range": { "count": 3 } } });
    let keyed = || Submission { idempotency_key: Some("nightly".to_owned()), ..submission(&document) };
    let runs = open(&data, stores(folder.path()));
    let id = runs.submit(keyed()).await.unwrap().run.summary.id;
    runs.shutdown().await;
    drop(runs);
    // Earlier versions stored keys without their tokens.
    let file = rusqlite::Connection::open(data.join("penstock.sqlite")).unwrap();
    assert_eq!(file.execute("UPDATE runs SET key = 'nightly' WHERE key IS NOT NULL", []).unwrap(), 1);
    let runs = open(&data, stores(folder.path()));
    let again = runs.for_token(&"ci".into(), false).submit(keyed()).await.unwrap();
    assert_eq!((again.is_new, again.run.summary.id), (false, id));
    file.execute("UPDATE runs SET submitted_at = '2020-01-01T00:00:00.000Z'", []).unwrap();
    let own = runs.for_token(&"ci".into(), false).submit(keyed()).await.unwrap();
    let other = runs.for_token(&"other".into(), false).submit(keyed()).await.unwrap();
    assert!(own.is_new && other.is_new);
    assert!(!runs.for_token(&"ci".into(), false).submit(keyed()).await.unwrap().is_new);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_just_submitted_can_be_stopped_but_not_deleted_while_it_is_live() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    for number in 0..60 {
        let mut submitting = JoinSet::new();
        submitting.spawn({
            let (runs, submission) = (runs.clone(), submission(&endless("race", 4)));
            async move { runs.submit(submission).await.unwrap().run.summary.id }
        });
        // The id is read from the list, where clients see it before the submission returns.
        let id = loop {
            let listed = runs.list(RunQuery::default()).await.unwrap().items;
            match listed.first().filter(|run| !run.state.is_over()) {
                Some(run) => break run.id.clone(),
                None => tokio::task::yield_now().await,
            }
        };
        if number % 2 == 0 {
            assert_eq!(runs.delete(&id).await.unwrap_err().kind(), "conflict");
        }
        assert_eq!(runs.stop(&id).await.unwrap().summary.state, RunState::Stopped);
        assert_eq!(submitting.join_next().await.unwrap().unwrap(), id);
        assert_eq!((runs.use_now().threads_used, runs.use_now().runs_alive), (0, 0));
        runs.delete(&id).await.unwrap();
    }
}
