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
    pub const STAGE: [Self; 6] =
        [Self::AveTimeS, Self::TasksPerS, Self::FailuresPerS, Self::Busy, Self::ThreadWait, Self::Blocked];
    /// Those of queues.
    pub const QUEUE: [Self; 5] =
        [Self::Readiness, Self::Qps, Self::AveGetTimeS, Self::AvePutTimeS, Self::Starved];

    /// The word used in JSON and in addresses.
    pub fn name(self) -> &'static str {
        match self {
            Self::AveTimeS => "ave_time_s",
            Self::TasksPerS => "tasks_per_s",
            Self::FailuresPerS => "failures_per_s",
            Self::Busy => "busy",
            Self::ThreadWait => "thread_wait",
            Self::Blocked => "blocked",
            Self::Readiness => "readiness",
            Self::Qps => "qps",
            Self::AveGetTimeS => "ave_get_time_s",
            Self::AvePutTimeS => "ave_put_time_s",
            Self::Starved => "starved",
        }
    }

    /// The metric of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::STAGE.into_iter().chain(Self::QUEUE).find(|metric| metric.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_goes_by_one_name_everywhere() {
        for metric in Metric::STAGE.into_iter().chain(Metric::QUEUE) {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
            assert_eq!(Metric::named(metric.name()), Some(metric));
        }
        assert_eq!(Metric::named("Busy"), None);
    }
}
