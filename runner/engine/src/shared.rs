use std::fmt;
use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_types::ledger::Ledger;
use penstock_types::run::{FailureGroup, RunState};
use penstock_types::stats::Tick;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::graph::{Graph, StageWork};
use crate::item::Item;
use crate::ports::{Ending, Failure, Fault, Observer, Output, Produced, StopFlag, TaskOp};
use crate::running::{StopReason, Taken};
use crate::schedule::{Delivery, Job, OpTime, Reading, Schedule, Task};
use crate::tasks::run_task;

/// What the threads and tasks of one run share: the schedule behind its lock, and the ways to wake each other.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Each worker waits here for jobs.
    work: Vec<Condvar>,
    /// The consumer waits here for items.
    arrived: Condvar,
    /// The owner waits here for the end, and others for the owner's.
    ended: Condvar,
    /// The source waits here until its next chunk is wanted.
    room: Notify,
    stop: StopFlag,
    cancel: CancellationToken,
    tracker: TaskTracker,
    runtime: Handle,
    clock: Arc<dyn Clock>,
    observers: Vec<Arc<dyn Observer>>,
    /// Ops that wait, by stage; `None` for stages that have none.
    task_ops: Vec<Option<Arc<dyn TaskOp>>>,
}

struct State {
    schedule: Schedule,
    /// Workers that wait and have not been called.
    idle_workers: Vec<usize>,
    /// Whether the source waits and has not been called.
    source_waits: bool,
    /// Threads that wait for items.
    takers: usize,
    /// How many samples the source makes in all, once it knows.
    expected: Option<u64>,
    stopped: Option<StopReason>,
    ended_at: Option<Tick>,
    /// Whether the owner's thread has nothing more to do, and so all others have ended.
    owner_ended: bool,
}

/// Who is to be called after a move.
struct Calls {
    consumer: bool,
    workers: Vec<usize>,
    source: bool,
    starts: Vec<(Task, Item)>,
    failures: Vec<Failure>,
    over_now: bool,
}

/// Everything about a run at one moment.
pub(crate) struct Look {
    pub(crate) state: RunState,
    pub(crate) error: Option<String>,
    pub(crate) expected: Option<u64>,
    pub(crate) reading: Reading,
    pub(crate) ledger: Ledger,
    pub(crate) failures: Vec<FailureGroup>,
    pub(crate) failures_not_listed: u64,
}

/// What is looked at several times a second.
pub(crate) struct Pulse {
    pub(crate) reading: Reading,
    pub(crate) state: RunState,
    pub(crate) expected: Option<u64>,
    /// Samples that the consumer has taken.
    pub(crate) delivered: u64,
    pub(crate) failed_samples: u64,
    /// Items in each queue.
    pub(crate) occupancy: Vec<usize>,
}

impl Shared {
    pub(crate) fn new(
        graph: &Graph,
        runtime: Handle,
        clock: Arc<dyn Clock>,
        observers: Vec<Arc<dyn Observer>>,
    ) -> Self {
        let task_ops = graph
            .stages
            .iter()
            .map(|stage| match &stage.work {
                StageWork::Tasks { op, .. } => Some(op.clone()),
                _ => None,
            })
            .collect();
        let schedule = Schedule::new(graph.shape(), clock.now());
        Self {
            state: Mutex::new(State {
                schedule,
                idle_workers: Vec::with_capacity(graph.threads),
                source_waits: false,
                takers: 0,
                expected: None,
                stopped: None,
                ended_at: None,
                owner_ended: false,
            }),
            work: (0..graph.threads).map(|_| Condvar::new()).collect(),
            arrived: Condvar::new(),
            ended: Condvar::new(),
            room: Notify::new(),
            stop: StopFlag::default(),
            cancel: CancellationToken::new(),
            tracker: TaskTracker::new(),
            runtime,
            clock,
            observers,
            task_ops,
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(crate) fn stop_flag(&self) -> &StopFlag {
        &self.stop
    }

    pub(crate) fn observers(&self) -> &[Arc<dyn Observer>] {
        &self.observers
    }

    /// Hands in what a worker did last, which ended at `now`, and waits for its next job; `None` when the run is over.
    pub(crate) fn next_job(
        self: &Arc<Self>,
        worker: usize,
        done: Option<(Task, Result<Output, Fault>, OpTime)>,
        mut now: Tick,
    ) -> Option<Job> {
        let mut state = self.lock();
        if let Some((task, outcome, time)) = done {
            state.schedule.complete(task, outcome, time, now);
            // This worker takes the next job itself; only for what is left others are called.
            let over = state.schedule.is_over();
            let job = if over { None } else { state.schedule.take_job(worker, now) };
            let calls = self.calls(&mut state);
            drop(state);
            self.make(calls);
            if over || job.is_some() {
                return job;
            }
            state = self.lock();
        }
        loop {
            if state.schedule.is_over() {
                return None;
            }
            if let Some(job) = state.schedule.take_job(worker, now) {
                return Some(job);
            }
            state.idle_workers.push(worker);
            state = self.work[worker].wait(state).unwrap_or_else(PoisonError::into_inner);
            // Woken without a call, it would be called later for a job that another one could do.
            state.idle_workers.retain(|idle| *idle != worker);
            now = self.clock.now();
        }
    }

    /// The next item for the consumer; `None` when the run is over, or the consumer has to end it.
    pub(crate) fn take_blocking(self: &Arc<Self>) -> Option<Item> {
        match self.deliver(None) {
            Delivery::Item(item) => Some(item),
            Delivery::Wait | Delivery::Ended | Delivery::Over => None,
        }
    }

    /// The next item for a thread that drains the run without a consumer, if one comes within `most`.
    pub(crate) fn take_within(self: &Arc<Self>, most: Duration) -> Taken {
        match self.deliver(Some(self.clock.now().after(most))) {
            Delivery::Item(item) => Taken::Item(item),
            Delivery::Wait => Taken::NotYet,
            Delivery::Ended => {
                self.consumer_done(Ok(()), 0);
                Taken::Over
            }
            Delivery::Over => Taken::Over,
        }
    }

    /// What comes out of the sink queue next; [`Delivery::Wait`] when nothing does before `until`.
    fn deliver(self: &Arc<Self>, until: Option<Tick>) -> Delivery {
        let mut now = self.clock.now();
        let mut state = self.lock();
        loop {
            let delivery = state.schedule.deliver(now);
            if let Delivery::Wait = delivery {
                let left = until.map(|until| Duration::from_nanos(until - now));
                if left.is_some_and(|left| left.is_zero()) {
                    return delivery;
                }
                state.takers += 1;
                state = match left {
                    None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                state.takers -= 1;
                now = self.clock.now();
                continue;
            }
            if state.takers > 0 {
                state.schedule.another_waits();
            }
            let calls = self.calls(&mut state);
            drop(state);
            self.make(calls);
            return delivery;
        }
    }

    /// Hands in what the source produced, once it is wanted. Says whether to go on.
    /// `expected` is how many samples it makes in all, if it knows.
    pub(crate) async fn offer(
        self: &Arc<Self>,
        produced: Result<Option<Produced>, String>,
        expected: Option<u64>,
    ) -> bool {
        let goes_on = matches!(produced, Ok(Some(_)));
        loop {
            {
                let mut state = self.lock();
                state.expected = expected;
                if state.schedule.is_over() {
                    return false;
                }
                if state.schedule.wants_more() {
                    break;
                }
                state.source_waits = true;
            }
            self.room.notified().await;
        }
        self.event(|schedule, now| schedule.offer(produced, now));
        goes_on
    }

    /// Tells the schedule something, and everybody else what follows from it.
    pub(crate) fn event(self: &Arc<Self>, tell: impl FnOnce(&mut Schedule, Tick)) {
        let now = self.clock.now();
        let mut state = self.lock();
        tell(&mut state.schedule, now);
        let calls = self.calls(&mut state);
        drop(state);
        self.make(calls);
    }

    /// Fails the run when the thread that holds the guard panics: nobody else would ever hear of what it was doing.
    pub(crate) fn guard(self: &Arc<Self>) -> PanicGuard {
        PanicGuard(self.clone())
    }

    /// Says that the owner's thread has ended, when the guard is dropped.
    pub(crate) fn owner_guard(self: &Arc<Self>) -> OwnerGuard {
        OwnerGuard(self.clone())
    }

    /// Ends the run as failed, unless it is over.
    pub(crate) fn consumer_failed(self: &Arc<Self>, message: String) {
        self.event(|schedule, _| schedule.consumer_failed(message));
    }

    /// How the items came to an end, once the consumer gets none any more.
    pub(crate) fn ending(&self) -> Ending {
        let state = self.lock();
        match state.schedule.is_over() || state.schedule.error().is_some() {
            true => Ending::Early,
            false => Ending::Whole,
        }
    }

    /// Ends the run, unless it is over; see [`Schedule::consumer_done`].
    pub(crate) fn consumer_done(self: &Arc<Self>, finished: Result<(), String>, unfinished: u64) {
        self.event(|schedule, _| schedule.consumer_done(finished, unfinished));
    }

    /// Ends the run as failed.
    pub(crate) fn fail(self: &Arc<Self>, message: String) {
        self.event(|schedule, _| schedule.fail(message));
    }

    /// Ends the run because somebody wants it.
    pub(crate) fn stop(self: &Arc<Self>, reason: StopReason) {
        let mut state = self.lock();
        if !state.schedule.is_over() {
            state.stopped = Some(reason);
            match reason {
                StopReason::Asked => state.schedule.stop(),
                StopReason::TimeIsUp => state.schedule.time_is_up(),
            }
        }
        let calls = self.calls(&mut state);
        drop(state);
        self.make(calls);
    }

    /// Waits until the run is over or `until` has come. Says whether it is over.
    pub(crate) fn wait_until(&self, until: Tick) -> bool {
        self.is_so_by(until, |state| state.schedule.is_over())
    }

    /// Waits until the owner's thread has ended or `until` has come. Says whether it has ended.
    pub(crate) fn wait_for_owner(&self, until: Tick) -> bool {
        self.is_so_by(until, |state| state.owner_ended)
    }

    /// Waits for something that `ended` is notified of, or until `until` has come.
    fn is_so_by(&self, until: Tick, is_so: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        loop {
            let left = until - self.clock.now();
            if is_so(&state) || left == 0 {
                return is_so(&state);
            }
            let waited = self.ended.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// All sums at this moment, and what the run is doing.
    pub(crate) fn pulse(&self) -> Pulse {
        let mut state = self.lock();
        let now = state.ended_at.unwrap_or_else(|| self.clock.now());
        Pulse {
            reading: state.schedule.read(now),
            state: state.run_state(),
            expected: state.expected,
            delivered: state.schedule.delivered(),
            failed_samples: state.schedule.failed_samples(),
            occupancy: state.schedule.occupancy(),
        }
    }

    /// Everything about the run at one moment.
    pub(crate) fn look(&self) -> Look {
        let mut state = self.lock();
        let now = state.ended_at.unwrap_or_else(|| self.clock.now());
        let (failures, failures_not_listed) = state.schedule.failure_groups();
        Look {
            state: state.run_state(),
            error: state.schedule.error().map(str::to_owned),
            expected: state.expected,
            reading: state.schedule.read(now),
            ledger: state.schedule.ledger(),
            failures,
            failures_not_listed,
        }
    }

    /// Owns a task until it ends or the run does.
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

    /// Waits until all tasks have ended.
    pub(crate) fn join_tasks(&self) {
        self.tracker.close();
        self.runtime.block_on(self.tracker.wait());
    }

    /// Fails the run if a sample is missing in its books.
    pub(crate) fn close_books(self: &Arc<Self>) {
        self.event(|schedule, _| {
            let ledger = schedule.ledger();
            if !ledger.balanced {
                let total = &ledger.total;
                schedule.fail(format!("the books do not balance, this is a defect of Penstock: {total:?}"));
            }
        });
    }

    /// Threads that wait for items.
    #[cfg(test)]
    pub(crate) fn takers(&self) -> usize {
        self.lock().takers
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a defect that the panicking thread's join reports; the others still have to end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is to be called after the schedule's last move. Decided under the lock, so that nobody is called twice.
    fn calls(&self, state: &mut State) -> Calls {
        let over_now = state.schedule.is_over() && state.ended_at.is_none();
        if over_now {
            state.ended_at = Some(self.clock.now());
        }
        let workers = pick(&mut state.idle_workers, state.schedule.wanted_workers());
        let source = state.source_waits && state.schedule.wants_more();
        state.source_waits &= !source;
        Calls {
            consumer: state.schedule.call_consumer(),
            workers,
            source,
            starts: state.schedule.take_starts(),
            failures: state.schedule.take_failures(),
            over_now,
        }
    }

    /// Makes the calls, without the lock.
    fn make(self: &Arc<Self>, calls: Calls) {
        if calls.over_now {
            self.stop.set();
            self.cancel.cancel();
            self.work.iter().for_each(Condvar::notify_one);
            self.arrived.notify_all();
            self.ended.notify_all();
            self.room.notify_one();
        }
        if calls.consumer {
            self.arrived.notify_one();
        }
        calls.workers.iter().for_each(|worker| self.work[*worker].notify_one());
        if calls.source {
            self.room.notify_one();
        }
        for (task, item) in calls.starts {
            if let Some(op) = &self.task_ops[task.stage] {
                self.spawn(run_task(self.clone(), op.clone(), task, item));
            }
        }
        for failure in &calls.failures {
            self.observers.iter().for_each(|observer| observer.on_failure(failure));
        }
    }
}

/// See [`Shared::guard`].
pub(crate) struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a thread of the run panicked; this is a defect of Penstock".into());
        }
    }
}

/// See [`Shared::owner_guard`].
pub(crate) struct OwnerGuard(Arc<Shared>);

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        self.0.lock().owner_ended = true;
        self.0.ended.notify_all();
    }
}

/// Takes out of `idle` a worker for each job in `wanted`: the only one that may do it, or any.
fn pick(idle: &mut Vec<usize>, wanted: impl Iterator<Item = Option<usize>>) -> Vec<usize> {
    let mut picked = Vec::new();
    for only in wanted {
        if idle.is_empty() {
            break;
        }
        // A job for a busy worker is nobody else's business.
        let Some(only) = only else {
            picked.extend(idle.pop());
            continue;
        };
        if let Some(position) = idle.iter().position(|worker| *worker == only) {
            picked.push(idle.swap_remove(position));
        }
    }
    picked
}

impl State {
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

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("schedule", &self.lock().schedule).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::pick;

    #[test]
    fn a_job_that_only_a_busy_worker_may_do_calls_nobody() {
        let mut idle = vec![1, 2];
        assert!(pick(&mut idle, [Some(0)].into_iter()).is_empty());
        assert_eq!(pick(&mut idle, [Some(0), Some(1), None, None].into_iter()), [1, 2]);
        assert!(idle.is_empty());
    }
}
