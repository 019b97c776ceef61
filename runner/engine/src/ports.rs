//! Traits through which sources, ops, consumers and observers plug into the engine.
#![warn(missing_docs)]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use penstock_types::run::{Disposition, FailureClass, FailureRecord, RunState, Window};
use penstock_types::stats::{QueueSums, TaskSums, Tick};

use crate::item::{Item, Sample};

/// Makes samples. Lives in one task of the run; never takes a worker.
pub trait Source: Send {
    /// The next few samples, or an epoch's end, or `None` at the end of the data. Chunks keep the cost of crossing
    /// to the source's task off the single sample; the engine asks for the next chunk while it hands out the last.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>>;

    /// How many samples it makes in all; `None` as long as it does not know, or when there is no end.
    fn total(&self) -> Option<u64> {
        None
    }

    /// Bytes that it keeps from chunk to chunk: the keys it found, say. They count against the run's memory budget.
    fn kept_bytes(&self) -> u64 {
        0
    }
}

/// What a source gives at a time.
#[derive(Debug)]
pub enum Produced {
    /// Samples of one epoch, in order.
    Samples(Vec<Sample>),
    /// No more samples of this epoch; another one follows.
    EpochEnd,
}

impl Produced {
    /// Bytes that its samples take in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Samples(samples) => samples.iter().map(Sample::memory_bytes).sum(),
            Self::EpochEnd => 0,
        }
    }
}

/// Why a source cannot go on. Ends the run as failed; what it made before is still delivered.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceFault {
    /// What was found and what would do.
    pub message: String,
    /// What caused it.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// An op that waits rather than computes (fetch, transfer): a future, run on the I/O runtime.
pub trait TaskOp: Send + Sync {
    /// Works on one item. Dropped unfinished when the run stops.
    fn start(&self, item: Item) -> BoxFuture<'static, Output>;

    /// The same in a slot of a stage, which an op that takes permits tells when it waits for them.
    fn start_in(&self, item: Item, _slot: TaskSlot) -> BoxFuture<'static, Output> {
        self.start(item)
    }
}

/// The slot of a task that runs, as its op sees it. The default is watched by nothing.
#[derive(Default)]
pub struct TaskSlot {
    watch: Option<Arc<dyn SlotWatch>>,
    stage: usize,
    slot: usize,
    waits: bool,
}

/// Measures what the slots of a run do.
pub trait SlotWatch: Send + Sync {
    /// The task in `slot` of the stage at position `stage` waits for permits from now on, or no longer.
    fn on_permit_wait(&self, stage: usize, slot: usize, waits: bool);
}

/// An op that computes: one value per worker thread, built there, used there, dropped there.
pub trait ThreadOp {
    /// Works on one item. Must return soon after `stop` is set.
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output;

    /// Gives what is held back at the end of an epoch. Only ops that answered `held` have anything to say.
    fn finish(&mut self, _stop: &StopFlag) -> Output {
        Output::default()
    }
}

/// Builds the op of one stage on the worker thread that will use it.
pub trait ThreadOpFactory: Send + Sync {
    /// A fresh op. Called once per worker thread, when that thread first meets the stage.
    fn build(&self, stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault>;
}

/// What drains the sink queue: the training loop, or what stands in for it. Runs on a thread of its own.
pub trait Consumer: Send {
    /// Takes one item. Must return soon after `stop` is set. An error ends the run as failed.
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault>;

    /// Ends what it has begun, after its last item and before the run is over, whichever way it ends; not called after a
    /// panic. May wait as long as `stop` is not set, and must return within two seconds once it is. An error fails the run.
    fn finish(&mut self, _ending: Ending, _stop: &StopFlag) -> Result<(), Fault> {
        Ok(())
    }

    /// Samples that it took and that came to nothing. Asked after [`Self::finish`]: the books count them as left, not as
    /// delivered.
    fn unfinished(&self) -> u64 {
        0
    }
}

/// Watches a run. Called from the run's threads without a lock; a call must not take long.
pub trait Observer: Send + Sync {
    /// Receives one failed sample.
    fn on_failure(&self, _failure: &SampleFailure) {}

    /// Receives the figures of a measuring interval that is over; the last one may be shorter.
    fn on_window(&self, _window: &Window) {}

    /// Receives the sums of a pulse of at most 250 ms: sums can be merged, figures cannot. Pulses follow each other without a
    /// gap and end at the end of every window and of the run.
    fn on_sums(&self, _sums: &Sums) {}
}

/// One failed sample, as observers see it.
#[derive(Debug)]
pub struct SampleFailure {
    /// The entry of the failure log.
    pub record: FailureRecord,
    /// The sample as it came into the stage.
    pub sample: Sample,
}

/// Sums that a run added up during one pulse, and its state at the end of the pulse.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Begin of the pulse.
    pub t0: Tick,
    /// End of the pulse.
    pub t1: Tick,
    /// Sums of the stages, first to last.
    pub stages: Vec<TaskSums>,
    /// Sums of the queues, first to last.
    pub queues: Vec<QueueSums>,
    /// State at `t1`.
    pub state: RunState,
    /// Samples that the source makes in all, if known at `t1`.
    pub expected: Option<u64>,
    /// Samples taken by the consumer, from the run's start to `t1`.
    pub delivered: u64,
    /// Samples that failed, from the run's start to `t1`.
    pub failed_samples: u64,
    /// Items in each queue at `t1`.
    pub occupancy: Vec<usize>,
}

/// How the items of a run came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The consumer got all there will ever be, and nothing has failed the run.
    Whole,
    /// The run was stopped, its time was up, or it failed.
    Early,
}

/// What one call of an op gave. The engine derives `made` and checks that nothing was lost:
/// samples in + held before = samples out + dropped + failed + held after, less what was made by fan-out.
#[derive(Debug, Default)]
pub struct Output {
    /// Items to pass on, in order.
    pub items: Items,
    /// Samples left out on purpose.
    pub dropped: u64,
    /// Samples that failed, each with its input.
    pub failed: Vec<Failed>,
    /// Reason for ending the run as failed, whatever `on_error` says.
    pub fatal: Option<String>,
    /// Samples inside the op after the call (stateful modules); 0 for every other op.
    pub held: u64,
    /// Bytes that these take in memory outside of a guest.
    pub held_bytes: u64,
    /// Instances made during the call: 1 when a fresh one had to replace a broken one.
    pub instances: u64,
    /// Those of them that replaced a broken one; the engine sets it.
    pub replaced: u64,
    /// Time of the op alone, measured by the op when it does more than the op (an async op that waits for a permit);
    /// `None` leaves the measuring to the engine.
    pub op_time: Option<Duration>,
}

/// The items one call gave; most give one, so that costs no allocation.
#[derive(Debug, Default)]
pub enum Items {
    /// Nothing.
    #[default]
    None,
    /// One item.
    One(Item),
    /// Several, in order.
    Many(Vec<Item>),
}

/// One sample that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The sample as it came in.
    pub sample: Sample,
    /// Why.
    pub fault: Fault,
}

/// Why an op failed on a sample.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Whose fault it is.
    pub class: FailureClass,
    /// What was found and what would do.
    pub message: Arc<str>,
}

/// Says to everything that runs for a run that it should end. Cheap to ask.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether the run is stopping.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks everything that watches this flag to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for what can only watch an atomic (an epoch callback).
    pub fn shared(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl TaskSlot {
    /// A slot that tells `watch` of its waits, and works now.
    pub fn new(watch: Arc<dyn SlotWatch>, stage: usize, slot: usize) -> Self {
        Self { watch: Some(watch), stage, slot, waits: false }
    }

    /// Says whether the task waits for permits, none of which it has, instead of working. Costs nothing while that stays.
    pub fn set_permit_wait(&mut self, waits: bool) {
        if self.waits != waits {
            self.waits = waits;
            if let Some(watch) = &self.watch {
                watch.on_permit_wait(self.stage, self.slot, waits);
            }
        }
    }
}

impl SampleFailure {
    /// The sample, if the stage's policy is to keep it.
    pub fn dead_letter(&self) -> Option<&Sample> {
        (self.record.disposition == Disposition::DeadLettered).then_some(&self.sample)
    }
}

impl Items {
    /// How many samples they hold.
    pub fn samples(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::One(item) => item.samples(),
            Self::Many(items) => items.iter().map(Item::samples).sum(),
        }
    }

    /// Bytes that they take in memory.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::One(item) => item.memory_bytes(),
            Self::Many(items) => items.iter().map(Item::memory_bytes).sum(),
        }
    }
}

impl Fault {
    /// A fault of the given class.
    pub fn new(class: FailureClass, message: impl Into<Arc<str>>) -> Self {
        Self { class, message: message.into() }
    }

    /// The fault of an op, source or consumer that panicked.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self::new(FailureClass::Bug, format!("panicked: {message}"))
    }
}

impl SourceFault {
    /// A fault with its cause.
    pub fn new(message: impl Into<String>, source: Option<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { message: message.into(), source }
    }
}

impl Output {
    /// One item, nothing failed.
    pub fn one(item: Item) -> Self {
        Self { items: Items::One(item), ..Self::default() }
    }

    /// All samples that came in failed, for the same reason.
    pub fn all_failed(samples: impl IntoIterator<Item = Sample>, fault: &Fault) -> Self {
        let failed = samples.into_iter().map(|sample| Failed { sample, fault: fault.clone() });
        Self { failed: failed.collect(), ..Self::default() }
    }
}
