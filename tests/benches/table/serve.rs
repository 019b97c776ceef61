//! Effect of a server's other clients on a run, and cost of the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use penstock_tests::{Served, Serving};
use serde_json::{Value, json};

use crate::{Bound, Row};

const READERS: usize = 200;
/// Number of clients that open a stream of events but do not read it.
const SILENT: usize = 20;
const SHORT_RUNS: usize = 50;
/// Duration of the observation of the reference run, in seconds.
const LOOK_S: f64 = 15.0;

/// Results of one measurement.
struct Seen {
    /// Largest relative change of a figure of the reference run while all other clients are active.
    difference: f64,
    figures: String,
    p99: Duration,
    asked: usize,
    grown_mib: f64,
}

pub(crate) fn reference_run() -> Row {
    let seen = seen();
    Row {
        what: "change of a run's figures by 200 readers and 50 short runs",
        must: Bound::AtMost(2.0, " %"),
        aim: Bound::AtMost(1.0, " %"),
        found: seen.difference * 100.0,
        from: seen.figures.clone(),
    }
}

pub(crate) fn latency() -> Row {
    let seen = seen();
    Row {
        what: "response time with 200 readers and 50 runs, 99th percentile",
        must: Bound::AtMost(200.0, " ms"),
        aim: Bound::AtMost(50.0, " ms"),
        found: seen.p99.as_secs_f64() * 1e3,
        from: format!("{} requests", seen.asked),
    }
}

pub(crate) fn growth() -> Row {
    let seen = seen();
    Row {
        what: "memory of the server for 200 readers and 50 short runs",
        must: Bound::AtMost(100.0, " MiB"),
        aim: Bound::AtMost(50.0, " MiB"),
        found: seen.grown_mib,
        from: format!("{READERS} readers, {SILENT} of them never read; {SHORT_RUNS} runs at once"),
    }
}

fn seen() -> &'static Seen {
    static SEEN: OnceLock<Seen> = OnceLock::new();
    SEEN.get_or_init(look)
}

/// Document of the reference run: a stage of 25 ms in front of a consumer of 30 ms.
fn reference() -> Value {
    json!({
        "name": "reference", "threads": 1,
        "source": { "range": { "count": 1_000_000 } },
        "stages": [{ "sleep": { "name": "load", "mean_ms": 25 } }],
        "consumer": { "simulate": { "step_ms": 30 } }
    })
}

fn look() -> Seen {
    let served = Serving::default().argument("--threads=64").start();
    let id = served.submit(&reference());
    thread::sleep(Duration::from_secs(2));
    let alone = figures(&served, &id);
    let before = memory_mib(&served);
    let over = AtomicBool::new(false);
    let short = json!({ "source": { "range": { "count": 20 } }, "stages": [{ "sleep": { "mean_ms": 1 } }], "threads": 1 });
    let (beside, mut took) = thread::scope(|scope| {
        for reader in 0..READERS {
            let (address, id, over) = (served.address(), &id, &over);
            scope.spawn(move || read(address, id, reader < SILENT, over));
        }
        let asking = scope.spawn(|| {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                for path in
                    ["/runs?limit=50", "/system", &format!("/runs/{id}"), &format!("/runs/{id}/series")]
                {
                    let start = Instant::now();
                    served.get(path).is(200);
                    took.push(start.elapsed());
                }
                thread::sleep(Duration::from_millis(20));
            }
            took
        });
        let submitting: Vec<_> = (0..SHORT_RUNS).map(|_| scope.spawn(|| served.submit(&short))).collect();
        let beside = figures(&served, &id);
        over.store(true, Ordering::Relaxed);
        for run in submitting {
            assert_eq!(served.over(&run.join().unwrap())["state"], "completed");
        }
        (beside, asking.join().unwrap())
    });
    let grown_mib = memory_mib(&served) - before;
    took.sort();
    let pairs = alone.iter().zip(&beside);
    let difference =
        pairs.clone().map(|((_, alone), (_, beside))| (beside / alone - 1.0).abs()).fold(0.0, f64::max);
    let told: Vec<String> = pairs
        .map(|((what, alone), (_, beside))| format!("{what} {alone:.5} alone, {beside:.5} beside"))
        .collect();
    Seen {
        difference,
        figures: told.join("; "),
        p99: took[took.len() * 99 / 100],
        asked: took.len(),
        grown_mib,
    }
}

/// Figures of the reference run over the next [`LOOK_S`] seconds.
fn figures(served: &Served, id: &str) -> Vec<(&'static str, f64)> {
    let elapsed = || served.get(&format!("/runs/{id}")).is(200).json()["elapsed_s"].as_f64().unwrap();
    let from = elapsed();
    thread::sleep(Duration::from_secs_f64(LOOK_S));
    let to = elapsed();
    let every = (to - from).floor();
    let windows =
        served.get(&format!("/runs/{id}/windows?from_s={from}&to_s={to}&every_s={every}")).is(200).json();
    let window = &windows["items"][0];
    let figure = |pointer: &str| window.pointer(pointer).and_then(Value::as_f64).unwrap();
    vec![
        ("task time", figure("/stages/0/task/ave_time_s")),
        ("QPS", figure("/queues/2/qps")),
        ("readiness", figure("/queues/2/readiness")),
    ]
}

fn read(address: SocketAddr, id: &str, is_silent: bool, over: &AtomicBool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    write!(stream, "GET /api/v1/events?runs={id} HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).unwrap();
    assert!(line.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&line));
    if is_silent {
        while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        return;
    }
    while !over.load(Ordering::Relaxed) {
        line.clear();
        // A read that times out is tried again.
        if matches!(lines.by_ref().take(1 << 20).read_until(b'\n', &mut line), Ok(0)) {
            panic!("the stream ended before the run");
        }
    }
}

fn memory_mib(served: &Served) -> f64 {
    let system = served.get("/system").is(200).json();
    system["process"]["rss_bytes"].as_f64().unwrap() / f64::from(1 << 20)
}
