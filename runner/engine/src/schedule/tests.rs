//! Compares the schedule with a small sequential reference implementation, and checks exact counts. The tests create every event,
//! without threads or a clock.

mod budget;
mod outcomes;
mod resize;
mod resume;
mod routes;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use penstock_types::ledger::Ledger;
use penstock_types::plan::{AggregatePlan, Moving};
use penstock_types::policy::{Capacity, FailureLimit, OnError, Order, StageKindName};
use penstock_types::run::FailureClass;
use proptest::prelude::*;

use super::*;
use crate::chunk::Chunk;
use crate::graph::{GraphNode, StageNode};
use crate::item::{Origin, Sample, Value};
use crate::parts::SourceParts;
use crate::ports::{Failed, Items};
use crate::stage_work::StageWork;

type StageShape = StageNode<PipeRule>;
type StageRule = StageWork<PipeRule>;

fn node(id: usize, capacity: usize) -> GraphNode {
    GraphNode {
        id: format!("{id}"),
        name: String::new(),
        queue_id: format!("{id}_queue"),
        capacity: Capacity::new(capacity as u32).unwrap(),
    }
}

fn stage(id: usize, capacity: usize, work: StageRule) -> StageShape {
    StageShape {
        node: node(id, capacity),
        kind: StageKindName::Wasm,
        on_error: OnError::Skip,
        max_failures: None,
        keeps_size: false,
        work,
    }
}

fn produced(samples: impl Into<Chunk>) -> Produced {
    Produced::Samples(samples.into())
}

fn pipe(concurrency: usize, order: Order, runs_on: RunsOn) -> StageRule {
    StageRule::Op(PipeRule { concurrency, order, runs_on })
}

fn shape(stages: Vec<StageShape>, sink: usize) -> ChainShape {
    let id = stages.len() + 1;
    ChainShape {
        nodes: Chain { source: node(0, 2), stages, routes: Vec::new(), sink: node(id, sink) },
        parts: SourceParts::default(),
        buffer_bytes: u64::MAX,
        known: Vec::new(),
        kept: None,
        hands_out_later: false,
        max_failures: None,
        all_may_fail_before: u32::MAX,
        source_on_error: OnError::Skip,
        measured: true,
    }
}

/// Sums of a schedule that was not read before.
fn read(schedule: &mut Schedule, now: Tick) -> RunSums {
    let mut reader = RunReader::default();
    schedule.read(now, &mut reader.recent);
    reader.add()
}

/// Samples of four bytes each.
fn samples(keys: std::ops::Range<u64>, epoch: u32) -> Vec<Sample> {
    let sample = |key: u64| {
        let mut sample = Sample::new(key.to_string(), Origin::at(epoch, key));
        sample.set("four", Value::Blob(Bytes::from_static(&[0; 4])));
        sample
    };
    keys.map(sample).collect()
}

/// Output samples of the op for one sample. A pure function, so that the reference implementation can use it, too.
fn answer(stage: usize, sample: &Sample) -> Result<Vec<Sample>, ()> {
    let hash = sample.key.bytes().fold(stage as u64 + 7, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    });
    let child = |n: u64| Sample { key: format!("{}/{stage}.{n}", sample.key).into(), ..sample.clone() };
    match hash % 12 {
        0 => Ok(Vec::new()),
        1 => Err(()),
        2 => Ok((0..3).map(child).collect()),
        _ => Ok(vec![child(0)]),
    }
}

fn apply(stage: usize, item: Item) -> Output {
    let batch = matches!(item, Item::Batch(_));
    let mut output = Output::default();
    let mut kept = Vec::new();
    for sample in into_samples(item) {
        match answer(stage, &sample) {
            Ok(made) if made.is_empty() => output.dropped += 1,
            Ok(made) => kept.extend(made),
            Err(()) => output.failed.push(Failed { sample, fault: Fault::new(FailureClass::Data, "odd") }),
        }
    }
    output.items = match (batch, kept.len()) {
        (_, 0) => Items::None,
        (true, _) => Items::One(Item::Batch(kept)),
        (false, _) => Items::Many(kept.into_iter().map(Item::Sample).collect()),
    };
    output
}

fn into_samples(item: Item) -> Vec<Sample> {
    match item {
        Item::Sample(sample) => vec![sample],
        Item::Batch(samples) => samples,
        Item::Collated(_) => Vec::new(),
    }
}

/// A stateful op: joins pairs of samples into one, and passes a single sample left at the end of an epoch unchanged.
#[derive(Default)]
struct Joiner(Vec<Sample>);

impl Joiner {
    fn apply(&mut self, sample: Sample) -> Output {
        self.0.push(sample);
        if self.0.len() < 2 {
            return Output { held: 1, held_bytes: self.0[0].memory_bytes(), ..Output::default() };
        }
        let pair: Vec<Sample> = self.0.drain(..).collect();
        let joined = Sample { key: format!("{}+{}", pair[0].key, pair[1].key).into(), ..pair[0].clone() };
        Output { items: Items::One(Item::Sample(joined)), dropped: 1, ..Output::default() }
    }

    fn finish(&mut self) -> Output {
        Output { items: Items::Many(self.0.drain(..).map(Item::Sample).collect()), ..Output::default() }
    }
}

enum Mark {
    Item(Item),
    EpochEnd,
}

/// Reference implementation of one stage: its output for a whole stream, computed one item after the other.
fn reference(position: usize, rule: &StageRule, stream: Vec<Mark>) -> Vec<Mark> {
    let mut out = Vec::new();
    let mut joiner = Joiner::default();
    let mut collected = Vec::new();
    let put = |out: &mut Vec<Mark>, output: Output| match output.items {
        Items::None => {}
        Items::One(item) => out.push(Mark::Item(item)),
        Items::Many(items) => out.extend(items.into_iter().map(Mark::Item)),
    };
    let end = |out: &mut Vec<Mark>, joiner: &mut Joiner, collected: &mut Vec<Sample>| match rule {
        StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }) => put(out, joiner.finish()),
        StageRule::Moving(Moving::Aggregate(AggregatePlan { drop_last: false, .. }))
            if !collected.is_empty() =>
        {
            out.push(Mark::Item(Item::Batch(std::mem::take(collected))));
        }
        _ => collected.clear(),
    };
    for mark in stream {
        let Mark::Item(item) = mark else {
            end(&mut out, &mut joiner, &mut collected);
            out.push(Mark::EpochEnd);
            continue;
        };
        match rule {
            StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }) => {
                into_samples(item).into_iter().for_each(|sample| put(&mut out, joiner.apply(sample)));
            }
            StageRule::Op(PipeRule { .. }) => put(&mut out, apply(position, item)),
            StageRule::Moving(Moving::Aggregate(AggregatePlan { size, .. })) => {
                collected.extend(into_samples(item));
                if collected.len() >= *size {
                    out.push(Mark::Item(Item::Batch(std::mem::take(&mut collected))));
                }
            }
            StageRule::Moving(Moving::Disaggregate) => {
                out.extend(into_samples(item).into_iter().map(|sample| Mark::Item(Item::Sample(sample))));
            }
            StageRule::Moving(Moving::Gate { .. } | Moving::Join { .. }) => {
                unreachable!("routes have a reference of their own")
            }
        }
    }
    end(&mut out, &mut joiner, &mut collected);
    out
}

/// Drives a schedule by events, in any order that the threads of a run could produce.
struct Driver {
    schedule: Schedule,
    rule: Vec<StageRule>,
    chunks: VecDeque<Produced>,
    running: Vec<(Task, OpCall)>,
    joiners: BTreeMap<usize, Joiner>,
    /// Op of the stateful stage, if that saves its state.
    packer: Option<resume::Packer>,
    op: fn(usize, Item) -> Output,
    workers: usize,
    now: u64,
    delivered: Vec<Item>,
}

impl Driver {
    fn new(shape: ChainShape, chunks: Vec<Produced>, workers: usize) -> Self {
        let rule = shape.nodes.stages.iter().map(|stage| stage.work).collect();
        let packer = shape.kept.as_ref().map(|kept| resume::Packer::load(&kept.state));
        let mut driver = Self {
            schedule: Schedule::new(shape, Tick::ZERO),
            rule,
            chunks: chunks.into(),
            running: Vec::new(),
            joiners: BTreeMap::new(),
            packer,
            op: apply,
            workers,
            now: 0,
            delivered: Vec::new(),
        };
        for worker in 0..workers {
            while let Some(job) = driver.schedule.take_job(worker, Tick::ZERO) {
                assert!(matches!(job.work, OpCall::Prepare));
                driver.schedule.prepared(job.task.stage, Ok(()), Tick::ZERO);
            }
        }
        driver
    }

    fn tick(&mut self) -> Tick {
        self.now += 1_000_000;
        Tick::from_nanos(self.now)
    }

    /// Performs one of the currently possible events. Returns false if there is none.
    fn step(&mut self, choice: usize, consume: bool) -> bool {
        let now = self.tick();
        let threads_busy = self.running.iter().filter(|(task, _)| self.on_threads(*task)).count();
        let mut can = vec![];
        if self.schedule.wants_more() && self.schedule.source_waits(self.next_bytes(), 0, now) {
            can.push(0);
        }
        if self.schedule.wanted_workers().next().is_some() && threads_busy < self.workers {
            can.push(1);
        }
        can.extend((0..self.running.len()).map(|running| running + 3));
        if consume {
            can.push(2);
        }
        let Some(what) = can.get(choice % can.len().max(1)) else { return false };
        match *what {
            0 => self.schedule.offer(Ok(self.chunks.pop_front()), now),
            1 => {
                let mut jobs = VecDeque::new();
                let takes = (0..self.workers).find(|worker| {
                    self.schedule.take_jobs(*worker, self.workers, &mut jobs, now);
                    !jobs.is_empty()
                });
                if takes.is_some() {
                    // The worker begins some of the jobs and returns the rest.
                    let rest = jobs.split_off(1 + choice / 7 % jobs.len());
                    self.schedule.give_back(rest.into_iter());
                }
                self.running.extend(jobs.into_iter().map(|job| (job.task, job.work)));
            }
            2 => match self.schedule.deliver(now) {
                SinkDelivery::Item(item) => self.delivered.push(item),
                SinkDelivery::Ended => self.schedule.consumer_done(Ok(()), 0),
                SinkDelivery::Wait | SinkDelivery::Over => {}
            },
            running => self.finish_some(running - 3, 1 + choice / 7 % 4, now),
        }
        self.running
            .extend(self.schedule.take_starts().into_iter().map(|(task, item)| (task, OpCall::Apply(item))));
        true
    }

    fn next_bytes(&self) -> u64 {
        self.chunks.front().map_or(0, Produced::memory_bytes)
    }

    fn on_threads(&self, task: Task) -> bool {
        !matches!(self.rule[task.stage], StageRule::Op(PipeRule { runs_on: RunsOn::Tasks, .. }))
    }

    /// Completes the task at `running`, and further tasks of its stage: `most` in all.
    fn finish_some(&mut self, running: usize, most: usize, now: Tick) {
        let stage = self.running[running].0.stage;
        let first = self.running.remove(running);
        let mut done = vec![self.result(first)];
        while done.len() < most
            && let Some(next) = self.running.iter().position(|(task, _)| task.stage == stage)
        {
            let next = self.running.remove(next);
            done.push(self.result(next));
        }
        self.schedule.complete_all(done.into_iter(), now);
    }

    fn result(&mut self, (task, work): (Task, OpCall)) -> DoneTask {
        let stateful =
            matches!(self.rule[task.stage], StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }));
        let output = match work {
            OpCall::Apply(item) if stateful && let Some(packer) = &mut self.packer => {
                packer.apply(into_samples(item).remove(0))
            }
            OpCall::Finish if let Some(packer) = &mut self.packer => packer.finish(),
            OpCall::Apply(item) if stateful => {
                let joiner = self.joiners.entry(task.stage).or_default();
                joiner.apply(into_samples(item).remove(0))
            }
            OpCall::Apply(item) => (self.op)(task.stage, item),
            OpCall::Finish => self.joiners.entry(task.stage).or_default().finish(),
            OpCall::Prepare => Output::default(),
        };
        // Workers take jobs of some stages in batches.
        let wall = [1_000_000, 100, 3_000][task.stage % 3];
        DoneTask { task, outcome: Ok(output), time: OpTime { wall, cpu: 0 } }
    }

    /// Performs events without a consumer until nothing moves.
    fn fill(&mut self) {
        while self.step(0, false) {}
    }

    /// Steps every node once more.
    fn settle_all_nodes(&mut self) {
        let now = Tick::from_nanos(self.now);
        (0..self.rule.len() + 2).for_each(|node| self.schedule.settle(node, now));
    }

    fn ledger(&self) -> Ledger {
        self.schedule.ledger()
    }

    fn alive(&self) -> usize {
        let alive = |stage: &Stage| match &stage.kind {
            Kind::Pipe(pipe) => pipe.alive(),
            _ => 0,
        };
        self.schedule.stages.iter().map(alive).sum()
    }

    fn assert_within_limits(&self) {
        let counted: u64 = self.schedule.bytes_by_node().sum();
        assert_eq!(self.schedule.budget.held, counted, "bytes held by all nodes together");
        for (stage, rule) in self.schedule.stages.iter().zip(&self.rule) {
            if let (Kind::Pipe(pipe), StageRule::Op(PipeRule { concurrency, .. })) = (&stage.kind, rule) {
                assert!(pipe.alive() <= *concurrency);
            }
        }
        for queue in &self.schedule.queues {
            assert!(queue.items <= queue.capacity);
        }
    }
}

fn keys(items: Vec<Item>) -> Vec<Vec<String>> {
    items
        .into_iter()
        .map(|item| into_samples(item).into_iter().map(|sample| sample.key.to_string()).collect())
        .collect()
}

fn any_stages() -> impl Strategy<Value = Vec<StageShape>> {
    let runs_on = prop_oneof![Just(RunsOn::Tasks), Just(RunsOn::AnyThread)];
    let order = prop_oneof![Just(Order::Completion), Just(Order::Input)];
    let rule = prop_oneof![
        4 => (1_usize..5, order, runs_on).prop_map(|(concurrency, order, runs_on)| pipe(concurrency, order, runs_on)),
        2 => (1_usize..5, any::<bool>()).prop_map(|(size, drop_last)| StageRule::Moving(Moving::Aggregate(AggregatePlan { size, drop_last }))),
        1 => Just(StageRule::Moving(Moving::Disaggregate)),
        1 => (0_usize..2).prop_map(|worker| pipe(1, Order::Completion, RunsOn::OneThread(worker))),
    ];
    prop::collection::vec((rule, 1_usize..4), 0..6).prop_map(|stages| {
        // The plan's check guarantees that stages which take samples get no batches, and vice versa; the generated stages follow
        // this rule.
        let mut batches = false;
        let mut kept: Vec<StageShape> = Vec::new();
        for (rule, capacity) in stages {
            let fits = match rule {
                StageRule::Moving(Moving::Aggregate(AggregatePlan { .. }))
                | StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }) => !batches,
                StageRule::Moving(Moving::Disaggregate) => batches,
                StageRule::Op(PipeRule { .. })
                | StageRule::Moving(Moving::Gate { .. } | Moving::Join { .. }) => true,
            };
            if fits {
                batches = match rule {
                    StageRule::Moving(Moving::Aggregate(AggregatePlan { .. })) => true,
                    StageRule::Moving(Moving::Disaggregate) => false,
                    StageRule::Op(PipeRule { .. })
                    | StageRule::Moving(Moving::Gate { .. } | Moving::Join { .. }) => batches,
                };
                kept.push(stage(kept.len() + 1, capacity, rule));
            }
        }
        kept
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_schedule_delivers_the_same_as_a_sequential_reference(
        stages in any_stages(),
        epochs in prop::collection::vec(0_u64..25, 1..3),
        sink in 1_usize..4,
        workers in 1_usize..4,
        budget in prop_oneof![Just(1 << 20), Just(u64::MAX)],
        choices in prop::collection::vec(any::<usize>(), 400),
    ) {
        let workers = workers.max(2);
        let mut chunks = Vec::new();
        let mut stream = Vec::new();
        for (epoch, count) in epochs.iter().enumerate() {
            if epoch > 0 {
                chunks.push(Produced::EpochEnd);
                stream.push(Mark::EpochEnd);
            }
            chunks.push(produced(samples(0..*count, epoch as u32)));
            stream.extend(samples(0..*count, epoch as u32).into_iter().map(|sample| Mark::Item(Item::Sample(sample))));
        }
        for (position, stage) in stages.iter().enumerate() {
            stream = reference(position, &stage.work, stream);
        }
        let expected = keys(stream.into_iter().filter_map(|mark| match mark {
            Mark::Item(item) => Some(item),
            Mark::EpochEnd => None,
        }).collect());

        let in_order = stages.iter().all(|stage| match stage.work {
            StageRule::Op(PipeRule { concurrency, order, .. }) => concurrency == 1 || order == Order::Input,
            _ => true,
        });
        // With these stages, the order determines which samples form a pair or end up in a discarded batch.
        let order_matters = stages.iter().any(|stage| matches!(
            stage.work,
            StageRule::Moving(Moving::Aggregate(AggregatePlan { drop_last: true, .. })) | StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. })
        ));
        let mut driver = Driver::new(ChainShape { buffer_bytes: budget, ..shape(stages, sink) }, chunks, workers);
        let mut choices = choices.into_iter().cycle();
        let mut steps = 0;
        while !driver.schedule.is_over() {
            driver.step(choices.next().unwrap_or(0) + steps, true);
            driver.assert_within_limits();
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
        prop_assert_eq!(ledger.total.left, 0);
        let found = keys(std::mem::take(&mut driver.delivered));
        if in_order {
            prop_assert_eq!(found, expected);
        } else if !order_matters {
            let mut found = found.concat();
            let mut expected = expected.concat();
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
        let now = driver.tick();
        for (sums, rule) in read(&mut driver.schedule, now).stages.iter().zip(&driver.rule) {
            let concurrency = match rule { StageRule::Op(PipeRule { concurrency, .. }) => *concurrency as u64, _ => 1 };
            prop_assert_eq!(sums.row.slot_times().iter().sum::<u64>(), concurrency * sums.row.elapsed);
        }
    }

    #[test]
    fn the_ledger_balances_at_whatever_point_a_run_is_stopped(
        stages in any_stages(),
        count in 0_u64..40,
        choices in prop::collection::vec(any::<usize>(), 0..120),
    ) {
        let mut driver = Driver::new(shape(stages, 2), vec![produced(samples(0..count, 0))], 2);
        for choice in choices {
            driver.step(choice, true);
        }
        driver.schedule.stop();
        while !driver.running.is_empty() {
            // Results after the stop change nothing.
            let now = driver.tick();
            driver.finish_some(0, 1, now);
        }
        prop_assert!(driver.schedule.is_over());
        let ledger = driver.ledger();
        prop_assert!(ledger.balanced, "{ledger:#?}");
    }

    #[test]
    fn a_run_that_fails_too_often_delivers_existing_items_and_its_ledger_balances(
        stages in any_stages(),
        limit in prop_oneof![
            (0_u64..5).prop_map(FailureLimit::Count),
            (0.01_f64..0.3).prop_map(FailureLimit::Rate),
        ],
        of_stage in any::<bool>(),
        choices in prop::collection::vec(any::<usize>(), 300),
    ) {
        let mut whole = shape(stages, 2);
        if of_stage {
            whole.nodes.stages.iter_mut().for_each(|stage| stage.max_failures = Some(limit));
        } else {
            whole.max_failures = Some(limit);
        }
        let mut driver = Driver::new(whole, vec![produced(samples(0..300, 0))], 2);
        let mut choices = choices.into_iter().cycle();
        let mut steps = 0;
        while !driver.schedule.is_over() {
            driver.step(choices.next().unwrap_or(0) + steps, true);
            steps += 1;
            prop_assert!(steps < 200_000, "the run does not end");
        }
        let ledger = driver.ledger();
        prop_assert!(ledger.balanced, "{ledger:#?}");
        if let FailureLimit::Count(most) = limit {
            let failed = driver.schedule.failures.samples;
            if !of_stage {
                prop_assert_eq!(driver.schedule.error().is_some(), failed > most, "{} failed", failed);
            }
        }
    }
}

/// A schedule in which `waiting` tasks of a stage wait for a worker; ops of the stage took `op_nanos` so far.
fn with_waiting_jobs(waiting: usize, op_nanos: u64) -> Schedule {
    let stages = vec![stage(1, 2, pipe(waiting, Order::Completion, RunsOn::AnyThread))];
    let mut driver = Driver::new(shape(stages, 1), vec![], 4);
    driver.schedule.offer(Ok(Some(produced(samples(0..100, 0)))), Tick::ZERO);
    let job = driver.schedule.take_job(0, Tick::ZERO).unwrap();
    let time = OpTime { wall: op_nanos, cpu: 0 };
    driver.schedule.complete(job.task, Ok(Output { dropped: 1, ..Output::default() }), time, Tick::ZERO);
    driver.schedule
}

fn batch(schedule: &mut Schedule, workers: usize, now: Tick) -> VecDeque<WorkerJob> {
    let mut jobs = VecDeque::new();
    schedule.take_jobs(0, workers, &mut jobs, now);
    jobs
}

#[test]
fn a_worker_takes_its_share_of_short_jobs_and_a_long_job_alone() {
    let sizes = [
        ((64, 4, 1_000), 16),
        ((16, 4, 1_000), 5),
        ((16, 4, 3_000), 4),
        ((16, 4, 20_000), 2),
        ((64, 4, 60_000), 1),
        ((3, 4, 100), 3),
    ];
    for ((waiting, workers, op_nanos), size) in sizes {
        let mut schedule = with_waiting_jobs(waiting, op_nanos);
        let jobs = batch(&mut schedule, workers, Tick::ZERO);
        assert_eq!(jobs.len(), size, "{waiting} jobs of {op_nanos} ns, {workers} workers");
    }
}

#[test]
fn jobs_that_end_before_another_worker_wakes_up_need_one_worker() {
    for (op_nanos, wanted) in [(60_000, 16), (5_000, 16), (1_000, 4), (100, 1), (0, 1)] {
        assert_eq!(with_waiting_jobs(16, op_nanos).wanted_workers().count(), wanted, "{op_nanos} ns");
    }
}

#[test]
fn one_slot_of_a_batch_is_busy_and_the_others_wait_for_their_thread() {
    let at = |ms: u64| Tick::from_nanos(ms * 1_000_000);
    let mut schedule = with_waiting_jobs(4, 1_000);
    let mut jobs = batch(&mut schedule, 1, at(10));
    assert_eq!(jobs.len(), 4);
    let row = |schedule: &mut Schedule, ms| read(schedule, at(ms)).stages[0].row;
    let before = row(&mut schedule, 10);
    // The worker begins three of the jobs.
    let rest = jobs.split_off(3);
    let time = OpTime { wall: 1_000_000, cpu: 0 };
    let output = || Output { dropped: 1, ..Output::default() };
    let done = jobs.into_iter().map(|job| DoneTask { task: job.task, outcome: Ok(output()), time });
    schedule.complete_all(done, at(13));
    schedule.give_back(rest.into_iter());
    let sums = row(&mut schedule, 13).since(&before);
    assert_eq!((sums.elapsed, sums.busy, sums.thread_wait), (3_000_000, 3_000_000, 9_000_000));
    assert_eq!((sums.tasks, sums.thread_starts, sums.op_time), (3, 2, 3_000_000), "one op began before");
    assert_eq!(schedule.wanted_workers().count(), 4, "three new jobs, and the one that was returned");
    let next = batch(&mut schedule, 4, at(13)).pop_front();
    let Some(WorkerJob { work: OpCall::Apply(item), .. }) = next else { panic!("no job") };
    assert_eq!(item.first().map(|(_, origin)| origin.index), Some(4), "the returned job is the oldest");
}

#[test]
fn a_task_that_waits_for_permits_is_not_busy_and_slot_times_add_up() {
    let rule = pipe(2, Order::Completion, RunsOn::Tasks);
    let mut driver = Driver::new(shape(vec![stage(1, 2, rule)], 2), vec![produced(all_kept(2))], 1);
    let at = |seconds: u64| Tick::from_nanos(seconds * 1_000_000_000);
    driver.schedule.offer(Ok(driver.chunks.pop_front()), at(1));
    let starts = driver.schedule.take_starts();
    let [(first, item), (second, _)] = starts.try_into().unwrap();
    driver.schedule.on_permit_wait(first, true, at(2));
    driver.schedule.on_permit_wait(second, true, at(2));
    driver.schedule.on_permit_wait(first, false, at(5));
    driver.schedule.complete(first, Ok(Output::one(item)), OpTime::default(), at(6));
    // The result is not yet taken from the queue, and the second task still waits for permits.
    let row = read(&mut driver.schedule, at(8)).stages[0].row;
    let seconds = |nanos: u64| nanos / 1_000_000_000;
    assert_eq!([row.permit_wait, row.busy, row.idle].map(seconds), [9, 3, 4]);
    assert_eq!(row.slot_times().iter().sum::<u64>(), 2 * row.elapsed);
    driver.schedule.stop();
    // An event after the end changes nothing.
    driver.schedule.on_permit_wait(second, false, at(9));
    assert_eq!(seconds(read(&mut driver.schedule, at(9)).stages[0].row.permit_wait), 10);
}

#[test]
fn the_samples_in_flight_without_a_consumer_are_exactly_those_that_capacities_allow() {
    for (threads, order) in [(RunsOn::AnyThread, Order::Completion), (RunsOn::Tasks, Order::Input)] {
        let rule = pipe(4, order, threads);
        // The op keeps every sample, so that the expected counts are exact.
        let stages = vec![
            stage(1, 2, rule),
            stage(2, 3, StageRule::Moving(Moving::Aggregate(AggregatePlan { size: 5, drop_last: false }))),
        ];
        let mut driver = Driver::new(shape(stages, 3), vec![produced(all_kept(1000))], 4);
        driver.fill();
        let ledger = driver.ledger();
        let (source_queue, source_hand, tasks, stage_queue) = (2, 1, 4, 2);
        let (aggregate_queue, batch_in_hand, sink_hand, sink_queue) = (3, 1, 1, 3);
        let batches = aggregate_queue + batch_in_hand + sink_hand + sink_queue;
        assert_eq!(ledger.total.left, source_hand + source_queue + tasks + stage_queue + 5 * batches);
        assert_eq!(ledger.total.delivered, 0);
        assert_eq!(driver.alive(), 4);
        assert!(ledger.balanced);
    }
}

#[test]
fn one_thread_three_stages_and_queues_of_one_do_not_deadlock() {
    let stages = (1..=3).map(|id| stage(id, 1, pipe(4, Order::Completion, RunsOn::AnyThread))).collect();
    let mut driver = Driver::new(shape(stages, 1), vec![produced(samples(0..200, 0))], 1);
    let mut steps = 0;
    while !driver.schedule.is_over() {
        driver.step(steps % 5, true);
        steps += 1;
        assert!(steps < 100_000, "the run does not end");
    }
    assert!(driver.ledger().balanced);
}

#[test]
fn an_op_that_cannot_be_built_ends_the_run_before_anything_is_consumed() {
    let stages = vec![stage(1, 2, pipe(2, Order::Completion, RunsOn::AnyThread))];
    let mut schedule = Schedule::new(shape(stages, 3), Tick::ZERO);
    assert!(!schedule.wants_more(), "the source stays closed until the ops are built");
    let job = schedule.take_job(0, Tick::ZERO).unwrap();
    schedule.prepared(job.task.stage, Err(Fault::new(FailureClass::Bug, "no such size")), Tick::ZERO);
    assert!(schedule.is_over());
    assert_eq!(schedule.error(), Some("stage `1` cannot start: no such size"));
    assert_eq!(schedule.ledger().total, Default::default());
}

#[test]
fn an_op_that_loses_samples_is_reported_and_the_ledger_balances() {
    let stages = vec![stage(1, 2, pipe(1, Order::Completion, RunsOn::AnyThread))];
    let mut driver = Driver::new(shape(stages, 3), vec![produced(samples(0..1, 0))], 1);
    driver.step(0, false);
    let job = driver.schedule.take_job(0, Tick::ZERO).unwrap();
    driver.schedule.complete(job.task, Ok(Output::default()), OpTime::default(), Tick::ZERO);
    let groups = std::sync::Mutex::new(FailureGroups::default());
    driver.schedule.take_failures().into_iter().for_each(|task| task.book(&groups, |_| {}));
    let (groups, _) = groups.into_inner().unwrap().listed();
    assert_eq!(
        (groups[0].class, groups[0].first_keys.as_slice()),
        (FailureClass::Contract, ["0".to_owned()].as_slice())
    );
    assert!(driver.ledger().balanced);
}

/// Samples for which `answer` returns exactly one sample in the stage at position 0.
fn all_kept(count: usize) -> Vec<Sample> {
    let kept = |sample: &Sample| matches!(answer(0, sample), Ok(made) if made.len() == 1);
    samples(0..100_000, 0).into_iter().filter(kept).take(count).collect()
}

/// A run of two epochs whose op fails the samples of `failing`, drops those of `dropping` and duplicates the others.
fn run_of_two_epochs(
    failing: &'static [&str],
    dropping: &'static [&str],
    all_may_fail_before: u32,
) -> Schedule {
    let stages = vec![stage(1, 2, pipe(2, Order::Completion, RunsOn::AnyThread))];
    let epoch = |epoch: u32| produced(samples(0..3, epoch));
    let chunks = vec![epoch(0), Produced::EpochEnd, epoch(1)];
    let mut schedule = Schedule::new(ChainShape { all_may_fail_before, ..shape(stages, 50) }, Tick::ZERO);
    while let Some(job) = schedule.take_job(0, Tick::ZERO) {
        schedule.prepared(job.task.stage, Ok(()), Tick::ZERO);
    }
    let mut chunks = VecDeque::from(chunks);
    loop {
        if schedule.wants_more() {
            schedule.offer(Ok(chunks.pop_front()), Tick::ZERO);
        }
        let Some(job) = schedule.take_job(0, Tick::ZERO) else { break };
        let OpCall::Apply(item) = job.work else { panic!("an op without a state has nothing to finish") };
        let sample = into_samples(item).remove(0);
        let key = format!("{}/{}", sample.origin.epoch, sample.key);
        let output = match key.as_str() {
            key if failing.contains(&key) => {
                Output::all_failed(vec![sample], &Fault::new(FailureClass::Data, "damaged"))
            }
            key if dropping.contains(&key) => Output { dropped: 1, ..Output::default() },
            _ => Output {
                items: Items::Many(vec![Item::Sample(sample.clone()), Item::Sample(sample)]),
                ..Output::default()
            },
        };
        schedule.complete(job.task, Ok(output), OpTime::default(), Tick::ZERO);
    }
    assert!(schedule.ledger().balanced);
    schedule
}

#[test]
fn an_epoch_in_which_every_sample_fails_ends_the_run() {
    let first = run_of_two_epochs(&["0/0", "0/1", "0/2"], &[], 0);
    let expected = "all 3 samples of epoch 0 failed, the first in stage `1`: sample `0` failed: damaged";
    assert_eq!(first.error(), Some(expected));
    let second = run_of_two_epochs(&["1/0", "1/1", "1/2"], &[], 0);
    assert!(second.error().is_some_and(|error| error.starts_with("all 3 samples of epoch 1 failed")));
}

/// Fails all `count` samples of an epoch in batches of three, and only then ends the epoch; a second epoch follows.
fn run_of_failing_batches(count: u64, drop_last: bool) -> Schedule {
    let stages = vec![
        stage(1, 2, StageRule::Moving(Moving::Aggregate(AggregatePlan { size: 3, drop_last }))),
        stage(2, 2, pipe(1, Order::Completion, RunsOn::AnyThread)),
    ];
    let mut schedule = Schedule::new(ChainShape { all_may_fail_before: 0, ..shape(stages, 3) }, Tick::ZERO);
    let job = schedule.take_job(0, Tick::ZERO).unwrap();
    schedule.prepared(job.task.stage, Ok(()), Tick::ZERO);
    let fault = Fault::new(FailureClass::Data, "damaged");
    let chunks = [produced(samples(0..count, 0)), Produced::EpochEnd, produced(samples(0..3, 1))];
    let mut chunks = VecDeque::from(chunks);
    loop {
        while let Some(job) = schedule.take_job(0, Tick::ZERO) {
            let OpCall::Apply(item) = job.work else { panic!("an op without a state has nothing to finish") };
            schedule.complete(
                job.task,
                Ok(Output::all_failed(item.into_samples(), &fault)),
                OpTime::default(),
                Tick::ZERO,
            );
        }
        if !schedule.wants_more() {
            return schedule;
        }
        schedule.offer(Ok(chunks.pop_front()), Tick::ZERO);
    }
}

#[test]
fn an_epoch_whose_samples_all_failed_before_its_end_ends_the_run() {
    // With `count` 4, the fourth sample waits for a full batch until the end of the epoch passes it on or discards it.
    for (count, drop_last, failed) in [(3, false, 3), (3, true, 3), (4, true, 3), (4, false, 4)] {
        let mut schedule = run_of_failing_batches(count, drop_last);
        let expected = format!(
            "all {failed} samples of epoch 0 failed, the first in stage `2`: sample `0` failed: damaged"
        );
        assert_eq!(schedule.error(), Some(expected.as_str()), "{count} {drop_last}");
        assert!(matches!(schedule.deliver(Tick::ZERO), SinkDelivery::Ended), "the run ends: {schedule:?}");
        assert!(schedule.ledger().balanced);
    }
}

#[test]
fn a_rate_limit_of_the_run_counts_samples_made_by_fan_outs() {
    let stages = vec![
        stage(1, 5, pipe(1, Order::Completion, RunsOn::AnyThread)),
        stage(2, 5, pipe(1, Order::Completion, RunsOn::AnyThread)),
    ];
    let whole = ChainShape { max_failures: Some(FailureLimit::Rate(0.5)), ..shape(stages, 50) };
    let mut schedule = Schedule::new(whole, Tick::ZERO);
    while let Some(job) = schedule.take_job(0, Tick::ZERO) {
        schedule.prepared(job.task.stage, Ok(()), Tick::ZERO);
    }
    schedule.offer(Ok(Some(produced(samples(0..1, 0)))), Tick::ZERO);
    let job = schedule.take_job(0, Tick::ZERO).unwrap();
    let four = samples(0..4, 0).into_iter().map(Item::Sample).collect();
    let output = Output { items: Items::Many(four), ..Output::default() };
    schedule.complete(job.task, Ok(output), OpTime::default(), Tick::ZERO);
    let job = schedule.take_job(0, Tick::ZERO).unwrap();
    schedule.complete(job.task, Err(Fault::new(FailureClass::Bug, "trapped")), OpTime::default(), Tick::ZERO);
    schedule.time_is_up();
    assert_eq!(schedule.error(), None, "one of four samples failed, not one of one");
}

#[test]
fn an_epoch_continues_if_one_sample_is_delivered_or_dropped() {
    for (failing, dropping) in
        [(&["0/0", "0/1", "1/0", "1/1"][..], &[][..]), (&["0/1", "0/2", "1/1", "1/2"], &["0/0", "1/0"])]
    {
        assert_eq!(run_of_two_epochs(failing, dropping, 0).error(), None);
    }
    assert_eq!(run_of_two_epochs(&["0/0", "0/1", "0/2"], &[], u32::MAX).error(), None);
}

#[test]
fn the_default_limit_is_a_rate_after_a_thousand_samples_and_after_ten_failed_ones_at_the_end() {
    for (failed, of, over, is_exceeded) in [
        (999, 999, false, false),
        (50, 1_000, true, false),
        (51, 1_000, false, true),
        (51, 1_100, true, false),
        (10, 199, true, true),
        (10, 200, true, false),
        (9, 9, true, false),
    ] {
        assert_eq!(
            super::failures::exceeds(FailureLimit::Usual, failed, of, over),
            is_exceeded,
            "{failed} of {of}"
        );
    }
}

#[test]
fn a_stop_while_an_op_is_being_built_is_not_a_failure() {
    let stages = vec![stage(1, 2, pipe(1, Order::Completion, RunsOn::AnyThread))];
    let mut schedule = Schedule::new(shape(stages, 3), Tick::ZERO);
    let job = schedule.take_job(0, Tick::ZERO).unwrap();
    schedule.stop();
    schedule.prepared(job.task.stage, Err(Fault::new(FailureClass::Bug, "interrupted")), Tick::ZERO);
    schedule.offer(Err(RunError("interrupted".into())), Tick::ZERO);
    schedule.fail_unless_over("interrupted".into());
    assert_eq!(schedule.error(), None);
}

#[test]
fn every_waiting_put_of_a_fan_out_is_measured() {
    let at = |ms: u64| Tick::from_nanos(ms * 1_000_000);
    let stages = vec![stage(1, 1, pipe(2, Order::Completion, RunsOn::AnyThread))];
    let mut driver = Driver::new(shape(stages, 1), vec![], 1);
    driver.schedule.offer(Ok(Some(produced(samples(0..2, 0)))), at(0));
    let jobs = [driver.schedule.take_job(0, at(0)).unwrap(), driver.schedule.take_job(0, at(0)).unwrap()];
    for job in jobs {
        let three = samples(0..3, 0).into_iter().map(Item::Sample).collect();
        let output = Output { items: Items::Many(three), ..Output::default() };
        driver.schedule.complete(job.task, Ok(output), OpTime::default(), at(0));
    }
    // One item is in the sink queue, one is held by the sink and one is in the stage's queue; the fourth and all later items
    // wait.
    for ms in [10, 20, 30] {
        assert!(matches!(driver.schedule.deliver(at(ms)), SinkDelivery::Item(_)));
    }
    // The first task's three puts never waited. The second task's puts waited from the end of its op on: 10 ms, then 10 ms and 10
    // ms more.
    let queue = &read(&mut driver.schedule, at(30)).queues[1];
    assert_eq!((queue.row.puts, queue.row.put_wait), (6, 30_000_000));
    assert_eq!(queue.put_times.quantile_s(0.5).map(|s| (s * 1e3).round()), Some(0.0));
    assert_eq!(queue.put_times.longest_s().map(|s| (s * 1e3).round()), Some(10.0));
}

#[test]
fn a_run_whose_items_are_all_delivered_is_over_when_the_consumer_is_done() {
    let mut driver = Driver::new(shape(vec![], 3), vec![produced(samples(0..3, 0))], 0);
    driver.fill();
    for _ in 0..3 {
        assert!(matches!(driver.schedule.deliver(Tick::ZERO), SinkDelivery::Item(_)));
    }
    assert!(matches!(driver.schedule.deliver(Tick::ZERO), SinkDelivery::Ended));
    assert!(!driver.schedule.is_over());
    driver.schedule.consumer_done(Ok(()), 2);
    assert!(driver.schedule.is_over());
    // Samples that the consumer did not complete count as left.
    let ledger = driver.ledger();
    assert!(ledger.balanced);
    assert_eq!((ledger.total.made, ledger.total.delivered, ledger.total.left), (3, 1, 2));
}

#[test]
fn events_after_the_end_of_a_run_do_not_advance_its_time() {
    let at = |ms: u64| Tick::from_nanos(ms * 1_000_000);
    let stages = vec![stage(1, 1, pipe(1, Order::Completion, RunsOn::AnyThread))];
    let mut driver = Driver::new(shape(stages, 1), vec![], 1);
    driver.schedule.offer(Ok(Some(produced(samples(0..2, 0)))), at(0));
    let job = driver.schedule.take_job(0, at(1)).unwrap();
    driver.schedule.stop();
    driver.schedule.complete(job.task, Ok(Output::default()), OpTime::default(), at(20));
    assert!(driver.schedule.take_job(0, at(30)).is_none());
    assert!(matches!(driver.schedule.deliver(at(40)), SinkDelivery::Over));
    assert_eq!(read(&mut driver.schedule, at(10)).at, at(10));
}

#[test]
fn a_consumer_that_cannot_finish_fails_the_run_even_after_a_stop() {
    let mut schedule = Schedule::new(shape(vec![], 3), Tick::ZERO);
    schedule.stop();
    schedule.consumer_done(Err(RunError("the disk is full".into())), 0);
    assert_eq!(schedule.error(), Some("the disk is full"));
}

#[test]
fn a_rate_limit_is_checked_at_the_end_of_the_time_however_few_tasks_there_were() {
    let mut stages = vec![stage(1, 2, pipe(1, Order::Completion, RunsOn::AnyThread))];
    stages[0].max_failures = Some(FailureLimit::Rate(0.5));
    let mut driver = Driver::new(shape(stages, 3), vec![produced(samples(0..1, 0))], 1);
    driver.step(0, false);
    let job = driver.schedule.take_job(0, Tick::ZERO).unwrap();
    driver.schedule.complete(
        job.task,
        Err(Fault::new(FailureClass::Bug, "panicked")),
        OpTime::default(),
        Tick::ZERO,
    );
    assert_eq!(driver.schedule.error(), None);
    driver.schedule.time_is_up();
    assert!(driver.schedule.error().is_some_and(|error| error.contains("1 of 1 tasks failed")));
}

/// A stateful stage that holds four samples, produces `outcome` in `finish`, and allows a share of its tasks to fail.
fn failed_in_finish(rate: f64, outcome: impl Fn(Vec<Sample>) -> Result<Output, Fault>) -> Schedule {
    let mut stages = vec![stage(1, 2, pipe(1, Order::Completion, RunsOn::OneThread(0)))];
    stages[0].max_failures = Some(FailureLimit::Rate(rate));
    let mut driver = Driver::new(shape(stages, 3), vec![produced(samples(0..4, 0))], 1);
    let mut held = Vec::new();
    loop {
        while driver.step(0, false) && driver.running.is_empty() {}
        let Some((task, work)) = driver.running.pop() else { break driver.schedule };
        let output = match work {
            OpCall::Apply(item) => {
                held.extend(into_samples(item));
                Ok(Output { held: held.len() as u64, ..Output::default() })
            }
            OpCall::Finish => outcome(std::mem::take(&mut held)),
            OpCall::Prepare => Ok(Output::default()),
        };
        driver.schedule.complete(task, output, OpTime::default(), Tick::ZERO);
    }
}

#[test]
fn samples_that_fail_in_finish_count_as_the_tasks_that_took_them() {
    let fault = Fault::new(FailureClass::Bug, "trapped");
    let outcomes: [&dyn Fn(Vec<Sample>) -> Result<Output, Fault>; 3] =
        [&|held| Ok(Output::all_failed(held, &fault)), &|_| Err(fault.clone()), &|_| Ok(Output::default())];
    for outcome in outcomes {
        let mut schedule = failed_in_finish(0.5, outcome);
        let row = read(&mut schedule, Tick::ZERO).stages[0].row;
        assert_eq!((row.tasks, row.failures, row.failed_samples), (5, 1, 4), "fails on old");
        schedule.time_is_up();
        assert!(schedule.error().is_some_and(|error| error.contains("5 of 5 tasks failed")), "{schedule:?}");
        assert!(schedule.ledger().balanced);
    }
}

/// CPU time that this thread spends on `work`.
fn cpu_time(work: impl FnOnce()) -> std::time::Duration {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let begin = now();
    work();
    (now() - begin).try_into().unwrap()
}

#[test]
fn a_failed_batch_of_a_million_is_counted_under_the_lock_and_grouped_without_it() {
    const SAMPLES: u64 = 1_000_000;
    // CPU times of counting and of grouping.
    let times = |is_lost| {
        let stages = vec![
            stage(
                1,
                2,
                StageRule::Moving(Moving::Aggregate(AggregatePlan {
                    size: SAMPLES as usize,
                    drop_last: false,
                })),
            ),
            stage(2, 2, pipe(1, Order::Completion, RunsOn::AnyThread)),
        ];
        let chunk = || samples(0..SAMPLES, 0);
        let mut driver = Driver::new(shape(stages, 3), vec![produced(chunk())], 1);
        while driver.running.is_empty() {
            driver.step(0, false);
        }
        let (task, work) = driver.running.pop().unwrap();
        let OpCall::Apply(item) = work else { panic!("nothing to apply") };
        let fault = Fault::new(FailureClass::Bug, "trapped");
        let outcome = match is_lost {
            true => Err(fault),
            false => Ok(Output::all_failed(item.into_samples(), &fault)),
        };
        let counting = cpu_time(|| driver.schedule.complete(task, outcome, OpTime::default(), Tick::ZERO));
        let ledger = driver.ledger();
        assert_eq!((ledger.total.skipped, ledger.balanced), (SAMPLES, true));

        let groups = std::sync::Mutex::new(FailureGroups::default());
        let mut reported = 0;
        let booking = cpu_time(|| {
            driver
                .schedule
                .take_failures()
                .into_iter()
                .for_each(|task| task.book(&groups, |_| reported += 1));
        });
        assert_eq!(reported, SAMPLES);
        let (groups, _) = groups.into_inner().unwrap().listed();
        assert_eq!((groups.len(), groups[0].count), (1, SAMPLES));
        (counting, booking)
    };
    for is_lost in [false, true] {
        // Counting takes microseconds, while grouping takes half a second. A thread that others interrupt counts for longer, but not each time.
        let is_short = |(counting, booking)| counting * 100 < booking;
        assert!((0..3).any(|_| is_short(times(is_lost))), "lost: {is_lost}");
    }
}

#[test]
fn a_finish_that_panics_with_no_sample_held_is_a_failure() {
    let mut stages = vec![stage(1, 2, pipe(1, Order::Completion, RunsOn::OneThread(0)))];
    stages[0].on_error = OnError::Fail;
    let mut driver = Driver::new(shape(stages, 3), vec![], 1);
    driver.schedule.offer(Ok(None), Tick::ZERO);
    let job = driver.schedule.take_job(0, Tick::ZERO).unwrap();
    let fault = Fault::new(FailureClass::Bug, "panicked");
    driver.schedule.complete(job.task, Err(fault), OpTime::default(), Tick::ZERO);
    let error = driver.schedule.error().unwrap_or_default();
    assert!(error.contains("sample `finish` failed: panicked"), "{error}");
    assert!(driver.ledger().balanced);
}

#[test]
fn taking_the_end_of_an_epoch_drains_a_closed_queue() {
    let at = |ms: u64| Tick::from_nanos(ms * 1_000_000);
    let mut queue = Queue::new(&node(0, 2), QueueMeter::starting_at(at(0)));
    queue.put_epoch_end();
    queue.close(at(1));
    assert!(matches!(queue.take(at(2)), Take::EpochEnd));
    assert_eq!(
        {
            let mut sums = QueueSums::default();
            queue.meter.read(at(50), &mut sums);
            sums.row.elapsed
        },
        2_000_000
    );
}
