//! Settings that change while a run goes on.

use std::cell::Cell;
use std::num::NonZeroUsize;

use penstock_types::policy::{Capacity, Concurrency};
use penstock_types::stats::{Slot, StageMeter};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::routes::{Flat, Part, any_parts, data, expected};
use super::*;

/// Stages of a random pipeline: with routes, or with batches.
#[derive(Debug)]
enum Stages {
    Routed(Vec<Part>),
    Chain(Vec<StageShape>),
}

impl Stages {
    /// Shape of the pipeline, and with routes the items that it delivers of `stream`.
    fn shape(self, buffer_bytes: u64, stream: Vec<Mark>) -> (ChainShape, Option<Vec<Item>>) {
        let parts = match self {
            Self::Chain(stages) => return (ChainShape { buffer_bytes, ..shape(stages, 2) }, None),
            Self::Routed(parts) => parts,
        };
        let mut flat = Flat::default();
        let tree = flat.list(&parts, false);
        let items = expected(&tree, stream).into_iter().filter_map(|mark| match mark {
            Mark::Item(item) => Some(item),
            Mark::EpochEnd => None,
        });
        (flat.shape(2, buffer_bytes), Some(items.collect()))
    }
}

fn any_pipeline() -> impl Strategy<Value = Stages> {
    prop_oneof![any_parts().prop_map(Stages::Routed), any_stages().prop_map(Stages::Chain)]
}

fn tasks(number: usize) -> Concurrency {
    Concurrency::new(number as u32).unwrap()
}

fn items(number: usize) -> Capacity {
    Capacity::new(number as u32).unwrap()
}

fn workers(number: usize) -> Resize<'static> {
    Resize::Workers(NonZeroUsize::new(number).unwrap())
}

/// A driver that changes settings.
struct Resized {
    driver: Driver,
    /// Tasks by stage after the last event.
    tasks: Vec<usize>,
    /// Items by queue after the last event.
    items: Vec<usize>,
    /// Slot time by stage, in nanoseconds.
    slot_time: Vec<u64>,
}

impl Resized {
    fn new(driver: Driver) -> Self {
        let (stages, queues) = (driver.schedule.stages.len(), driver.schedule.queues.len());
        Self { driver, tasks: vec![0; stages], items: vec![0; queues], slot_time: vec![0; stages] }
    }

    /// Counts the slots that each stage has until the next event.
    fn pass(&mut self) {
        for (stage, time) in self.driver.schedule.stages.iter().zip(&mut self.slot_time) {
            let tasks = if let Kind::Pipe(pipe) = &stage.kind { pipe.alive() } else { 1 };
            let slots = if stage.core.closed { 0 } else { tasks.max(stage.concurrency()) };
            *time += 1_000_000 * slots as u64;
        }
    }

    fn step(&mut self, choice: usize) {
        self.pass();
        self.driver.step(choice, true);
        self.assert_within_limits();
    }

    /// Changes a setting, to a value from 1 to 5.
    fn resize(&mut self, choice: usize) {
        self.pass();
        let now = self.driver.tick();
        let (place, value) = (choice / 3, 1 + choice / 64 % 5);
        let (rules, schedule) = (&self.driver.rule, &mut self.driver.schedule);
        match choice % 3 {
            0 if !rules.is_empty() => {
                let position = place % rules.len();
                let can_change = matches!(
                    rules[position],
                    StageRule::Op(PipeRule { runs_on: RunsOn::Tasks | RunsOn::AnyThread, .. })
                );
                let id = (position + 1).to_string();
                let outcome = schedule.resize(Resize::Concurrency(&id, tasks(value)), now);
                assert_eq!(outcome.is_ok(), can_change || value == 1);
            }
            1 => assert_eq!(schedule.resize(workers(value), now), Ok(())),
            _ => {
                let id = format!("{}_queue", place % schedule.queues.len());
                assert_eq!(schedule.resize(Resize::Capacity(&id, items(value)), now), Ok(()));
            }
        }
        self.assert_within_limits();
    }

    /// Drives the run to its end, or for `stop` steps, and returns the number of changes.
    fn drive(&mut self, choices: &[usize], stop: Option<usize>) -> Result<u32, TestCaseError> {
        let (mut steps, mut resizes) = (0, 0);
        while !self.driver.schedule.is_over() && stop != Some(steps) {
            let choice = choices[steps % choices.len()].wrapping_add(steps);
            if choice.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 0 {
                self.resize(choice);
                resizes += 1;
            }
            self.step(choice);
            steps += 1;
            if steps % 7 == 0 {
                let ledger = self.driver.ledger();
                prop_assert!(ledger.balanced, "{ledger:#?}");
                self.driver.settle_all_nodes();
                prop_assert_eq!(self.driver.ledger(), ledger, "an item could have moved but did not");
            }
            prop_assert!(steps < 300_000, "the run does not end: {:#?}", self.driver.schedule);
        }
        Ok(resizes)
    }

    fn assert_within_limits(&mut self) {
        let schedule = &self.driver.schedule;
        assert_eq!(schedule.budget.held, schedule.bytes_by_node().sum::<u64>());
        for (stage, before) in schedule.stages.iter().zip(&mut self.tasks) {
            let Kind::Pipe(pipe) = &stage.kind else { continue };
            assert!(pipe.alive() <= pipe.concurrency.max(*before), "a task began above the concurrency");
            *before = pipe.alive();
        }
        for (queue, before) in schedule.queues.iter().zip(&mut self.items) {
            assert!(queue.items <= queue.capacity.max(*before), "an item was put above the capacity");
            *before = queue.items;
        }
    }
}

/// Number of random pipelines.
const PIPELINES: u32 = 1_000;

#[test]
fn random_changes_of_settings_neither_block_a_run_nor_lose_a_sample() {
    let config = Config { cases: PIPELINES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let budget = prop_oneof![0_u64..3_000, Just(1 << 20), Just(u64::MAX)];
    let failing = prop::option::weighted(0.3, (any::<usize>(), any::<bool>()));
    let stop = prop::option::weighted(0.3, 0_usize..300);
    let epochs = prop::collection::vec(0_u64..30, 1..4);
    let choices = prop::collection::vec(any::<usize>(), 400);
    let (resizes, compared) = (Cell::new(0), Cell::new(0));
    let inputs = (any_pipeline(), epochs, budget, failing, stop, choices);
    let outcome = runner.run(&inputs, |(pipeline, epochs, budget, failing, stop, choices)| {
        let (chunks, stream) = data(&epochs);
        let (mut shape, expected) = pipeline.shape(budget, stream);
        let count = shape.nodes.stages.len().max(1);
        if let Some((stage, is_limit)) = failing
            && let Some(stage) = shape.nodes.stages.get_mut(stage % count)
        {
            (stage.on_error, stage.max_failures) =
                if is_limit { (OnError::Skip, Some(FailureLimit::Count(1))) } else { (OnError::Fail, None) };
        }
        let collects = |stage: &StageShape| {
            matches!(
                stage.work,
                StageRule::Moving(Moving::Aggregate(_))
                    | StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. })
            )
        };
        let collects = shape.nodes.stages.iter().any(collects);
        let mut run = Resized::new(Driver::new(shape, chunks, 3));
        resizes.set(resizes.get() + run.drive(&choices, stop)?);
        let stopped = !run.driver.schedule.is_over();
        run.driver.schedule.stop();
        let ledger = run.driver.ledger();
        prop_assert!(ledger.balanced, "{ledger:#?}");
        run.pass();
        let now = run.driver.tick();
        let sums = read(&mut run.driver.schedule, now);
        let slot_time: Vec<u64> = sums.stages.iter().map(|sums| sums.row.slot_times().iter().sum()).collect();
        prop_assert_eq!(slot_time, run.slot_time);
        match run.driver.schedule.error() {
            Some(error) if error.starts_with("the run needs more memory") => {
                prop_assert!(collects, "{error}")
            }
            Some(error) => prop_assert!(failing.is_some(), "{error}"),
            None if stopped => {}
            None => {
                prop_assert_eq!((ledger.total.left, run.driver.schedule.budget.held), (0, 0));
                if let Some(expected) = expected.filter(|_| !collects) {
                    let (mut expected, mut found) = (keys(expected), keys(run.driver.delivered));
                    if !run
                        .driver
                        .rule
                        .iter()
                        .all(|rule| matches!(rule, StageRule::Op(PipeRule { order: Order::Input, .. })))
                    {
                        expected.sort_unstable();
                        found.sort_unstable();
                    }
                    prop_assert_eq!(found, expected);
                    compared.set(compared.get() + 1);
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let (resizes, compared) = (resizes.get(), compared.get());
    assert!(resizes >= 10_000 && compared >= PIPELINES / 6, "{resizes} changes, {compared} runs compared");
}

/// A schedule of one stage with 10 samples before it, and the tasks that it has begun.
fn one_stage(concurrency: usize, order: Order) -> (Schedule, Vec<Task>) {
    let stages = vec![stage(1, 10, pipe(concurrency, order, RunsOn::Tasks))];
    let mut schedule = Schedule::new(shape(stages, 10), Tick::ZERO);
    schedule.offer(Ok(Some(produced(samples(0..10, 0)))), Tick::ZERO);
    let begun = schedule.take_starts().into_iter().map(|(task, _)| task).collect();
    (schedule, begun)
}

/// Ends a task, and returns those that begin.
fn end(schedule: &mut Schedule, task: Task) -> Vec<Task> {
    let output = Output { dropped: 1, ..Output::default() };
    schedule.complete(task, Ok(output), OpTime::default(), Tick::ZERO);
    schedule.take_starts().into_iter().map(|(task, _)| task).collect()
}

#[test]
fn a_concurrency_rises_at_once_and_falls_as_tasks_end() {
    for order in [Order::Completion, Order::Input] {
        let (mut schedule, begun) = one_stage(4, order);
        assert_eq!(begun.len(), 4);
        schedule.resize(Resize::Concurrency("1", tasks(2)), Tick::ZERO).unwrap();
        assert_eq!(end(&mut schedule, begun[1]), []);
        assert_eq!(end(&mut schedule, begun[0]), []);
        assert_eq!(end(&mut schedule, begun[3]).len(), 1, "two tasks at a time from now on");
        schedule.resize(Resize::Concurrency("1", tasks(5)), Tick::ZERO).unwrap();
        assert_eq!(schedule.take_starts().len(), 3);
        assert!(schedule.ledger().balanced);
    }
}

#[test]
fn a_queue_above_a_lowered_capacity_accepts_no_item_until_it_is_below() {
    let mut schedule = Schedule::new(shape(vec![], 4), Tick::ZERO);
    schedule.offer(Ok(Some(produced(samples(0..20, 0)))), Tick::ZERO);
    let resize = |schedule: &mut Schedule, id, capacity| {
        schedule.resize(Resize::Capacity(id, items(capacity)), Tick::ZERO).unwrap();
        schedule.queues[1].items
    };
    assert_eq!(resize(&mut schedule, "1_queue", 2), 4);
    let left = |schedule: &mut Schedule| {
        assert!(matches!(schedule.deliver(Tick::ZERO), SinkDelivery::Item(_)));
        schedule.queues[1].items
    };
    assert_eq!([0; 4].map(|_| left(&mut schedule)), [3, 2, 2, 2]);
    assert_eq!(resize(&mut schedule, "1_queue", 6), 6, "the items before it follow at once");
    assert_eq!(resize(&mut schedule, "0_queue", 9), 6);
    assert_eq!((schedule.queues[0].items, read(&mut schedule, Tick::ZERO).capacity), (9, vec![9, 6]));
}

#[test]
fn workers_above_their_number_take_only_the_jobs_that_are_bound_to_them() {
    let any = stage(1, 4, pipe(4, Order::Input, RunsOn::AnyThread));
    let bound = stage(2, 4, pipe(1, Order::Input, RunsOn::OneThread(2)));
    let mut schedule = Driver::new(shape(vec![any, bound], 4), vec![], 3).schedule;
    schedule.offer(Ok(Some(produced(samples(0..10, 0)))), Tick::ZERO);
    schedule.resize(workers(1), Tick::ZERO).unwrap();
    assert!(schedule.take_job(1, Tick::ZERO).is_none() && schedule.take_job(2, Tick::ZERO).is_none());
    let first = schedule.take_job(0, Tick::ZERO).unwrap();
    let OpCall::Apply(item) = first.work else { panic!("a job without an item") };
    schedule.complete(first.task, Ok(Output::one(item)), OpTime::default(), Tick::ZERO);
    assert_eq!(schedule.take_job(2, Tick::ZERO).map(|job| job.task.stage), Some(1));
    schedule.resize(workers(2), Tick::ZERO).unwrap();
    assert_eq!(schedule.take_job(1, Tick::ZERO).map(|job| job.task.stage), Some(0));
}

#[test]
fn only_the_concurrency_of_stages_with_several_tasks_changes() {
    let aggregate =
        stage(1, 2, StageRule::Moving(Moving::Aggregate(AggregatePlan { size: 2, drop_last: false })));
    let stateful = stage(2, 2, pipe(1, Order::Input, RunsOn::OneThread(0)));
    let mut schedule = Schedule::new(shape(vec![aggregate, stateful], 2), Tick::ZERO);
    let mut resize = |change| schedule.resize(change, Tick::ZERO).map_err(|fault| fault.to_string());
    let one = "stage `2` always has one task at a time, so its concurrency stays 1";
    assert_eq!(resize(Resize::Concurrency("2", tasks(2))), Err(one.into()));
    assert!(resize(Resize::Concurrency("1", tasks(2))).is_err());
    assert_eq!(resize(Resize::Concurrency("2", tasks(1))), Ok(()));
    assert_eq!(resize(Resize::Concurrency("0", tasks(1))), Err("no stage has the id `0`".into()));
    assert_eq!(resize(Resize::Capacity("2", items(1))), Err("no queue has the id `2`".into()));
}

#[test]
fn slot_times_of_an_interval_are_those_of_the_concurrency_in_each_part_of_it() {
    let at = |eighths: u64| Tick::from_nanos(eighths * 125_000_000);
    let mut meter = StageMeter::starting_at(at(0), 2);
    meter.on_slot(at(0), Slot::Idle, Slot::Busy);
    meter.on_slot(at(0), Slot::Idle, Slot::Busy);
    // From two slots to four, then to one, while two have a task.
    meter.on_resize(at(2), 2);
    meter.on_resize(at(4), 0);
    meter.on_slot(at(6), Slot::Busy, Slot::Idle);
    meter.on_resize(at(6), 0);
    let mut sums = TaskSums::default();
    meter.read(at(8), &mut sums);
    let figures = sums.figures();
    assert_eq!((figures.busy_s, figures.idle_s), (1.75, 0.5));
    assert_eq!(figures.shares.map(|shares| shares.busy), Some(1.75 / 2.25));
}
