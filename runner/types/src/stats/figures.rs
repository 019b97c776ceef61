use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stage::SLOT_STATES;
use super::tick::nanos_to_seconds;

/// Figures of the tasks of one stage over an interval. A task is one call of the stage on one item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskFigures {
    /// Tasks completed, including failed ones. For `aggregate`, every input item is a task. If a stateful module fails at the end
    /// of an epoch, that end counts as a task.
    pub num_tasks: u64,
    /// Tasks with at least one failed sample.
    pub num_failures: u64,
    /// Samples that failed; more than `num_failures` where tasks work on batches.
    pub failed_samples: u64,
    /// Length of the measured time, in seconds.
    pub elapsed_s: f64,
    /// Mean time of the op alone over successful tasks, in seconds; excludes waiting for a thread or for permits.
    pub ave_time_s: Option<f64>,
    /// Median time of the successful ops, in seconds.
    pub p50_time_s: Option<f64>,
    /// 90th percentile of the times of successful ops, in seconds.
    pub p90_time_s: Option<f64>,
    /// 99th percentile of the times of successful ops, in seconds.
    pub p99_time_s: Option<f64>,
    /// Time of the longest successful op, in seconds.
    pub max_time_s: Option<f64>,
    /// Mean time a task waited for a free worker thread, in seconds; `null` for stages that need none.
    pub ave_thread_wait_s: Option<f64>,
    /// CPU time of the ops on worker threads, in seconds, accurate to about a millisecond; `null` for stages that need none. Less
    /// than `busy_s` where ops waited for a core or slept.
    pub cpu_s: Option<f64>,
    /// Tasks completed per second, failed ones included.
    #[serde(default)]
    pub tasks_per_s: Option<f64>,
    /// Slot-seconds in which ops ran. The six slot times add up to concurrency x elapsed.
    pub busy_s: f64,
    /// Slot-seconds in which tasks waited for a free worker thread.
    pub thread_wait_s: f64,
    /// Slot-seconds in which tasks waited for permits of the store they read, and none of their reads had one. 0 in runs of
    /// earlier versions, which counted this time as busy.
    #[serde(default)]
    pub permit_wait_s: f64,
    /// Slot-seconds in which results waited for room in the next queue.
    pub blocked_s: f64,
    /// Slot-seconds in which results waited for earlier results, to keep the input order.
    pub order_wait_s: f64,
    /// Slot-seconds without a task.
    pub idle_s: f64,
    /// Slot times as shares of their sum; `null` where nothing was measured.
    #[serde(default)]
    pub shares: Option<SlotShares>,
    /// Number of instances of the op created in the measured time: one for each worker thread that ran it, and one for each
    /// replacement.
    pub instances: u64,
}

/// Shares of a stage's slot time, 0.0 to 1.0; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlotShares {
    /// Share of slot time in which an op ran.
    pub busy: f64,
    /// Share of slot time in which a task waited for a free worker thread.
    pub thread_wait: f64,
    /// Share of slot time in which a task waited for permits of the store it reads, and none of its reads had one.
    #[serde(default)]
    pub permit_wait: f64,
    /// Share of slot time in which a result waited for room in the next queue.
    pub blocked: f64,
    /// Share of slot time in which a result waited for earlier results, to keep the input order.
    pub order_wait: f64,
    /// Share of slot time without a task.
    pub idle: f64,
}

impl SlotShares {
    /// Converts slot times in the order of [`super::Slot`], in any unit, to shares; `None` when all of them are zero.
    pub(crate) fn of(times: [f64; SLOT_STATES]) -> Option<Self> {
        let all: f64 = times.iter().sum();
        let [idle, thread_wait, permit_wait, busy, order_wait, blocked] = times.map(|time| time / all);
        (all > 0.0).then_some(Self { busy, thread_wait, permit_wait, blocked, order_wait, idle })
    }
}

impl TaskFigures {
    /// Share of the ops' time in which they had a core; `None` for stages without worker threads and before the first op.
    pub fn core_share(&self) -> Option<f64> {
        self.cpu_s.filter(|_| self.busy_s > 0.0).map(|cpu_s| cpu_s / self.busy_s)
    }

    /// Adds the figures that earlier versions did not store.
    pub(crate) fn completed(mut self) -> Self {
        let Self { idle_s, thread_wait_s, permit_wait_s, busy_s, order_wait_s, blocked_s, .. } = self;
        self.shares = SlotShares::of([idle_s, thread_wait_s, permit_wait_s, busy_s, order_wait_s, blocked_s]);
        self.tasks_per_s = per_second(self.num_tasks, self.elapsed_s);
        self
    }
}

/// Figures of one queue over an interval. The queue behind a stage is read by the next stage; the queue behind the sink, by the
/// consumer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueFigures {
    /// Maximum number of items in the queue.
    pub capacity: usize,
    /// Number of items taken.
    pub num_items: u64,
    /// Length of the measured time, in seconds: until the end of the interval, or until the writer had closed and the queue was
    /// empty.
    pub elapsed_s: f64,
    /// Items taken per second.
    pub qps: Option<f64>,
    /// Mean time that one put waited for room, in seconds. The waits of several producers overlap, so their sum may exceed the
    /// measured time.
    pub ave_put_time_s: Option<f64>,
    /// Mean time that one get waited for an item, in seconds.
    pub ave_get_time_s: Option<f64>,
    /// 90th percentile of the waits of puts, in seconds.
    pub p90_put_time_s: Option<f64>,
    /// 99th percentile of the waits of puts, in seconds.
    pub p99_put_time_s: Option<f64>,
    /// 90th percentile of the waits of gets, in seconds.
    pub p90_get_time_s: Option<f64>,
    /// 99th percentile of the waits of gets, in seconds.
    pub p99_get_time_s: Option<f64>,
    /// Share of time with at least one item in the queue, 0.0 to 1.0.
    pub readiness: Option<f64>,
    /// Share of time with at least one get waiting, 0.0 to 1.0.
    pub starved: Option<f64>,
}

/// Mean of `total` nanoseconds over `count` calls, in seconds; `None` for no calls.
pub(super) fn mean_s(total: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| nanos_to_seconds(total) / count as f64)
}

/// Rate of `count` over `seconds`, per second; `None` for a time of 0.
pub fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

/// Share of `part` in `whole`; `None` when `whole` is 0.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
