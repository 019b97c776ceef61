//! Rate of reads from S3, compared with the limit set by latency, with the server in a separate process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_storage::{S3Credentials, S3Settings, S3Store, Store};
use penstock_types::config::SecretText;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::{Bound, Row, median, target_dir};

/// Time from a request's arrival to the start of its response; the server's own work is part of it.
const LATENCY: Duration = Duration::from_millis(20);
const OBJECT_BYTES: usize = 60_000;
const OBJECTS: usize = 200;
const RUNS: usize = 5;

/// The server, killed when the row is done.
pub(crate) struct Server {
    child: Child,
    endpoint: String,
}

pub(crate) fn rate_with_16_in_flight() -> Row {
    rate("S3: rate of 16 GETs of 60 kB, relative to Little's law", 16, 0.9, 0.95)
}

pub(crate) fn rate_with_32_in_flight() -> Row {
    rate("S3: rate of 32 GETs of 60 kB, relative to Little's law", 32, 0.9, 0.97)
}

fn rate(what: &'static str, in_flight: usize, must: f64, aim: f64) -> Row {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = Arc::new(server.store());
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
    let limit = in_flight as f64 / LATENCY.as_secs_f64();
    Row {
        what,
        must: Bound::AtLeast(must, "x"),
        aim: Bound::AtLeast(aim, "x"),
        found: rate / limit,
        from: format!("{rate:.0}/s of {limit:.0}/s; {:.2} ms of the client's CPU for a GET", cpu_s * 1e3),
    }
}

/// Reads with `in_flight` tasks; returns reads per second, and CPU seconds of this process per read.
fn read(
    runtime: &Runtime,
    store: &Arc<S3Store>,
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
    /// Starts a server that responds after [`LATENCY`], with these additional arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let program = target_dir().join("release/s3-server");
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .arg("--latency")
            .arg(format!("{}ms", LATENCY.as_millis()))
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

    pub(crate) fn store(&self) -> S3Store {
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
        S3Store::new("data", settings).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
