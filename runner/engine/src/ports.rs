//! Traits through which sources, ops, consumers and observers plug into the engine.
#![warn(missing_docs)]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use penstock_types::resume::{DataSet, TokenFault};
use penstock_types::run::{Disposition, FailureClass, FailureRecord, RunState, Window};
use penstock_types::stats::{BookRow, QueueSums, TaskSums, Tick};

use crate::chunk::Chunk;
use crate::item::{Item, Sample};
use crate::parts::SourceParts;

/// Makes samples. Runs in one asynchronous task of the run and never occupies a worker thread.
pub trait Source: Send {
    /// Returns the next samples or the end of an epoch; `None` at the end of the data. Samples come in chunks because a switch to
    /// the source's task for every sample would be slow; the engine requests the next chunk while it still hands out
    /// the previous one.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>>;

    /// Total number of samples of the source; `None` while the number is unknown, or if the source never ends.
    fn total(&self) -> Option<u64> {
        None
    }

    /// Sources of a mixture, which are known once the first chunk was produced.
    fn parts(&self) -> SourceParts {
        SourceParts::default()
    }

    /// The data of one pass of all ranks, as far as they are known.
    fn data(&self) -> DataSet {
        DataSet::default()
    }

    /// Bytes that the source keeps between chunks, such as listed keys. They count towards the run's memory budget.
    fn kept_bytes(&self) -> u64 {
        0
    }
}

/// Result of one call of [`Source::next`].
#[derive(Debug)]
pub enum Produced {
    /// Samples of one epoch, in order.
    Samples(Chunk),
    /// End of an epoch; another epoch follows.
    EpochEnd,
}

impl Produced {
    /// Bytes that the samples take in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Samples(chunk) => chunk.iter().map(Sample::memory_bytes).sum(),
            Self::EpochEnd => 0,
        }
    }
}

/// Reason why a source cannot continue. The run ends as failed after the samples made before are delivered.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceFault {
    /// Description of the error and of a remedy.
    pub message: String,
    /// Underlying error, if there is one.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// Set if the data are damaged, cut or missing: a source may leave them out and continue.
    pub is_damage: bool,
}

impl From<TokenFault> for SourceFault {
    fn from(fault: TokenFault) -> Self {
        Self::new(fault.to_string(), None)
    }
}

/// An op that waits rather than computes (fetch, transfer): a future, run on the I/O runtime.
pub trait TaskOp: Send + Sync {
    /// Processes one item. The future is dropped unfinished when the run stops.
    fn start(&self, item: Item) -> BoxFuture<'static, Output>;

    /// Processes one item like [`Self::start`]. An op that needs permits reports to `_slot` when it starts and stops waiting for
    /// permits.
    fn start_in(&self, item: Item, _slot: TaskSlot) -> BoxFuture<'static, Output> {
        self.start(item)
    }
}

/// Slot of a running task, as seen by the task's op. The default value reports to no watcher.
#[derive(Default)]
pub struct TaskSlot {
    watch: Option<Arc<dyn SlotWatch>>,
    stage: usize,
    slot: usize,
    waits: bool,
}

/// Measures the activity of the slots of a run.
pub trait SlotWatch: Send + Sync {
    /// Records that the task in `slot` of the stage at position `stage` starts waiting for permits (if `waits`) or stops waiting.
    fn on_permit_wait(&self, stage: usize, slot: usize, waits: bool);
}

/// An op that computes. Each worker thread builds, uses and drops a separate value.
pub trait ThreadOp {
    /// Processes one item. Must return soon after `stop` is set.
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output;

    /// Returns the samples that the op still holds at the end of an epoch. Only ops that set `Output::held` override this method.
    fn finish(&mut self, _stop: &StopFlag) -> Output {
        Output::default()
    }
}

/// Builds the op of one stage on the worker thread that will use it.
pub trait ThreadOpFactory: Send + Sync {
    /// Builds an op. Called once per worker thread, before that thread's first item of the stage.
    fn build(&self, stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault>;

    /// True if the op saves its state ([`Output::saved`]). Only the single stateful op of a graph may do so.
    fn saves(&self) -> bool {
        false
    }
}

/// Drains the sink queue: the training loop, or a substitute for it. Runs on its own thread.
pub trait Consumer: Send {
    /// Takes one item. Must return soon after `stop` is set. An error ends the run as failed.
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault>;

    /// Called as soon as an item is taken, before the threads are woken that the taking gives work; [`Self::consume`] follows. For
    /// consumers that measure time: on a busy machine, the woken threads may take this thread's core.
    fn taken(&mut self) {}

    /// Maximum number of items that the consumer takes at once, if they wait. All of them count as delivered when they are taken.
    fn takes_at_once(&self) -> usize {
        1
    }

    /// Completes the consumer's work after its last item and before the run is over, however the run ends; not called after a
    /// panic. May wait while `stop` is not set, and must return within two seconds once `stop` is set. An error fails the run.
    fn finish(&mut self, _ending: Ending, _stop: &StopFlag) -> Result<(), Fault> {
        Ok(())
    }

    /// Number of items, from the first, that the consumer has completed: a resumed run does not repeat them. `None` if an item
    /// counts as handed out as soon as the consumer takes it. Read after each call of [`Self::consume`] and [`Self::finish`].
    fn completed(&self) -> Option<u64> {
        None
    }

    /// Number of samples that the consumer took but did not complete, read after [`Self::finish`]. The ledger counts them as left
    /// instead of delivered.
    fn unfinished(&self) -> u64 {
        0
    }
}

/// Observes a run. Called from the run's threads without a lock held; a call must not take long.
pub trait Observer: Send + Sync {
    /// Receives one failed sample.
    fn on_failure(&self, _failure: &SampleFailure) {}

    /// Receives the figures of a completed window; the last window of a run may be shorter than the others.
    fn on_window(&self, _window: &Window) {}

    /// Receives the sums of one interval, which lies between two readings of the run's sums and is at most 250 ms long. Unlike
    /// the figures of windows, sums can be added. These intervals are contiguous, and one of them ends at the end of every window
    /// and of the run.
    fn on_sums(&self, _sums: &Sums) {}
}

/// One failed sample, as reported to observers.
#[derive(Debug)]
pub struct SampleFailure {
    /// Entry of the failure log.
    pub record: FailureRecord,
    /// The sample as it entered the stage.
    pub sample: Sample,
}

/// Sums of a run over an interval of at most 250 ms (see [`Observer::on_sums`]), and the run's state at the end of the interval.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Start of the interval that the sums cover.
    pub t0: Tick,
    /// End of the interval that the sums cover.
    pub t1: Tick,
    /// Sums of the stages, first to last.
    pub stages: Vec<TaskSums>,
    /// Sums of the queues, first to last.
    pub queues: Vec<QueueSums>,
    /// State of the run at `t1`.
    pub state: RunState,
    /// Total number of samples of the source, if known at `t1`.
    pub expected: Option<u64>,
    /// Samples taken by the consumer, from the run's start to `t1`.
    pub delivered: u64,
    /// Samples that failed, from the run's start to `t1`.
    pub failed_samples: u64,
    /// Items in each queue at `t1`.
    pub occupancy: Vec<usize>,
    /// Numbers of samples that passed source, stages, sink and consumer during the interval.
    pub books: Vec<BookRow>,
}

/// Completeness of the items that the consumer received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The consumer received every item, and no failure ended the run.
    Whole,
    /// The run was stopped, its time was up, or it failed.
    Early,
}

/// Result of one call of an op. The engine checks that no sample was lost: samples in + held before + made by fan-out = samples
/// out + dropped + failed + held after. The number made by fan-out is derived from this equation.
#[derive(Debug, Default)]
pub struct Output {
    /// Items to pass on, in order.
    pub items: Items,
    /// Number of samples dropped on purpose.
    pub dropped: u64,
    /// Samples that failed, each with its input.
    pub failed: Vec<Failed>,
    /// Reason for ending the run as failed, regardless of `on_error`. A resumed run takes the failed samples again.
    pub fatal: Option<String>,
    /// Samples that the op holds after the call (stateful modules); 0 for every other op.
    pub held: u64,
    /// Memory of the held samples outside of a WebAssembly guest, in bytes.
    pub held_bytes: u64,
    /// State of the op behind this call, if the op saves it: after each call that returned items, and after `finish`.
    pub saved: Option<Arc<[u8]>>,
    /// Number of instances created during the call: 1 if a new instance had to replace a broken one.
    pub instances: u64,
    /// Number of created instances that replaced a broken one; set by the engine.
    pub replaced: u64,
    /// Time spent in the op itself, for calls that also wait (an async op that waits for a permit). With `None`, the engine's
    /// measurement of the call is used.
    pub op_time: Option<Duration>,
}

/// Items from one call.
#[derive(Debug, Default)]
pub enum Items {
    /// No item at all.
    #[default]
    None,
    /// One item, which needs no allocation.
    One(Item),
    /// Several items, in order.
    Many(Vec<Item>),
}

/// One sample that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The sample as it entered the stage.
    pub sample: Sample,
    /// Reason of the failure.
    pub fault: Fault,
}

/// Reason why an op failed on a sample.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Class of the failure.
    pub class: FailureClass,
    /// Description of the failure and of a remedy.
    pub message: Arc<str>,
}

/// Flag that requests every thread and task of a run to end. Cheap to check.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// True if the run is stopping.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Requests all threads and tasks that check this flag to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The underlying atomic, for code that can only observe an atomic (Wasmtime's epoch callback).
    pub fn shared(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl TaskSlot {
    /// Creates a slot that is not waiting and reports its waits for permits to `watch`.
    pub fn new(watch: Arc<dyn SlotWatch>, stage: usize, slot: usize) -> Self {
        Self { watch: Some(watch), stage, slot, waits: false }
    }

    /// Sets whether the task waits for permits and holds none. Only a change is reported to the watcher.
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
    /// The sample, if the stage's policy is to keep it as a dead letter.
    pub fn dead_letter(&self) -> Option<&Sample> {
        (self.record.disposition == Disposition::DeadLettered).then_some(&self.sample)
    }
}

impl Items {
    /// Number of samples in the items.
    pub fn samples(&self) -> u64 {
        self.as_slice().iter().map(Item::samples).sum()
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Item] {
        match self {
            Self::None => &mut [],
            Self::One(item) => std::slice::from_mut(item),
            Self::Many(items) => items,
        }
    }

    /// The items, in order.
    pub(crate) fn as_slice(&self) -> &[Item] {
        match self {
            Self::None => &[],
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }

    /// Bytes that the items take in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.as_slice().iter().map(Item::memory_bytes).sum()
    }
}

impl Fault {
    /// Creates a fault of the given class.
    pub fn new(class: FailureClass, message: impl Into<Arc<str>>) -> Self {
        Self { class, message: message.into() }
    }

    /// Creates the fault of an op, source or consumer that panicked.
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
    /// Creates a fault with an optional cause.
    pub fn new(message: impl Into<String>, source: Option<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { message: message.into(), source, is_damage: false }
    }

    /// Creates a fault of damaged data.
    pub fn damage(message: impl Into<String>) -> Self {
        Self { is_damage: true, ..Self::new(message, None) }
    }
}

impl Output {
    /// Output with one item and no failures.
    pub fn one(item: Item) -> Self {
        Self { items: Items::One(item), ..Self::default() }
    }

    /// Output in which all input samples failed for the same reason.
    pub fn all_failed(samples: impl IntoIterator<Item = Sample>, fault: &Fault) -> Self {
        let failed = samples.into_iter().map(|sample| Failed { sample, fault: fault.clone() });
        Self { failed: failed.collect(), ..Self::default() }
    }
}
