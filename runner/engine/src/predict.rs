//! Predicts the behaviour of a pipeline: the schedule of a run, driven by a clock that jumps from event to event.
//!
//! The rules of the pipeline are not implemented a second time. A prediction uses the same schedule as a run, with the same
//! meters; only the ops, the source and the consumer are replaced by models of their durations. Where the document defines the
//! durations (`sleep`, `simulate`), each sample takes the same time as in a run of that document.
//!
//! Ops that compute share the machine's cores with each other and with other work on the machine: when there is more work than
//! cores, all of it slows down equally (processor sharing). Where a profile says so, an op that has a core also takes longer the more
//! other cores are in use, because cores share caches, memory and often execution units. Waiting uses no core.

mod cores;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::FutureExt;
use penstock_types::policy::{Concurrency, OnError, Order};
use penstock_types::profile::Contention;
use penstock_types::run::{FailureClass, RunState, Window};
use penstock_types::stats::Tick;

use self::cores::Cores;
pub use self::times::{OpTimes, RecordedTimes, StepTimes};
use crate::chunk::Chunk;
use crate::dispatch::RunReading;
use crate::graph::Chain;
use crate::item::{Item, Sample};
use crate::parts::SourceParts;
use crate::ports::{Fault, Items, Output, Produced, Source, Sums};
use crate::record::Recorder;
use crate::schedule::{
    ChainShape, OpCall, OpTime, PipeRule, Resize, ResizeFault, RunReader, RunSums, RunsOn, Schedule,
    SinkDelivery, Task,
};
use crate::stage_work::StageWork;

/// A pipeline whose parts are described by their durations.
pub struct Scenario {
    /// Source of the samples. A range is sufficient, because the content of samples is never read.
    pub source: Box<dyn Source>,
    pub source_time: Duration,
    /// Nodes of the pipeline. Paths of routes are drawn at random, since the content of samples is never read.
    pub chain: Chain<ScenarioOp>,
    pub consumer: StepTimes,
    pub threads: usize,
    pub cores: f64,
    /// Number of cores that other work would use if it had them.
    pub foreign_cores: f64,
}

/// An op described by its durations.
#[derive(Debug)]
pub struct ScenarioOp {
    pub times: OpTimes,
    pub place: OpPlace,
    pub concurrency: Concurrency,
    pub order: Order,
    /// Average number of output samples per input sample.
    pub yields: f64,
    /// Slowdown of the op while other cores are in use.
    pub contention: Contention,
}

/// Resource that an op occupies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OpPlace {
    /// The op is a future, which needs no thread while it waits.
    Task,
    Thread {
        /// Fraction of the op's time in which it needs a core, 0.0 to 1.0.
        computing: f64,
        /// Set if the stage may have only one instance.
        stateful: bool,
    },
}

/// Maximum number of events in a prediction. Without a limit, stages that take no time would produce events forever.
pub const MOST_EVENTS: usize = 5_000_000;

/// Length of the predicted interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The first part of a run: of this duration, or shorter if the data ends or [`MOST_EVENTS`] events have happened before.
    For(Duration),
    /// This number of events, of which the first fifth is excluded as warm-up. If the run ends earlier, its figures are measured
    /// from its start.
    Events(usize),
}

#[derive(Clone, Debug)]
pub struct Prediction {
    /// Figures of the predicted interval, as a run reports them.
    pub window: Window,
    /// Items that the consumer took in the interval.
    pub items: u64,
    /// Samples that the consumer took in the interval.
    pub samples: u64,
    /// Mean factor by which other work on the cores slowed down each stage, by its contention; waits for a core do not count.
    pub slowdowns: Vec<f64>,
}

pub fn predict(scenario: Scenario, extent: Extent) -> Prediction {
    Simulation::new(scenario).run(extent)
}

/// A run in simulated time whose settings can be changed.
pub struct Rehearsal {
    simulation: Simulation,
    before: RunSums,
}

impl Rehearsal {
    pub fn new(scenario: Scenario) -> Self {
        let mut simulation = Simulation::new(scenario);
        simulation.drive();
        Self { before: simulation.recorder.nothing(), simulation }
    }

    /// Lets `span` pass, or the time of [`MOST_EVENTS`] events, and returns the sums of that time.
    pub fn advance(&mut self, span: Duration) -> Sums {
        let run = &mut self.simulation;
        let end = run.now.saturating_add(nanos(span));
        run.most = run.seen + MOST_EVENTS as u64;
        while run.step(end) {}
        if run.seen < run.most && !run.schedule.is_over() {
            run.now = end;
        }
        let state = if run.schedule.is_over() { RunState::Completed } else { RunState::Running };
        let reading = RunReading { sums: run.reading(), state, expected: None };
        let sums = run.recorder.sums(&self.before, &reading);
        self.before = reading.sums;
        sums
    }

    /// Changes a setting, as in a run.
    pub fn resize(&mut self, change: Resize<'_>) -> Result<(), ResizeFault> {
        let now = Tick::from_nanos(self.simulation.now);
        let changed = self.simulation.schedule.resize(change, now);
        self.simulation.drive();
        changed
    }
}

/// One run in simulated time.
struct Simulation {
    schedule: Schedule,
    reader: RunReader,
    recorder: Recorder,
    source: PacedSource,
    ops: Vec<Option<ScenarioOp>>,
    /// Fraction of an output sample not yet emitted, by stage, because `yields` need not be a whole number.
    owed: Vec<f64>,
    consumer: StepTimes,
    consumer_is: ConsumerIs,
    free_workers: Vec<usize>,
    now: u64,
    waiting: BTreeMap<(u64, u64), Event>,
    cores: Cores<(OpUnderWay, u64)>,
    /// Number of events scheduled so far; orders events with the same time.
    begun: u64,
    /// Number of events that happened and of chunks that the source produced.
    seen: u64,
    /// Value of `seen` at which the prediction ends.
    most: u64,
}

/// The source with a simulated duration per chunk.
struct PacedSource {
    source: Box<dyn Source>,
    chunk: VecDeque<Produced>,
    nanos: u64,
    is_busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConsumerIs {
    Ready,
    Waiting,
    Busy,
}

enum Event {
    Op(OpUnderWay),
    Step,
    Produced(Option<Produced>),
}

/// An op in progress, with its result, which is known in advance.
struct OpUnderWay {
    task: Task,
    worker: Option<usize>,
    output: Output,
    begin: u64,
    /// Time on a core, in nanoseconds.
    cpu: u64,
}

impl Simulation {
    fn new(scenario: Scenario) -> Self {
        let threads = scenario.threads.max(1);
        let mut nodes = scenario.chain.map(|position, op| op.rule(position, threads));
        for stage in &mut nodes.stages {
            // No failure ends the predicted run.
            stage.on_error = OnError::Skip;
            stage.max_failures = None;
            stage.keeps_size = true;
        }
        let recorder = Recorder::of(&nodes);
        let shape = ChainShape {
            nodes,
            source_on_error: OnError::Skip,
            parts: SourceParts::default(),
            // The sizes of the samples are unknown, so a byte budget cannot apply here.
            buffer_bytes: u64::MAX,
            known: Vec::new(),
            kept: None,
            hands_out_later: false,
            max_failures: None,
            all_may_fail_before: u32::MAX,
            measured: true,
        };
        let ops = scenario.chain.stages.into_iter().map(|stage| match stage.work {
            StageWork::Op(op) => Some(op),
            _ => None,
        });
        let ops: Vec<_> = ops.collect();
        let contention = ops.iter().map(|op| op.as_ref().map(|op| op.contention.clone()).unwrap_or_default());
        let contention: Vec<_> = contention.collect();
        Self {
            schedule: Schedule::new(shape, Tick::ZERO),
            reader: RunReader::default(),
            recorder,
            source: PacedSource {
                source: scenario.source,
                chunk: VecDeque::new(),
                nanos: nanos(scenario.source_time),
                is_busy: false,
            },
            owed: vec![0.0; ops.len()],
            cores: Cores::new(scenario.cores, scenario.foreign_cores, contention),
            ops,
            consumer: scenario.consumer,
            consumer_is: ConsumerIs::Ready,
            free_workers: (0..threads).rev().collect(),
            now: 0,
            waiting: BTreeMap::new(),
            begun: 0,
            seen: 0,
            most: MOST_EVENTS as u64,
        }
    }

    fn run(mut self, extent: Extent) -> Prediction {
        let (most, mut warm_up, end) = match extent {
            Extent::For(span) => (MOST_EVENTS as u64, None, nanos(span)),
            Extent::Events(events) => {
                let events = events.min(MOST_EVENTS) as u64;
                (events, Some(events / 5), u64::MAX)
            }
        };
        self.most = most;
        let mut base = (self.recorder.nothing(), 0);
        self.drive();
        while self.step(end) {
            if warm_up.is_some_and(|warm_up| self.seen >= warm_up) {
                warm_up = None;
                base = (self.reading(), self.schedule.delivered());
            }
        }
        if self.seen < most {
            // The run ended before the limit, so its figures are measured from its start.
            base = (self.recorder.nothing(), 0);
        }
        let (from, delivered) = base;
        let to = self.reading();
        let window = self.recorder.window(&from, &to);
        let items = window.queues.last().map_or(0, |queue| queue.figures.num_items);
        let samples = self.schedule.delivered() - delivered;
        Prediction { window, items, samples, slowdowns: self.cores.slowdowns() }
    }

    /// Takes the next event, if there is one until `end`.
    fn step(&mut self, end: u64) -> bool {
        if self.schedule.is_over() || self.seen >= self.most {
            return false;
        }
        let Some(at) = self.next_at().filter(|at| *at <= end) else {
            self.now = end.min(self.now.max(self.next_at().unwrap_or(self.now)));
            return false;
        };
        self.now = at;
        self.take_event();
        self.drive();
        true
    }

    fn reading(&mut self) -> RunSums {
        self.schedule.read(Tick::from_nanos(self.now), &mut self.reader.recent);
        self.reader.add()
    }

    fn next_at(&self) -> Option<u64> {
        let waits = self.waiting.first_key_value().map(|((at, _), _)| *at);
        waits.into_iter().chain(self.cores.next_at(self.now)).min()
    }

    fn take_event(&mut self) {
        self.seen += 1;
        let tick = Tick::from_nanos(self.now);
        if let Some(((running, rest), cpu)) = self.cores.take_done(self.now) {
            // The computation is done; the op now waits for the rest of its duration.
            self.after(rest, Event::Op(OpUnderWay { cpu, ..running }));
            return;
        }
        let Some((_, event)) = self.waiting.pop_first() else { return };
        match event {
            Event::Op(OpUnderWay { task, worker, output, begin, cpu }) => {
                self.free_workers.extend(worker);
                let time = OpTime { wall: self.now - begin, cpu };
                self.schedule.complete(task, Ok(output), time, tick);
            }
            Event::Step => self.consumer_is = ConsumerIs::Ready,
            Event::Produced(produced) => {
                self.source.is_busy = false;
                self.schedule.offer(Ok(produced), tick);
            }
        }
    }

    fn after(&mut self, nanos: u64, event: Event) {
        // Events with the same time happen in the order in which they were scheduled.
        self.begun += 1;
        self.waiting.insert((self.now.saturating_add(nanos), self.begun), event);
    }

    /// Starts all work that can start now.
    fn drive(&mut self) {
        let tick = Tick::from_nanos(self.now);
        loop {
            let mut moved = self.feed(tick);
            for (task, item) in self.schedule.take_starts() {
                self.begin(task, item, None);
                moved = true;
            }
            for place in (0..self.free_workers.len()).rev() {
                let worker = self.free_workers[place];
                let Some(job) = self.schedule.take_job(worker, tick) else { continue };
                moved = true;
                match job.work {
                    OpCall::Prepare => self.schedule.prepared(job.task.stage, Ok(()), tick),
                    OpCall::Apply(item) => {
                        self.free_workers.remove(place);
                        self.begin(job.task, item, Some(worker));
                    }
                    OpCall::Finish => {
                        self.schedule.complete(job.task, Ok(Output::default()), OpTime::default(), tick);
                    }
                }
            }
            moved |= self.consume(tick);
            if !moved || self.seen >= self.most {
                return;
            }
        }
    }

    fn feed(&mut self, tick: Tick) -> bool {
        if self.source.is_busy || !self.schedule.wants_more() {
            return false;
        }
        self.seen += 1;
        let produced = self.source.next();
        if self.source.nanos == 0 {
            self.schedule.offer(Ok(produced), tick);
        } else {
            self.source.is_busy = true;
            self.after(self.source.nanos, Event::Produced(produced));
        }
        true
    }

    fn consume(&mut self, tick: Tick) -> bool {
        let is_called = self.schedule.call_consumer();
        let is_asleep = self.consumer_is == ConsumerIs::Waiting && !is_called;
        if is_asleep || self.consumer_is == ConsumerIs::Busy {
            return false;
        }
        match self.schedule.deliver(tick) {
            SinkDelivery::Item(_) => {
                self.consumer_is = ConsumerIs::Busy;
                let step = self.consumer.next();
                self.after(step, Event::Step);
            }
            SinkDelivery::Wait => self.consumer_is = ConsumerIs::Waiting,
            SinkDelivery::Ended => self.schedule.consumer_done(Ok(()), 0),
            SinkDelivery::Over => return false,
        }
        true
    }

    fn begin(&mut self, task: Task, item: Item, worker: Option<usize>) {
        let Some(op) = &self.ops[task.stage] else { return };
        let (takes, fails) = op.times.of(&item);
        let computes = match op.place {
            OpPlace::Task => 0,
            OpPlace::Thread { computing, .. } => (takes as f64 * computing) as u64,
        };
        let output = self.output(task.stage, item, fails);
        let running = OpUnderWay { task, worker, output, begin: self.now, cpu: 0 };
        if computes > 0 {
            self.cores.begin(self.now, task.stage, computes, (running, takes - computes));
        } else {
            self.after(takes, Event::Op(running));
        }
    }

    /// Simulated output for an item: the item itself, or as many samples as the stage yields on average.
    fn output(&mut self, stage: usize, item: Item, fails: bool) -> Output {
        if fails {
            let fault = Fault::new(FailureClass::Data, "would fail");
            return Output::all_failed(item.into_samples(), &fault);
        }
        let yields = self.ops[stage].as_ref().map_or(1.0, |op| op.yields);
        if (yields - 1.0).abs() < 1e-9 {
            return Output::one(item);
        }
        let is_batch = !matches!(item, Item::Sample(_));
        let samples = item.into_samples();
        self.owed[stage] += yields * samples.len() as f64;
        let due = self.owed[stage].floor();
        self.owed[stage] -= due;
        let due = due as usize;
        let dropped = samples.len().saturating_sub(due) as u64;
        let out: Vec<Sample> = samples.iter().cycle().take(due).cloned().collect();
        let items = match (out.len(), is_batch) {
            (0, _) => Items::None,
            (_, true) => Items::One(Item::Batch(out)),
            (_, false) => Items::Many(out.into_iter().map(Item::Sample).collect()),
        };
        Output { items, dropped, ..Output::default() }
    }
}

impl PacedSource {
    /// Next output of the source: a chunk if the source takes no time, otherwise a single sample.
    fn next(&mut self) -> Option<Produced> {
        if let Some(produced) = self.chunk.pop_front() {
            return Some(produced);
        }
        // A range is always ready and never fails.
        let produced = self.source.next().now_or_never()?.ok()??;
        match produced {
            Produced::Samples(samples) if self.nanos > 0 => {
                let single = |outcome| Produced::Samples(Chunk::from_iter([outcome]));
                self.chunk.extend(samples.into_outcomes().map(single));
                self.chunk.pop_front()
            }
            other => Some(other),
        }
    }
}

impl ScenarioOp {
    fn rule(&self, position: usize, threads: usize) -> PipeRule {
        PipeRule {
            concurrency: self.concurrency.get() as usize,
            order: self.order,
            runs_on: match self.place {
                OpPlace::Task => RunsOn::Tasks,
                OpPlace::Thread { stateful, .. } => RunsOn::thread(stateful, position, threads),
            },
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
