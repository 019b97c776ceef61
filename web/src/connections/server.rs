//! Connections of the server: limit of their number, minimum speed, and shutdown.

use std::convert::Infallible;
use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use penstock_server::Runs;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client_stream::{AnswerPace, ClientStream, ConnectionFacts};
use super::linger::watched;
use super::places::{ConnectionPlace, ConnectionPlaces};
use super::tls;
use crate::access::{RequestGuard, Tokens};
use crate::limits::{ANSWER_BYTES_PER_S, CONNECTIONS, DRAIN_TIME, HEAD_TIME, KEPT_FREE, STALL_TIME};
use crate::problem::ApiError;
use crate::router::router;
use crate::settings::{ServeError, ServeSettings};

const HEAD_BYTES: usize = 32 << 10;
/// Maximum number of headers of a request.
const HEADERS: usize = 64;
/// Send buffer of a connection, in bytes; the kernel doubles the value for its bookkeeping.
const SEND_BYTES: usize = 256 << 10;
/// Paths that are answered even when the limit of connections is reached: the health check and the sign-in.
const ALWAYS_ANSWERED: [&str; 2] = ["/health", "/api/v1/session"];
/// Pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of clients that are refused between two pauses.
const REFUSED_AT_ONCE: usize = 64;
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 5\r\ncontent-length: 36\r\n\
    connection: close\r\n\r\ntoo many connections; try again soon";

/// HTTP server that is bound to its address.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    settings: ServeSettings,
    app: Router,
    ending: CancellationToken,
    guard: Arc<RequestGuard>,
    tls: Option<Arc<ServerConfig>>,
}

impl Server {
    /// Starts to listen; requests are answered by [`Self::run`]. Fails if other machines could connect without a token.
    pub async fn bind(settings: ServeSettings, runs: Runs) -> Result<Self, ServeError> {
        settings.check()?;
        let failed = |source| ServeError::Listen { address: settings.listen, source };
        let tls = settings.tls.as_ref().map(tls::config).transpose()?;
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let ending = CancellationToken::new();
        let guard = Arc::new(RequestGuard::new(&settings));
        let app = router(runs, guard.clone(), ending.clone());
        Ok(Self { listener, settings, app, ending, guard, tls })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.settings.listen)
    }

    /// Creates a one-time code that signs a browser in: a sign-in link is the address of a page, `#sign-in=` and the code.
    /// `None` if the server requires no token.
    pub fn sign_in_code(&self) -> Result<Option<String>, ServeError> {
        let own = self.guard.tokens.as_ref().map(Tokens::own);
        own.map(|own| self.guard.issue_code(own, Instant::now())).transpose().map_err(Into::into)
    }

    /// Answers requests until `end` completes. Then closes the listener, ends event streams, and waits up to the drain time for
    /// other requests.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let places = ConnectionPlaces::new(CONNECTIONS, KEPT_FREE);
        let open = TaskTracker::new();
        let mut spare = SpareFile::new();
        let mut end = std::pin::pin!(end);
        loop {
            // Without the spare file, the next client could be neither answered nor refused.
            if !spare.is_held() {
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => continue,
                    () = &mut end => break,
                }
            }
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut end => break,
            };
            match accepted {
                Ok((stream, from)) => {
                    let place = places.take(from.ip());
                    open.spawn(serve(stream, self.tls.clone(), self.app.clone(), place, self.ending.clone()));
                }
                Err(error) => {
                    // The process is out of file descriptors or memory, or the client disconnected before it was accepted.
                    tracing::warn!(%error, "failed to accept a connection");
                    if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
                        spare.refuse_waiting(&self.listener).await;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(self.listener);
        self.ending.cancel();
        open.close();
        if timeout(DRAIN_TIME, open.wait()).await.is_err() {
            tracing::warn!(connections = open.len(), "requests were cut off at shutdown");
        }
    }
}

/// Spare file descriptor. If the process has no other descriptor left, it is closed for a moment, so that one client after the
/// other can be answered with 503.
struct SpareFile(Option<File>);

impl SpareFile {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Opens the file again if another thread took the descriptor while it was closed; returns whether it is open.
    fn is_held(&mut self) -> bool {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.0.is_some()
    }

    async fn refuse_waiting(&mut self, listener: &TcpListener) {
        for _ in 0..REFUSED_AT_ONCE {
            if !self.is_held() {
                return;
            }
            self.0 = None;
            let Ok(Ok((stream, _))) = timeout(PAUSE, listener.accept()).await else { return };
            // The write does not block: the send buffer of a new connection has room for this short response.
            drop(stream.try_write(FULL));
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    app: Router,
    place: Option<ConnectionPlace>,
    ending: CancellationToken,
) {
    let Some(place) = place.map(Arc::new) else {
        // Best effort: the client may not read the response.
        drop(timeout(HEAD_TIME, stream.write_all(FULL)).await);
        return;
    };
    drop(stream.set_nodelay(true));
    // A small send buffer limits the memory for a client that does not read, and makes a slow reader noticeable early.
    set_socket_send_buffer_size(&stream, SEND_BYTES).ok();
    let Some(tls) = tls else { return answer_all(stream, app, &place, ending).await };
    let agreed = tokio::select! {
        agreed = timeout(HEAD_TIME, TlsAcceptor::from(tls).accept(stream)) => agreed,
        () = place.leave.cancelled() => return,
        () = ending.cancelled() => return,
    };
    match agreed {
        Ok(Ok(stream)) => answer_all(stream, app, &place, ending).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

/// Answers requests until the client disconnects, the server shuts down, or another connection takes the place of this
/// connection.
async fn answer_all(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    app: Router,
    place: &Arc<ConnectionPlace>,
    ending: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
    http.max_headers(HEADERS).max_buf_size(HEAD_BYTES).half_close(false);
    let facts = Arc::<ConnectionFacts>::default();
    let pace = AnswerPace { stall: STALL_TIME, bytes_per_s: ANSWER_BYTES_PER_S };
    let stream = ClientStream::new(stream, pace, facts.clone());
    let app = TowerToHyperService::new(app);
    let answer = service_fn(|request| answer(&app, place, &facts, request));
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), answer));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = place.leave.cancelled() => return,
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Answers a request. No other connection can take the place of its connection until the whole response has been sent.
fn answer(
    app: &TowerToHyperService<Router>,
    place: &Arc<ConnectionPlace>,
    facts: &Arc<ConnectionFacts>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> {
    let answering = place.begin_answer();
    let (mut request, unread) = watched(request);
    request.extensions_mut().insert(ConnectInfo(place.address));
    let facts = facts.clone();
    let is_kept_free = place.is_kept_free;
    let is_last = is_kept_free || facts.is_last.load(Ordering::Relaxed);
    let is_refused = is_kept_free && !ALWAYS_ANSWERED.contains(&request.uri().path());
    let answer = (!is_refused).then(|| app.call(request));
    async move {
        let mut answer = match answer {
            Some(answer) => answer.await?,
            None => ApiError::busy("too many connections; try again soon", 5).into_response(),
        };
        let kind = answer.headers().get(header::CONTENT_TYPE);
        let is_live = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        facts.is_live.store(is_live, Ordering::Relaxed);
        if is_last {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // A connection that is kept free for others is not kept by what its client still sends.
        let answer = if is_kept_free { answer } else { unread.read_after(answer) };
        Ok(answer.map(|body| {
            Body::new(body.inspect_frame(move |_| {
                let _until_sent = &answering;
            }))
        }))
    }
}
