use crate::stats::{Histogram, QueueSums, TaskSums};
use crate::varint;

/// Number of buckets of a [`Histogram`] that are joined into one. A joined bucket of task times is at most 1/8 of its value wide,
/// a joined bucket of waits at most 1/4: waits are as noisy as task times and twice as many, and with narrower buckets they would
/// take more memory than all sums.
const JOINED: usize = 4;
const JOINED_WAITS: usize = 8;
/// Shortest wait that is counted as a wait, in nanoseconds; shorter ones are counted in the first bucket.
const LEAST_WAIT: u64 = 16_384;
/// Number of keys reserved for the joined buckets of one histogram; no duration needs more.
const BUCKETS: u32 = 512;
/// Number of histograms per index: the tasks of the stage, and the puts and gets of the queue, with this index.
const KINDS: usize = 3;

/// Task times and waits of an interval, counted in buckets. Merging loses no precision, so the quantiles of any merged interval
/// are accurate to 8 % for task times and to 16 % for waits.
///
/// Encodes pairs of a key and a count as bytes, in ascending order of keys: most buckets are empty, and most counts are small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTimes(Vec<u8>);

/// Durations that are counted, with the index of their stage or queue in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Times of the successful tasks of a stage.
    Tasks(usize),
    /// Waits of the puts into a queue.
    Puts(usize),
    /// Waits of the gets from a queue.
    Gets(usize),
}

impl Timed {
    /// Number of the histogram of a stage or queue in [`RowTimes::histograms`].
    pub(super) fn number(self) -> usize {
        match self {
            Self::Tasks(stage) => stage * KINDS,
            Self::Puts(queue) => queue * KINDS + 1,
            Self::Gets(queue) => queue * KINDS + 2,
        }
    }
}

impl RowTimes {
    /// Counts, by bucket, the task times of the stages and the put and get waits of the queues.
    pub fn of(stages: &[TaskSums], queues: &[QueueSums]) -> Self {
        let none = Histogram::default();
        let histograms = (0..stages.len().max(queues.len())).flat_map(|place| {
            let (stage, queue) = (stages.get(place), queues.get(place));
            [
                stage.map_or(&none, |sums| &sums.op_times),
                queue.map_or(&none, |sums| &sums.put_times),
                queue.map_or(&none, |sums| &sums.get_times),
            ]
        });
        let keyed = histograms.zip(0_u32..).flat_map(|(histogram, number)| {
            let joined = move |bucket: usize| match is_task(number) {
                true => bucket / JOINED,
                false if bucket < Histogram::bucket_of(LEAST_WAIT) => 0,
                false => bucket / JOINED_WAITS * (JOINED_WAITS / JOINED),
            };
            let key = move |bucket| number * BUCKETS + u32::try_from(joined(bucket)).unwrap_or(BUCKETS - 1);
            histogram.buckets().map(move |(bucket, count)| (key(bucket), count))
        });
        Self::of_pairs(keyed)
    }

    /// Encodes pairs of a key and a count. The keys must not descend; counts of equal keys are added.
    pub fn of_pairs(pairs: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut bytes = Vec::new();
        let (mut before, mut open) = (0, None::<(u32, u64)>);
        let mut push = |(key, count): (u32, u64)| {
            varint::push(&mut bytes, u64::from(key - std::mem::replace(&mut before, key)));
            varint::push(&mut bytes, count);
        };
        for (key, count) in pairs {
            match &mut open {
                Some((same, sum)) if *same == key => *sum = sum.saturating_add(count),
                last => last.replace((key, count)).into_iter().for_each(&mut push),
            }
        }
        open.into_iter().for_each(push);
        bytes.shrink_to_fit();
        Self(bytes)
    }

    /// Pairs of a key and a count, in ascending order of keys.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u64)> {
        let (mut rest, mut key) = (self.0.as_slice(), 0_u32);
        std::iter::from_fn(move || {
            let distance = varint::take(&mut rest)?;
            key = key.checked_add(u32::try_from(distance).ok()?)?;
            Some((key, varint::take(&mut rest)?))
        })
    }

    /// Adds the counts of another interval.
    pub fn merge(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
        } else if !other.0.is_empty() {
            *self = self.merged(other);
        }
    }

    fn merged(&self, other: &Self) -> Self {
        let (mut mine, mut theirs) = (self.pairs().peekable(), other.pairs().peekable());
        Self::of_pairs(std::iter::from_fn(|| match (mine.peek(), theirs.peek()) {
            (Some((key, _)), Some((other, _))) if other < key => theirs.next(),
            (Some(_), _) => mine.next(),
            (None, _) => theirs.next(),
        }))
    }

    /// Returns the waits (put and get times) without the task times.
    #[must_use]
    pub fn waits(&self) -> Self {
        Self::of_pairs(self.pairs().filter(|(key, _)| !is_task(key / BUCKETS)))
    }

    /// Histogram of the durations of one stage or queue. The longest duration is accurate to its bucket.
    pub fn histogram(&self, of: Timed) -> Histogram {
        let number = of.number() as u64;
        let pairs = self.pairs().skip_while(|(key, _)| u64::from(key / BUCKETS) < number);
        let pairs = pairs.take_while(|(key, _)| u64::from(key / BUCKETS) == number);
        histogram_of(pairs)
    }

    /// Histograms of all stages and queues with their numbers (see [`Timed::number`]), in ascending order.
    pub(super) fn histograms(&self) -> Vec<(usize, Histogram)> {
        let pairs: Vec<(u32, u64)> = self.pairs().collect();
        let groups = pairs.chunk_by(|(one, _), (next, _)| one / BUCKETS == next / BUCKETS);
        groups.map(|group| ((group[0].0 / BUCKETS) as usize, histogram_of(group.iter().copied()))).collect()
    }
}

/// Restores a histogram: each joined bucket is counted in its middle bucket.
fn histogram_of(pairs: impl Iterator<Item = (u32, u64)>) -> Histogram {
    let bucket = |key: u32| {
        let first = (key % BUCKETS) as usize * JOINED;
        let width = if is_task(key / BUCKETS) { JOINED } else { JOINED_WAITS };
        if first == 0 { 0 } else { first + width / 2 }
    };
    let counts: Vec<(usize, u64)> = pairs.map(|(key, count)| (bucket(key), count)).collect();
    let longest = counts.last().map_or(0, |(bucket, _)| Histogram::bounds(*bucket).0);
    Histogram::of_buckets(counts, longest).unwrap_or_default()
}

/// True if the histogram with this number belongs to a stage, false if it belongs to a queue.
fn is_task(number: u32) -> bool {
    (number as usize).is_multiple_of(KINDS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(nanos: &[u64]) -> TaskSums {
        let mut sums = TaskSums::default();
        nanos.iter().for_each(|nanos| sums.op_times.record(*nanos));
        sums
    }

    #[test]
    fn a_row_counts_tasks_puts_and_gets_apart() {
        let mut queue = QueueSums::default();
        (0..3).for_each(|_| queue.put_times.record(0));
        queue.get_times.record(5_000_000);
        let times = RowTimes::of(&[sums(&[1_000_000]), sums(&[])], &[QueueSums::default(), queue]);
        let count = |of| times.histogram(of).count();
        assert_eq!([count(Timed::Tasks(0)), count(Timed::Tasks(1)), count(Timed::Puts(0))], [1, 0, 0]);
        assert_eq!([count(Timed::Puts(1)), count(Timed::Gets(1)), count(Timed::Gets(9))], [3, 1, 0]);
        assert_eq!(times.histogram(Timed::Puts(1)).quantile_s(0.99), Some(0.0));
        let numbers: Vec<usize> = times.histograms().iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [Timed::Tasks(0), Timed::Puts(1), Timed::Gets(1)].map(Timed::number));
    }

    #[test]
    fn waits_are_counted_in_wider_buckets_and_short_ones_as_none() {
        let mut queue = QueueSums::default();
        [0, 9_000, 16_383].iter().for_each(|nanos| queue.put_times.record(*nanos));
        (1..=10_000).for_each(|step| queue.get_times.record(step * 100_000));
        let times = RowTimes::of(&[sums(&[7])], &[queue.clone()]);
        assert_eq!(times.histogram(Timed::Puts(0)).buckets().collect::<Vec<_>>(), [(0, 3)]);
        for q in [0.5, 0.99, 1.0] {
            let (found, exact) =
                (times.histogram(Timed::Gets(0)).quantile_s(q), queue.get_times.quantile_s(q));
            assert!((found.unwrap() / exact.unwrap() - 1.0).abs() < 0.16, "{found:?} {exact:?}");
        }
        assert_eq!(times.waits().histogram(Timed::Tasks(0)).count(), 0);
        assert_eq!(times.waits().histogram(Timed::Gets(0)), times.histogram(Timed::Gets(0)));
    }

    proptest! {
        #[test]
        fn quantiles_of_merged_rows_are_those_of_all_tasks(
            rows in prop::collection::vec(prop::collection::vec(1_u64..40_000_000_000, 0..20), 1..12), q in 0.0_f64..=1.0,
        ) {
            let mut merged = RowTimes::default();
            rows.iter().for_each(|row| merged.merge(&RowTimes::of(&[sums(row)], &[])));
            let all: Vec<u64> = rows.into_iter().flatten().collect();
            prop_assert_eq!(&merged, &RowTimes::of(&[sums(&all)], &[]));
            let histogram = merged.histogram(Timed::Tasks(0));
            let exact = sums(&all).op_times;
            prop_assert_eq!(histogram.count(), exact.count());
            let near = |found: Option<f64>, exact: Option<f64>| match (found, exact) {
                (Some(found), Some(exact)) => (found - exact).abs() <= exact * 0.1 + 4e-9,
                (found, exact) => found == exact,
            };
            prop_assert!(near(histogram.quantile_s(q), exact.quantile_s(q)));
            prop_assert!(near(histogram.longest_s(), exact.longest_s()));
        }

        #[test]
        fn pairs_come_back(pairs in prop::collection::btree_map(0_u32..1 << 20, 1_u64..u64::MAX, 0..50)) {
            let times = RowTimes::of_pairs(pairs.clone());
            prop_assert!(times.pairs().eq(pairs));
        }
    }
}
