//! Routes: what a user sees of a pipeline whose samples take different paths.

use penstock_tests::{Call, Folder};
use penstock_types::run::{RunSnapshot, RunState};
use serde_json::{Value, json};

/// Records of three kinds: every third one is `a`, `b`, or has no path.
fn records(folder: &Folder, count: u64) {
    let line = |key: u64| {
        let kind = ["a", "b", "c"][(key % 3) as usize];
        format!("{}\n", json!({ "key": key.to_string(), "kind": kind, "level": key % 2 }))
    };
    folder.write("records.ndjson", (0..count).map(line).collect::<String>());
}

/// A route with a nested route; samples of the kind `c` take the path `otherwise`, if there is one.
fn document(order: &str, otherwise: Option<Value>, on_error: &str) -> Value {
    let mut route = json!({
        "by": { "field": "kind" }, "order": order, "on_error": on_error, "queue": 1,
        "paths": {
            "a": [
                { "sleep": { "mean_ms": 1, "jitter": 0.9, "concurrency": 4, "name": "work" } },
                { "route": { "by": { "field": "level" }, "paths": { "0": [{ "sleep": { "mean_ms": 1, "on": "thread" } }] }, "else": [] } }
            ],
            "b": []
        }
    });
    if let Some(otherwise) = otherwise {
        route["else"] = otherwise;
    }
    json!({
        "name": "routed", "threads": 2, "max_failures": null,
        "source": { "records": { "store": "here", "key": "records.ndjson", "epochs": 2 } },
        "stages": [{ "route": route }]
    })
}

fn run(folder: &Folder, document: &Value) -> Call {
    Call::run(&folder.document(document)).store("here", folder.path()).json()
}

/// Samples that each node took, by its id.
fn taken(snapshot: &RunSnapshot) -> Vec<(&str, u64)> {
    snapshot.ledger.stages.iter().map(|book| (book.id.as_str(), book.taken)).collect()
}

#[test]
fn each_path_of_a_route_has_its_own_part_of_the_ledger_and_of_the_figures() {
    let folder = Folder::new();
    records(&folder, 90);
    for order in ["completion", "input"] {
        let snapshot = run(&folder, &document(order, Some(json!([])), "skip")).finish().exits(0).snapshot();
        assert_eq!(snapshot.state, RunState::Completed);
        assert!(snapshot.ledger.balanced, "{:#?}", snapshot.ledger);
        let expected = [
            ("0:src", 0),
            ("1:route/a", 60),
            ("1:route/a/1:work", 60),
            ("1:route/a/2:route/0", 30),
            ("1:route/a/2:route/0/1:sleep", 30),
            ("1:route/a/2:route/else", 30),
            ("1:route/a/2:route", 60),
            ("1:route/b", 60),
            ("1:route/else", 60),
            ("1:route", 180),
            ("2:sink", 180),
        ];
        assert_eq!(taken(&snapshot), expected, "{order}");
        assert_eq!(snapshot.ledger.total.delivered, 180);
        let tasks: Vec<u64> = snapshot.stages.iter().map(|stage| stage.task.num_tasks).collect();
        assert_eq!(tasks, [60, 60, 30, 30, 30, 60, 60, 60, 180]);
        assert_eq!(snapshot.queues.len(), snapshot.stages.len() + 2);
    }
}

#[test]
fn samples_without_a_path_fail_by_the_policy_of_the_route() {
    let folder = Folder::new();
    records(&folder, 90);
    let skipped = run(&folder, &document("input", None, "skip")).finish().exits(0).snapshot();
    let book = skipped.ledger.stages.iter().find(|book| book.id == "1:route").unwrap();
    assert_eq!((book.taken, book.out, book.skipped), (180, 120, 60));
    assert_eq!(skipped.failures.len(), 1);
    let group = &skipped.failures[0];
    assert_eq!((group.stage.as_str(), group.count), ("1:route", 60));
    assert_eq!(group.message, "the field `kind` is `c`, which no path has as its name");
    let kept =
        run(&folder, &document("completion", None, "dead_letter")).out(&folder.join("out")).finish().exits(0);
    assert_eq!(kept.snapshot().ledger.total.dead_lettered, 60);
    let replay = Call::new(&["replay"]).argument(folder.join("out")).finish();
    assert!(format!("{}{}", replay.stdout, replay.stderr).contains("had no path in `1:route`"), "{replay:?}");
    let failed = run(&folder, &document("completion", None, "fail")).finish().exits(1).snapshot();
    assert_eq!(failed.state, RunState::Failed);
    let error = failed.error.unwrap_or_default();
    assert!(error.starts_with("stage `1:route`, whose `on_error` is `fail`: sample `2` failed"), "{error}");
    assert!(failed.ledger.balanced);
}

#[test]
fn a_check_draws_the_paths_of_a_route() {
    let folder = Folder::new();
    records(&folder, 3);
    let path = folder.document(&document("input", Some(json!([])), "skip"));
    let checked = Call::check(&path).store("here", folder.path()).finish().exits(0).stdout;
    let chain = "can run: [0:src] -> {a: [1:route/a/1:work[4]] -> {0: [1:route/a/2:route/0/1:sleep] | else: -} -> [1:route/a/2:route] \
                 | b: - | else: -} -> [1:route] -> [2:sink]";
    assert!(checked.contains(chain), "{checked}");
}

#[test]
fn a_prediction_needs_the_shares_of_a_recorded_run() {
    let folder = Folder::new();
    records(&folder, 90);
    let path = folder.document(&document("completion", Some(json!([])), "skip"));
    let predict = || Call::new(&["predict"]).argument(&path).store("here", folder.path());
    let unknown = predict().finish().exits(2).stderr;
    assert!(unknown.contains("the share of the samples in each path of `1:route` is unknown"), "{unknown}");
    run(&folder, &document("completion", Some(json!([])), "skip")).out(&folder.join("out")).finish().exits(0);
    let predicted = predict().argument("--from").argument(folder.join("out")).json().finish().exits(0).stdout;
    let predicted: Value = serde_json::from_str(&predicted).unwrap();
    let tasks = |id: &str| {
        let stage = predicted["stages"].as_array().unwrap().iter().find(|stage| stage["id"] == id).unwrap();
        stage["task"]["num_tasks"].as_f64().unwrap()
    };
    let share = tasks("1:route/a") / tasks("1:route");
    assert!((share - 1.0 / 3.0).abs() < 0.03, "{share}");
}

#[test]
fn the_report_warns_of_a_mixture_whose_shares_the_stages_change() {
    let folder = Folder::new();
    let source = |kind: &str, weight: u32| {
        let lines =
            (0..60 * weight).map(|key| format!("{}\n", json!({ "key": key.to_string(), "kind": kind })));
        folder.write(&format!("{kind}.ndjson"), lines.collect::<String>());
        json!({ "source": { "records": { "store": "here", "key": format!("{kind}.ndjson") } }, "weight": weight })
    };
    let document = |otherwise: bool| {
        let mut route = json!({ "by": { "field": "kind" }, "paths": { "a": [] }, "on_error": "skip" });
        if otherwise {
            route["else"] = json!([]);
        }
        json!({
            "max_failures": null, "stages": [{ "route": route }],
            "source": { "mix": { "sources": { "a": source("a", 3), "b": source("b", 1) } } }
        })
    };
    let shares = |snapshot: &RunSnapshot| -> Vec<(String, u64, u64, bool)> {
        let books = snapshot.ledger.sources.iter();
        books.map(|book| (book.name.clone(), book.drawn, book.delivered, book.shifted)).collect()
    };
    let kept = run(&folder, &document(true)).finish().exits(0).snapshot();
    assert!(kept.ledger.balanced);
    assert_eq!(shares(&kept), [("a".to_owned(), 180, 180, false), ("b".to_owned(), 60, 60, false)]);
    let changed = run(&folder, &document(false)).finish().exits(0).snapshot();
    assert!(changed.ledger.balanced);
    assert_eq!(shares(&changed), [("a".to_owned(), 180, 180, true), ("b".to_owned(), 60, 0, true)]);
    let report = Call::run(&folder.document(&document(false))).store("here", folder.path()).finish().exits(0);
    assert!(
        report.stdout.contains("the delivered shares of `a`, `b` are more than 5 % off"),
        "{}",
        report.stdout
    );
}
