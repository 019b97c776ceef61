//! Tests of the memory budget: the bytes held, runs that fit, and the error of runs that do not fit.

use super::super::budget::Behind;
use super::*;

/// Size of the blobs that the stage at `position` makes, chosen so that some stages enlarge and others shrink their inputs.
fn blob_bytes(position: usize) -> usize {
    [700, 40, 300, 0, 1200, 90][position % 6]
}

fn with_blob(mut sample: Sample, bytes: usize) -> Sample {
    sample.set("blob", Value::Blob(vec![0; bytes].into()));
    sample
}

/// Sets a blob of the stage's size in each sample, and duplicates every seventh sample.
fn resized(stage: usize, item: Item) -> Output {
    let batch = matches!(item, Item::Batch(_));
    let copies = |sample: &Sample| if sample.origin.index % 7 == 3 { 2 } else { 1 };
    let samples = into_samples(item).into_iter();
    let made = samples.flat_map(|sample| std::iter::repeat_n(sample.clone(), copies(&sample)));
    let made: Vec<Sample> = made.map(|sample| with_blob(sample, blob_bytes(stage))).collect();
    let items = match batch {
        true => Items::One(Item::Batch(made)),
        false => Items::Many(made.into_iter().map(Item::Sample).collect()),
    };
    Output { items, ..Output::default() }
}

/// Upper bounds of the bytes that each part of a chain of [`resized`] ops holds at a time.
#[derive(Default)]
struct Needs {
    /// Bytes of one result, for each stage that calls an op.
    results: Vec<u64>,
    /// Bytes of all batches that are being collected, and of all samples held by ops.
    collected: u64,
}

impl Needs {
    fn of(stages: &[StageShape], samples: u64) -> Self {
        let sample = |blob: usize| with_blob(super::samples(0..1, 0).remove(0), blob).memory_bytes() + 40;
        let (mut per_sample, mut per_item) = (sample(0), 1);
        let mut needs = Self::default();
        // Each stage duplicates 4 of the 25 samples of an epoch; the bound assumes that it duplicates all of them.
        let mut all = samples;
        for (position, stage) in stages.iter().enumerate() {
            match stage.work {
                StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }) => {
                    needs.collected += 2 * per_sample;
                    needs.results.push(2 * per_sample);
                }
                StageRule::Op(PipeRule { .. }) => {
                    per_sample = sample(blob_bytes(position));
                    per_item *= 2;
                    all *= 2;
                    needs.results.push(per_item * per_sample);
                    if !is_batched(&stages[..position]) {
                        per_item = 1;
                    }
                }
                StageRule::Moving(Moving::Aggregate(AggregatePlan { size, .. })) => {
                    per_item = size as u64;
                    needs.collected += per_item.min(all) * per_sample;
                }
                StageRule::Moving(Moving::Disaggregate) => per_item = 1,
                StageRule::Moving(Moving::Gate { .. } | Moving::Join { .. }) => {}
            }
        }
        needs
    }
}

fn is_batched(stages: &[StageShape]) -> bool {
    let last = stages.iter().rev().find_map(|stage| match stage.work {
        StageRule::Moving(Moving::Aggregate(AggregatePlan { .. })) => Some(true),
        StageRule::Moving(Moving::Disaggregate) => Some(false),
        StageRule::Op(PipeRule { .. }) | StageRule::Moving(Moving::Gate { .. } | Moving::Join { .. }) => None,
    });
    last.unwrap_or(false)
}

fn note_results(schedule: &mut Schedule, results: &[u64]) {
    let pipes = schedule.stages.iter_mut().filter_map(|stage| match &mut stage.kind {
        Kind::Pipe(pipe) => Some(pipe),
        _ => None,
    });
    for (pipe, largest) in pipes.zip(results) {
        pipe.sizes.note(0, *largest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn any_budget_lets_the_run_end_and_is_exceeded_at_most_by_results(
        stages in any_stages(),
        epochs in prop::collection::vec(0_u64..25, 1..3),
        sink in 1_usize..4,
        limit in prop_oneof![0_u64..3_000, 0_u64..30_000],
        known in any::<bool>(),
        choices in prop::collection::vec(any::<usize>(), 400),
    ) {
        let mut chunks = Vec::new();
        for (epoch, count) in epochs.iter().enumerate() {
            if epoch > 0 {
                chunks.push(Produced::EpochEnd);
            }
            for first in (0..*count).step_by(5) {
                chunks.push(produced(samples(first..(first + 5).min(*count), epoch as u32)));
            }
        }
        let chunk: u64 = samples(10..15, 0).iter().map(Sample::memory_bytes).sum();
        let needs = Needs::of(&stages, epochs.iter().copied().max().unwrap_or(0));
        let largest: u64 = needs.results.iter().sum();
        let shape = ChainShape { buffer_bytes: limit, ..shape(stages, sink) };
        let mut driver = Driver { op: resized, ..Driver::new(shape, chunks, 2) };
        if known {
            note_results(&mut driver.schedule, &needs.results);
        }
        let mut choices = choices.into_iter().cycle();
        let mut steps = 0;
        while !driver.schedule.is_over() {
            driver.step(choices.next().unwrap_or(0) + steps, true);
            driver.assert_within_limits();
            let held = driver.schedule.budget.held;
            if known {
                // Parts of one result may already be in progress downstream.
                let most = limit + largest + 2 * chunk;
                prop_assert!(held <= most, "{held} of {limit} are held, with results of {:?}", needs.results);
            }
            steps += 1;
            if steps % 7 == 0 {
                let ledger = driver.ledger();
                prop_assert!(ledger.balanced, "{ledger:#?}");
                driver.settle_all_nodes();
                prop_assert_eq!(driver.ledger(), ledger, "an item could have moved but did not");
            }
            prop_assert!(steps < 200_000, "the run does not end");
        }
        let ledger = driver.ledger();
        prop_assert!(ledger.balanced, "{ledger:#?}");
        match driver.schedule.error() {
            None => {
                prop_assert_eq!(ledger.total.left, 0);
                prop_assert_eq!(driver.schedule.budget.held, 0);
            }
            Some(error) => {
                prop_assert!(error.starts_with("the run needs more memory than `buffer_mib` allows"), "{error}");
                prop_assert!(needs.collected > 0, "only collected or held samples can block a run: {error}");
                let enough = 2 * (needs.collected + largest + 2 * chunk);
                prop_assert!(limit < enough, "{enough} would suffice: {error}");
            }
        }
    }
}

/// An op that adds an 8 KiB blob to samples without a blob, like a fetch.
fn fetched(_: usize, item: Item) -> Output {
    let fetched = into_samples(item).into_iter().map(|sample| with_blob(sample, 8 << 10));
    Output { items: Items::Many(fetched.map(Item::Sample).collect()), ..Output::default() }
}

/// A source of `count` samples in chunks of five.
fn chunks(count: u64) -> Vec<Produced> {
    (0..count).step_by(5).map(|first| produced(samples(first..(first + 5).min(count), 0))).collect()
}

fn run_to_end(driver: &mut Driver) -> u64 {
    let (mut steps, mut peak) = (0, 0);
    while !driver.schedule.is_over() {
        driver.step(steps * 7 + steps / 3, true);
        driver.assert_within_limits();
        peak = peak.max(driver.schedule.budget.held);
        steps += 1;
        assert!(steps < 100_000, "the run does not end");
    }
    peak
}

#[test]
fn a_batch_that_cannot_fit_fails_the_run_with_the_memory_held_and_needed() {
    let fetch = stage(1, 2, pipe(16, Order::Completion, RunsOn::Tasks));
    let aggregate =
        stage(2, 2, StageRule::Moving(Moving::Aggregate(AggregatePlan { size: 1000, drop_last: false })));
    let shape = ChainShape { buffer_bytes: 512 << 10, ..shape(vec![fetch, aggregate], 3) };
    let mut driver = Driver { op: fetched, ..Driver::new(shape, chunks(1000), 0) };
    let peak = run_to_end(&mut driver);
    assert!(peak <= (512 << 10) + (9 << 10), "{peak}");
    assert_eq!(
        driver.schedule.error(),
        Some(
            "the run needs more memory than `buffer_mib` allows: 0.5 MiB of 0.5 MiB are in use, no task runs and no item can \
             move. In use by stage and its output queue: `0` 0.0 MiB; `2` 0.5 MiB, 62 of 1000 samples. About 9 MiB would suffice: \
             raise `buffer_mib`, or make batches smaller"
        )
    );
    assert!(driver.ledger().balanced);
}

#[test]
fn results_that_wait_in_slots_stay_within_the_budget_in_either_order() {
    for order in [Order::Completion, Order::Input] {
        let stages = vec![stage(1, 2, pipe(1000, order, RunsOn::Tasks))];
        let shape = ChainShape { buffer_bytes: 256 << 10, ..shape(stages, 3) };
        let chunks = chunks(1000);
        let mut driver = Driver { op: fetched, ..Driver::new(shape, chunks, 0) };
        driver.fill();
        let held = driver.schedule.budget.held;
        assert!(held > (200 << 10) && held <= (256 << 10) + (9 << 10), "{order:?}: {held}");
        let peak = run_to_end(&mut driver);
        assert!(peak <= (256 << 10) + (9 << 10), "{order:?}: {peak}");
        assert_eq!((driver.schedule.error(), driver.delivered.len()), (None, 1000));
    }
}

#[test]
fn tasks_double_with_the_known_results_until_all_slots_are_used() {
    let stages = vec![stage(1, 2, pipe(12, Order::Completion, RunsOn::Tasks))];
    let shape = ChainShape { buffer_bytes: 64 << 20, ..shape(stages, 3) };
    let mut driver = Driver { op: fetched, ..Driver::new(shape, vec![produced(samples(0..100, 0))], 0) };
    driver.step(0, false);
    let mut alive = Vec::new();
    for _ in 0..3 {
        alive.push(driver.running.len());
        for _ in 0..driver.running.len() {
            let now = driver.tick();
            driver.finish_some(0, 1, now);
            // The consumer takes every result immediately.
            while matches!(driver.schedule.deliver(now), SinkDelivery::Item(_)) {}
            let starts = driver.schedule.take_starts();
            driver.running.extend(starts.into_iter().map(|(task, item)| (task, OpCall::Apply(item))));
        }
    }
    assert_eq!(alive, [4, 8, 12]);
}

#[test]
fn an_op_that_keeps_the_size_of_its_input_starts_at_once() {
    let mut waits = stage(1, 2, pipe(12, Order::Completion, RunsOn::Tasks));
    waits.keeps_size = true;
    let shape = ChainShape { buffer_bytes: 64 << 20, ..shape(vec![waits], 3) };
    let mut driver = Driver::new(shape, vec![produced(samples(0..100, 0))], 0);
    driver.step(0, false);
    assert_eq!(driver.running.len(), 12);
}

#[test]
fn items_before_a_failed_stage_do_not_block_the_items_behind_it() {
    let mut failing = stage(2, 2, pipe(1, Order::Completion, RunsOn::Tasks));
    failing.max_failures = Some(FailureLimit::Count(0));
    let stages = vec![
        stage(1, 2, pipe(16, Order::Completion, RunsOn::Tasks)),
        failing,
        stage(3, 4, pipe(1, Order::Completion, RunsOn::Tasks)),
    ];
    fn fails_at_7(stage: usize, item: Item) -> Output {
        match (stage, item) {
            (1, Item::Sample(sample)) if sample.origin.index == 7 => {
                Output::all_failed([sample], &Fault::new(FailureClass::Data, "odd"))
            }
            (0 | 2, item) => fetched(stage, item),
            (_, item) => Output::one(item),
        }
    }
    let shape = ChainShape { buffer_bytes: 20 << 10, ..shape(stages, 1) };
    let chunks = chunks(50);
    let mut driver = Driver { op: fails_at_7, ..Driver::new(shape, chunks, 0) };
    run_to_end(&mut driver);
    assert!(driver.schedule.error().is_some_and(|error| error.contains("max_failures")));
    assert_eq!(driver.delivered.len(), 7);
}

#[test]
fn the_largest_result_counts_until_1024_to_2048_smaller_ones_have_followed() {
    let mut sizes = super::super::budget::ResultSizes::default();
    assert_eq!(sizes.largest(), None);
    sizes.note(10, 900);
    (0..1023).for_each(|_| sizes.note(40, 50));
    assert_eq!((sizes.largest(), sizes.growth()), (Some(900), 890));
    (0..1024).for_each(|_| sizes.note(40, 50));
    assert_eq!((sizes.largest(), sizes.growth()), (Some(900), 890));
    sizes.note(40, 50);
    assert_eq!((sizes.largest(), sizes.growth()), (Some(50), 10));
}

#[test]
fn an_op_starts_if_there_is_room_or_if_it_is_the_most_downstream_work() {
    let mut budget = ByteBudget::new(1000);
    budget.hold(950);
    let busy = Behind::default();
    let idle = Behind { is_idle: true, ..busy };
    let collecting = Behind { collects: true, ..idle };
    assert!(budget.admits(10, 60, || busy), "there is room");
    assert!(!budget.admits(10, 61, || busy) && budget.refused);
    assert!(budget.admits(10, 5000, || idle), "the result leaves the run");
    assert!(
        budget.admits(10, 5000, || collecting),
        "the held bytes without the result are within the budget"
    );
    budget.hold(61);
    assert!(!budget.admits(10, 11, || collecting), "the held bytes exceed the budget already");
    assert!(budget.admits(10, 10, || busy), "the result is no larger than the input");
    budget.release(61 + 450);
    assert!(budget.take_freed());
    assert!(budget.admits(0, 500, || busy));
    assert!(!budget.admits(0, 500, || Behind { growth: 1, ..busy }), "one byte too few for a downstream op");
    assert!(
        !budget.admits(0, 1, || Behind { growth: 5000, ..busy }),
        "at most half of the budget is kept for growth"
    );
    assert!(!budget.admits(0, 500, || Behind { promised: 1, ..busy }), "one byte too few for a batch");
    assert!(
        budget.admits(0, 500, || Behind { promised: 1001, ..busy }),
        "a batch larger than the budget does not count"
    );
}
