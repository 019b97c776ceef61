use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metric::Metric;
use crate::run::{RunId, RunState};
use crate::stats::Histogram;
use crate::verdict::VerdictSpan;

/// What a run did in the last quarter of a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveSample {
    /// Id of the run.
    pub run: RunId,
    /// Its begin, in seconds since the run's start.
    pub t0_s: f64,
    /// Its end, in seconds since the run's start.
    pub t1_s: f64,
    /// What the run was doing at its end.
    pub state: RunState,
    /// Figures by the id of their stage or queue; `null` where nothing was measured.
    pub values: BTreeMap<String, BTreeMap<Metric, Option<f64>>>,
    /// Samples that the consumer had taken by then.
    pub samples: u64,
    /// Samples that had failed by then.
    pub failed_samples: u64,
    /// How many samples the source makes in all; `null` as long as it does not know, or when there is no end.
    pub expected: Option<u64>,
    /// Items in each queue at its end, by the queue's id.
    pub occupancy: BTreeMap<String, u64>,
    /// What limits the run now, and since when.
    pub verdict: Option<VerdictSpan>,
}

/// How long the successful ops of a stage took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskTimes {
    /// All of them.
    #[serde(default)]
    pub count: u64,
    /// Counts by length, shortest first; lengths that never came are left out.
    pub buckets: Vec<TimeBucket>,
    /// Half of them took no longer, in seconds.
    pub p50_s: Option<f64>,
    /// 90 % of them took no longer, in seconds.
    pub p90_s: Option<f64>,
    /// 99 % of them took no longer, in seconds.
    pub p99_s: Option<f64>,
    /// The longest, in seconds.
    pub max_s: Option<f64>,
}

/// Ops of about the same length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeBucket {
    /// They took at least this long, in seconds.
    pub from_s: f64,
    /// They took less than this, in seconds.
    pub to_s: f64,
    /// Number of ops.
    pub count: u64,
    /// Share of all ops, 0.0 to 1.0.
    #[serde(default)]
    pub share: f64,
}

/// The same counts as before; within a bucket nothing is known any more.
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
