//! Reports of storage benchmarks stored on a server.

use penstock_tests::{Answer, Call, Folder, Served, Serving};
use serde_json::{Value, json};

/// Document of a benchmark of objects in memory.
fn document() -> Value {
    json!({
        "name": "nothing", "source": { "memory": { "count": 100, "bytes": 1000 } }, "ceiling": false,
        "actions": [{ "whole_set": { "workers": [2], "repeats": 1 } }]
    })
}

/// Runs the benchmark and pushes its report to the server; returns the report.
fn pushed(served: &Served) -> Value {
    let folder = Folder::new();
    let call = Call::new(&["bench", "storage", "--push", "--json"]).argument(folder.document(&document()));
    let call = call.argument("--server").argument(format!("http://{}", served.address()));
    let finished = call.finish().exits(0);
    let page = format!("http://{}/bench/", served.address());
    assert!(finished.stderr.contains(&page), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap()
}

fn delete(served: &Served, id: &str, headers: &[(&str, &str)]) -> Answer {
    served.ask("DELETE", &format!("/api/v1/benchmarks/{id}"), None, headers)
}

#[test]
fn a_report_is_pushed_listed_read_and_deleted() {
    let served = Serving::default().start();
    assert_eq!(served.get("/benchmarks").is(200).json(), json!({ "items": [], "next": null }));
    let report = pushed(&served);
    let page = served.get("/benchmarks").is(200).json();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next"]), (1, &json!(null)));
    let summary = &page["items"][0];
    let told = json!({
        "id": summary["id"], "kept_at": summary["kept_at"],
        "name": "nothing", "started_at": report["started_at"], "elapsed_s": report["elapsed_s"],
        "state": "completed", "balanced": true, "is_sound": true,
        "store": report["objects"]["store"], "kind": "memory", "objects": 100, "bytes": 100_000,
        "fastest": summary["fastest"], "findings": summary["findings"]
    });
    assert_eq!(summary, &told);
    let cells = report["actions"][0]["whole_set"].as_array().unwrap();
    let is_fastest = |cell: &&Value| cell["items_per_s"] == summary["fastest"]["items_per_s"];
    let fastest = cells.iter().find(is_fastest).expect("the fastest load is in the list");
    assert_eq!(summary["fastest"]["mb_per_s"], fastest["mb_per_s"]);
    assert!(cells.iter().all(|cell| cell["items_per_s"].as_f64() <= fastest["items_per_s"].as_f64()));
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(summary["findings"], json!(findings[..findings.len().min(3)]));

    let id = summary["id"].as_str().unwrap();
    assert_eq!(served.get(&format!("/benchmarks/{id}")).is(200).json(), report);
    // The same report, formatted differently, creates no new benchmark.
    let pretty = serde_json::to_vec_pretty(&report).unwrap();
    let again = served.ask("POST", "/api/v1/benchmarks", Some(("application/json", &pretty)), &[]).is(200);
    assert_eq!(again.header("location"), format!("/api/v1/benchmarks/{id}"));
    assert_eq!(&again.json(), summary);

    assert_eq!(delete(&served, id, &[("origin", "http://evil.example")]).status, 403);
    delete(&served, id, &[]).is(204);
    delete(&served, id, &[]).is(404);
    served.get(&format!("/benchmarks/{id}")).is(404);
    let new = served.post("/benchmarks", &report).is(201);
    assert_ne!(new.json()["id"], id);
    assert_eq!(new.header("location"), format!("/api/v1/benchmarks/{}", new.json()["id"].as_str().unwrap()));
}

#[test]
fn invalid_reports_are_refused_with_pointers() {
    let served = Serving::default().start();
    let report = pushed(&served);
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut wrong = report.clone();
        change(&mut wrong);
        served.post("/benchmarks", &wrong).is(422).json()["errors"].clone()
    };
    let place = |change: &dyn Fn(&mut Value)| {
        let faults = refused(change);
        assert_eq!(faults.as_array().unwrap().len(), 1, "{faults}");
        faults[0]["pointer"].as_str().unwrap().to_owned()
    };
    assert_eq!(place(&|wrong| wrong["state"] = json!("done")), "/state");
    assert_eq!(place(&|wrong| wrong["document"]["sed"] = json!(1)), "/document/sed");
    let cell = "/actions/0/whole_set/0";
    assert_eq!(
        place(&|wrong| wrong.pointer_mut(cell).unwrap()["items"] = json!(-1)),
        format!("{cell}/items")
    );
    assert_eq!(place(&|wrong| *wrong.pointer_mut(cell).unwrap() = json!({})), cell);
    let later = refused(&|wrong| {
        wrong["version"] = json!(99);
        wrong["actions"] = json!("in another form");
    });
    let told = json!([{ "pointer": "/version", "detail": "found `99`, but this server takes reports of version 1" }]);
    assert_eq!(later, told);
    let nothing = served.post("/benchmarks", &json!({})).is(422).json();
    assert_eq!(nothing["type"], "/problems/invalid-document");

    let post = |kind: &str, bytes: &[u8], headers: &[(&str, &str)]| {
        served.ask("POST", "/api/v1/benchmarks", Some((kind, bytes)), headers).status
    };
    let bytes = report.to_string().into_bytes();
    assert_eq!(post("text/plain", &bytes, &[]), 415);
    assert_eq!(post("application/json", &bytes[1..], &[]), 422);
    assert_eq!(post("application/json", &bytes, &[("origin", "http://evil.example")]), 403);
    // A report of the maximum size, which must not grow when it is stored.
    let mut largest = bytes.clone();
    largest.resize(16 << 20, b' ');
    assert_eq!(post("application/json", &largest, &[]), 200);
    assert_eq!(served.get("/benchmarks").is(200).json()["items"].as_array().unwrap().len(), 1);
    for wrong in ["cursor=nonsense", "limit=0", "page=2"] {
        let problem = served.get(&format!("/benchmarks?{wrong}"));
        assert!(matches!(problem.status, 400 | 422), "{wrong}: {} {}", problem.status, problem.text());
    }
}

#[test]
fn lists_truncate_the_texts_of_uploaded_reports() {
    let served = Serving::default().start();
    let mut report = pushed(&served);
    report["name"] = json!("<script>\u{1b}[31m");
    report["findings"] = json!(vec!["x".repeat(100_000); 10]);
    let summary = served.post("/benchmarks", &report).is(201).json();
    assert_eq!(summary["name"], "<script>\\u{1b}[31m");
    let findings = summary["findings"].as_array().unwrap();
    let longest = findings.iter().map(|finding| finding.as_str().unwrap().len()).max();
    assert_eq!((findings.len(), longest), (3, Some("x".repeat(1000).len() + "…".len())));
    let id = summary["id"].as_str().unwrap();
    assert_eq!(served.get(&format!("/benchmarks/{id}")).is(200).json(), report);
}

#[test]
fn lists_come_in_pages_and_reports_survive_the_server() {
    let folder = Folder::new();
    let data = folder.join("data");
    let served = Serving::over(&data).start();
    let mut report = pushed(&served);
    let ids: Vec<Value> = (0..4)
        .map(|number| {
            report["name"] = json!(format!("n{number}"));
            served.post("/benchmarks", &report).is(201).json()["id"].clone()
        })
        .collect();
    served.kill();

    let served = Serving::over(&data).start();
    let (mut names, mut next) = (Vec::new(), Value::Null);
    loop {
        let cursor = next.as_str().map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
        let page = served.get(&format!("/benchmarks?limit=2{cursor}")).is(200).json();
        names.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].clone()));
        next = page["next"].clone();
        if next.is_null() {
            break;
        }
    }
    assert_eq!(names, ["n3", "n2", "n1", "n0", "nothing"]);
    let last = served.get(&format!("/benchmarks/{}", ids[3].as_str().unwrap())).is(200).json();
    assert_eq!(last, report);
}

#[test]
fn a_server_with_a_token_requires_it_for_reports() {
    let folder = Folder::new();
    let token = folder.write("token", "0123456789abcdef");
    let served = Serving::default().argument("--token-file").argument(&token).start();
    let call = Call::new(&["bench", "storage", "--push"]).argument(folder.document(&document()));
    let call = call.argument("--server").argument(format!("http://{}", served.address()));
    let refused = call.finish().exits(2).stderr;
    assert!(refused.contains("Unauthorized"), "{refused}");
    call.argument("--token-file").argument(&token).finish().exits(0);
    let ask = |method: &str, path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        served.ask(method, &format!("/api/v1/benchmarks{path}"), None, &[("authorization", &bearer)])
    };
    let items = ask("GET", "", "0123456789abcdef").is(200).json()["items"].clone();
    let path = format!("/{}", items[0]["id"].as_str().unwrap());
    for (method, path) in [("GET", ""), ("GET", &*path), ("DELETE", &path)] {
        ask(method, path, "wrong-wrong-wrong-wrong").is(401);
    }
    served.post("/benchmarks", &json!({})).is(401);
    ask("GET", &path, "0123456789abcdef").is(200);
}
