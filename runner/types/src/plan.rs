//! The checked pipeline: every name resolved, every stage given an id, nothing left to find wrong before running.

mod check;
mod explain;
mod fields;
mod flow;
mod recipe;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::fault::Pointer;
use crate::manifest::{Manifest, Mode};
use crate::policy::{Capacity, Concurrency, FailureLimit, OnError, Order, Ragged, StageKindName};
use crate::spec::{Asset, Name, SleepOn, SleepShape, Source};
use crate::traversal::TraversalSettings;

pub use self::check::{Draft, LEAST_SAMPLE_BYTES};
pub use self::fields::{BYTES_FIELD, Fields};
pub use self::flow::{Epoch, Flow, Unit};

/// A pipeline that was checked and can be built. Made by [`Plan::check`] and [`Plan::draft`] alone.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// What the pipeline is called.
    pub name: String,
    /// Where all randomness starts.
    pub seed: u64,
    /// Worker threads; `None` for the machine's cores.
    pub threads: Option<u32>,
    /// Length of a measuring window.
    pub interval: Duration,
    /// Bytes held between ops: in queues, in slots, in begun batches, and by the source.
    pub buffer_bytes: u64,
    /// Where samples come from; stage 0.
    pub source: SourcePlan,
    /// The stages, from 1 on.
    pub stages: Vec<StagePlan>,
    /// Fields of the samples that reach the sink.
    pub fields: Fields,
    /// The last stage.
    pub sink: SinkPlan,
    /// What drains the sink queue.
    pub consumer: ConsumerPlan,
    /// How many failures of all stages together are too many.
    pub max_failures: Option<FailureLimit>,
}

/// Where samples come from.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePlan {
    /// `0:src`.
    pub id: StageId,
    /// What it reads, as written.
    pub spec: Source,
    /// How it is visited.
    pub traversal: TraversalSettings,
    /// Items its queue may hold.
    pub queue: Capacity,
    /// Items it makes.
    pub flow: Flow,
}

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// Its place and name.
    pub id: StageId,
    /// Its name as it goes into seeds: a second stage of the same name, `x#1`, draws numbers of its own.
    pub seeded_as: String,
    /// What it does.
    pub kind: StageKind,
    /// Items the queue at its exit may hold.
    pub queue: Capacity,
    /// Tasks alive at a time.
    pub concurrency: Concurrency,
    /// In which order results are passed on.
    pub order: Order,
    /// What becomes of a sample that failed.
    pub on_error: OnError,
    /// How many failures of this stage are too many.
    pub max_failures: Option<FailureLimit>,
    /// Items it makes.
    pub flow: Flow,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq)]
pub enum StageKind {
    /// Collects samples into batches.
    Aggregate {
        /// Samples of a batch.
        size: usize,
        /// Whether an epoch's last batch is left out when it is not full.
        drop_last: bool,
    },
    /// Takes batches apart.
    Disaggregate,
    /// Reads the object each sample names.
    Fetch {
        /// The store to read from.
        store: String,
    },
    /// Runs a module.
    Wasm(WasmPlan),
    /// Stacks the fields of a batch's samples.
    Collate {
        /// Treatment of tensors that differ in shape.
        ragged: Ragged,
    },
    /// Brings batches to the device that trains.
    Transfer {
        /// The device.
        device: Device,
    },
    /// Takes time and changes nothing.
    Sleep(SleepPlan),
}

/// A module and what it is run with.
#[derive(Clone, Debug, PartialEq)]
pub struct WasmPlan {
    /// The module as the document names it.
    pub module: String,
    /// `sha256:` and 64 hex digits: what runs.
    pub digest: String,
    /// What it is called with.
    pub mode: Mode,
    /// Set when one sample may become several; `None` when the module does not say.
    pub fan_out: Option<bool>,
    /// What it is set up with. Not yet checked against the manifest's schema.
    pub params: Map<String, Value>,
    /// CPU time for one sample.
    pub deadline: Duration,
    /// Memory of one instance.
    pub memory_bytes: u64,
    /// Data that one sample may become.
    pub output_bytes: u64,
    /// Objects it may ask for, by name.
    pub assets: BTreeMap<Name, Asset>,
}

/// Where `transfer` puts batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The memory of this process.
    Host,
    /// The first GPU of the machine that runs the pipeline, and the memory of the process where there is none.
    Auto,
    /// The GPU of this number, from 0, as CUDA counts those it is shown.
    Cuda(u32),
}

/// How long a task of `sleep` takes, and what it occupies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SleepPlan {
    /// Mean time.
    pub mean: Duration,
    /// How far times stray from the mean, as a share of it; for the uniform shape only.
    pub jitter: f64,
    /// How times are distributed.
    pub shape: SleepShape,
    /// What a task occupies.
    pub on: SleepOn,
    /// Share of tasks that fail on purpose.
    pub fail_rate: f64,
}

/// The last stage: moves finished items into the sink queue.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkPlan {
    /// Its place, after all stages, and `sink`.
    pub id: StageId,
    /// Items the sink queue may hold.
    pub queue: Capacity,
}

/// What drains the sink queue.
#[derive(Clone, Debug, PartialEq)]
pub enum ConsumerPlan {
    /// Drops every item at once.
    Discard,
    /// Waits after every item.
    Simulate {
        /// Mean wait.
        step: Duration,
        /// How far waits stray from the mean, as a share of it.
        jitter: f64,
    },
    /// Writes every batch as a file.
    Files(FilesPlan),
    /// Hands every batch to another process.
    Stream {
        /// Batches that may be handed out and not acknowledged yet.
        ahead: usize,
        /// Longest that a batch waits while nobody is connected to take it.
        wait: Duration,
    },
}

/// Where batches are written, and what decides their bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct FilesPlan {
    /// The store they are written to.
    pub store: String,
    /// The folder they lie in, without a `/` at its end; the whole store when empty.
    pub prefix: String,
    /// The document less what cannot change a byte of them: equal recipes over the same data make the same batches.
    pub recipe: Value,
    /// The settings that let batches come in another order from run to run; when there is none, a second run makes the
    /// same ones.
    pub unordered: Vec<Pointer>,
}

/// Names one stage of a pipeline: its place, from 0 for the source, and its name. Written `2:download`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId {
    position: u32,
    name: String,
}

/// What is known of a module before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleFacts {
    /// Its name, without version.
    pub name: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// What it says of itself.
    pub manifest: Manifest,
}

/// What the names in a document mean here.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    /// Modules, by what the document calls them.
    pub modules: &'a BTreeMap<String, ModuleFacts>,
    /// Names of modules to choose from, where a document names another one.
    pub names: &'a [String],
    /// Fields of the source's samples; those of its kind when missing.
    pub fields: Option<Fields>,
    /// Stores by name; `None` when they are not known yet, so that any name will do.
    pub stores: Option<&'a BTreeMap<String, StoreFacts>>,
}

/// What is known of a store before anything is read from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFacts {
    /// Whether its configuration names an index.
    pub has_index: bool,
}

impl StageId {
    /// The id of the stage at `position`.
    pub(crate) fn new(position: usize, name: impl Into<String>) -> Self {
        let position = u32::try_from(position).expect("a pipeline has at most 256 stages");
        Self { position, name: name.into() }
    }

    /// The id that is written so, e.g. `2:download`; `None` if it is none.
    pub fn parse(written: &str) -> Option<Self> {
        let (position, name) = written.split_once(':')?;
        let id = Self { position: position.parse().ok()?, name: name.to_owned() };
        (id.to_string() == written && !name.is_empty()).then_some(id)
    }

    /// Its place in the pipeline, 0 for the source.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Its name alone, e.g. `download`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The id of the queue at its exit, e.g. `2:download_queue`.
    pub fn queue_id(&self) -> String {
        format!("{self}_queue")
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.position, self.name)
    }
}

impl Serialize for StageId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl StagePlan {
    /// Its place in the document, e.g. `/stages/1/wasm`.
    pub fn place(&self) -> Pointer {
        let index = (self.id.position() as usize).saturating_sub(1);
        Pointer::ROOT.key("stages").index(index).key(self.kind.name().as_str())
    }

    /// What people see: `2:download[12]`, or `2:download` when one task is alive at a time.
    pub fn label(&self) -> String {
        match self.concurrency.get() {
            1 => self.id.to_string(),
            tasks => format!("{}[{tasks}]", self.id),
        }
    }
}

impl StageKind {
    /// The word for it, as in the document.
    pub fn name(&self) -> StageKindName {
        match self {
            Self::Aggregate { .. } => StageKindName::Aggregate,
            Self::Disaggregate => StageKindName::Disaggregate,
            Self::Fetch { .. } => StageKindName::Fetch,
            Self::Wasm(_) => StageKindName::Wasm,
            Self::Collate { .. } => StageKindName::Collate,
            Self::Transfer { .. } => StageKindName::Transfer,
            Self::Sleep(_) => StageKindName::Sleep,
        }
    }

    /// True if results take no more memory than their inputs.
    pub fn keeps_size(&self) -> bool {
        match self {
            Self::Collate { ragged } => *ragged != Ragged::Pad,
            Self::Transfer { .. } | Self::Sleep(_) | Self::Aggregate { .. } | Self::Disaggregate => true,
            Self::Fetch { .. } | Self::Wasm(_) => false,
        }
    }
}
