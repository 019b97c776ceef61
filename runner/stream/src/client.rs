//! The client side of a stream: takes the batches of a run from a server on the same machine.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use memmap2::MmapMut;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::codec::decode;
use penstock_engine::item::{Collated, Item};
use penstock_engine::lock::locked;
use penstock_types::stats::Tick;
use penstock_types::text::with_causes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::door::is_ours;
use crate::frame::{Garbled, Incoming, Outgoing, Read};
use crate::mapping;
use crate::protocol::{
    BatchHead, End, FromConsumer, MAX_BODY_BYTES, MAX_REGIONS, PROTOCOL, Refused, Secret, ToConsumer, Welcome,
};

/// A consumer of a run. When the client is dropped, unacknowledged batches go to the next consumer; received arrays that still
/// exist remain valid. A forked process shares the connection: while the forked process lives, the server does not notice the
/// death of the process that connected.
#[derive(Debug)]
pub struct Client {
    connection: Arc<Connection>,
    welcome: Welcome,
    receiving: Mutex<Receiving>,
    /// Numbers of the received batches that are not yet acknowledged.
    out: Mutex<BTreeSet<u64>>,
}

/// Result of a call of [`Client::next`].
#[derive(Debug)]
pub enum Received {
    Batch(Batch),
    Nothing,
    End(End),
}

/// A received batch, which the consumer has to acknowledge.
#[derive(Debug)]
pub struct Batch {
    pub seq: u64,
    /// Set if an earlier consumer received the batch and may have processed it.
    pub redelivered: bool,
    /// Samples and fields. Large arrays are in shared memory of the server, on separate pages: the server may reuse an array's
    /// memory after the array's last handle in this process is dropped and the batch is acknowledged. Writes go to private copies
    /// of the pages.
    pub contents: Collated,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamError {
    #[error(
        "cannot connect to `{}`: the run is over, or its server runs on another machine or as another user", .socket.display()
    )]
    Connect { socket: PathBuf, source: Arc<io::Error> },
    #[error("the socket `{}` belongs to a process of another user", .0.display())]
    Stranger(PathBuf),
    #[error("the server rejected this consumer: {}", .0.why)]
    Refused(Refused),
    #[error("the server closed the connection before the run was over")]
    Closed,
    #[error("cannot read a message of the server: {0}")]
    Garbled(String),
    #[error("batch {0} was not received on this connection, or is already acknowledged")]
    NotGiven(u64),
    #[error("the memory of a batch cannot be mapped")]
    Memory(#[source] Arc<io::Error>),
    #[error("the connection to the server is broken")]
    Socket(#[source] Arc<io::Error>),
    #[error("the server did not answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("this consumer has disconnected after an error: {0}")]
    Left(String),
}

/// Timeout for the server's answer to a connection, and for sending a message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to the server. It stays open as long as an array received on it exists.
#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    clock: MonotonicClock,
    /// Frames to be sent; a part of the first frame may already be sent.
    unsent: Mutex<VecDeque<Outgoing>>,
    /// Id of the process that connected. A forked child does not release arrays, because its parent may still read them.
    process: u32,
}

#[derive(Debug)]
struct Receiving {
    incoming: Incoming,
    /// Set once the stream has ended for this consumer.
    last: Option<Result<End, StreamError>>,
}

/// A region mapped for reading, which is released on drop.
struct Borrowed {
    /// `None` once the memory is unmapped, which must happen before the region is released.
    mapping: Option<MmapMut>,
    id: u64,
    connection: Arc<Connection>,
}

impl Client {
    /// Connects to the run with the socket and the secret from its [`crate::StreamAddress`].
    pub fn connect(socket: &Path, secret: &str) -> Result<Self, StreamError> {
        let failed = |source| StreamError::Connect { socket: socket.to_owned(), source: Arc::new(source) };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        if !is_ours(&stream) {
            return Err(StreamError::Stranger(socket.to_owned()));
        }
        let (clock, process) = (MonotonicClock::start(), std::process::id());
        let connection = Arc::new(Connection { socket: stream, clock, unsent: Mutex::default(), process });
        connection.send(&FromConsumer::Hello { protocol: PROTOCOL, secret: Secret(secret.to_owned()) })?;
        let mut incoming = Incoming::new(MAX_BODY_BYTES);
        let until = clock.now().after(ANSWER_TIMEOUT);
        let welcome = loop {
            match connection.receive(&mut incoming, until)? {
                Some((ToConsumer::Welcome(welcome), _)) => break welcome,
                Some((ToConsumer::Refused(refused), _)) => return Err(StreamError::Refused(refused)),
                Some((ToConsumer::End(_) | ToConsumer::Batch(_), _)) => {
                    return Err(StreamError::Garbled("the first message is not a welcome".to_owned()));
                }
                None if clock.now() < until => {}
                None => return Err(StreamError::Late(ANSWER_TIMEOUT)),
            }
        };
        let receiving = Mutex::new(Receiving { incoming, last: None });
        Ok(Self { connection, welcome, receiving, out: Mutex::default() })
    }

    /// The server's description of the run.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Waits for the next batch until `most` has passed or a signal arrives. Concurrent calls run one after the other. An error
    /// ends the stream: unacknowledged batches go to the next consumer, and every later call fails.
    pub fn next(&self, most: Duration) -> Result<Received, StreamError> {
        let mut receiving = locked(&self.receiving);
        if let Some(last) = receiving.last.clone() {
            return last.map(Received::End);
        }
        let received = self.receive(&mut receiving, most);
        receiving.last = match &received {
            Ok(Received::Batch(_) | Received::Nothing) => None,
            Ok(Received::End(end)) => Some(Ok(end.clone())),
            Err(error @ (StreamError::Refused(_) | StreamError::Closed)) => Some(Err(error.clone())),
            Err(error) => {
                self.connection.leave();
                Some(Err(StreamError::Left(with_causes(error))))
            }
        };
        received
    }

    fn receive(&self, receiving: &mut Receiving, most: Duration) -> Result<Received, StreamError> {
        // A send error is ignored: the messages already received state the reason.
        self.connection.flush().ok();
        let until = self.connection.clock.now().after(most);
        let Some((message, body)) = self.connection.receive(&mut receiving.incoming, until)? else {
            return Ok(Received::Nothing);
        };
        match message {
            ToConsumer::Batch(head) => {
                let contents = self.contents(&head, &body, &mut receiving.incoming)?;
                locked(&self.out).insert(head.seq);
                Ok(Received::Batch(Batch { seq: head.seq, redelivered: head.redelivered, contents }))
            }
            ToConsumer::End(end) => Ok(Received::End(end)),
            ToConsumer::Refused(refused) => Err(StreamError::Refused(refused)),
            ToConsumer::Welcome(_) => Err(StreamError::Garbled("it sent a second welcome".to_owned())),
        }
    }

    /// Acknowledges a batch, so that no other consumer receives it. Its arrays remain valid.
    pub fn acknowledge(&self, seq: u64) -> Result<(), StreamError> {
        if !locked(&self.out).remove(&seq) {
            return Err(StreamError::NotGiven(seq));
        }
        self.connection.send(&FromConsumer::Ack { seq })
    }

    fn contents(
        &self,
        head: &BatchHead,
        body: &Bytes,
        incoming: &mut Incoming,
    ) -> Result<Collated, StreamError> {
        if head.regions.len() > MAX_REGIONS {
            return Err(StreamError::Garbled("a batch has too many regions".to_owned()));
        }
        let files = incoming.take_files(head.regions.len())?;
        let mut regions = Vec::with_capacity(files.len());
        for (file, region) in files.iter().zip(&head.regions) {
            let bytes = usize::try_from(region.bytes)
                .map_err(|_| StreamError::Garbled("a region is too large".to_owned()))?;
            let mapping =
                mapping::borrow(file, bytes).map_err(|error| StreamError::Memory(Arc::new(error)))?;
            let connection = self.connection.clone();
            regions.push(Bytes::from_owner(Borrowed { mapping: Some(mapping), id: region.id, connection }));
        }
        match decode(body, &regions) {
            Ok(Item::Collated(batch)) => Ok(batch),
            Ok(_) => Err(StreamError::Garbled("a batch is not collated".to_owned())),
            Err(fault) => {
                Err(StreamError::Garbled(format!("a batch cannot be decoded: {}", with_causes(&fault))))
            }
        }
    }
}

impl Connection {
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Sends as much as the socket accepts now. Returns true if everything has been sent.
    fn flush(&self) -> Result<bool, StreamError> {
        let mut unsent = locked(&self.unsent);
        while let Some(frame) = unsent.front_mut() {
            match frame.send(&self.socket) {
                Ok(true) => drop(unsent.pop_front()),
                Ok(false) => return Ok(false),
                Err(error) => {
                    unsent.clear();
                    return Err(broken(error));
                }
            }
        }
        Ok(true)
    }

    /// Sends a message, and waits until it is sent.
    fn send(&self, message: &FromConsumer) -> Result<(), StreamError> {
        locked(&self.unsent).push_back(Outgoing::new(message));
        let until = self.clock.now().after(ANSWER_TIMEOUT);
        while !self.flush()? {
            if !self.wait(PollFlags::OUT, until)? && self.clock.now() >= until {
                return Err(StreamError::Late(ANSWER_TIMEOUT));
            }
        }
        Ok(())
    }

    /// Shuts down the sending side, which tells the server that this consumer has left. Received arrays remain valid.
    fn leave(&self) {
        // An error is ignored: it means that the server has already closed the connection.
        self.socket.shutdown(Shutdown::Write).ok();
    }

    /// Returns the next message; `None` if the time is up or a signal arrives first.
    fn receive(
        &self,
        incoming: &mut Incoming,
        until: Tick,
    ) -> Result<Option<(ToConsumer, Bytes)>, StreamError> {
        loop {
            if let Some(frame) = incoming.take()? {
                return Ok(Some(frame));
            }
            match incoming.read(&self.socket).map_err(broken)? {
                Read::Something => {}
                Read::End => return Err(StreamError::Closed),
                Read::Nothing if self.wait(PollFlags::IN, until)? => {}
                Read::Nothing => return Ok(None),
            }
        }
    }

    /// Waits until the socket is ready. Returns false if the time is up or a signal arrives first.
    fn wait(&self, ready: PollFlags, until: Tick) -> Result<bool, StreamError> {
        let left = Duration::from_nanos(until - self.clock.now());
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.socket, ready)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(found) => Ok(found > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(broken(error.into())),
        }
    }
}

fn broken(error: io::Error) -> StreamError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => StreamError::Closed,
        _ => StreamError::Socket(Arc::new(error)),
    }
}

impl From<Garbled> for StreamError {
    fn from(garbled: Garbled) -> Self {
        Self::Garbled(garbled.to_string())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.connection.is_ours() {
            self.connection.leave();
        }
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        self.mapping.as_deref().unwrap_or_default()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        drop(self.mapping.take());
        if !self.connection.is_ours() {
            return;
        }
        locked(&self.connection.unsent).push_back(Outgoing::new(&FromConsumer::Release { region: self.id }));
        // An error is ignored here: the unsent rest is sent with the next message.
        self.connection.flush().ok();
    }
}
