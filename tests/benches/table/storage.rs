//! `penstock bench storage` on a bucket with latency and a tail: what it reaches, against what latency allows.

use std::process::Command;

use penstock_tests::Folder;
use serde_json::{Value, json};

use crate::s3::Server;
use crate::{Bound, Row, photos_dir, target_dir};

const LATENCY_S: f64 = 0.02;
/// Every so manieth answer takes longer: so long.
const TAIL: (u64, f64) = (100, 0.2);

/// `async` against `sync` with two workers and 8 reads at a time, on 2,000 photos.
pub(crate) fn several_at_a_time() -> Row {
    let report = report(&json!({ "workers": [2], "in_flight": 8, "batch_size": 50, "repeats": 1 }));
    let [one, several] = [0, 1].map(|place| rate(&report, place));
    Row {
        what: "storage: 8 reads at a time against one, 2 workers, bucket of 20 ms",
        must: Bound::AtLeast(4.0, "x"),
        aim: Bound::AtLeast(6.5, "x"),
        found: several / one,
        from: format!("2,000 photos, every 100th answer after 200 ms: {several:.1}/s against {one:.1}/s"),
    }
}

pub(crate) fn sixteen_workers() -> Row {
    little("storage: 16 in flight, of what Little's law allows", 16, 0.9, 0.95)
}

pub(crate) fn thirty_two_workers() -> Row {
    little("the same with 32", 32, 0.9, 0.97)
}

/// Workers that read one item after another: no batch waits for its slowest item while permits rest.
fn little(what: &'static str, workers: u32, must: f64, aim: f64) -> Row {
    let load =
        json!({ "modes": ["sync"], "workers": [workers], "batch_size": 10, "repeats": 5, "prefetch": 4 });
    let report = report(&load);
    let latency = LATENCY_S + (TAIL.1 - LATENCY_S) / TAIL.0 as f64;
    let limit = f64::from(workers) / latency;
    let rate = rate(&report, 0);
    let in_flight = cell(&report, 0)["little"]["in_flight"].as_f64().unwrap();
    Row {
        what,
        must: Bound::AtLeast(must, "x"),
        aim: Bound::AtLeast(aim, "x"),
        found: rate / limit,
        from: format!("{rate:.0}/s of {limit:.0}/s, {in_flight:.1} in flight"),
    }
}

/// What the binary finds on the photos behind a server of its own.
fn report(load: &Value) -> Value {
    let tail = [format!("--tail={}ms", TAIL.1 * 1e3), format!("--tail-every={}", TAIL.0)];
    let root = format!("--root={}", photos_dir().display());
    let server = Server::start(&[&root, &tail[0], &tail[1]]);
    let folder = Folder::new();
    let dataset = json!({
        "aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "data", "endpoint_url": server.endpoint()
    });
    let dataset = folder.write("photos.json", dataset.to_string());
    let document = json!({
        "source": { "list": { "store": "photos", "suffix": ".jpg" } }, "ceiling": false,
        "actions": [{ "whole_set": load }]
    });
    let document = folder.write("bench.json", document.to_string());
    let told = Command::new(target_dir().join("release/penstock"))
        .args(["bench", "storage", "--json", "--quiet", "--store"])
        .arg(format!("photos={}", dataset.display()))
        .arg(document)
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    serde_json::from_slice(&told.stdout).unwrap()
}

fn cell(report: &Value, place: usize) -> &Value {
    let cell = &report["actions"][0]["whole_set"][place];
    assert_eq!(cell["books"]["balanced"], true);
    cell
}

fn rate(report: &Value, place: usize) -> f64 {
    cell(report, place)["items_per_s"].as_f64().unwrap()
}
