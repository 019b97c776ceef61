//! The benchmark's document: what is read, and what is done with it.

mod check;

use std::num::NonZeroU32;

use penstock_types::fault::SpecFault;
use penstock_types::spec::{IndexSource, ListSource, Millis, Name, Stage, parse, read_all};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

pub const MAX_WORKERS: u32 = 1024;
pub const MAX_IN_FLIGHT: u32 = 4096;
/// Most reads of one load, warm-up included: each leaves a record of about 100 bytes until the load is reported.
pub const MAX_READS: u64 = 10_000_000;

/// What a storage benchmark does: the objects it reads, the stages they pass, and the actions in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Penstock storage benchmark")]
pub struct BenchSpec {
    #[serde(default = "default_name")]
    pub name: Name,
    /// Where all randomness starts: the same seed reads the same objects in the same order.
    #[serde(default)]
    pub seed: u64,
    /// The objects that are read.
    pub source: DataSource,
    /// What each object passes behind its reading, as in a pipeline behind `fetch`: `wasm` and `collate`, with an
    /// `aggregate` of the batch size where whole batches are wanted. Its time is told apart from storage's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// What the machine's page cache holds before each pass.
    #[serde(default)]
    pub cache: PageCache,
    /// What a failed read does.
    #[serde(default)]
    pub on_error: OnReadError,
    /// Whether every object's size is asked for first, for the books to hold bytes against.
    #[serde(default = "yes")]
    pub survey: bool,
    /// Whether each load is measured without the store too, to tell what this client could do at all.
    #[serde(default = "yes")]
    pub ceiling: bool,
    /// What is done, in turn.
    #[serde(default = "default_actions")]
    pub actions: Vec<BenchAction>,
    /// How many at a time share the repetitions of an action; 0 for one after another. A `whole_set` has its own workers.
    #[serde(default)]
    pub pool: u32,
    /// The accelerators that are to be fed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<AcceleratorSpec>,
    /// Whether the fastest load runs again with each of its parts replaced by nothing.
    #[serde(default)]
    pub counterfactuals: bool,
}

/// Where the objects come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// The keys of a store.
    List(ListSource),
    /// The keys that an index file names.
    Index(IndexSource),
    /// Made-up objects in memory: what there is without storage.
    Memory(MemorySource),
}

/// Objects in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySource {
    pub count: NonZeroU32,
    pub bytes: u32,
    /// How long each read takes.
    #[serde(default)]
    pub latency_ms: Option<Millis>,
    /// Whether they are read in another order in each pass.
    #[serde(default)]
    pub shuffle: bool,
}

/// What the machine's page cache holds before a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum PageCache {
    /// Everything, where the objects of a folder fit into half of the memory: they are read once first. Otherwise what it
    /// happens to hold.
    #[default]
    Warm,
    /// Nothing of the objects: they are forgotten first. Of a bucket, only its service knows.
    Cold,
}

/// What a failed read does, once the store has tried it as often as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnReadError {
    /// It ends the benchmark, which tells what it has.
    #[default]
    Fail,
    /// It is counted and told, and its batch has one item less.
    Skip,
}

/// Something that is done and timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BenchAction {
    /// Reads all objects in batches by workers, as a data loader does, for each mode and number of workers.
    WholeSet(WholeSet),
    /// Reads objects at random, with replacement.
    Random(RepeatedAction),
    /// Reads the first object again and again.
    Single(RepeatedAction),
    /// Makes a random array in memory and copies it to where a device would take it from: no storage at all.
    RandomToDevice(RandomToDevice),
    /// Finds out which objects there are: lists the store, or loads the index.
    Index(RepeatedAction),
}

/// Repetitions of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RepeatedAction {
    /// How often, in all; exactly, whatever the pool.
    pub repeat: NonZeroU32,
}

/// An array that is copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomToDevice {
    /// How often, in all.
    pub repeat: NonZeroU32,
    /// Rows and columns; float32.
    pub shape: [u32; 2],
    /// Where to: `host`.
    pub device: String,
}

/// A grid of loads: every mode with every number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WholeSet {
    /// How workers read the items of a batch.
    pub modes: Vec<LoadMode>,
    pub workers: Vec<u32>,
    /// Reads that one `async` worker has in flight at most; a `sync` one has one.
    pub in_flight: u32,
    pub batch_size: u32,
    /// Batches that each worker may have begun and not delivered.
    pub prefetch: u32,
    pub assignment: Assignment,
    /// Whether workers, with their instances of modules, live for all passes; otherwise each pass starts new ones.
    pub persistent: bool,
    /// Measured passes over all objects.
    pub repeats: u32,
    /// What runs first and is not measured.
    pub warm_up: WarmUp,
}

/// How a worker reads the items of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoadMode {
    /// One after another.
    Sync,
    /// Several at a time, in the order in which they were asked for.
    Async,
}

/// Which worker takes which batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Assignment {
    /// Batch `i` goes to worker `i mod workers`.
    #[default]
    Static,
    /// Who is free takes the next one.
    Steal,
}

/// What runs before a load and is left out of its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// Batches of each round: read to the end, exactly so many.
    #[serde(default)]
    pub rounds: Vec<u32>,
    /// Where they come from.
    #[serde(default)]
    pub how: WarmUpKind,
}

/// Where the batches of a warm-up come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmUpKind {
    /// Each round starts workers of its own, which read the head of the set.
    #[default]
    Restart,
    /// They are the head of the first pass, which still reads everything once.
    Inline,
}

/// The accelerators that a load is to feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorSpec {
    /// A known workload and accelerator, e.g. `resnet50/h100`, which gives batch size, step and least utilisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Samples of a step; that of the load when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<NonZeroU32>,
    /// How long a step computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<Millis>,
    /// Least share of time an accelerator has to compute, 0.01 to 1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
}

impl BenchSpec {
    /// Reads a document. Fails with all faults.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        Self::from_value(parse(bytes)?)
    }

    pub fn from_value(document: serde_json::Value) -> Result<Self, Vec<SpecFault>> {
        read_all(document, Vec::new(), Self::faults)
    }

    pub fn whole_sets(&self) -> impl Iterator<Item = &WholeSet> {
        self.actions.iter().filter_map(|action| match action {
            BenchAction::WholeSet(set) => Some(set),
            _ => None,
        })
    }
}

impl Default for WholeSet {
    fn default() -> Self {
        Self {
            modes: vec![LoadMode::Sync, LoadMode::Async],
            workers: vec![2, 4, 8, 16, 32],
            in_flight: 8,
            batch_size: 50,
            prefetch: 2,
            assignment: Assignment::default(),
            persistent: false,
            repeats: 3,
            warm_up: WarmUp::default(),
        }
    }
}

impl Default for RepeatedAction {
    fn default() -> Self {
        Self { repeat: NonZeroU32::new(200).expect("200 is not zero") }
    }
}

impl Default for RandomToDevice {
    fn default() -> Self {
        Self { repeat: RepeatedAction::default().repeat, shape: [469, 387], device: "host".to_owned() }
    }
}

impl BenchAction {
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

fn default_name() -> Name {
    Name::new("storage").expect("`storage` is a name")
}

fn yes() -> bool {
    true
}

fn default_actions() -> Vec<BenchAction> {
    vec![BenchAction::WholeSet(WholeSet::default())]
}
