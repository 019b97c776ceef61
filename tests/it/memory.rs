//! Memory does not grow with the data.

use std::fs;
use std::io::{Read, Write};
use std::thread::sleep;
use std::time::Duration;

use penstock_tests::{Call, Folder};
use penstock_types::run::RunSnapshot;
use serde_json::json;

/// How often each length is run. A run's peak depends a little on how its threads met; the least of some does not.
const RUNS: usize = 3;

/// What a pipe holds: 16 pages.
const PIPE_BYTES: usize = 64 << 10;

/// Runs a pipeline to its end and gives its peak of resident memory in KiB.
///
/// The kernel forgets the peak when the process ends, and what `wait` tells includes its parent's memory. So the process
/// is held where it prints its snapshot, by a pipe that is full: by then the run is over, as the snapshot's file says.
fn peak_kib(call: Call, delivers: u64) -> u64 {
    let out = Folder::new();
    let written = out.join("run/snapshot.json");
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b' '; PIPE_BYTES]).unwrap();
    let call = call.out(&out.join("run")).json().argument("--quiet");
    let mut child = call.command().stdout(writer).spawn().unwrap();
    while !written.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was written down");
        sleep(Duration::from_millis(5));
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    let snapshot: RunSnapshot = serde_json::from_str(text.trim_start()).unwrap();
    assert!(snapshot.ledger.balanced);
    assert_eq!(snapshot.ledger.total.delivered, delivers);
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a living process has a peak");
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The least peaks of a short and a long run.
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
