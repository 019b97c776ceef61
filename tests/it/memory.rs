//! Memory does not grow with the amount of data.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use penstock_tests::{Call, Folder};
use penstock_types::run::{RunSnapshot, RunState};
use serde_json::json;

/// Number of runs of each length. The peak of a single run depends slightly on the timing of its threads; the minimum of several
/// runs does not.
const RUNS: usize = 3;

/// Capacity of a pipe: 16 pages.
const PIPE_BYTES: usize = 64 << 10;

/// A run that has ended, and its peak of resident memory in KiB.
struct Ended {
    peak_kib: u64,
    snapshot: RunSnapshot,
}

/// Runs a pipeline to its end.
///
/// The kernel discards the peak when the process ends, and the figure of `wait` includes the parent's memory. So a full pipe
/// blocks the process while it prints its snapshot; by then the run is over, since the snapshot's file exists.
fn ended(call: Call) -> Ended {
    let out = Folder::new();
    let written = out.join("run/snapshot.json");
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b' '; PIPE_BYTES]).unwrap();
    let call = call.out(&out.join("run")).json().argument("--quiet");
    let mut child = call.command().stdout(writer).spawn().unwrap();
    while !written.exists() {
        assert!(child.try_wait().unwrap().is_none(), "the process ended before the snapshot was written");
        sleep(Duration::from_millis(5));
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let exit = child.wait().unwrap();
    let snapshot: RunSnapshot = serde_json::from_str(text.trim_start()).unwrap();
    assert!(snapshot.ledger.balanced);
    assert_eq!(exit.success(), snapshot.state == RunState::Completed);
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a living process has a peak");
    Ended { peak_kib: peak.trim().trim_end_matches(" kB").parse().unwrap(), snapshot }
}

fn peak_kib(call: Call, delivers: u64) -> u64 {
    let ended = ended(call);
    assert_eq!(ended.snapshot.ledger.total.delivered, delivers);
    ended.peak_kib
}

/// Objects of 1 MiB that take no space on disk.
fn large_objects(count: usize) -> Folder {
    let folder = Folder::new();
    for number in 0..count {
        fs::File::create(folder.join(&format!("{number:04}"))).unwrap().set_len(1 << 20).unwrap();
    }
    folder
}

/// Maximum memory of a run over large objects within a budget of 32 MiB, in KiB: the sum of the peak of a run over one
/// object, the budget, and half of the budget for reads in progress and the allocator.
fn most_kib(document: &Path, store: &Folder) -> u64 {
    let one = Call::run(document).set("/source/list/limit=1").store("large", store.path());
    peak_kib(one, 1) + (48 << 10)
}

/// Minimum peaks of short and of long runs, in KiB.
fn peaks(run: impl Fn(u64) -> Call) -> (u64, u64) {
    let least = |samples| (0..RUNS).map(|_| peak_kib(run(samples), samples)).min().unwrap();
    (least(1_000), least(100_000))
}

fn is_flat((short, long): (u64, u64)) {
    assert!(long * 10 <= short * 11, "peak memory grew from {short} KiB to {long} KiB");
}

#[test]
fn peak_memory_of_a_computing_pipeline_is_flat() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "threads": 2,
        "source": { "range": { "count": 1, "shuffle": true } },
        "stages": [
            { "wasm": { "module": "guest", "params": { "how": "good" }, "concurrency": 4 } },
            { "aggregate": { "size": 32 } },
            { "collate": {} }
        ]
    }));
    is_flat(peaks(|samples| {
        let call = Call::run(&document).module("guest", "guest-misbehaving");
        call.set(&format!("/source/range/count={samples}"))
    }));
}

#[test]
fn a_batch_larger_than_the_budget_fails_the_run() {
    let store = large_objects(400);
    let folder = Folder::new();
    let document = folder.document(&json!({
        "buffer_mib": 32,
        "source": { "list": { "store": "large" } },
        "stages": [{ "fetch": { "concurrency": 8 } }, { "aggregate": { "size": 1_000_000 } }]
    }));
    let Ended { peak_kib, snapshot } = ended(Call::run(&document).store("large", store.path()));
    assert_eq!(snapshot.state, RunState::Failed);
    let error = snapshot.error.unwrap();
    assert!(error.contains("more memory than `buffer_mib` allows"), "{error}");
    assert!(error.contains("`2:aggregate` 3") && error.contains("of 1000000 samples"), "{error}");
    let most_kib = most_kib(&document, &store);
    assert!(peak_kib < most_kib, "{peak_kib} KiB, may take {most_kib} KiB");
}

#[test]
fn results_that_wait_for_a_slow_consumer_stay_within_the_budget() {
    let store = large_objects(400);
    let folder = Folder::new();
    let document = folder.document(&json!({
        "buffer_mib": 32,
        "source": { "list": { "store": "large" } },
        "stages": [{ "fetch": { "concurrency": 400, "order": "input" } }],
        "consumer": { "simulate": { "step_ms": 2 } }
    }));
    let peak_kib = peak_kib(Call::run(&document).store("large", store.path()), 400);
    let most_kib = most_kib(&document, &store);
    assert!(peak_kib < most_kib, "{peak_kib} KiB, may take {most_kib} KiB");
}
