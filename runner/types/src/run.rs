//! External view of a run: its state, figures, ledger and failures.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::ops::Deref;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::data_set::DataFields;
pub use crate::failure::{Disposition, FailureClass, FailureGroup, FailureRecord};
use crate::ledger::{Ledger, RunBook};
use crate::left_out::LeftOut;
use crate::machine::MachineFigures;
use crate::policy::StageKindName;
use crate::stats::{QueueFigures, StoreCacheFigures, TaskFigures, per_second};
use crate::tags::Tags;
use crate::tune::SettingChange;
use crate::verdict::{Verdict, VerdictKind, VerdictSpan};

/// Id of a run: the text of a UUID, which sorts after the ids of earlier runs.
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

/// State of one run at one moment. `snapshot.json`, the API and every page have this form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSnapshot {
    /// Unique id of the run.
    pub id: RunId,
    /// Name of the pipeline.
    pub name: String,
    /// Current or final state of the run.
    pub state: RunState,
    /// Reason of the failure; `null` unless the run failed.
    pub error: Option<String>,
    /// Start of the run, RFC 3339 in UTC.
    pub started_at: String,
    /// Time since the start, or from start to end, in seconds.
    pub elapsed_s: f64,
    /// Total number of samples that the source produces; `null` for an endless source and as long as the number is not known.
    pub expected: Option<u64>,
    /// Samples that the consumer took per second.
    #[serde(default)]
    pub samples_per_s: Option<f64>,
    /// Share of time in which the consumer waited for an item, 0.0 to 1.0; `null` until the consumer has waited or got an item.
    #[serde(default)]
    pub consumer_waited: Option<f64>,
    /// Number of sink items that have as many samples as one task of a stage or one item of a queue, by the id of the stage or
    /// queue. Empty before the first item, and if all items have the same number of samples.
    #[serde(default)]
    pub sink_items: BTreeMap<String, f64>,
    /// Worker threads that the run may use.
    pub threads: u32,
    /// Digest of the module that each WASM stage runs, by stage id.
    pub modules: BTreeMap<String, String>,
    /// Values of the modules' counters, by stage id and counter.
    pub counters: BTreeMap<String, BTreeMap<String, f64>>,
    /// Files written by the consumer `files`; `null` for any other consumer.
    pub files: Option<FilesRecord>,
    /// Labels of listed samples, by the id of the source; in a mixture, by the name of the source in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, LabelsRecord>,
    /// Fields of the samples of the source with their types, once they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<DataFields>,
    /// Things that the source did not take, by the id of the source; in a mixture, by the name of the source in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, Vec<LeftOut>>,
    /// Warnings about the data, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Figures of the data caches of stores, by the name of the store.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, StoreCacheFigures>,
    /// Copies of stages to devices, by stage id; a transfer that stays on the host has no entry.
    #[serde(default)]
    pub transfers: BTreeMap<String, TransferRecord>,
    /// The stages, first to last. Source and sink do no work and have queues only.
    pub stages: Vec<StageRecord>,
    /// The queues, first to last: at the exit of the source, of every stage, and of the sink.
    pub queues: Vec<QueueRecord>,
    /// Usage of process and machine since the start of the run; `null` where the system does not report it.
    pub machine: Option<MachineFigures>,
    /// Counts of all samples by outcome, for each stage and queue.
    pub ledger: Ledger,
    /// Samples that earlier runs have settled, by outcome, if this run continues them. A sample that they have left is made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<RunBook>,
    /// Limit of failures over all stages, in words; `null` where the run has none, even if stages have limits of their own.
    #[serde(default)]
    pub failure_limit: Option<String>,
    /// Failures, grouped by stage, class and message; most frequent first.
    pub failures: Vec<FailureGroup>,
    /// Number of failures in no group, because the number of groups is limited.
    pub failures_not_listed: u64,
    /// Limiting factor of the run so far; `null` for a run of an earlier version.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// Verdicts of windows, joined while the limit stays the same, oldest first, without gaps; the last one may still continue.
    /// At most the last hundred are kept.
    #[serde(default)]
    pub verdicts: Vec<VerdictSpan>,
    /// Changes of settings while the run went on, oldest first. A run has a thousand at most; after that, its settings stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<SettingChange>,
}

/// Summary of one run in a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Unique id of the run; ids of later runs sort after it.
    pub id: RunId,
    /// Name of the pipeline.
    pub name: String,
    /// Current or final state of the run.
    pub state: RunState,
    /// Reason of the failure; `null` unless the run failed.
    pub error: Option<String>,
    /// Time of submission, RFC 3339 in UTC.
    pub submitted_at: String,
    /// Start of the run; `null` before the start.
    pub started_at: Option<String>,
    /// End of the run; `null` before the end. If the server process died: the time at which the next server process found the
    /// run.
    pub ended_at: Option<String>,
    /// Time from start to end, or until now, in seconds; `null` before the start.
    pub elapsed_s: Option<f64>,
    /// Worker threads that are reserved for the run.
    pub threads: u32,
    /// Memory that is reserved for the run, in MiB.
    pub memory_mib: u64,
    /// Samples that the consumer has taken; `null` before the start.
    pub samples: Option<u64>,
    /// Total number of samples that the source produces; `null` for an endless source and as long as the number is not known.
    pub expected: Option<u64>,
    /// Number of samples that failed.
    pub failed_samples: u64,
    /// Readiness of the sink queue over the whole run.
    pub readiness: Option<f64>,
    /// Mean time that the consumer waited for an item, in seconds.
    pub wait_s: Option<f64>,
    /// Items that the consumer took per second.
    pub qps: Option<f64>,
    /// Samples that the consumer took per second.
    pub samples_per_s: Option<f64>,
    /// Kind of the verdict on the whole run; `null` before it started.
    pub verdict: Option<VerdictKind>,
    /// Id of the stage or source that the verdict names; `null` where it names none.
    pub verdict_stage: Option<String>,
    /// Tags of the run; `PUT /runs/{id}/tags` replaces them.
    #[serde(default)]
    pub tags: Tags,
    /// Modules of the run, `name@version`, in the order of its stages.
    pub modules: Vec<String>,
}

/// One run with all its details.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunDetail {
    /// Same fields as in the list of runs.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Resource that a queued run waits for, with the figures; `null` for a run that does not wait.
    pub waiting: Option<String>,
    /// Figures of the run; `null` before the start.
    pub snapshot: Option<RunSnapshot>,
    /// Run whose document this run repeats; `null` if there is none.
    pub cloned_from: Option<RunId>,
    /// Run that this run continues; `null` if there is none.
    pub resumes: Option<RunId>,
    /// True if the run has ended before all samples were settled, and another run can continue it.
    pub resumable: bool,
    /// Reason why the stored history of the run is incomplete; `null` while it is complete.
    pub history: Option<String>,
    /// Failed samples that are counted in the figures but not stored one by one.
    pub errors_left_out: u64,
    /// Number of log lines that were deleted.
    pub logs_left_out: u64,
}

/// One failed sample of a run, with the input of the stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunError {
    /// Number within the run, from 1.
    pub number: u64,
    /// Stage, sample and cause of the failure.
    #[serde(flatten)]
    pub failure: FailureRecord,
    /// Time of the failure, in seconds since the start of the run.
    pub at_s: f64,
    /// First bytes of the fields that came into the stage; `null` when the sample had no fields.
    pub payload: Option<Vec<PayloadField>>,
}

/// Summary of one field of a failed sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PayloadField {
    /// Name of the field.
    pub name: String,
    /// Type of the value, e.g. `bytes`, `text` or `tensor uint8 [3, 224, 224]`.
    pub kind: String,
    /// Size of the value, in bytes.
    pub size_bytes: u64,
    /// Beginning of the value: printable text for texts and numbers; otherwise the first 64 bytes in hexadecimal.
    pub head: String,
}

/// Current or final state of a run.
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
    /// Waits for threads and memory of the budget.
    #[default]
    Queued,
    /// The source still produces samples.
    Running,
    /// The source has ended; samples in the pipeline are still delivered.
    Draining,
    /// All data was delivered, or the requested time is over.
    Completed,
    /// Ended early with an error.
    Failed,
    /// Stopped by a user or a client.
    Stopped,
    /// Cut off, because the server process died.
    Interrupted,
}

/// Counts of batch files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesRecord {
    /// Number of files written by this run.
    pub written: u64,
    /// Number of files left unchanged, because an earlier run of the same pipeline had written them.
    pub already_there: u64,
}

/// Labels of the samples of a source, once they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabelsRecord {
    /// Names of the class folders in the order of their numbers, from 0: the first thousand, or 64 KiB. Empty without classes.
    pub classes: Vec<String>,
    /// Number of class folders.
    pub class_count: u64,
    /// Number of listed keys that lie in no class folder. They are left out.
    pub without_class: u64,
    /// Number of listed keys that the table of labels lacks. They are left out.
    pub without_label: u64,
    /// Number of keys in the table of labels that are not listed.
    pub unused: u64,
    /// First keys in the table that are not listed.
    pub unused_keys: Vec<String>,
}

/// Copies of one stage to a device, and its waiting times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransferRecord {
    /// Name of the device, e.g. `cuda:0`.
    pub device: String,
    /// Number of batches that have arrived on the device.
    pub batches: u64,
    /// Size of the batches that have arrived on the device, in bytes.
    pub bytes: u64,
    /// Part of `bytes` that first had to be copied into memory that the device can read.
    pub staged_bytes: u64,
    /// Time that the device spent copying, in seconds by its own clock.
    pub copy_s: f64,
    /// Bytes per second while copying; `null` before the first batch.
    pub bytes_per_s: Option<f64>,
    /// Mean time that a batch waited for a slot on the device, in seconds: until the consumer released another batch.
    pub ave_slot_wait_s: Option<f64>,
    /// Mean time that a batch with a slot waited for the device, in seconds: for earlier batches, and for consumers to finish
    /// reading the previous contents of the slot.
    pub ave_device_wait_s: Option<f64>,
    /// Number of batch slots on the device now, used or not.
    pub slots: u32,
    /// Activity of the device within the last second, for all processes together; `null` where it is not observed.
    #[serde(default)]
    pub gpu: Option<GpuRecord>,
}

/// State of a GPU at one moment; each value is `null` where the device does not report it, as in many virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuRecord {
    /// Share of the driver's last sampling period in which any kernel ran, 0.0 to 1.0. Copies do not count.
    pub utilisation: Option<f64>,
    /// Device memory in use, in bytes.
    pub used_bytes: Option<u64>,
    /// Total device memory, in bytes.
    pub total_bytes: Option<u64>,
    /// Bytes per second that the GPU receives over PCI Express.
    pub received_bytes_per_s: Option<u64>,
    /// Bytes per second that the GPU sends over PCI Express.
    pub sent_bytes_per_s: Option<u64>,
}

/// One stage and the figures of its tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRecord {
    /// Position and name, e.g. `2:download`.
    pub id: String,
    /// Name without the position.
    pub name: String,
    /// Kind of the stage, as in the document.
    pub kind: StageKindName,
    /// Text for display, e.g. `[2:download[12]]`.
    pub label: String,
    /// Number of tasks that may run at a time.
    pub concurrency: u32,
    /// Figures of the stage's tasks.
    pub task: TaskFigures,
}

/// One queue and its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueRecord {
    /// Id of the stage in front of the queue, followed by `_queue`, e.g. `2:download_queue`.
    pub id: String,
    /// Text for display, e.g. `[2:download[12]_queue]`.
    pub label: String,
    /// Figures of the queue.
    #[serde(flatten)]
    pub figures: QueueFigures,
}

/// One measuring interval: a line of `windows.ndjson`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// Start of the interval, in seconds since the start of the run.
    pub t0_s: f64,
    /// End of the interval, in seconds since the start of the run. The last interval may be shorter than the others.
    pub t1_s: f64,
    /// Stages with their figures for the interval.
    pub stages: Vec<StageRecord>,
    /// Queues with their figures for the interval.
    pub queues: Vec<QueueRecord>,
    /// Usage of process and machine in the interval; `null` where it is not known.
    pub machine: Option<MachineFigures>,
}

impl RunSnapshot {
    /// Computes figures that earlier versions did not store from the stored ones.
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
        // A task takes one item from the queue before its stage, so it matches as many sink items as one item of that queue.
        queues.chain(self.stages.iter().map(|stage| stage.id.clone()).zip(items())).collect()
    }
}

impl RunState {
    /// True once the run has ended.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped | Self::Interrupted)
    }

    /// All variants, in order.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Name of the state in JSON and in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Snapshot of a run with these (samples, items) per queue and this share of time in which the consumer waited.
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
        assert_eq!(
            completed(&[(4, 4), (0, 0)], Some(0.0)).consumer_waited,
            None,
            "the consumer has not started"
        );
        assert_eq!(completed(&[(4, 4), (4, 4)], None).consumer_waited, None);
    }

    #[test]
    fn an_item_counts_as_items_of_the_sink_by_its_number_of_samples() {
        // The queues hold single samples, batches of 8, batches of 2, and, at the sink, batches of 4.
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
            "items of equal size"
        );
        assert_eq!(
            completed(&[(32, 32), (32, 4), (0, 0)], None).sink_items,
            BTreeMap::new(),
            "no item taken"
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
