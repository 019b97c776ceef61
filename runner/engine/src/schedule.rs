//! The rules by which items move: pure, without threads, I/O or a clock.
//!
//! A schedule receives events (a chunk was produced, an op is done, the consumer takes) with the time of each, moves every item
//! that can move, and lists the work to be done outside: jobs for worker threads, starts for the I/O runtime. The thread that
//! reports an event drives the schedule, so no item waits for a scheduler thread; the engine keeps it behind one lock. Because
//! the schedule never reads a clock, the same rules run in tests without threads, and in predictions faster than real time.

mod agenda;
mod aggregate;
mod budget;
mod core;
mod disaggregate;
mod end;
mod epochs;
mod failures;
mod fill;
mod limits;
mod moves;
mod pipe;
mod queue;
mod resize;
mod room;
mod route;
mod settled;
mod shape;
mod sink;
mod source;
mod stage;
mod sums;
mod work;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::iter;

use penstock_types::ledger::Ledger;
use penstock_types::resume::{DataSet, Progress};
use penstock_types::routes::RouteSpan;
use penstock_types::stats::{BookRow, QueueMeter, QueueSums, TaskSums, Tick};

use self::agenda::Agenda;
use self::budget::ByteBudget;
pub(crate) use self::end::RunError;
use self::end::{RunEnd, RunFailures};
pub(crate) use self::failures::{FailedTask, FailureGroups};
use self::pipe::SHORT_BATCH_NANOS;
use self::queue::{Queue, Take};
pub use self::resize::{Resize, ResizeFault};
use self::route::Routes;
use self::settled::Settled;
pub(crate) use self::shape::{ChainShape, PipeRule};
use self::sink::SinkEnd;
use self::source::SourceEnd;
use self::stage::{Kind, Stage};
pub(crate) use self::sums::{RunReader, RunSums};
use self::work::WorkList;
pub(crate) use self::work::{DoneTask, OpCall, OpTime, RunsOn, Task, WorkerJob};
use crate::graph::Chain;
use crate::item::{Item, Origin};
use crate::ports::{Fault, Output, Produced};

/// The state of one run; changes only through events.
#[derive(Debug)]
pub(crate) struct Schedule {
    source: SourceEnd,
    stages: Vec<Stage>,
    sink: SinkEnd,
    routes: Routes,
    /// Output queues of the nodes: of the source (at 0), of the stages, then of the sink.
    queues: Vec<Queue>,
    budget: ByteBudget,
    work: WorkList,
    failures: RunFailures,
    settled: Settled,
    end: RunEnd,
    agenda: Agenda,
    /// Latest time of any event before the end. A thread reads the clock before it takes the lock, so events may arrive slightly
    /// out of order; within the schedule, time never goes backwards.
    latest: Tick,
}

#[derive(Debug)]
pub(crate) enum SinkDelivery {
    Item(Item),
    /// No item is available; the consumer is woken when this changes.
    Wait,
    /// All items were delivered. The run is over once the consumer is done.
    Ended,
    Over,
}

impl Schedule {
    /// Creates a schedule whose ops are not built yet: it holds a build job for each stage that runs on worker threads.
    pub(crate) fn new(shape: ChainShape, now: Tick) -> Self {
        let queue_meter = || if shape.measured { QueueMeter::starting_at(now) } else { QueueMeter::off() };
        let Chain { source, stages, routes, sink } = shape.nodes;
        let nodes = iter::once(&source).chain(stages.iter().map(|stage| &stage.node)).chain([&sink]);
        let mut queues: Vec<Queue> = nodes.map(|node| Queue::new(node, queue_meter())).collect();
        let routes = Routes::new(routes, queues.len());
        let in_paths =
            queues.iter_mut().enumerate().filter(|(node, _)| routes.spans().any(|span| span.contains(*node)));
        in_paths.for_each(|(_, queue)| queue.keeps_ends = true);
        let measured = shape.measured.then_some(now);
        let stages = stages.into_iter().enumerate();
        let stages: Vec<Stage> =
            stages.map(|(position, stage)| Stage::new(position, stage, measured)).collect();
        let stateful = |stage: &Stage| matches!(&stage.kind, Kind::Pipe(pipe) if matches!(pipe.runs_on, RunsOn::OneThread(_)));
        let last_stateful = stages.iter().rposition(stateful);
        let mut schedule = Self {
            source: SourceEnd::new(source.id, shape.source_on_error, shape.parts),
            stages,
            sink: SinkEnd::new(sink.id),
            routes,
            agenda: Agenda::none_of(queues.len()),
            queues,
            budget: ByteBudget::new(shape.buffer_bytes),
            work: WorkList::default(),
            failures: RunFailures::judged_from(shape.all_may_fail_before, shape.max_failures),
            settled: Settled::new(shape.known, shape.kept, last_stateful, shape.hands_out_later),
            end: RunEnd::default(),
            latest: now,
        };
        schedule.prepare();
        schedule
    }

    /// Accepts what the source produced; `None` marks the end of the data. An error ends the run as failed once all earlier
    /// samples are delivered.
    pub(crate) fn offer(&mut self, produced: Result<Option<Produced>, RunError>, now: Tick) {
        let Some(now) = self.advance(now) else { return };
        match produced {
            Ok(produced) => self.source.offer(produced, &mut self.budget),
            Err(RunError(message)) => {
                self.end.fail(message);
                self.settled.cut();
                self.source.offer(None, &mut self.budget);
            }
        }
        self.settle(0, now);
    }

    /// True if all samples of the source's last chunk were handed out, so that the next chunk can be accepted.
    pub(crate) fn wants_more(&self) -> bool {
        self.work.preparing == 0 && !self.end.over && self.source.wants_more()
    }

    /// Takes the oldest job that `worker` may run; from now on, its task no longer waits for a thread.
    pub(crate) fn take_job(&mut self, worker: usize, now: Tick) -> Option<WorkerJob> {
        let now = self.advance(now)?;
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
            let share = if is_bound { waiting } else { waiting.div_ceil(workers.min(self.work.workers)) };
            let more = 1..pipe.batch(share);
            jobs.extend(more.map_while(|_| self.work.take_job_of(stage)));
        }
    }

    /// Returns jobs that [`Self::take_jobs`] took and the worker did not begin.
    pub(crate) fn give_back(&mut self, jobs: impl DoubleEndedIterator<Item = WorkerJob>) {
        if self.end.over {
            return;
        }
        for job in jobs.rev().filter(|job| !self.end.is_dead(job.task.stage + 1)) {
            self.work.jobs.push_front(job);
        }
    }

    /// Records that a task on the I/O runtime starts waiting for permits (if `waits`) or stops waiting.
    pub(crate) fn on_permit_wait(&mut self, task: Task, waits: bool, now: Tick) {
        let Some(now) = self.advance(now) else { return };
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
        // If the run was stopped while the op was being built, an error of the op is ignored.
        let Some(now) = self.advance(now) else { return };
        self.work.preparing -= 1;
        let core = &mut self.stages[stage].core;
        match outcome {
            Ok(()) => core.meter.on_instances(1),
            Err(fault) => {
                let message = format!("stage `{}` cannot start: {}", core.id, fault.message);
                self.end.fail(message);
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
        let Some(now) = self.advance(now) else { return };
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
            self.failures.epochs.added(pipe.epoch, stage.core.book.made - made);
        }
        if let Some(failed) = failed {
            self.failures.add(pipe.epoch, failed);
        }
        self.budget.replace(before, pipe.task_bytes(task.slot));
        if (fatal.is_some() || self.failures.samples > 0)
            && self.end.error.is_none()
            && let Some(message) = self.fatal(task.stage, fatal).or_else(|| self.exceeded(task.stage, false))
        {
            self.cut(task.stage, message);
        }
    }

    pub(crate) fn deliver(&mut self, now: Tick) -> SinkDelivery {
        let Some(now) = self.advance(now) else { return SinkDelivery::Over };
        let last = self.queues.len() - 1;
        match self.queues[last].take(now) {
            Take::Item(item, bytes) => {
                self.budget.release(bytes);
                self.source.parts.deliver(&item);
                self.settled.deliver(&item);
                self.sink.consumer_waits = false;
                self.settle(last, now);
                SinkDelivery::Item(item)
            }
            Take::Empty => {
                self.sink.consumer_waits = true;
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
        self.settled.counts.items += items;
        self.settled.hand_out_samples(samples);
    }

    /// Samples settled so far. `data` is the data set of the source. `None` if the state certainly has more than `most` bytes.
    pub(crate) fn progress(&mut self, data: DataSet, most: u64) -> Option<Progress> {
        let ended_together = self.end.unread.is_some();
        // The state of such a run has whole epochs instead of these ranges, so that their number does not matter.
        let epochs = self.settled.progress(if ended_together { u64::MAX } else { most })?;
        let settled = self.settled.counts.book(&self.ledger().total);
        let items = self.settled.counts.items;
        let (kept, finished) = (self.settled.kept(), self.settled.finished());
        Some(Progress { epochs, settled, items, data, kept, finished, ended_together })
    }

    /// Ends the run after the consumer has finished, with or without an error, unless the run is over. `unfinished` is the
    /// number of samples that the consumer took but did not complete.
    pub(crate) fn consumer_done(&mut self, finished: Result<(), RunError>, unfinished: u64) {
        self.take_back(unfinished);
        match finished {
            Ok(()) => self.stop(),
            Err(RunError(message)) => self.fail(message),
        }
    }

    /// Records that a consuming thread still waits after another thread received an item.
    pub(crate) fn another_waits(&mut self) {
        self.sink.consumer_waits = true;
    }

    /// True if the consumer waits and can now receive an item or an end. Returns true only once per wait.
    pub(crate) fn call_consumer(&mut self) -> bool {
        let call =
            self.sink.consumer_waits && (self.end.over || self.queues.last().is_some_and(Queue::has_news));
        self.sink.consumer_waits &= !call;
        call
    }

    /// Ends the run as failed; samples still in the pipeline count as left. Does nothing if the run is over.
    pub(crate) fn fail_unless_over(&mut self, message: String) {
        if !self.end.over {
            self.fail(message);
        }
    }

    /// Ends the run as failed after an internal defect, even if the run was over; samples still in the pipeline count as left.
    pub(crate) fn fail(&mut self, message: String) {
        self.end.fail(message);
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
        if !self.end.over {
            self.check_all_limits();
        }
        self.end.unread =
            Some(expected.map_or(0, |expected| expected.saturating_sub(self.source.core.book.made)));
        self.stop();
    }

    /// Ends the run: nothing moves any more, and samples still in the pipeline count as left.
    pub(crate) fn stop(&mut self) {
        self.end.over = true;
        self.work.jobs.clear();
        self.work.starts.clear();
    }

    /// True if the run is over: all items were delivered, or the run was stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.end.over
    }

    /// True if the source has ended or the run has failed, and the remaining items are being delivered.
    pub(crate) fn is_draining(&self) -> bool {
        self.source.core.closed || self.end.error.is_some()
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.end.error.as_deref()
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
                Kind::Pipe(pipe) if matches!(job.work, OpCall::Apply(_)) => pipe.op_nanos.max(1),
                _ => u64::MAX,
            };
            let is_covered = op <= covered;
            covered = if is_covered { covered } else { SHORT_BATCH_NANOS }.saturating_sub(op);
            (!is_covered).then_some(None)
        })
    }

    /// True if the consumer can take an item without waiting.
    pub(crate) fn has_delivery(&self) -> bool {
        !self.end.over && self.queues.last().is_some_and(|queue| queue.items > 0)
    }

    /// Takes the tasks that failed since the last call, to be counted by group outside the run's lock.
    pub(crate) fn take_failures(&mut self) -> Vec<FailedTask> {
        std::mem::take(&mut self.failures.tasks)
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
            queue.meter.read(now, sums);
        }
        recent.delivered = self.delivered();
        recent.failed_samples = self.failures.samples;
        recent.concurrency = self.stages.iter().map(Stage::concurrency).collect();
        recent.capacity = self.queues.iter().map(|queue| queue.capacity).collect();
        recent.occupancy = self.queues.iter().map(|queue| queue.items).collect();
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
        self.queues.last().map_or(0, |queue| queue.taken)
    }

    pub(crate) fn ledger(&self) -> Ledger {
        let stages = iter::once(self.source.book())
            .chain(self.stages.iter().map(Stage::book))
            .chain([self.sink.book()])
            .collect();
        let routes: Vec<RouteSpan> = self.routes.spans().cloned().collect();
        let ledger = Ledger::close(stages, self.queues.iter().map(Queue::book).collect(), &routes)
            .with_sources(self.source.parts.books());
        match self.end.unread {
            Some(unread) => ledger.ended_together(unread),
            None => ledger,
        }
    }

    /// Time of an event at `now`; `None` once the run is over.
    #[inline]
    fn advance(&mut self, now: Tick) -> Option<Tick> {
        (!self.end.over).then(|| self.forward_to(now))
    }

    fn forward_to(&mut self, now: Tick) -> Tick {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn prepare(&mut self) {
        for (position, stage) in self.stages.iter().enumerate() {
            if let Kind::Pipe(pipe) = &stage.kind
                && pipe.runs_on != RunsOn::Tasks
            {
                let task = Task { stage: position, slot: 0 };
                let worker = pipe.runs_on.worker();
                self.work.jobs.push_back(WorkerJob { task, work: OpCall::Prepare, worker });
                self.work.preparing += 1;
            }
        }
    }
}
