use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::Item;
use penstock_engine::memory::{BatchMemory, Pool};
use penstock_engine::ports::{Consumer, Ending, Fault, StopFlag};
use penstock_types::run::FailureClass;
use penstock_types::stats::Tick;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::OpenStreamError;
use crate::door::Door;
use crate::outbox::{Kept, Outbox};
use crate::parcel::Parcel;
use crate::protocol::End;
use crate::region::{SharedMemory, WhileItGoesOn};

/// Puts batches where the door finds them, and waits with those who take them. See [`crate`].
#[derive(Debug)]
pub struct StreamConsumer {
    run: String,
    memory: Pool<SharedMemory>,
    /// The same, for the stages.
    lent: Arc<WhileItGoesOn>,
    shared: Arc<Shared>,
    /// Longest time that a batch waits while nobody is there.
    wait: Duration,
    /// Gone when it was joined.
    door: Option<JoinHandle<()>>,
    /// Samples of batches that could not be put.
    lost: u64,
    has_failed: bool,
}

/// What the run and its door share.
#[derive(Debug)]
pub(crate) struct Shared {
    outbox: Mutex<Outbox>,
    /// Told when a batch is acknowledged, and when a consumer comes or goes.
    changed: Condvar,
    /// Wakes the door.
    bell: OwnedFd,
    clock: MonotonicClock,
}

/// How often a wait looks whether the run is stopping.
const LOOK: Duration = Duration::from_millis(20);

impl StreamConsumer {
    /// Starts the thread that keeps the door.
    pub(crate) fn new(
        door: Door,
        run: &str,
        memory: Pool<SharedMemory>,
        wait: Duration,
    ) -> Result<Self, OpenStreamError> {
        let shared = door.shared();
        let door = Builder::new().name("stream".to_owned()).spawn(|| door.keep());
        let door = Some(door.map_err(OpenStreamError::Door)?);
        let lent = Arc::new(WhileItGoesOn::new(memory.clone()));
        Ok(Self { run: run.to_owned(), memory, lent, shared, wait, door, lost: 0, has_failed: false })
    }

    /// What arrays that are to be handed out as they are lie in.
    pub(crate) fn memory(&self) -> Arc<dyn BatchMemory> {
        self.lent.clone()
    }

    /// Waits until the outbox is as wanted, or the run stops.
    fn wait_until(&self, stop: &StopFlag, is_so: impl Fn(&Outbox) -> bool) -> Result<(), Fault> {
        let mut outbox = self.shared.outbox();
        while !is_so(&outbox) && !stop.is_set() {
            if outbox.alone_for(self.shared.now()) >= self.wait {
                return Err(self.nobody_came(outbox.len()));
            }
            if self.door.as_ref().is_none_or(JoinHandle::is_finished) {
                let told = "the thread that hands out batches has ended; this is a defect of Penstock";
                return Err(Fault::new(FailureClass::Bug, told));
            }
            let waited = self.shared.changed.wait_timeout(outbox, LOOK);
            outbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn nobody_came(&self, waiting: usize) -> Fault {
        let batches =
            if waiting == 1 { "1 batch waits".to_owned() } else { format!("{waiting} batches wait") };
        let message = format!(
            "nobody connected to take batches for {} s, and {batches}: take them with `penstock.connect(url).stream(\"{}\")` in \
             Python, or set `wait_s` of the consumer `stream` to a longer time",
            self.wait.as_secs_f64(),
            self.run
        );
        Fault::new(FailureClass::Data, message)
    }

    /// Has the door tell the consumer how it ended, and joins it. Takes about a second at most.
    fn close(&mut self, end: End) -> Result<(), Fault> {
        let Some(door) = self.door.take() else { return Ok(()) };
        self.lent.end();
        self.shared.change(|outbox| outbox.close(end));
        door.join().map_err(|_| {
            let told = "the thread that hands out batches panicked; this is a defect of Penstock";
            Fault::new(FailureClass::Bug, told)
        })
    }
}

impl Consumer for StreamConsumer {
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault> {
        let samples = item.samples();
        let parcel = match item {
            Item::Collated(batch) => Parcel::of(batch, &self.memory),
            Item::Sample(_) | Item::Batch(_) => Err("it is not collated; add a `collate`".to_owned()),
        };
        let put = match parcel {
            Ok(parcel) => {
                let now = self.shared.now();
                self.shared.change(|outbox| outbox.put(parcel, now));
                self.wait_until(stop, Outbox::has_room)
            }
            Err(reason) => {
                self.lost += samples;
                Err(Fault::new(FailureClass::Data, format!("a batch cannot be handed out: {reason}")))
            }
        };
        self.has_failed |= put.is_err();
        put
    }

    fn finish(&mut self, ending: Ending, stop: &StopFlag) -> Result<(), Fault> {
        // What was made before the run failed for another reason is still taken.
        let taken = if self.has_failed { Ok(()) } else { self.wait_until(stop, Outbox::is_empty) };
        let whole = ending == Ending::Whole && self.shared.outbox().is_empty();
        let error = taken.as_ref().err().map(|fault| fault.message.to_string());
        let closed = self.close(End { whole, error });
        taken.and(closed)
    }

    fn unfinished(&self) -> u64 {
        self.lost + self.shared.outbox().samples()
    }
}

/// A run that did not come to its end has no more batches either.
impl Drop for StreamConsumer {
    fn drop(&mut self) {
        if let Err(fault) = self.close(End { whole: false, error: None }) {
            tracing::error!(run = self.run, error = %fault, "a stream did not end well");
        }
    }
}

impl Shared {
    pub(crate) fn new(ahead: usize, most_kept: Kept) -> io::Result<Self> {
        Ok(Self {
            outbox: Mutex::new(Outbox::new(ahead, most_kept)),
            changed: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            clock: MonotonicClock::start(),
        })
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// The batches, for a moment.
    pub(crate) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run changes something that the door has to know.
    fn change(&self, change: impl FnOnce(&mut Outbox)) {
        change(&mut self.outbox());
        // Full or interrupted, it has been rung: a bell of this kind is full after 2^64 times only.
        if let Err(error) = rustix::io::retry_on_intr(|| rustix::io::write(&self.bell, &1_u64.to_ne_bytes()))
        {
            tracing::warn!(%error, "the door of a stream cannot be woken; it looks by itself every second");
        }
    }

    /// The door has changed something that the run may wait for.
    pub(crate) fn on_change(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// The door is awake.
    pub(crate) fn hear(&self) {
        let mut count = [0; 8];
        match rustix::io::read(&self.bell, &mut count) {
            // Nobody has rung.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => tracing::warn!(%error, "the bell of a stream cannot be read"),
        }
    }
}
