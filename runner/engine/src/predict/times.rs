use std::time::Duration;

use penstock_types::stats::Histogram;

use super::nanos;
use crate::consumers::Simulate;
use crate::item::Item;
use crate::ops::{Random, SleepTimes, origin};

#[derive(Debug)]
pub enum OpTimes {
    /// Durations of `sleep` as defined by the document: the duration of each item equals its duration in a run.
    Sleep {
        times: SleepTimes,
        /// Delay added to every op, because an operating system never wakes a task exactly on time.
        late: Duration,
    },
    Recorded(RecordedTimes),
}

#[derive(Debug)]
pub enum StepTimes {
    Simulate {
        steps: Simulate,
        /// Delay added to every step.
        late: Duration,
    },
    Every(Duration),
}

/// Durations drawn independently from the distribution of the durations that a run recorded.
#[derive(Debug)]
pub struct RecordedTimes {
    /// For each bucket: number of durations recorded below it, and its bounds in nanoseconds.
    steps: Vec<(u64, f64, f64)>,
    count: u64,
    /// Factor that makes the mean of the drawn durations equal to the recorded mean, which is more exact than a mean computed
    /// from the buckets.
    scale: f64,
    /// Number of samples per item to which the durations apply: those of items of other sizes are scaled in proportion. `None` if the
    /// number does not matter.
    pub batch: Option<f64>,
    random: Random,
}

impl OpTimes {
    pub(super) fn of(&self, item: &Item) -> (u64, bool) {
        match self {
            Self::Sleep { times, late } => {
                let (time, fails) = times.of(item);
                (nanos(time + *late), fails)
            }
            Self::Recorded(times) => (times.of(item), false),
        }
    }
}

impl StepTimes {
    pub(super) fn next(&mut self) -> u64 {
        match self {
            Self::Simulate { steps, late } => nanos(steps.next_step() + *late),
            Self::Every(step) => nanos(*step),
        }
    }
}

impl RecordedTimes {
    /// Creates durations distributed like `histogram`, with a mean of `mean_s` seconds, for the stage `name` in a run with this
    /// seed. Durations are 0 if `histogram` is empty.
    pub fn new(histogram: &Histogram, mean_s: f64, seed: u64, name: &str) -> Self {
        let mut steps = Vec::new();
        let (mut count, mut sum) = (0, 0.0);
        for (bucket, counted) in histogram.buckets() {
            let (from, to) = Histogram::bounds(bucket);
            let (from, to) = (from as f64, to.min(histogram.longest().saturating_add(1)) as f64);
            steps.push((count, from, to.max(from)));
            count += counted;
            sum += f64::midpoint(from, to.max(from)) * counted as f64;
        }
        let scale = if sum > 0.0 { mean_s * 1e9 * count as f64 / sum } else { 0.0 };
        Self { steps, count, scale, batch: None, random: Random::named(seed, name) }
    }

    fn of(&self, item: &Item) -> u64 {
        let mut random = self.random.at(&origin(item));
        let place = (random.next() * self.count as f64) as u64;
        let step = self.steps.partition_point(|(below, _, _)| *below <= place);
        let Some((_, from, to)) = step.checked_sub(1).and_then(|step| self.steps.get(step)) else { return 0 };
        let size = self.batch.map_or(1.0, |batch| item.samples() as f64 / batch);
        ((from + (to - from) * random.next()) * self.scale * size) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Origin, Sample};

    #[test]
    fn drawn_times_have_the_distribution_and_the_mean_of_the_recorded_ones() {
        let mut histogram = Histogram::default();
        // Three quarters of the durations are 1 ms, the others 10 ms.
        (0..1000).for_each(|n| histogram.record(if n % 4 == 0 { 10_000_000 } else { 1_000_000 }));
        let times = RecordedTimes::new(&histogram, 3.25e-3, 7, "decode");
        let item = |index| Item::Sample(Sample::new("k", Origin::at(0, index)));
        let drawn: Vec<u64> = (0..20_000).map(|index| times.of(&item(index))).collect();
        let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
        assert!((mean / 3.25e6 - 1.0).abs() < 0.02, "{mean}");
        let long = drawn.iter().filter(|time| **time > 5_000_000).count();
        assert!((4_700..5_300).contains(&long), "{long}");
        assert_eq!(RecordedTimes::new(&Histogram::default(), 0.0, 7, "decode").of(&item(1)), 0);
    }
}
