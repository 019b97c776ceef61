//! Output of a run: the snapshot on standard output, and the files of `--out`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use penstock_s3_server::{Fault, Server, Settings as ServerSettings, Trouble};
use penstock_tests::{Call, Folder, lines, repository, shown};
use penstock_types::run::{Disposition, FailureRecord, RunSnapshot, RunState, Window};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Document with a sleep that fails for a fifth of the samples, the same ones in every run.
fn failing(on_error: &str) -> Value {
    json!({
        "name": "failing", "seed": 3, "threads": 2, "interval_s": 0.05, "max_failures": null,
        "source": { "range": { "count": 200 } },
        "stages": [
            { "sleep": { "mean_ms": 2, "concurrency": 4, "fail_rate": 0.2, "on_error": on_error, "order": "input" } },
            { "aggregate": { "size": 8 } }
        ]
    })
}

fn run(document: &Path, out: &Path) -> RunSnapshot {
    Call::run(document).out(out).argument("--quiet").finish().exits(0).snapshot()
}

#[test]
fn with_json_only_the_snapshot_is_printed_on_standard_output() {
    let toy = repository().join("examples/pipelines/toy-baseline.json");
    let finished = Call::run(&toy).json().finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.state, snapshot.name.as_str()), (RunState::Completed, "toy-baseline"));
    let value: Value = serde_json::from_str(&finished.stdout).unwrap();
    let mut members: Vec<&String> = value.as_object().unwrap().keys().collect();
    members.sort();
    shown().bind(|| insta::assert_json_snapshot!(members));
}

#[test]
fn the_written_document_is_the_one_that_ran_and_can_run_again() {
    let folder = Folder::new();
    let document = folder.document(&failing("skip"));
    let first = folder.join("first");
    let call = Call::run(&document).set("/source/range/count=120").threads(3).out(&first).argument("--quiet");
    let one = call.finish().exits(0).snapshot();
    let two = run(&first.join("spec.json"), &folder.join("second"));
    assert_eq!((one.threads, one.ledger.total.made), (3, 120));
    assert_eq!(one.ledger, two.ledger);
    assert_ne!(one.id, two.id);
    let failed = |run: &str| {
        let errors: Vec<FailureRecord> = lines(&folder.join(run).join("errors.ndjson"));
        BTreeSet::from_iter(errors.into_iter().map(|error| error.index))
    };
    assert_eq!(failed("first"), failed("second"));
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(text("first/spec.json"), text("second/spec.json"));
}

#[test]
fn windows_add_up_to_the_snapshot_and_leave_no_gap() {
    let folder = Folder::new();
    let snapshot = run(&folder.document(&failing("skip")), &folder.join("out"));
    let windows: Vec<Window> = lines(&folder.join("out/windows.ndjson"));
    assert!(windows.len() >= 2, "{} windows", windows.len());
    assert_eq!(windows[0].t0_s, 0.0);
    for pair in windows.windows(2) {
        assert_eq!(pair[0].t1_s, pair[1].t0_s);
    }
    for (at, stage) in snapshot.stages.iter().enumerate() {
        let records = || windows.iter().map(|window| &window.stages[at]);
        assert!(records().all(|record| record.id == stage.id));
        let tasks: u64 = records().map(|record| record.task.num_tasks).sum();
        let failures: u64 = records().map(|record| record.task.num_failures).sum();
        let samples: u64 = records().map(|record| record.task.failed_samples).sum();
        let whole = &stage.task;
        assert_eq!((tasks, failures, samples), (whole.num_tasks, whole.num_failures, whole.failed_samples));
    }
    for (at, queue) in snapshot.queues.iter().enumerate() {
        let items: u64 = windows.iter().map(|window| window.queues[at].figures.num_items).sum();
        assert_eq!(items, queue.figures.num_items, "{}", queue.id);
    }
}

#[test]
fn every_failed_sample_is_a_line_of_errors() {
    let folder = Folder::new();
    let snapshot = run(&folder.document(&failing("skip")), &folder.join("out"));
    let errors: Vec<FailureRecord> = lines(&folder.join("out/errors.ndjson"));
    let skipped = snapshot.ledger.total.skipped;
    assert!((20..=60).contains(&skipped), "{skipped} of 200 at a rate of 0.2");
    assert_eq!(errors.len() as u64, skipped);
    assert_eq!(snapshot.failures.iter().map(|group| group.count).sum::<u64>(), skipped);
    assert!(errors.iter().all(|error| error.stage == "1:sleep" && error.disposition == Disposition::Skipped));
    assert!(!folder.join("out/dead_letters.ndjson").exists());
}

#[test]
fn dead_letters_keep_the_input_and_the_module_that_refused_it() {
    let folder = Folder::new();
    folder.records(["a", "bad", "c"]);
    let document = folder.document(&json!({
        "threads": 1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "wasm": {
            "module": "guest", "params": { "how": "shape-on-bad" }, "on_error": "dead_letter"
        } }]
    }));
    let call = Call::run(&document).store("here", folder.path()).module("guest", "guest-misbehaving");
    let snapshot = call.out(&folder.join("out")).finish().exits(0).snapshot();
    let total = snapshot.ledger.total;
    assert_eq!((total.delivered, total.dead_lettered, total.skipped), (2, 1, 0));
    let letters: Vec<Value> = lines(&folder.join("out/dead_letters.ndjson"));
    shown().bind(|| insta::assert_json_snapshot!(letters));
}

#[test]
fn a_folder_that_contains_a_run_is_refused_and_not_changed() {
    let folder = Folder::new();
    let document = folder.document(&failing("skip"));
    let out = folder.join("out");
    run(&document, &out);
    let before = fs::read_to_string(out.join("snapshot.json")).unwrap();
    let refused = Call::run(&document).out(&out).finish().exits(2);
    shown().bind(|| insta::assert_snapshot!(refused.stderr));
    assert_eq!(fs::read_to_string(out.join("snapshot.json")).unwrap(), before);
}

#[test]
fn only_one_of_two_concurrent_runs_gets_the_output_folder() {
    for _again in 0..5 {
        let folder = Folder::new();
        let document = folder.document(&json!({ "source": { "range": { "count": 3 } } }));
        let call = Call::run(&document).out(&folder.join("out")).argument("--quiet");
        let children = [call.start(), call.start()];
        let [one, other] = children.map(|child| call.finished(child));
        let codes = [one.code, other.code];
        assert!(matches!(codes, [Some(0), Some(2)] | [Some(2), Some(0)]), "{}{}", one.stderr, other.stderr);
        let refused = format!("{}{}", one.stderr, other.stderr);
        assert!(refused.ends_with("already holds a run; choose another folder or remove it\n"), "{refused}");
        assert_eq!(one.snapshot().ledger.total.delivered, 3);
    }
}

/// Document with five samples that fail, then many that take time.
fn failing_first(folder: &Folder) -> Value {
    let keys: Vec<String> =
        (0..500).map(|number| format!("{}{number}", if number < 5 { "bad" } else { "good" })).collect();
    folder.records(keys.iter().map(String::as_str));
    json!({
        "threads": 1, "interval_s": 0.1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [
            { "wasm": { "module": "guest", "params": { "how": "failed-on-bad" }, "on_error": "dead_letter" } },
            { "sleep": { "mean_ms": 100 } }
        ]
    })
}

#[test]
fn failures_are_on_disk_with_the_next_window_and_survive_a_kill() {
    let folder = Folder::new();
    let document = folder.document(&failing_first(&folder));
    let out = folder.join("out");
    let call = Call::run(&document).store("here", folder.path()).module("guest", "guest-misbehaving");
    let call = call.out(&out).argument("--quiet");
    let mut child = call.start();
    let windows = || -> Vec<Window> {
        let text = fs::read_to_string(out.join("windows.ndjson")).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let failed =
        |windows: &[Window]| windows.iter().map(|window| window.stages[0].task.failed_samples).sum::<u64>();
    // Waits for one more window than the one that counts the failures, since a failure is counted before it is written.
    while failed(windows().split_last().map_or(&[], |(_, before)| before)) < 5 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was killed");
        sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    call.finished(child);
    let letters: Vec<Value> = lines(&out.join("dead_letters.ndjson"));
    let errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    assert_eq!((letters.len(), errors.len()), (5, 5));
}

#[test]
fn failures_survive_a_second_ctrl_c() {
    let server = Server::start(ServerSettings::default()).unwrap();
    server.inject(Fault::on("safetensors", Trouble::Hang));
    let folder = Folder::new();
    let mut document = failing_first(&folder);
    // No window is written before the end of the run, and stopping the run waits for a batch that is never written.
    document["interval_s"] = json!(600);
    document["stages"][0]["wasm"]["order"] = json!("input");
    document["stages"][1] = json!({ "aggregate": { "size": 1 } });
    document["stages"].as_array_mut().unwrap().push(json!({ "collate": {} }));
    document["consumer"] = json!({ "files": { "store": "out", "prefix": "train" } });
    let document = folder.document(&document);
    let bucket = json!({
        "aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "data", "endpoint_url": server.endpoint()
    });
    let bucket = folder.write("bucket.json", bucket.to_string());
    let out = folder.join("out");
    let call = Call::run(&document).store("here", folder.path()).store("out", &bucket).out(&out);
    let call = call.module("guest", "guest-misbehaving").argument("--quiet");
    let mut child = call.start();
    while !server.seen().iter().any(|seen| seen.key.ends_with("batch-00000000.safetensors")) {
        sleep(Duration::from_millis(5));
    }
    // Signals are repeated: one soon after the first counts as a duplicate, a later one ends the process.
    while child.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        sleep(Duration::from_millis(500));
    }
    call.finished(child).exits(130);
    assert!(!out.join("snapshot.json").exists(), "the run ended regularly");
    let letters: Vec<Value> = lines(&out.join("dead_letters.ndjson"));
    assert_eq!(letters.len(), 5);
}

#[test]
fn too_many_failures_end_the_run_and_finished_samples_are_delivered() {
    let folder = Folder::new();
    let document = folder.document(&failing("skip"));
    let call = Call::run(&document).set("/max_failures={\"count\": 10}").out(&folder.join("out"));
    let finished = call.argument("--quiet").finish().exits(1);
    let snapshot = finished.snapshot();
    let total = &snapshot.ledger.total;
    assert_eq!(snapshot.state, RunState::Failed);
    // The eleventh failure ends the run; tasks in progress may also fail.
    assert!((11..=15).contains(&total.skipped), "{total:?}");
    assert!(total.made < 200 && total.delivered > 0, "{total:?}");
    shown().bind(|| insta::assert_snapshot!(finished.stderr));
}

#[test]
fn a_failure_limit_of_a_stage_names_the_stage() {
    let folder = Folder::new();
    let document = folder.document(&failing("skip"));
    let call = Call::run(&document).set("/stages/0/sleep/max_failures={\"rate\": 0.05}").json();
    let finished = call.finish().exits(1);
    assert_eq!(finished.snapshot().state, RunState::Failed);
    shown().bind(|| insta::assert_snapshot!(finished.stderr.lines().last().unwrap_or_default().to_owned()));
}
