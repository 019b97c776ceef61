use super::metric::Metric;
use super::times::{RowTimes, Timed};
use crate::routes::RouteSpan;
use crate::stats::{BookRow, Histogram, QueueRow, QueueSums, TaskRow, TaskSums, per_second};

/// Exact sums of a run over the interval of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Number of the row within its level, from 0 at the start of the run.
    pub number: u64,
    /// Start of the row, in nanoseconds since the start of the run.
    pub t0: u64,
    /// End of the row, in nanoseconds since the start of the run.
    pub t1: u64,
    /// Sums of the stages, first to last.
    pub stages: Vec<TaskRow>,
    /// Sums of the queues, first to last.
    pub queues: Vec<QueueRow>,
    /// Sample counts of the nodes: source, stages, sink and consumer. Empty in rows of earlier versions.
    pub books: Vec<BookRow>,
    /// Spreads over the finest rows inside this row: the metrics of each stage, then of each queue. Empty in a row of the finest
    /// level, which has one value of each metric.
    pub spreads: Vec<Spread>,
    /// Task times and waits. In rows of the finest level, the last row of each second has the task times of that second, and no
    /// row has waits. `None` in rows of earlier versions, and in rows that were read without their times.
    pub times: Option<RowTimes>,
}

/// Minimum and maximum of a metric over the finest rows, rounded outwards; NaN where no row has a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    least: f32,
    greatest: f32,
}

impl TaskRow {
    /// Value of a metric; `None` where nothing was measured, and for metrics of queues.
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
    /// Value of a metric; `None` where nothing was measured, and for metrics of stages.
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
    /// Spread without a measurement.
    pub const NONE: Self = Self { least: f32::NAN, greatest: f32::NAN };

    /// Spread of a single value.
    pub fn of(value: Option<f64>) -> Self {
        let Some(value) = value else { return Self::NONE };
        let near = value as f32;
        Self {
            least: if f64::from(near) > value { near.next_down() } else { near },
            greatest: if f64::from(near) < value { near.next_up() } else { near },
        }
    }

    /// Restores a spread from its [`Self::ends`].
    pub fn of_ends(least: f32, greatest: f32) -> Self {
        Self { least, greatest }
    }

    /// Minimum and maximum; NaN where nothing was measured.
    pub fn ends(self) -> (f32, f32) {
        (self.least, self.greatest)
    }

    /// Minimum; `None` where nothing was measured.
    pub fn least(self) -> Option<f64> {
        (!self.least.is_nan()).then(|| f64::from(self.least))
    }

    /// Maximum; `None` where nothing was measured.
    pub fn greatest(self) -> Option<f64> {
        (!self.greatest.is_nan()).then(|| f64::from(self.greatest))
    }

    /// Extends the spread by another one.
    pub fn merge(&mut self, other: Self) {
        // `min` and `max` of a number and NaN return the number.
        self.least = self.least.min(other.least);
        self.greatest = self.greatest.max(other.greatest);
    }
}

impl Row {
    /// Creates an empty row of a run with this number of stages and queues.
    pub fn empty(number: u64, t0: u64, stages: usize, queues: usize) -> Self {
        Self {
            number,
            t0,
            t1: t0,
            stages: vec![TaskRow::default(); stages],
            queues: vec![QueueRow::default(); queues],
            ..Self::default()
        }
    }

    /// Adds the sums and the sample counts of the following interval.
    pub fn add(&mut self, t1: u64, stages: &[TaskSums], queues: &[QueueSums], books: &[BookRow]) {
        self.t1 = t1;
        for (row, sums) in self.stages.iter_mut().zip(stages) {
            row.merge(&sums.row);
        }
        for (row, sums) in self.queues.iter_mut().zip(queues) {
            row.merge(&sums.row);
        }
        self.add_books(books);
    }

    fn add_books(&mut self, books: &[BookRow]) {
        self.books.resize(books.len().max(self.books.len()), BookRow::default());
        for (row, book) in self.books.iter_mut().zip(books) {
            row.merge(book);
        }
    }

    /// Adds another row of the same run, with its spreads.
    pub fn merge(&mut self, other: &Self) {
        let mut spreads = self.all_spreads();
        for (mine, theirs) in spreads.iter_mut().zip(other.all_spreads()) {
            mine.merge(theirs);
        }
        self.merge_sums(other);
        self.spreads = spreads;
    }

    /// Adds another row of the same run like [`Self::merge`], but removes the spreads, whose merging takes most of the time.
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
        self.add_books(&other.books);
        self.times = self.times.take().zip(other.times.as_ref()).map(|(mut mine, theirs)| {
            mine.merge(theirs);
            mine
        });
    }

    /// Samples that the consumer took and kept; `None` in rows of earlier versions, which have no sample counts.
    pub fn delivered(&self) -> Option<u64> {
        self.books.last().map(|consumer| consumer.taken.saturating_sub(consumer.discarded))
    }

    /// Samples taken from each queue, first to last, of a pipeline with these routes; none in rows of earlier versions.
    pub fn taken_from_queues(&self, routes: &[RouteSpan]) -> Vec<u64> {
        let before_the_consumer = self.books.len().saturating_sub(2);
        let readers = self.books.iter().skip(1).map(|book| book.taken).take(before_the_consumer);
        let mut taken: Vec<u64> = readers.chain(self.delivered()).collect();
        // Gates share one of these queues, and a join reads several, but their items are single samples.
        for queue in routes.iter().flat_map(|route| route.ends().chain([route.input()])) {
            if let Some((taken, row)) = taken.get_mut(queue).zip(self.queues.get(queue)) {
                *taken = row.gets;
            }
        }
        taken
    }

    /// Extends the spreads by the values of a row of the finest level inside this one.
    pub fn spread(&mut self, finest: &Self) {
        for (mine, theirs) in self.spreads.iter_mut().zip(finest.all_spreads()) {
            mine.merge(theirs);
        }
    }

    /// Converts the row to one of a coarser level, which has spreads.
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

    /// Number of spreads (minimum and maximum) in a row that has them: one for each metric of each stage and queue.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_for_the_queue_that_they_are_taken_from() {
        let book = |taken| BookRow { taken, ..BookRow::default() };
        let queue = |gets| QueueRow { gets, ..QueueRow::default() };
        let mut row = Row::empty(0, 0, 6, 8);
        // A stage; a route of a path with a stage, and of an empty path; a sample without a path, which the join takes from the
        // queue before the route; a stage that groups 4 samples. The consumer gives one batch back.
        row.books = [0, 9, 5, 5, 3, 9, 8, 8, 8].map(book).to_vec();
        row.books[8].discarded = 4;
        row.queues = [9, 9, 5, 5, 3, 8, 2, 2].map(queue).to_vec();
        let route = RouteSpan { gates: vec![2, 4], join: 5 };
        assert_eq!(row.taken_from_queues(&[route]), [9, 9, 5, 5, 3, 8, 8, 4]);
        row.books.clear();
        assert!(row.taken_from_queues(&[]).is_empty());
    }
}
