use std::cell::OnceCell;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Level;
use super::metric::Metric;
use super::row::{Row, Spread};
use super::times::{RowTimes, Timed};
use crate::stats::{Histogram, QueueRow, TaskRow};

/// Figures of a run over time, on a common x axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Start of the first bucket, in seconds since the start of the run.
    pub from_s: f64,
    /// End of the last bucket, in seconds since the start of the run.
    pub to_s: f64,
    /// Length of every bucket, in seconds.
    pub bucket_s: f64,
    /// End of each bucket, in seconds since the start of the run.
    pub t_s: Vec<f64>,
    /// One column for each requested figure. Runs of earlier versions have no percentiles.
    pub columns: Vec<SeriesColumn>,
    /// Number of the last event before this reading: the position from which `/events` continues.
    pub last: String,
}

/// One figure of one stage or queue over time. `null` where nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesColumn {
    /// Id of the stage or queue.
    pub id: String,
    /// Figure in this column.
    pub metric: Metric,
    /// Figure of each whole bucket, computed from its sums. Percentiles come from histograms: percentiles of task times are
    /// accurate to 8 % and cover whole seconds, percentiles of waits are accurate to 16 % and cover intervals of 4 s. A narrower
    /// bucket has the percentile of the second or interval that contains it.
    pub mean: Vec<Option<f64>>,
    /// Minimum over the 250 ms intervals of each bucket; empty for percentiles, and if the request excludes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub min: Vec<Option<f64>>,
    /// Maximum over the 250 ms intervals of each bucket; empty for percentiles, and if the request excludes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max: Vec<Option<f64>>,
}

/// Division of an interval into equal buckets. Every row of the level lies in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Level whose rows fill the buckets.
    pub level: Level,
    /// Start of the first bucket, in nanoseconds since the start of the run.
    pub from: u64,
    /// Length of each bucket, in nanoseconds.
    pub width: u64,
    /// Number of buckets in the range.
    pub count: usize,
}

const SECOND: u64 = 1_000_000_000;

/// Rows merged into buckets.
#[derive(Clone, Debug)]
pub struct Thinned {
    buckets: Buckets,
    rows: Vec<Option<Row>>,
    has_spreads: bool,
    /// Histograms of the row of each bucket; computed when the first percentile is requested.
    histograms: OnceCell<Vec<Vec<(usize, Histogram)>>>,
}

impl Buckets {
    /// At most `points` buckets that cover `from` to `to`, in nanoseconds, filled by the coarsest rows that are no wider than a
    /// bucket. Both ends move outwards to row boundaries.
    pub fn over(from: u64, to: u64, points: usize) -> Self {
        let points = points.max(1) as u64;
        let wanted = to.saturating_sub(from).div_ceil(points);
        let level =
            Level::ALL.into_iter().rev().find(|level| level.width() <= wanted).unwrap_or(Level::Finest);
        let row = level.width();
        let from = from / row * row;
        let to = to.max(from + 1).div_ceil(row).saturating_mul(row);
        Self::of_rows(level, from, to, (to - from).div_ceil(points))
    }

    /// Buckets of `width` nanoseconds, or of the width of the finest rows if that is larger, filled by the finest rows.
    pub fn every(from: u64, to: u64, width: u64) -> Self {
        Self::of_rows(Level::Finest, from, to, width)
    }

    /// Covers the same interval with coarser rows and buckets at least as wide as those rows.
    #[must_use]
    pub fn at(self, level: Level) -> Self {
        Self::of_rows(level, self.from, self.to(), self.width)
    }

    /// Buckets of at least this width that begin and end at row boundaries of the level.
    fn of_rows(level: Level, from: u64, to: u64, width: u64) -> Self {
        let row = level.width();
        let width = width.max(row).div_ceil(row) * row;
        let from = from / row * row;
        let count = to.saturating_sub(from).div_ceil(width);
        Self { level, from, width, count: usize::try_from(count).unwrap_or(usize::MAX) }
    }

    /// End of the last bucket, in nanoseconds since the start of the run.
    pub fn to(&self) -> u64 {
        self.from.saturating_add(self.width.saturating_mul(self.count as u64))
    }

    /// Index of the bucket that contains a row of `level`; `None` outside all buckets.
    pub fn of(&self, level: Level, number: u64) -> Option<usize> {
        let begin = number.checked_mul(level.width())?.checked_sub(self.from)?;
        usize::try_from(begin / self.width).ok().filter(|bucket| *bucket < self.count)
    }

    /// End of a bucket, in seconds since the start of the run.
    pub fn end_s(&self, bucket: usize) -> f64 {
        (self.from + self.width * (bucket as u64 + 1)) as f64 / 1e9
    }
}

impl Thinned {
    /// Creates the buckets without any rows.
    pub fn new(buckets: Buckets) -> Self {
        Self { buckets, rows: vec![None; buckets.count], has_spreads: true, histograms: OnceCell::new() }
    }

    /// Omits the minima and maxima of the rows.
    #[must_use]
    pub fn without_spreads(mut self) -> Self {
        self.has_spreads = false;
        self
    }

    /// Adds a row of `level`; a row outside all buckets is ignored.
    pub fn add(&mut self, level: Level, row: &Row) {
        let Some(bucket) = self.buckets.of(level, row.number) else { return };
        match &mut self.rows[bucket] {
            Some(gathered) if self.has_spreads => gathered.merge(row),
            Some(gathered) => gathered.merge_sums(row),
            empty => *empty = Some(row.clone()),
        }
    }

    /// Adds the waits of a row of the middle level to the bucket in which that row ends, since rows of the finest level have no
    /// waits.
    pub fn add_waits(&mut self, row: &Row) {
        let finest = (row.number + 1).saturating_mul(Level::Middle.width() / Level::Finest.width()) - 1;
        let Some(bucket) = self.buckets.of(Level::Finest, finest) else { return };
        let times = self.rows[bucket].as_mut().and_then(|row| row.times.as_mut());
        if let Some((times, waits)) = times.zip(row.times.as_ref()) {
            times.merge(&waits.waits());
        }
    }

    /// Merged row of each bucket; `None` for buckets without a row.
    pub fn rows(&self) -> &[Option<Row>] {
        &self.rows
    }

    /// True if a row has task times and waits: rows of earlier versions, and rows read without their times, have none.
    pub fn has_times(&self) -> bool {
        self.rows.iter().flatten().any(|row| row.times.is_some())
    }

    /// End of each bucket, in seconds since the start of the run.
    pub fn ends_s(&self) -> Vec<f64> {
        (0..self.buckets.count).map(|bucket| self.buckets.end_s(bucket)).collect()
    }

    /// Column of a metric of the stage with this index.
    pub fn stage(&self, stage: usize, metric: Metric, id: &str) -> SeriesColumn {
        let place = Metric::STAGE.iter().position(|known| *known == metric);
        self.column(id, metric, stage, |row| {
            let mean = row.stages.get(stage).and_then(|row: &TaskRow| row.metric(metric));
            (mean, place.map(|place| stage * Metric::STAGE.len() + place))
        })
    }

    /// Column of a metric of the queue with this index.
    pub fn queue(&self, queue: usize, metric: Metric, id: &str) -> SeriesColumn {
        let place = Metric::QUEUE.iter().position(|known| *known == metric);
        self.column(id, metric, queue, |row| {
            let mean = row.queues.get(queue).and_then(|row: &QueueRow| row.metric(metric));
            let before = row.stages.len() * Metric::STAGE.len() + queue * Metric::QUEUE.len();
            (mean, place.map(|place| before + place))
        })
    }

    /// Column of a quantile of durations over time.
    fn quantiles(&self, id: &str, metric: Metric, of: Timed, quantile: f64) -> SeriesColumn {
        let histograms = self.histograms.get_or_init(|| {
            let times = self.rows.iter().map(|row| row.as_ref().and_then(|row| row.times.as_ref()));
            times.map(|times| times.map(RowTimes::histograms).unwrap_or_default()).collect()
        });
        let number = of.number();
        let found = |histograms: &Vec<(usize, Histogram)>| {
            let place = histograms.binary_search_by_key(&number, |(number, _)| *number).ok()?;
            histograms[place].1.quantile_s(quantile)
        };
        let mut mean: Vec<Option<f64>> = histograms.iter().map(found).collect();
        // The last row of each second has the task times of that second, and the last row of each 4 s has the waits of these 4 s.
        let counted = if matches!(of, Timed::Tasks(_)) { SECOND } else { Level::Middle.width() };
        let stretch = |bucket: usize| (self.buckets.from + self.buckets.width * bucket as u64) / counted;
        for bucket in (1..mean.len()).rev() {
            if mean[bucket - 1].is_none() && stretch(bucket - 1) == stretch(bucket) {
                mean[bucket - 1] = mean[bucket];
            }
        }
        SeriesColumn { id: id.to_owned(), metric, mean, min: Vec::new(), max: Vec::new() }
    }

    /// Builds the column of the stage or queue with the index `of`; `find` returns a metric's value in a row and the index of its spread.
    fn column(
        &self,
        id: &str,
        metric: Metric,
        of: usize,
        find: impl Fn(&Row) -> (Option<f64>, Option<usize>),
    ) -> SeriesColumn {
        if let Some((of, quantile)) = metric.quantile_of(of) {
            return self.quantiles(id, metric, of, quantile);
        }
        let count = self.rows.len();
        let mut column = SeriesColumn {
            id: id.to_owned(),
            metric,
            mean: Vec::with_capacity(count),
            min: Vec::with_capacity(count),
            max: Vec::with_capacity(count),
        };
        for row in &self.rows {
            let (mean, place) = row.as_ref().map_or((None, None), &find);
            let spread = row.as_ref().zip(place).and_then(|(row, place)| row.spreads.get(place));
            let (least, greatest) =
                spread.map_or((mean, mean), |spread: &Spread| (spread.least(), spread.greatest()));
            column.mean.push(mean);
            // The mean of a wider row includes waits of narrow rows without a put or get, so it may lie outside the range of
            // their values.
            column.min.push([mean, least].into_iter().flatten().reduce(f64::min));
            column.max.push([mean, greatest].into_iter().flatten().reduce(f64::max));
        }
        column
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stats::{QueueSums, TaskSums};

    #[test]
    fn four_hours_in_600_points_are_read_from_rows_of_4_s() {
        let buckets = Buckets::over(0, 4 * 3600 * SECOND, 600);
        assert_eq!(buckets, Buckets { level: Level::Middle, from: 0, width: 24 * SECOND, count: 600 });
        let day = Buckets::over(0, 86_400 * SECOND, 600);
        assert_eq!((day.level, day.width), (Level::Coarsest, 192 * SECOND));
        assert_eq!(Buckets::over(0, 10 * SECOND, 600).count, 40);
        assert_eq!(Buckets::over(0, 0, 600).count, 1);
    }

    /// Rows of the finest level for the first intervals of a run, in the form of a real run's rows.
    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let times = || 0_u64..250_000_000;
        let stage = (times(), 0_u64..50, prop::array::uniform6(times()), times()).prop_map(
            |(op_time, tasks, [idle, thread_wait, permit_wait, busy, order_wait, blocked], elapsed)| {
                TaskRow {
                    elapsed,
                    tasks,
                    failures: tasks / 3,
                    failed_samples: tasks / 2,
                    op_time: if tasks > 0 { op_time } else { 0 },
                    op_count: tasks - tasks / 3,
                    idle,
                    thread_wait,
                    permit_wait,
                    busy,
                    order_wait,
                    blocked,
                    ..TaskRow::default()
                }
            },
        );
        let queue = (times(), 0_u64..9, 0_u64..9, times(), times(), 0.0_f64..1.0).prop_map(
            |(elapsed, puts, gets, put_wait, get_wait, empty)| QueueRow {
                elapsed,
                puts,
                gets,
                put_wait,
                get_wait,
                empty: (elapsed as f64 * empty) as u64,
            },
        );
        prop::collection::vec((stage, queue), 1..200).prop_map(|rows| {
            let width = Level::Finest.width();
            rows.into_iter()
                .zip(0..)
                .map(|((stage, queue), number)| Row {
                    number,
                    t0: number * width,
                    t1: (number + 1) * width,
                    stages: vec![stage],
                    queues: vec![queue],
                    books: Vec::new(),
                    spreads: Vec::new(),
                    times: None,
                })
                .collect()
        })
    }

    #[test]
    fn quarters_of_a_second_have_the_percentiles_of_their_second() {
        let width = Level::Finest.width();
        let mut thinned = Thinned::new(Buckets { level: Level::Finest, from: 0, width, count: 9 });
        for number in 0..8 {
            let mut sums = TaskSums::default();
            // The first second has a task of 1 ms and one of 3 ms; the task times of the next second are not recorded yet.
            [1_000_000, 3_000_000].iter().for_each(|nanos| sums.op_times.record(*nanos));
            let times = if number == 3 { RowTimes::of(&[sums], &[]) } else { RowTimes::default() };
            thinned
                .add(Level::Finest, &Row { times: Some(times), ..Row::empty(number, number * width, 1, 2) });
        }
        let column = thinned.stage(0, Metric::P99TimeS, "1:a");
        assert_eq!((column.min.len(), column.max.len()), (0, 0));
        let p99 = column.mean[0].unwrap();
        assert!((p99 - 0.003).abs() < 0.0003, "{p99}");
        assert_eq!(column.mean, [[Some(p99); 4].as_slice(), &[None; 5]].concat());
        let gets = |thinned: &Thinned| thinned.queue(1, Metric::P50GetTimeS, "1:a_queue").mean;
        assert_eq!(gets(&thinned), [None; 9]);
        // Waits come from the rows of 4 s: the first of these rows ends in the first bucket, the second one behind the last
        // bucket.
        let mut queue = QueueSums::default();
        queue.get_times.record(1_000_000);
        let times = RowTimes::of(&[], &[QueueSums::default(), queue]);
        let middle = |number| Row { times: Some(times.clone()), ..Row::empty(number, 0, 1, 2) };
        let from = 15 * width;
        let mut thinned = Thinned::new(Buckets { level: Level::Finest, from, width, count: 9 });
        (15..24).for_each(|number| {
            thinned.add(
                Level::Finest,
                &Row { times: Some(RowTimes::default()), ..Row::empty(number, number * width, 1, 2) },
            )
        });
        (0..2).for_each(|number| thinned.add_waits(&middle(number)));
        let gets = gets(&thinned);
        assert!((gets[0].unwrap() / 0.001 - 1.0).abs() < 0.16);
        assert_eq!(gets[1..], [None; 8]);
    }

    #[test]
    fn a_row_without_times_leaves_its_bucket_without_percentiles() {
        let (with, without) =
            (Row { times: Some(RowTimes::default()), ..Row::empty(0, 0, 1, 2) }, Row::empty(1, 0, 1, 2));
        let mut merged = with.clone();
        merged.merge(&with);
        assert!(merged.times.is_some());
        merged.merge(&without);
        assert_eq!(merged.times, None);
    }

    fn merged(rows: &[Row]) -> Row {
        let mut all = rows[0].clone();
        rows[1..].iter().for_each(|row| all.merge(row));
        all
    }

    proptest! {
        #[test]
        fn buckets_cover_the_range_and_each_row_lies_in_one(from in 0_u64..86_400, length in 1_u64..864_000, points in 1_usize..2000) {
            let (from, to) = (from * SECOND / 7, from * SECOND / 7 + length * SECOND / 3);
            let buckets = Buckets::over(from, to, points);
            prop_assert!(buckets.count <= points);
            prop_assert!(buckets.from <= from && to <= buckets.to());
            prop_assert!(buckets.to() - to < buckets.width + buckets.level.width());
            prop_assert_eq!(buckets.from % buckets.level.width(), 0);
            prop_assert_eq!(buckets.width % buckets.level.width(), 0);
            for level in Level::ALL.into_iter().filter(|level| *level <= buckets.level) {
                let first = buckets.from / level.width();
                let last = buckets.to() / level.width();
                prop_assert_eq!(buckets.of(level, first), Some(0));
                prop_assert_eq!(buckets.of(level, last - 1), Some(buckets.count - 1));
                prop_assert_eq!(buckets.of(level, last), None);
            }
        }

        #[test]
        fn rows_merged_in_any_way_give_the_whole(rows in rows(), cuts in prop::collection::vec(1_usize..20, 1..20)) {
            let whole = merged(&rows);
            let mut parts = Vec::new();
            let mut rest = rows.as_slice();
            for cut in cuts {
                let (part, later) = rest.split_at(cut.min(rest.len()));
                parts.extend((!part.is_empty()).then(|| merged(part)));
                rest = later;
            }
            parts.extend((!rest.is_empty()).then(|| merged(rest)));
            let again = merged(&parts);
            prop_assert_eq!(&again.stages, &whole.stages);
            prop_assert_eq!(&again.queues, &whole.queues);
            if rows.len() > 1 && parts.len() > 1 {
                prop_assert_eq!(again.spreads.len(), whole.spreads.len());
                // A part with a single row has this row's values as its spreads. Merging parts combines them as merging single
                // rows does.
                for (again, whole) in again.spreads.iter().zip(&whole.spreads) {
                    prop_assert_eq!(again.least(), whole.least());
                    prop_assert_eq!(again.greatest(), whole.greatest());
                }
            }
        }

        #[test]
        fn the_mean_is_between_min_and_max_and_buckets_add_up(rows in rows(), points in 1_usize..60) {
            let to = rows.last().unwrap().t1;
            let buckets = Buckets::over(0, to, points);
            let mut thinned = Thinned::new(buckets);
            rows.iter().for_each(|row| thinned.add(Level::Finest, row));
            let columns = Metric::STAGE.map(|metric| thinned.stage(0, metric, "1:a"));
            let queues = Metric::QUEUE.map(|metric| thinned.queue(0, metric, "1:a_queue"));
            for column in columns.iter().chain(&queues) {
                for ((mean, min), max) in column.mean.iter().zip(&column.min).zip(&column.max) {
                    if let Some(mean) = mean {
                        let (min, max) = (min.unwrap(), max.unwrap());
                        prop_assert!(min <= *mean && *mean <= max, "{:?}: {min} {mean} {max}", column.metric);
                    }
                }
            }
            let gathered: Vec<Row> = thinned.rows().iter().flatten().cloned().collect();
            prop_assert_eq!(merged(&gathered).stages, merged(&rows).stages);
        }

        #[test]
        fn numbers_make_the_same_row_again(numbers in prop::array::uniform16(0_u64..u64::MAX), queue in prop::array::uniform6(0_u64..u64::MAX)) {
            prop_assert_eq!(TaskRow::of_numbers(numbers).numbers(), numbers);
            prop_assert_eq!(QueueRow::of_numbers(queue).numbers(), queue);
        }

        #[test]
        fn a_spread_is_rounded_outwards(value in -1e12_f64..1e12) {
            let spread = Spread::of(Some(value));
            prop_assert!(spread.least().unwrap() <= value && value <= spread.greatest().unwrap());
        }
    }
}
