//! Predictions, compared with actual runs.

use std::fs;
use std::path::{Path, PathBuf};

use penstock_tests::{Call, Folder, photos, repository, shown};
use serde_json::{Value, json};

fn predicted(call: Call) -> Value {
    serde_json::from_str(&call.json().finish().exits(0).stdout).unwrap()
}

fn predict(document: &Path) -> Call {
    Call::new(&["predict"]).argument(document)
}

fn reference(name: &str) -> PathBuf {
    repository().join("examples/pipelines/seeds").join(name)
}

#[test]
fn the_best_change_is_proposed_with_its_pointer() {
    let report = predicted(predict(&reference("002-multi1.json")).argument("--sweep"));
    let rate = report["rate"].as_f64().unwrap();
    assert!((rate - 25.0).abs() < 0.3, "{rate}");
    let best = report["proposals"].as_array().unwrap().last().unwrap();
    assert_eq!(best["changes"], json!([{ "pointer": "/stages/2/sleep/concurrency", "from": 1, "to": 2 }]));
    assert!((best["rate"].as_f64().unwrap() - 33.3).abs() < 0.4, "{best}");
    // The consumer is the limit, so no change helps.
    let report = predicted(predict(&reference("002-multi3.json")).argument("--sweep"));
    assert_eq!(report["proposals"], json!([]));
}

#[test]
fn threads_are_proposed_where_they_are_the_limit() {
    let document = reference("003-pool-too-small.json");
    let report = predicted(predict(&document).argument("--sweep").argument("--max-threads=8"));
    let proposals = report["proposals"].as_array().unwrap();
    let threads = |proposal: &Value| {
        let changes = proposal["changes"].as_array().unwrap();
        changes.iter().any(|change| change["pointer"] == "/threads")
    };
    assert!(proposals.iter().any(threads), "{report:#}");
    let least = predicted(predict(&document).argument("--sweep").argument("--max-threads=1"));
    assert!(!least["proposals"].as_array().unwrap().iter().any(threads), "{least:#}");
}

#[test]
fn unknown_times_are_reported_and_can_be_taken_from_a_run() {
    let document = repository().join("examples/pipelines/photos.json");
    let with_photos = |call: Call| call.store("photos", photos());
    let told = with_photos(predict(&document)).finish().exits(2).stderr;
    shown().bind(|| insta::assert_snapshot!(told));
    let told = with_photos(predict(&document)).argument("--from=/nowhere").finish().exits(2).stderr;
    assert!(told.contains("contains no finished run"), "{told}");

    let folder = Folder::new();
    let out = folder.join("out");
    with_photos(Call::run(&document)).threads(2).out(&out).finish().exits(0);
    let from = |call: Call| with_photos(call).threads(2).argument("--from").argument(&out);
    let report = predicted(from(predict(&document)));
    assert_eq!(report["stages"].as_array().unwrap().len(), 7);
    assert!(report["rate"].as_f64().unwrap() > 0.0);
    let words = from(predict(&document)).finish().exits(0).stdout;
    assert!(words.starts_with("Predicted: ") && words.contains("recorded: "), "{words}");
    // A slower consumer takes fewer items.
    let slower = predicted(from(predict(&document)).set("/consumer/simulate/step_ms=500"));
    let rate = slower["rate"].as_f64().unwrap();
    assert!((1.9..=2.01).contains(&rate), "{rate}");
}

/// The figures of a run are changed to those of one whose ops had a core for 40 % of their time, because others used the cores.
#[test]
fn others_on_the_cores_slow_predicted_ops_down_as_they_did_in_the_recorded_run() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "name": "photos", "threads": 2,
        "source": { "list": { "store": "photos", "epochs": 4 } },
        "stages": [
            { "fetch": { "concurrency": 4 } },
            { "wasm": { "module": "std/image", "params": { "ops": [{ "Resize": { "size": [64, 64] } }] }, "concurrency": 2 } }
        ]
    }));
    let out = folder.join("out");
    Call::run(&document).store("photos", photos()).out(&out).finish().exits(0);
    let path = out.join("snapshot.json");
    let mut snapshot: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let task = &mut snapshot["stages"][1]["task"];
    let ops_s = task["ave_time_s"].as_f64().unwrap() * task["num_tasks"].as_f64().unwrap();
    task["cpu_s"] = json!(0.4 * ops_s);
    snapshot["machine"]["busy_cores"] = snapshot["machine"]["cores"].clone();
    fs::write(&path, snapshot.to_string()).unwrap();

    let from = || predict(&document).store("photos", photos()).argument("--from").argument(&out);
    let report = predicted(from());
    let (rate, free) = (report["rate"].as_f64().unwrap(), report["rate_on_free_cores"].as_f64().unwrap());
    assert!((2.0..2.6).contains(&(free / rate)), "{report:#}");
    assert!(report["foreign_cores"].as_f64().unwrap() > 0.5, "{report:#}");
    assert_eq!(
        (&report["gain"], &report["no_gain"]),
        (&Value::Null, &json!("The predicted rate is that of the recorded run as predicted."))
    );
    let words = from().finish().exits(0).stdout;
    assert!(
        words.contains("On cores that no other work uses: ") && words.contains("of them if it had them"),
        "{words}"
    );

    let alone = predicted(from().argument("--foreign-cores=0"));
    assert_eq!((&alone["rate"], &alone["rate_on_free_cores"]), (&report["rate_on_free_cores"], &Value::Null));
    let error = report["model_error"].as_f64().unwrap().abs();
    let gain = alone["rate"].as_f64().unwrap() / rate;
    match alone["gain"].as_f64() {
        Some(told) => assert!((told - gain).abs() < 0.01 && gain - 1.0 > 2.0 * error, "{alone:#}"),
        None => assert!(gain - 1.0 <= 2.0 * error, "{alone:#}"),
    }
    let sink = snapshot["queues"].as_array_mut().unwrap().last_mut().unwrap();
    sink["qps"] = Value::Null;
    fs::write(&path, snapshot.to_string()).unwrap();
    let told = predicted(from());
    assert_eq!(
        (&told["gain"], &told["no_gain"]),
        (
            &Value::Null,
            &json!(
                "The recorded run has no rate, since it delivered nothing: record a run that takes longer."
            )
        )
    );
    let told = from().argument("--foreign-cores=many").finish().exits(2).stderr;
    assert!(told.contains("expected a number from 0 to 4096"), "{told}");
}

/// The figures of a run are changed to those of one whose sleeps held their slot for longer than they took.
#[test]
fn recorded_sleeps_take_as_long_as_they_held_their_slot() {
    let folder = Folder::new();
    for shape in ["uniform", "exponential"] {
        let document = folder.document(&json!({
            "name": "sleeps", "seed": 7, "threads": 1, "source": { "range": { "count": 400 } },
            "stages": [{ "sleep": { "mean_ms": 1, "shape": shape } }], "consumer": { "discard": {} }
        }));
        let out = folder.join(shape);
        Call::run(&document).out(&out).finish().exits(0);
        let path = out.join("snapshot.json");
        let recorded: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        // Mean time in ms, if ops held their slot for this time longer than they took, or the recording does not tell it.
        let mean_ms = |longer_ms: Option<f64>| {
            let mut snapshot = recorded.clone();
            let task = &mut snapshot["stages"][0]["task"];
            let each_s = task["ave_time_s"].as_f64().unwrap() + longer_ms.unwrap_or(0.0) / 1e3;
            let all_s = each_s * task["num_tasks"].as_f64().unwrap();
            task["busy_s"] = json!(if longer_ms.is_some() { all_s } else { 0.0 });
            fs::write(&path, snapshot.to_string()).unwrap();
            let report = predicted(predict(&document).argument("--from").argument(&out));
            1e3 / report["rate"].as_f64().unwrap()
        };
        let (never, none, longer) = (mean_ms(None), mean_ms(Some(0.0)), mean_ms(Some(5.0)));
        assert!((never - none).abs() < 0.01 * none, "{shape}: {never} ms without times of slots, not {none}");
        assert!((longer - none - 5.0).abs() < 0.05, "{shape}: {longer} ms, not 5 more than {none}");
        // By chance, the mean of exponential times deviates from the setting; their delay is that of the short ones.
        let path = out.join("times.json");
        let mut times: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let all = times.as_object_mut().unwrap().values_mut().next().unwrap();
        all["buckets"] = json!([{ "from_s": 0.003, "to_s": 0.0031, "count": 400 }]);
        all["max_s"] = json!(0.003);
        fs::write(&path, times.to_string()).unwrap();
        let late = mean_ms(Some(0.0));
        if shape == "uniform" {
            assert!((late - none).abs() < 1e-6, "{late} ms, not {none}");
        } else {
            assert!((late - 3.95).abs() < 0.3, "{late} ms");
        }
    }
}
