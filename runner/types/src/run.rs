//! What a run looks like from outside: its state, its figures, its books and its failures.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::ops::Deref;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::ledger::Ledger;
use crate::machine::MachineFigures;
use crate::policy::StageKindName;
use crate::stats::{QueueFigures, TaskFigures, per_second};
use crate::tags::Tags;
use crate::verdict::{Verdict, VerdictKind, VerdictSpan};

/// Id of a run: the text of a UUID, which sorts behind those of earlier runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct RunId(Arc<str>);

impl From<&str> for RunId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for RunId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl Deref for RunId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for RunId {
    fn borrow(&self) -> &str {
        self
    }
}

impl Display for RunId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// One run, seen at one moment. The same shape stands in `snapshot.json`, in the API and behind every page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSnapshot {
    /// Names the run.
    pub id: RunId,
    /// The pipeline's name.
    pub name: String,
    /// What it is doing, or how it ended.
    pub state: RunState,
    /// Why it failed; `null` unless it did.
    pub error: Option<String>,
    /// When it started, RFC 3339 in UTC.
    pub started_at: String,
    /// Seconds since then, or until it ended.
    pub elapsed_s: f64,
    /// How many samples the source makes in all; `null` as long as it does not know, or when there is no end.
    pub expected: Option<u64>,
    /// Samples that the consumer took per second.
    #[serde(default)]
    pub samples_per_s: Option<f64>,
    /// Share of time in which the consumer waited for an item, 0.0 to 1.0; `null` as long as it has got none and waited for none.
    #[serde(default)]
    pub consumer_waited: Option<f64>,
    /// Items of the sink that one task of a stage, or one item of a queue, stands for, by the id of stage or queue: batches
    /// hold several samples. Empty before the first item, and where an item is the same everywhere.
    #[serde(default)]
    pub sink_items: BTreeMap<String, f64>,
    /// Worker threads it may use.
    pub threads: u32,
    /// Digest of the module each WASM stage runs, by stage id.
    pub modules: BTreeMap<String, String>,
    /// What the modules counted, by stage id and counter.
    pub counters: BTreeMap<String, BTreeMap<String, f64>>,
    /// What became of the batches that the consumer `files` got; `null` with any other consumer.
    pub files: Option<FilesRecord>,
    /// What stages copied to devices, by stage id; a transfer that stays on the host copies nothing.
    #[serde(default)]
    pub transfers: BTreeMap<String, TransferRecord>,
    /// The stages, first to last. Source and sink do no work of their own and have queues only.
    pub stages: Vec<StageRecord>,
    /// The queues, first to last: at the exit of the source, of every stage, and of the sink.
    pub queues: Vec<QueueRecord>,
    /// What process and machine did since the run's start; `null` where the system does not tell.
    pub machine: Option<MachineFigures>,
    /// Where every sample went.
    pub ledger: Ledger,
    /// Limit of failures over all stages, in words; `null` where the run has none, whether or not stages have limits of their own.
    #[serde(default)]
    pub failure_limit: Option<String>,
    /// What failed, grouped by stage, class and message; most frequent first.
    pub failures: Vec<FailureGroup>,
    /// Failures that are in no group, because there were too many different ones.
    pub failures_not_listed: u64,
    /// What limits it, over the whole run so far; `null` for a run of an earlier version.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// When what limits it moved: verdicts of windows, oldest first, without gaps; the last one goes on. At most the last
    /// hundred.
    #[serde(default)]
    pub verdicts: Vec<VerdictSpan>,
}

/// One run in a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Names the run; ids of later runs sort behind it.
    pub id: RunId,
    /// The pipeline's name.
    pub name: String,
    /// What it is doing, or how it ended.
    pub state: RunState,
    /// Why it failed; `null` unless it did.
    pub error: Option<String>,
    /// When it was submitted, RFC 3339 in UTC.
    pub submitted_at: String,
    /// When it started; `null` before that.
    pub started_at: Option<String>,
    /// When it ended; `null` before that. Of a run whose process died: when the next one found it.
    pub ended_at: Option<String>,
    /// Seconds from its start to its end, or until now; `null` before it started.
    pub elapsed_s: Option<f64>,
    /// Worker threads it is admitted for.
    pub threads: u32,
    /// Memory it is admitted for, in MiB.
    pub memory_mib: u64,
    /// Samples that its consumer has taken; `null` before it started.
    pub samples: Option<u64>,
    /// How many samples its source makes in all; `null` as long as it does not know, or when there is no end.
    pub expected: Option<u64>,
    /// Samples that failed.
    pub failed_samples: u64,
    /// Readiness of the sink queue over the whole run.
    pub readiness: Option<f64>,
    /// Mean time its consumer waited for an item, in seconds.
    pub wait_s: Option<f64>,
    /// Items that its consumer took per second.
    pub qps: Option<f64>,
    /// Samples that its consumer took per second.
    pub samples_per_s: Option<f64>,
    /// Kind of the verdict on the whole run; `null` before it started.
    pub verdict: Option<VerdictKind>,
    /// Id of the stage or source that the verdict names; `null` where it names none.
    pub verdict_stage: Option<String>,
    /// Tags of the run; `PUT /runs/{id}/tags` replaces them.
    #[serde(default)]
    pub tags: Tags,
    /// The modules it runs, `name@version`, in the order of its stages.
    pub modules: Vec<String>,
}

/// One run and everything it has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunDetail {
    /// As in a list.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// While it is queued: what it waits for, with the arithmetic.
    pub waiting: Option<String>,
    /// Its figures; `null` before it started.
    pub snapshot: Option<RunSnapshot>,
    /// The run whose document it repeats.
    pub cloned_from: Option<RunId>,
    /// Why what is kept of it over time is not whole; `null` while it is.
    pub history: Option<String>,
    /// Failed samples that are counted in its figures and not kept one by one.
    pub errors_left_out: u64,
    /// Log lines that are not kept any more.
    pub logs_left_out: u64,
}

/// One failed sample of a run, with what came into the stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunError {
    /// Its number in the run, from 1.
    pub number: u64,
    /// What failed.
    #[serde(flatten)]
    pub failure: FailureRecord,
    /// When, in seconds since the run's start.
    pub at_s: f64,
    /// The head of what came into the stage; `null` when the sample had no fields.
    pub payload: Option<Vec<PayloadField>>,
}

/// A field of a failed sample, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PayloadField {
    /// Its name.
    pub name: String,
    /// What it holds, e.g. `bytes`, `text` or `tensor uint8 [3, 224, 224]`.
    pub kind: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How it begins: texts and numbers as they are, printable; anything else as hexadecimal digits of its first 64 bytes.
    pub head: String,
}

/// What a run is doing, or how it ended.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum RunState {
    /// It waits for its budget of threads and memory.
    #[default]
    Queued,
    /// The source is open.
    Running,
    /// The source has ended; what is inside is still delivered.
    Draining,
    /// All data was delivered, or the time asked for is over.
    Completed,
    /// It ended early, with an error.
    Failed,
    /// Somebody stopped it.
    Stopped,
    /// Its process died.
    Interrupted,
}

/// Files of batches, counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesRecord {
    /// Written by this run.
    pub written: u64,
    /// Found as an earlier run of the same pipeline had written them, and left alone.
    pub already_there: u64,
}

/// What a stage copied to a device, and what it waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransferRecord {
    /// The device, e.g. `cuda:0`.
    pub device: String,
    /// Batches that have arrived there.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that did not lie in memory that the device reads, and were copied there before.
    pub staged_bytes: u64,
    /// Time the device was copying, in seconds by its own clock.
    pub copy_s: f64,
    /// Bytes per second while it was copying; `null` before the first batch.
    pub bytes_per_s: Option<f64>,
    /// Mean time a batch waited for room on the device, in seconds: until its consumers let another one go.
    pub ave_slot_wait_s: Option<f64>,
    /// Mean time a batch that had room waited for the device, in seconds: for batches before it, and for consumers to finish
    /// reading what lay in its place.
    pub ave_device_wait_s: Option<f64>,
    /// Batches for which there is room on the device now, used or not.
    pub slots: u32,
    /// What the device did within the last second, for all processes together; `null` where nobody watches it.
    #[serde(default)]
    pub gpu: Option<GpuRecord>,
}

/// A GPU at one moment; `null` where it does not tell, as in many virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuRecord {
    /// Share of the last moments in which any kernel ran, 0.0 to 1.0. Copies do not count.
    pub utilisation: Option<f64>,
    /// Bytes of its memory in use.
    pub used_bytes: Option<u64>,
    /// Bytes of its memory.
    pub total_bytes: Option<u64>,
    /// Bytes per second that came to it over the bus.
    pub received_bytes_per_s: Option<u64>,
    /// Bytes per second that it sent over the bus.
    pub sent_bytes_per_s: Option<u64>,
}

/// One stage and what its tasks did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRecord {
    /// Position and name, e.g. `2:download`.
    pub id: String,
    /// Its name alone.
    pub name: String,
    /// Its kind.
    pub kind: StageKindName,
    /// How people see it, e.g. `[2:download[12]]`.
    pub label: String,
    /// How many of its tasks may be alive at a time.
    pub concurrency: u32,
    /// What its tasks did.
    pub task: TaskFigures,
}

/// One queue and what it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueRecord {
    /// The stage at whose exit it stands and `_queue`, e.g. `2:download_queue`.
    pub id: String,
    /// How people see it, e.g. `[2:download[12]_queue]`.
    pub label: String,
    /// What it did.
    #[serde(flatten)]
    pub figures: QueueFigures,
}

/// One measuring interval: a line of `windows.ndjson`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// Its begin, in seconds since the run's start.
    pub t0_s: f64,
    /// Its end, in seconds since the run's start. The last one may be shorter than the others.
    pub t1_s: f64,
    /// What the stages did in it.
    pub stages: Vec<StageRecord>,
    /// What the queues did in it.
    pub queues: Vec<QueueRecord>,
    /// What process and machine did in it; `null` where that is not known.
    pub machine: Option<MachineFigures>,
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureGroup {
    /// Id of the stage.
    pub stage: String,
    /// Whose fault it is.
    pub class: FailureClass,
    /// What was found.
    pub message: String,
    /// How many samples.
    pub count: u64,
    /// Keys of up to five of them: the first in the order of the source.
    pub first_keys: Vec<String>,
}

/// One failed sample: a line of `errors.ndjson`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureRecord {
    /// Id of the stage.
    pub stage: String,
    /// The sample's key.
    pub key: String,
    /// Which pass over the source, from 0.
    pub epoch: u32,
    /// The sample's position in the unshuffled source, from 0.
    pub index: u64,
    /// Whose fault it is.
    pub class: FailureClass,
    /// What was found.
    pub message: String,
    /// What became of the sample.
    pub disposition: Disposition,
}

/// What became of a failed sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// It was left out.
    Skipped,
    /// It was kept aside with its input.
    DeadLettered,
}

/// Whose fault a failed sample is. Each class has its own count.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum FailureClass {
    /// The data's: a stage looked at the sample and refused it.
    Data,
    /// The stage's: it trapped, panicked, ran out of memory or missed its deadline.
    Bug,
    /// The stage's: what it gave back breaks the contract (wrong count, bad tensor, too much).
    Contract,
    /// The storage's: an object is missing, or could not be read after all retries.
    Storage,
}

impl RunSnapshot {
    /// The same snapshot with the figures that follow from others, and that earlier versions did not store.
    #[must_use]
    pub fn completed(mut self) -> Self {
        let sink = self.queues.last().map(|queue| &queue.figures);
        let sink = sink.filter(|sink| sink.num_items > 0 || sink.starved != Some(0.0));
        self.consumer_waited = sink.and_then(|sink| sink.starved);
        self.samples_per_s = per_second(self.ledger.total.delivered, self.elapsed_s);
        self.sink_items = self.sink_items();
        for stage in &mut self.stages {
            stage.task = stage.task.clone().completed();
        }
        self
    }

    fn sink_items(&self) -> BTreeMap<String, f64> {
        let books = self.queues.iter().zip(&self.ledger.queues);
        let samples: Vec<f64> =
            books.map(|(queue, book)| book.taken as f64 / queue.figures.num_items.max(1) as f64).collect();
        let Some(of_sink) = samples.last().filter(|samples| **samples > 0.0) else { return BTreeMap::new() };
        let items = || samples.iter().map(|samples| samples / of_sink);
        if items().all(|items| (items - 1.0).abs() < 0.01) {
            return BTreeMap::new();
        }
        let queues = self.queues.iter().map(|queue| queue.id.clone()).zip(items());
        // A task takes an item of the queue before its stage.
        queues.chain(self.stages.iter().map(|stage| stage.id.clone()).zip(items())).collect()
    }
}

impl RunState {
    /// Whether the run is over.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped | Self::Interrupted)
    }

    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The word in JSON and in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl FailureClass {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The word in JSON and in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A run whose queues have given so many samples in so many items, and whose consumer waited this share of the time.
    fn completed(queues: &[(u64, u64)], starved: Option<f64>) -> RunSnapshot {
        let id = |place: usize| format!("{place}:queue");
        let figures = |(place, (_, items)): (usize, &(u64, u64))| json!({ "id": id(place), "label": "", "capacity": 1, "num_items": items, "elapsed_s": 8.0, "starved": starved });
        let book = |(place, (samples, _)): (usize, &(u64, u64))| json!({ "id": id(place), "put": samples, "taken": samples, "left": 0 });
        let task = json!({
            "num_tasks": 4, "num_failures": 0, "failed_samples": 0, "elapsed_s": 8.0, "busy_s": 2.0, "thread_wait_s": 0.0,
            "blocked_s": 2.0, "order_wait_s": 0.0, "idle_s": 4.0, "instances": 0
        });
        let stage = |place| {
            let id = format!("{place}:stage");
            json!({ "id": id, "name": "stage", "kind": "sleep", "label": "", "concurrency": 1, "task": task })
        };
        let total = json!({
            "made": 32, "delivered": 32, "dropped": 0, "skipped": 0, "dead_lettered": 0, "discarded": 0, "left": 0
        });
        let snapshot = json!({
            "id": "r", "name": "run", "state": "completed", "started_at": "", "elapsed_s": 8.0, "threads": 1,
            "modules": {}, "counters": {}, "failures": [], "failures_not_listed": 0,
            "stages": (1..queues.len() - 1).map(stage).collect::<Vec<_>>(),
            "queues": queues.iter().enumerate().map(figures).collect::<Vec<_>>(),
            "ledger": {
                "stages": [], "queues": queues.iter().enumerate().map(book).collect::<Vec<_>>(), "total": total,
                "balanced": true
            },
        });
        serde_json::from_value::<RunSnapshot>(snapshot).unwrap().completed()
    }

    #[test]
    fn the_consumer_waited_as_long_as_its_queue_was_starved() {
        assert_eq!(completed(&[(4, 4), (4, 4)], Some(0.375)).consumer_waited, Some(0.375));
        assert_eq!(completed(&[(4, 4), (4, 4)], Some(0.0)).consumer_waited, Some(0.0));
        assert_eq!(
            completed(&[(4, 4), (0, 0)], Some(0.25)).consumer_waited,
            Some(0.25),
            "it waits for the first item"
        );
        assert_eq!(completed(&[(4, 4), (0, 0)], Some(0.0)).consumer_waited, None, "it has not asked yet");
        assert_eq!(completed(&[(4, 4), (4, 4)], None).consumer_waited, None);
    }

    #[test]
    fn items_count_as_so_many_of_the_sink_by_the_samples_in_them() {
        // Single samples, batches of 8, parts of 2, and at the sink batches of 4 again.
        let found = completed(&[(32, 32), (32, 4), (32, 16), (32, 8)], None).sink_items;
        let expected = [
            ("0:queue", 0.25),
            ("1:queue", 2.0),
            ("1:stage", 0.25),
            ("2:queue", 0.5),
            ("2:stage", 2.0),
            ("3:queue", 1.0),
        ];
        assert_eq!(found, expected.map(|(id, items)| (id.to_owned(), items)).into());
        assert_eq!(
            completed(&[(32, 32), (30, 30), (24, 24)], None).sink_items,
            BTreeMap::new(),
            "all are alike"
        );
        assert_eq!(
            completed(&[(32, 32), (32, 4), (0, 0)], None).sink_items,
            BTreeMap::new(),
            "none has come"
        );
    }

    #[test]
    fn rates_and_shares_follow_from_what_was_counted() {
        let run = completed(&[(4, 4), (4, 4), (4, 4)], None);
        assert_eq!((run.samples_per_s, run.stages[0].task.tasks_per_s), (Some(4.0), Some(0.5)));
        let shares = run.stages[0].task.shares.unwrap();
        assert_eq!((shares.busy, shares.blocked, shares.idle, shares.thread_wait), (0.25, 0.25, 0.5, 0.0));
    }
}
