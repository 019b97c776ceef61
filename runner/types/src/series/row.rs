use super::metric::Metric;
use crate::stats::{Histogram, QueueFigures, QueueSums, SlotShares, TaskFigures, TaskSums, share};

/// Exact sums of a run over one row of a level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its place among the rows of its level, from 0 at the run's start.
    pub number: u64,
    /// When it began, in nanoseconds since the run's start.
    pub t0: u64,
    /// When it ended.
    pub t1: u64,
    /// The stages, first to last.
    pub stages: Vec<TaskRow>,
    /// The queues, first to last.
    pub queues: Vec<QueueRow>,
    /// For each stage its metrics, then for each queue: what the finest rows in it had. Empty for a finest row, which has
    /// one value of each.
    pub spreads: Vec<Spread>,
}

/// What a stage added up. All lengths in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskRow {
    /// Measured time.
    pub elapsed: u64,
    /// Tasks completed, failed ones included.
    pub tasks: u64,
    /// Tasks with at least one failed sample.
    pub failures: u64,
    /// Samples that failed.
    pub failed_samples: u64,
    /// Ops that began on a worker thread.
    pub thread_starts: u64,
    /// Instances of the op that were made.
    pub instances: u64,
    /// Op times of successful tasks.
    pub op_time: u64,
    /// How many op times these are.
    pub op_count: u64,
    /// CPU time of the ops on worker threads.
    pub cpu_time: u64,
    /// Slot time by what the slots did, in the order of [`crate::stats::Slot`].
    pub slot_time: [u64; 5],
}

/// What a queue added up. All lengths in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRow {
    /// Measured time.
    pub elapsed: u64,
    /// Puts accepted.
    pub puts: u64,
    /// Items taken.
    pub gets: u64,
    /// Time puts waited for a free slot.
    pub put_wait: u64,
    /// Time the reader waited for an item. A wait that was open at a row's end and turned out to be for the end of the data
    /// stays counted up to there.
    pub get_wait: u64,
    /// Time without an item.
    pub empty: u64,
}

/// The least and the greatest of a metric over the finest rows, rounded outwards; nothing where none had it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    least: f32,
    greatest: f32,
}

impl TaskRow {
    /// How many numbers it is made of.
    pub const WIDTH: usize = 14;

    /// The numbers of these sums, without the histogram.
    pub fn of(sums: &TaskSums) -> Self {
        Self {
            elapsed: sums.elapsed,
            tasks: sums.tasks,
            failures: sums.failures,
            failed_samples: sums.failed_samples,
            thread_starts: sums.thread_starts,
            instances: sums.instances,
            op_time: sums.op_time,
            op_count: sums.op_times.count(),
            cpu_time: sums.cpu_time,
            slot_time: sums.slot_time,
        }
    }

    /// All of its numbers.
    pub fn numbers(&self) -> [u64; Self::WIDTH] {
        let [idle, thread_wait, busy, order_wait, blocked] = self.slot_time;
        [
            self.elapsed,
            self.tasks,
            self.failures,
            self.failed_samples,
            self.thread_starts,
            self.instances,
            self.op_time,
            self.op_count,
            self.cpu_time,
            idle,
            thread_wait,
            busy,
            order_wait,
            blocked,
        ]
    }

    /// The row of these numbers.
    pub fn of_numbers(numbers: [u64; Self::WIDTH]) -> Self {
        let [
            elapsed,
            tasks,
            failures,
            failed_samples,
            thread_starts,
            instances,
            op_time,
            op_count,
            cpu_time,
            slots @ ..,
        ] = numbers;
        Self {
            elapsed,
            tasks,
            failures,
            failed_samples,
            thread_starts,
            instances,
            op_time,
            op_count,
            cpu_time,
            slot_time: slots,
        }
    }

    /// Adds the sums of another interval of the same stage added up.
    pub fn merge(&mut self, other: &Self) {
        let (mine, theirs) = (self.numbers(), other.numbers());
        *self = Self::of_numbers(std::array::from_fn(|number| mine[number].saturating_add(theirs[number])));
    }

    /// The value of a metric; `None` where nothing was measured, and for metrics of queues.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        let shares = || SlotShares::of(self.slot_time.map(|nanos| nanos as f64));
        match metric {
            Metric::AveTimeS => share(self.op_time, self.op_count).map(|nanos| nanos / 1e9),
            Metric::TasksPerS => share(self.tasks, self.elapsed).map(|per_nano| per_nano * 1e9),
            Metric::FailuresPerS => share(self.failures, self.elapsed).map(|per_nano| per_nano * 1e9),
            Metric::Busy => shares().map(|shares| shares.busy),
            Metric::ThreadWait => shares().map(|shares| shares.thread_wait),
            Metric::Blocked => shares().map(|shares| shares.blocked),
            _ => None,
        }
    }

    /// The figures people read, without percentiles: those are of histograms, which a row does not have.
    pub fn figures(&self) -> TaskFigures {
        let sums = TaskSums {
            elapsed: self.elapsed,
            tasks: self.tasks,
            failures: self.failures,
            failed_samples: self.failed_samples,
            thread_starts: self.thread_starts,
            instances: self.instances,
            op_time: self.op_time,
            op_times: Histogram::default(),
            cpu_time: self.cpu_time,
            slot_time: self.slot_time,
        };
        TaskFigures { ave_time_s: self.metric(Metric::AveTimeS), ..sums.figures() }
    }
}

impl QueueRow {
    /// How many numbers it is made of.
    pub const WIDTH: usize = 6;

    /// The numbers of these sums, without the histograms.
    pub fn of(sums: &QueueSums) -> Self {
        Self {
            elapsed: sums.elapsed,
            puts: sums.puts,
            gets: sums.gets,
            put_wait: sums.put_wait,
            get_wait: sums.get_wait,
            empty: sums.empty,
        }
    }

    /// All of its numbers.
    pub fn numbers(&self) -> [u64; Self::WIDTH] {
        [self.elapsed, self.puts, self.gets, self.put_wait, self.get_wait, self.empty]
    }

    /// The row of these numbers.
    pub fn of_numbers([elapsed, puts, gets, put_wait, get_wait, empty]: [u64; Self::WIDTH]) -> Self {
        Self { elapsed, puts, gets, put_wait, get_wait, empty }
    }

    /// Adds the sums of another interval of the same queue added up.
    pub fn merge(&mut self, other: &Self) {
        let (mine, theirs) = (self.numbers(), other.numbers());
        *self = Self::of_numbers(std::array::from_fn(|number| mine[number].saturating_add(theirs[number])));
    }

    /// The value of a metric; `None` where nothing was measured, and for metrics of stages.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        let seconds = |nanos: f64| nanos / 1e9;
        match metric {
            Metric::Readiness => share(self.elapsed.saturating_sub(self.empty), self.elapsed),
            Metric::Qps => share(self.gets, self.elapsed).map(|per_nano| per_nano * 1e9),
            Metric::AveGetTimeS => share(self.get_wait, self.gets).map(seconds),
            Metric::AvePutTimeS => share(self.put_wait, self.puts).map(seconds),
            Metric::Starved => share(self.get_wait.min(self.elapsed), self.elapsed),
            _ => None,
        }
    }

    /// The figures people read, without percentiles: those are of histograms, which a row does not have.
    pub fn figures(&self, capacity: usize) -> QueueFigures {
        let sums = QueueSums {
            elapsed: self.elapsed,
            puts: self.puts,
            gets: self.gets,
            put_wait: self.put_wait,
            get_wait: self.get_wait,
            empty: self.empty.min(self.elapsed),
            put_times: Histogram::default(),
            get_times: Histogram::default(),
        };
        sums.figures(capacity)
    }
}

impl Spread {
    /// Nothing was measured.
    pub const NONE: Self = Self { least: f32::NAN, greatest: f32::NAN };

    /// Of one value.
    pub fn of(value: Option<f64>) -> Self {
        let Some(value) = value else { return Self::NONE };
        let near = value as f32;
        Self {
            least: if f64::from(near) > value { near.next_down() } else { near },
            greatest: if f64::from(near) < value { near.next_up() } else { near },
        }
    }

    /// Of these two ends, as [`Self::ends`] gives them.
    pub fn of_ends(least: f32, greatest: f32) -> Self {
        Self { least, greatest }
    }

    /// The least and the greatest; not a number where nothing was measured.
    pub fn ends(self) -> (f32, f32) {
        (self.least, self.greatest)
    }

    /// The least; `None` where nothing was measured.
    pub fn least(self) -> Option<f64> {
        (!self.least.is_nan()).then(|| f64::from(self.least))
    }

    /// The greatest; `None` where nothing was measured.
    pub fn greatest(self) -> Option<f64> {
        (!self.greatest.is_nan()).then(|| f64::from(self.greatest))
    }

    /// Takes in what another one holds.
    pub fn merge(&mut self, other: Self) {
        // The least and the greatest of a number and none is the number.
        self.least = self.least.min(other.least);
        self.greatest = self.greatest.max(other.greatest);
    }
}

impl Row {
    /// An empty row of a run with so many stages and queues.
    pub fn empty(number: u64, t0: u64, stages: usize, queues: usize) -> Self {
        Self {
            number,
            t0,
            t1: t0,
            stages: vec![TaskRow::default(); stages],
            queues: vec![QueueRow::default(); queues],
            spreads: Vec::new(),
        }
    }

    /// Adds the sums of the interval that follows.
    pub fn add(&mut self, t1: u64, stages: &[TaskSums], queues: &[QueueSums]) {
        self.t1 = t1;
        for (row, sums) in self.stages.iter_mut().zip(stages) {
            row.merge(&TaskRow::of(sums));
        }
        for (row, sums) in self.queues.iter_mut().zip(queues) {
            row.merge(&QueueRow::of(sums));
        }
    }

    /// Adds another row of the same run. The spreads then cover both.
    pub fn merge(&mut self, other: &Self) {
        let mut spreads = self.all_spreads();
        for (mine, theirs) in spreads.iter_mut().zip(other.all_spreads()) {
            mine.merge(theirs);
        }
        self.t0 = self.t0.min(other.t0);
        self.t1 = self.t1.max(other.t1);
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            mine.merge(theirs);
        }
        for (mine, theirs) in self.queues.iter_mut().zip(&other.queues) {
            mine.merge(theirs);
        }
        self.spreads = spreads;
    }

    /// Takes into the spreads what a finest row in it had.
    pub fn spread(&mut self, finest: &Self) {
        for (mine, theirs) in self.spreads.iter_mut().zip(finest.all_spreads()) {
            mine.merge(theirs);
        }
    }

    /// The same as a row of a coarser level, which keeps its spreads.
    #[must_use]
    pub fn widened(mut self, number: u64) -> Self {
        self.spreads = self.all_spreads();
        self.number = number;
        self
    }

    /// How many spreads a row has, if it has any.
    pub fn spread_count(stages: usize, queues: usize) -> usize {
        stages * Metric::STAGE.len() + queues * Metric::QUEUE.len()
    }

    fn all_spreads(&self) -> Vec<Spread> {
        if !self.spreads.is_empty() {
            return self.spreads.clone();
        }
        let stages = self.stages.iter().flat_map(|row| Metric::STAGE.map(|metric| row.metric(metric)));
        let queues = self.queues.iter().flat_map(|row| Metric::QUEUE.map(|metric| row.metric(metric)));
        stages.chain(queues).map(Spread::of).collect()
    }
}
