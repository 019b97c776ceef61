//! Document of a benchmark: objects to read, and actions on them.

mod check;

use std::num::{NonZeroU32, NonZeroUsize};

use penstock_storage::DEFAULT_READS;
use penstock_types::fault::SpecFault;
use penstock_types::spec::{
    IndexSource, ListSource, MdsSource, Millis, Name, ParquetSource, RecordsSource, Source, Stage, Table,
    TableSource, TarSource, TfrecordSource, parse, read_all,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

pub const MAX_WORKERS: u32 = 1024;
pub const MAX_IN_FLIGHT: u32 = 4096;
/// Maximum number of reads of one load, warm-up included: each read needs a record of about 100 bytes until the load is reported.
pub const MAX_READS: u64 = 10_000_000;

/// Storage benchmark: the objects to read, the stages after each read, and the actions to run in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Penstock storage benchmark")]
pub struct BenchSpec {
    #[serde(default = "default_name")]
    pub name: Name,
    /// Seed of all random choices: with the same seed, the benchmark reads the same objects in the same order.
    #[serde(default)]
    pub seed: u64,
    /// Source of the objects or samples to read.
    pub source: DataSource,
    /// Stages that each object or sample passes after it is read, as in a pipeline after `fetch`: `wasm` and `collate`, with an `aggregate`
    /// of the batch size before stages that take whole batches. The time of stages is reported separately from that of storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// State of the machine's page cache before each pass.
    #[serde(default)]
    pub cache: PageCache,
    /// Effect of a failed read.
    #[serde(default)]
    pub on_error: OnReadError,
    /// Reads the size of every object first, so that the ledger can check the number of bytes of each read. Sizes of samples are not
    /// read.
    #[serde(default = "yes")]
    pub survey: bool,
    /// Measures each load also without storage, to find the limit of this client.
    #[serde(default = "yes")]
    pub ceiling: bool,
    /// Actions to run, in order.
    #[serde(default = "default_actions")]
    pub actions: Vec<BenchAction>,
    /// Number of threads that share the repetitions of an action; 0 runs them one after another. A `whole_set` has its own
    /// workers.
    #[serde(default)]
    pub pool: u32,
    /// Accelerators to simulate, to find the number that the storage can feed; no search if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<AcceleratorSpec>,
    /// Runs the fastest load again with each of its parts replaced by a substitute that takes almost no time.
    #[serde(default)]
    pub counterfactuals: bool,
}

/// Source of the objects, or of the samples of a format that holds many samples in one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// Keys of a store, as listed.
    List(ListSource),
    /// Keys in an index file.
    Index(IndexSource),
    /// Samples in tar shards. Without an index, one is made in memory first.
    Tar(TarSource),
    /// Rows of Parquet files.
    Parquet(ParquetSource),
    /// Records in TFRecord files. Without an index, one is made in memory first.
    Tfrecord(TfrecordSource),
    /// Samples in shards of MosaicML Streaming.
    Mds(MdsSource),
    /// Lines of NDJSON objects.
    Records(RecordsSource),
    /// Rows of tables with commas.
    Csv(#[schemars(with = "TableSource")] Table<b','>),
    /// Rows of tables with tabs.
    Tsv(#[schemars(with = "TableSource")] Table<b'\t'>),
    /// Synthetic objects in memory, to measure the limit of the client without storage.
    Memory(MemorySource),
}

/// Synthetic objects in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySource {
    pub count: NonZeroU32,
    pub bytes: u32,
    /// Delay of each read, in milliseconds; no delay if `null`.
    #[serde(default)]
    pub latency_ms: Option<Millis>,
    /// Reads the objects in another order in each pass.
    #[serde(default)]
    pub shuffle: bool,
}

/// State of the machine's page cache before a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum PageCache {
    /// If all objects of a folder fit into half of the memory, they are read once first, so that the cache holds all of them.
    /// Otherwise the cache is left as it is.
    #[default]
    Warm,
    /// Objects are dropped from the page cache before each pass. Caches of the S3 service are not affected.
    Cold,
}

/// Effect of a failed read, after the store's own retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnReadError {
    /// Ends the benchmark; the report contains the measurements made before the failure.
    #[default]
    Fail,
    /// Counts and reports the failure, and continues; the batch has one item fewer.
    Skip,
}

/// Action whose duration is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BenchAction {
    /// Reads all objects in batches by workers, as a data loader does, for each mode and number of workers.
    WholeSet(WholeSet),
    /// Reads objects at random, with replacement.
    Random(RepeatedAction),
    /// Reads the first object repeatedly.
    Single(RepeatedAction),
    /// Creates a random array in memory and copies it to a buffer for a device, without storage.
    RandomToDevice(RandomToDevice),
    /// Lists the objects of the store, or loads the index file.
    Index(RepeatedAction),
}

/// Repetitions of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RepeatedAction {
    /// Total number of repetitions in all threads of the pool together.
    pub repeat: NonZeroU32,
}

/// Creation and copy of a random array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomToDevice {
    /// Total number of repetitions.
    pub repeat: NonZeroU32,
    /// Number of rows and columns; the elements are float32.
    pub shape: [u32; 2],
    /// Destination of the copy: `host`.
    pub device: String,
}

/// Grid of loads: every mode with every number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WholeSet {
    /// Read modes of the workers; each mode is a load of its own.
    pub modes: Vec<LoadMode>,
    pub workers: Vec<u32>,
    /// Maximum number of reads that one `async` worker has in flight; a `sync` worker has one.
    pub in_flight: u32,
    pub batch_size: u32,
    /// Maximum number of batches per worker that are begun but not delivered.
    pub prefetch: u32,
    pub assignment: Assignment,
    /// Keeps workers and their instances of modules for all passes; otherwise each pass starts new workers.
    pub persistent: bool,
    /// Number of measured passes over all objects.
    pub repeats: u32,
    /// Batches that are read first and are not measured.
    pub warm_up: WarmUp,
}

/// Read mode of a worker, for the items of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoadMode {
    /// Reads one item after another.
    Sync,
    /// Reads several items at a time, which are requested in order.
    Async,
}

/// Assignment of batches to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Assignment {
    /// Batch `i` goes to worker `i mod workers`.
    #[default]
    Static,
    /// An idle worker takes the next batch.
    Steal,
}

/// Batches that are read before the measurement of a load and are left out of its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// Number of batches in each round; a set with fewer batches is read repeatedly.
    #[serde(default)]
    pub rounds: Vec<u32>,
    /// Source of the batches.
    #[serde(default)]
    pub how: WarmUpKind,
}

/// Source of the batches of a warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmUpKind {
    /// Each round starts its own workers, which read the first batches of the set.
    #[default]
    Restart,
    /// The first batches of the first pass are the warm-up; the pass still reads every object once.
    Inline,
}

/// Accelerators for a load to feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorSpec {
    /// Known workload and accelerator, e.g. `resnet50/h100`, which sets batch size, step time and minimum utilisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Number of samples in a step; the default is the preset's batch size, or else the load's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<NonZeroU32>,
    /// Computing time of a step, in milliseconds; the default is the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<Millis>,
    /// Minimum share of time that each accelerator must compute, 0.01 to 1.0; the default is the preset's, or else 0.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
}

impl BenchSpec {
    /// Parses a benchmark document. Fails with all faults of the document.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        Self::from_value(parse(bytes)?)
    }

    pub fn from_value(document: serde_json::Value) -> Result<Self, Vec<SpecFault>> {
        read_all(document, Vec::new(), Self::faults)
    }

    /// Maximum number of reads that a load or a pool has in flight, and at least the default limit of a store.
    pub fn reads(&self) -> NonZeroUsize {
        let loads =
            self.whole_sets().flat_map(|set| set.workers.iter().map(|workers| workers * set.in_flight));
        let most = loads.chain([self.pool]).max().unwrap_or_default();
        NonZeroUsize::new(most as usize).map_or(DEFAULT_READS, |most| most.max(DEFAULT_READS))
    }

    pub fn whole_sets(&self) -> impl Iterator<Item = &WholeSet> {
        self.actions.iter().filter_map(|action| match action {
            BenchAction::WholeSet(set) => Some(set),
            _ => None,
        })
    }
}

impl DataSource {
    /// The same source in a pipeline; `None` for synthetic objects.
    pub fn in_pipeline(&self) -> Option<Source> {
        Some(match self.clone() {
            Self::List(source) => Source::List(source),
            Self::Index(source) => Source::Index(source),
            Self::Tar(source) => Source::Tar(source),
            Self::Parquet(source) => Source::Parquet(source),
            Self::Tfrecord(source) => Source::Tfrecord(source),
            Self::Mds(source) => Source::Mds(source),
            Self::Records(source) => Source::Records(source),
            Self::Csv(source) => Source::Csv(source),
            Self::Tsv(source) => Source::Tsv(source),
            Self::Memory(_) => return None,
        })
    }

    /// Name of the format whose samples are read; `None` if whole objects are read.
    pub fn format(&self) -> Option<&'static str> {
        match self {
            Self::List(_) | Self::Index(_) | Self::Memory(_) => None,
            _ => self.in_pipeline().map(|source| source.kind()),
        }
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
