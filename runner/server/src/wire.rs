//! Requests and responses of the server, in addition to the types of `penstock_types`.

use std::collections::BTreeMap;
use std::str::FromStr;

use bytes::Bytes;
use penstock_types::policy::StageKindName;
use penstock_types::run::{FailureClass, RunDetail, RunId, RunSnapshot, RunState};
use penstock_types::series::Metric;
use penstock_types::spec::Name;
use penstock_types::tags::Tags;
use penstock_wasm::{LogLevel, ModuleReport};
use schemars::JsonSchema;
use serde::de::{Error, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use strum::{EnumString, IntoStaticStr, VariantNames};

/// Default number of entries of a page.
const LIMIT: u32 = 50;
/// Maximum number of entries of a page.
pub const MAX_LIMIT: u32 = 200;
/// Maximum number of points of a series.
pub const MAX_POINTS: u32 = 5_000;
/// Maximum number of keys in a list of a store's keys.
pub const MAX_KEYS: u32 = 1_000;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PageOf{T}")]
pub struct Page<T> {
    /// Entries of this page.
    pub items: Vec<T>,
    /// Cursor of the next page; `null` at the end of the list.
    pub next: Option<String>,
}

/// Pipeline document to run, with options.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    pub document: Bytes,
    /// Time after which the run ends as completed, in seconds; if `None`, the run continues to the end of its data.
    pub for_s: Option<f64>,
    /// Key that makes it safe to repeat the submission: for a day, a request with the same key returns the same run.
    pub idempotency_key: Option<String>,
    pub tags: Tags,
}

/// Tags of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunTags {
    /// New tags of the run, which replace all of its current tags.
    pub tags: Tags,
}

/// Result of a submission.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: RunDetail,
    /// False if the same key was submitted before.
    pub is_new: bool,
}

/// Filter, order and page of a list of runs. A run must match every field that is given.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunQuery {
    /// States of the runs, separated by commas.
    #[serde(rename = "state", default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub states: Vec<RunState>,
    /// Name of the pipeline.
    pub name: Option<String>,
    /// Digest of a module that the run used.
    pub module: Option<String>,
    /// Tags, separated by commas; a run must have all of them.
    #[serde(rename = "tag", default, deserialize_with = "tags")]
    #[schemars(with = "Option<String>")]
    pub tags: Tags,
    /// Text that the name, the id, the modules or the tags contain.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Column to sort by, e.g. `name`, with a `-` in front for descending order; `-submitted_at` if missing.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sort: RunSort,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of runs; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String", bound = "C: SortColumn")]
pub struct SortBy<C> {
    pub by: C,
    /// True for descending order.
    pub is_descending: bool,
}

/// The order of a list of runs.
pub type RunSort = SortBy<RunColumn>;
/// The order of a list of benchmarks.
pub type BenchmarkSort = SortBy<BenchmarkColumn>;

/// Columns by which a list can be sorted; the default is the column of the time at which entries were added.
pub trait SortColumn: Default + FromStr + VariantNames {}

impl<C: Default + FromStr + VariantNames> SortColumn for C {}

/// Column by which runs can be sorted. A missing figure counts as -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RunColumn {
    #[default]
    SubmittedAt,
    Name,
    State,
    ElapsedS,
    Samples,
    FailedSamples,
    Readiness,
    WaitS,
    Qps,
    SamplesPerS,
    Verdict,
    Modules,
}

/// Result of a successful check of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Validation {
    /// Stages of the pipeline, first to last.
    pub stages: Vec<ValidStage>,
    /// Queues of the pipeline: behind the source, behind every stage, and behind the sink.
    pub queues: Vec<ValidQueue>,
    /// Worker threads that would be reserved for the run.
    pub threads: u32,
    /// Memory that would be reserved for the run, in MiB.
    pub memory_mib: u64,
    /// Digest of the module each WASM stage would run, by stage id.
    pub modules: BTreeMap<String, String>,
    /// Reason why the run would wait now; `null` if it would start at once.
    pub would_wait: Option<String>,
}

/// Stage of a valid document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidStage {
    /// Position and name of the stage, e.g. `2:download`.
    pub id: String,
    /// Label of the stage for display, e.g. `[2:download[12]]`.
    pub label: String,
    /// Kind of the stage.
    pub kind: StageKindName,
    /// Maximum number of tasks of the stage at a time.
    pub concurrency: u32,
    /// Unit of the items that the stage takes, e.g. `samples`.
    pub takes: String,
    /// Unit of the items that the stage produces, e.g. `batches`.
    pub gives: String,
}

/// Queue of a valid document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidQueue {
    /// Id of the stage that fills the queue, followed by `_queue`.
    pub id: String,
    /// Label of the queue for display.
    pub label: String,
    /// Maximum number of items in the queue.
    pub capacity: usize,
}

/// Document and modules of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSpec {
    /// The document as it was sent.
    pub document: Value,
    /// Digest of the module each WASM stage runs, by stage id.
    pub modules: BTreeMap<String, String>,
}

/// Time range, resolution and metrics of series to read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// Start of the time range, in seconds since the run's start; the run's start if missing.
    pub from_s: Option<f64>,
    /// End of the time range, in seconds since the run's start; the run's end, or now, if missing.
    pub to_s: Option<f64>,
    /// Maximum number of points of each metric over time; 600 if missing, 5000 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_POINTS, _>")]
    #[schemars(range(min = 1, max = MAX_POINTS))]
    pub points: Option<u32>,
    /// Metrics, separated by commas; all if missing.
    #[serde(default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub metrics: Vec<Metric>,
    /// Ids of stages and queues, separated by commas; all if missing.
    #[serde(default, deserialize_with = "words")]
    #[schemars(with = "Option<String>")]
    pub ids: Vec<String>,
    /// `false` leaves out the minimum and the maximum of each bucket.
    pub spreads: Option<bool>,
    /// Number of significant digits of each figure, 1 to 15; all digits if missing.
    #[serde(default, deserialize_with = "at_most::<15, _>")]
    #[schemars(range(min = 1, max = 15))]
    pub digits: Option<u32>,
}

/// Window of the figures of a run. If all fields are missing, the window is the whole run without warm-up.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FiguresQuery {
    /// Start of the window, in seconds since the run's start; the run's start if missing.
    pub from_s: Option<f64>,
    /// End of the window, in seconds since the run's start; the run's end, or now, if missing.
    pub to_s: Option<f64>,
    /// Length of a window that ends with the run, or now if the run continues, in seconds; cannot be combined with `from_s` or
    /// `to_s`. Warm-up is left out.
    pub last_s: Option<f64>,
}

/// Time range and length of windows to read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowQuery {
    /// Start of the time range, in seconds since the run's start; the run's start if missing.
    pub from_s: Option<f64>,
    /// End of the time range, in seconds since the run's start; the run's end, or now, if missing.
    pub to_s: Option<f64>,
    /// Length of a window, in seconds, rounded up to a multiple of 0.25; 1 if missing.
    pub every_s: Option<f64>,
}

/// Filter and page of a list of failed samples.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorQuery {
    /// Id of the stage in which samples failed.
    pub stage: Option<String>,
    /// Class of the failures, by their cause.
    #[schemars(with = "Option<String>")]
    pub class: Option<FailureClass>,
    /// Text that the message or the key contains.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of errors; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Filter and page of a list of log lines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Id of the stage that logged the lines.
    pub stage: Option<String>,
    /// Minimum level: `debug`, `info`, `warn` or `error`.
    #[schemars(with = "Option<String>")]
    pub level: Option<LogLevel>,
    /// Text that the line contains.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of lines; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Line that a module logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogEntry {
    /// Number of the line in the run, from 1.
    pub number: u64,
    /// Id of the stage.
    pub stage: String,
    /// Severity that the module gave to the line.
    pub level: LogLevel,
    /// Text of the line; unprintable characters are escaped.
    pub message: String,
    /// Time of the line, in seconds since the run's start.
    pub at_s: f64,
}

/// The dead letters of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetters {
    /// Dead letters by stage, in the pipeline's order.
    pub stages: Vec<StageDeadLetters>,
    /// Number of lines that are not valid dead letters.
    pub unreadable: u64,
    /// Number of failed samples that were not stored because the dead letters of the run had reached their size limit.
    #[serde(default)]
    pub left_out: u64,
}

/// The dead letters of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageDeadLetters {
    /// Id of the stage.
    pub stage: String,
    /// Number of dead letters of the stage.
    pub letters: u64,
    /// Digest of the module in which the samples failed; `null` for a stage without a module.
    pub module: Option<String>,
}

/// Module, in the form in which lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleSummary {
    /// Name of the module.
    pub name: String,
    /// Number of versions of the module.
    pub versions: u64,
    /// Newest version of the module.
    pub latest: ModuleVersion,
    /// Version numbers by alias.
    pub aliases: BTreeMap<String, u32>,
    /// Number of runs that used any of the versions.
    pub runs: u64,
    /// Name of the token that alone, besides admins, may upload further versions; `null` if the name belongs to no token.
    pub owner: Option<String>,
}

/// Module with a page of its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleDetail {
    /// Name of the module.
    pub name: String,
    /// Version numbers by alias.
    pub aliases: BTreeMap<String, u32>,
    /// Name of the token that alone, besides admins, may upload further versions; `null` if the name belongs to no token.
    pub owner: Option<String>,
    /// Versions of the module on this page, newest first.
    pub versions: Vec<ModuleVersion>,
    /// Cursor of the next page of versions; `null` at the end of the list.
    pub next: Option<String>,
}

/// Page of the versions of a module.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionQuery {
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of versions; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Version of a module. The bytes of a version never change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleVersion {
    /// Name of the module.
    pub name: String,
    /// Number of the version, from 1; never used again after a deletion.
    pub version: u32,
    /// Aliases that point to this version.
    pub aliases: Vec<String>,
    /// Time of the upload, RFC 3339 in UTC; `null` for a module that is part of the program.
    pub uploaded_at: Option<String>,
    /// Number of runs that used this version.
    pub runs: u64,
    /// Ids of the runs that use this version and have not ended, at most 100.
    pub in_use: Vec<RunId>,
    /// Properties of the module, found by its check.
    pub report: ModuleReport,
}

/// Result of the upload of a module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleUpload {
    /// Version that holds the uploaded bytes.
    #[serde(flatten)]
    pub version: ModuleVersion,
    /// True if the upload created this version; false if the same bytes were uploaded before.
    pub created: bool,
    /// Digest of the version before this one; `null` for the first version.
    pub previous: Option<String>,
}

/// Filter and page of a list of modules.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModuleQuery {
    /// Text that the name contains.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of modules; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Source of the bytes of a version of a module.
#[derive(Debug)]
pub enum ModuleContent {
    File(std::fs::File),
    /// Bytes that are part of the program.
    Program(&'static [u8]),
}

/// Bytes of a version of a module, open for reading.
#[derive(Debug)]
pub struct ModuleFile {
    /// `sha256:` and the hexadecimal digest of the bytes.
    pub digest: String,
    pub size_bytes: u64,
    pub content: ModuleContent,
}

/// Trial of a module on a few samples. Exactly one of `samples` and `from` is required.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TryRequest {
    /// Parameters of the module.
    pub params: Map<String, Value>,
    /// Limit of the CPU time for one sample, in milliseconds, at most 10,000; 5,000 if missing.
    pub deadline_ms: Option<u32>,
    /// Limit of the memory of one instance, in MiB, at most 1,024; 256 if missing.
    pub memory_mib: Option<u32>,
    /// Seed, in place of the document's seed.
    pub seed: u64,
    /// Number of trials of each sample, 1 to 3, 1 if missing; with 2 or more, the report states if all results are the same.
    pub repeat: Option<u32>,
    /// Samples in the request itself, at most 16.
    pub samples: Option<Vec<TrySample>>,
    /// Samples to read from a store.
    pub from: Option<TryFrom>,
    /// Assets that the module may request, by name, at most 16.
    pub assets: BTreeMap<Name, TryAsset>,
}

/// Asset of a module in a trial: bytes in the request, or an object of a store.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum TryAsset {
    /// Asset whose bytes are in the request.
    Given {
        /// Content of the asset, base64-encoded.
        base64: String,
    },
    /// Asset that is an object of a store.
    Stored {
        /// Name of the store that contains the object.
        store: String,
        /// Key of the object in the store.
        key: String,
    },
}

/// Sample in a request: a text, bytes, or fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrySample {
    /// Key of the sample; `sample` if empty.
    pub key: String,
    /// Value of a text field.
    pub text: Option<String>,
    /// Value of a bytes field, encoded as base64.
    pub base64: Option<String>,
    /// Name of the field that holds `text` or `base64`; `text` or `bytes` if missing.
    pub field: Option<String>,
    /// Further fields, in the form of a line of the source `records`.
    pub fields: Option<Map<String, Value>>,
}

/// Objects of a store, each of which becomes a sample in the same form as in the stage `fetch`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TryFrom {
    /// Name of the store.
    pub store: String,
    /// Keys of the objects, at most 16.
    pub keys: Vec<String>,
}

/// Store that pipelines may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreSummary {
    /// Name of the store.
    pub name: String,
    /// Kind of the store.
    pub kind: StoreKind,
    /// True if runs may write batches to the store.
    pub writable: bool,
    /// Maximum number of reads and writes in flight, for all runs together.
    pub reads: u64,
    /// Number of reads and writes in flight now, for all runs together.
    pub reads_used: u64,
}

/// Kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Folder on the server's machine.
    Folder,
    /// S3 bucket, or the objects of a bucket with a common key prefix.
    S3,
}

/// Prefix and number of keys to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyQuery {
    /// Prefix of the keys; all keys if empty.
    #[serde(default)]
    pub prefix: String,
    /// Maximum number of keys; 100 if missing, 1000 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_KEYS, _>")]
    #[schemars(range(min = 1, max = MAX_KEYS))]
    pub limit: Option<u32>,
}

/// Keys that a store lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreKeys {
    /// First keys with the prefix, sorted by their bytes.
    pub items: Vec<String>,
    /// True if the store has more keys with the prefix.
    pub more: bool,
    /// Time that the store took to list the keys, in seconds.
    pub elapsed_s: f64,
}

/// Budget of all runs together, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetUse {
    /// Number of worker threads of the budget.
    pub threads: u32,
    /// Memory of the budget, in MiB.
    pub memory_mib: u64,
    /// Number of worker threads that are reserved for runs.
    pub threads_used: u32,
    /// Memory that is reserved for runs, in MiB.
    pub memory_mib_used: u64,
    /// Share of the worker threads that is reserved for runs, 0.0 to 1.0.
    pub threads_share: Option<f64>,
    /// Share of the memory that is reserved for runs, 0.0 to 1.0.
    pub memory_share: Option<f64>,
    /// Number of runs that have started and not ended.
    pub runs_alive: u64,
    /// Number of waiting runs.
    pub runs_queued: u64,
}

/// Resources of the runs of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientUse {
    /// Name of the client: a token, an address, or the server itself.
    pub client: String,
    /// Number of worker threads of the client's active runs.
    pub threads_used: u64,
    /// Memory of the client's active runs, in MiB.
    pub memory_mib_used: u64,
    /// Number of runs that have started and not ended, including replays.
    pub runs_alive: u64,
    /// Number of waiting runs.
    pub runs_queued: u64,
}

/// Use of the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StorageUse {
    /// Size of all files in the data directory, in bytes, without the free pages of the history.
    pub data_dir_bytes: u64,
    /// Limit of the data directory, in bytes; `null` if unlimited.
    pub data_dir_limit_bytes: Option<u64>,
    /// Number of versions of modules.
    pub modules: u64,
    /// Number of stored runs.
    pub runs: u64,
    /// Free space of the file system, in bytes.
    pub free_bytes: u64,
}

/// Counts of the server for monitoring.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Number of stored runs by state.
    pub runs: BTreeMap<RunState, u64>,
    /// Number of samples that consumers have taken since the server started.
    pub samples: u64,
    /// Number of samples that have failed since the server started, by class.
    pub failures: BTreeMap<FailureClass, u64>,
    /// Snapshots of the runs that have started and not ended.
    pub live: Vec<RunSnapshot>,
}

impl<C: SortColumn> Default for SortBy<C> {
    /// Order by time of submission, newest first.
    fn default() -> Self {
        Self { by: C::default(), is_descending: true }
    }
}

impl RunColumn {
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

impl<C: SortColumn> SortBy<C> {
    /// Parses the name of a column, with a `-` in front for descending order.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_prefix('-');
        Some(Self { by: name.unwrap_or(text).parse().ok()?, is_descending: name.is_some() })
    }
}

/// Parses the order of a list; an empty text selects the default order.
impl<C: SortColumn> std::convert::TryFrom<String> for SortBy<C> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        Self::parse(&text).ok_or_else(|| {
            let columns = C::VARIANTS.join("`, `");
            format!("`sort` must be one of `{columns}`, with a `-` in front for descending order")
        })
    }
}

/// Reads a list of words separated by commas.
fn words<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let list = String::deserialize(from)?;
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| T::deserialize(word.to_owned().into_deserializer())).collect()
}

/// Parses tags separated by commas.
pub fn tags<'de, D: Deserializer<'de>>(from: D) -> Result<Tags, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Number of entries of a page: the requested number, or the default.
pub(crate) fn limit(wanted: Option<u32>) -> u32 {
    wanted.unwrap_or(LIMIT).clamp(1, MAX_LIMIT)
}

/// Reads a number from 1 to `MOST`.
fn at_most<'de, const MOST: u32, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let found = u32::deserialize(from)?;
    if (1..=MOST).contains(&found) {
        return Ok(Some(found));
    }
    Err(D::Error::custom(format!("found `{found}`, expected 1 to {MOST}")))
}

/// Stored benchmark, in the form in which lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkSummary")]
pub struct KeptBenchmark<S = Value> {
    /// Id of the benchmark.
    pub id: String,
    /// Time at which the report was stored, RFC 3339 in UTC.
    pub kept_at: String,
    #[serde(flatten)]
    pub summary: S,
}

/// Result of the upload of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct PushedBenchmark {
    pub benchmark: KeptBenchmark,
    /// False if the same report was stored before.
    pub is_new: bool,
}

/// Entry of the audit log: a change that a client has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditEntry {
    /// Time of the response, RFC 3339 in UTC.
    pub at: String,
    /// Name of the token that was used: `operator` for the server's own token, `anyone` if the server requires no token.
    pub token: String,
    /// Address of the client, or of its proxy; empty for `own_module`, which follows from an upload with an entry of its own.
    pub address: String,
    /// Id of the operation, e.g. `delete_run`, or `own_module` if a token got the name of a module that had no owner.
    pub action: String,
    /// Path and query of the request beneath the API; for a new resource, also the path of the resource.
    pub target: String,
    /// Status of the response; `null` if the client disconnected before the response.
    pub status: Option<u16>,
}

/// Cursor and size of a page of the audit log.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of entries; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Order, cursor and size of a page of benchmarks.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkQuery {
    /// Column to sort by, e.g. `name`, with a `-` in front for descending order; `-kept_at` if missing.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sort: BenchmarkSort,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of benchmarks; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Column by which benchmarks can be sorted: a member of the summary, or the order in which the reports were stored. A missing
/// figure counts as -1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum BenchmarkColumn {
    #[default]
    KeptAt,
    Name,
    State,
    Store,
    Objects,
    ItemsPerS,
    ElapsedS,
    StartedAt,
}
