use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::Item;
use penstock_engine::lock::locked;
use penstock_engine::memory::{BatchMemory, Pool};
use penstock_engine::ports::{Consumer, Ending, Fault, StopFlag};
use penstock_types::run::{FailureClass, RunId};
use penstock_types::stats::Tick;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::OpenStreamError;
use crate::door::Door;
use crate::outbox::{KeptRegions, Outbox};
use crate::parcel::Parcel;
use crate::protocol::End;
use crate::region::{RevocableMemory, SharedMemory};

/// Puts batches into the outbox of a stream and waits until they are acknowledged. See [`crate`].
#[derive(Debug)]
pub struct StreamConsumer {
    run: RunId,
    memory: Pool<SharedMemory>,
    /// Memory lent to the stages, from the same pool; revoked when the stream ends.
    lent: Arc<RevocableMemory>,
    shared: Arc<StreamState>,
    /// Maximum time for which a batch may wait while no consumer is connected.
    wait: Duration,
    /// Thread that serves the socket; `None` once it is joined.
    door: Option<JoinHandle<()>>,
    /// Number of samples in batches that could not be put into the outbox.
    lost: u64,
    has_failed: bool,
}

/// State shared by the run and the thread that serves its socket.
#[derive(Debug)]
pub(crate) struct StreamState {
    outbox: Mutex<Outbox>,
    /// Notified when a batch is acknowledged, and when a consumer connects or leaves.
    changed: Condvar,
    /// Event descriptor that becomes readable when the outbox changes.
    pub(crate) wake: OwnedFd,
    clock: MonotonicClock,
}

/// Interval at which a wait checks whether the run is stopping.
const LOOK: Duration = Duration::from_millis(20);

impl StreamConsumer {
    pub(crate) fn new(
        door: Door,
        run: &RunId,
        memory: Pool<SharedMemory>,
        wait: Duration,
    ) -> Result<Self, OpenStreamError> {
        let shared = door.shared.clone();
        let door = Builder::new().name("stream".to_owned()).spawn(|| door.run());
        let door = Some(door.map_err(OpenStreamError::Door)?);
        let lent = Arc::new(RevocableMemory::new(memory.clone()));
        Ok(Self { run: run.clone(), memory, lent, shared, wait, door, lost: 0, has_failed: false })
    }

    /// Memory for arrays that are sent to the consumer without a copy.
    pub fn memory(&self) -> Arc<dyn BatchMemory> {
        self.lent.clone()
    }

    /// Waits until `holds` returns true for the outbox; fails if the run stops or no consumer takes batches in time.
    fn wait_until(&self, stop: &StopFlag, holds: impl Fn(&Outbox) -> bool) -> Result<(), Fault> {
        let mut outbox = self.shared.outbox();
        while !holds(&outbox) && !stop.is_set() {
            if outbox.alone_for(self.shared.now()) >= self.wait {
                return Err(self.no_consumer(outbox.len()));
            }
            if self.door.as_ref().is_none_or(JoinHandle::is_finished) {
                let message = "the thread that sends batches has ended; this is a defect of Penstock";
                return Err(Fault::new(FailureClass::Bug, message));
            }
            let waited = self.shared.changed.wait_timeout(outbox, LOOK);
            outbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn no_consumer(&self, waiting: usize) -> Fault {
        let batches =
            if waiting == 1 { "1 batch waits".to_owned() } else { format!("{waiting} batches wait") };
        let message = format!(
            "no consumer was connected for {} s, and {batches}: take batches with `penstock.connect(url).stream(\"{}\")` in \
             Python, or set `wait_s` of the consumer `stream` to a longer time",
            self.wait.as_secs_f64(),
            self.run
        );
        Fault::new(FailureClass::Data, message)
    }

    /// Sends the end of the stream to the consumer and joins the thread that serves the socket. Takes at most about a second.
    fn close(&mut self, end: End) -> Result<(), Fault> {
        let Some(door) = self.door.take() else { return Ok(()) };
        self.lent.end();
        self.shared.change(|outbox| outbox.close(end));
        door.join().map_err(|_| {
            let message = "the thread that sends batches panicked; this is a defect of Penstock";
            Fault::new(FailureClass::Bug, message)
        })
    }
}

impl Consumer for StreamConsumer {
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault> {
        let samples = item.samples();
        let parcel = Parcel::of(&item, &self.memory);
        // Arrays that were copied are not needed while the run waits.
        drop(item);
        let put = match parcel {
            Ok(parcel) => {
                let now = self.shared.now();
                self.shared.change(|outbox| outbox.put(parcel, now));
                self.wait_until(stop, Outbox::has_room)
            }
            Err(reason) => {
                self.lost += samples;
                Err(Fault::new(FailureClass::Data, format!("cannot send a batch: {reason}")))
            }
        };
        self.has_failed |= put.is_err();
        put
    }

    fn finish(&mut self, ending: Ending, stop: &StopFlag) -> Result<(), Fault> {
        // The consumer still receives all batches made before a failure elsewhere in the run.
        let taken = if self.has_failed { Ok(()) } else { self.wait_until(stop, Outbox::is_empty) };
        let whole = ending == Ending::Whole && self.shared.outbox().is_empty();
        let error = taken.as_ref().err().map(|fault| fault.message.to_string());
        let closed = self.close(End { whole, error });
        taken.and(closed)
    }

    fn completed(&self) -> Option<u64> {
        Some(self.shared.outbox().acknowledged())
    }

    fn unfinished(&self) -> u64 {
        self.lost + self.shared.outbox().samples()
    }
}

/// Ends the stream if the run did not finish it.
impl Drop for StreamConsumer {
    fn drop(&mut self) {
        if let Err(fault) = self.close(End { whole: false, error: None }) {
            tracing::error!(run = %self.run, error = %fault, "cannot close a stream");
        }
    }
}

impl StreamState {
    pub(crate) fn new(ahead: usize, most_kept: KeptRegions) -> io::Result<Self> {
        Ok(Self {
            outbox: Mutex::new(Outbox::new(ahead, most_kept)),
            changed: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            clock: MonotonicClock::start(),
        })
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(crate) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        locked(&self.outbox)
    }

    /// Changes the outbox and wakes the thread that serves the socket.
    fn change(&self, change: impl FnOnce(&mut Outbox)) {
        change(&mut self.outbox());
        if let Err(error) = rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()))
        {
            tracing::warn!(%error, "cannot wake the thread of a stream; it checks for changes every second");
        }
    }

    /// Wakes the run, which may be waiting for a change made by the thread that serves the socket.
    pub(crate) fn on_change(&self) {
        self.changed.notify_all();
    }

    /// Resets the wake-up descriptor, so that it is not readable until the next change.
    pub(crate) fn clear_wake(&self) {
        let mut count = [0; 8];
        match rustix::io::read(&self.wake, &mut count) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => tracing::warn!(%error, "cannot reset the wake-up descriptor of a stream"),
        }
    }
}
