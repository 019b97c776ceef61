//! Built-in consumers that take the place of a training loop at the sink queue.

use std::time::Duration;

use crate::item::Item;
use crate::ops::Random;
use crate::ports::{Consumer, Fault, StopFlag};
use crate::timer::wait;

/// Drops every item at once, to measure the maximum rate of the pipeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

/// Waits after every item for the duration of a training step.
#[derive(Clone, Copy, Debug)]
pub struct Simulate {
    step: Duration,
    jitter: f64,
    random: Random,
    taken: u64,
}

impl Simulate {
    /// Creates training steps with durations between `step` x (1 - `jitter`) and `step` x (1 + `jitter`). `jitter` is 0.0 to 1.0;
    /// equal seeds produce equal steps.
    pub fn new(step: Duration, jitter: f64, seed: u64) -> Self {
        Self { step, jitter, random: Random::named(seed, "simulate"), taken: 0 }
    }

    pub(crate) fn next_step(&mut self) -> Duration {
        let factor = 1.0 + self.jitter * (2.0 * self.random.nth(self.taken).next() - 1.0);
        self.taken += 1;
        self.step.mul_f64(factor)
    }
}

impl Consumer for Discard {
    fn consume(&mut self, item: Item, _: &StopFlag) -> Result<(), Fault> {
        drop(item);
        Ok(())
    }

    fn takes_at_once(&self) -> usize {
        16
    }
}

impl Consumer for Simulate {
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault> {
        // A training step holds its batch until the step is over, so the item is dropped after the wait.
        wait(self.next_step(), stop);
        drop(item);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, MonotonicClock};
    use crate::item::{Origin, Sample};

    fn item() -> Item {
        Item::Sample(Sample::new("a", Origin::default()))
    }

    #[test]
    fn a_simulated_step_lasts_its_duration_and_ends_early_when_stopped() {
        let clock = MonotonicClock::start();
        let stop = StopFlag::default();
        Simulate::new(Duration::from_millis(5), 0.0, 7).consume(item(), &stop).unwrap();
        assert!(clock.now().nanos() >= 5_000_000);
        stop.set();
        Simulate::new(Duration::from_secs(3600), 0.0, 7).consume(item(), &stop).unwrap();
    }

    #[test]
    fn steps_vary_within_the_jitter_and_are_the_same_for_the_same_seed() {
        let steps = |seed| {
            let mut simulate = Simulate::new(Duration::from_millis(100), 0.2, seed);
            (0..1000).map(|_| simulate.next_step()).collect::<Vec<_>>()
        };
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
        let (least, most) = (steps(7).into_iter().min().unwrap(), steps(7).into_iter().max().unwrap());
        assert!(least >= Duration::from_millis(80) && least < Duration::from_millis(82), "{least:?}");
        assert!(most <= Duration::from_millis(120) && most > Duration::from_millis(118), "{most:?}");
    }
}
