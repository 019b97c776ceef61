//! The door: the thread that serves a run's socket. It authenticates connections, sends batches to the single consumer, and
//! receives acknowledgements. It blocks only while it waits for all its sockets together, for at most a second at a time.
//!
//! The thread is a loop around `poll(2)` instead of tasks on tokio, for three reasons. File descriptors are passed with `sendmsg`
//! and `recvmsg`, which tokio's `UnixStream` supports only through `try_io` around the same calls, so the framing would not
//! become simpler. The order of work in an iteration of the loop is part of the protocol: all messages of the current consumer
//! are applied before a waiting connection can replace it; tasks would have to coordinate this. And the thread is joined by a
//! [`Consumer`], a blocking interface without a runtime.
//!
//! [`Consumer`]: penstock_engine::ports::Consumer

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::memory::process_limit_bytes;
use penstock_types::stats::Tick;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::consumer::StreamState;
use crate::frame::{Garbled, Incoming, Outgoing, Read};
use crate::outbox::{KeepsTooMuch, KeptRegions, NotGiven, Reading};
use crate::place::SocketPath;
use crate::protocol::{FromConsumer, PROTOCOL, Refusal, Refused, Secret, ToConsumer, Welcome};

/// Time limit for the authentication of a connection.
const ARRIVAL: Duration = Duration::from_secs(1);
/// Maximum number of unauthenticated connections; the oldest one is closed if a further one arrives.
const MAX_ARRIVING: usize = 8;
/// Maximum number of disconnected consumers that still read arrays.
const MAX_LEAVING: usize = 16;
/// Maximum number of regions of acknowledged batches that a consumer may keep; each region takes a file descriptor of this
/// process.
const MAX_KEPT: usize = 1024;
/// Time limit for sending the end of the stream to the consumer.
const FAREWELL: Duration = Duration::from_secs(1);
/// Pause after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);
const SLEEP: Duration = Duration::from_secs(1);
/// Maximum number of reads of one socket per iteration of the loop.
const READS: usize = 64;

/// The socket of a run, and all connections to it.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    pub(crate) shared: Arc<StreamState>,
    secret: Secret,
    welcome: Welcome,
    arriving: Vec<Arriving>,
    present: Option<Present>,
    leaving: Vec<Leaving>,
    /// Earliest time at which the next connection is accepted.
    opens_at: Tick,
    ended_at: Option<Tick>,
    /// Removes the socket on drop.
    _place: SocketPath,
}

/// A connection that has not authenticated yet.
#[derive(Debug)]
struct Arriving {
    socket: UnixStream,
    incoming: Incoming,
    until: Tick,
}

/// The consumer that is currently connected.
#[derive(Debug)]
struct Present {
    socket: UnixStream,
    incoming: Incoming,
    outgoing: Option<Outgoing>,
    /// Set once [`ToConsumer::End`] is being sent.
    is_end_sent: bool,
}

/// A consumer that has stopped receiving and still reads arrays.
#[derive(Debug)]
struct Leaving {
    socket: UnixStream,
    _reading: Reading,
}

/// Reason to close a connection.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the consumer has left")]
    Left,
    #[error("the connection is broken: {0}")]
    Socket(#[source] io::Error),
    #[error("the consumer sent an invalid message: {0}")]
    Garbled(#[from] Garbled),
    #[error("the consumer sent an invalid request: {0}")]
    NotGiven(#[from] NotGiven),
    #[error("the consumer sent a second hello")]
    HelloAgain,
    #[error("the consumer receives no more batches: {0}")]
    KeepsTooMuch(#[from] KeepsTooMuch),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Left,
            _ => Self::Socket(error),
        }
    }
}

/// Readiness of all sockets after a wait.
struct Ready {
    listener: PollFlags,
    present: PollFlags,
    arriving: Vec<PollFlags>,
    leaving: Vec<PollFlags>,
}

impl Door {
    pub(crate) fn new(
        place: SocketPath,
        listener: UnixListener,
        secret: Secret,
        welcome: Welcome,
    ) -> io::Result<Self> {
        Ok(Self {
            listener,
            shared: Arc::new(StreamState::new(welcome.ahead, most_kept())?),
            secret,
            welcome,
            arriving: Vec::new(),
            present: None,
            leaving: Vec::new(),
            opens_at: Tick::ZERO,
            ended_at: None,
            _place: place,
        })
    }

    /// Serves the socket until the stream has ended and the consumer was notified.
    pub(crate) fn run(mut self) {
        while !self.is_over() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    // The run detects the end of this thread and fails.
                    tracing::error!(run = %self.welcome.run, %error, "cannot poll the sockets of a stream");
                    return;
                }
            };
            // The current consumer is handled first: if it has left, its successor may be among the arriving connections.
            self.receive_from_present(ready.present);
            // A consumer that left in this iteration is at the end of `leaving` and has no entry in `ready`, so it is retained.
            let mut are_gone = ready.leaving.iter().map(|ready| !ready.is_empty());
            self.leaving.retain(|_| !are_gone.next().unwrap_or(false));
            self.receive_from_arriving(&ready.arriving);
            if !ready.listener.is_empty() {
                self.accept();
            }
            self.send_to_present();
        }
        // Acknowledgements that have already arrived are still counted.
        self.receive_from_present(PollFlags::IN);
    }

    /// True if the end of the stream was sent, or could not be sent within the time limit.
    fn is_over(&mut self) -> bool {
        if self.shared.outbox().end().is_none() {
            return false;
        }
        let now = self.shared.now();
        let until = self.ended_at.get_or_insert(now).after(FAREWELL);
        let is_notified =
            self.present.as_ref().is_none_or(|present| present.is_end_sent && present.outgoing.is_none());
        is_notified || now >= until
    }

    fn wait(&self) -> io::Result<Ready> {
        let now = self.shared.now();
        let is_open = now >= self.opens_at;
        let present = |present: &Present| match present.outgoing {
            Some(_) => PollFlags::IN | PollFlags::OUT,
            None => PollFlags::IN,
        };
        let mut polled = vec![
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::new(&self.listener, if is_open { PollFlags::IN } else { PollFlags::empty() }),
        ];
        polled.extend(self.present.iter().map(|found| PollFd::new(&found.socket, present(found))));
        polled.extend(self.arriving.iter().map(|found| PollFd::new(&found.socket, PollFlags::IN)));
        // No event is requested, because `poll` always reports a closed socket.
        polled.extend(self.leaving.iter().map(|found| PollFd::new(&found.socket, PollFlags::empty())));
        let sleep = self.sleep(now);
        let timeout = Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: sleep.subsec_nanos().into() };
        rustix::io::retry_on_intr(|| poll(&mut polled, Some(&timeout)))?;
        let mut found = polled.iter().map(PollFd::revents);
        let mut next = || found.next().unwrap_or_else(PollFlags::empty);
        if !next().is_empty() {
            self.shared.clear_wake();
        }
        Ok(Ready {
            listener: next(),
            present: if self.present.is_some() { next() } else { PollFlags::empty() },
            arriving: self.arriving.iter().map(|_| next()).collect(),
            leaving: self.leaving.iter().map(|_| next()).collect(),
        })
    }

    /// Time until the next deadline.
    fn sleep(&self, now: Tick) -> Duration {
        let arrivals = self.arriving.iter().map(|arriving| arriving.until);
        let opening = (now < self.opens_at).then_some(self.opens_at);
        let first = arrivals.chain(opening).chain(self.ended_at.map(|at| at.after(FAREWELL))).min();
        first.map_or(SLEEP, |first| Duration::from_nanos(first - now).min(SLEEP))
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((socket, _)) if !is_ours(&socket) => {
                let why = "only the user that the server runs as may take batches";
                refuse(&socket, Refusal::Stranger, why);
            }
            Ok((socket, _)) => {
                let until = self.shared.now().after(ARRIVAL);
                if self.arriving.len() >= MAX_ARRIVING {
                    let why = "it had not authenticated when too many other connections arrived";
                    refuse(&self.arriving.remove(0).socket, Refusal::Garbled, why);
                }
                self.arriving.push(Arriving { socket, incoming: Incoming::new(0), until });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(run = %self.welcome.run, %error, "cannot accept a connection to a stream");
                self.opens_at = self.shared.now().after(PAUSE);
            }
        }
    }

    fn receive_from_arriving(&mut self, ready: &[PollFlags]) {
        let now = self.shared.now();
        let arriving = std::mem::take(&mut self.arriving);
        for (mut arriving, ready) in arriving.into_iter().zip(ready) {
            let hello = if ready.is_empty() { Ok(None) } else { arriving.receive_hello() };
            match hello {
                Ok(Some((protocol, secret))) => self.admit(arriving, protocol, &secret),
                Ok(None) if now < arriving.until => self.arriving.push(arriving),
                Ok(None) => refuse(&arriving.socket, Refusal::Garbled, "it did not authenticate in time"),
                Err(Broken::Left | Broken::Socket(_)) => {}
                Err(broken) => refuse(&arriving.socket, Refusal::Garbled, &broken.to_string()),
            }
        }
    }

    /// Accepts a connection as the consumer, or refuses it.
    fn admit(&mut self, arriving: Arriving, protocol: u32, secret: &Secret) {
        let Arriving { socket, incoming, .. } = arriving;
        if !self.secret.is(secret) {
            return refuse(&socket, Refusal::Stranger, "the secret does not belong to this run");
        }
        if protocol != PROTOCOL {
            let why = format!(
                "the consumer uses protocol version {protocol}, but the server uses {PROTOCOL}: use the same release"
            );
            return refuse(&socket, Refusal::Version, &why);
        }
        if self.present.is_some() {
            let why = "another consumer is connected to this run; only one at a time is allowed";
            return refuse(&socket, Refusal::Busy, why);
        }
        if self.leaving.len() >= MAX_LEAVING {
            let why = format!(
                "{MAX_LEAVING} consumers have left and still keep arrays; one of them has to release them"
            );
            return refuse(&socket, Refusal::Busy, &why);
        }
        self.shared.outbox().on_consumer();
        self.shared.on_change();
        let outgoing = Some(Outgoing::new(&ToConsumer::Welcome(self.welcome.clone())));
        self.present = Some(Present { socket, incoming, outgoing, is_end_sent: false });
        // The connection may have sent further messages together with the hello.
        self.receive_from_present(PollFlags::IN);
    }

    fn receive_from_present(&mut self, ready: PollFlags) {
        let Some(present) = self.present.as_mut().filter(|_| !ready.is_empty()) else { return };
        if let Err(broken) = present.receive(&self.shared) {
            self.dismiss(&broken);
        }
        self.shared.on_change();
    }

    fn send_to_present(&mut self) {
        let Some(present) = &mut self.present else { return };
        if let Err(error) = present.send(&self.shared) {
            // The consumer may have acknowledged batches before it left; after the shutdown, no further messages arrive.
            present.socket.shutdown(Shutdown::Read).ok();
            let broken = loop {
                match present.receive(&self.shared) {
                    Ok(true) => {}
                    Err(Broken::Left) | Ok(false) => break error,
                    Err(broken) => break broken,
                }
            };
            self.dismiss(&broken);
            self.shared.on_change();
        }
    }

    /// Closes the current consumer's connection; its unacknowledged batches go to the next consumer.
    fn dismiss(&mut self, broken: &Broken) {
        let Some(present) = self.present.take() else { return };
        let now = self.shared.now();
        let reading = self.shared.outbox().on_leave(now);
        let reason = match broken {
            Broken::Left => None,
            Broken::Socket(_) => Some(Refusal::Trouble),
            Broken::Garbled(_) | Broken::NotGiven(_) | Broken::HelloAgain => Some(Refusal::Garbled),
            Broken::KeepsTooMuch(_) => Some(Refusal::Memory),
        };
        if let Some(reason) = reason {
            tracing::warn!(run = %self.welcome.run, error = %broken, "a consumer was disconnected");
            // A refusal must not be sent in the middle of a partly sent frame.
            if !present.outgoing.is_some_and(|outgoing| outgoing.is_begun()) {
                refuse(&present.socket, reason, &broken.to_string());
            }
        }
        if !reading.is_empty() {
            silence(&present.socket);
            self.leaving.push(Leaving { socket: present.socket, _reading: reading });
        }
    }
}

impl Arriving {
    /// Returns the protocol version and the secret once the hello has arrived.
    fn receive_hello(&mut self) -> Result<Option<(u32, Secret)>, Broken> {
        if self.incoming.read(&self.socket)? == Read::End {
            return Err(Broken::Left);
        }
        match self.incoming.take()? {
            Some((FromConsumer::Hello { protocol, secret }, _)) => Ok(Some((protocol, secret))),
            Some((FromConsumer::Ack { seq }, _)) => Err(NotGiven::Batch(seq).into()),
            Some((FromConsumer::Release { region }, _)) => Err(NotGiven::Region(region).into()),
            None => Ok(None),
        }
    }
}

impl Present {
    /// Applies all received messages. Returns true if more messages may be waiting in the socket.
    fn receive(&mut self, shared: &StreamState) -> Result<bool, Broken> {
        // Messages that arrived together with the hello are already in the buffer.
        self.apply(shared)?;
        for _ in 0..READS {
            match self.incoming.read(&self.socket)? {
                Read::Something => self.apply(shared)?,
                Read::Nothing => return Ok(false),
                Read::End => return Err(Broken::Left),
            }
        }
        Ok(true)
    }

    fn apply(&mut self, shared: &StreamState) -> Result<(), Broken> {
        while let Some((message, _)) = self.incoming.take()? {
            let mut outbox = shared.outbox();
            match message {
                FromConsumer::Ack { seq } => outbox.acknowledge(seq)?,
                FromConsumer::Release { region } => outbox.release(region)?,
                FromConsumer::Hello { .. } => return Err(Broken::HelloAgain),
            }
        }
        Ok(())
    }

    /// Sends as many frames as the socket accepts now.
    fn send(&mut self, shared: &StreamState) -> Result<(), Broken> {
        loop {
            if self.outgoing.is_none() {
                self.outgoing = self.next(shared)?;
            }
            let Some(outgoing) = &mut self.outgoing else { return Ok(()) };
            if !outgoing.send(&self.socket)? {
                return Ok(());
            }
            self.outgoing = None;
        }
    }

    fn next(&mut self, shared: &StreamState) -> Result<Option<Outgoing>, KeepsTooMuch> {
        let mut outbox = shared.outbox();
        if let Some(delivery) = outbox.give()? {
            let parcel = &delivery.parcel;
            let head = ToConsumer::Batch(parcel.head(delivery.seq, delivery.redelivered));
            let regions = parcel.regions.iter().map(|shown| shown.region.clone()).collect();
            return Ok(Some(Outgoing::with_body(&head, parcel.body.clone(), regions)));
        }
        let end = outbox.end().filter(|_| !self.is_end_sent).cloned();
        self.is_end_sent |= end.is_some();
        Ok(end.map(|end| Outgoing::new(&ToConsumer::End(end))))
    }
}

/// Limit of regions that a consumer may keep: [`MAX_KEPT`] regions, and a quarter of the memory that this process may use.
fn most_kept() -> KeptRegions {
    KeptRegions { regions: MAX_KEPT, bytes: process_limit_bytes().unwrap_or(4 << 30) / 4 }
}

/// Shuts down reading and discards what was received. A received file descriptor could be the other end of this socket and would
/// keep the connection open forever.
fn silence(socket: &UnixStream) {
    socket.shutdown(Shutdown::Read).ok();
    let mut discarded = Incoming::new(0);
    while let Ok(Read::Something) = discarded.read(socket) {
        discarded = Incoming::new(0);
    }
}

/// True if the peer process belongs to the user of this process.
pub(crate) fn is_ours(socket: &UnixStream) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == geteuid())
}

fn refuse(socket: &UnixStream, reason: Refusal, why: &str) {
    let message = ToConsumer::Refused(Refused { reason, why: why.to_owned() });
    if let Err(error) = Outgoing::new(&message).send(socket) {
        tracing::debug!(%error, "cannot send a refusal");
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use crate::parcel::tests::plain;

    /// Sends bytes together with a file descriptor, so that the receiver gets the bytes in a separate read.
    fn send_alone(socket: &UnixStream, bytes: &[u8]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [socket.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn messages_from_the_last_read_of_a_turn_are_applied_in_that_turn() {
        let (here, there) = UnixStream::pair().unwrap();
        let shared = StreamState::new(4, most_kept()).unwrap();
        shared.outbox().put(plain(1), Tick::ZERO);
        shared.outbox().on_consumer();
        shared.outbox().give().unwrap().unwrap();
        let mut present =
            Present { socket: there, incoming: Incoming::new(0), outgoing: None, is_end_sent: false };
        let head = format!("{:<1$}", r#"{"ack":{"seq":0}}"#, READS - 8);
        let lengths = [u32::try_from(head.len()).unwrap(), 0].map(u32::to_le_bytes).concat();
        let frame = [lengths.as_slice(), head.as_bytes()].concat();
        assert_eq!(frame.len(), READS);
        frame.iter().for_each(|byte| send_alone(&here, &[*byte]));
        assert!(present.receive(&shared).unwrap(), "all reads of the turn were used");
        assert!(shared.outbox().is_empty(), "the batch is acknowledged");
    }

    #[test]
    fn a_client_that_sends_its_own_end_of_the_socket_does_not_keep_it_open() {
        let (here, there) = UnixStream::pair().unwrap();
        send_alone(&here, b"nonsense");
        drop(here);
        silence(&there);
        let mut polled = [PollFd::new(&there, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
        assert!(polled[0].revents().contains(PollFlags::HUP));
    }
}
