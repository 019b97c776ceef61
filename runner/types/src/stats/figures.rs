use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stage::SLOT_STATES;
use super::tick::nanos_to_seconds;

/// What the tasks of one stage did in a stretch of time. A task is one call of the stage on one item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskFigures {
    /// Tasks completed, failed ones included. For `aggregate` every item that came in is a task. The end of an epoch is one for a
    /// stateful module that fails at it.
    pub num_tasks: u64,
    /// Tasks with at least one failed sample.
    pub num_failures: u64,
    /// Samples that failed; more than `num_failures` where tasks work on batches.
    pub failed_samples: u64,
    /// Measured time, in seconds.
    pub elapsed_s: f64,
    /// Mean time of the op alone over successful tasks, in seconds, without waiting for a thread or for permits.
    pub ave_time_s: Option<f64>,
    /// Half of the successful ops took no longer, in seconds.
    pub p50_time_s: Option<f64>,
    /// 90 % of the successful ops took no longer, in seconds.
    pub p90_time_s: Option<f64>,
    /// 99 % of the successful ops took no longer, in seconds.
    pub p99_time_s: Option<f64>,
    /// The longest successful op, in seconds.
    pub max_time_s: Option<f64>,
    /// Mean time a task waited for a free worker thread, in seconds; `null` for stages that need none.
    pub ave_thread_wait_s: Option<f64>,
    /// CPU time of the ops on worker threads, in seconds, known to about a millisecond; `null` for stages that need none. Less
    /// than `busy_s` where ops waited: for a core, or because they sleep.
    pub cpu_s: Option<f64>,
    /// Tasks completed per second, failed ones included.
    #[serde(default)]
    pub tasks_per_s: Option<f64>,
    /// Slot-seconds in which ops ran. The six slot times add up to concurrency x elapsed.
    pub busy_s: f64,
    /// Slot-seconds in which tasks waited for a free worker thread.
    pub thread_wait_s: f64,
    /// Slot-seconds in which tasks waited for permits of the store they read, and none of their reads had one. 0 in runs of
    /// earlier versions, which counted them as busy.
    #[serde(default)]
    pub permit_wait_s: f64,
    /// Slot-seconds in which results waited for room in the next queue.
    pub blocked_s: f64,
    /// Slot-seconds in which results waited for their turn in the input order.
    pub order_wait_s: f64,
    /// Slot-seconds without a task.
    pub idle_s: f64,
    /// The six slot times as shares of all of it; `null` where nothing was measured.
    #[serde(default)]
    pub shares: Option<SlotShares>,
    /// Instances of the op made in this time: one for each worker thread that ran it, and one for each that was
    /// replaced.
    pub instances: u64,
}

/// Shares of a stage's slot time, 0.0 to 1.0; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlotShares {
    /// An op ran.
    pub busy: f64,
    /// A task waited for a free worker thread.
    pub thread_wait: f64,
    /// A task waited for permits of the store it reads, and none of its reads had one.
    #[serde(default)]
    pub permit_wait: f64,
    /// A result waited for room in the next queue.
    pub blocked: f64,
    /// A result waited for its turn in the input order.
    pub order_wait: f64,
    /// No task.
    pub idle: f64,
}

impl SlotShares {
    /// The shares of slot times in the order of [`super::Slot`] and in any unit; `None` when all of them are zero.
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

    /// The same figures with those that earlier versions did not store.
    pub(crate) fn completed(mut self) -> Self {
        let times = [
            self.idle_s,
            self.thread_wait_s,
            self.permit_wait_s,
            self.busy_s,
            self.order_wait_s,
            self.blocked_s,
        ];
        self.shares = SlotShares::of(times);
        self.tasks_per_s = per_second(self.num_tasks, self.elapsed_s);
        self
    }
}

/// What one queue did in a stretch of time. The queue at the exit of a stage is read by the next stage; the sink's by the
/// consumer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueFigures {
    /// How many items it may hold.
    pub capacity: usize,
    /// Items taken.
    pub num_items: u64,
    /// Measured time, in seconds: until the end of the stretch, or until the writer had closed and nothing was left.
    pub elapsed_s: f64,
    /// Items taken per second.
    pub qps: Option<f64>,
    /// Mean time one put waited for room, in seconds. The waits of several producers overlap, so their sum may exceed
    /// the measured time.
    pub ave_put_time_s: Option<f64>,
    /// Mean time one get waited for an item, in seconds.
    pub ave_get_time_s: Option<f64>,
    /// 90 % of the puts waited no longer, in seconds.
    pub p90_put_time_s: Option<f64>,
    /// 99 % of the puts waited no longer, in seconds.
    pub p99_put_time_s: Option<f64>,
    /// 90 % of the gets waited no longer, in seconds.
    pub p90_get_time_s: Option<f64>,
    /// 99 % of the gets waited no longer, in seconds.
    pub p99_get_time_s: Option<f64>,
    /// 1 - d_empty / d_measure: the share of time with at least one item in the queue, 0.0 to 1.0.
    pub readiness: Option<f64>,
    /// Share of time with at least one get waiting, 0.0 to 1.0.
    pub starved: Option<f64>,
}

/// Mean of `total` nanoseconds over `count` calls, in seconds; `None` for no calls.
pub(super) fn mean_s(total: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| nanos_to_seconds(total) / count as f64)
}

/// `count` per second over `seconds`; `None` for no time.
pub fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

/// `part` of `whole`; `None` for an empty whole.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
