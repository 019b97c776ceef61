use crate::stats::{Histogram, QueueSums, TaskSums};

/// Buckets of a [`Histogram`] that are counted as one: a bucket of task times is at most 1/8 of its value wide, one of waits 1/4. Waits
/// are as noisy as task times and twice as many; with narrow buckets they would take more room than all sums.
const JOINED: usize = 4;
const JOINED_WAITS: usize = 8;
/// A shorter wait counts as none, in nanoseconds.
const LEAST_WAIT: u64 = 16_384;
/// Joined buckets of one histogram; none that it can have is beyond them.
const BUCKETS: u32 = 512;
/// Histograms of a stage with the queue of the same place: its tasks, its puts, its gets.
const KINDS: usize = 3;

/// Task times and waits of a stretch of time, counted in buckets. Merging loses nothing, so quantiles of any stretch are those of
/// all its tasks, within 8 %, and of all its waits, within 16 %.
///
/// Pairs of a key and a count, rising by key, as bytes: most buckets are empty, and most counts small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTimes(Vec<u8>);

/// A stage or a queue whose durations are counted, by its place among the others of a run.
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
    fn number(self) -> usize {
        match self {
            Self::Tasks(stage) => stage * KINDS,
            Self::Puts(queue) => queue * KINDS + 1,
            Self::Gets(queue) => queue * KINDS + 2,
        }
    }
}

impl RowTimes {
    /// Counts of everything that was timed in these sums.
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

    /// Counts by key; the keys rise, and counts of the same key add up.
    pub fn of_pairs(pairs: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut bytes = Vec::new();
        let (mut before, mut open) = (0, None::<(u32, u64)>);
        let mut push = |(key, count): (u32, u64)| {
            push_number(&mut bytes, u64::from(key - std::mem::replace(&mut before, key)));
            push_number(&mut bytes, count);
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

    /// Counts by key, with rising keys.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u64)> {
        let (mut rest, mut key) = (self.0.as_slice(), 0_u32);
        std::iter::from_fn(move || {
            let distance = take_number(&mut rest)?;
            key = key.checked_add(u32::try_from(distance).ok()?)?;
            Some((key, take_number(&mut rest)?))
        })
    }

    /// Adds the counts of another stretch of time.
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

    /// Only the waits (put and get times), without task times.
    #[must_use]
    pub fn waits(&self) -> Self {
        Self::of_pairs(self.pairs().filter(|(key, _)| !is_task(key / BUCKETS)))
    }

    /// Durations of one stage or queue. The longest is known to the bucket.
    pub fn histogram(&self, of: Timed) -> Histogram {
        let number = of.number() as u64;
        let pairs = self.pairs().skip_while(|(key, _)| u64::from(key / BUCKETS) < number);
        let pairs = pairs.take_while(|(key, _)| u64::from(key / BUCKETS) == number);
        histogram_of(pairs)
    }

    /// [`Self::histogram`] of everything, by the number of its kind and place.
    pub(super) fn histograms(&self) -> Vec<(usize, Histogram)> {
        let pairs: Vec<(u32, u64)> = self.pairs().collect();
        let groups = pairs.chunk_by(|(one, _), (next, _)| one / BUCKETS == next / BUCKETS);
        groups.map(|group| ((group[0].0 / BUCKETS) as usize, histogram_of(group.iter().copied()))).collect()
    }

    /// Place of a stage or queue in [`Self::histograms`].
    pub(super) fn number_of(of: Timed) -> usize {
        of.number()
    }
}

/// The middle of the joined buckets stands for all of them.
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

/// Tells the histogram of a stage from one of a queue, by its number.
fn is_task(number: u32) -> bool {
    (number as usize).is_multiple_of(KINDS)
}

/// Seven bits a byte, lowest first; the highest bit is set where more follow.
fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
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
        assert_eq!(numbers, [Timed::Tasks(0), Timed::Puts(1), Timed::Gets(1)].map(RowTimes::number_of));
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
