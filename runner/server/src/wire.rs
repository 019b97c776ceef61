//! Requests and answers beside the types of `penstock_types`.

use std::collections::BTreeMap;

use bytes::Bytes;
use penstock_types::policy::StageKindName;
use penstock_types::run::{FailureClass, RunDetail, RunId, RunSnapshot, RunState};
use penstock_types::series::Metric;
use penstock_wasm::{LogLevel, ModuleReport};
use schemars::JsonSchema;
use serde::de::{Error, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use strum::{EnumString, IntoStaticStr};

/// Entries of a page unless given.
const LIMIT: u32 = 50;
/// Most entries of a page.
pub const MAX_LIMIT: u32 = 200;
/// Most points of a series.
pub const MAX_POINTS: u32 = 5_000;
/// Most keys of a store that are listed.
pub const MAX_KEYS: u32 = 1_000;

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PageOf{T}")]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Where to go on; `null` at the end.
    pub next: Option<String>,
}

/// A pipeline that is to run.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    pub document: Bytes,
    /// After how many seconds it ends, as completed; to its own end when missing.
    pub for_s: Option<f64>,
    /// Makes it safe to send again: for a day the same key means the same run.
    pub idempotency_key: Option<String>,
}

/// A run that was submitted.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: RunDetail,
    /// Not set when the same key came before.
    pub is_new: bool,
}

/// Runs to list: those that match every field that is given.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunQuery {
    /// States, separated by commas.
    #[serde(rename = "state", default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub states: Vec<RunState>,
    /// The pipeline's name.
    pub name: Option<String>,
    /// Digest of a module that the run used.
    pub module: Option<String>,
    /// A part of the name, the id or the modules.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// A column to sort by, e.g. `name`, with a `-` in front for the other direction; `-submitted_at` when missing.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sort: RunSort,
    /// The end of an earlier page: its `next`.
    pub cursor: Option<String>,
    /// Most runs; 50 when missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// The order of a list of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RunSort {
    pub by: RunColumn,
    /// Set when the greatest comes first.
    pub is_descending: bool,
}

/// What runs can be sorted by. Runs without a figure come as if it were -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RunColumn {
    SubmittedAt,
    Name,
    State,
    ElapsedS,
    Samples,
    FailedSamples,
    Readiness,
    WaitS,
    Qps,
}

/// A document that could run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Validation {
    /// Its stages, first to last.
    pub stages: Vec<ValidStage>,
    /// Its queues: at the exit of the source, of every stage, and of the sink.
    pub queues: Vec<ValidQueue>,
    /// Worker threads it would be admitted for.
    pub threads: u32,
    /// Memory it would be admitted for, in MiB.
    pub memory_mib: u64,
    /// Digest of the module each WASM stage would run, by stage id.
    pub modules: BTreeMap<String, String>,
    /// What it would wait for now; `null` when it would start at once.
    pub would_wait: Option<String>,
}

/// A stage of a document that could run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidStage {
    /// Position and name, e.g. `2:download`.
    pub id: String,
    /// How people see it, e.g. `[2:download[12]]`.
    pub label: String,
    /// Its kind.
    pub kind: StageKindName,
    /// How many of its tasks may be alive at a time.
    pub concurrency: u32,
    /// What it takes, e.g. `samples`.
    pub takes: String,
    /// What it gives, e.g. `batches`.
    pub gives: String,
}

/// A queue of a document that could run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidQueue {
    /// The stage at whose exit it stands and `_queue`.
    pub id: String,
    /// How people see it.
    pub label: String,
    /// How many items it may hold.
    pub capacity: usize,
}

/// What a run was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSpec {
    /// The document as it was sent.
    pub document: Value,
    /// Digest of the module each WASM stage runs, by stage id.
    pub modules: BTreeMap<String, String>,
}

/// Series to read, and their extent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// From when, in seconds since the run's start; its start when missing.
    pub from_s: Option<f64>,
    /// Until when; its end, or now, when missing.
    pub to_s: Option<f64>,
    /// Most points of a line; 600 when missing, 5000 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_POINTS, _>")]
    #[schemars(range(min = 1, max = MAX_POINTS))]
    pub points: Option<u32>,
    /// Metrics, separated by commas; all when missing.
    #[serde(default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub metrics: Vec<Metric>,
    /// Ids of stages and queues, separated by commas; all when missing.
    #[serde(default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub ids: Vec<String>,
    /// `false` leaves out the least and the greatest of each bucket.
    pub spreads: Option<bool>,
    /// Significant digits of each figure, 1 to 15; all when missing.
    #[serde(default, deserialize_with = "at_most::<15, _>")]
    #[schemars(range(min = 1, max = 15))]
    pub digits: Option<u32>,
}

/// Windows to read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowQuery {
    /// From when, in seconds since the run's start.
    pub from_s: Option<f64>,
    /// Until when.
    pub to_s: Option<f64>,
    /// Length of a window, in seconds, rounded up to a multiple of 0.25; 1 when missing.
    pub every_s: Option<f64>,
}

/// Failed samples to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorQuery {
    /// Id of a stage.
    pub stage: Option<String>,
    /// Whose fault it is.
    #[schemars(with = "Option<String>")]
    pub class: Option<FailureClass>,
    /// A part of the message or of the key.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// The end of an earlier page: its `next`.
    pub cursor: Option<String>,
    /// Most errors; 50 when missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Log lines to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Id of a stage.
    pub stage: Option<String>,
    /// The least level: `debug`, `info`, `warn` or `error`.
    #[schemars(with = "Option<String>")]
    pub level: Option<LogLevel>,
    /// A part of the line.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// The end of an earlier page: its `next`.
    pub cursor: Option<String>,
    /// Most lines; 50 when missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// A line that a module logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogEntry {
    /// Its number in the run, from 1.
    pub number: u64,
    /// Id of the stage.
    pub stage: String,
    /// How much it matters, as the module says.
    pub level: LogLevel,
    /// What it says, printable.
    pub message: String,
    /// When, in seconds since the run's start.
    pub at_s: f64,
}

/// The dead letters of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetters {
    /// By stage, in the pipeline's order.
    pub stages: Vec<StageDeadLetters>,
    /// Lines that are no letters.
    pub unreadable: u64,
    /// Samples that were to be kept, but there was no more room for letters of this run.
    #[serde(default)]
    pub left_out: u64,
}

/// The dead letters of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageDeadLetters {
    /// Id of the stage.
    pub stage: String,
    /// How many there are.
    pub letters: u64,
    /// Digest of the module they failed in; `null` for stages without one.
    pub module: Option<String>,
}

/// A module in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleSummary {
    /// Its name.
    pub name: String,
    /// How many versions there are.
    pub versions: u64,
    /// The newest one.
    pub latest: ModuleVersion,
    /// Names for versions.
    pub aliases: BTreeMap<String, u32>,
    /// Runs that used any of the versions.
    pub runs: u64,
}

/// A module with all its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleDetail {
    /// Its name.
    pub name: String,
    /// Names for versions.
    pub aliases: BTreeMap<String, u32>,
    /// The versions, newest first.
    pub versions: Vec<ModuleVersion>,
}

/// One version of a module. Its bytes never change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleVersion {
    /// The module's name.
    pub name: String,
    /// Its number, from 1; never given twice.
    pub version: u32,
    /// Names that stand for this version.
    pub aliases: Vec<String>,
    /// When it was uploaded, RFC 3339 in UTC.
    pub uploaded_at: String,
    /// Runs that used it.
    pub runs: u64,
    /// Ids of the runs that are not over and use it, at most 100.
    pub in_use: Vec<RunId>,
    /// What it is.
    pub report: ModuleReport,
}

/// What an upload became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleUpload {
    /// The version.
    #[serde(flatten)]
    pub version: ModuleVersion,
    /// Whether it is new; not when the same bytes came before.
    pub created: bool,
    /// Digest of the version before it; `null` for the first one.
    pub previous: Option<String>,
}

/// Modules to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModuleQuery {
    /// A part of the name.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// The end of an earlier page: its `next`.
    pub cursor: Option<String>,
    /// Most modules; 50 when missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// A version's bytes, open for reading.
#[derive(Debug)]
pub struct ModuleFile {
    /// `sha256:` and the hexadecimal digest of the bytes.
    pub digest: String,
    pub size_bytes: u64,
    pub file: std::fs::File,
}

/// A few samples for a module, and what it is set up with. Exactly one of `samples` and `from` is given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TryRequest {
    /// What the module is set up with.
    pub params: Map<String, Value>,
    /// CPU time for one sample, in milliseconds, at most 10,000; 5,000 when missing.
    pub deadline_ms: Option<u32>,
    /// Memory of one instance, in MiB, at most 1,024; 256 when missing.
    pub memory_mib: Option<u32>,
    /// Stands for the document's seed.
    pub seed: u64,
    /// How often each sample is tried, 1 to 3; from 2 on it is told whether it always becomes the same.
    pub repeat: Option<u32>,
    /// Samples given here, at most 16.
    pub samples: Option<Vec<TrySample>>,
    /// Samples read from a store.
    pub from: Option<TryFrom>,
}

/// A sample given in a request: a text, bytes, or fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrySample {
    /// Its key.
    pub key: String,
    /// A field that is a text.
    pub text: Option<String>,
    /// A field that is bytes.
    pub base64: Option<String>,
    /// The name of that field; `text` or `bytes` when missing.
    pub field: Option<String>,
    /// Further fields, as a line of the source `records` gives them.
    pub fields: Option<Map<String, Value>>,
}

/// Objects of a store, each of which becomes a sample as the stage `fetch` makes it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TryFrom {
    /// The store.
    pub store: String,
    /// Keys of the objects, at most 16.
    pub keys: Vec<String>,
}

/// A store that pipelines may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreSummary {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: StoreKind,
}

/// What a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A folder of the server.
    Folder,
    /// A bucket, or a part of one.
    S3,
}

/// Keys of a store to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyQuery {
    /// The beginning of the keys.
    #[serde(default)]
    pub prefix: String,
    /// Most keys; 100 when missing, 1000 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_KEYS, _>")]
    #[schemars(range(min = 1, max = MAX_KEYS))]
    pub limit: Option<u32>,
}

/// Keys of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreKeys {
    /// The first of them, sorted by their bytes.
    pub items: Vec<String>,
    /// Whether there are more.
    pub more: bool,
}

/// What all runs together may use, and what they use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetUse {
    /// Worker threads there are.
    pub threads: u32,
    /// Memory there is, in MiB.
    pub memory_mib: u64,
    /// Worker threads that runs were admitted for.
    pub threads_used: u32,
    /// Memory that runs were admitted for, in MiB.
    pub memory_mib_used: u64,
    /// Share of the worker threads that runs were admitted for, 0.0 to 1.0.
    pub threads_share: Option<f64>,
    /// Share of the memory that runs were admitted for, 0.0 to 1.0.
    pub memory_share: Option<f64>,
    /// Runs that have started and are not over.
    pub runs_alive: u64,
    /// Runs that wait.
    pub runs_queued: u64,
}

/// Use of the budget of runs by one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientUse {
    /// The client: a token, an address, or the server itself.
    pub client: String,
    /// Worker threads of its runs that are alive.
    pub threads_used: u64,
    /// Memory of its runs that are alive, in MiB.
    pub memory_mib_used: u64,
    /// Runs that have started and are not over, and replays.
    pub runs_alive: u64,
    /// Runs that wait.
    pub runs_queued: u64,
}

/// What is kept, and how much room it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StorageUse {
    /// Bytes of the data directory: its files, and what is used of the history's.
    pub data_dir_bytes: u64,
    /// Bytes that it may have; `null` if that has no bound.
    pub data_dir_limit_bytes: Option<u64>,
    /// Versions of modules.
    pub modules: u64,
    /// Runs.
    pub runs: u64,
    /// Bytes that the file system has left.
    pub free_bytes: u64,
}

/// What is counted for monitoring.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Runs by state, all that are kept.
    pub runs: BTreeMap<RunState, u64>,
    /// Samples that consumers have taken since the server started.
    pub samples: u64,
    /// Samples that have failed since the server started.
    pub failures: BTreeMap<FailureClass, u64>,
    /// Runs that are not over.
    pub live: Vec<RunSnapshot>,
}

impl Default for RunSort {
    /// Newest first.
    fn default() -> Self {
        Self { by: RunColumn::SubmittedAt, is_descending: true }
    }
}

impl RunColumn {
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

impl RunSort {
    /// Reads `name` or `-name`.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_prefix('-');
        Some(Self { by: name.unwrap_or(text).parse().ok()?, is_descending: name.is_some() })
    }
}

/// An empty text stands for the default.
impl std::convert::TryFrom<String> for RunSort {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        Self::parse(&text).ok_or(
            "`sort` takes `submitted_at`, `name`, `state`, `elapsed_s`, `samples`, `failed_samples`, `readiness`, `wait_s` \
             or `qps`, with a `-` in front for the greatest first",
        )
    }
}

/// Reads words with commas between them.
fn words<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let list = String::deserialize(from)?;
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| T::deserialize(word.to_owned().into_deserializer())).collect()
}

/// Entries of a page that a client wants.
pub(crate) fn limit(wanted: Option<u32>) -> u32 {
    wanted.unwrap_or(LIMIT).clamp(1, MAX_LIMIT)
}

/// Reads a number from 1 to `MOST`.
fn at_most<'de, const MOST: u32, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let found = u32::deserialize(from)?;
    if (1..=MOST).contains(&found) {
        return Ok(Some(found));
    }
    Err(D::Error::custom(format!("found `{found}`, wanted 1 to {MOST}")))
}

/// A benchmark whose report is kept, in a list.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkSummary")]
pub struct KeptBenchmark<S = Value> {
    /// Names it.
    pub id: String,
    /// When it came here, RFC 3339 in UTC.
    pub kept_at: String,
    #[serde(flatten)]
    pub summary: S,
}

/// A report that was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct PushedBenchmark {
    pub benchmark: KeptBenchmark,
    /// Not set when the same report came before.
    pub is_new: bool,
}

/// A change that a client has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditEntry {
    /// Time of the answer, RFC 3339 in UTC.
    pub at: String,
    /// Name of the token that was used: `operator` for the server's own, `anyone` where none is needed.
    pub token: String,
    /// Address of the client, or of its proxy.
    pub address: String,
    /// Id of the operation, e.g. `delete_run`.
    pub action: String,
    /// Address in the API that was asked; for what was made, also its own.
    pub target: String,
    /// Status of the answer; `null` where the client left before it.
    pub status: Option<u16>,
}

/// Entries of the audit log to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// The end of an earlier page: its `next`.
    pub cursor: Option<String>,
    /// Length of a page; 50 when missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Benchmarks to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkQuery {
    /// The end of an earlier page: its `next`.
    pub cursor: Option<String>,
    /// Most benchmarks; 50 when missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}
