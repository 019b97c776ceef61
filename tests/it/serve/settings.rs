//! Settings that change in a run of a server.

use penstock_tests::{Answer, Call, Folder, Served, Serving};
use serde_json::{Value, json};

use super::sleepy;

fn patch(served: &Served, id: &str, set: &Value) -> Answer {
    let body = json!({ "set": set }).to_string();
    served.ask(
        "PATCH",
        &format!("/api/v1/runs/{id}/settings"),
        Some(("application/json", body.as_bytes())),
        &[],
    )
}

/// Concurrency of the first stage and capacity of the sink queue, as the snapshot of a run shows them.
fn now(run: &Value) -> (u64, u64) {
    let snapshot = &run["snapshot"];
    let sink = snapshot["queues"].as_array().unwrap().last().unwrap();
    (snapshot["stages"][0]["concurrency"].as_u64().unwrap(), sink["capacity"].as_u64().unwrap())
}

/// Label and concurrency of the first stage, label of its queue, and capacity of the sink queue, in a window of a run.
fn shown(window: &Value) -> (String, u64, String, u64) {
    let (stage, queues) = (&window["stages"][0], window["queues"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let capacity = queues.last().unwrap()["capacity"].as_u64().unwrap();
    (text(&stage["label"]), stage["concurrency"].as_u64().unwrap(), text(&queues[1]["label"]), capacity)
}

/// The settings of the run changed last before `at_s`.
fn predictions_begin_with_the_settings_that_hold(served: &Served, id: &str, at_s: f64) {
    served.until(id, |run| run["snapshot"]["elapsed_s"].as_f64() > Some(at_s + 2.5));
    let predict = |asked: &Value| served.post(&format!("/runs/{id}/predict"), asked).is(200).json();
    let predicted = predict(&json!({ "set": { "/stages/0/sleep/queue": 4 } }));
    assert_eq!(
        (&predicted["stages"][0]["concurrency"], &predicted["queues"][2]["capacity"]),
        (&json!(8), &json!(10))
    );
    let error = predicted["model_error"].as_f64().unwrap();
    // With one task instead of eight, it would be -0.88.
    assert!(error.abs() < 0.5, "{predicted}");
    let of_all = predict(&json!({ "from_s": 0 }));
    let why = of_all["no_gain"].as_str().unwrap();
    assert!(why.contains("its settings changed while it was measured"), "{why}");
    assert_eq!(of_all["model_error"], Value::Null);
}

#[test]
fn settings_of_a_run_change_while_it_goes_on_and_a_resumed_run_keeps_them() {
    let served = Serving::default().start();
    let id = served.submit(&sleepy(1_000_000, 5.0));
    // The first window of the rows ends before the first change.
    served.until(&id, |run| run["snapshot"]["elapsed_s"].as_f64() > Some(0.5));
    for (wrong, told) in [
        (
            json!({ "/stages/0/sleep/mean_ms": 1 }),
            "these can: `/stages/0/sleep/concurrency`, `/stages/0/sleep/queue`, `/sink/queue`, `/threads`",
        ),
        (json!({ "/stages/0/sleep/concurrency": 4097, "/sink/queue": 9 }), "must be from 1 to 4096"),
        (json!({ "/threads": 2 }), "started with 1 threads"),
    ] {
        let refused = patch(&served, &id, &wrong).is(422).text();
        assert!(refused.contains(told), "{refused}");
    }
    let changed =
        patch(&served, &id, &json!({ "/stages/0/sleep/concurrency": 8, "/sink/queue": 9 })).is(200).json();
    let changes: Vec<_> =
        changed["changes"].as_array().unwrap().iter().map(|change| change["to"].clone()).collect();
    assert_eq!(changes, [json!(9), json!(8)], "a refused request changes nothing");
    let audit = served.get("/audit?limit=2").is(200).json();
    let entries: Vec<_> =
        audit["items"].as_array().unwrap().iter().map(|entry| entry["target"].clone()).collect();
    assert_eq!(
        entries,
        [
            json!(format!("runs/{id}/settings /stages/0/sleep/concurrency=8")),
            json!(format!("runs/{id}/settings /sink/queue=9"))
        ]
    );
    let said = Call::new(&["set"])
        .argument(&id)
        .argument("/sink/queue=10")
        .argument("--server")
        .argument(format!("http://{}", served.address()));
    assert_eq!(said.finish().exits(0).stdout, "/sink/queue 9 -> 10\n");
    let same = patch(&served, &id, &json!({ "/sink/queue": 10 })).is(200).json();
    assert_eq!(same["changes"].as_array().unwrap().len(), 3, "a value that holds already is no change");
    let run = served.get(&format!("/runs/{id}")).is(200).json();
    assert_eq!(now(&run), (8, 10));
    predictions_begin_with_the_settings_that_hold(
        &served,
        &id,
        run["snapshot"]["elapsed_s"].as_f64().unwrap(),
    );

    served.post(&format!("/runs/{id}/stop"), &json!({})).is(200);
    assert!(patch(&served, &id, &json!({ "/sink/queue": 3 })).is(409).text().contains("has ended"));
    assert_eq!(
        served.get(&format!("/runs/{id}/settings")).is(200).json()["changes"].as_array().unwrap().len(),
        3
    );
    let windows = served.get(&format!("/runs/{id}/windows?every_s=0.25")).is(200).json();
    let windows = windows["items"].as_array().unwrap();
    assert_eq!(
        [&windows[0], windows.last().unwrap()].map(shown),
        [
            ("[1:sleep]".to_owned(), 1, "[1:sleep_queue]".to_owned(), 3),
            ("[1:sleep[8]]".to_owned(), 8, "[1:sleep[8]_queue]".to_owned(), 10),
        ]
    );
    let resumed = served.post(&format!("/runs/{id}/resume"), &json!({})).is(201).json();
    let resumed = resumed["id"].as_str().unwrap();
    let run = served.until(resumed, |run| run["snapshot"]["ledger"]["total"]["delivered"].as_u64() > Some(0));
    assert_eq!(now(&run), (8, 10));
    let changes = served.get(&format!("/runs/{resumed}/settings")).is(200).json()["changes"].clone();
    let earlier = |change: &Value| (change["from"].clone(), change["to"].clone(), change["evidence"].clone());
    let earlier: Vec<_> = changes.as_array().unwrap().iter().map(earlier).collect();
    let reason = json!("the run before this one");
    assert_eq!(earlier, [(json!(1), json!(8), reason.clone()), (json!(3), json!(10), reason)]);
    let predicted = served.post(&format!("/runs/{resumed}/predict"), &json!({})).is(200).json();
    assert_eq!(predicted["stages"][0]["concurrency"], 8);
    served.until(resumed, |run| run["snapshot"]["elapsed_s"].as_f64() > Some(0.5));
    let windows = served.get(&format!("/runs/{resumed}/windows?every_s=0.25")).is(200).json();
    assert_eq!(
        shown(&windows["items"][0]),
        ("[1:sleep[8]]".to_owned(), 8, "[1:sleep[8]_queue]".to_owned(), 10)
    );
    served.post(&format!("/runs/{resumed}/stop"), &json!({})).is(200);
}

#[test]
fn a_resumed_run_is_held_to_the_limits_of_its_server() {
    let folder = Folder::new();
    let data = folder.join("data");
    let served = Serving::over(&data).start();
    let id = served.submit(&sleepy(1_000_000, 5.0));
    served.until(&id, |run| run["snapshot"]["elapsed_s"].as_f64() > Some(0.1));
    patch(&served, &id, &json!({ "/stages/0/sleep/concurrency": 8 })).is(200);
    served.post(&format!("/runs/{id}/stop"), &json!({})).is(200);
    drop(served);
    let limits = json!({ "limits": { "runs": { "concurrency": 4 } } });
    let config = folder.write("penstock.json", limits.to_string());
    let served = Serving::over(&data).argument("--config").argument(&config).start();
    let refused = served.post(&format!("/runs/{id}/resume"), &json!({})).is(422).text();
    assert!(refused.contains("adds up to 8, but this server allows at most 4"), "{refused}");
}
