//! Reads, listings and records from S3, compared with the limits set by latency, with the server in a separate process.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_engine::ports::{Produced, Source};
use penstock_engine::typed::Typing;
use penstock_formats::{RecordFormat, RecordSource, Shards};
use penstock_storage::{
    BoundedStore, DEFAULT_READS, ListSource, S3Credentials, S3Settings, Store, Wanted, s3_store,
};
use penstock_tests::Folder;
use penstock_types::config::SecretText;
use penstock_types::spec::Links;
use penstock_types::traversal::TraversalSettings;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::{Bound, Row, median, target_dir};

/// Usual time from a request's arrival to the start of its response; the server's own work is part of it.
const LATENCY: Duration = Duration::from_millis(20);
const OBJECT_BYTES: usize = 60_000;
const OBJECTS: usize = 200;
const RUNS: usize = 5;

const RECORDS_BYTES: usize = 1_000_000_000;
/// Approximate length of a line.
const LINE_BYTES: usize = 1000;
/// Number of runs of each case; one range at a time takes half a minute.
const RECORDS_RUNS: usize = 3;

/// The server, killed when the row is done.
pub(crate) struct Server {
    child: Child,
    endpoint: String,
}

/// Rate of reads, relative to the limit set by latency, and CPU time of the client.
struct Rate {
    of_limit: f64,
    cpu_s: f64,
    from: String,
}

pub(crate) fn rate_with_16_in_flight() -> Row {
    little("S3: rate of 16 GETs of 60 kB, relative to Little's law", (16, LATENCY), 0.95, 0.97)
}

pub(crate) fn rate_with_32_in_flight() -> Row {
    little("S3: rate of 32 GETs of 60 kB, relative to Little's law", (32, LATENCY), 0.96, 0.98)
}

pub(crate) fn rate_with_256_in_flight() -> Row {
    let latency = Duration::from_millis(100);
    little("S3: rate of 256 GETs of 60 kB at 100 ms, relative to Little's law", (256, latency), 0.93, 0.97)
}

pub(crate) fn cpu_of_a_get() -> Row {
    let rate = rate(32, LATENCY);
    Row {
        what: "S3: CPU time of the client for a GET of 60 kB",
        must: Bound::AtMost(0.25, "ms"),
        aim: Bound::AtMost(0.15, "ms"),
        found: rate.cpu_s * 1e3,
        from: rate.from,
    }
}

fn little(what: &'static str, (in_flight, latency): (usize, Duration), must: f64, aim: f64) -> Row {
    let rate = rate(in_flight, latency);
    let (must, aim) = (Bound::AtLeast(must, "x"), Bound::AtLeast(aim, "x"));
    Row { what, must, aim, found: rate.of_limit, from: rate.from }
}

fn rate(in_flight: usize, latency: Duration) -> Rate {
    let server = Server::start(latency, &[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = server.store();
    let keys: Arc<[Arc<str>]> = (0..OBJECTS).map(|number| Arc::from(format!("{number:04}.jpg"))).collect();
    for key in &*keys {
        runtime.block_on(store.put(key.clone(), Bytes::from(vec![7; OBJECT_BYTES]))).unwrap();
    }
    let reads = in_flight * 125;
    // The first run opens the connections.
    read(&runtime, &store, &keys, in_flight, in_flight * 10);
    let runs: Vec<(f64, f64)> = (0..RUNS).map(|_| read(&runtime, &store, &keys, in_flight, reads)).collect();
    let rate = median(runs.iter().map(|run| run.0).collect());
    let cpu_s = median(runs.iter().map(|run| run.1).collect());
    let limit = in_flight as f64 / latency.as_secs_f64();
    let from = format!("{rate:.0}/s of {limit:.0}/s; {:.2} ms of the client's CPU for a GET", cpu_s * 1e3);
    Rate { of_limit: rate / limit, cpu_s, from }
}

/// Time until the `list` source makes its first samples, in order, with a new client.
pub(crate) fn first_sample_of_a_million() -> Row {
    let server = Server::start(LATENCY, &["--empty-objects=1000000"]);
    let runtime = Runtime::new().unwrap();
    let first = || {
        let start = Instant::now();
        let store = BoundedStore::new(server.store(), DEFAULT_READS);
        let mut source = ListSource::new(store, Wanted::default(), TraversalSettings::IN_ORDER);
        let first = runtime.block_on(source.next()).unwrap();
        assert!(matches!(first, Some(Produced::Samples(_))));
        start.elapsed().as_secs_f64()
    };
    let found = median((0..RUNS).map(|_| first()).collect());
    Row {
        what: "S3, 20 ms: first sample of a listing of 1,000,000 keys",
        must: Bound::AtMost(0.3, "s"),
        aim: Bound::AtMost(0.1, "s"),
        found,
        from: format!("median of {RUNS} new clients: {:.1} ms", found * 1e3),
    }
}

/// Rate of a listing of all keys, relative to one page at a time.
pub(crate) fn listing_ahead() -> Row {
    const KEYS: usize = 200_000;
    let server = Server::start(LATENCY, &[&format!("--empty-objects={KEYS}")]);
    let runtime = Runtime::new().unwrap();
    let pass = |is_ahead: bool| {
        let store = server.store();
        let start = Instant::now();
        let pages = if is_ahead { store.list_all("", Links::All) } else { store.list("") };
        let listing = runtime.spawn(pages.try_fold(0, async |keys, page| Ok(keys + page.len())));
        assert_eq!(runtime.block_on(listing).unwrap().unwrap(), KEYS);
        start.elapsed().as_secs_f64()
    };
    let turns: Vec<(f64, f64)> = (0..RUNS).map(|_| (pass(false), pass(true))).collect();
    let [one_s, ahead_s] = [|turn: &(f64, f64)| turn.0, |turn: &(f64, f64)| turn.1]
        .map(|pick: fn(&(f64, f64)) -> f64| median(turns.iter().map(pick).collect()));
    Row {
        what: "S3, 20 ms: listing of 200 folders of 1000 keys, relative to page by page",
        must: Bound::AtLeast(2.0, "x"),
        aim: Bound::AtLeast(4.0, "x"),
        found: median(turns.iter().map(|(one, ahead)| one / ahead).collect()),
        from: format!("{KEYS} keys: {ahead_s:.2} s against {one_s:.2} s"),
    }
}

/// Rate of the `records` source, in order, relative to one range at a time.
pub(crate) fn records_ahead() -> Row {
    let folder = Folder::new();
    let mut file = BufWriter::new(File::create(folder.path().join("records.ndjson")).unwrap());
    let text = "penstock ".repeat(LINE_BYTES / 9);
    let (mut bytes, mut lines) = (0, 0_u64);
    while bytes < RECORDS_BYTES {
        let line = format!("{{\"key\":\"{lines:08}\",\"label\":{},\"text\":\"{text}\"}}\n", lines % 1000);
        file.write_all(line.as_bytes()).unwrap();
        (bytes, lines) = (bytes + line.len(), lines + 1);
    }
    file.flush().unwrap();
    drop(file);
    let server = Server::start(LATENCY, &["--root", folder.path().to_str().unwrap()]);
    let runtime = Runtime::new().unwrap();
    let pass = |most_bytes: u64| {
        let store = BoundedStore::new(server.store(), DEFAULT_READS);
        let objects = Shards::Keys(vec![Arc::from("records.ndjson")]);
        let source = RecordSource::new(
            store,
            objects,
            RecordFormat::lines([].into()),
            TraversalSettings::IN_ORDER,
            Typing::default(),
        );
        let mut source = source.within(most_bytes);
        let start = Instant::now();
        let reading = runtime.spawn(async move {
            let mut found = 0;
            while let Some(produced) = source.next().await.unwrap() {
                if let Produced::Samples(samples) = produced {
                    found += samples.len() as u64;
                }
            }
            found
        });
        assert_eq!(runtime.block_on(reading).unwrap(), lines);
        start.elapsed().as_secs_f64()
    };
    // The first run brings the file into memory.
    pass(u64::MAX);
    // Enough for a line, and too little for a range ahead.
    let one = 2 * LINE_BYTES as u64;
    let turns: Vec<(f64, f64)> = (0..RECORDS_RUNS).map(|_| (pass(one), pass(u64::MAX))).collect();
    let [one_s, ahead_s] = [|turn: &(f64, f64)| turn.0, |turn: &(f64, f64)| turn.1]
        .map(|pick: fn(&(f64, f64)) -> f64| median(turns.iter().map(pick).collect()));
    Row {
        what: "S3, 20 ms: rate of 1 GB of records in order, relative to one range at a time",
        must: Bound::AtLeast(8.0, "x"),
        aim: Bound::AtLeast(15.0, "x"),
        found: median(turns.iter().map(|(one, ahead)| one / ahead).collect()),
        from: format!("{lines} lines: {ahead_s:.2} s against {one_s:.1} s"),
    }
}

/// Reads with `in_flight` tasks; returns reads per second, and CPU seconds of this process per read.
fn read(
    runtime: &Runtime,
    store: &Arc<dyn Store>,
    keys: &Arc<[Arc<str>]>,
    in_flight: usize,
    reads: usize,
) -> (f64, f64) {
    let (start, cpu) = (Instant::now(), cpu());
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..in_flight {
            let (store, keys) = (store.clone(), keys.clone());
            tasks.spawn(async move {
                for read in 0..reads / in_flight {
                    let key = keys[(task + read * in_flight) % keys.len()].clone();
                    assert_eq!(store.get(key).await.unwrap().len(), OBJECT_BYTES);
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    });
    let elapsed = start.elapsed();
    (reads as f64 / elapsed.as_secs_f64(), (self::cpu() - cpu).as_secs_f64() / reads as f64)
}

fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap(), u32::try_from(spent.tv_nsec).unwrap())
}

impl Server {
    /// Starts a server that responds after `latency`, with these additional arguments.
    pub(crate) fn start(latency: Duration, arguments: &[&str]) -> Self {
        let program = target_dir().join("release/s3-server");
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .arg("--latency")
            .arg(format!("{}ms", latency.as_millis()))
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{}: {error}; run `make bench`, which builds it", program.display())
        });
        let mut endpoint = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut endpoint).unwrap();
        Self { child, endpoint: endpoint.trim().to_owned() }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        let settings = S3Settings {
            bucket: "data".to_owned(),
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            credentials: S3Credentials::Static {
                access_key_id: "penstock-test".to_owned(),
                secret_access_key: SecretText::new("penstock-test-secret").expect("it can stand in a header"),
                session_token: None,
            },
            ..S3Settings::default()
        };
        s3_store("data", settings).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
