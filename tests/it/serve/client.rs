//! Commands that communicate with a server.

use penstock_tests::{Call, Folder, Served, Serving, module, photos};
use serde_json::{Value, json};

use super::{quick_photos, sleepy};

fn call(served: &Served, arguments: &[&str]) -> Call {
    Call::new(arguments).argument("--server").argument(format!("http://{}", served.address()))
}

#[test]
fn a_module_is_pushed_a_pipeline_submitted_and_both_are_listed() {
    let served = Serving::default().store("photos", photos()).start();
    let path = module("image");
    let pushed = call(&served, &["push"]).argument(&path).argument("--alias=stable").finish().exits(0).stdout;
    assert!(pushed.starts_with("image@1 sha256:"), "{pushed}");
    assert!(pushed.contains("image@stable is this version"), "{pushed}");
    let again = call(&served, &["push"]).argument(&path).finish().exits(0).stdout;
    assert!(again.contains("the server already had these bytes"), "{again}");

    let folder = Folder::new();
    let mut document = quick_photos();
    document["stages"][3]["wasm"]["module"] = json!("image@stable");
    let file = folder.document(&document);
    let checked = call(&served, &["submit", "--check"]).argument(&file).finish().exits(0).stdout;
    assert!(checked.starts_with("valid: 7 stages, 2 threads"), "{checked}");
    let followed = call(&served, &["submit", "--follow"]).argument(&file).finish().exits(0).stdout;
    assert!(
        followed.contains("\nphotos completed after") && followed.contains("100 samples delivered"),
        "{followed}"
    );

    let runs = call(&served, &["runs"]).finish().exits(0).stdout;
    assert!(runs.lines().count() == 2 && runs.contains("completed"), "{runs}");
    let modules = call(&served, &["modules"]).finish().exits(0).stdout;
    assert!(modules.contains("image") && modules.contains("stable=1"), "{modules}");
}

#[test]
fn a_run_is_stopped_and_its_follower_sees_it() {
    let served = Serving::default().start();
    let folder = Folder::new();
    let file = folder.document(&sleepy(1_000_000, 1.0));
    let submitted = call(&served, &["submit"]).argument(&file).finish().exits(0).stdout;
    let id = submitted.lines().next().unwrap();
    let stopped = call(&served, &["stop", id]).finish().exits(0).stdout;
    assert_eq!(stopped, format!("{id} is stopped\n"));
    let resumed = call(&served, &["resume", id]).finish().exits(0).stdout;
    let resumed = resumed.lines().next().unwrap();
    assert_eq!(served.get(&format!("/runs/{resumed}")).is(200).json()["resumes"], id);
    let refused = call(&served, &["resume", resumed]).finish().exits(1).stderr;
    assert!(refused.contains("the run has not ended; stop it first"), "{refused}");
    call(&served, &["stop", resumed]).finish().exits(0);
    // Submits a second run, which the command follows.
    let follower = call(&served, &["submit", "--follow", "--json"]).argument(&file);
    let watching = follower.start();
    let alive = loop {
        let runs = served.get("/runs?state=running").is(200).json();
        if let Some(run) = runs["items"].get(0) {
            break run["id"].as_str().unwrap().to_owned();
        }
        super::pause(20);
    };
    call(&served, &["stop", &alive]).finish().exits(0);
    let followed = follower.finished(watching).exits(130).stdout;
    let followed: Value = serde_json::from_str(&followed).unwrap();
    assert_eq!((&followed["id"], &followed["state"]), (&json!(alive), &json!("stopped")));
    let follower =
        call(&served, &["submit", "--follow", "--for=1s"]).argument(&file).finish().exits(0).stdout;
    assert!(follower.contains("\nsleepy completed"), "{follower}");
}

#[test]
fn refused_documents_are_reported_with_all_faults() {
    let served = Serving::default().variable("PENSTOCK_TOKEN", "0123456789abcdef").start();
    let folder = Folder::new();
    let file = folder.document(
        &json!({ "source": { "range": { "count": -1 } }, "stages": [{ "sleep": {} }, { "slep": {} }] }),
    );
    let refused = call(&served, &["submit"]).argument(&file).finish().exits(2).stderr;
    assert!(refused.contains("Unauthorized"), "{refused}");
    let token = folder.write("token", "0123456789abcdef");
    let refused = call(&served, &["submit"])
        .argument(&file)
        .argument("--token-file")
        .argument(&token)
        .finish()
        .exits(2);
    insta::assert_snapshot!(refused.stderr);
    let unreachable = Call::new(&["runs", "--server=http://127.0.0.1:9"]).finish().exits(1).stderr;
    assert!(unreachable.contains("no response from a server at http://127.0.0.1:9"), "{unreachable}");
    let address = Call::new(&["runs", "--server=http://me:CanaryPassword@host"]).finish().exits(2).stderr;
    assert!(!address.contains("CanaryPassword"), "{address}");
}

#[test]
fn a_module_of_any_size_is_sent_and_the_server_enforces_its_limit() {
    let served = Serving::default().start();
    let folder = Folder::new();
    let file = folder.write("large.wasm", vec![0; 40 << 20]);
    let refused = call(&served, &["push"]).argument(&file).finish().exits(2).stderr;
    assert!(refused.contains("Content Too Large") && refused.contains("33554432"), "{refused}");
    let limits = json!({ "limits": { "modules": { "module_bytes": 64 << 20 } } });
    let config = folder.write("penstock.json", limits.to_string());
    let served = Serving::default().argument("--config").argument(&config).start();
    let refused = call(&served, &["push"]).argument(&file).finish().exits(2).stderr;
    assert!(!refused.contains("too large"), "{refused}");
}

#[test]
fn lists_are_complete_and_state_when_nothing_matches() {
    let served = Serving::default().start();
    assert_eq!(call(&served, &["runs"]).finish().exits(0).stdout, "none yet\n");
    for _ in 0..3 {
        served.over(&served.submit(&sleepy(1, 0.0)));
    }
    assert_eq!(call(&served, &["runs", "--state=failed"]).finish().exits(0).stdout, "none matches\n");
    let two = call(&served, &["runs", "--limit=2", "--json"]).finish().exits(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&two).unwrap().as_array().unwrap().len(), 2);
    let all = call(&served, &["runs", "--json"]).finish().exits(0).stdout;
    assert_eq!(serde_json::from_str::<Value>(&all).unwrap().as_array().unwrap().len(), 3);
}

#[test]
fn errors_that_may_pass_later_are_not_bad_input() {
    let folder = Folder::new();
    let config = folder.write("penstock.json", json!({ "limits": { "runs": { "queued": 1 } } }).to_string());
    let served = Serving::default().argument("--config").argument(&config).argument("--threads=1").start();
    let file = folder.document(&sleepy(1_000_000, 1.0));
    let first = call(&served, &["submit", "--key=once"]).argument(&file).finish().exits(0).stdout;
    served.until(first.lines().next().unwrap(), |run| run["state"] == "running");
    call(&served, &["submit"]).argument(&file).finish().exits(0);
    let full = call(&served, &["submit"]).argument(&file).finish().exits(1).stderr;
    assert!(full.contains("Too Many Requests"), "{full}");
    // A request with a used key and another document would fail on every attempt, so it is bad input.
    let other = folder.document(&sleepy(2, 0.0));
    call(&served, &["submit", "--key=once"]).argument(&other).finish().exits(2);
}
