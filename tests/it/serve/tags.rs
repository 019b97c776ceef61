//! Tags of runs over the API and the command line, and comparison of benchmarks.

use penstock_tests::{Answer, Call, Folder, Served, Serving};
use serde_json::{Value, json};

use super::sleepy;

fn put(served: &Served, id: &str, tags: &Value) -> Answer {
    let body = json!({ "tags": tags }).to_string();
    served.ask("PUT", &format!("/api/v1/runs/{id}/tags"), Some(("application/json", body.as_bytes())), &[])
}

#[test]
fn tags_are_checked_replaced_and_found() {
    let served = Serving::default().start();
    let run = served.post("/runs?tags=nightly,lr%3D0.1", &sleepy(1, 0.0)).is(201).json();
    let id = run["id"].as_str().unwrap();
    assert_eq!(run["tags"], json!(["nightly", "lr=0.1"]));
    served.over(id);
    let spec = served.get(&format!("/runs/{id}/spec")).is(200).json();
    assert_eq!(spec["document"], sleepy(1, 0.0), "tags are no part of the document");
    let found =
        |query: &str| served.get(&format!("/runs?{query}")).is(200).json()["items"].as_array().unwrap().len();
    assert_eq!(
        (found("tag=nightly"), found("tag=night"), found("q=NIGHT"), found("tag=lr%3D0.1,nightly")),
        (1, 0, 1, 1)
    );

    assert_eq!(put(&served, id, &json!(["b", "b", "a"])).is(200).json(), json!({ "tags": ["b", "a"] }));
    assert_eq!(served.get(&format!("/runs/{id}")).is(200).json()["tags"], json!(["b", "a"]));
    assert_eq!((found("tag=nightly"), found("tag=a")), (0, 1));
    for wrong in [json!([""]), json!(["a,b"]), json!(["x".repeat(65)]), json!("a"), json!([1]), json!(null)] {
        let refused = put(&served, id, &wrong).is(422).json();
        assert_eq!(refused["type"], "/problems/invalid-document", "{wrong}");
        assert_eq!(
            refused["errors"][0]["pointer"].as_str().map(|at| at.starts_with("/tags")),
            Some(true),
            "{refused}"
        );
    }
    let many: Vec<String> = (0..17).map(|number| number.to_string()).collect();
    let refused = put(&served, id, &json!(many)).is(422).text();
    assert!(refused.contains("at most 16"), "{refused}");
    let query = many.join(",");
    served.post(&format!("/runs?tags={query}"), &sleepy(1, 0.0)).is(400);
    served.get(&format!("/runs?tag={query}")).is(400);
    put(&served, "nowhere", &json!(["a"])).is(404);
    assert_eq!(served.get(&format!("/runs/{id}")).is(200).json()["tags"], json!(["b", "a"]));
}

#[test]
fn the_command_line_tags_and_finds_runs() {
    let served = Serving::default().start();
    let folder = Folder::new();
    let file = folder.document(&sleepy(1, 0.0));
    let call = |arguments: &[&str]| {
        Call::new(arguments).argument("--server").argument(format!("http://{}", served.address()))
    };
    let submitted = call(&["submit", "--tag=a", "--tag=b"]).argument(&file).finish().exits(0).stdout;
    let id = submitted.lines().next().unwrap();
    served.over(id);
    call(&["submit"]).argument(&file).finish().exits(0);
    let found = call(&["runs", "--tag=b", "--tag=a"]).finish().exits(0).stdout;
    assert!(found.lines().count() == 2 && found.contains(id) && found.contains("a b"), "{found}");
    assert_eq!(call(&["runs", "--tag=c"]).finish().exits(0).stdout, "none matches\n");
}

#[test]
fn benchmarks_are_compared_as_the_command_compares_their_reports() {
    let served = Serving::default().start();
    let folder = Folder::new();
    let document = json!({
        "name": "nothing", "source": { "memory": { "count": 100, "bytes": 1000 } }, "ceiling": false,
        "actions": [{ "whole_set": { "workers": [1, 2], "repeats": 2 } }]
    });
    let measured = |name: &str| {
        let out = folder.join(name);
        let call = Call::new(&["bench", "storage", "--push", "--quiet"]).argument(folder.document(&document));
        let call = call.argument("--server").argument(format!("http://{}", served.address()));
        call.argument("--out").argument(&out).finish().exits(0);
        (served.get("/benchmarks").is(200).json()["items"][0].clone(), out)
    };
    let ((before, before_file), (after, after_file)) = (measured("before"), measured("after"));
    let compared = |id: &Value, base: &Value| {
        served.get(&format!(
            "/benchmarks/{}/comparison?base={}",
            id.as_str().unwrap(),
            base.as_str().unwrap()
        ))
    };
    let mut found = compared(&after["id"], &before["id"]).is(200).json();
    let of = |found: &mut Value, name: &str| found.as_object_mut().unwrap().remove(name).unwrap();
    assert_eq!((of(&mut found, "base"), of(&mut found, "benchmark")), (before.clone(), after.clone()));
    let call = Call::new(&["bench", "compare", "--json"]).argument(&before_file).argument(&after_file);
    let told: Value = serde_json::from_str(&call.finish().exits(0).stdout).unwrap();
    assert_eq!(found, told);
    assert_eq!(found["cells"].as_array().unwrap().len(), 4, "two modes with one and two workers");

    compared(&after["id"], &json!("nowhere")).is(404);
    compared(&json!("nowhere"), &after["id"]).is(404);
    served.get(&format!("/benchmarks/{}/comparison", after["id"].as_str().unwrap())).is(400);
}
