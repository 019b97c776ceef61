//! Shares of clients, and time limits of runs.

use std::time::Duration;

use penstock_server::{ClientId, Runs, TryRequest};
use penstock_types::config::TimeSpan;
use penstock_types::run::RunState;
use serde_json::{Value, json};

use crate::support::{Kind, end_of, guest, open, open_with, stores, submission, submit, until, upload};

fn endless(threads: u32) -> Value {
    json!({
        "threads": threads, "buffer_mib": 16,
        "source": { "range": { "count": 1_000_000_000 } },
        "stages": [{ "sleep": { "mean_ms": 20 } }]
    })
}

fn span(text: &str) -> TimeSpan {
    TimeSpan::new(text).unwrap()
}

/// Returns the numbers of active and of waiting runs of a client.
fn runs_of(runs: &Runs, client: &str) -> (u64, u64) {
    let clients = runs.clients();
    let found = clients.iter().find(|found| found.client == client);
    found.map_or((0, 0), |found| (found.runs_alive, found.runs_queued))
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_runs_of_one_client_leave_room_for_runs_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let [many, other] = ["many", "other"].map(|name| runs.for_client(ClientId::new(name)));
    let mut accepted = Vec::new();
    let refused = loop {
        match many.submit(submission(&endless(1))).await {
            Ok(submitted) => accepted.push(submitted.run.summary.id),
            Err(error) => break error.kind(),
        }
    };
    // The client uses three of four threads, and has three of four waiting runs.
    assert_eq!((refused, accepted.len(), runs_of(&runs, "many")), ("quota", 6, (3, 3)));
    let told = runs.detail(&accepted[3]).await.unwrap().waiting.unwrap();
    assert_eq!(
        told,
        "with this run, the client would hold 4 of 4 threads; one client may hold only a share of the capacity that other clients do not use (`limits.clients.share_percent`)"
    );
    assert_eq!(other.validate(submission(&endless(1)).document).await.unwrap().would_wait, None);
    let own = submit(&other, &endless(1)).await.summary.id;
    until(&runs, &own, |run| run.summary.state == RunState::Running).await;
    // Once the second of these runs has ended, `many` may start a waiting run; once the third has ended, `other` may start one.
    let second = submit(&other, &endless(1)).await.summary.id;
    for id in &accepted[..3] {
        runs.stop(id).await.unwrap();
    }
    until(&runs, &second, |run| run.summary.state == RunState::Running).await;
    assert_eq!((runs_of(&runs, "many"), runs_of(&runs, "other")), ((1, 2), (2, 0)));
    assert_eq!(runs.use_now().threads_used, 3);
    for id in accepted.iter().chain([&own, &second]) {
        runs.stop(id).await.unwrap();
    }
    assert_eq!((runs.clients(), runs.use_now().threads_used), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_at_most_the_configured_number_of_runs() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.clients.runs = Some(2.try_into().unwrap());
    });
    let first = submit(&runs, &endless(1)).await.summary.id;
    submit(&runs, &endless(4)).await;
    let refused = runs.submit(submission(&endless(1))).await.unwrap_err();
    assert_eq!(
        (refused.kind(), &*refused.to_string()),
        (
            "quota",
            "`this server` has 2 waiting or active runs, which is the limit of one client (`limits.clients.runs`); stop one, or try again when one has ended"
        )
    );
    let other = runs.for_client(ClientId::new("other"));
    submit(&other, &endless(1)).await;
    runs.stop(&first).await.unwrap();
    submit(&runs, &endless(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_beyond_its_time_limit_fails_and_its_ledger_balances() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.bounds.max_time = Some(span("500ms"));
    });
    let id = submit(&runs, &endless(1)).await.summary.id;
    let run = end_of(&runs, &id).await;
    let told = "the run took longer than 500ms, which is the limit (`limits.runs.max_time`)";
    assert_eq!((run.summary.state, run.summary.error.as_deref()), (RunState::Failed, Some(told)));
    let snapshot = run.snapshot.unwrap();
    assert!(snapshot.ledger.balanced && snapshot.elapsed_s < 30.0, "{snapshot:?}");
    assert_eq!(snapshot.error.as_deref(), Some(told));
    // A run with a shorter `for_s` ends as completed.
    let mut short = submission(&endless(1));
    short.for_s = Some(0.05);
    let id = runs.submit(short).await.unwrap().run.summary.id;
    assert_eq!(end_of(&runs, &id).await.summary.state, RunState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_beyond_the_limit_fails_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.bounds.max_wait = span("700ms");
    });
    let first = submit(&runs, &endless(3)).await.summary.id;
    let late = submit(&runs, &endless(4)).await.summary.id;
    let run = end_of(&runs, &late).await;
    let told = "the run waited 700ms for its start, which is the limit (`limits.runs.max_wait`)";
    assert_eq!((run.summary.state, run.summary.error.as_deref()), (RunState::Failed, Some(told)));
    assert_eq!((run.summary.started_at, run.snapshot), (None, None));
    assert_eq!(runs.detail(&first).await.unwrap().summary.state, RunState::Running);
    // The failed run does not count as waiting any more.
    assert_eq!((runs.use_now().runs_alive, runs.use_now().runs_queued), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_tries_modules_leaves_a_place_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open_with(&folder.path().join("data"), stores(folder.path()), |settings| {
        settings.trial_time = Duration::from_secs(600);
    });
    upload(&runs, &guest("guest-misbehaving")).await;
    let request = |how: &str| {
        let request = json!({ "params": { "how": how }, "samples": [{ "key": "a" }], "deadline_ms": 10_000 });
        serde_json::from_value::<TryRequest>(request).unwrap()
    };
    let mut tried = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (runs, request) = (runs.for_client(ClientId::new("one")), request("loop"));
        tried.spawn(async move { runs.try_module("misbehaving", "1", request).await });
    }
    // Two trials can run at a time; the second permit is kept for other clients.
    runs.for_client(ClientId::new("other")).try_module("misbehaving", "1", request("good")).await.unwrap();
    tried.shutdown().await;
}
