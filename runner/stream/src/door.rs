//! The thread that serves a run's socket: it authenticates connections, sends batches to the one consumer, and receives
//! acknowledgements. It waits for sockets only, a second at a time.
//!
//! It is a loop around `poll(2)` and not tasks on tokio, for three reasons. Files travel with `sendmsg` and `recvmsg`, which tokio's
//! `UnixStream` knows only as `try_io` around the same calls, so that framing stays as it is. The order within a turn is part of the
//! protocol: all that the consumer has said is applied before its place is given to a connection that waits, which tasks would have
//! to agree on. And the thread is joined by the consumer of a run, a blocking port without a runtime.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::memory::process_limit_bytes;
use penstock_types::stats::Tick;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::Secret;
use crate::consumer::StreamState;
use crate::frame::{Garbled, Incoming, Outgoing, Read};
use crate::outbox::{KeepsTooMuch, KeptRegions, NotGiven, Reading};
use crate::place::SocketPath;
use crate::protocol::{FromConsumer, PROTOCOL, Refusal, Refused, ToConsumer, Welcome};

/// Time within which a connection has to authenticate.
const ARRIVAL: Duration = Duration::from_secs(1);
/// Most connections that have not authenticated; the oldest makes room for a new one.
const MAX_ARRIVING: usize = 8;
/// Most consumers that have left and still read arrays.
const MAX_LEAVING: usize = 16;
/// Regions that a consumer may keep of batches that it has acknowledged: each is an open file of this process.
const MAX_KEPT: usize = 1024;
/// Time to send the end of the stream to the consumer.
const FAREWELL: Duration = Duration::from_secs(1);
/// Pause after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);
const SLEEP: Duration = Duration::from_secs(1);
/// Most reads of one socket in a turn.
const READS: usize = 64;

/// The socket of a run, and its connections.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    shared: Arc<StreamState>,
    secret: Secret,
    welcome: Welcome,
    arriving: Vec<Arriving>,
    present: Option<Present>,
    leaving: Vec<Leaving>,
    /// No connection is accepted before this moment.
    opens_at: Tick,
    ended_at: Option<Tick>,
    /// Removes the socket.
    _place: SocketPath,
}

/// A connection that has not authenticated.
#[derive(Debug)]
struct Arriving {
    socket: UnixStream,
    incoming: Incoming,
    until: Tick,
}

/// The connected consumer.
#[derive(Debug)]
struct Present {
    socket: UnixStream,
    incoming: Incoming,
    outgoing: Option<Outgoing>,
    /// Set once the last frame is being sent.
    is_end_sent: bool,
}

/// A consumer that has left and still reads arrays.
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
    #[error("the consumer sent {0}")]
    Garbled(#[from] Garbled),
    #[error("the consumer cannot do that: {0}")]
    NotGiven(#[from] NotGiven),
    #[error("the consumer said hello twice")]
    HelloAgain,
    #[error("the consumer gets no more batches: {0}")]
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

    pub(crate) fn shared(&self) -> Arc<StreamState> {
        self.shared.clone()
    }

    /// Serves the socket until the stream has ended and the consumer has been told.
    pub(crate) fn run(mut self) {
        while !self.is_over() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    // The run sees that this thread has ended, and fails.
                    tracing::error!(run = %self.welcome.run, %error, "the sockets of a stream cannot be watched");
                    return;
                }
            };
            // The consumer first: when it has left, the next one may be among those that arrive.
            self.receive_from_present(ready.present);
            // As many as there were before the wait.
            let mut are_gone = ready.leaving.iter().map(|ready| !ready.is_empty());
            self.leaving.retain(|_| !are_gone.next().unwrap_or(false));
            self.receive_from_arriving(&ready.arriving);
            if !ready.listener.is_empty() {
                self.accept();
            }
            self.send_to_present();
        }
        // Acknowledgements that have come by now count.
        self.receive_from_present(PollFlags::IN);
    }

    /// Returns true when the end was sent, or cannot be sent in time.
    fn is_over(&mut self) -> bool {
        if self.shared.outbox().end().is_none() {
            return false;
        }
        let now = self.shared.now();
        let until = self.ended_at.get_or_insert(now).after(FAREWELL);
        let is_told =
            self.present.as_ref().is_none_or(|present| present.is_end_sent && present.outgoing.is_none());
        is_told || now >= until
    }

    fn wait(&self) -> io::Result<Ready> {
        let now = self.shared.now();
        let is_open = now >= self.opens_at;
        let present = |present: &Present| match present.outgoing {
            Some(_) => PollFlags::IN | PollFlags::OUT,
            None => PollFlags::IN,
        };
        let mut polled = vec![
            PollFd::new(self.shared.wake(), PollFlags::IN),
            PollFd::new(&self.listener, if is_open { PollFlags::IN } else { PollFlags::empty() }),
        ];
        polled.extend(self.present.iter().map(|found| PollFd::new(&found.socket, present(found))));
        polled.extend(self.arriving.iter().map(|found| PollFd::new(&found.socket, PollFlags::IN)));
        // `poll` reports a closed socket without being asked.
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
            Ok((socket, _)) => {
                let until = self.shared.now().after(ARRIVAL);
                if is_ours(&socket) {
                    if self.arriving.len() >= MAX_ARRIVING {
                        let first = self.arriving.remove(0);
                        refuse(&first.socket, Refusal::Garbled, "others came, and it did not say who it is");
                    }
                    self.arriving.push(Arriving { socket, incoming: Incoming::new(0), until });
                } else {
                    refuse(
                        &socket,
                        Refusal::Stranger,
                        "only the user that the server runs as gets its batches",
                    );
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(run = %self.welcome.run, %error, "a stream cannot accept connections now");
                self.opens_at = self.shared.now().after(PAUSE);
            }
        }
    }

    fn receive_from_arriving(&mut self, ready: &[PollFlags]) {
        let now = self.shared.now();
        let arriving = std::mem::take(&mut self.arriving);
        for (mut arriving, ready) in arriving.into_iter().zip(ready) {
            let heard = if ready.is_empty() { Ok(None) } else { arriving.receive_hello() };
            match heard {
                Ok(Some((protocol, secret))) => self.admit(arriving, protocol, &secret),
                Ok(None) if now < arriving.until => self.arriving.push(arriving),
                Ok(None) => refuse(&arriving.socket, Refusal::Garbled, "it did not say in time who it is"),
                Err(Broken::Left | Broken::Socket(_)) => {}
                Err(broken) => refuse(&arriving.socket, Refusal::Garbled, &broken.to_string()),
            }
        }
    }

    /// Makes a connection the consumer, or refuses it.
    fn admit(&mut self, arriving: Arriving, protocol: u32, secret: &str) {
        let Arriving { socket, incoming, .. } = arriving;
        if !self.secret.is(secret) {
            return refuse(&socket, Refusal::Stranger, "that is not the secret of this run");
        }
        if protocol != PROTOCOL {
            let why = format!(
                "it speaks version {protocol}, and the server version {PROTOCOL}: use the same release"
            );
            return refuse(&socket, Refusal::Version, &why);
        }
        if self.present.is_some() {
            let why = "another consumer takes the batches of this run; there is one at a time";
            return refuse(&socket, Refusal::Busy, why);
        }
        if self.leaving.len() >= MAX_LEAVING {
            let why = format!(
                "{MAX_LEAVING} consumers have left and still read arrays; one of them has to let go of them"
            );
            return refuse(&socket, Refusal::Busy, &why);
        }
        self.shared.outbox().on_consumer();
        self.shared.on_change();
        let outgoing = Some(Outgoing::new(&ToConsumer::Welcome(self.welcome.clone())));
        self.present = Some(Present { socket, incoming, outgoing, is_end_sent: false });
        // More may have come with the hello.
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
            // It may have acknowledged batches before it left; nothing more comes in from now on.
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

    /// Ends the consumer's connection; its batches go to the next one.
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
            tracing::warn!(run = %self.welcome.run, error = %broken, "a consumer is sent away");
            // Not in the middle of a frame.
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
    /// Returns version and secret, once they have come.
    fn receive_hello(&mut self) -> Result<Option<(u32, String)>, Broken> {
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
    /// Applies all messages that have come. Returns whether there may be more.
    fn receive(&mut self, shared: &StreamState) -> Result<bool, Broken> {
        // Messages that came with the hello are there without a read.
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

    /// Sends as much as the socket takes.
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

/// Regions that a consumer may keep: up to a quarter of the memory that this process may use.
fn most_kept() -> KeptRegions {
    KeptRegions { regions: MAX_KEPT, bytes: process_limit_bytes().unwrap_or(4 << 30) / 4 }
}

/// Discards what has come in, and receives nothing more: a file that is left there could be the other end of this socket, which
/// would keep it open for ever.
fn silence(socket: &UnixStream) {
    socket.shutdown(Shutdown::Read).ok();
    let mut unheard = Incoming::new(0);
    while let Ok(Read::Something) = unheard.read(socket) {
        unheard = Incoming::new(0);
    }
}

/// Returns true for a peer process of the same user.
pub(crate) fn is_ours(socket: &UnixStream) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == geteuid())
}

fn refuse(socket: impl AsFd, reason: Refusal, why: &str) {
    let message = ToConsumer::Refused(Refused { reason, why: why.to_owned() });
    let socket: BorrowedFd<'_> = socket.as_fd();
    if let Err(error) = Outgoing::new(&message).send(socket) {
        tracing::debug!(%error, "a refusal could not be sent");
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use crate::parcel::tests::plain;

    /// Sends something that is read by itself: a read ends where a file comes with what follows.
    fn send_alone(socket: &UnixStream, bytes: &[u8]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [socket.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn what_the_last_read_of_a_turn_brings_is_heard_in_it() {
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
        assert!(present.receive(&shared).unwrap(), "as many reads as it has in a turn");
        assert!(shared.outbox().is_empty(), "it is acknowledged");
    }

    #[test]
    fn who_sends_the_end_of_his_own_socket_does_not_keep_it_open() {
        let (here, there) = UnixStream::pair().unwrap();
        send_alone(&here, b"nonsense");
        drop(here);
        silence(&there);
        let mut polled = [PollFd::new(&there, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
        assert!(polled[0].revents().contains(PollFlags::HUP));
    }
}
