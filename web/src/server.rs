//! Connections: how many, how slow, and how they end.

use std::fs::File;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use penstock_server::Runs;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::guard::RequestGuard;
use crate::places::{ConnectionPlace, ConnectionPlaces};
use crate::router::router;
use crate::settings::{ServeError, ServeLimits, ServeSettings};

/// Most bytes of a request's head.
const HEAD_BYTES: usize = 32 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 5\r\ncontent-length: 36\r\n\
    connection: close\r\n\r\ntoo many connections; try again soon";

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    settings: ServeSettings,
    app: Router,
    ending: CancellationToken,
    guard: RequestGuard,
}

impl Server {
    /// Listens; answers nothing before [`Self::run`]. Refuses to be open to other machines without a token.
    pub async fn bind(settings: ServeSettings, runs: Runs) -> Result<Self, ServeError> {
        settings.check()?;
        let failed = |source| ServeError::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let ending = CancellationToken::new();
        let guard = RequestGuard::new(&settings);
        let app = router(&settings, runs, guard.clone(), ending.clone());
        Ok(Self { listener, settings, app, ending, guard })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.settings.listen)
    }

    /// Makes a code that signs a browser in, once and soon: `#sign-in=` and the code behind an address of a page.
    pub fn sign_in_code(&self) -> Result<String, ServeError> {
        Ok(self.guard.codes().add(Instant::now())?)
    }

    /// Answers until `end`. Then it accepts no connection, ends event streams, and gives other requests the drain time.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let limits = self.settings.limits;
        let places = ConnectionPlaces::new(limits.connections);
        let open = TaskTracker::new();
        let mut spare = SpareFile::new();
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut end => break,
            };
            match accepted {
                Ok((stream, from)) => {
                    let (places, app, ending) = (places.clone(), self.app.clone(), self.ending.clone());
                    open.spawn(async move {
                        let place = places.take(from.ip()).await;
                        serve(stream, app, limits, place, ending).await;
                    });
                }
                Err(error) => {
                    // Out of files or of memory; or a client that was gone before it came.
                    tracing::warn!(%error, "a connection could not be taken");
                    if is_out_of_files(&error) {
                        spare.refuse_one(&self.listener).await;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(self.listener);
        self.ending.cancel();
        open.close();
        if tokio::time::timeout(limits.drain_time, open.wait()).await.is_err() {
            tracing::warn!(connections = open.len(), "requests were cut off at the end");
        }
    }
}

/// A spare file descriptor: closed when the process has no more, so that clients can still be answered with 503 one by one.
struct SpareFile(Option<File>);

impl SpareFile {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    async fn refuse_one(&mut self, listener: &TcpListener) {
        self.0 = None;
        if let Ok(Ok((stream, _))) = tokio::time::timeout(PAUSE, listener.accept()).await {
            // A new connection has room for so few bytes.
            drop(stream.try_write(FULL));
        }
        *self = Self::new();
    }
}

fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

async fn serve(
    mut stream: TcpStream,
    app: Router,
    limits: ServeLimits,
    place: Option<ConnectionPlace>,
    ending: CancellationToken,
) {
    let Some(place) = place else {
        // It reads this or it does not.
        drop(tokio::time::timeout(limits.head_time, stream.write_all(FULL)).await);
        return;
    };
    let mut first = [0];
    let is_there = tokio::select! {
        // It may be said to be readable without anything to read.
        byte = stream.peek(&mut first) => byte.is_ok_and(|bytes| bytes > 0),
        () = place.leave.cancelled() => false,
        () = ending.cancelled() => false,
        () = tokio::time::sleep(limits.head_time) => false,
    };
    if !is_there {
        return;
    }
    place.mark_active();
    drop(stream.set_nodelay(true));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    http.max_headers(HEADERS).max_buf_size(HEAD_BYTES).half_close(false);
    let stream = with_patience(stream, limits.stall_time);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The same stream, whose writes fail when the client takes nothing for this long; a slow reader goes on. hyper bounds only what
/// clients send.
fn with_patience<S: AsyncRead + AsyncWrite>(stream: S, patience: Duration) -> Pin<Box<TimeoutStream<S>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(patience));
    Box::pin(stream)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_takes_fails() {
        let (here, _there) = duplex(16);
        let written = with_patience(here, Duration::from_millis(20)).write_all(&[0; 100]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn patience_begins_anew_with_everything_that_is_taken() {
        let (here, mut there) = duplex(16);
        let mut here = with_patience(here, Duration::from_secs(2));
        let reads = async {
            let mut piece = [0; 16];
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(300)).await;
                there.read_exact(&mut piece).await.unwrap();
            }
        };
        tokio::join!(here.write_all(&[0; 128]), reads).0.unwrap();
    }
}
