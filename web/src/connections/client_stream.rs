//! Checks on the byte streams of client connections: the minimum speed at which responses are read, and the line ends in request
//! heads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Headers whose presence means that a request has a body.
const BODY_HEADERS: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
/// Number of bytes at the start of a line that are enough to recognize each of [`BODY_HEADERS`].
const PREFIX_BYTES: usize = 17;

/// Minimum speed at which a client must read responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerPace {
    /// Maximum time in which no byte can be sent to the client, and maximum time by which the client may lag behind
    /// `bytes_per_s`.
    pub(crate) stall: Duration,
    /// Minimum rate, in bytes per second; live events are exempt.
    pub(crate) bytes_per_s: u64,
}

/// State of a connection that the reader of requests and the writer of responses share.
#[derive(Debug, Default)]
pub(crate) struct ConnectionFacts {
    /// Set once a request with a body has begun. It is then the last request of the connection, because only the parser knows
    /// where its body ends.
    pub(crate) is_last: AtomicBool,
    /// Set while live events are sent, which have no minimum rate.
    pub(crate) is_live: AtomicBool,
}

/// Stream of a client connection. Writes fail if the client reads more slowly than its pace, because hyper limits only the times
/// in which clients send. Bare line feeds in request heads are refused: hyper accepts them as line ends, but a proxy in front of
/// the server may not.
#[derive(Debug)]
pub(crate) struct ClientStream<S> {
    stream: S,
    pace: AnswerPace,
    facts: Arc<ConnectionFacts>,
    head: Option<HeadLines>,
    /// Start of the current wait for the client to read.
    waits_since: Option<Instant>,
    /// Sum of earlier waits, minus the time that the client has earned by reading bytes since then.
    waited: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> ClientStream<S> {
    pub(crate) fn new(stream: S, pace: AnswerPace, facts: Arc<ConnectionFacts>) -> Self {
        let head = Some(HeadLines::default());
        Self { stream, pace, facts, head, waits_since: None, waited: Duration::ZERO, deadline: None }
    }

    /// Passes on the result of a write, or fails when the client has read too little for too long.
    fn paced(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        let Poll::Ready(wrote) = wrote else {
            let since = *self.waits_since.get_or_insert(now);
            let is_live = self.facts.is_live.load(Ordering::Relaxed);
            let waited = if is_live { Duration::ZERO } else { self.waited };
            let latest = since + self.pace.stall.saturating_sub(waited);
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(latest)));
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        };
        self.deadline = None;
        if let Some(since) = self.waits_since.take() {
            self.waited += now.duration_since(since);
        }
        let bytes = *wrote.as_ref().unwrap_or(&0) as f64;
        let earned = Duration::from_secs_f64(bytes / self.pace.bytes_per_s as f64);
        self.waited = self.waited.saturating_sub(earned);
        Poll::Ready(wrote)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if let Some(head) = &mut this.head {
            let may_go_on = head.scan(&mut into.filled_mut()[before..]);
            if !may_go_on {
                this.head = None;
                this.facts.is_last.store(true, Ordering::Relaxed);
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.paced(context, wrote)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        this.paced(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.paced(context, flushed.map_ok(|()| 0)).map_ok(drop)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closed = Pin::new(&mut this.stream).poll_shutdown(context);
        this.paced(context, closed.map_ok(|()| 0)).map_ok(drop)
    }
}

/// Scanner of the lines of request heads, which gets the bytes as they arrive.
#[derive(Debug, Default)]
struct HeadLines {
    /// First bytes of the current line, in lower case.
    line: Vec<u8>,
    last: u8,
    has_body: bool,
}

impl HeadLines {
    /// Scans bytes that were read. Returns false if no further head may be read: after the head of a request with a body, and at
    /// a bare line feed, which is replaced by a byte that the parser refuses.
    fn scan(&mut self, read: &mut [u8]) -> bool {
        for byte in read {
            if *byte != b'\n' {
                if self.line.len() < PREFIX_BYTES {
                    self.line.push(byte.to_ascii_lowercase());
                }
                self.last = *byte;
                continue;
            }
            if self.last != b'\r' {
                *byte = 0;
                return false;
            }
            self.last = 0;
            let is_empty = self.line == b"\r";
            self.has_body |= BODY_HEADERS.iter().any(|header| self.line.starts_with(header));
            self.line.clear();
            if is_empty && self.has_body {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, duplex};

    use super::*;

    fn over<S>(stream: S, stall: Duration, bytes_per_s: u64, is_live: bool) -> ClientStream<S> {
        let facts = ConnectionFacts { is_live: is_live.into(), ..ConnectionFacts::default() };
        ClientStream::new(stream, AnswerPace { stall, bytes_per_s }, Arc::new(facts))
    }

    #[tokio::test]
    async fn a_write_that_the_client_does_not_read_times_out() {
        for is_live in [false, true] {
            let (here, _there) = duplex(16);
            let written = over(here, Duration::from_millis(20), 1, is_live).write_all(&[0; 100]).await;
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn flush_and_shutdown_with_buffered_bytes_time_out() {
        // The `BufWriter` simulates TLS, which buffers bytes, too.
        for is_end in [false, true] {
            let (here, _there) = duplex(16);
            let mut here = over(BufWriter::new(here), Duration::from_millis(20), 1, false);
            here.write_all(&[0; 100]).await.unwrap();
            let flushed = if is_end { here.shutdown().await } else { here.flush().await };
            assert_eq!(flushed.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    /// Writes to a client that reads a few bytes at a time. The total of its pauses exceeds `stall`, but no single pause does.
    async fn written_slowly(bytes_per_s: u64, is_live: bool) -> io::Result<()> {
        let (here, mut there) = duplex(16);
        // The stall time is far longer than each single pause.
        let mut here = over(here, Duration::from_secs(2), bytes_per_s, is_live);
        let reads = async move {
            let mut piece = [0; 16];
            while there.read_exact(&mut piece).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        };
        tokio::select! {
            written = here.write_all(&[0; 16 * 10]) => written,
            () = reads => unreachable!("the stream is open"),
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_too_slowly_times_out() {
        let slow = written_slowly(1 << 20, false).await;
        assert_eq!(slow.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_slow_client_within_its_pace_and_one_of_live_events_stay_connected() {
        // At 1 byte/s, each byte that is read earns one second.
        written_slowly(1, false).await.unwrap();
        written_slowly(1 << 20, true).await.unwrap();
    }

    #[test]
    fn a_bare_line_feed_is_refused_in_heads_and_ignored_in_bodies() {
        let scanned = |text: &str| {
            let mut whole = text.as_bytes().to_vec();
            let may_go_on = HeadLines::default().scan(&mut whole);
            let mut lines = HeadLines::default();
            // Scans the same text byte by byte.
            let in_pieces: Vec<u8> = text.bytes().fold(Vec::new(), |mut done, byte| {
                let mut piece = [byte];
                if !lines.scan(&mut piece) {
                    lines = HeadLines::default();
                }
                done.extend(piece);
                done
            });
            let first_bad = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0);
            assert_eq!(first_bad(&whole).is_some(), whole != text.as_bytes());
            if !may_go_on && first_bad(&whole).is_some() {
                assert_eq!(first_bad(&whole), first_bad(&in_pieces));
            }
            (may_go_on, first_bad(&whole))
        };
        assert_eq!(scanned("GET / HTTP/1.1\r\nhost: a\r\n\r\n"), (true, None));
        assert_eq!(scanned("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\n"), (true, None));
        assert_eq!(scanned("GET / HTTP/1.1\nhost: a\n\n"), (false, Some(14)));
        assert_eq!(scanned("GET / HTTP/1.1\r\nhost: a\n\r\n"), (false, Some(23)));
        assert_eq!(scanned("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\n"), (false, Some(32)));
        assert_eq!(scanned("\nGET / HTTP/1.1\r\n"), (false, Some(0)));
        assert_eq!(scanned("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n\n\n"), (false, None));
        assert_eq!(scanned("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\n"), (false, None));
    }
}
