//! Throughput of the client without storage: objects in memory, in a folder in memory, or behind an idle S3 server on the
//! loopback interface.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use penstock_storage::{BoundedStore, FolderStore, MemoryStore, S3Credentials, S3Settings, Store, s3_store};
use penstock_types::config::{BenchStoreKind, Medium, SecretText};
use penstock_types::stats::Tick;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::load::{BenchError, Surroundings};
use crate::record::{Load, LoadTimes};
use crate::report::{Ceiling, LoadReport};
use crate::spec::WarmUp;
use crate::subject::Subject;

const LENGTH: Duration = Duration::from_millis(600);
const FOLDER_BYTES: u64 = 64 << 20;
const OBJECTS: usize = 4096;
/// A load that reaches at least this share of the ceiling counts as client-bound.
const BOUND: f64 = 0.8;
/// Number of items of the load that measures a ceiling: more than any client reads within [`LENGTH`].
const ITEMS: usize = 2_000_000;
/// Number of threads of the loopback server.
const SERVERS: usize = 2;
const PIECE: usize = 256 << 10;
/// Assumed size of an object of unknown size, in bytes.
const USUAL_BYTES: u64 = 100_000;

pub(crate) struct Ceilings {
    subject: Subject,
    /// Server and folder, kept alive while ceilings are measured.
    _loopback: Option<Loopback>,
    _folder: Option<TempDir>,
}

/// S3 server on the loopback interface. It returns objects with as many bytes as their keys specify.
struct Loopback {
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Ceilings {
    /// Creates objects with the sizes of the objects of `subject`; the client reads the new objects from memory instead of from
    /// storage. Samples of a format are taken from memory as they are, without requests and decoding.
    pub(crate) fn of(surroundings: &Surroundings, subject: &Subject) -> Result<Self, BenchError> {
        if subject.samples.is_none() {
            return Self::of_objects(subject).map_err(|error| BenchError::Failed(error.to_string()));
        }
        let stages = Vec::new();
        let subject = Subject { stages, ..subject.in_memory(surroundings, FOLDER_BYTES)? };
        Ok(Self { subject: subject.going_round(ITEMS), _loopback: None, _folder: None })
    }

    fn of_objects(subject: &Subject) -> io::Result<Self> {
        let sizes: Vec<u64> = subject
            .order(0)
            .iter()
            .take(OBJECTS)
            .map(|object| subject.objects[*object as usize].size.unwrap_or(USUAL_BYTES))
            .collect();
        let keyed = |key: &dyn Fn(usize, u64) -> String| -> Vec<(Arc<str>, Option<u64>)> {
            let objects = sizes.iter().enumerate();
            objects.map(|(number, size)| (key(number, *size).into(), Some(*size))).collect()
        };
        let medium = subject.kind.medium();
        let (kind, store, objects, _loopback, _folder): (_, Arc<dyn Store>, _, _, _) = match medium {
            Medium::Folder => {
                let folder = in_memory_folder(&sizes)?;
                let store = FolderStore::open("ceiling", folder.path()).map_err(io::Error::other)?;
                let names = fs::read_dir(folder.path())?.map(|file| {
                    let file = file?;
                    Ok((file.file_name().to_string_lossy().into(), Some(file.metadata()?.len())))
                });
                let objects = names.collect::<io::Result<Vec<_>>>()?;
                (BenchStoreKind::Folder, Arc::new(store), objects, None, Some(folder))
            }
            Medium::Memory => {
                let largest = sizes.iter().map(|size| (1, usize::try_from(*size).unwrap_or(usize::MAX)));
                let largest: Vec<(usize, usize)> = largest.collect();
                let store = MemoryStore::synthetic("ceiling", &largest);
                let objects = keyed(&|number, _| format!("{number:06}.bin"));
                (BenchStoreKind::Memory, Arc::new(store), objects, None, None)
            }
            // The loopback server has the API of S3, whatever the measured service is.
            Medium::Remote => {
                let loopback = Loopback::start()?;
                let store = s3_store("ceiling", loopback.settings()).map_err(io::Error::other)?;
                let objects = keyed(&|number, size| format!("{number}-{size}"));
                (BenchStoreKind::S3, store, objects, Some(loopback), None)
            }
        };
        let subject = Subject::of(BoundedStore::new(store, NonZeroUsize::MIN), kind, objects);
        Ok(Self { subject: subject.going_round(ITEMS), _loopback, _folder })
    }

    /// Measures the rate of the load without the store, and the share of this rate that the load reached with the store (`cell`);
    /// `None` if the measurement ended before any item was timed.
    pub(crate) fn of_load(
        &self,
        surroundings: &Surroundings,
        load: &Load,
        cell: &LoadReport,
    ) -> Result<Option<Ceiling>, BenchError> {
        let clock = surroundings.clock.clone();
        let times = LoadTimes { warm_up: WarmUp::default(), passes: 1 };
        let (mut first, mut items, mut elapsed) = (None, 0_usize, 0_u64);
        let batches = self.subject.order(0).len().div_ceil(load.batch_size as usize);
        // Number of first batches that are not measured, because workers may have begun them before the first delivery; at most
        // a quarter of all batches.
        let mut before = (load.workers.saturating_mul(load.prefetch) as usize).min(batches / 4);
        let ended = surroundings.run(&self.subject, load, &times, &mut |_: Tick, more: usize| {
            let now = clock.now();
            match first {
                None if before > 0 => before -= 1,
                None => first = Some(now),
                Some(first) => {
                    items += more;
                    elapsed = now - first;
                }
            }
            u128::from(elapsed) < LENGTH.as_nanos()
        });
        surroundings.check(ended.how)?;
        if items == 0 {
            return Ok(None);
        }
        let mean_bytes = if cell.items > 0 { cell.bytes as f64 / cell.items as f64 } else { 0.0 };
        let read_per_s = items as f64 / (elapsed as f64 * 1e-9).max(1e-9);
        let items_per_s = read_per_s * stand_for(self.mean_bytes(), mean_bytes);
        let reached = cell.items_per_s / items_per_s;
        Ok(Some(Ceiling {
            against: self.subject.kind,
            items_per_s,
            mb_per_s: items_per_s * mean_bytes / 1e6,
            reached,
            is_client_bound: reached >= BOUND,
        }))
    }

    fn mean_bytes(&self) -> f64 {
        let objects = &self.subject.objects;
        objects.iter().filter_map(|object| object.size).sum::<u64>() as f64 / objects.len().max(1) as f64
    }
}

/// Number of mean-sized items that one object of `held` bytes represents. An empty object counts as one item.
fn stand_for(held: f64, mean: f64) -> f64 {
    if held > 0.0 && mean > 0.0 { held / mean } else { 1.0 }
}

/// Creates a folder with files of these sizes, in memory if there is room: a file in memory costs as much to open and read as a
/// file in the page cache.
fn in_memory_folder(sizes: &[u64]) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("penstock-ceiling-");
    let in_memory = builder.tempdir_in("/dev/shm").and_then(|folder| filled(folder, sizes));
    in_memory.or_else(|_| filled(builder.tempdir()?, sizes))
}

/// Fills the folder with files of these sizes, as many as fit into `FOLDER_BYTES`; a first file that does not fit is shortened.
fn filled(folder: TempDir, sizes: &[u64]) -> io::Result<TempDir> {
    let mut left = FOLDER_BYTES;
    for (number, size) in sizes.iter().enumerate() {
        if number > 0 && *size > left {
            break;
        }
        left = left.saturating_sub(*size);
        let size = usize::try_from((*size).min(FOLDER_BYTES)).unwrap_or(0);
        let file = folder.path().join(format!("{number:06}.bin"));
        match fs::write(&file, vec![0x5a; size]) {
            Err(error) if number > 0 && error.kind() == io::ErrorKind::StorageFull => {
                // The file system is full, so only the files written so far are used.
                fs::remove_file(file)?;
                break;
            }
            written => written?,
        }
    }
    Ok(folder)
}

impl Loopback {
    fn start() -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(SERVERS).thread_name("loopback-io").enable_all().build()?;
        let thread = Builder::new().name("loopback".to_owned()).spawn({
            let stop = stop.clone();
            move || {
                runtime.block_on(stop.run_until_cancelled(accept(listener)));
            }
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    fn settings(&self) -> S3Settings {
        S3Settings {
            bucket: "ceiling".to_owned(),
            endpoint: Some(format!("http://{}", self.address)),
            region: Some("loopback".to_owned()),
            // The client signs requests as for a real bucket; this server does not check the signature.
            credentials: S3Credentials::Static {
                access_key_id: "loopback".to_owned(),
                secret_access_key: SecretText::new("loopback").expect("it is a text"),
                session_token: None,
            },
            ..S3Settings::default()
        }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            thread.join().ok();
        }
    }
}

async fn accept(listener: std::net::TcpListener) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                // With Nagle's algorithm, which is the default, a response would wait for the acknowledgement of the previous
                // response.
                if stream.set_nodelay(true).is_ok() {
                    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
                    connections.spawn(async move { connection.await.ok() });
                }
            }
        }
    }
}

async fn answer(
    request: Request<Incoming>,
) -> Result<Response<StreamBody<impl futures::Stream<Item = Result<Frame<Bytes>, Infallible>>>>, Infallible> {
    static BYTES: [u8; PIECE] = [0x5a; PIECE];
    let size: u64 = request.uri().path().rsplit('-').next().and_then(|size| size.parse().ok()).unwrap_or(0);
    let range = request.headers().get(RANGE).and_then(|range| part(range.to_str().ok()?, size));
    let (from, to) = range.unwrap_or((0, size));
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut left = to - from;
    let pieces = std::iter::from_fn(move || {
        let next = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        left -= next as u64;
        (next > 0).then(|| Ok(Frame::data(Bytes::from_static(&BYTES[..next]))))
    });
    let mut response = Response::new(StreamBody::new(stream::iter(pieces)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, (to - from).into());
    headers.insert(ETAG, hyper::header::HeaderValue::from_static("\"loopback\""));
    if range.is_some()
        && let Ok(value) = format!("bytes {from}-{}/{size}", to.saturating_sub(1)).parse()
    {
        headers.insert(CONTENT_RANGE, value);
    }
    Ok(response)
}

/// Parses a `Range` header such as `bytes=0-99` for an object of `size` bytes; the end of the result is exclusive.
fn part(range: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && first < size).then_some((first, size.min(last + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_object_counts_by_its_bytes() {
        let size = FOLDER_BYTES + (FOLDER_BYTES >> 1);
        let folder = filled(tempfile::tempdir().unwrap(), &[size, 10]).unwrap();
        let held: Vec<u64> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(held, [FOLDER_BYTES]);
        assert_eq!(stand_for(held[0] as f64, size as f64), 2.0 / 3.0);
        assert_eq!([stand_for(0.0, 0.0), stand_for(100.0, 0.0), stand_for(0.0, 100.0)], [1.0; 3]);
    }
}
