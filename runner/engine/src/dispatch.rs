use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use penstock_types::resume::DataSet;
use penstock_types::run::RunState;
use penstock_types::stats::Tick;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::graph::Graph;
use crate::handed::Handed;
use crate::item::Item;
use crate::lock::locked;
use crate::ports::{Ending, Fault, Observer, Produced, SlotWatch, StopFlag, TaskOp, TaskSlot};
use crate::schedule::{
    DoneTask, FailedTask, FailureGroups, OpTime, Resize, ResizeFault, RunError, RunReader, RunSums, Schedule,
    SinkDelivery, Task, WorkerJob,
};
use crate::wake::{IdleWorker, IdleWorkers, Signal};

/// The schedule of one run behind its lock, and the signals that wake the threads and tasks of the run.
pub(crate) struct Dispatcher {
    state: Mutex<DispatchState>,
    /// Failures by group. Updated after the run's lock is released, i.e. shortly after the run's sums have counted the failures.
    pub(crate) failures: Mutex<FailureGroups>,
    /// Sums of the run up to the last reading. Locked before `state`.
    reader: Mutex<RunReader>,
    /// One signal per worker: a job is ready for this worker.
    work: Vec<Signal>,
    /// Signals waiting consumer threads that an item has arrived.
    arrived: Signal,
    /// Signals that the run is over, and later that the owner thread has exited.
    ended: Condvar,
    /// Signals the source that the schedule accepts its next chunk.
    room: Notify,
    pub(crate) stop: StopFlag,
    cancel: CancellationToken,
    tracker: TaskTracker,
    runtime: Handle,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// Ops by stage; `None` for stages that run no tasks.
    task_ops: Vec<Option<Arc<dyn TaskOp>>>,
}

/// Jobs that a worker took together.
#[derive(Debug, Default)]
pub(crate) struct JobBatch {
    /// Jobs that the worker has not begun.
    pub(crate) jobs: VecDeque<WorkerJob>,
    pub(crate) done: Vec<DoneTask>,
}

pub(crate) struct DispatchState {
    pub(crate) schedule: Schedule,
    workers: IdleWorkers,
    /// Set while the source waits and has not been woken.
    source_waits: bool,
    /// Threads that wait for an item for the consumer.
    pub(crate) takers: usize,
    /// Takers that sleep; the others spin.
    sleeping_takers: usize,
    pub(crate) expected: Option<u64>,
    pub(crate) data: DataSet,
    pub(crate) stopped: Option<StopReason>,
    ended_at: Option<Tick>,
    /// Set once the owner thread and all workers have exited.
    pub(crate) owner_ended: bool,
}

/// Wake-ups to perform after the lock is released.
struct WakeUps {
    /// Calls a taker: one that sleeps if true.
    consumer: Option<bool>,
    workers: Vec<IdleWorker>,
    source: bool,
    starts: Vec<(Task, Item)>,
    failures: Vec<FailedTask>,
    over_now: bool,
}

/// Sums and state of a run at one moment.
pub(crate) struct RunReading {
    pub(crate) sums: RunSums,
    pub(crate) state: RunState,
    pub(crate) expected: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Requested by a user or client: the run ends as stopped.
    Asked,
    /// The requested time is over: the run ends as completed.
    TimeIsUp,
}

impl Dispatcher {
    pub(crate) fn new(
        graph: &Graph,
        runtime: Handle,
        clock: Arc<dyn Clock>,
        observers: Vec<Arc<dyn Observer>>,
    ) -> Self {
        let schedule = Schedule::new(graph.shape(), clock.now());
        Self {
            state: Mutex::new(DispatchState {
                schedule,
                workers: IdleWorkers::none_of(graph.threads),
                source_waits: false,
                takers: 0,
                sleeping_takers: 0,
                expected: None,
                data: DataSet::default(),
                stopped: None,
                ended_at: None,
                owner_ended: false,
            }),
            failures: Mutex::default(),
            reader: Mutex::default(),
            work: (0..graph.threads).map(|_| Signal::default()).collect(),
            arrived: Signal::default(),
            ended: Condvar::new(),
            room: Notify::new(),
            stop: StopFlag::default(),
            cancel: CancellationToken::new(),
            tracker: TaskTracker::new(),
            runtime,
            clock,
            observers,
            task_ops: graph.task_ops(),
        }
    }

    /// Reports the worker's last results at `now`, returns the jobs that it did not begin, and waits for its next jobs. Returns
    /// false when the run is over.
    pub(crate) fn next_jobs(self: &Arc<Self>, worker: usize, batch: &mut JobBatch, mut now: Tick) -> bool {
        let JobBatch { jobs, done } = batch;
        let mut state = self.lock();
        if !done.is_empty() {
            state.schedule.complete_all(done.drain(..), now);
            state.schedule.give_back(jobs.drain(..));
            // This worker takes the next jobs itself; other workers are called only for the remaining jobs.
            state.schedule.take_jobs(worker, self.work.len(), jobs, now);
            let over = state.schedule.is_over();
            let wake_ups = self.wake_ups(&mut state);
            drop(state);
            self.wake(wake_ups);
            if over || !jobs.is_empty() {
                return !over;
            }
            state = self.lock();
        }
        let signal = &self.work[worker];
        let wait = signal.wait_since(now);
        let mut spins = signal.spins();
        loop {
            if state.schedule.is_over() {
                return false;
            }
            state.schedule.take_jobs(worker, self.work.len(), jobs, now);
            if !jobs.is_empty() {
                signal.waited(wait, now);
                // One call may stand for several jobs, of which some remain.
                let wake_ups = self.wake_ups(&mut state);
                drop(state);
                self.wake(wake_ups);
                return true;
            }
            state.workers.enter(worker, !spins);
            if std::mem::take(&mut spins) {
                drop(state);
                signal.spin(wait);
                state = self.lock();
            } else {
                state = signal.sleep(state, None);
            }
            state.workers.leave(worker);
            now = self.clock.now();
        }
    }

    /// Takes the next delivery from the sink queue; returns [`SinkDelivery::Wait`] if nothing arrives before `until`. Appends further
    /// items to `more` if the consumer can take them without waiting, `most` items in all. Settles what the consumer has completed
    /// before. `taken` is called before any thread is woken.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        until: Option<Tick>,
        most: usize,
        more: &mut Vec<Item>,
        handed: &mut Handed,
        taken: impl FnOnce(),
    ) -> SinkDelivery {
        let mut now = self.clock.now();
        let mut state = self.lock();
        handed.settle(&mut state.schedule);
        let wait = self.arrived.wait_since(now);
        let mut spins = self.arrived.spins();
        loop {
            let delivery = state.schedule.deliver(now);
            if let SinkDelivery::Wait = delivery {
                let left = until.map(|until| Duration::from_nanos(until - now));
                if left.is_some_and(|left| left.is_zero()) {
                    return delivery;
                }
                state.takers += 1;
                if std::mem::take(&mut spins) {
                    drop(state);
                    self.arrived.spin(wait);
                    state = self.lock();
                } else {
                    state.sleeping_takers += 1;
                    state = self.arrived.sleep(state, left);
                    state.sleeping_takers -= 1;
                }
                state.takers -= 1;
                now = self.clock.now();
                continue;
            }
            self.arrived.waited(wait, now);
            while more.len() + 1 < most && state.schedule.has_delivery() {
                let SinkDelivery::Item(item) = state.schedule.deliver(now) else { break };
                more.push(item);
            }
            if state.takers > 0 {
                state.schedule.another_waits();
            }
            let wake_ups = self.wake_ups(&mut state);
            drop(state);
            taken();
            self.wake(wake_ups);
            return delivery;
        }
    }

    /// Hands a result of the source to the schedule, once the schedule accepts it. Returns false when the source must end.
    /// `expected` is the total number of samples of the source, if known, and `data` its data set; `kept_bytes` is the memory that the source
    /// keeps between chunks.
    pub(crate) async fn offer(
        self: &Arc<Self>,
        produced: Result<Option<Produced>, RunError>,
        expected: Option<u64>,
        data: DataSet,
        kept_bytes: u64,
    ) -> bool {
        let goes_on = matches!(produced, Ok(Some(_)));
        let bytes: u64 = produced.iter().flatten().map(Produced::memory_bytes).sum();
        loop {
            let now = self.clock.now();
            let wake_ups = {
                let mut state = self.lock();
                state.expected = expected;
                state.data = data;
                if state.schedule.is_over() {
                    return false;
                }
                if state.schedule.source_waits(bytes, kept_bytes, now) {
                    break;
                }
                state.source_waits = true;
                self.wake_ups(&mut state)
            };
            self.wake(wake_ups);
            self.room.notified().await;
        }
        self.event(|schedule, now| schedule.offer(produced, now));
        goes_on
    }

    /// Applies `change` to the schedule and performs the wake-ups that result.
    pub(crate) fn event(self: &Arc<Self>, change: impl FnOnce(&mut Schedule, Tick)) {
        let now = self.clock.now();
        self.change(|state| change(&mut state.schedule, now));
    }

    /// Applies `change` to the state of the run and performs the wake-ups that result.
    pub(crate) fn change(self: &Arc<Self>, change: impl FnOnce(&mut DispatchState)) {
        let mut state = self.lock();
        change(&mut state);
        let wake_ups = self.wake_ups(&mut state);
        drop(state);
        self.wake(wake_ups);
    }

    /// Changes a setting of the run. Worker threads above a lowered number of workers sleep.
    pub(crate) fn resize(self: &Arc<Self>, change: Resize<'_>) -> Result<(), ResizeFault> {
        let mut outcome = Ok(());
        self.event(|schedule, now| outcome = schedule.resize(change, now));
        outcome
    }

    /// Determines whether the consumer received every item of the run; called once the consumer receives no further items.
    pub(crate) fn ending(&self) -> Ending {
        let state = self.lock();
        match state.schedule.is_over() || state.schedule.error().is_some() {
            true => Ending::Early,
            false => Ending::Whole,
        }
    }

    pub(crate) fn fail(self: &Arc<Self>, message: String) {
        self.event(|schedule, _| schedule.fail(message));
    }

    /// Waits until `holds` returns true or `until` has come; checked whenever the run or its owner thread ends. Returns true if the
    /// condition holds.
    pub(crate) fn wait_until(&self, until: Tick, holds: impl Fn(&DispatchState) -> bool) -> bool {
        let mut state = self.lock();
        loop {
            let left = until - self.clock.now();
            if holds(&state) || left == 0 {
                return holds(&state);
            }
            let waited = self.ended.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reads the run's sums and state, and, in the same critical section, calls `also` with the schedule. Returns both results.
    pub(crate) fn read<T>(&self, also: impl FnOnce(&Schedule) -> T) -> (RunReading, T) {
        let mut reader = locked(&self.reader);
        let mut state = self.lock();
        let now = state.ended_at.unwrap_or_else(|| self.clock.now());
        state.schedule.read(now, &mut reader.recent);
        let (run_state, expected, result) = (state.run_state(), state.expected, also(&state.schedule));
        drop(state);
        (RunReading { sums: reader.add(), state: run_state, expected }, result)
    }

    /// Runs the op of a task on the I/O runtime (e.g. a fetch), and reports the op's output to the schedule.
    async fn run_task(self: Arc<Self>, op: Arc<dyn TaskOp>, task: Task, item: Item) {
        let _guard = PanicGuard(self.clone());
        let slot = TaskSlot::new(self.clone(), task.stage, task.slot);
        let begin = self.clock.now();
        let answer = AssertUnwindSafe(async move { op.start_in(item, slot).await }).catch_unwind().await;
        let time = OpTime { wall: self.clock.now() - begin, cpu: 0 };
        let outcome = answer.map_err(|panic| Fault::of_panic(&*panic));
        self.event(|schedule, now| schedule.complete(task, outcome, time, now));
    }

    /// Spawns a task that is cancelled when the run ends, and that [`Self::join_tasks`] waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cancelled = self.cancel.clone().cancelled_owned();
        let owned = async move {
            tokio::select! {
                () = cancelled => {}
                () = task => {}
            }
        };
        self.tracker.spawn_on(owned, &self.runtime);
    }

    pub(crate) fn join_tasks(&self) {
        self.tracker.close();
        self.runtime.block_on(self.tracker.wait());
    }

    /// Fails the run if its ledger does not balance.
    pub(crate) fn close_books(self: &Arc<Self>) {
        self.event(|schedule, _| {
            let ledger = schedule.ledger();
            if !ledger.balanced {
                let total = &ledger.total;
                schedule
                    .fail(format!("the ledger does not balance; this is a defect of Penstock: {total:?}"));
            }
        });
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DispatchState> {
        // A poisoned lock is ignored: the panic is reported when the panicked thread is joined, and the other threads still have
        // to end.
        locked(&self.state)
    }

    /// Wake-ups that follow from the schedule's last change. Determined under the lock, so that each wake-up happens exactly
    /// once.
    fn wake_ups(&self, state: &mut DispatchState) -> WakeUps {
        let over_now = state.schedule.is_over() && state.ended_at.is_none();
        if over_now {
            state.ended_at = Some(self.clock.now());
        }
        let workers = state.workers.call(state.schedule.wanted_workers(), state.schedule.workers());
        let source = state.source_waits && state.schedule.calls_source();
        state.source_waits &= !source;
        WakeUps {
            consumer: state.schedule.call_consumer().then_some(state.takers == state.sleeping_takers),
            workers,
            source,
            starts: state.schedule.take_starts(),
            failures: state.schedule.take_failures(),
            over_now,
        }
    }

    /// Performs the wake-ups, without the lock.
    fn wake(self: &Arc<Self>, wake_ups: WakeUps) {
        if wake_ups.over_now {
            self.stop.set();
            self.cancel.cancel();
            self.work.iter().for_each(Signal::call_all);
            self.arrived.call_all();
            self.ended.notify_all();
            self.room.notify_one();
        }
        if let Some(sleeps) = wake_ups.consumer {
            self.arrived.call(sleeps);
        }
        for IdleWorker { worker, sleeps } in wake_ups.workers {
            self.work[worker].call(sleeps);
        }
        if wake_ups.source {
            self.room.notify_one();
        }
        for (task, item) in wake_ups.starts {
            if let Some(op) = &self.task_ops[task.stage] {
                self.spawn(self.clone().run_task(op.clone(), task, item));
            }
        }
        for task in wake_ups.failures {
            task.book(&self.failures, |failure| {
                self.observers.iter().for_each(|observer| observer.on_failure(failure));
            });
        }
    }
}

impl SlotWatch for Dispatcher {
    fn on_permit_wait(&self, stage: usize, slot: usize, waits: bool) {
        let now = self.clock.now();
        self.lock().schedule.on_permit_wait(Task { stage, slot }, waits, now);
    }
}

/// Guard that fails the run if its thread panics: otherwise the schedule would wait forever for the thread's result.
pub(crate) struct PanicGuard(pub(crate) Arc<Dispatcher>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a thread of the run panicked; this is a defect of Penstock".into());
        }
    }
}

/// Marks the owner thread as ended when it is dropped.
pub(crate) struct OwnerGuard(pub(crate) Arc<Dispatcher>);

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        self.0.lock().owner_ended = true;
        self.0.ended.notify_all();
    }
}

impl DispatchState {
    fn run_state(&self) -> RunState {
        let schedule = &self.schedule;
        match (schedule.is_over(), self.stopped) {
            (true, _) if schedule.error().is_some() => RunState::Failed,
            (true, Some(StopReason::Asked)) => RunState::Stopped,
            (true, Some(StopReason::TimeIsUp) | None) => RunState::Completed,
            (false, _) if schedule.is_draining() => RunState::Draining,
            (false, _) => RunState::Running,
        }
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("schedule", &self.lock().schedule).finish_non_exhaustive()
    }
}
