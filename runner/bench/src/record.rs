//! What a load leaves behind: when everything began and ended. Figures and books are made of this and nothing else.

use std::sync::Arc;

use penstock_storage::ReadParts;
use penstock_types::stats::Tick;

use crate::gauge::Gauged;
use crate::report::label;
use crate::spec::{Assignment, Mode, WarmUp};

/// One load as it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// How workers read.
    pub mode: Mode,
    /// How many workers.
    pub workers: u32,
    /// Reads that an `async` worker has in flight at most.
    pub in_flight: u32,
    /// Items of a batch.
    pub batch_size: u32,
    /// Batches that each worker may have begun and not delivered.
    pub prefetch: u32,
    /// Which worker takes which batch.
    pub assignment: Assignment,
    /// Whether workers live for all passes.
    pub persistent: bool,
}

/// Everything that happened in one load.
#[derive(Clone, Debug)]
pub struct LoadRecord {
    /// What was run.
    pub load: Load,
    /// Bytes of each object; `None` where nobody has asked.
    pub sizes: Arc<[Option<u64>]>,
    /// The whole of it: set-up, warm-up, all passes and what they leave.
    pub span: Span,
    /// The rounds that were not to be measured, in workers of their own.
    pub warm_up: Vec<Pass>,
    /// The measured passes.
    pub passes: Vec<Pass>,
    /// Workers that lived for all passes; those of one pass are its own.
    pub lasting: Vec<WorkerLoop>,
    /// Batches at the head of the first pass that are not to be measured.
    pub inline: u32,
    /// What it was to do.
    pub asked: Asked,
}

/// What a load was to do, as its document has it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Items of a pass.
    pub items: u64,
    /// Measured passes.
    pub passes: u32,
    /// What runs first.
    pub warm_up: WarmUp,
}

/// One pass over an order of objects.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The objects in the order in which they were asked for.
    pub order: Arc<[u32]>,
    /// From the moment the workers were let go to the last delivery.
    pub span: Span,
    /// The batches, as their workers ended them.
    pub fetches: Vec<Fetch>,
    /// The workers that lived for this pass.
    pub loops: Vec<WorkerLoop>,
    /// What the consumer was given, in that order.
    pub deliveries: Vec<Delivery>,
    /// Reads in flight, counted where they begin and end.
    pub gauged: Gauged,
    /// Share of the objects' bytes that the page cache held before; `None` where that cannot be told.
    pub cached: Option<f64>,
}

/// From when to when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The beginning.
    pub start: Tick,
    /// The end.
    pub end: Tick,
}

/// One worker's life.
#[derive(Clone, Debug)]
pub struct WorkerLoop {
    /// Which worker.
    pub worker: u32,
    /// From its first instruction to its last.
    pub span: Span,
    /// Of that: making its instances of modules.
    pub set_up_ns: u64,
    /// Of that: waiting until it might begin a batch.
    pub waited_ns: u64,
    /// Of that: reading batches.
    pub fetched_ns: u64,
    /// Of that: stages.
    pub worked_ns: u64,
}

/// One batch, read by one worker.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Which batch of its pass.
    pub batch: u32,
    /// Who read it.
    pub worker: u32,
    /// From the first wish to read to the last item in memory.
    pub span: Span,
    /// Of that: no read of it was in flight, as its worker counted them.
    pub between_ns: u64,
    /// Its items, in the order of the batch.
    pub items: Vec<ItemRead>,
    /// How long each call of each stage took, in nanoseconds, by the stage's place.
    pub stages: Vec<(u16, u64)>,
    /// Samples that a stage refused, or that failed in it.
    pub lost_in_stages: u32,
}

/// One object, read once.
#[derive(Clone, Debug)]
pub struct ItemRead {
    /// Which object.
    pub object: u32,
    /// How long it waited until it might begin, in nanoseconds.
    pub permit_ns: u64,
    /// The read, with looking at what came.
    pub span: Span,
    /// How many bytes came; `None` when it failed.
    pub bytes: Option<u64>,
    /// Whether they were those that came before; true when there was nothing to hold them against.
    pub is_same: bool,
    /// What it consisted of. `verify` holds this benchmark's own checksum too.
    pub parts: ReadParts,
}

/// A batch in the consumer's hands.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Which batch.
    pub batch: u32,
    /// When.
    pub at: Tick,
    /// The objects in it, in order.
    pub objects: Vec<u32>,
}

impl Load {
    /// What it is called: `async 4x8`.
    pub fn label(&self) -> String {
        label(self.mode, self.workers, self.permits_of_worker())
    }

    /// Reads that one worker has in flight at most.
    pub fn permits_of_worker(&self) -> u32 {
        match self.mode {
            Mode::Sync => 1,
            Mode::Async => self.in_flight.min(self.batch_size),
        }
    }

    /// Reads that all of them have in flight at most.
    pub fn permits(&self) -> u32 {
        self.permits_of_worker().saturating_mul(self.workers)
    }
}

impl Span {
    /// Its length in nanoseconds; 0 when it ends before it begins.
    pub fn nanos(&self) -> u64 {
        self.end - self.start
    }

    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.nanos() as f64 * 1e-9
    }

    /// Whether `other` lies in it.
    pub fn holds(&self, other: &Self) -> bool {
        self.start <= other.start && other.start <= other.end && other.end <= self.end
    }
}

impl LoadRecord {
    /// The fetches that are measured, by pass.
    pub fn measured(&self) -> impl Iterator<Item = &Fetch> {
        self.passes.iter().enumerate().flat_map(move |(number, pass)| {
            pass.fetches.iter().filter(move |fetch| number > 0 || fetch.batch >= self.inline)
        })
    }

    /// The reads that are measured.
    pub fn reads(&self) -> impl Iterator<Item = &ItemRead> {
        self.measured().flat_map(|fetch| &fetch.items)
    }

    /// The measured span of each pass: of the first one, what comes behind an inline warm-up.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.passes.iter().enumerate().map(|(number, pass)| match number {
            0 if self.inline > 0 => {
                // From the first batch that counts: others may still be under way, which makes it no faster.
                let counts = pass.fetches.iter().filter(|fetch| fetch.batch >= self.inline);
                let start = counts.map(|fetch| fetch.span.start).min().unwrap_or(pass.span.end);
                Span { start, end: pass.span.end }
            }
            _ => pass.span,
        })
    }
}
