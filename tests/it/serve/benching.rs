//! Storage benchmarks that a server runs itself.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use penstock_tests::{Call, Folder, Served, Serving, photos};
use serde_json::{Value, json};

/// A folder of many small objects: all loads over it take longer than any test waits.
fn many(folder: &Folder) {
    fs::create_dir(folder.join("many")).unwrap();
    for number in 0..3_000 {
        folder.write(&format!("many/{number:04}.bin"), [1; 64]);
    }
}

/// A benchmark that takes minutes.
fn long() -> Value {
    json!({ "store": "many", "limit": 100_000, "workers": [1, 1, 1, 1, 1, 1, 1, 1], "repeats": 10, "cold": true, "max_s": 3600 })
}

fn current(served: &Served) -> Value {
    served.get("/benchmarks/current").is(200).json()["benchmark"].clone()
}

/// Waits until `is_wanted` holds for the current benchmark, and returns it.
fn until(served: &Served, is_wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1_200 {
        let found = current(served);
        if is_wanted(&found) {
            return found;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("the benchmark is not as wanted: {}", current(served));
}

fn ended(served: &Served) -> Value {
    until(served, |benchmark| benchmark["state"] != "running")
}

fn budget(served: &Served) -> (Value, Value) {
    let system = served.get("/system").is(200).json();
    (system["budget"]["threads_used"].clone(), system["budget"]["memory_mib_used"].clone())
}

#[test]
fn a_benchmark_runs_in_the_budget_and_its_report_is_kept() {
    let served = Serving::default().store("photos", photos()).start();
    assert_eq!(current(&served), Value::Null);
    let request = json!({ "store": "photos", "suffix": ".jpg", "limit": 20, "workers": [1], "modes": ["async"], "repeats": 2 });
    let started = served.post("/benchmarks/start", &request).is(200).json();
    assert_eq!(
        (&started["name"], &started["loads"], &started["max_s"]),
        (&json!("photos"), &json!(1), &json!(60.0))
    );
    let done = ended(&served);
    assert_eq!(
        (&done["state"], &done["error"], &done["id"]),
        (&json!("completed"), &Value::Null, &started["id"])
    );
    assert_eq!(budget(&served), (json!(0), json!(0)));
    let id = done["benchmark"].as_str().unwrap();
    let report = served.get(&format!("/benchmarks/{id}")).is(200).json();
    assert_eq!((&report["state"], &report["objects"]["count"]), (&json!("completed"), &json!(20)));
    assert_eq!(report["objects"]["kind"], "folder");
    let loads = report["actions"][0]["whole_set"].as_array().unwrap();
    assert_eq!((loads.len(), &loads[0]["workers"], &loads[0]["mode"]), (1, &json!(1), &json!("async")));
    assert_eq!((&loads[0]["items"], &report["balanced"]), (&json!(40), &json!(true)));
    let listed = served.get("/benchmarks").is(200).json();
    assert_eq!((&listed["items"][0]["id"], &listed["items"][0]["is_sound"]), (&json!(id), &json!(true)));
    let audit = served.get("/audit").is(200).json();
    assert_eq!(audit["items"][0]["action"], "start_benchmark");
}

#[test]
fn one_benchmark_runs_at_a_time_and_a_stopped_one_keeps_its_loads() {
    let folder = Folder::new();
    many(&folder);
    let served = Serving::default().store("many", &folder.join("many")).start();
    let started = served.post("/benchmarks/start", &long()).is(200).json();
    let (threads, memory) = budget(&served);
    assert_eq!((threads, memory), (json!(1), json!(256 + 64)));
    let busy = served.post("/benchmarks/start", &json!({ "store": "many" })).is(503).json();
    assert_eq!(busy["detail"], "a benchmark is running; try again when it has ended");
    served.post("/benchmarks/other/stop", &json!({})).is(404);
    let under_way = until(&served, |benchmark| benchmark["loads_done"].as_u64() > Some(0));
    assert!(under_way["step"].as_str().unwrap().starts_with("load "), "{under_way}");
    let stop = format!("/benchmarks/{}/stop", started["id"].as_str().unwrap());
    let stopped = served.post(&stop, &json!({})).is(200).json();
    assert_eq!((&stopped["state"], &stopped["error"]), (&json!("stopped"), &Value::Null));
    let report =
        served.get(&format!("/benchmarks/{}", stopped["benchmark"].as_str().unwrap())).is(200).json();
    assert_eq!(report["state"], "stopped");
    assert!(!report["actions"][0]["whole_set"].as_array().unwrap().is_empty());
    assert_eq!(budget(&served), (json!(0), json!(0)));
    served.post("/benchmarks/start", &json!({ "store": "many", "limit": 10 })).is(200);
    assert_eq!(ended(&served)["state"], "completed");
}

#[test]
fn the_longest_time_ends_a_benchmark() {
    let folder = Folder::new();
    many(&folder);
    let served = Serving::default().store("many", &folder.join("many")).start();
    let mut request = long();
    request["max_s"] = json!(1);
    served.post("/benchmarks/start", &request).is(200);
    let done = ended(&served);
    assert_eq!(done["state"], "stopped");
    assert_eq!(done["error"], "stopped after 1 s, the maximum duration (`max_s`)");
}

#[test]
fn a_server_ends_in_time_while_a_benchmark_runs() {
    let folder = Folder::new();
    many(&folder);
    let served = Serving::default().store("many", &folder.join("many")).start();
    served.post("/benchmarks/start", &long()).is(200);
    until(&served, |benchmark| benchmark["step"].as_str().unwrap().starts_with("load "));
    let (took, code) = served.end();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn what_cannot_be_measured_is_refused_at_its_place_or_fails_with_a_reason() {
    let served = Serving::default().store("photos", photos()).argument("--threads=2").start();
    served.post("/benchmarks/start", &json!({ "store": "nowhere" })).is(404);
    for (request, pointer) in [
        (json!({}), ""),
        (json!({ "store": "photos", "workers": [3] }), "/workers/0"),
        (json!({ "store": "photos", "workers": [2], "in_flight": 33, "batch_size": 50 }), "/workers/0"),
        (json!({ "store": "photos", "max_s": 3601 }), "/max_s"),
        (json!({ "store": "photos", "stages": [] }), "/stages"),
    ] {
        let refused = served.post("/benchmarks/start", &request).is(422).json();
        assert_eq!(refused["errors"][0]["pointer"], pointer, "{refused}");
    }
    assert_eq!(current(&served), Value::Null);
    let much =
        served.post("/benchmarks/start", &json!({ "store": "photos", "memory_mib": 1_000_000_000 })).is(503);
    assert!(much.json()["detail"].as_str().unwrap().contains("the benchmark cannot start now"));
    served.post("/benchmarks/start", &json!({ "store": "photos", "prefix": "nothing/" })).is(200);
    let failed = ended(&served);
    assert_eq!((&failed["state"], &failed["benchmark"]), (&json!("failed"), &Value::Null));
    assert!(failed["error"].is_string(), "{failed}");
    served.post("/benchmarks/start", &json!({ "store": "photos", "memory_mib": 1 })).is(200);
    let failed = ended(&served);
    assert!(failed["error"].as_str().unwrap().contains("(`memory_mib`)"), "{failed}");
}

#[test]
fn a_benchmark_is_for_tokens_that_may_run_and_use_its_store() {
    let folder = Folder::new();
    many(&folder);
    let served = Serving::default()
        .with_own_token()
        .store("photos", photos())
        .store("many", &folder.join("many"))
        .start();
    let token = |name: &str, more: &[&str]| {
        let made = Call::new(&["token", "add", name, "--data-dir"]).argument(served.data());
        let made = more.iter().fold(made, |call, argument| call.argument(argument)).finish().exits(0).stdout;
        format!("Bearer {}", made.trim())
    };
    let (reader, limited) =
        (token("reader", &["--role=read"]), token("limited", &["--role=run", "--store=photos"]));
    let all = token("all", &["--role=run"]);
    let ask = |bearer: &str, method: &str, path: &str, body: Option<&Value>| {
        let text = body.map(Value::to_string);
        let content = text.as_ref().map(|text| ("application/json", text.as_bytes()));
        served.ask(method, &format!("/api/v1/benchmarks/{path}"), content, &[("authorization", bearer)])
    };
    // The server reads new tokens within a second.
    for _ in 0..600 {
        if ask(&all, "GET", "current", None).status == 200 {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    ask(&reader, "POST", "start", Some(&json!({ "store": "photos" }))).is(403);
    ask(&limited, "POST", "start", Some(&json!({ "store": "many" }))).is(404);
    let started = ask(&all, "POST", "start", Some(&long())).is(200).json();
    let stop = format!("{}/stop", started["id"].as_str().unwrap());
    assert_eq!(ask(&limited, "GET", "current", None).is(200).json(), json!({ "benchmark": null }));
    assert_eq!(ask(&reader, "GET", "current", None).is(200).json()["benchmark"]["id"], started["id"]);
    ask(&reader, "POST", &stop, None).is(403);
    ask(&limited, "POST", &stop, None).is(404);
    assert_eq!(ask(&all, "POST", &stop, None).is(200).json()["state"], "stopped");
}
