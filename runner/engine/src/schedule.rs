//! The rules by which items move: pure, without threads, I/O or a clock.
//!
//! A schedule receives events (a chunk was produced, an op is done, the consumer takes) with the time of each, moves every item
//! that can move, and lists the work to be done outside: jobs for worker threads, starts for the I/O runtime. The thread that
//! reports an event drives the schedule, so no item waits for a scheduler thread; the engine keeps it behind one lock. Because
//! the schedule never reads a clock, the same rules run in tests without threads, and in predictions faster than real time.

mod aggregate;
mod budget;
mod core;
mod disaggregate;
mod epochs;
mod failures;
mod marked;
mod pipe;
mod queue;
mod room;
mod route;
mod settled;
mod shape;
mod sink;
mod source;
mod stage;
mod work;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::iter;
use std::ops::RangeInclusive;

use penstock_types::ledger::{Ledger, RunBook};
use penstock_types::policy::{FailureLimit, Order};
use penstock_types::resume::{DataSet, Progress};
use penstock_types::routes::RouteSpan;
use penstock_types::stats::{BookRow, QueueMeter, QueueSums, TaskSums, Tick};

use self::budget::ByteBudget;
use self::core::StageStep;
use self::epochs::EpochBooks;
pub(crate) use self::failures::{FailedTask, FailureGroups};
use self::failures::{exceeds, too_many};
use self::marked::Marked;
use self::pipe::SHORT_BATCH_NANOS;
use self::queue::{Queue, Take};
use self::room::NodesBehind;
use self::route::Routing;
use self::settled::Settled;
pub(crate) use self::shape::{ChainShape, NodeShape, PipeRule, StageRule, StageShape};
use self::sink::SinkEnd;
use self::source::SourceEnd;
use self::stage::{Kind, Stage};
use self::work::WorkList;
pub(crate) use self::work::{DoneTask, OpCall, OpTime, RunsOn, Task, WorkerJob};
use crate::item::{Item, Origin};
use crate::parts::PartBooks;
use crate::ports::{Fault, Output, Produced};
use crate::route::Route;

/// The state of one run; changes only through events.
#[derive(Debug)]
pub(crate) struct Schedule {
    source: SourceEnd,
    /// Counts of the sources of a mixture.
    parts: PartBooks,
    stages: Vec<Stage>,
    sink: SinkEnd,
    /// Routes by number.
    routes: Vec<Routing>,
    /// Node that reads each queue.
    readers: Vec<usize>,
    /// Nodes by node that come later in the list but wait for it; empty in pipelines without routes that keep the order.
    beside: Vec<Vec<RangeInclusive<usize>>>,
    /// Output queues of the nodes: of the source (at 0), of the stages, then of the sink.
    queues: Vec<Queue>,
    budget: ByteBudget,
    work: WorkList,
    failed_samples: u64,
    epochs: EpochBooks,
    settled: Settled,
    hands_out_later: bool,
    /// Tasks that failed since the last `take_failures`.
    failed: Vec<FailedTask>,
    max_failures: Option<FailureLimit>,
    /// Number of ops still to be built before the source starts.
    preparing: usize,
    /// Nodes that are stopped, because a stage downstream of them failed the run; empty before.
    dead: Vec<bool>,
    error: Option<String>,
    consumer_waits: bool,
    over: bool,
    /// Set if the run has ended because another rank had no more batches: number of samples that the source would still have made.
    unread: Option<u64>,
    /// Latest time of any event before the end. A thread reads the clock before it takes the lock, so events may arrive slightly
    /// out of order; within the schedule, time never goes backwards.
    latest: Tick,
    /// Nodes that may have work; used only within `settle`.
    marked: Marked,
    /// Nodes that a step of a route touched; used only within the step.
    touched: Vec<usize>,
}

/// Result of a take by the consumer.
#[derive(Debug)]
pub(crate) enum SinkDelivery {
    Item(Item),
    /// No item is available; the consumer is woken when this changes.
    Wait,
    /// All items were delivered. The run is over once the consumer is done.
    Ended,
    /// The run is over.
    Over,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RunSums {
    pub(crate) at: Tick,
    pub(crate) stages: Vec<TaskSums>,
    pub(crate) queues: Vec<QueueSums>,
    /// Samples taken by the consumer.
    pub(crate) delivered: u64,
    pub(crate) failed_samples: u64,
    /// Items in each queue.
    pub(crate) occupancy: Vec<usize>,
    /// Numbers of samples that passed source, stages, sink and consumer.
    pub(crate) books: Vec<BookRow>,
}

/// All sums of a run, added up from readings of its schedule. Two sets of histograms suffice for any number of readings.
#[derive(Debug, Default)]
pub(crate) struct RunReader {
    total: RunSums,
    recent: RunSums,
}

impl RunReader {
    /// Reads the schedule. The only step that needs the run's lock; its time does not depend on the number of recorded durations.
    pub(crate) fn read(&mut self, schedule: &mut Schedule, now: Tick) {
        schedule.read(now, &mut self.recent);
    }

    /// Adds the last reading to the sums of the run, and returns these.
    pub(crate) fn add(&mut self) -> RunSums {
        let Self { total, recent } = self;
        total.stages.resize_with(recent.stages.len(), TaskSums::default);
        total.queues.resize_with(recent.queues.len(), QueueSums::default);
        total.stages.iter_mut().zip(&mut recent.stages).for_each(|(total, recent)| total.add(recent));
        total.queues.iter_mut().zip(&mut recent.queues).for_each(|(total, recent)| total.add(recent));
        let RunSums { at, delivered, failed_samples, .. } = *recent;
        let (occupancy, books) = (recent.occupancy.clone(), recent.books.clone());
        let (stages, queues) = (total.stages.clone(), total.queues.clone());
        RunSums { at, stages, queues, delivered, failed_samples, occupancy, books }
    }
}

impl Schedule {
    /// Creates a schedule whose ops are not built yet: it holds a build job for each stage that runs on worker threads.
    pub(crate) fn new(shape: ChainShape, now: Tick) -> Self {
        let queue_meter = || if shape.measured { QueueMeter::starting_at(now) } else { QueueMeter::off() };
        let nodes = std::iter::once(&shape.source)
            .chain(shape.stages.iter().map(|stage| &stage.node))
            .chain([&shape.sink]);
        let mut queues: Vec<Queue> =
            nodes.map(|node| Queue::new(node.queue_id.clone(), node.capacity, queue_meter())).collect();
        let spans: Vec<RouteSpan> = shape.routes.iter().map(|route| route.span.clone()).collect();
        let in_paths =
            queues.iter_mut().enumerate().filter(|(node, _)| spans.iter().any(|span| span.contains(*node)));
        in_paths.for_each(|(_, queue)| queue.keep_ends());
        let measured = shape.measured.then_some(now);
        let stages: Vec<Stage> = shape
            .stages
            .into_iter()
            .enumerate()
            .map(|(position, stage)| Stage::new(position, stage, measured))
            .collect();
        let stateful = |stage: &Stage| matches!(&stage.kind, Kind::Pipe(pipe) if matches!(pipe.runs_on(), RunsOn::OneThread(_)));
        let settled = Settled::new(shape.known, shape.kept, stages.iter().rposition(stateful));
        let mut schedule = Self {
            source: SourceEnd::new(shape.source.id, shape.source_on_error),
            parts: PartBooks::of(shape.parts),
            stages,
            sink: SinkEnd::new(shape.sink.id),
            readers: RouteSpan::readers(&spans, queues.len()),
            beside: beside(&shape.routes, queues.len()),
            marked: Marked::none_of(queues.len()),
            routes: shape.routes.into_iter().map(Routing::new).collect(),
            queues,
            budget: ByteBudget::new(shape.buffer_bytes),
            work: WorkList::default(),
            failed_samples: 0,
            epochs: EpochBooks::judged_from(shape.all_may_fail_before, shape.max_failures),
            settled,
            hands_out_later: shape.hands_out_later,
            failed: Vec::new(),
            max_failures: shape.max_failures,
            preparing: 0,
            dead: Vec::new(),
            error: None,
            consumer_waits: false,
            over: false,
            unread: None,
            latest: now,
            touched: Vec::new(),
        };
        schedule.prepare();
        schedule
    }

    /// Accepts what the source produced; `None` marks the end of the data. An error ends the run as failed once all earlier
    /// samples are delivered.
    pub(crate) fn offer(&mut self, produced: Result<Option<Produced>, String>, now: Tick) {
        if self.over {
            return;
        }
        let now = self.forward_to(now);
        match produced {
            Ok(produced) => self.source.offer(produced, &mut self.budget),
            Err(message) => {
                self.error.get_or_insert(message);
                self.settled.cut();
                self.source.offer(None, &mut self.budget);
            }
        }
        self.settle(0, now);
    }

    /// True if all samples of the source's last chunk were handed out, so that the next chunk can be accepted.
    pub(crate) fn wants_more(&self) -> bool {
        self.preparing == 0 && !self.over && self.source.wants_more()
    }

    /// Takes the oldest job that `worker` may run; from now on, its task no longer waits for a thread.
    pub(crate) fn take_job(&mut self, worker: usize, now: Tick) -> Option<WorkerJob> {
        if self.over {
            return None;
        }
        let now = self.forward_to(now);
        let job = self.work.take_job(worker)?;
        if !matches!(job.work, OpCall::Prepare) {
            let stage = &mut self.stages[job.task.stage];
            if let Kind::Pipe(pipe) = &mut stage.kind {
                pipe.on_thread(job.task.slot, &mut stage.core, now);
            }
        }
        Some(job)
    }

    /// Takes the jobs that `worker`, one of `workers`, runs next, and appends them to `jobs`: the oldest job that it may run, and
    /// further jobs of the same stage. One slot of such a batch counts as busy until the worker returns the results; the other
    /// slots count as waiting for a thread.
    pub(crate) fn take_jobs(
        &mut self,
        worker: usize,
        workers: usize,
        jobs: &mut VecDeque<WorkerJob>,
        now: Tick,
    ) {
        let waiting = self.work.jobs.len();
        let Some(job) = self.take_job(worker, now) else { return };
        let stage = job.task.stage;
        let (is_op, is_bound) = (matches!(job.work, OpCall::Apply(_)), job.worker.is_some());
        jobs.push_back(job);
        if let Kind::Pipe(pipe) = &self.stages[stage].kind
            && is_op
        {
            let share = if is_bound { waiting } else { waiting.div_ceil(workers) };
            let more = 1..pipe.batch(share);
            jobs.extend(more.map_while(|_| self.work.take_job_of(stage)));
        }
    }

    /// Returns jobs that [`Self::take_jobs`] took and the worker did not begin.
    pub(crate) fn give_back(&mut self, jobs: impl DoubleEndedIterator<Item = WorkerJob>) {
        if self.over {
            return;
        }
        for job in jobs.rev().filter(|job| !is_dead(&self.dead, job.task.stage + 1)) {
            self.work.jobs.push_front(job);
        }
    }

    /// Records that a task on the I/O runtime starts waiting for permits (if `waits`) or stops waiting.
    pub(crate) fn on_permit_wait(&mut self, task: Task, waits: bool, now: Tick) {
        if self.over {
            return;
        }
        let now = self.forward_to(now);
        let stage = &mut self.stages[task.stage];
        if let Kind::Pipe(pipe) = &mut stage.kind {
            pipe.on_permit_wait(task.slot, waits, &mut stage.core, now);
        }
    }

    /// Takes the tasks to be started on the I/O runtime.
    pub(crate) fn take_starts(&mut self) -> Vec<(Task, Item)> {
        std::mem::take(&mut self.work.starts)
    }

    /// Records that the op of a stage was built before the start, or could not be.
    pub(crate) fn prepared(&mut self, stage: usize, outcome: Result<(), Fault>, now: Tick) {
        if self.over {
            // The run was stopped while the op was being built, so an error of the op is ignored.
            return;
        }
        let now = self.forward_to(now);
        self.preparing -= 1;
        let core = &mut self.stages[stage].core;
        match outcome {
            Ok(()) => core.meter.on_instances(1),
            Err(fault) => {
                let message = format!("stage `{}` cannot start: {}", core.id, fault.message);
                self.error.get_or_insert(message);
                self.stop();
            }
        }
        self.settle(0, now);
    }

    /// Records the result of a task's op. Results after the end of the run are ignored: their samples count as left.
    pub(crate) fn complete(&mut self, task: Task, outcome: Result<Output, Fault>, time: OpTime, now: Tick) {
        self.complete_all(iter::once(DoneTask { task, outcome, time }), now);
    }

    /// Records the results of several tasks of one stage.
    pub(crate) fn complete_all(&mut self, done: impl Iterator<Item = DoneTask>, now: Tick) {
        if self.over {
            return;
        }
        let now = self.forward_to(now);
        let mut stage = None;
        for done in done {
            stage = Some(done.task.stage);
            self.book(done, now);
        }
        if let Some(stage) = stage {
            self.settle(stage + 1, now);
        }
    }

    fn book(&mut self, DoneTask { task, outcome, time }: DoneTask, now: Tick) {
        let stage = &mut self.stages[task.stage];
        let Kind::Pipe(pipe) = &mut stage.kind else { return };
        let (before, made) = (pipe.task_bytes(task.slot), stage.core.book.made);
        let (failed, fatal) =
            pipe.complete(task.slot, outcome, time, &mut stage.core, &mut self.settled, now);
        if stage.core.book.made > made {
            self.epochs.added(pipe.epoch(), stage.core.book.made - made);
        }
        if let Some(failed) = failed {
            self.failed_samples += failed.samples();
            self.epochs.failed(pipe.epoch(), failed.samples(), || failed.in_words());
            self.failed.push(failed);
        }
        self.budget.replace(before, pipe.task_bytes(task.slot));
        if (fatal.is_some() || self.failed_samples > 0)
            && self.error.is_none()
            && let Some(message) = self.fatal(task.stage, fatal).or_else(|| self.exceeded(task.stage, false))
        {
            self.cut(task.stage, message);
        }
    }

    /// Takes the next delivery for the consumer.
    pub(crate) fn deliver(&mut self, now: Tick) -> SinkDelivery {
        if self.over {
            return SinkDelivery::Over;
        }
        let now = self.forward_to(now);
        let last = self.queues.len() - 1;
        match self.queues[last].take(now) {
            Take::Item(item, bytes) => {
                self.budget.release(bytes);
                self.parts.deliver(&item);
                if !self.hands_out_later {
                    self.settled.hand_out(&item);
                }
                self.consumer_waits = false;
                self.settle(last, now);
                SinkDelivery::Item(item)
            }
            Take::Empty => {
                self.consumer_waits = true;
                SinkDelivery::Wait
            }
            Take::EpochEnd | Take::Mark | Take::Ended => {
                self.check_all_limits();
                SinkDelivery::Ended
            }
        }
    }

    /// Records that delivered items with these samples were handed out.
    pub(crate) fn hand_out(&mut self, items: u64, samples: &[Origin]) {
        self.settled.items += items;
        self.settled.hand_out_samples(samples);
    }

    /// Samples settled so far. `data` is the data set of the source. `None` if the state certainly has more than `most` bytes.
    pub(crate) fn progress(&mut self, data: DataSet, most: u64) -> Option<Progress> {
        let ended_together = self.unread.is_some();
        // The state of such a run has whole epochs instead of these ranges, so that their number does not matter.
        let epochs = self.settled.progress(if ended_together { u64::MAX } else { most })?;
        let total = self.ledger().total;
        let settled = &self.settled;
        let book = RunBook {
            delivered: settled.handed,
            dropped: total.dropped.saturating_sub(settled.suppressed),
            skipped: total.skipped.saturating_sub(settled.unsettled_failures),
            dead_lettered: total.dead_lettered,
            discarded: total.discarded.saturating_sub(settled.unsettled_discards),
            ..RunBook::default()
        };
        let items = settled.items;
        let (kept, finished) = (self.settled.kept(), self.settled.finished());
        Some(Progress { epochs, settled: book.closed(), items, data, kept, finished, ended_together })
    }

    /// Ends the run after the consumer has finished, with or without an error, unless the run is over. `unfinished` is the
    /// number of samples that the consumer took but did not complete.
    pub(crate) fn consumer_done(&mut self, finished: Result<(), String>, unfinished: u64) {
        self.take_back(unfinished);
        match finished {
            Ok(()) => self.stop(),
            Err(message) => self.fail(message),
        }
    }

    /// Records that a consuming thread still waits after another thread received an item.
    pub(crate) fn another_waits(&mut self) {
        self.consumer_waits = true;
    }

    /// True if the consumer waits and can now receive an item or an end. Returns true only once per wait.
    pub(crate) fn call_consumer(&mut self) -> bool {
        let call = self.consumer_waits && (self.over || self.queues.last().is_some_and(Queue::has_news));
        self.consumer_waits &= !call;
        call
    }

    /// Ends the run as failed because the consumer cannot continue; samples still in the pipeline count as left. Does nothing if
    /// the run is over.
    pub(crate) fn consumer_failed(&mut self, message: String) {
        if !self.over {
            self.fail(message);
        }
    }

    /// Ends the run as failed after an internal defect, even if the run was over; samples still in the pipeline count as left.
    pub(crate) fn fail(&mut self, message: String) {
        self.error.get_or_insert(message);
        self.stop();
    }

    /// Ends the run because the requested time is over; limits on failure rates are checked as at any other end.
    pub(crate) fn time_is_up(&mut self) {
        self.check_all_limits();
        self.stop();
    }

    /// Counts samples that the consumer took and did not complete as left.
    pub(crate) fn take_back(&mut self, samples: u64) {
        if let Some(queue) = self.queues.last_mut() {
            queue.take_back(samples);
        }
    }

    /// Ends the run because another rank has no more batches: all that is left is discarded. `expected` is the number of samples that the
    /// source makes, if it is known.
    pub(crate) fn end_together(&mut self, expected: Option<u64>) {
        if !self.over {
            self.check_all_limits();
        }
        self.unread = Some(expected.map_or(0, |expected| expected.saturating_sub(self.source.made())));
        self.stop();
    }

    /// Ends the run: nothing moves any more, and samples still in the pipeline count as left.
    pub(crate) fn stop(&mut self) {
        self.over = true;
        self.work.jobs.clear();
        self.work.starts.clear();
    }

    /// True if the run is over: all items were delivered, or the run was stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// True if the source has ended or the run has failed, and the remaining items are being delivered.
    pub(crate) fn is_draining(&self) -> bool {
        self.source.is_closed() || self.error.is_some()
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Workers that the waiting jobs need, oldest job first: the only worker that may run a job, or `None` for any worker. Jobs
    /// that one worker finishes before another one could wake up need one worker.
    pub(crate) fn wanted_workers(&self) -> impl Iterator<Item = Option<usize>> + Clone {
        let mut covered = 0;
        self.work.jobs.iter().filter_map(move |job| {
            if job.worker.is_some() {
                return Some(job.worker);
            }
            let op = match &self.stages[job.task.stage].kind {
                Kind::Pipe(pipe) if matches!(job.work, OpCall::Apply(_)) => pipe.op_nanos().max(1),
                _ => u64::MAX,
            };
            let is_covered = op <= covered;
            covered = if is_covered { covered } else { SHORT_BATCH_NANOS }.saturating_sub(op);
            (!is_covered).then_some(None)
        })
    }

    /// True if the consumer can take an item without waiting.
    pub(crate) fn has_delivery(&self) -> bool {
        !self.over && self.queues.last().is_some_and(|queue| queue.items() > 0)
    }

    /// Takes the tasks that failed since the last call, to be counted by group outside the run's lock.
    pub(crate) fn take_failures(&mut self) -> Vec<FailedTask> {
        std::mem::take(&mut self.failed)
    }

    /// Reads all sums up to `now` into `recent`. Histograms are swapped with the empty ones in `recent` and hold only what was
    /// recorded since the last reading; [`RunReader::add`] completes the reading.
    pub(crate) fn read(&mut self, now: Tick, recent: &mut RunSums) {
        let now = self.forward_to(now);
        recent.at = now;
        recent.stages.resize_with(self.stages.len(), TaskSums::default);
        recent.queues.resize_with(self.queues.len(), QueueSums::default);
        for (stage, sums) in self.stages.iter_mut().zip(&mut recent.stages) {
            stage.core.meter.read(now, sums);
        }
        for (queue, sums) in self.queues.iter_mut().zip(&mut recent.queues) {
            queue.meter().read(now, sums);
        }
        recent.delivered = self.delivered();
        recent.failed_samples = self.failed_samples;
        recent.occupancy = self.queues.iter().map(Queue::items).collect();
        recent.books = self.books();
    }

    /// Numbers of samples that passed each node. No number ever decreases: samples that the consumer did not complete are counted
    /// separately.
    fn books(&self) -> Vec<BookRow> {
        let stages = self.stages.iter().map(|stage| BookRow::from(&stage.core.book));
        let consumer = self.queues.last().map_or_else(BookRow::default, Queue::consumer_row);
        iter::once(BookRow::from(&self.source.book()))
            .chain(stages)
            .chain([BookRow::from(&self.sink.book()), consumer])
            .collect()
    }

    /// Samples taken by the consumer.
    pub(crate) fn delivered(&self) -> u64 {
        self.queues.last().map_or(0, Queue::taken)
    }

    pub(crate) fn ledger(&self) -> Ledger {
        let stages = std::iter::once(self.source.book())
            .chain(self.stages.iter().map(Stage::book))
            .chain([self.sink.book()])
            .collect();
        let routes: Vec<RouteSpan> = self.routes.iter().map(|routing| routing.route().span.clone()).collect();
        let ledger = Ledger::close(stages, self.queues.iter().map(Queue::book).collect(), &routes)
            .with_sources(self.parts.books());
        match self.unread {
            Some(unread) => ledger.ended_together(unread),
            None => ledger,
        }
    }

    fn forward_to(&mut self, now: Tick) -> Tick {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn prepare(&mut self) {
        for (position, stage) in self.stages.iter().enumerate() {
            if let Kind::Pipe(pipe) = &stage.kind
                && pipe.runs_on() != RunsOn::Tasks
            {
                let task = Task { stage: position, slot: 0 };
                let worker = pipe.runs_on().worker();
                self.work.jobs.push_back(WorkerJob { task, work: OpCall::Prepare, worker });
                self.preparing += 1;
            }
        }
    }

    /// Steps `node` and all nodes affected by its moves, until nothing can move.
    fn settle(&mut self, node: usize, now: Tick) {
        if self.over || self.preparing > 0 {
            return;
        }
        self.marked.mark(node);
        self.move_all(now);
        self.fail_if_stuck(now);
    }

    fn move_all(&mut self, now: Tick) {
        // An op that has ended may leave room for a refused one, although it moves nothing: it may hold its samples.
        let mut moved = true;
        loop {
            while let Some(node) = self.marked.take() {
                if is_dead(&self.dead, node) {
                    continue;
                }
                let (took, put) = self.step_node(node, now);
                if took && node > 0 && self.queues[node - 1].take_refusal() {
                    self.marked.mark(node - 1);
                }
                let reader = self.readers[node];
                if put && reader < self.queues.len() {
                    self.marked.mark(reader);
                }
                moved |= took || put;
            }
            // A refused op may become startable when memory is freed, or when the op becomes the most downstream work.
            if !self.budget.take_freed() && (!self.budget.has_refused() || !moved) {
                return;
            }
            moved = false;
            self.mark_all();
        }
    }

    /// Marks all nodes, starting with the one nearest to the consumer, and clears the record of refusals.
    fn mark_all(&mut self) {
        self.budget.forget_refusals();
        (0..self.queues.len()).rev().for_each(|node| self.marked.mark(node));
    }

    /// Lets one node do all work that is possible now. Returns two flags: the first is true if the node took an item, the second
    /// if it put an item. Gates and joins mark their neighbours themselves.
    fn step_node(&mut self, node: usize, now: Tick) -> (bool, bool) {
        let (before, behind) = self.queues.split_at_mut(node);
        let [output, queues @ ..] = behind else { return (false, false) };
        let Some(input) = before.last_mut() else {
            return (false, self.step_source(now));
        };
        let (budget, work) = (&mut self.budget, &mut self.work);
        let count = self.stages.len();
        let (own, stages) = self.stages.split_at_mut(node.min(count));
        let beside = self.beside.get(node).map_or(&[][..], Vec::as_slice);
        let nodes =
            NodesBehind { stages, queues, sink_is_empty: self.sink.is_empty(), first: node + 1, beside };
        let behind = |is_clear| nodes.demand(is_clear);
        let behind = &behind;
        let (epochs, settled) = (&mut self.epochs, &mut self.settled);
        let mut step =
            StageStep { now, input, output, budget, behind, work, epochs, settled, took: false, put: false };
        match own.get_mut(node - 1) {
            Some(Stage { core, kind: Kind::Pipe(pipe) }) => pipe.step(core, &mut step),
            Some(Stage { core, kind: Kind::Aggregate(aggregate) }) => aggregate.step(core, &mut step),
            Some(Stage { core, kind: Kind::Disaggregate(disaggregate) }) => {
                disaggregate.step(core, &mut step)
            }
            Some(Stage { kind: Kind::Gate(gate), .. }) => {
                let route = gate.route();
                let moved = self.step_router(route, now);
                return (false, self.after_route(moved));
            }
            Some(Stage { kind: Kind::Join(join), .. }) => {
                let route = join.route();
                let moved = self.step_join(route, now);
                return (false, self.after_route(moved));
            }
            None => self.sink.step(&mut step),
        }
        let moved = (step.took, step.put);
        self.end_after_lost_epoch();
        moved
    }

    /// Lets the source put what it has. Returns true if it put an item.
    fn step_source(&mut self, now: Tick) -> bool {
        let known = self.failed.len();
        let put = self.source.step(
            &mut self.queues[0],
            &mut self.epochs,
            &mut self.settled,
            &mut self.parts,
            &mut self.failed,
            now,
        );
        if self.failed.len() > known {
            self.count_damaged(known);
        }
        self.end_after_lost_epoch();
        put
    }

    /// Counts samples that the source found damaged: those behind the first `known` failures.
    #[cold]
    fn count_damaged(&mut self, known: usize) {
        self.failed_samples += self.failed[known..].iter().map(FailedTask::samples).sum::<u64>();
        if self.error.is_none()
            && let Some(message) = self.run_exceeded(false)
        {
            self.end_source(message);
        }
    }

    /// Ends the step of a gate or join, which `moved` something or not.
    fn after_route(&mut self, moved: bool) -> bool {
        self.end_after_lost_epoch();
        moved
    }

    /// Ends the source if every sample of an epoch failed, or too many. The end of an epoch can reveal this without a new failure.
    fn end_after_lost_epoch(&mut self) {
        if self.error.is_none()
            && let Some(lost) = self.epochs.lost()
        {
            self.end_source(lost.to_owned());
        }
    }

    /// Ends the source with an error. The stages pass on their remaining items.
    #[cold]
    fn end_source(&mut self, message: String) {
        self.error = Some(message);
        self.settled.cut();
        self.source.end(&mut self.budget);
        self.marked.mark(0);
    }

    /// Checks all failure limits once more: during the run, a maximum share of failures applies only after enough tasks, at the end always.
    fn check_all_limits(&mut self) {
        for stage in 0..self.stages.len() {
            let exceeded = self.exceeded(stage, true);
            self.error = self.error.take().or(exceeded);
        }
        let exceeded = self.run_exceeded(true);
        self.error = self.error.take().or(exceeded);
    }

    /// Message for an op's fatal error, with the name of the stage.
    fn fatal(&self, stage: usize, fatal: Option<String>) -> Option<String> {
        Some(format!("stage `{}`: {}", self.stages[stage].core.id, fatal?))
    }

    /// Reason for ending the run after failures in `stage`, if any of the limits is exceeded.
    fn exceeded(&self, stage: usize, over: bool) -> Option<String> {
        let of_stage = self.stages[stage].core.exceeded(over);
        of_stage.or_else(|| self.run_exceeded(over)).or_else(|| self.epochs.lost().map(str::to_owned))
    }

    /// Reason for ending the run after failures anywhere, if the limit of the run is exceeded.
    fn run_exceeded(&self, over: bool) -> Option<String> {
        let (limit, failures) = (self.max_failures?, self.failed_samples);
        let made = self.source.made() + self.stages.iter().map(|stage| stage.core.book.made).sum::<u64>();
        let is_exceeded = failures > 0 && exceeds(limit, failures, made, over);
        is_exceeded.then(|| too_many("run", limit, failures, &format!("{made} samples")))
    }

    /// Fails the run because of too many failures in `stage`: the stage takes no more items, items upstream of it stay there, and
    /// items downstream of it are delivered, as are those in other paths of a route around it. If `stage` is a join, its route gets no
    /// more items.
    fn cut(&mut self, stage: usize, message: String) {
        self.error = Some(message);
        self.settled.cut();
        self.source.end(&mut self.budget);
        let own = self.routes.iter().map(|routing| &routing.route().span).find(|span| span.join == stage + 1);
        let (failed, is_join) = own.map_or((stage + 1, false), |span| (span.input() + 1, true));
        let mut dead: Vec<bool> = (0..self.queues.len()).map(|node| node < failed).collect();
        for span in
            self.routes.iter().map(|routing| &routing.route().span).filter(|span| span.contains(failed))
        {
            for path in span.paths() {
                let gate = *path.start();
                if !path.contains(&failed) || is_join && span.join == stage + 1 {
                    path.for_each(|node| dead[node] = false);
                }
                dead[gate] = true;
            }
        }
        self.close_routers_around(failed);
        // Items before and in this stage stay in memory for the rest of the run.
        let bytes = self.bytes_of_nodes_and_queues().enumerate().map(|(place, (node, queue))| {
            let reader = self.readers[place];
            let is_read = reader != failed && !is_dead(&dead, reader);
            u64::from(dead[place]) * node + u64::from(!is_read) * queue
        });
        let left = bytes.sum();
        self.budget.write_off(left);
        if let Kind::Pipe(pipe) = &mut self.stages[stage].kind {
            pipe.stop_taking();
        }
        self.work.jobs.retain(|job| !is_dead(&dead, job.task.stage + 1));
        self.work.starts.retain(|(task, _)| !is_dead(&dead, task.stage + 1));
        self.dead = dead;
    }
}

/// True if `node` was stopped.
fn is_dead(dead: &[bool], node: usize) -> bool {
    dead.get(node) == Some(&true)
}

/// Later paths of the routes around each node, of the routes that keep the order: their items wait for the node's.
fn beside(routes: &[Route], nodes: usize) -> Vec<Vec<RangeInclusive<usize>>> {
    let in_order = || routes.iter().filter(|route| route.order == Order::Input).map(|route| &route.span);
    if in_order().next().is_none() {
        return Vec::new();
    }
    let later = |node: usize| {
        let around = in_order().filter(move |span| span.contains(node));
        around.flat_map(|span| span.paths()).filter(move |path| *path.start() > node).collect()
    };
    (0..nodes).map(later).collect()
}
