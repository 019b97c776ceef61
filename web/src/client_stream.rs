//! A client's connection: how slowly answers may be taken, and line ends of heads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Headers of a request with a body, and bytes of a line that tell them.
const OF_BODIES: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
const TOLD_BY: usize = 17;

/// The slowest acceptable reader of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerPace {
    /// Longest wait without a byte, and lead that a client may use up.
    pub(crate) stall: Duration,
    /// Least rate, in bytes a second, of all but live events.
    pub(crate) bytes_per_s: u64,
}

/// What the two sides of a connection know of each other.
#[derive(Debug, Default)]
pub(crate) struct ConnectionFacts {
    /// Set when a request with a body has begun: none is read after it, as only the parser knows where a body ends.
    pub(crate) is_last: AtomicBool,
    /// Set while live events are sent, which are as slow as what happens.
    pub(crate) is_live: AtomicBool,
}

/// A stream of a client whose writes fail when the client takes less than its pace, and whose heads hold no bare line feeds: hyper
/// bounds only what clients send, and takes a line feed for the end of a line, which proxies need not do.
#[derive(Debug)]
pub(crate) struct ClientStream<S> {
    stream: S,
    pace: AnswerPace,
    facts: Arc<ConnectionFacts>,
    head: Option<HeadLines>,
    /// Start of the current wait for the client.
    waits_since: Option<Instant>,
    /// Earlier waits, less what was earned since by what the client took.
    waited: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> ClientStream<S> {
    pub(crate) fn new(stream: S, pace: AnswerPace, facts: Arc<ConnectionFacts>) -> Self {
        let head = Some(HeadLines::default());
        Self { stream, pace, facts, head, waits_since: None, waited: Duration::ZERO, deadline: None }
    }

    /// Passes on what a write came to, or fails when the client has taken too little for too long.
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
            let may_go_on = head.look_at(&mut into.filled_mut()[before..]);
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

/// The lines of heads, as they arrive.
#[derive(Debug, Default)]
struct HeadLines {
    /// First bytes of the current line, in lower case.
    line: Vec<u8>,
    last: u8,
    has_body: bool,
}

impl HeadLines {
    /// Looks at what was read. Returns false where no more heads follow: behind one with a body, and at a bare line feed, which it
    /// replaces by a byte that the parser refuses.
    fn look_at(&mut self, read: &mut [u8]) -> bool {
        for byte in read {
            if *byte != b'\n' {
                if self.line.len() < TOLD_BY {
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
            self.has_body |= OF_BODIES.iter().any(|header| self.line.starts_with(header));
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
    async fn a_write_that_nobody_takes_fails() {
        for is_live in [false, true] {
            let (here, _there) = duplex(16);
            let written = over(here, Duration::from_millis(20), 1, is_live).write_all(&[0; 100]).await;
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn bytes_that_are_held_below_are_waited_for_no_longer() {
        // TLS holds some, too.
        for is_end in [false, true] {
            let (here, _there) = duplex(16);
            let mut here = over(BufWriter::new(here), Duration::from_millis(20), 1, false);
            here.write_all(&[0; 100]).await.unwrap();
            let flushed = if is_end { here.shutdown().await } else { here.flush().await };
            assert_eq!(flushed.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    /// Writes to a client that takes a few bytes at a time, in all more slowly than `stall` allows.
    async fn written_slowly(bytes_per_s: u64, is_live: bool) -> io::Result<()> {
        let (here, mut there) = duplex(16);
        // Each wait is far from it.
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
    async fn a_client_that_takes_a_little_at_a_time_is_let_go() {
        let slow = written_slowly(1 << 20, false).await;
        assert_eq!(slow.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_slow_client_within_its_pace_and_one_of_live_events_go_on() {
        // A byte earns a second.
        written_slowly(1, false).await.unwrap();
        written_slowly(1 << 20, true).await.unwrap();
    }

    #[test]
    fn a_bare_line_feed_ends_every_head_and_a_body_is_not_looked_at() {
        let looked_at = |text: &str| {
            let mut whole = text.as_bytes().to_vec();
            let may_go_on = HeadLines::default().look_at(&mut whole);
            let mut lines = HeadLines::default();
            // In pieces it is the same.
            let in_pieces: Vec<u8> = text.bytes().fold(Vec::new(), |mut done, byte| {
                let mut piece = [byte];
                if !lines.look_at(&mut piece) {
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
        assert_eq!(looked_at("GET / HTTP/1.1\r\nhost: a\r\n\r\n"), (true, None));
        assert_eq!(looked_at("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\n"), (true, None));
        assert_eq!(looked_at("GET / HTTP/1.1\nhost: a\n\n"), (false, Some(14)));
        assert_eq!(looked_at("GET / HTTP/1.1\r\nhost: a\n\r\n"), (false, Some(23)));
        assert_eq!(looked_at("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\n"), (false, Some(32)));
        assert_eq!(looked_at("\nGET / HTTP/1.1\r\n"), (false, Some(0)));
        assert_eq!(looked_at("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n\n\n"), (false, None));
        assert_eq!(looked_at("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\n"), (false, None));
    }
}
