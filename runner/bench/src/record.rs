//! What a load leaves behind: when everything began and ended. Figures and books are made of this and nothing else.

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
    /// Reads that an `async` worker has in flight at most.
    pub in_flight: u32,
    pub batch_size: u32,
    /// Batches that each worker may have begun and not delivered.
    pub prefetch: u32,
    pub assignment: Assignment,
    pub persistent: bool,
}

#[derive(Clone, Debug)]
pub struct LoadRecord {
    pub load: Load,
    /// Bytes of each object; `None` where unknown.
    pub sizes: Arc<[Option<u64>]>,
    /// Set-up, warm-up and all passes, to the last thread joined.
    pub span: Span,
    /// Warm-up rounds with workers of their own.
    pub warm_up: Vec<LoadPass>,
    pub passes: Vec<LoadPass>,
    /// Workers that lived for all passes; those of one pass are in its `loops`.
    pub lasting: Vec<WorkerLoop>,
    /// Batches at the head of the first pass that are not measured.
    pub inline: u32,
    pub asked: AskedLoad,
}

/// The load that the document asks for.
#[derive(Clone, Debug)]
pub struct AskedLoad {
    /// Items of a pass.
    pub items: u64,
    pub passes: u32,
    pub warm_up: WarmUp,
}

#[derive(Clone, Debug)]
pub struct LoadPass {
    pub order: Arc<[u32]>,
    /// From the release of the workers to the last delivery.
    pub span: Span,
    /// The batches in the order in which workers finished them.
    pub fetches: Vec<Fetch>,
    pub loops: Vec<WorkerLoop>,
    /// The batches given to the consumer, in order.
    pub deliveries: Vec<BatchDelivery>,
    pub gauged: Gauged,
    /// Share of the objects' bytes in the page cache before the pass; `None` where it is unknown.
    pub cached: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: Tick,
    pub end: Tick,
}

/// The life of one worker; the times add up to `span`.
#[derive(Clone, Debug)]
pub struct WorkerLoop {
    pub worker: u32,
    pub span: Span,
    /// Creating its instances of modules.
    pub set_up_ns: u64,
    /// Waiting until it might begin a batch.
    pub waited_ns: u64,
    /// Reading batches.
    pub fetched_ns: u64,
    /// Running stages.
    pub worked_ns: u64,
}

/// One batch, read by one worker.
#[derive(Clone, Debug)]
pub struct Fetch {
    pub batch: u32,
    pub worker: u32,
    /// From the first request for a permit to the last item in memory.
    pub span: Span,
    /// Time within `span` without a read in flight, as its worker counted it.
    pub between_ns: u64,
    pub items: Vec<ItemRead>,
    /// How long each call of each stage took, in nanoseconds, by the stage's place.
    pub stages: Vec<(u16, u64)>,
    /// Samples that a stage dropped or failed on.
    pub lost_in_stages: u32,
}

/// One read of one object.
#[derive(Clone, Debug)]
pub struct ItemRead {
    pub object: u32,
    /// Wait for a permit, in nanoseconds.
    pub permit_ns: u64,
    /// The read, including the check of its bytes.
    pub span: Span,
    /// Bytes received; `None` when the read failed.
    pub bytes: Option<u64>,
    /// True if the bytes equal those of the object's first read, or this is it.
    pub is_same: bool,
    /// `verify` includes this benchmark's own checksum.
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

    /// Most reads in flight of one worker.
    pub fn permits_of_worker(&self) -> u32 {
        match self.mode {
            LoadMode::Sync => 1,
            LoadMode::Async => self.in_flight.min(self.batch_size),
        }
    }

    pub fn permits(&self) -> u32 {
        self.permits_of_worker().saturating_mul(self.workers)
    }
}

impl Span {
    /// 0 when it ends before it begins.
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

    /// The measured batches of the pass of this number, from 0.
    pub fn measured_of<'a>(&'a self, number: usize, pass: &'a LoadPass) -> impl Iterator<Item = &'a Fetch> {
        pass.fetches.iter().filter(move |fetch| number > 0 || fetch.batch >= self.inline)
    }

    pub fn reads(&self) -> impl Iterator<Item = &ItemRead> {
        self.measured().flat_map(|fetch| &fetch.items)
    }

    /// The measured span of each pass; of the first one, the part behind an inline warm-up.
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
