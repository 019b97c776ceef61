//! Cost of the engine: a source, one stage without work, a sink and a consumer that discards everything.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::clock::{Clock, ManualClock, MonotonicClock};
use penstock_engine::consumers::Discard;
use penstock_engine::graph::{self, Graph, GraphNode, StageNode, StageOp};
use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{
    Consumer, Fault, Output, Produced, Source, SourceFault, StopFlag, ThreadOp, ThreadOpFactory,
};
use penstock_engine::running::{Resize, RunHandle};
use penstock_engine::stage_work::StageWork;
use penstock_engine::timer::Timer;
use penstock_types::policy::{Capacity, Concurrency, OnError, Order, StageKindName};
use penstock_types::resume::Kept;
use tokio::runtime::Runtime;

use crate::{Bound, Row, median, take_turns};

const ITEMS: u64 = 100_000;
const CHUNK: u64 = 256;
/// Number of runs of each case of the statistics, whose differences are small.
const STATISTICS_RUNS: usize = 25;
const ONE: Chain = Chain { stages: 1, concurrency: 1 };
const THREE: Chain = Chain { stages: 3, concurrency: 4 };

/// Stages of a pipeline, and the concurrency of each.
#[derive(Clone, Copy)]
struct Chain {
    stages: usize,
    concurrency: usize,
}

#[derive(Clone, Copy)]
enum Statistics {
    Kept,
    /// No meters, but a clock.
    ClockOnly,
    /// No meters, and a clock that stands still.
    StillClock,
}

pub(crate) fn one_stage_against_crossbeam() -> Row {
    against_crossbeam("time per item in the engine, relative to crossbeam channels", ONE)
}

pub(crate) fn three_stages_against_crossbeam() -> Row {
    let what = "time per item with 3 stages of 4 tasks, relative to crossbeam";
    against_crossbeam(what, THREE)
}

fn against_crossbeam(what: &'static str, chain: Chain) -> Row {
    let runtime = runtime();
    let engine = || run_chain(&runtime, ITEMS, &empty_sample(), Arc::new(Identity), chain, Statistics::Kept);
    let (engine_s, crossbeam_s, ratio) = take_turns(engine, || crossbeam(ITEMS, chain));
    Row {
        what,
        must: Bound::AtMost(0.8, "x"),
        aim: Bound::AtMost(0.4, "x"),
        found: ratio,
        from: format!("{:.2} us against {:.2} us", per_item_us(engine_s), per_item_us(crossbeam_s)),
    }
}

pub(crate) fn cost_of_statistics() -> Row {
    statistics_of("time per item added by statistics", ONE, 5.0, 1.0)
}

pub(crate) fn cost_of_statistics_in_three_stages() -> Row {
    statistics_of("time per item added by statistics with 3 stages of 4 tasks", THREE, 5.0, 1.0)
}

/// Compares runs with and without meters. Both read the clock, because the schedule forms batches and waits by the measured times:
/// with a clock that stands still all batches are full and no thread sleeps, so such a run, shown beside, differs by more than
/// the cost of the readings.
fn statistics_of(what: &'static str, chain: Chain, must: f64, aim: f64) -> Row {
    let runtime = runtime();
    let case = |statistics| {
        run_chain(&runtime, ITEMS, &empty_sample(), Arc::new(Identity), chain, statistics).as_secs_f64()
    };
    let turn = || [Statistics::Kept, Statistics::ClockOnly, Statistics::StillClock].map(case);
    let turns: Vec<[f64; 3]> = (0..STATISTICS_RUNS).map(|_| turn()).collect();
    let of = |figure: &dyn Fn(&[f64; 3]) -> f64| median(turns.iter().map(figure).collect());
    let [on_us, off_us, still_us] = [0, 1, 2].map(|case| per_item_us(of(&|turn| turn[case])));
    Row {
        what,
        must: Bound::AtMost(must, " %"),
        aim: Bound::AtMost(aim, " %"),
        found: (of(&|[on, off, _]| on / off) - 1.0) * 100.0,
        from: format!(
            "{on_us:.2} us against {off_us:.2} us; {still_us:.2} us with a clock that stands still"
        ),
    }
}

/// Compares runs whose settings are changed every 5 ms, to the values that they have, with runs that are left alone.
pub(crate) fn cost_of_changes() -> Row {
    let runtime = runtime();
    let factory: Arc<dyn ThreadOpFactory> = Arc::new(Identity);
    let case = |changes: bool| {
        let graph = graph(ITEMS, &empty_sample(), &factory, THREE, 12, Box::new(Discard), true);
        finished(graph, ITEMS, &runtime, Arc::new(MonotonicClock::start()), |run| {
            let four = Concurrency::new(4).unwrap();
            while changes && !run.wait_for(Duration::from_millis(5)) {
                run.resize(Resize::Concurrency("2:bench", four)).unwrap();
                run.resize(Resize::Capacity("2:bench_queue", Capacity::new(2).unwrap())).unwrap();
            }
        })
        .as_secs_f64()
    };
    let turns: Vec<(f64, f64)> = (0..STATISTICS_RUNS).map(|_| (case(true), case(false))).collect();
    let of = |figure: fn(&(f64, f64)) -> f64| median(turns.iter().map(figure).collect());
    Row {
        what: "time per item added by 400 changes of settings in a second",
        must: Bound::AtMost(1.0, " %"),
        aim: Bound::AtMost(0.5, " %"),
        found: (of(|(on, off)| on / off) - 1.0) * 100.0,
        from: format!(
            "{:.2} us against {:.2} us",
            per_item_us(of(|turn| turn.0)),
            per_item_us(of(|turn| turn.1))
        ),
    }
}

/// Simulates 16 threads at the lock of one run. The shortest time per item of a stage whose ops do nothing is an upper bound of the
/// time for which an item holds the lock: all threads wait for the lock, or for the part of the consumer.
pub(crate) fn sixteen_threads_at_one_lock() -> Row {
    const OP_NANOS: u64 = 20_000;
    let runtime = runtime();
    let empty = Chain { stages: 1, concurrency: 16 };
    let time = || run_chain(&runtime, ITEMS, &empty_sample(), Arc::new(Identity), empty, Statistics::Kept);
    let shortest = (0..crate::RUNS).map(|_| time()).min().unwrap();
    let hold_us = per_item_us(shortest.as_secs_f64());
    Row {
        what: "ops of 20 us on 16 threads, relative to 16 loops (simulated)",
        must: Bound::AtLeast(0.9, "x"),
        aim: Bound::AtLeast(0.97, "x"),
        found: share_at_lock(16, OP_NANOS, (hold_us * 1e3) as u64),
        from: format!("an item holds the lock for {hold_us:.2} us at most"),
    }
}

/// Rate of `threads` that run an op and then hold one lock for `hold_nanos` each time, relative to threads without a lock. Ops
/// take between 0.5 and 1.5 times `op_nanos`; the lock goes to the thread that has waited longest.
fn share_at_lock(threads: u64, op_nanos: u64, hold_nanos: u64) -> f64 {
    const ROUNDS: u64 = 200_000;
    let mut random = 1_u64;
    let mut op = || {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        op_nanos / 2 + (random >> 33) % op_nanos
    };
    let mut arrivals: BinaryHeap<Reverse<u64>> = (0..threads).map(|_| Reverse(op())).collect();
    let mut free_at = 0;
    for _ in 0..ROUNDS {
        let Reverse(arrival) = arrivals.pop().unwrap();
        free_at = arrival.max(free_at) + hold_nanos;
        arrivals.push(Reverse(free_at + op()));
    }
    (ROUNDS * op_nanos) as f64 / (free_at * threads) as f64
}

pub(crate) fn last_item_to_end() -> Row {
    let runtime = runtime();
    let ends: Vec<f64> = (0..crate::RUNS)
        .map(|_| {
            let (last, taken) = std::sync::mpsc::channel();
            let consumer = NotesLast { last };
            let factory: Arc<dyn ThreadOpFactory> = Arc::new(Identity);
            let running = graph(1000, &empty_sample(), &factory, ONE, 12, Box::new(consumer), true)
                .start(runtime.handle().clone(), Arc::new(MonotonicClock::start()), Vec::new())
                .unwrap();
            running.wait();
            let end = Instant::now();
            (end - taken.into_iter().last().unwrap()).as_secs_f64() * 1e3
        })
        .collect();
    Row {
        what: "time from the last item to the end of a run with 12 threads",
        must: Bound::AtMost(5.0, " ms"),
        aim: Bound::AtMost(1.0, " ms"),
        found: median(ends.clone()),
        from: format!("{ends:.2?} ms"),
    }
}

pub(crate) fn timer_overshoot() -> Row {
    let timer = Timer::start().unwrap();
    let runtime = runtime();
    let late = |micros: u64| {
        let start = Instant::now();
        let wanted = Duration::from_micros(micros);
        runtime.block_on(timer.sleep(wanted));
        start.elapsed().saturating_sub(wanted).as_secs_f64() * 1e3
    };
    let medians: Vec<f64> =
        (0..crate::RUNS).map(|_| median((0..101).map(|i| late(500 + 20 * i)).collect())).collect();
    Row {
        what: "delay of the wake-up from asynchronous sleeps of 0.5 to 2.5 ms",
        must: Bound::AtMost(0.2, " ms"),
        aim: Bound::AtMost(0.1, " ms"),
        found: median(medians.clone()),
        from: format!("medians of 101 sleeps each: {medians:.3?} ms"),
    }
}

/// Time to pass `items` copies of `sample` through one stage, from the start to the end of the run.
pub(crate) fn run(
    runtime: &Runtime,
    items: u64,
    sample: &Sample,
    factory: Arc<dyn ThreadOpFactory>,
) -> Duration {
    run_chain(runtime, items, sample, factory, ONE, Statistics::Kept)
}

fn run_chain(
    runtime: &Runtime,
    items: u64,
    sample: &Sample,
    factory: Arc<dyn ThreadOpFactory>,
    chain: Chain,
    statistics: Statistics,
) -> Duration {
    let clock: Arc<dyn Clock> = match statistics {
        Statistics::Kept | Statistics::ClockOnly => Arc::new(MonotonicClock::start()),
        Statistics::StillClock => Arc::new(ManualClock::default()),
    };
    let measured = matches!(statistics, Statistics::Kept);
    let threads = chain.stages * chain.concurrency;
    let graph = graph(items, sample, &factory, chain, threads, Box::new(Discard), measured);
    finished(graph, items, runtime, clock, |_| ())
}

/// Time of a run of `items` from its start to its end. `meanwhile` is called with the run.
fn finished(
    graph: Graph,
    items: u64,
    runtime: &Runtime,
    clock: Arc<dyn Clock>,
    meanwhile: impl FnOnce(&RunHandle),
) -> Duration {
    let start = Instant::now();
    let running = graph.start(runtime.handle().clone(), clock, Vec::new()).unwrap();
    meanwhile(&running.handle());
    let view = running.wait();
    let elapsed = start.elapsed();
    assert_eq!(view.ledger.total.delivered, items, "{:?}", view.error);
    elapsed
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub(crate) fn empty_sample() -> Sample {
    Sample::new("key", Origin::default())
}

/// A sample with one blob.
pub(crate) fn sample_of(bytes: usize) -> Sample {
    let mut sample = empty_sample();
    sample.set("blob", Value::Blob(vec![7; bytes].into()));
    sample
}

pub(crate) struct Identity;

impl ThreadOpFactory for Identity {
    fn build(&self, _stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        Ok(Box::new(Self))
    }
}

impl ThreadOp for Identity {
    fn apply(&mut self, item: Item, _stop: &StopFlag) -> Output {
        Output::one(item)
    }
}

/// A chain of crossbeam channels with the queues of the engine and a thread for each task: source, stages, sink, consumer.
fn crossbeam(items: u64, chain: Chain) -> Duration {
    let sample = empty_sample();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (source, mut queue) = crossbeam_channel::bounded(2);
        scope.spawn(move || (0..items).for_each(|_| source.send(Item::Sample(sample.clone())).unwrap()));
        for node in 0..=chain.stages {
            let (capacity, threads) = if node < chain.stages { (2, chain.concurrency) } else { (3, 1) };
            let (sender, receiver) = crossbeam_channel::bounded(capacity);
            for _ in 0..threads {
                let (queue, sender) = (queue.clone(), sender.clone());
                scope.spawn(move || queue.into_iter().for_each(|item| sender.send(item).unwrap()));
            }
            queue = receiver;
        }
        scope.spawn(move || assert_eq!(queue.into_iter().count() as u64, items));
    });
    start.elapsed()
}

fn graph(
    items: u64,
    sample: &Sample,
    factory: &Arc<dyn ThreadOpFactory>,
    chain: Chain,
    threads: usize,
    consumer: Box<dyn Consumer>,
    measured: bool,
) -> Graph {
    let concurrency = u32::try_from(chain.concurrency).unwrap();
    let stage = |position: usize| StageNode {
        node: node(position, 2),
        kind: StageKindName::Wasm,
        on_error: OnError::Skip,
        max_failures: None,
        keeps_size: false,
        work: StageWork::Op(StageOp::Threads {
            factory: factory.clone(),
            concurrency: Concurrency::new(concurrency).unwrap(),
            order: Order::Completion,
            stateful: false,
        }),
    };
    Graph {
        name: "bench".into(),
        source: Box::new(Copies { sample: sample.clone(), left: items }),
        chain: graph::Chain {
            source: node(0, 2),
            stages: (1..=chain.stages).map(stage).collect(),
            routes: Vec::new(),
            sink: node(chain.stages + 1, 3),
        },
        source_on_error: OnError::Skip,
        consumer: Some(consumer),
        threads,
        stack_bytes: 2 << 20,
        buffer_bytes: 1 << 30,
        known: Vec::new(),
        kept: Kept::default(),
        max_failures: None,
        all_may_fail_before: 0,
        interval: Duration::from_secs(1),
        measured,
    }
}

fn node(id: usize, capacity: u32) -> GraphNode {
    GraphNode {
        id: format!("{id}:bench"),
        name: "bench".into(),
        queue_id: format!("{id}:bench_queue"),
        capacity: Capacity::new(capacity).unwrap(),
    }
}

fn per_item_us(seconds: f64) -> f64 {
    seconds * 1e6 / ITEMS as f64
}

struct Copies {
    sample: Sample,
    left: u64,
}

impl Source for Copies {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        let count = self.left.min(CHUNK);
        self.left -= count;
        let samples = || (0..count).map(|_| self.sample.clone()).collect();
        let produced = (count > 0).then(|| Produced::Samples(samples()));
        futures::future::ready(Ok(produced)).boxed()
    }
}

struct NotesLast {
    last: std::sync::mpsc::Sender<Instant>,
}

impl Consumer for NotesLast {
    fn consume(&mut self, _item: Item, _stop: &StopFlag) -> Result<(), Fault> {
        self.last.send(Instant::now()).unwrap();
        Ok(())
    }
}
