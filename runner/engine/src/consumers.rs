//! Built-in consumers that take the place of a training loop at the sink queue.

use std::time::Duration;

use penstock_types::spec;

use crate::clock::{Clock, MonotonicClock};
use crate::item::Item;
use crate::ops::Random;
use crate::ports::{Consumer, Fault, StopFlag};
use crate::timer::wait;

/// Drops every item at once, to measure the maximum rate of the pipeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

/// Waits after every item for the duration of a training step. An accelerator does not wait for a core, as this thread does on a
/// busy machine: the time by which a step ends late shortens the next ones.
#[derive(Clone, Copy, Debug)]
pub struct Simulate {
    step: Duration,
    jitter: f64,
    random: Random,
    taken: u64,
    /// Time by which the steps until now have taken too long together, at most one step.
    late: Duration,
    /// Runs since the last item was taken.
    since: Option<MonotonicClock>,
}

impl Simulate {
    /// Creates training steps with durations between step x (1 - jitter) and step x (1 + jitter); equal seeds produce equal steps.
    pub fn new(settings: &spec::Simulate, seed: u64) -> Self {
        Self {
            step: settings.step_ms.duration(),
            jitter: settings.jitter.get(),
            random: Random::named(seed, "simulate"),
            taken: 0,
            late: Duration::ZERO,
            since: None,
        }
    }

    pub(crate) fn next_step(&mut self) -> Duration {
        let factor = 1.0 + self.jitter * (2.0 * self.random.nth(self.taken).next() - 1.0);
        self.taken += 1;
        self.step.mul_f64(factor)
    }

    /// Counts a step that should have taken `step` and took `took`.
    fn end_step(&mut self, step: Duration, took: Duration) {
        self.late = (self.late + took).saturating_sub(step).min(self.step);
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
        let (clock, step) = (self.since.take().unwrap_or_else(MonotonicClock::start), self.next_step());
        let passed = || Duration::from_nanos(clock.now().nanos());
        wait(step.saturating_sub(self.late + passed()), stop);
        self.end_step(step, passed());
        // A training step holds its batch until the step is over, so the item is dropped after the wait.
        drop(item);
        Ok(())
    }

    fn taken(&mut self) {
        self.since = Some(MonotonicClock::start());
    }
}

#[cfg(test)]
mod tests {
    use penstock_types::spec::{Millis, Share};

    use super::*;
    use crate::item::{Origin, Sample};

    fn item() -> Item {
        Item::Sample(Sample::new("a", Origin::default()))
    }

    fn simulate(step_ms: f64, jitter: f64, seed: u64) -> Simulate {
        let (step_ms, jitter) = (Millis::new(step_ms).unwrap(), Share::new(jitter).unwrap());
        Simulate::new(&spec::Simulate { step_ms, jitter }, seed)
    }

    #[test]
    fn a_simulated_step_lasts_its_duration_and_ends_early_when_stopped() {
        let clock = MonotonicClock::start();
        let stop = StopFlag::default();
        simulate(5.0, 0.0, 7).consume(item(), &stop).unwrap();
        assert!(clock.now().nanos() >= 5_000_000);
        stop.set();
        simulate(3_600_000.0, 0.0, 7).consume(item(), &stop).unwrap();
    }

    #[test]
    fn steps_vary_within_the_jitter_and_are_the_same_for_the_same_seed() {
        let steps = |seed| {
            let mut simulate = simulate(100.0, 0.2, seed);
            (0..1000).map(|_| simulate.next_step()).collect::<Vec<_>>()
        };
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
        let (least, most) = (steps(7).into_iter().min().unwrap(), steps(7).into_iter().max().unwrap());
        assert!(least >= Duration::from_millis(80) && least < Duration::from_millis(82), "{least:?}");
        assert!(most <= Duration::from_millis(120) && most > Duration::from_millis(118), "{most:?}");
    }

    #[test]
    fn late_steps_shorten_the_next_ones_by_at_most_one_step() {
        let ms = Duration::from_millis;
        let mut simulate = simulate(10.0, 0.0, 7);
        let late = [(12, 2), (9, 1), (8, 0), (10, 0), (7, 0), (50, 10), (0, 0)];
        for (took, late) in late {
            simulate.end_step(ms(10), ms(took));
            assert_eq!(simulate.late, ms(late), "after {took} ms");
        }
    }
}
