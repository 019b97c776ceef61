use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A figure that is drawn over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Of a stage: mean time of the op alone over successful tasks, in seconds.
    AveTimeS,
    /// Of a stage: tasks completed per second, failed ones included.
    TasksPerS,
    /// Of a stage: tasks with a failed sample per second.
    FailuresPerS,
    /// Of a stage: share of its slots' time in which ops ran.
    Busy,
    /// Of a stage: share of its slots' time in which tasks waited for a worker thread.
    ThreadWait,
    /// Of a stage: share of its slots' time in which results waited for room in the next queue.
    Blocked,
    /// Of a stage: share of its slots' time in which tasks waited for permits of the store they read.
    PermitWait,
    /// Of a queue: share of time with at least one item in it.
    Readiness,
    /// Of a queue: items taken per second.
    Qps,
    /// Of a queue: mean time one get waited for an item, in seconds.
    AveGetTimeS,
    /// Of a queue: mean time one put waited for room, in seconds.
    AvePutTimeS,
    /// Of a queue: share of time with at least one get waiting.
    Starved,
}

impl Metric {
    /// Those of stages.
    pub const STAGE: [Self; 7] = [
        Self::AveTimeS,
        Self::TasksPerS,
        Self::FailuresPerS,
        Self::Busy,
        Self::ThreadWait,
        Self::Blocked,
        Self::PermitWait,
    ];
    /// Those of queues.
    pub const QUEUE: [Self; 5] =
        [Self::Readiness, Self::Qps, Self::AveGetTimeS, Self::AvePutTimeS, Self::Starved];
}
