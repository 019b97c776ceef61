use super::figures::{SlotShares, TaskFigures, mean_s, per_second};
use super::histogram::Histogram;
use super::sums::sums;
use super::tick::{Tick, nanos_to_seconds};

/// State of one slot of a stage. A stage has as many slots as its concurrency, and one for each task above it after it was lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The slot has no task.
    Idle,
    /// A task waits for a free worker thread, or its worker runs another job of the same batch.
    ThreadWait,
    /// The op waits for permits of a store and has none.
    PermitWait,
    /// The op of the task runs.
    Busy,
    /// The result waits for earlier results, to keep the input order.
    OrderWait,
    /// The result waits for room in the queue after the stage.
    Blocked,
}

pub(super) const SLOT_STATES: usize = 6;

/// Measures one stage. The caller reports every change of a slot's state and the end of every task; the meter never reads a
/// clock.
#[derive(Clone, Debug, Default)]
pub struct StageMeter {
    row: TaskRow,
    /// Op times since the last reading.
    op_times: Histogram,
    slots: [u32; SLOT_STATES],
    read_at: Tick,
    closed: bool,
    off: bool,
}

/// Sums of one stage over an interval, with the lengths of its ops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSums {
    /// Sums without the distribution of op times.
    pub row: TaskRow,
    /// Distribution of the op times of successful tasks.
    pub op_times: Histogram,
}

sums! {
    /// Sums of one stage over an interval. All lengths in nanoseconds.
    TaskRow {
        /// Length of the measured time.
        elapsed,
        /// Tasks completed, including failed ones.
        tasks,
        /// Tasks with at least one failed sample.
        failures,
        /// Number of samples that failed.
        failed_samples,
        /// Ops that began on a worker thread.
        thread_starts,
        /// Number of instances of the op that were created.
        instances,
        /// Op times of successful tasks, excluding waits for a thread.
        op_time,
        /// Number of op times in `op_time`.
        op_count,
        /// CPU time of the ops of all tasks on worker threads.
        cpu_time,
        /// Slot time without a task.
        idle,
        /// Slot time of tasks that waited for a worker thread.
        thread_wait,
        /// Slot time in which ops ran.
        busy,
        /// Slot time of results that waited for earlier results, to keep the input order.
        order_wait,
        /// Slot time of results that waited for room in the next queue.
        blocked,
        /// Slot time of tasks with no permit of the store for any of their reads.
        permit_wait,
        /// Instances that were created to replace broken ones; also counted in `instances`.
        replaced,
    }
}

impl StageMeter {
    /// Creates the meter of a stage with `concurrency` idle slots.
    pub fn starting_at(now: Tick, concurrency: usize) -> Self {
        let mut slots = [0; SLOT_STATES];
        slots[Slot::Idle as usize] = u32::try_from(concurrency).unwrap_or(u32::MAX);
        Self { slots, read_at: now, ..Self::default() }
    }

    /// Creates a meter for benchmarks of the cost of measuring. It only counts, which failure limits require.
    pub fn off() -> Self {
        Self { off: true, ..Self::starting_at(Tick::ZERO, 0) }
    }

    /// Records that one slot changes its state from `from` to `to`.
    #[inline]
    pub fn on_slot(&mut self, now: Tick, from: Slot, to: Slot) {
        if !self.advance(now) {
            return;
        }
        self.slots[from as usize] -= 1;
        self.slots[to as usize] += 1;
        if from == Slot::ThreadWait {
            self.row.thread_starts += 1;
        }
    }

    /// Sets the number of idle slots after the concurrency of the stage has changed, or a slot above it has ended. Slot times before
    /// `now` are those of the slots before, so that figures of an interval are right for the concurrency that held in each part of it.
    pub fn on_resize(&mut self, now: Tick, idle: usize) {
        if !self.advance(now) {
            return;
        }
        self.slots[Slot::Idle as usize] = u32::try_from(idle).unwrap_or(u32::MAX);
    }

    /// Records the end of a task. `op_nanos` is the time of the op alone; `None` where no op is measured.
    #[inline]
    pub fn on_task(&mut self, op_nanos: Option<u64>, failed_samples: u64) {
        self.row.tasks += 1;
        if failed_samples > 0 {
            self.row.failures += 1;
            self.row.failed_samples += failed_samples;
        } else if let Some(op_nanos) = op_nanos.filter(|_| !self.off) {
            self.row.op_time += op_nanos;
            self.row.op_count += 1;
            self.op_times.record(op_nanos);
        }
    }

    /// Records the CPU time that an op on a worker thread used.
    #[inline]
    pub fn on_cpu(&mut self, nanos: u64) {
        self.row.cpu_time += nanos;
    }

    /// Records that instances of the op were created.
    #[inline]
    pub fn on_instances(&mut self, made: u64) {
        self.row.instances += made;
    }

    /// Records that instances of the op were created to replace broken ones.
    #[inline]
    pub fn on_replaced(&mut self, made: u64) {
        self.row.replaced += made;
    }

    /// Stops the measurement: the stage has passed on its last item.
    pub fn on_closed(&mut self, now: Tick) {
        if !self.advance(now) {
            return;
        }
        self.closed = true;
    }

    /// Number of completed tasks so far, and number of completed tasks with a failed sample.
    pub fn tasks(&self) -> (u64, u64) {
        (self.row.tasks, self.row.failures)
    }

    /// Copies the sums up to `now`, including open intervals, into `recent`, and swaps the op times recorded since the last reading
    /// with the empty histogram in `recent`. [`TaskSums::add`] completes the reading.
    pub fn read(&mut self, now: Tick, recent: &mut TaskSums) {
        self.advance(now);
        recent.row = self.row;
        std::mem::swap(&mut self.op_times, &mut recent.op_times);
    }

    /// Adds the time up to `now`; false for a meter that measures nothing.
    #[inline]
    fn advance(&mut self, now: Tick) -> bool {
        if self.off {
            return false;
        }
        let passed = now - self.read_at;
        self.read_at = self.read_at.max(now);
        if !self.closed && passed > 0 {
            let sums = &mut self.row;
            sums.elapsed += passed;
            let [idle, thread_wait, permit_wait, busy, order_wait, blocked] =
                self.slots.map(|slots| passed * u64::from(slots));
            sums.idle += idle;
            sums.thread_wait += thread_wait;
            sums.permit_wait += permit_wait;
            sums.busy += busy;
            sums.order_wait += order_wait;
            sums.blocked += blocked;
        }
        true
    }
}

impl TaskSums {
    /// Adds the sums of another interval.
    pub fn merge(&mut self, other: &Self) {
        self.row.merge(&other.row);
        self.op_times.merge(&other.op_times);
    }

    /// Adds the next reading of the same meter. Afterwards, `recent` has an empty histogram for the reading after it.
    pub fn add(&mut self, recent: &mut Self) {
        self.row = recent.row;
        self.op_times.take_from(&mut recent.op_times);
    }

    /// Difference to `earlier`, an earlier reading of the same stage.
    pub fn since(&self, earlier: &Self) -> Self {
        Self { row: self.row.since(&earlier.row), op_times: self.op_times.since(&earlier.op_times) }
    }

    /// Computes the figures for users.
    pub fn figures(&self) -> TaskFigures {
        TaskFigures {
            p50_time_s: self.op_times.quantile_s(0.50),
            p90_time_s: self.op_times.quantile_s(0.90),
            p99_time_s: self.op_times.quantile_s(0.99),
            max_time_s: self.op_times.longest_s(),
            ..self.row.figures()
        }
    }
}

impl TaskRow {
    /// Slot times in the order of [`Slot`].
    pub fn slot_times(&self) -> [u64; SLOT_STATES] {
        [self.idle, self.thread_wait, self.permit_wait, self.busy, self.order_wait, self.blocked]
    }

    /// Computes the figures for users, without percentiles, which need a histogram.
    pub fn figures(&self) -> TaskFigures {
        let slots_s = self.slot_times().map(nanos_to_seconds);
        let [idle_s, thread_wait_s, permit_wait_s, busy_s, order_wait_s, blocked_s] = slots_s;
        let elapsed_s = nanos_to_seconds(self.elapsed);
        TaskFigures {
            num_tasks: self.tasks,
            num_failures: self.failures,
            failed_samples: self.failed_samples,
            elapsed_s,
            ave_time_s: mean_s(self.op_time, self.op_count),
            ave_thread_wait_s: mean_s(self.thread_wait, self.thread_starts),
            cpu_s: (self.thread_starts > 0).then(|| nanos_to_seconds(self.cpu_time)),
            tasks_per_s: per_second(self.tasks, elapsed_s),
            busy_s,
            thread_wait_s,
            permit_wait_s,
            blocked_s,
            order_wait_s,
            idle_s,
            shares: SlotShares::of(slots_s),
            instances: self.instances,
            ..TaskFigures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(eighths: u64) -> Tick {
        Tick::from_nanos(eighths * 125_000_000)
    }

    fn figures(mut meter: StageMeter, now: Tick) -> TaskFigures {
        let mut sums = TaskSums::default();
        meter.read(now, &mut sums);
        sums.figures()
    }

    #[test]
    fn successive_readings_of_a_meter_add_up_to_the_whole() {
        let mut meter = StageMeter::starting_at(Tick::ZERO, 1);
        let (mut added, mut recent) = (TaskSums::default(), TaskSums::default());
        for nanos in [70, 3_000, 5_000_000, 3_000] {
            meter.on_task(Some(nanos), 0);
            meter.read(at(nanos), &mut recent);
            added.add(&mut recent);
        }
        assert_eq!((added.row.op_count, added.op_times.count()), (4, 4));
        assert_eq!((added.row.op_time, added.op_times.longest()), (5_006_070, 5_000_000));
    }

    #[test]
    fn slot_seconds_add_up_to_concurrency_times_elapsed() {
        let mut meter = StageMeter::starting_at(Tick::ZERO, 4);
        meter.on_slot(at(1), Slot::Idle, Slot::ThreadWait);
        meter.on_slot(at(2), Slot::Idle, Slot::PermitWait);
        meter.on_slot(at(3), Slot::ThreadWait, Slot::Busy);
        meter.on_slot(at(4), Slot::Idle, Slot::Busy);
        meter.on_slot(at(5), Slot::PermitWait, Slot::Busy);
        meter.on_slot(at(6), Slot::Busy, Slot::OrderWait);
        meter.on_slot(at(7), Slot::Busy, Slot::Blocked);
        meter.on_slot(at(7), Slot::Busy, Slot::PermitWait);
        let figures = figures(meter, at(8));
        let [busy, thread_wait, permit_wait, blocked, order_wait, idle] =
            [1.0, 0.25, 0.5, 0.125, 0.25, 1.875];
        assert_eq!(
            (figures.busy_s, figures.thread_wait_s, figures.permit_wait_s),
            (busy, thread_wait, permit_wait)
        );
        assert_eq!((figures.blocked_s, figures.order_wait_s, figures.idle_s), (blocked, order_wait, idle));
        assert_eq!(busy + thread_wait + permit_wait + blocked + order_wait + idle, 4.0 * figures.elapsed_s);
        let shares = SlotShares {
            busy: busy / 4.0,
            thread_wait: thread_wait / 4.0,
            permit_wait: permit_wait / 4.0,
            blocked: blocked / 4.0,
            order_wait: order_wait / 4.0,
            idle: idle / 4.0,
        };
        assert_eq!(figures.shares, Some(shares));
    }

    #[test]
    fn the_average_time_counts_successes_only_and_no_waiting() {
        let mut meter = StageMeter::starting_at(Tick::ZERO, 1);
        meter.on_slot(at(0), Slot::Idle, Slot::ThreadWait);
        meter.on_slot(at(4), Slot::ThreadWait, Slot::Busy);
        meter.on_slot(at(8), Slot::Busy, Slot::Idle);
        meter.on_task(Some(500_000_000), 0);
        meter.on_task(Some(9_000_000_000), 2);
        let figures = figures(meter, at(8));
        assert_eq!((figures.num_tasks, figures.num_failures, figures.failed_samples), (2, 1, 2));
        assert_eq!(figures.ave_time_s, Some(0.5));
        assert_eq!(figures.ave_thread_wait_s, Some(0.5));
    }

    #[test]
    fn a_stage_that_failed_every_task_has_no_average_time() {
        let mut meter = StageMeter::starting_at(Tick::ZERO, 1);
        meter.on_task(Some(1), 1);
        let figures = figures(meter, at(1));
        assert_eq!((figures.ave_time_s, figures.max_time_s), (None, None));
    }
}
