//! The consumer `files`: files that it writes, does not write again, and refuses.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use penstock_tests::{Call, Finished, Folder, photos, repository, shown};
use penstock_types::run::{FilesRecord, RunState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Number of kills of a run; `PENSTOCK_TEST_KILLS` overrides it.
const KILLS: u64 = 10;

pub(crate) const SAMPLES: u64 = 200;
pub(crate) const BATCHES: u64 = 50;

/// Pipeline that sends records through a stage with overlapping tasks of different durations into files in the folder `out`.
fn document() -> Value {
    json!({
        "name": "to-files", "seed": 5, "threads": 2,
        "source": { "records": { "store": "here", "key": "records.ndjson", "shuffle": true } },
        "stages": [
            { "sleep": { "mean_ms": 2, "jitter": 1, "concurrency": 4, "order": "input" } },
            { "aggregate": { "size": 4 } },
            { "collate": {} }
        ],
        "consumer": { "files": { "store": "out", "prefix": "train" } }
    })
}

/// A folder with records and the document, and an empty folder `out`.
pub(crate) fn prepared() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let line = |number: u64| {
        format!(
            "{}\n",
            json!({ "key": format!("k{number}"), "x": number, "caption": "ä".repeat(number as usize % 7) })
        )
    };
    folder.write("records.ndjson", (0..SAMPLES).map(line).collect::<String>());
    fs::create_dir(folder.join("out")).unwrap();
    let document = folder.document(&document());
    (folder, document)
}

pub(crate) fn call(folder: &Folder, document: &Path) -> Call {
    Call::run(document).store("here", folder.path()).store("out", &folder.join("out")).json()
}

fn run(folder: &Folder, document: &Path) -> Finished {
    call(folder, document).finish()
}

/// All objects in the folder `train` of `out`, without the state and the drafts that a killed run left.
pub(crate) fn objects(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = fs::read_dir(out.join("train")) else { return BTreeMap::new() };
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .filter(|(name, _)| !name.starts_with(".penstock-draft-") && name != "penstock-state.json")
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect()
}

pub(crate) fn batches(objects: &BTreeMap<String, Vec<u8>>) -> u64 {
    objects.keys().filter(|name| name.ends_with(".safetensors")).count() as u64
}

fn manifest(objects: &BTreeMap<String, Vec<u8>>) -> Value {
    serde_json::from_slice(&objects["penstock-files.json"]).unwrap()
}

/// Header of a safetensors file.
pub(crate) fn header(file: &[u8]) -> Value {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&file[8..8 + length]).unwrap()
}

#[test]
fn every_batch_becomes_a_file_that_names_its_samples() {
    let (folder, document) = prepared();
    let snapshot = run(&folder, &document).exits(0).snapshot();
    assert_eq!(snapshot.files, Some(FilesRecord { written: BATCHES, already_there: 0 }));
    assert_eq!(snapshot.ledger.total.delivered, SAMPLES);
    let objects = objects(&folder.join("out"));
    assert_eq!(batches(&objects), BATCHES);
    assert_eq!(objects.len() as u64, BATCHES + 1);
    shown().bind(|| insta::assert_json_snapshot!(header(&objects["batch-00000007.safetensors"])));
    shown().bind(|| insta::assert_json_snapshot!(manifest(&objects)));
    let text = Call::run(&document).store("here", folder.path()).store("out", &folder.join("out"));
    let text = text.finish().exits(0).stdout;
    let line = text.lines().find(|line| line.starts_with("[files]")).unwrap_or_default();
    assert_eq!(line, "[files] 0 batches written, 50 already present");
}

#[test]
fn files_are_the_same_bytes_for_any_number_of_threads() {
    let files = |threads: u32| {
        let folder = Folder::new();
        let call = Call::run(&repository().join("examples/pipelines/photos.json")).store("photos", photos());
        let call = call.store("out", folder.path()).threads(threads);
        let call = call.set("/source/list/limit=40");
        let call = call.set(r#"/stages/3/wasm/params/ops=[{"Resize": {"size": [48, 48]}}]"#);
        let call = call.set("/stages/1/fetch/order=input").set("/stages/3/wasm/order=input");
        let call = call.set(r#"/consumer={"files": {"store": "out", "prefix": "train/"}}"#);
        call.json().finish().exits(0);
        objects(folder.path())
    };
    let one = files(1);
    assert_eq!(batches(&one), 10);
    for threads in [2, 12] {
        assert!(files(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_shape_that_overflows_in_a_batch_fails_its_sample() {
    let folder = Folder::new();
    folder.records(["a", "b", "c", "d"]);
    fs::create_dir(folder.join("out")).unwrap();
    let document = folder.document(&json!({
        "name": "shapes",
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [
            { "wasm": { "module": "guest", "params": { "how": "shape-of-nothing" } } },
            { "aggregate": { "size": 2 } },
            { "collate": {} }
        ],
        "consumer": { "files": { "store": "out" } }
    }));
    let snapshot = call(&folder, &document).module("guest", "guest-misbehaving").finish().exits(1).snapshot();
    assert_eq!((snapshot.state, snapshot.ledger.total.skipped), (RunState::Failed, 4));
    assert!(
        snapshot.error.unwrap().starts_with("all 4 samples of epoch 0 failed, the first in stage `1:guest`")
    );
}

/// A random number generator; it only needs to be reproducible.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn a_killed_run_leaves_complete_files_and_a_second_run_writes_the_missing_ones() {
    let (reference, document) = prepared();
    run(&reference, &document).exits(0);
    let reference = objects(&reference.join("out"));
    let kills: u64 = env::var("PENSTOCK_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut state = 7;
    let mut cut_short = 0;
    for kill in 0..kills {
        let (folder, document) = prepared();
        let out = folder.join("out");
        let call = call(&folder, &document);
        let mut child = call.start();
        // Each kill waits for a different number of written batches, spread over the run, and then for a few milliseconds.
        let after = kill * BATCHES / kills;
        while batches(&objects(&out)) < after && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_micros(random(&mut state) % 8_000));
        child.kill().unwrap();
        call.finished(child);

        let left = objects(&out);
        let there = batches(&left);
        for (name, file) in left.iter().filter(|(name, _)| name.ends_with(".safetensors")) {
            assert!(file == &reference[name], "kill {kill}: {name} is torn");
        }
        cut_short += u64::from(there < BATCHES);
        let snapshot = run(&folder, &document).exits(0).snapshot();
        let files = FilesRecord { written: BATCHES - there, already_there: there };
        assert_eq!(snapshot.files, Some(files), "kill {kill}");
        assert!(objects(&out) == reference, "kill {kill}: the files differ from those of an undisturbed run");
    }
    assert!(cut_short * 2 > kills, "only {cut_short} of {kills} runs were killed before their end");
}

#[test]
fn a_stopped_run_counts_written_batches_as_delivered_and_is_not_complete() {
    let (folder, document) = prepared();
    let out = folder.join("out");
    let call = call(&folder, &document).set("/stages/0/sleep/mean_ms=20");
    let mut child = call.start();
    while batches(&objects(&out)) < 5 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was stopped");
        sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let snapshot = call.finished(child).exits(130).snapshot();
    assert_eq!(snapshot.state, RunState::Stopped);
    let left = objects(&out);
    assert_eq!(snapshot.ledger.total.delivered, 4 * batches(&left));
    assert_eq!(snapshot.files.unwrap().written, batches(&left));
    assert_eq!(manifest(&left)["complete"], Value::Null);

    // The written bytes do not depend on how long the stages sleep.
    let snapshot = run(&folder, &document).exits(0).snapshot();
    assert_eq!(snapshot.files.unwrap().already_there, batches(&left));
    assert_eq!(manifest(&objects(&out))["complete"], json!({ "batches": BATCHES, "samples": SAMPLES }));
}

#[test]
fn a_run_whose_time_is_up_is_not_complete() {
    let (folder, document) = prepared();
    let call = call(&folder, &document).set("/stages/0/sleep/mean_ms=50").argument("--for=400ms");
    let snapshot = call.finish().exits(0).snapshot();
    let left = objects(&folder.join("out"));
    assert_eq!(snapshot.ledger.total.delivered, 4 * batches(&left));
    assert_eq!(manifest(&left)["complete"], Value::Null);
}

#[test]
fn settings_that_affect_no_byte_may_differ_and_other_differences_are_refused() {
    let (folder, document) = prepared();
    run(&folder, &document).exits(0);
    let before = objects(&folder.join("out"));
    let same = call(&folder, &document)
        .threads(7)
        .set("/name=other")
        .set(r#"/sink={"queue": 9}"#)
        .set("/buffer_mib=1");
    let same = same.set("/stages/0/sleep/concurrency=2").set("/stages/0/sleep/on_error=fail");
    let snapshot = same.finish().exits(0).snapshot();
    assert_eq!(snapshot.files, Some(FilesRecord { written: 0, already_there: BATCHES }));

    let other = call(&folder, &document).set("/seed=6").set("/stages/1/aggregate/size=8");
    let refused = other.set("/source/records/limit=100").finish().exits(2);
    shown().bind(|| insta::assert_snapshot!(refused.stderr));
    assert!(objects(&folder.join("out")) == before);
}

#[test]
fn files_whose_order_is_not_fixed_are_written_once() {
    let (folder, document) = prepared();
    let unordered = || call(&folder, &document).set("/stages/0/sleep/order=completion");
    unordered().finish().exits(0);
    let refused = unordered().finish().exits(2);
    shown().bind(|| insta::assert_snapshot!(refused.stderr));
}

#[test]
fn a_folder_with_other_files_is_refused_before_the_run() {
    let (folder, document) = prepared();
    folder.write("out/train/notes.txt", "mine");
    let foreign = run(&folder, &document).exits(2).stderr;
    fs::remove_file(folder.join("out/train/notes.txt")).unwrap();
    folder.write("out/train/batch-00000003.safetensors", "mine");
    let unnamed = run(&folder, &document).exits(2).stderr;
    folder.write("out/train/penstock-files.json", "{}");
    let unreadable = run(&folder, &document).exits(2).stderr;
    shown().bind(|| insta::assert_snapshot!([foreign, unnamed, unreadable].join("\n")));
    assert_eq!(objects(&folder.join("out")).len(), 2);
}

#[test]
fn a_file_of_other_samples_fails_the_run_and_is_left_alone() {
    let (folder, document) = prepared();
    run(&folder, &document).exits(0);
    let out = folder.join("out");
    let before = objects(&out);
    // Replaces the records by equally many records with other keys.
    let text = fs::read_to_string(folder.join("records.ndjson")).unwrap();
    folder.write("records.ndjson", text.replace("\"k", "\"new-"));
    let failed = run(&folder, &document).exits(1);
    shown().bind(|| insta::assert_snapshot!(failed.stderr));
    assert_eq!(failed.snapshot().state, RunState::Failed);
    assert!(objects(&out) == before);
}

#[test]
fn a_file_of_other_data_under_the_same_keys_fails_the_run_and_is_left_alone() {
    let (folder, document) = prepared();
    run(&folder, &document).exits(0);
    let out = folder.join("out");
    fs::remove_file(out.join("train/batch-00000049.safetensors")).unwrap();
    let mut left = objects(&out);
    left.remove("penstock-files.json");
    // Replaces every text by another one of the same length in bytes.
    let text = fs::read_to_string(folder.join("records.ndjson")).unwrap();
    folder.write("records.ndjson", text.replace('ä', "ö"));
    let failed = run(&folder, &document).exits(1).stderr;
    assert!(
        failed.contains("of this run: its samples have the same keys, but other data; the source's data"),
        "{failed}"
    );
    let mut after = objects(&out);
    assert_eq!(manifest(&after)["complete"], Value::Null);
    after.remove("penstock-files.json");
    assert!(after == left, "{:?}", after.keys());
}

#[test]
fn two_concurrent_runs_both_succeed_only_if_they_write_the_same_files() {
    let (reference, document) = prepared();
    run(&reference, &document).exits(0);
    let reference = objects(&reference.join("out"));
    for other_seed in [5, 6] {
        let (folder, document) = prepared();
        let calls = [call(&folder, &document), call(&folder, &document).set(&format!("/seed={other_seed}"))];
        let [one, other] = calls.each_ref().map(Call::start);
        let (one, other) = (calls[0].finished(one), calls[1].finished(other));
        if other_seed == 5 {
            let counts = [one.exits(0), other.exits(0)].map(|finished| finished.snapshot().files.unwrap());
            assert_eq!(counts[0].written + counts[1].written, BATCHES);
            assert_eq!(counts[0].already_there + counts[1].already_there, BATCHES);
            assert!(objects(&folder.join("out")) == reference);
        } else {
            let codes = [one.code, other.code];
            assert!(
                matches!(codes, [Some(0), Some(2)] | [Some(2), Some(0)]),
                "{}{}",
                one.stderr,
                other.stderr
            );
            let (ended, refused) = if one.code == Some(0) { (one, other) } else { (other, one) };
            assert!(refused.stderr.contains("holds the files of another pipeline"), "{}", refused.stderr);
            assert!(refused.stderr.contains("/document/seed: there "), "{}", refused.stderr);
            assert_eq!(ended.snapshot().files, Some(FilesRecord { written: BATCHES, already_there: 0 }));
        }
    }
}

#[test]
fn files_beyond_the_end_of_the_data_fail_the_run() {
    let (folder, document) = prepared();
    run(&folder, &document).exits(0);
    let text = fs::read_to_string(folder.join("records.ndjson")).unwrap();
    let fewer: Vec<&str> = text.lines().collect();
    // Without shuffling, so that a shorter run has the same first batches.
    let in_order = || call(&folder, &document).set("/source/records/shuffle=false");
    fs::remove_dir_all(folder.join("out/train")).unwrap();
    in_order().finish().exits(0);
    folder.write("records.ndjson", fewer[..100].join("\n"));
    let failed = in_order().finish().exits(1);
    shown().bind(|| insta::assert_snapshot!(failed.stderr));
}

#[test]
fn a_truncated_file_is_detected() {
    let (folder, document) = prepared();
    run(&folder, &document).exits(0);
    let torn = folder.join("out/train/batch-00000011.safetensors");
    let whole = fs::read(&torn).unwrap();
    fs::write(&torn, &whole[..whole.len() - 1]).unwrap();
    let failed = run(&folder, &document).exits(1);
    shown().bind(|| insta::assert_snapshot!(failed.stderr));
}

#[test]
fn a_batch_that_cannot_be_written_fails_the_run_with_its_key_and_the_reason() {
    let (folder, document) = prepared();
    let line = |number: u64| {
        let length = if number < 24 { 10 } else { 20_000 };
        format!("{}\n", json!({ "key": format!("k{number}"), "caption": "x".repeat(length) }))
    };
    folder.write("records.ndjson", (0..40).map(line).collect::<String>());
    let call = call(&folder, &document).set("/source/records/shuffle=false");
    // Files of more than 8 KiB cannot be written, as on a full disk.
    let inner = call.command();
    let mut limited = Command::new("bash");
    limited.args(["-c", r#"trap "" XFSZ; ulimit -f 8; exec "$0" "$@""#]);
    limited.arg(inner.get_program()).args(inner.get_args());
    let output = limited.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let objects = objects(&folder.join("out"));
    let failed = stderr.lines().last().unwrap_or_default();
    let (_, key) = failed.split_once("`train/batch-0000000").expect(failed);
    assert!(matches!(&key[..1], "6" | "7" | "8" | "9"), "{failed}");
    assert!(failed.contains("File too large"), "{failed}");
    let snapshot: penstock_types::run::RunSnapshot = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(snapshot.state, RunState::Failed);
    assert!(snapshot.ledger.balanced);
    // Only written batches count as delivered.
    assert_eq!(snapshot.ledger.total.delivered, 4 * batches(&objects));
    assert_eq!(batches(&objects), 6);
}
