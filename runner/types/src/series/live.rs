use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::Metric;
use crate::run::{RunId, RunState};
use crate::stats::Histogram;
use crate::verdict::VerdictSpan;

/// Activity of a run in the last 250 ms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveSample {
    /// Id of the run.
    pub run: RunId,
    /// Start of the interval, in seconds since the start of the run.
    pub t0_s: f64,
    /// End of the interval, in seconds since the start of the run.
    pub t1_s: f64,
    /// State of the run at the end of the interval.
    pub state: RunState,
    /// Figures by the id of their stage or queue; `null` where nothing was measured.
    pub values: BTreeMap<String, BTreeMap<Metric, Option<f64>>>,
    /// Samples that the consumer had taken by the end of the interval.
    pub samples: u64,
    /// Samples that had failed by the end of the interval.
    pub failed_samples: u64,
    /// Total number of samples that the source produces; `null` for an endless source and as long as the number is not known.
    pub expected: Option<u64>,
    /// Number of items in each queue at the end of the interval, by the id of the queue.
    pub occupancy: BTreeMap<String, u64>,
    /// Current limiting factor of the run, and the period in which it has held.
    pub verdict: Option<VerdictSpan>,
}

/// Distribution of the times of a stage's successful ops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskTimes {
    /// Total number of ops.
    #[serde(default)]
    pub count: u64,
    /// Number of ops by duration, shortest first; empty buckets are left out.
    pub buckets: Vec<TimeBucket>,
    /// Median time, in seconds.
    pub p50_s: Option<f64>,
    /// 90th percentile of the times, in seconds.
    pub p90_s: Option<f64>,
    /// 99th percentile of the times, in seconds.
    pub p99_s: Option<f64>,
    /// Longest time, in seconds.
    pub max_s: Option<f64>,
}

/// Number of ops whose durations are within one range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeBucket {
    /// Lower bound of the durations, inclusive, in seconds.
    pub from_s: f64,
    /// Upper bound of the durations, exclusive, in seconds.
    pub to_s: f64,
    /// Number of ops in the bucket.
    pub count: u64,
    /// Share of all ops, 0.0 to 1.0.
    #[serde(default)]
    pub share: f64,
}

/// Restores the counts; the exact durations within a bucket are lost.
impl From<&TaskTimes> for Histogram {
    fn from(times: &TaskTimes) -> Self {
        let nanos = |seconds: f64| (seconds * 1e9).round() as u64;
        let buckets =
            times.buckets.iter().map(|bucket| (Self::bucket_of(nanos(bucket.from_s)), bucket.count));
        Self::of_buckets(buckets, times.max_s.map_or(0, nanos)).unwrap_or_default()
    }
}

impl From<&Histogram> for TaskTimes {
    fn from(times: &Histogram) -> Self {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let bucket = |(bucket, count)| {
            let (from, to) = Histogram::bounds(bucket);
            TimeBucket {
                from_s: seconds(from),
                to_s: seconds(to),
                count,
                share: count as f64 / times.count() as f64,
            }
        };
        Self {
            count: times.count(),
            buckets: times.buckets().map(bucket).collect(),
            p50_s: times.quantile_s(0.50),
            p90_s: times.quantile_s(0.90),
            p99_s: times.quantile_s(0.99),
            max_s: times.longest_s(),
        }
    }
}
