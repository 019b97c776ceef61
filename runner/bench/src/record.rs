//! Record of a load: start and end times of everything. The figures and the ledger are computed from the record alone.

use std::sync::Arc;

use penstock_storage::ReadParts;
use penstock_types::stats::Tick;

use crate::gauge::Gauged;
use crate::report::label;
use crate::spec::{Assignment, LoadMode, WarmUp};

#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub mode: LoadMode,
    pub workers: u32,
    /// Maximum number of reads that an `async` worker has in flight.
    pub in_flight: u32,
    pub batch_size: u32,
    /// Maximum number of batches per worker that are begun but not delivered.
    pub prefetch: u32,
    pub assignment: Assignment,
    pub persistent: bool,
    /// Maximum number of neighbouring items that a read may take; 1 if each item is read separately.
    pub joined: u32,
}

#[derive(Clone, Debug)]
pub struct LoadRecord {
    pub load: Load,
    /// Size of each object, in bytes; `None` if unknown.
    pub sizes: Arc<[Option<u64>]>,
    /// Time from set-up through warm-up and all passes until the last thread was joined.
    pub span: Span,
    /// Warm-up rounds, each of which has its own workers.
    pub warm_up: Vec<LoadPass>,
    pub passes: Vec<LoadPass>,
    /// Workers that lived for all passes; the workers of a single pass are in `LoadPass::loops`.
    pub lasting: Vec<WorkerLoop>,
    /// Number of batches at the start of the first pass that are a warm-up and are not measured.
    pub inline: u32,
    /// Number of items in a pass.
    pub items: u64,
    pub times: LoadTimes,
}

/// Times that a load reads its items, as the document specifies them.
#[derive(Clone, Debug)]
pub struct LoadTimes {
    pub warm_up: WarmUp,
    pub passes: u32,
}

#[derive(Clone, Debug)]
pub struct LoadPass {
    pub order: Arc<[u32]>,
    /// Time from the release of the workers to the last delivery.
    pub span: Span,
    /// Batches in the order in which workers finished them.
    pub fetches: Vec<Fetch>,
    pub loops: Vec<WorkerLoop>,
    /// Batches handed to the consumer, in order.
    pub deliveries: Vec<BatchDelivery>,
    pub gauged: Gauged,
    /// Share of the objects' bytes in the page cache before the pass; `None` if unknown.
    pub cached: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: Tick,
    pub end: Tick,
}

/// Lifetime of one worker; the times add up to `span`.
#[derive(Clone, Debug)]
pub struct WorkerLoop {
    pub worker: u32,
    pub span: Span,
    /// Time to create the instances of modules.
    pub set_up_ns: u64,
    /// Time spent waiting for permission to begin a batch.
    pub waited_ns: u64,
    /// Time spent reading batches.
    pub fetched_ns: u64,
    /// Time spent in stages.
    pub worked_ns: u64,
}

/// One batch, read by one worker.
#[derive(Clone, Debug)]
pub struct Fetch {
    pub batch: u32,
    pub worker: u32,
    /// Time from the first request for a permit to the last item in memory.
    pub span: Span,
    /// Time within `span` without a read in flight, in nanoseconds, as the worker counted it.
    pub between_ns: u64,
    pub items: Vec<ItemRead>,
    /// Position of the stage and duration in nanoseconds, for each call of a stage.
    pub stages: Vec<(u16, u64)>,
    /// Number of samples that a stage dropped or failed on.
    pub lost_in_stages: u32,
}

/// One read of one object or sample. Samples that one read took have the same times.
#[derive(Clone, Debug)]
pub struct ItemRead {
    /// Number of the object or sample.
    pub object: u32,
    /// Wait for a permit, in nanoseconds.
    pub permit_ns: u64,
    /// Time of the read, including the check of its bytes.
    pub span: Span,
    /// Number of bytes received; `None` if the read failed.
    pub bytes: Option<u64>,
    /// True if the bytes are the same as in the first read of the object; true for the first read.
    pub is_same: bool,
    /// Times of the parts of the read; `verify` includes the checksum that the benchmark computes. The requests of a read of several
    /// samples are counted for the first one.
    pub parts: ReadParts,
}

#[derive(Clone, Debug)]
pub struct BatchDelivery {
    pub batch: u32,
    pub at: Tick,
    pub objects: Vec<u32>,
}

impl Load {
    pub fn label(&self) -> String {
        label(self.mode, self.workers, self.permits_of_worker())
    }

    fn reads_of_batch(&self) -> u32 {
        self.batch_size.div_ceil(self.joined)
    }

    /// Maximum number of items that one read takes. The reads of a batch take equal numbers, as far as possible.
    pub fn items_of_read(&self) -> u32 {
        self.batch_size.div_ceil(self.reads_of_batch())
    }

    /// Maximum number of reads in flight of one worker.
    pub fn permits_of_worker(&self) -> u32 {
        match self.mode {
            LoadMode::Sync => 1,
            LoadMode::Async => self.in_flight.min(self.reads_of_batch()),
        }
    }

    pub fn permits(&self) -> u32 {
        self.permits_of_worker().saturating_mul(self.workers)
    }

    /// Maximum number of items in flight of all workers together.
    pub fn items_in_flight(&self) -> u32 {
        self.permits().saturating_mul(self.items_of_read())
    }
}

impl Span {
    /// Duration in nanoseconds; 0 if the span ends before it begins.
    pub fn nanos(&self) -> u64 {
        self.end - self.start
    }

    pub fn seconds(&self) -> f64 {
        self.nanos() as f64 * 1e-9
    }

    pub fn holds(&self, other: &Self) -> bool {
        self.start <= other.start && other.start <= other.end && other.end <= self.end
    }
}

impl LoadRecord {
    pub fn measured(&self) -> impl Iterator<Item = &Fetch> {
        self.passes.iter().enumerate().flat_map(|(number, pass)| self.measured_of(number, pass))
    }

    /// Measured batches of the pass with this number, from 0.
    pub fn measured_of<'a>(&'a self, number: usize, pass: &'a LoadPass) -> impl Iterator<Item = &'a Fetch> {
        pass.fetches.iter().filter(move |fetch| number > 0 || fetch.batch >= self.inline)
    }

    pub fn reads(&self) -> impl Iterator<Item = &ItemRead> {
        self.measured().flat_map(|fetch| &fetch.items)
    }

    /// Measured span of each pass. In the first pass, the span starts after an inline warm-up.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.passes.iter().enumerate().map(|(number, pass)| match number {
            0 if self.inline > 0 => {
                // The span starts with the first measured batch, although batches of the warm-up may still be in progress: these
                // batches do not make the measured ones faster.
                let counts = pass.fetches.iter().filter(|fetch| fetch.batch >= self.inline);
                let start = counts.map(|fetch| fetch.span.start).min().unwrap_or(pass.span.end);
                Span { start, end: pass.span.end }
            }
            _ => pass.span,
        })
    }
}
