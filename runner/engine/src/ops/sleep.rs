//! A stage that takes time and changes no sample, to test the behaviour of pipelines.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_types::plan::SleepPlan;
use penstock_types::run::FailureClass;
use penstock_types::spec::SleepShape;

use super::Random;
use crate::item::{Item, Origin};
use crate::ports::{Fault, Output, StopFlag, TaskOp, ThreadOp, ThreadOpFactory};
use crate::timer::{Timer, wait};

/// Durations of items and the choice of failing items. Both are derived from the document's seed, the stage's name and the item's
/// origin, so they do not depend on the number of threads.
#[derive(Clone, Copy, Debug)]
pub struct SleepTimes {
    plan: SleepPlan,
    random: Random,
}

/// Sleeps as a future that occupies no thread, like a download that waits for its server.
#[derive(Clone, Debug)]
pub struct SleepTask {
    pub times: SleepTimes,
    pub timer: Arc<Timer>,
}

impl SleepTimes {
    /// Creates the durations of the stage `name` in a run with this seed.
    pub fn new(plan: SleepPlan, seed: u64, name: &str) -> Self {
        Self { plan, random: Random::named(seed, name) }
    }

    /// Returns the duration of the item's sleep, and true if the item fails afterwards.
    pub(crate) fn of(&self, item: &Item) -> (Duration, bool) {
        let mut random = self.random.at(&origin(item));
        let factor = match self.plan.shape {
            SleepShape::Uniform => 1.0 + self.plan.jitter * (2.0 * random.next() - 1.0),
            // 1 - x is never 0, so the logarithm is finite: the result is at most 37 times the mean.
            SleepShape::Exponential => -(1.0 - random.next()).ln(),
        };
        (self.plan.mean.mul_f64(factor), random.next() < self.plan.fail_rate)
    }
}

impl TaskOp for SleepTask {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        let (duration, fails) = self.times.of(&item);
        let sleep = self.timer.sleep(duration);
        sleep.map(move |()| output(item, fails)).boxed()
    }
}

/// Builds sleeps that occupy a worker thread, like decoding.
impl ThreadOpFactory for SleepTimes {
    fn build(&self, _: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        Ok(Box::new(*self))
    }
}

impl ThreadOp for SleepTimes {
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output {
        let (duration, fails) = self.of(&item);
        let is_over = wait(duration, stop);
        output(item, fails && is_over)
    }
}

pub(crate) fn origin(item: &Item) -> Origin {
    item.first().map_or_else(Origin::default, |(_, origin)| origin)
}

fn output(item: Item, fails: bool) -> Output {
    if !fails {
        return Output::one(item);
    }
    let fault = Fault::new(FailureClass::Data, "failed on purpose (`fail_rate`)");
    Output::all_failed(item.into_samples(), &fault)
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use penstock_types::spec::SleepOn;

    use super::*;
    use crate::item::{Collated, Sample};
    use crate::ports::Items;

    const PLAN: SleepPlan = SleepPlan {
        mean: Duration::from_millis(100),
        jitter: 0.0,
        shape: SleepShape::Uniform,
        on: SleepOn::Async,
        fail_rate: 0.0,
    };

    fn sample(index: u64) -> Sample {
        Sample::new(index.to_string(), Origin::at(0, index))
    }

    fn times(plan: SleepPlan) -> Vec<(Duration, bool)> {
        let times = SleepTimes::new(plan, 7, "delay");
        (0..10_000).map(|index| times.of(&Item::Sample(sample(index)))).collect()
    }

    fn mean_millis(times: &[(Duration, bool)]) -> f64 {
        times.iter().map(|(time, _)| time.as_secs_f64() * 1e3).sum::<f64>() / times.len() as f64
    }

    #[test]
    fn without_jitter_every_item_takes_the_mean() {
        assert!(times(PLAN).iter().all(|time| *time == (PLAN.mean, false)));
    }

    #[test]
    fn uniform_times_fill_the_jitter_around_the_mean() {
        let times = times(SleepPlan { jitter: 0.5, ..PLAN });
        let (least, most) = (times.iter().min().unwrap().0, times.iter().max().unwrap().0);
        assert!(least >= Duration::from_millis(50) && least < Duration::from_millis(51), "{least:?}");
        assert!(most <= Duration::from_millis(150) && most > Duration::from_millis(149), "{most:?}");
        // The mean of 10,000 durations has a standard deviation of 0.29 ms.
        assert!((mean_millis(&times) - 100.0).abs() < 1.5, "{}", mean_millis(&times));
    }

    #[test]
    fn exponential_times_have_the_mean_and_many_short_ones() {
        let times = times(SleepPlan { shape: SleepShape::Exponential, ..PLAN });
        // The mean of 10,000 durations has a standard deviation of 1 ms.
        assert!((mean_millis(&times) - 100.0).abs() < 5.0, "{}", mean_millis(&times));
        let shorter = times.iter().filter(|(time, _)| *time < PLAN.mean).count();
        // 1 - 1/e of the durations are below the mean: 6321 are expected, with a standard deviation of 48.
        assert!((6_070..6_570).contains(&shorter), "{shorter}");
    }

    #[test]
    fn the_fail_rate_is_the_share_of_failed_items_independent_of_their_times() {
        let plan = SleepPlan { jitter: 1.0, fail_rate: 0.25, ..PLAN };
        let times = times(plan);
        let failed: Vec<_> = times.iter().copied().filter(|(_, fails)| *fails).collect();
        // 2500 failures are expected, with a standard deviation of 43.
        assert!((2_280..2_720).contains(&failed.len()), "{}", failed.len());
        assert!((mean_millis(&failed) - 100.0).abs() < 6.0, "{}", mean_millis(&failed));
        assert!(times_are(&SleepPlan { fail_rate: 1.0, ..PLAN }, true));
        assert!(times_are(&SleepPlan { fail_rate: 0.0, ..PLAN }, false));
    }

    fn times_are(plan: &SleepPlan, fail: bool) -> bool {
        times(*plan).iter().all(|(_, fails)| *fails == fail)
    }

    #[test]
    fn a_task_and_a_thread_choose_the_same_failures_and_a_batch_fails_as_a_whole() {
        let plan = SleepPlan { mean: Duration::ZERO, fail_rate: 0.5, ..PLAN };
        let times = SleepTimes::new(plan, 7, "delay");
        let task = SleepTask { times, timer: Arc::new(Timer::start().unwrap()) };
        let stop = StopFlag::default();
        let mut thread = times.build(&stop).unwrap();
        let mut failures = 0;
        for index in 0..64 {
            let item = Item::Batch(vec![sample(index), sample(1000)]);
            let by_task = block_on(task.start(item.clone()));
            let by_thread = thread.apply(item.clone(), &stop);
            assert_eq!(by_task.failed.len(), by_thread.failed.len());
            match by_task.items {
                Items::One(out) => assert_eq!((out, by_task.failed.len()), (item, 0)),
                Items::None => {
                    assert_eq!(by_task.failed.len(), 2);
                    assert_eq!(by_task.failed[0].fault.class, FailureClass::Data);
                    assert_eq!(&*by_task.failed[0].fault.message, "failed on purpose (`fail_rate`)");
                    failures += 1;
                }
                Items::Many(_) => panic!("sleep makes nothing"),
            }
        }
        assert!((16..=48).contains(&failures), "{failures} of 64");
    }

    #[test]
    fn a_collated_batch_fails_with_all_its_keys() {
        let batch = Collated {
            keys: vec!["a".into(), "b".into()],
            origins: vec![Origin::default(); 2],
            fields: Vec::new(),
        };
        let failed = output(Item::Collated(batch), true).failed;
        assert_eq!(failed.iter().map(|failed| &*failed.sample.key).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_stop_ends_a_sleep_on_a_thread_and_passes_the_item_on() {
        let plan = SleepPlan { mean: Duration::from_secs(3600), fail_rate: 1.0, ..PLAN };
        let stop = StopFlag::default();
        let mut thread = SleepTimes::new(plan, 7, "delay").build(&stop).unwrap();
        stop.set();
        let output = thread.apply(Item::Sample(sample(0)), &stop);
        assert!(matches!(output.items, Items::One(_)));
    }
}
