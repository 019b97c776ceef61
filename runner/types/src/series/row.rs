use super::metric::Metric;
use super::times::{RowTimes, Timed};
use crate::stats::{Histogram, QueueRow, QueueSums, TaskRow, TaskSums, per_second};

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
    /// Task times and waits. The finest rows have no waits, and the task times of a second stand in the last of its rows. `None` in
    /// rows of earlier versions, and where they were not read.
    pub times: Option<RowTimes>,
}

/// The least and the greatest of a metric over the finest rows, rounded outwards; nothing where none had it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    least: f32,
    greatest: f32,
}

impl TaskRow {
    /// The value of a metric; `None` where nothing was measured, and for metrics of queues.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        let figures = self.figures();
        match metric {
            Metric::AveTimeS => figures.ave_time_s,
            Metric::TasksPerS => figures.tasks_per_s,
            Metric::FailuresPerS => per_second(self.failures, figures.elapsed_s),
            Metric::Busy => Some(figures.shares?.busy),
            Metric::ThreadWait => Some(figures.shares?.thread_wait),
            Metric::PermitWait => Some(figures.shares?.permit_wait),
            Metric::Blocked => Some(figures.shares?.blocked),
            _ => None,
        }
    }
}

impl QueueRow {
    /// The value of a metric; `None` where nothing was measured, and for metrics of stages.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        let figures = self.figures(0);
        match metric {
            Metric::Readiness => figures.readiness,
            Metric::Qps => figures.qps,
            Metric::AveGetTimeS => figures.ave_get_time_s,
            Metric::AvePutTimeS => figures.ave_put_time_s,
            Metric::Starved => figures.starved,
            _ => None,
        }
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
            times: None,
        }
    }

    /// Adds the sums of the interval that follows.
    pub fn add(&mut self, t1: u64, stages: &[TaskSums], queues: &[QueueSums]) {
        self.t1 = t1;
        for (row, sums) in self.stages.iter_mut().zip(stages) {
            row.merge(&sums.row);
        }
        for (row, sums) in self.queues.iter_mut().zip(queues) {
            row.merge(&sums.row);
        }
    }

    /// Adds another row of the same run. The spreads then cover both.
    pub fn merge(&mut self, other: &Self) {
        let mut spreads = self.all_spreads();
        for (mine, theirs) in spreads.iter_mut().zip(other.all_spreads()) {
            mine.merge(theirs);
        }
        self.merge_sums(other);
        self.spreads = spreads;
    }

    /// [`Self::merge`] without the spreads, which take most of its time.
    pub fn merge_sums(&mut self, other: &Self) {
        self.spreads.clear();
        self.t0 = self.t0.min(other.t0);
        self.t1 = self.t1.max(other.t1);
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            mine.merge(theirs);
        }
        for (mine, theirs) in self.queues.iter_mut().zip(&other.queues) {
            mine.merge(theirs);
        }
        self.times = self.times.take().zip(other.times.as_ref()).map(|(mut mine, theirs)| {
            mine.merge(theirs);
            mine
        });
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

    /// Durations of a stage or queue; `None` in rows without times.
    pub fn histogram(&self, of: Timed) -> Option<Histogram> {
        Some(self.times.as_ref()?.histogram(of))
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
