use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::times::Timed;

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
    /// Stage: median time of the op alone over successful tasks, in seconds.
    P50TimeS,
    /// Stage: 99th percentile of the time of the op alone over successful tasks, in seconds.
    P99TimeS,
    /// Queue: median time that one get waited for an item, in seconds.
    P50GetTimeS,
    /// Queue: 99th percentile of the time that one get waited for an item, in seconds.
    P99GetTimeS,
    /// Queue: median time that one put waited for room, in seconds.
    P50PutTimeS,
    /// Queue: 99th percentile of the time that one put waited for room, in seconds.
    P99PutTimeS,
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
    /// Percentiles of stages: rows have histograms for them instead of sums, and no spreads.
    pub const STAGE_TIMES: [Self; 2] = [Self::P50TimeS, Self::P99TimeS];
    /// Percentiles of queues: rows have histograms for them instead of sums, and no spreads.
    pub const QUEUE_TIMES: [Self; 4] =
        [Self::P50GetTimeS, Self::P99GetTimeS, Self::P50PutTimeS, Self::P99PutTimeS];

    /// Durations and quantile from which a metric of [`Self::STAGE_TIMES`] or [`Self::QUEUE_TIMES`] is computed for the stage or
    /// queue with the index `place`; `None` for any other metric.
    pub fn quantile_of(self, place: usize) -> Option<(Timed, f64)> {
        match self {
            Self::P50TimeS => Some((Timed::Tasks(place), 0.50)),
            Self::P99TimeS => Some((Timed::Tasks(place), 0.99)),
            Self::P50GetTimeS => Some((Timed::Gets(place), 0.50)),
            Self::P99GetTimeS => Some((Timed::Gets(place), 0.99)),
            Self::P50PutTimeS => Some((Timed::Puts(place), 0.50)),
            Self::P99PutTimeS => Some((Timed::Puts(place), 0.99)),
            _ => None,
        }
    }
}
