//! Verdicts of the real binary: a pipeline for every kind of limit, with margins for a busy machine.

use std::time::Duration;

use penstock_s3_server::{Latency, Server, Settings};
use penstock_tests::{Call, Folder, Serving};
use penstock_types::run::RunSnapshot;
use penstock_types::spec::{read_value, set};
use penstock_types::verdict::{Answer, Verdict, VerdictKind};
use serde_json::{Value, json};

use crate::timed;

/// Runs `items` samples through `stages` and `consumer`; returns the last snapshot.
fn run(items: u64, stages: Value, consumer: Value) -> RunSnapshot {
    of(&document(items, stages, consumer))
}

fn document(items: u64, stages: Value, consumer: Value) -> Value {
    json!({ "source": { "range": { "count": items } }, "stages": stages, "consumer": consumer, "threads": 2 })
}

fn of(document: &Value) -> RunSnapshot {
    ended(document, 0)
}

/// Runs a document, which must end with this exit code; returns the last snapshot.
fn ended(document: &Value, code: i32) -> RunSnapshot {
    let folder = Folder::new();
    let out = folder.join("out");
    Call::run(&folder.document(document)).out(&out).finish().exits(code).checked_snapshot()
}

fn sleep(name: &str, mean_ms: u32, concurrency: u32) -> Value {
    json!({ "sleep": { "name": name, "mean_ms": mean_ms, "concurrency": concurrency } })
}

fn step(step_ms: u32) -> Value {
    json!({ "simulate": { "step_ms": step_ms } })
}

fn verdict(snapshot: &RunSnapshot) -> &Verdict {
    snapshot.verdict.as_ref().expect("every run has one")
}

fn found(snapshot: &RunSnapshot) -> (VerdictKind, Option<&str>, Answer) {
    let verdict = verdict(snapshot);
    (verdict.kind, verdict.stage.as_deref(), verdict.answer)
}

#[test]
fn a_consumer_that_is_slower_than_loading_is_the_limit() {
    timed(|| {
        let snapshot = run(60, json!([sleep("load", 5, 4)]), step(25));
        assert_eq!(found(&snapshot), (VerdictKind::Consumer, None, Answer::No));
        let last = snapshot.verdicts.last().unwrap();
        assert_eq!(last.kind, VerdictKind::Consumer);
        assert!((last.to_s - snapshot.elapsed_s).abs() < 0.001, "{last:?}");
        // The stage works 5 ms for every 25 ms of the consumer, so one of its four slots is enough.
        let least = serde_json::to_value(&verdict(&snapshot).advice[1].set).unwrap();
        assert_eq!(least, json!([{ "pointer": "/stages/0/sleep/concurrency", "value": 1 }]));
    });
}

#[test]
fn the_slowest_stage_is_named_at_any_position_and_the_advice_removes_the_limit() {
    timed(|| {
        let (fast, slow) = (sleep("fast", 2, 1), sleep("slow", 50, 1));
        for (stages, id) in [(json!([fast, slow]), "2:slow"), (json!([slow, fast]), "1:slow")] {
            let mut document = document(40, stages, step(20));
            let snapshot = of(&document);
            assert_eq!(found(&snapshot), (VerdictKind::Stage, Some(id), Answer::Yes));
            for setting in &verdict(&snapshot).advice[0].set {
                set(&mut document, setting.pointer.as_str(), setting.value.clone()).unwrap();
            }
            read_value::<penstock_types::spec::Spec>(document.clone()).expect("advice fits the document");
            assert_eq!(found(&of(&document)), (VerdictKind::Consumer, None, Answer::No), "{document}");
        }
    });
}

#[test]
fn an_aggregate_that_collects_in_bursts_is_not_the_limit() {
    timed(|| {
        // In both runs the aggregate waits for part of the time, but in the first run its batches are always ready in time.
        let stages = |mean_ms| json!([sleep("load", mean_ms, 1), { "aggregate": { "size": 4 } }]);
        let snapshot = run(160, stages(5), step(50));
        let starved = snapshot.queues[1].figures.starved.unwrap();
        assert!(starved > 0.05, "the aggregate collects in bursts: {starved}");
        assert_eq!(found(&snapshot), (VerdictKind::Consumer, None, Answer::No));
        assert_eq!(found(&run(80, stages(20), step(30))), (VerdictKind::Stage, Some("1:load"), Answer::Yes));
    });
}

#[test]
fn tasks_that_wait_for_a_thread_are_distinguished_from_tasks_that_work() {
    timed(|| {
        let stage = json!({ "sleep": { "name": "decode", "mean_ms": 30, "concurrency": 8, "on": "thread" } });
        let snapshot = run(100, json!([stage]), step(5));
        assert_eq!(found(&snapshot), (VerdictKind::Threads, Some("1:decode"), Answer::Yes));
        let set = &verdict(&snapshot).advice[0].set;
        assert_eq!(set[0].pointer.as_str(), "/threads");
        assert!(set[0].value.as_u64() > Some(2), "{set:?}");
    });
}

#[test]
fn bursts_that_exceed_short_queues_are_distinguished_from_a_slow_stage() {
    timed(|| {
        // Each stage could process 83 items/s, more than the 59 of the consumer, but adjacent stages block each other.
        let bursty = |number: u32| json!({ "sleep": { "name": format!("s{number}"), "mean_ms": 12, "shape": "exponential", "queue": 1 } });
        let mut document = document(250, (0..5).map(bursty).collect(), step(17));
        document["sink"] = json!({ "queue": 1 });
        let snapshot = of(&document);
        let verdict = verdict(&snapshot);
        assert_eq!((verdict.kind, verdict.answer), (VerdictKind::Variance, Answer::No), "{verdict:?}");
        let set = &verdict.advice[0].set;
        assert!(set.iter().any(|setting| setting.pointer.as_str() == "/sink/queue"), "{set:?}");
    });
}

#[test]
fn failing_samples_are_distinguished_from_slow_loading() {
    timed(|| {
        let stage = json!({ "sleep": { "name": "decode", "mean_ms": 10, "fail_rate": 0.7 } });
        let mut unlimited = document(150, json!([stage]), step(15));
        unlimited["max_failures"] = Value::Null;
        let snapshot = ended(&unlimited, 0);
        assert_eq!(found(&snapshot), (VerdictKind::Failures, Some("1:decode"), Answer::Yes));
        let stage = json!({ "sleep": { "name": "decode", "mean_ms": 10, "fail_rate": 1.0 } });
        let snapshot = ended(&document(50, json!([stage]), step(15)), 1);
        assert_eq!(found(&snapshot), (VerdictKind::Failures, Some("1:decode"), Answer::Yes));
        assert_eq!(snapshot.ledger.total.delivered, 0);
    });
}

#[test]
fn without_a_consumer_the_rate_of_loading_is_reported() {
    timed(|| {
        let snapshot = run(60, json!([sleep("fast", 5, 2), sleep("slow", 30, 1)]), json!({ "discard": {} }));
        assert_eq!(found(&snapshot), (VerdictKind::Stage, Some("2:slow"), Answer::Yes));
        assert!(
            verdict(&snapshot)
                .sentence
                .starts_with("Data loading is all that is measured: stage `2:slow` lets ")
        );
    });
}

#[test]
fn a_run_of_too_few_items_has_no_verdict() {
    timed(|| {
        let snapshot = run(3, json!([sleep("load", 5, 1)]), step(5));
        assert_eq!(found(&snapshot), (VerdictKind::TooLittle, None, Answer::Unknown));
        assert_eq!(verdict(&snapshot).sentence, "Too few samples were delivered for a verdict: 3.");
        assert_eq!(verdict(&run(0, json!([]), step(5))).sentence, "Nothing was delivered.");
    });
}

/// A server with objects that take 40 ms each, as in a remote bucket, and a document that reads them.
fn far_away(keys: u32) -> (Server, Value) {
    let latency = Latency { usual: Duration::from_millis(40), ..Latency::default() };
    let server =
        Server::start(Settings { bucket: "far".to_owned(), latency, ..Settings::default() }).unwrap();
    (0..keys).for_each(|key| server.put(&format!("{key:03}.txt"), "text"));
    let dataset = json!({
        "aws_access_key_id": "penstock-test",
        "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "far",
        "endpoint_url": server.endpoint()
    });
    (server, dataset)
}

#[test]
fn slow_objects_are_reported_as_storage_and_more_concurrent_reads_remove_the_limit() {
    timed(|| {
        let (_server, dataset) = far_away(60);
        let folder = Folder::new();
        let file = folder.write("dataset.json", dataset.to_string());
        let read = |concurrency: u64| {
            let document = json!({
                "source": { "list": { "store": "far" } },
                "stages": [{ "fetch": { "concurrency": concurrency } }, sleep("load", 2, 1)],
                "consumer": step(20),
            });
            Call::run(&folder.document(&document))
                .store("far", &file)
                .json()
                .finish()
                .exits(0)
                .checked_snapshot()
        };
        let snapshot = read(1);
        assert_eq!(found(&snapshot), (VerdictKind::Storage, Some("1:fetch"), Answer::Yes));
        let setting = &verdict(&snapshot).advice[0].set[0];
        assert_eq!(setting.pointer.as_str(), "/stages/0/fetch/concurrency");
        assert_eq!(
            found(&read(setting.value.as_u64().unwrap() + 1)),
            (VerdictKind::Consumer, None, Answer::No)
        );
    });
}

#[test]
fn the_report_begins_with_the_sentence_and_ends_with_the_answer() {
    timed(|| {
        let folder = Folder::new();
        let document = document(40, json!([sleep("load", 40, 1)]), step(20));
        let call = Call::run(&folder.document(&document)).out(&folder.join("out"));
        let finished = call.finish().exits(0);
        let snapshot = finished.checked_snapshot();
        let sentence = &verdict(&snapshot).sentence;
        assert!(finished.stdout.starts_with(&format!("{sentence}\n")), "{}", finished.stdout);
        assert!(
            finished
                .stdout
                .trim_end()
                .ends_with("Is data loading the bottleneck? yes: the consumer waits for data.")
        );
        assert!(finished.stdout.contains(" --set /stages/0/sleep/concurrency="), "{}", finished.stdout);
    });
}

#[test]
fn the_api_returns_the_same_verdict_during_and_after_the_run() {
    timed(|| {
        let served = Serving::default().start();
        let id = served.submit(&document(200, json!([sleep("load", 20, 1)]), step(5)));
        let detail = served.until(&id, |detail| detail["snapshot"]["verdicts"][1]["kind"] == "stage");
        assert_eq!(detail["snapshot"]["verdicts"][0]["kind"], "too_little");
        let snapshot = &served.over(&id)["snapshot"];
        assert_eq!(
            (&snapshot["verdict"]["stage"], &snapshot["verdict"]["answer"]),
            (&json!("1:load"), &json!("yes"))
        );
        let last = snapshot["verdicts"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["kind"], &last["stage"]), (&json!("stage"), &json!("1:load")));
    });
}
