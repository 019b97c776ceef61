use std::collections::BTreeMap;

use bytes::Bytes;
use penstock_types::policy::StageKindName;
use penstock_types::run::{RunDetail, RunState};
use penstock_types::tags::Tags;
use penstock_types::tune::{SettingChange, SettingNow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{EnumString, IntoStaticStr, VariantNames};

use super::pages::{MAX_LIMIT, SortBy, at_most, tags, words};

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

/// Settings of a run that can change while it goes on, and their changes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunSettings {
    /// Settings that can change now; empty before the run starts and after its end.
    pub settings: Vec<SettingNow>,
    /// Changes so far, oldest first.
    pub changes: Vec<SettingChange>,
}

/// New values of settings of a run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSettings {
    /// New values by the places of the settings in the document, e.g. `/stages/2/wasm/concurrency`. `/threads` is at most the number with
    /// which the run was submitted.
    pub set: BTreeMap<String, u32>,
}

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

pub type RunSort = SortBy<RunColumn>;

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
