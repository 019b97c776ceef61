//! `penstock test-stage`: reports for stage authors.

use std::path::Path;

use insta::Settings;
use penstock_tests::{Call, Finished, Folder, module, photos, shown};
use serde_json::{Value, json};

/// Settings for snapshots of reports: figures that differ between machines are replaced.
fn report() -> Settings {
    let mut settings = shown();
    settings.add_filter(r"\d[\d,]*(\.\d+)? (us|ms|sec)\b( +)?", "[TIME] ");
    settings.add_filter(r"\d+\.\d MiB( +)?", "[MEMORY] ");
    settings.add_filter(r#""deadline_ms": \d+"#, r#""deadline_ms": [N]"#);
    // The width of columns depends on the figures.
    settings.add_filter(r" {2,}", " ");
    settings
}

macro_rules! assert_report {
    ($finished:expr) => {
        report().bind(|| insta::assert_snapshot!($finished.stdout))
    };
}

/// Calls `penstock test-stage` with a guest that `make guests` built.
fn test_stage(guest: &str, inputs: &[&Path]) -> Call {
    let call = Call::new(&["test-stage"]).argument(module(guest)).argument("-i");
    inputs.iter().fold(call, |call, input| call.argument(*input))
}

fn records(folder: &Folder, lines: &[Value]) -> std::path::PathBuf {
    folder.write("records.ndjson", lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// Output of a call with bad input.
fn refused(call: Call) -> String {
    let finished = call.finish().exits(2);
    assert!(finished.stdout.is_empty(), "{}", finished.stdout);
    finished.stderr
}

fn json(call: Call, code: i32) -> Value {
    serde_json::from_str(&call.json().finish().exits(code).stdout).unwrap()
}

#[test]
fn texts_are_kept_split_dropped_and_counted() {
    let folder = Folder::new();
    let input = records(
        &folder,
        &[
            json!({ "key": "long", "text": "one two three four five", "lang": "en" }),
            json!({ "key": "short\u{1b}[31m", "text": "a\nb\u{202e}c" }),
            json!({ "key": "blank", "text": " " }),
            json!({ "key": "none" }),
        ],
    );
    let call = test_stage("text-filter", &[&input]).argument("-p").argument(r#"{"max_chars": 10}"#);
    assert_report!(call.finish().exits(1));
}

#[test]
fn photos_become_tensors_with_their_figures() {
    let folder = Folder::new();
    folder.write("photo.jpg", std::fs::read(photos().join("000/000000.jpg")).unwrap());
    folder.write("broken.jpg", "no photo");
    let call = test_stage("image", &[folder.path()])
        .argument("-p")
        .argument(r#"{"ops": [{"Resize": {"size": [32, 32]}}]}"#);
    assert_report!(call.finish().exits(1));
}

#[test]
fn a_folder_gives_the_same_samples_as_a_run_over_it() {
    let report = json(test_stage("image", &[photos()]), 0);
    let calls = report["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 100);
    assert_eq!(calls[0]["samples"][0]["key"], "000/000000.jpg");
    assert_eq!(calls[99]["samples"][0]["outcome"], "kept");
    let memory = calls[99]["memory_bytes"].as_u64().unwrap();
    assert!(memory >= 500 * 375 * 3, "the decoded photo was in it: {memory}");
    assert!(report["suggested"]["memory_mib"].as_u64().unwrap() << 20 > memory);
    assert!(calls[0]["cpu_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_missing_field_is_reported_with_a_remedy() {
    let folder = Folder::new();
    folder.write("a.txt", "some text");
    let call = || test_stage("text-filter", &[folder.path()]);
    assert_report!(call().finish().exits(1));
    assert_eq!(json(call().argument("--text"), 0)["calls"][0]["samples"][0]["outcome"], "kept");
    let report = json(call().argument("--field=text"), 1);
    let failure = &report["calls"][0]["samples"][0]["failure"];
    assert_eq!(
        (&failure["class"], &failure["message"]),
        (&json!("data"), &json!("field `text` is a blob, not text"))
    );
}

#[test]
fn a_batch_is_one_call() {
    let folder = Folder::new();
    let lines: Vec<Value> = (0..5).map(|number| json!({ "key": number.to_string(), "text": "t" })).collect();
    let report = json(test_stage("guest-batch", &[&records(&folder, &lines)]).argument("--batch=2"), 0);
    let calls = report["calls"].as_array().unwrap();
    let sizes: Vec<usize> = calls.iter().map(|call| call["samples"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
}

#[test]
fn a_stateful_module_holds_packs_and_finishes() {
    let folder = Folder::new();
    let lines: Vec<Value> = ["a", "b", "c", "d", "drop"]
        .iter()
        .map(|key| json!({ "key": key, "text": key.to_uppercase() }))
        .collect();
    let input = records(&folder, &lines);
    // Without params in its manifest, the guest is a buffer of two samples.
    assert_report!(test_stage("guest-stateful", &[&input]).argument("--repeat=2").finish().exits(0));
}

#[test]
fn a_stateful_module_that_traps_loses_its_held_samples() {
    let folder = Folder::new();
    let lines: Vec<Value> = ["a", "b", "trap"].iter().map(|key| json!({ "key": key, "text": key })).collect();
    assert_report!(test_stage("guest-stateful", &[&records(&folder, &lines)]).finish().exits(1));
}

#[test]
fn state_that_is_carried_across_samples_is_detected() {
    let folder = Folder::new();
    let lines: Vec<Value> = ["same", "field", "key", "outcome", "reason", "field"]
        .iter()
        .enumerate()
        .map(|(number, what)| json!({ "key": format!("{number}-{what}"), "text": what }))
        .collect();
    let call = test_stage("guest-remembering", &[&records(&folder, &lines)]).argument("--repeat=3");
    assert_report!(call.finish().exits(1));
}

#[test]
fn reproducible_results_are_reported() {
    let folder = Folder::new();
    let input = records(&folder, &[json!({ "text": "one" }), json!({ "text": "two" })]);
    let report = json(test_stage("text-filter", &[&input]).argument("--repeat=3"), 0);
    assert_eq!(report["differences"], json!([]));
    assert_eq!(report["repeat"], 3);
    assert_eq!(json(test_stage("text-filter", &[&input]), 0)["differences"], Value::Null);
}

/// Runs a guest that misbehaves on the second of three samples.
fn misbehaving(how: &str) -> Finished {
    let folder = Folder::new();
    let lines: Vec<Value> = ["a", "bad", "c"].iter().map(|key| json!({ "key": key, "x": 1 })).collect();
    let call = test_stage("guest-misbehaving", &[&records(&folder, &lines)]);
    let call = call.argument("-p").argument(json!({ "how": how }).to_string()).argument("--deadline-ms=500");
    call.finish().exits(1)
}

#[test]
fn a_panic_is_reported_with_its_location_and_the_log() {
    assert_report!(misbehaving("panic-on-bad"));
}

#[test]
fn a_loop_is_ended_at_the_given_deadline() {
    assert_report!(misbehaving("loop-on-bad"));
}

#[test]
fn a_broken_contract_has_its_own_message() {
    assert_report!(misbehaving("shape-on-bad"));
}

#[test]
fn a_module_that_does_not_start_is_reported_with_a_reason() {
    let finished = misbehaving("init-error");
    assert!(finished.stdout.is_empty(), "{}", finished.stdout);
    shown().bind(|| insta::assert_snapshot!(finished.stderr));
}

#[test]
fn invalid_trials_are_bad_input() {
    let folder = Folder::new();
    let file = folder.write("a.txt", "x");
    let odd = folder.write("odd.txt", b"\xff");
    let broken = folder.write("broken.ndjson", "{\"text\": \"a\"}\n{\"text\": }\n");
    let empty = folder.write("empty.ndjson", "\n");
    let missing = folder.join("missing");
    std::fs::create_dir(folder.join("nothing")).unwrap();
    let call = || test_stage("text-filter", &[&file]);
    let calls = [
        Call::new(&["test-stage"]).argument(&file).argument("-i").argument(&file),
        Call::new(&["test-stage"]).argument(&missing).argument("-i").argument(&file),
        test_stage("text-filter", &[&missing]),
        test_stage("text-filter", &[&folder.join("nothing")]),
        test_stage("text-filter", &[&empty]),
        test_stage("text-filter", &[&broken]),
        test_stage("text-filter", &[&odd]).argument("--text"),
        call().argument(r#"-p{"max_chars": 0, "mood": "good"}"#),
        call().argument("-p[1]"),
        call().argument("-p{"),
        call().argument("-p").argument(format!("@{}", missing.display())),
        call().argument("--asset=words"),
        call().argument("--asset").argument(format!("words={}", missing.display())),
        call().argument("--batch=2"),
        call().argument("--repeat=0"),
        call().argument("--memory-mib=5000"),
        Call::new(&["test-stage"]).argument(module("text-filter")),
        Call::new(&["test-stage", "-i"]).argument(&file).argument(module("text-filter")),
    ];
    let told: Vec<String> = calls.into_iter().map(refused).collect();
    shown().bind(|| insta::assert_snapshot!(told.join("\n")));
}
