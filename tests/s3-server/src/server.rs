//! The server: a thread that serves until it is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use hyper::http::request::Parts;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::timer::Timer;
use penstock_types::stats::Tick;
use s3s::auth::SimpleAuth;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::bucket::{Bucket, Conditions};
use crate::connection::serve;
use crate::fault::{Fault, Trouble};
use crate::mode::{self, Mode, Refusal, Tokens};

/// Settings of a server.
#[derive(Clone)]
pub struct Settings {
    /// Name of the bucket.
    pub bucket: String,
    /// Folder whose files at the start are the objects; `None` keeps objects in memory only. New objects are kept in memory in
    /// either case.
    pub root: Option<PathBuf>,
    /// Port on 127.0.0.1; 0 for a free one.
    pub port: u16,
    /// Access key id of the clients.
    pub access_key_id: String,
    /// Secret key for the signatures.
    pub secret_access_key: String,
    /// Time until each response begins.
    pub latency: Latency,
    /// Bytes per second that all responses together may have in their bodies; `None` for no limit.
    pub rate: Option<NonZeroU64>,
    /// Handling of conditional requests.
    pub conditions: Conditions,
    /// Maximum number of keys on one page of a listing: 1000 on S3.
    pub page: usize,
    /// Properties of real buckets.
    pub modes: Vec<Mode>,
    /// Records requests, for [`Server::seen`]; otherwise they are only counted.
    pub remembers: bool,
}

/// Time until each response begins, counted from the request's arrival, with the server's own work included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Latency of most requests.
    pub usual: Duration,
    /// Latency of every `tail_every`th request; `None` if all requests have the usual latency.
    pub tail: Option<Duration>,
    /// Number of responses of which one is slow; see `tail`.
    pub tail_every: u64,
}

/// A running server. Dropping it resets open connections and joins its thread.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A request as the server received it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// HTTP method: `GET`, `PUT` or `HEAD`.
    pub method: String,
    /// Key of the object, decoded; empty for a listing.
    pub key: String,
    /// Value of the `Range` header.
    pub range: Option<String>,
    /// Value of the `If-Match` header.
    pub if_match: Option<String>,
    /// Query of the address, as it was sent.
    pub query: String,
    /// Value of the `Authorization` header.
    pub authorization: Option<String>,
    /// Headers whose names start with `x-amz-`.
    pub headers: BTreeMap<String, String>,
    /// Port of the client, which identifies the connection.
    pub port: u16,
    /// Injected fault, if any.
    pub trouble: Option<Trouble>,
}

/// Limit of the bytes per second.
struct Pace {
    rate: NonZeroU64,
    clock: MonotonicClock,
    /// Time from which on the next bytes may be sent.
    free: Mutex<Tick>,
}

/// State shared by all connections.
pub(crate) struct Shared {
    pub(crate) service: S3Service,
    pub(crate) latency: Latency,
    pub(crate) timer: Timer,
    pace: Option<Pace>,
    bucket: Bucket,
    bucket_name: String,
    modes: Vec<Mode>,
    tokens: Option<Mutex<Tokens>>,
    faults: Mutex<Vec<Fault>>,
    /// Recorded requests; `None` if requests are not recorded.
    seen: Option<Mutex<Vec<Seen>>>,
    /// Number of requests so far.
    count: AtomicU64,
}

impl Default for Settings {
    /// Returns an empty bucket `data` in memory, with the key `penstock-test` and the secret `penstock-test-secret`.
    fn default() -> Self {
        Self {
            bucket: "data".to_owned(),
            root: None,
            port: 0,
            access_key_id: "penstock-test".to_owned(),
            secret_access_key: "penstock-test-secret".to_owned(),
            latency: Latency::default(),
            rate: None,
            conditions: Conditions::default(),
            page: 1000,
            modes: Vec::new(),
            remembers: true,
        }
    }
}

impl Server {
    /// Starts a server, which accepts requests when this returns.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let order = settings.modes.iter().find_map(|mode| match mode {
            Mode::Listing(order) => Some(*order),
            _ => None,
        });
        let bucket =
            Bucket::new(&settings.bucket, settings.conditions, settings.page, order.unwrap_or_default());
        let access_key = (&*settings.access_key_id, &*settings.secret_access_key);
        let tokens = settings.modes.iter().find_map(|mode| match mode {
            Mode::Token { requests, file } => {
                Some(Tokens::start(*requests, file, access_key).map(Mutex::new))
            }
            _ => None,
        });
        let tokens = tokens.transpose()?;
        let bucket = match &settings.root {
            Some(root) => bucket.over_folder(root)?,
            None => bucket,
        };
        let mut service = S3ServiceBuilder::new(bucket.clone());
        // The modes check the time of requests.
        service.set_config(Arc::new(StaticConfigProvider::new(Arc::new({
            let mut config = S3Config::default();
            config.presigned_url_max_skew_time_secs = u32::MAX;
            config
        }))));
        service.set_auth(SimpleAuth::from_single(settings.access_key_id, settings.secret_access_key));
        let shared = Arc::new(Shared {
            service: service.build(),
            latency: settings.latency,
            timer: Timer::start()?,
            pace: settings.rate.map(|rate| Pace {
                rate,
                clock: MonotonicClock::start(),
                free: Mutex::new(Tick::ZERO),
            }),
            bucket,
            bucket_name: settings.bucket,
            modes: settings.modes,
            tokens,
            faults: Mutex::default(),
            seen: settings.remembers.then(Mutex::default),
            count: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", settings.port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("s3-server".to_owned()).spawn({
            let shared = shared.clone();
            // Runs the runtime on this thread: the caller may be a task, which must not block.
            move || {
                let served = runtime
                    .block_on(async { accept(TcpListener::from_std(listener)?, shared, stopped).await });
                served.expect("the server can accept connections");
            }
        })?;
        Ok(Self { shared, address, stop: Some(stop), thread: Some(thread) })
    }

    /// Address for clients, `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stores an object without a request.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        self.shared.bucket.put(key, bytes.into());
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<String> {
        self.shared.bucket.keys()
    }

    /// Adds a fault for requests from now on. Faults injected earlier take precedence.
    pub fn inject(&self, fault: Fault) {
        lock(&self.shared.faults).push(fault);
    }

    /// Requests so far, in the order of their arrival; empty if the server does not record them.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.as_ref().map_or_else(Vec::new, |seen| lock(seen).clone())
    }

    /// Blocks until the process ends.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is ignored: it has been printed, and requests of the test have failed.
            thread.join().ok();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Shared {
    /// Key in a path, decoded; empty for the bucket itself.
    pub(crate) fn key(&self, path: &str) -> String {
        let path = path.strip_prefix('/').unwrap_or(path);
        let in_bucket = path.strip_prefix(&self.bucket_name).unwrap_or_default();
        decoded(in_bucket.strip_prefix('/').unwrap_or_default())
    }

    /// Refusal of a request by one of the modes.
    pub(crate) fn refusal(&self, request: &Parts) -> Option<Refusal> {
        let refused = self.modes.iter().find_map(|mode| mode.refusal(request));
        refused.or_else(|| {
            let token = request.headers.get("x-amz-security-token").and_then(|token| token.to_str().ok());
            let accepted =
                lock(self.tokens.as_ref()?).accepts(token).expect("the folder of the file is writable");
            (!accepted).then_some(Refusal {
                status: 400,
                code: "ExpiredToken",
                headers: Vec::new(),
                more: String::new(),
            })
        })
    }

    /// Value of the `Date` header of all responses; `None` for the time of this machine.
    pub(crate) fn date(&self) -> Option<String> {
        self.modes.iter().find_map(|mode| match mode {
            Mode::Clock(ahead) => mode::date(*ahead),
            _ => None,
        })
    }

    /// Headers that no response has.
    pub(crate) fn omitted(&self) -> impl Iterator<Item = &str> {
        self.modes.iter().filter_map(|mode| match mode {
            Mode::Without(header) => Some(&**header),
            _ => None,
        })
    }

    /// Bytes of an object in memory.
    pub(crate) fn object(&self, key: &str) -> Option<Bytes> {
        self.bucket.held(key)
    }

    /// True if the server has a limit of the bytes per second.
    pub(crate) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Waits until these bytes may be sent, after those of earlier calls.
    pub(crate) async fn wait_to_send(&self, bytes: usize) {
        let Some(Pace { rate, clock, free }) = &self.pace else { return };
        let wait = {
            let (now, mut free) = (clock.now(), lock(free));
            let start = now.max(*free);
            *free = start.after(Duration::from_secs_f64(bytes as f64 / rate.get() as f64));
            Duration::from_nanos(*free - now)
        };
        self.timer.sleep(wait).await;
    }

    /// Counts a request; returns its fault and the time until its response may begin, counted from its arrival.
    pub(crate) fn note(&self, mut seen: Seen) -> (Option<Trouble>, Duration) {
        let trouble = lock(&self.faults)
            .iter_mut()
            .find_map(|fault| fault.meets(&seen.method, &seen.key).then(|| fault.trouble.clone()));
        seen.trouble = trouble.clone();
        if let Some(all) = &self.seen {
            lock(all).push(seen);
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let latency = match self.latency.tail {
            Some(tail) if number.is_multiple_of(self.latency.tail_every.max(1)) => tail,
            _ => self.latency.usual,
        };
        (trouble, latency)
    }
}

async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => return Ok(()),
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                if let Ok((stream, peer)) = accepted {
                    connections.spawn(serve(stream, peer, shared.clone()));
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
