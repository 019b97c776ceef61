use std::fs;
use std::thread;

use penstock_tests::{Folder, Serving, module};
use serde_json::{Value, json};

use super::{pause, quick_photos, sleepy, with_photos};

#[test]
fn a_module_is_uploaded_and_run_and_its_history_agrees_with_the_run() {
    let served = with_photos();
    let modules = served.get("/modules").is(200).json();
    assert_eq!(modules["items"][0]["name"], "image");
    let digest = modules["items"][0]["latest"]["report"]["digest"].clone();

    let mut document = quick_photos();
    document["stages"][3]["wasm"]["module"] = json!("image");
    let id = served.submit(&document);
    let run = served.over(&id);
    assert_eq!(
        (&run["state"], &run["samples"], &run["failed_samples"]),
        (&json!("completed"), &json!(100), &json!(0))
    );
    assert_eq!(run["modules"], json!(["image@1"]));
    let snapshot = &run["snapshot"];
    assert_eq!(snapshot["ledger"]["balanced"], true);
    assert_eq!(snapshot["modules"]["4:preprocess"], digest);
    assert_eq!(served.get(&format!("/runs/{id}/ledger")).is(200).json(), snapshot["ledger"]);

    // The sums over the history equal the figures of the run.
    let windows = served.get(&format!("/runs/{id}/windows?every_s=0.25")).is(200).json();
    let sum = |part: &str, at: usize, path: &str| -> u64 {
        let windows = windows["items"].as_array().unwrap().iter();
        windows.map(|window| window[part][at].pointer(path).unwrap().as_u64().unwrap()).sum()
    };
    for (at, stage) in snapshot["stages"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            json!(sum("stages", at, "/task/num_tasks")),
            stage["task"]["num_tasks"],
            "{}",
            stage["id"]
        );
    }
    for (at, queue) in snapshot["queues"].as_array().unwrap().iter().enumerate() {
        assert_eq!(json!(sum("queues", at, "/num_items")), queue["num_items"], "{}", queue["id"]);
    }
    let series =
        served.get(&format!("/runs/{id}/series?points=20&metrics=readiness,ave_time_s")).is(200).json();
    let columns = series["columns"].as_array().unwrap();
    assert_eq!(
        columns.len(),
        snapshot["stages"].as_array().unwrap().len() + snapshot["queues"].as_array().unwrap().len()
    );
    assert!(columns.iter().all(|column| column["mean"].as_array().unwrap().len() == series["t_s"].as_array().unwrap().len()));
    let times = served.get(&format!("/runs/{id}/stages/4:preprocess/times")).is(200).json();
    let counted: u64 =
        times["buckets"].as_array().unwrap().iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 100);

    let used = served.get("/modules/image/versions/1").is(200).json();
    assert_eq!((&used["runs"], &used["in_use"]), (&json!(1), &json!([])));
}

#[test]
fn figures_of_a_run_in_one_response_belong_to_one_moment() {
    let served = Serving::default().start();
    let endless = json!({ "threads": 1, "source": { "range": { "count": 1_000_000_000 } }, "stages": [] });
    let id = served.submit(&endless);
    served.until(&id, |run| run["samples"].as_u64().is_some_and(|samples| samples > 0));
    for _ in 0..50 {
        let run = served.get(&format!("/runs/{id}")).is(200).json();
        assert_eq!(run["samples"], run["snapshot"]["ledger"]["total"]["delivered"]);
    }
}

#[test]
fn figures_of_a_part_of_a_run_have_the_samples_of_each_queue_of_a_route() {
    let folder = Folder::new();
    let line = |key: u64| {
        let kind = ["a", "a", "b", "c"][(key % 4) as usize];
        format!("{}\n", json!({ "key": key.to_string(), "kind": kind }))
    };
    folder.write("records.ndjson", (0..400).map(line).collect::<String>());
    let served = Serving::default().store("here", folder.path()).start();
    let nap = json!({ "sleep": { "mean_ms": 2, "name": "nap" } });
    let route = json!({ "by": { "field": "kind" }, "paths": { "a": [nap], "b": [] }, "on_error": "skip" });
    let document = json!({
        "threads": 1, "max_failures": null, "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "sleep": { "mean_ms": 4 } }, { "route": route }],
    });
    let id = served.submit(&document);
    served.over(&id);
    let whole = served.get(&format!("/runs/{id}/figures?from_s=0&to_s=1000")).is(200).json();
    let part = served.get(&format!("/runs/{id}/figures?from_s=0.25&to_s=1")).is(200).json();
    assert_eq!((&whole["window"]["kind"], &part["window"]["kind"]), (&json!("whole"), &json!("range")));
    for figures in [whole, part] {
        let queues = figures["queues"].as_array().unwrap();
        assert_eq!(queues.len(), 7);
        for queue in queues {
            // All items are single samples, so both rates are one number.
            let samples_per_s = &figures["queue_samples_per_s"][queue["id"].as_str().unwrap()];
            assert_eq!(samples_per_s, &queue["qps"], "{} of {}", queue["id"], figures["window"]);
            assert!(queue["num_items"].as_u64().unwrap() > 0, "{queue}");
        }
    }
}

#[test]
fn the_same_bytes_are_one_version_and_other_bytes_the_next() {
    let served = Serving::default().start();
    let first = fs::read(module("image")).unwrap();
    let uploaded = served.upload(&first).is(201);
    assert_eq!(uploaded.header("location"), "/api/v1/modules/image/versions/1");
    assert_eq!(served.upload(&first).is(200).json()["created"], false);
    // An additional custom section changes the bytes of the module, but not the stage.
    let mut second = first.clone();
    second.extend([0, 4, 2, b'h', b'i', 0]);
    let next = served.upload(&second).is(201).json();
    assert_eq!((&next["version"], &next["previous"]), (&json!(2), &uploaded.json()["report"]["digest"]));

    assert_eq!(served.get("/modules/image/versions/1/content").is(200).bytes, first);
    assert_eq!(served.get("/modules/image/versions/latest/content").is(200).bytes, second);
    let aliased = served.ask(
        "PUT",
        "/api/v1/modules/image/aliases/stable",
        Some(("application/json", br#"{"version": 1}"#)),
        &[],
    );
    assert_eq!(aliased.is(200).json()["aliases"]["stable"], 1);
    assert_eq!(served.get("/modules/image/versions/stable/content").is(200).bytes, first);
    // A version with an alias cannot be deleted.
    let delete =
        |version: &str| served.ask("DELETE", &format!("/api/v1/modules/image/versions/{version}"), None, &[]);
    assert!(delete("1").is(409).json()["detail"].as_str().unwrap().contains("stable"));
    served.ask("DELETE", "/api/v1/modules/image/aliases/stable", None, &[]).is(204);
    delete("1").is(204);
    served.get("/modules/image/versions/1").is(404);
    // A version number is never reused.
    assert_eq!(served.upload(&first).is(201).json()["version"], 3);
}

#[test]
fn files_that_are_not_stages_are_refused_with_a_reason_and_not_kept() {
    let served = Serving::default().start();
    let truncated = &fs::read(module("image")).unwrap()[..5000];
    let told: Vec<String> =
        [&b""[..], b"\x7fELF\x02\x01\x01", b"not a module", truncated, b"\0asm\x01\0\0\0"]
            .iter()
            .map(|bytes| served.upload(bytes).is(422).json()["detail"].as_str().unwrap().to_owned())
            .collect();
    insta::assert_snapshot!(told.join("\n"));
    let kept = served.get("/modules").is(200).json();
    assert!(
        kept["items"].as_array().unwrap().iter().all(|item| item["latest"]["uploaded_at"].is_null()),
        "{kept}"
    );
    let mut left = Vec::new();
    let mut folders = vec![served.data().join("modules")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { left.push(path) }
        }
    }
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}

#[test]
fn concurrent_uploads_of_a_module_make_one_version() {
    let served = Serving::default().start();
    let bytes = fs::read(module("text-filter")).unwrap();
    let mut statuses: Vec<u16> = thread::scope(|scope| {
        let uploads: Vec<_> = (0..50).map(|_| scope.spawn(|| served.upload(&bytes).status)).collect();
        uploads.into_iter().map(|upload| upload.join().unwrap()).collect()
    });
    statuses.sort_unstable();
    assert_eq!((statuses[48], statuses[49]), (200, 201), "{statuses:?}");
    let detail = served.get("/modules/text-filter").is(200).json();
    assert_eq!(detail["versions"].as_array().unwrap().len(), 1);
}

#[test]
fn all_faults_of_a_document_are_reported_with_pointers() {
    let served = with_photos();
    let mut document = quick_photos();
    document["stages"][3]["wasm"]["params"]["size"] = json!("large");
    document["stages"][1]["fetch"]["concurrency"] = json!(0);
    document["sink"]["queu"] = json!(3);
    document["source"]["list"]["store"] = json!("nowhere");
    for path in ["/runs?validate_only=true", "/runs"] {
        let problem = served.post(path, &document).is(422);
        assert_eq!(problem.header("content-type"), "application/problem+json");
        insta::allow_duplicates! { insta::assert_json_snapshot!("faults_of_a_document", problem.json()) }
    }
    assert_eq!(served.get("/runs").is(200).json()["items"], json!([]));
    let mut valid = served.post("/runs?validate_only=true", &quick_photos()).is(200).json();
    assert!(valid["modules"]["4:preprocess"].take().as_str().unwrap().starts_with("sha256:"));
    insta::assert_json_snapshot!("what_a_document_comes_to", valid);
}

#[test]
fn a_request_that_is_repeated_makes_one_run() {
    let served = Serving::default().start();
    let document = sleepy(1, 0.0).to_string();
    let submit = |document: &str, key: &str| {
        let content = Some(("application/json", document.as_bytes()));
        served.ask("POST", "/api/v1/runs", content, &[("idempotency-key", key)])
    };
    let first = submit(&document, "tuesday").is(201).json()["id"].clone();
    assert_eq!(submit(&document, "tuesday").is(200).json()["id"], first);
    assert_ne!(submit(&document, "wednesday").is(201).json()["id"], first);
    let other = sleepy(2, 0.0).to_string();
    assert_eq!(submit(&other, "tuesday").is(422).json()["type"], "/problems/key-used-otherwise");
    assert_eq!(served.get("/runs").is(200).json()["items"].as_array().unwrap().len(), 2);
}

#[test]
fn runs_beyond_the_budget_wait_and_impossible_ones_are_refused() {
    let served = Serving::default().argument("--threads=2").start();
    let long = |threads: u64| {
        let mut document = sleepy(100_000, 5.0);
        document["threads"] = json!(threads);
        document
    };
    let first = served.submit(&long(2));
    served.until(&first, |run| run["state"] == "running");
    let waits = served.submit(&long(1));
    let behind = served.submit(&long(1));
    let why = served.get(&format!("/runs/{waits}")).is(200).json();
    assert_eq!(why["state"], "queued");
    assert!(why["waiting"].as_str().unwrap().contains("thread"), "{}", why["waiting"]);
    let refused = served.post("/runs", &long(3)).is(422).json();
    assert_eq!(refused["errors"][0]["pointer"], "/threads");
    assert!(refused["errors"][0]["detail"].as_str().unwrap().contains('2'), "{refused}");

    let stopped = served.post(&format!("/runs/{first}/stop"), &json!({})).is(200).json();
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["snapshot"]["ledger"]["balanced"], true);
    for id in [&waits, &behind] {
        served.until(id, |run| run["state"] == "running");
        served.post(&format!("/runs/{id}/stop"), &json!({})).is(200);
    }
    let system = served.get("/system").is(200).json();
    assert_eq!((&system["budget"]["threads_used"], &system["budget"]["runs_alive"]), (&json!(0), &json!(0)));
}

#[test]
fn lists_come_in_pages_and_sorted_and_filtered() {
    let served = Serving::default().start();
    let ids: Vec<String> = (0..7)
        .map(|number| {
            let mut document = sleepy(number + 1, 0.0);
            document["name"] = json!(format!("n{number}"));
            let id = served.submit(&document);
            served.over(&id);
            id
        })
        .collect();
    let mut seen = Vec::new();
    let mut next = Value::Null;
    loop {
        let cursor = next.as_str().map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
        let page = served.get(&format!("/runs?limit=3{cursor}")).is(200).json();
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()),
        );
        next = page["next"].clone();
        if next.is_null() {
            break;
        }
    }
    let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(seen, newest_first);
    let named = served.get("/runs?sort=-samples&limit=2").is(200).json();
    let samples: Vec<&Value> = named["items"].as_array().unwrap().iter().map(|run| &run["samples"]).collect();
    assert_eq!(samples, [&json!(7), &json!(6)]);
    assert_eq!(served.get("/runs?name=n3").is(200).json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(served.get("/runs?state=failed,running").is(200).json()["items"], json!([]));
    for wrong in ["state=done", "sort=colour", "limit=0", "limit=x", "cursor=nonsense", "page=2"] {
        let problem = served.get(&format!("/runs?{wrong}"));
        assert!(matches!(problem.status, 400 | 422), "{wrong}: {} {}", problem.status, problem.text());
    }
}

#[test]
fn failures_are_listed_with_the_head_of_each_and_dead_letters_replayed() {
    let folder = penstock_tests::Folder::new();
    folder.write(
        "x.ndjson",
        "{\"key\": \"good\", \"text\": \"long enough to be kept, surely\"}\n{\"key\": \"bad\"}\n",
    );
    let served = Serving::default()
        .store("here", folder.path())
        .argument("--module")
        .argument(module("text-filter"))
        .start();
    let id = served.submit(&json!({
        "source": { "records": { "store": "here", "key": "x.ndjson" } },
        "stages": [{ "wasm": { "module": "text-filter", "on_error": "dead_letter" } }]
    }));
    let run = served.over(&id);
    assert_eq!((&run["state"], &run["failed_samples"]), (&json!("completed"), &json!(1)), "{run:#}");
    let errors = served.get(&format!("/runs/{id}/errors")).is(200).json();
    assert_eq!((&errors["items"][0]["key"], &errors["items"][0]["class"]), (&json!("bad"), &json!("data")));
    let letters = served.get(&format!("/runs/{id}/dead-letters")).is(200).json();
    assert_eq!(letters["stages"][0]["letters"], 1);
    let replayed = served.post(&format!("/runs/{id}/replay"), &json!({})).is(200).json();
    assert_eq!(replayed["stages"][0]["mended"], 0, "{replayed:#}");
}

#[test]
fn a_module_is_tried_on_a_sample_and_nothing_is_kept() {
    let served = with_photos();
    let request = json!({ "params": { "ops": [{ "Resize": { "size": 8 } }] }, "from": { "store": "photos", "keys": ["000/000000.jpg", "no/such.jpg"] } });
    let missing = served.post("/modules/image/versions/latest/try", &request);
    assert!(missing.is(404).json()["detail"].as_str().unwrap().contains("no/such.jpg"));
    let request = json!({ "params": { "ops": [{ "Resize": { "size": 8 } }] }, "from": { "store": "photos", "keys": ["000/000000.jpg"] } });
    let report = served.post("/modules/image/versions/latest/try", &request).is(200).json();
    assert_eq!(report["calls"][0]["samples"][0]["outcome"], "kept", "{report:#}");
    // The request is as large as one with a photo, and larger than a pipeline document may be.
    let request = json!({ "samples": [{ "key": "a", "base64": "AAAA".repeat(5_000_000 / 3) }] });
    let report = served.post("/modules/image/versions/latest/try", &request).is(200).json();
    assert_eq!(report["calls"][0]["samples"][0]["outcome"], "failed", "{report:#}");
    assert_eq!(served.get("/runs").is(200).json()["items"], json!([]));
    let keys = served.get("/stores/photos/keys?limit=3").is(200).json();
    assert_eq!((keys["items"].as_array().unwrap().len(), &keys["more"]), (3, &json!(true)));
}

#[test]
fn metrics_add_up() {
    let served = with_photos();
    let id = served.submit(&quick_photos());
    served.over(&id);
    let long = served.submit(&sleepy(100_000, 1.0));
    served.until(&long, |run| run["samples"].as_u64().is_some_and(|samples| samples > 20));
    // The sums of a live run are updated a moment after its detail.
    let sum = |metrics: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix("penstock_samples_total "));
        line.unwrap().parse::<f64>().unwrap()
    };
    let metrics = loop {
        let metrics = served.ask("GET", "/metrics", None, &[]).is(200).text();
        if sum(&metrics) >= 120.0 {
            break metrics;
        }
        pause(20);
    };
    let value = |line: &str| -> f64 {
        let found = metrics.lines().find(|found| found.starts_with(line));
        found.unwrap_or_else(|| panic!("{line}\n{metrics}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("penstock_runs{state=\"completed\"}"), 1.0);
    assert_eq!(value("penstock_runs{state=\"running\"}"), 1.0);
    assert!(value("penstock_stage_tasks_total{") > 0.0 && value("penstock_process_cpu_seconds_total") > 0.0);
    assert!(
        metrics.lines().any(|line| line.starts_with("penstock_queue_readiness{") && line.contains("sleepy")),
        "{metrics}"
    );
    assert!(metrics.ends_with("# EOF\n"));
}

#[test]
fn the_sample_document_runs() {
    for served in [Serving::default().start(), with_photos()] {
        let offer = served.get("/system").is(200).json()["samples"].clone();
        let id = served.submit(&offer["document"]);
        served.until(&id, |run| run["samples"].as_u64().is_some_and(|samples| samples > 0));
        served.post(&format!("/runs/{id}/stop"), &json!({})).is(200);
    }
}

#[test]
fn limits_of_runs_are_enforced_with_pointers() {
    let folder = penstock_tests::Folder::new();
    let limits = json!({ "limits": { "runs": { "instance_memory_mib": 64, "output_mib": 100, "deadline_ms": 1000 } } });
    let config = folder.write("penstock.json", limits.to_string());
    let served = Serving::default()
        .argument("--config")
        .argument(&config)
        .argument("--module")
        .argument(module("text-filter"))
        .start();
    let problem = served.post(
        "/runs",
        &json!({ "source": { "range": { "count": 1 } }, "stages": [{ "wasm": { "module": "text-filter", "memory_mib": 65 } }] }),
    );
    let errors = problem.is(422).json()["errors"].clone();
    assert_eq!(
        errors,
        json!([
            { "pointer": "/stages/0/wasm", "detail": "module `text-filter` needs the field `text`, but samples have no fields here: put a stage before it that makes the field, or read it with the source `records`" },
            { "pointer": "/stages/0/wasm/deadline_ms", "detail": "found `5000`, but this server allows at most 1000 (`limits.runs.deadline_ms`)" },
            { "pointer": "/stages/0/wasm/memory_mib", "detail": "found `65`, but this server allows at most 64 (`limits.runs.instance_memory_mib`)" },
            { "pointer": "/stages/0/wasm/output_mib", "detail": "found `128`, but this server allows at most 100 (`limits.runs.output_mib`)" }
        ])
    );
}
