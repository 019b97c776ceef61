use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A figure of a stage or queue over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Stage: mean time of the op alone over successful tasks, in seconds.
    AveTimeS,
    /// Stage: tasks completed per second, including failed ones.
    TasksPerS,
    /// Stage: tasks with a failed sample per second.
    FailuresPerS,
    /// Stage: share of its slots' time in which ops ran, 0.0 to 1.0.
    Busy,
    /// Stage: share of its slots' time in which tasks waited for a worker thread, 0.0 to 1.0.
    ThreadWait,
    /// Stage: share of its slots' time in which results waited for room in the next queue, 0.0 to 1.0.
    Blocked,
    /// Stage: share of its slots' time in which tasks waited for permits of the store they read, 0.0 to 1.0.
    PermitWait,
    /// Queue: share of time with at least one item in it, 0.0 to 1.0.
    Readiness,
    /// Queue: items taken per second.
    Qps,
    /// Queue: mean time that one get waited for an item, in seconds.
    AveGetTimeS,
    /// Queue: mean time that one put waited for room, in seconds.
    AvePutTimeS,
    /// Queue: share of time with at least one get waiting, 0.0 to 1.0.
    Starved,
}

impl Metric {
    /// Metrics of stages, in the order of stored rows.
    pub const STAGE: [Self; 7] = [
        Self::AveTimeS,
        Self::TasksPerS,
        Self::FailuresPerS,
        Self::Busy,
        Self::ThreadWait,
        Self::Blocked,
        Self::PermitWait,
    ];
    /// Metrics of queues, in the order of stored rows.
    pub const QUEUE: [Self; 5] =
        [Self::Readiness, Self::Qps, Self::AveGetTimeS, Self::AvePutTimeS, Self::Starved];
}
