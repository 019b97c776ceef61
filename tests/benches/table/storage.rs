//! `penstock bench storage` on a bucket with latency, compared with the limit set by latency; and small files in memory.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_storage::{FolderStore, Store};
use penstock_tests::Folder;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::s3::Server;
use crate::{Bound, Row, median, photos_dir, take_turns, target_dir};

const LATENCY_S: f64 = 0.02;
/// Number of responses of which one is slow, and the latency of the slow ones in seconds.
const TAIL: (u64, f64) = (100, 0.2);

const INDEX: &str = "index.json";
/// Number of times that the index contains each photo.
const TIMES: usize = 2;
const WORKERS: u32 = 2;

const FILES: usize = 300_000;
const FILE_BYTES: usize = 100;
/// Number of tasks that read files.
const READERS: usize = 8;

/// Rate of two `async` workers with 8 reads at a time each, relative to two `sync` workers, on 2,000 photos.
pub(crate) fn several_at_a_time() -> Row {
    let all = json!({ "list": { "store": "photos", "suffix": ".jpg" } });
    let tail = [format!("--tail={}ms", TAIL.1 * 1e3), format!("--tail-every={}", TAIL.0)];
    let load = json!({ "workers": [WORKERS], "in_flight": 8, "batch_size": 50, "repeats": 1 });
    let report = report(&all, &load, &tail);
    let [one, several] = [0, 1].map(|place| rate(&report, place));
    Row {
        what: "storage, 20 ms: rate of 8 reads at a time, relative to one",
        must: Bound::AtLeast(4.0, "x"),
        aim: Bound::AtLeast(6.5, "x"),
        found: several / one,
        from: format!("2,000 photos, every 100th answer after 200 ms: {several:.1}/s against {one:.1}/s"),
    }
}

pub(crate) fn sixteen_in_flight() -> Row {
    little("storage: rate of 16 reads in flight, relative to Little's law", 16, 0.9, 0.95)
}

pub(crate) fn thirty_two_in_flight() -> Row {
    little("storage: rate of 32 reads in flight, relative to Little's law", 32, 0.9, 0.97)
}

/// Rate of reads of small files in memory, relative to reads of the same files on blocking threads, as all reads of ranges are.
pub(crate) fn small_files_in_memory() -> Row {
    let folder = Folder::new();
    let keys: Arc<[Arc<str>]> = (0..FILES)
        .map(|number| {
            let key = format!("{:03}/{number:06}.bin", number / 1000);
            folder.write(&key, [7; FILE_BYTES]);
            Arc::from(key)
        })
        .collect();
    let store = Arc::new(FolderStore::open("data", folder.path()).unwrap());
    let runtime = Runtime::new().unwrap();
    let pass = |is_range: bool| {
        let start = Instant::now();
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for task in 0..READERS {
                let (store, keys) = (store.clone(), keys.clone());
                tasks.spawn(async move {
                    for key in keys.iter().skip(task).step_by(READERS) {
                        let read = match is_range {
                            true => store.get_range(key.clone(), None, 0..FILE_BYTES as u64),
                            false => store.get(key.clone()),
                        };
                        assert_eq!(read.await.unwrap().len(), FILE_BYTES);
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
        });
        start.elapsed()
    };
    let (switched_s, found_s, ratio) = take_turns(|| pass(true), || pass(false));
    let each_us = |seconds: f64| seconds * 1e6 / FILES as f64;
    Row {
        what: "files of 100 bytes in memory: rate, relative to blocking threads",
        must: Bound::AtLeast(2.0, "x"),
        aim: Bound::AtLeast(3.0, "x"),
        found: ratio,
        from: format!("{:.1} us against {:.1} us a file", each_us(found_s), each_us(switched_s)),
    }
}

/// Rate of two workers that share the permitted reads in flight, relative to the limit of Little's law. Every response takes the
/// same time, batches are large and the index contains every photo several times, so that the ends of batches, when some permits
/// are unused, are a small part of a pass.
fn little(what: &'static str, in_flight: u32, must: f64, aim: f64) -> Row {
    let load = json!({
        "modes": ["async"], "workers": [WORKERS], "in_flight": in_flight / WORKERS, "batch_size": 1000, "repeats": 7
    });
    let report = report(&json!({ "index": { "store": "photos", "index": INDEX } }), &load, &[]);
    let limit = f64::from(in_flight) / LATENCY_S;
    let passes = cell(&report, 0)["passes"].as_array().unwrap();
    let rate = median(passes.iter().map(|pass| pass["items_per_s"].as_f64().unwrap()).collect());
    let mean = cell(&report, 0)["little"]["in_flight"].as_f64().unwrap();
    Row {
        what,
        must: Bound::AtLeast(must, "x"),
        aim: Bound::AtLeast(aim, "x"),
        found: rate / limit,
        from: format!("{rate:.0}/s of {limit:.0}/s, {mean:.1} in flight on average"),
    }
}

/// An index that contains all photos several times.
fn index() -> Vec<u8> {
    let folders = fs::read_dir(photos_dir()).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path());
    let keys = files.map(|file| file.strip_prefix(photos_dir()).unwrap().to_str().unwrap().to_owned());
    let keys: Vec<String> = keys.collect();
    serde_json::to_vec(&[&keys[..]; TIMES].concat()).unwrap()
}

/// Report of a benchmark that the binary runs over the photos on a separate server with these settings.
fn report(source: &Value, load: &Value, settings: &[String]) -> Value {
    let root = format!("--root={}", photos_dir().display());
    let arguments: Vec<&str> = [&root].into_iter().chain(settings).map(String::as_str).collect();
    let server = Server::start(Duration::from_secs_f64(LATENCY_S), &arguments);
    let put = server.store().put(INDEX.into(), index().into());
    tokio::runtime::Runtime::new().unwrap().block_on(put).unwrap();
    let folder = Folder::new();
    let dataset = json!({
        "aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "data", "endpoint_url": server.endpoint()
    });
    let dataset = folder.write("photos.json", dataset.to_string());
    let document = json!({
        "source": source, "ceiling": false, "survey": false,
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
