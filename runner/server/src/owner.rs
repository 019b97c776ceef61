//! The thread that owns all runs: it admits them, ends them and joins their threads.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_types::run::{RunId, RunState};
use penstock_types::stats::Tick;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle as Task;

use crate::admission::{Cost, why_it_waits};
use crate::fair::{ClientId, FairLine, Held, Shares};
use crate::feed::Feed;
use crate::history::{runs::sweep, transact};
use crate::live::LiveRun;
use crate::priority;
use crate::sharing::HeldAmount;
use crate::wire::ClientUse;
use crate::work::{Job, work};
use crate::workshop::Workshop;

/// Interval of periodic work.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which old rows are removed; the first removal is at the start.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// Interval at which the size of the data directory is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
const FEED_AFTER_END: Duration = Duration::from_secs(60);
/// Time that runs have to end at a shutdown.
const SHUTDOWN: Duration = Duration::from_millis(2_700);
/// Minimum time for the history to be written after the runs have ended.
const CLOSING: Duration = Duration::from_millis(250);
const MAX_UNSTORED: usize = 16;

pub(crate) enum Message {
    /// Starts a registered run if the budget allows it; otherwise the run waits.
    Join(Box<Waiting>),
    /// Stops a run. The reply is the run, or `None` if it is neither waiting nor active.
    Stop(RunId, oneshot::Sender<Option<Arc<LiveRun>>>),
    /// Reports that the thread of a run is about to end. `stored` is true if the whole run is stored.
    Ended {
        id: RunId,
        stored: bool,
    },
    /// Reserves a part of the budget for work of a client that is not a run, such as a replay.
    Take(ClientId, Cost, oneshot::Sender<Option<Part>>),
    GiveBack(ClientId, Cost),
    Shutdown(oneshot::Sender<Shutdown>),
}

/// Registered run that waits for its part of the budget.
pub(crate) struct Waiting {
    pub(crate) client: ClientId,
    pub(crate) cost: Cost,
    pub(crate) run: Arc<LiveRun>,
    pub(crate) job: Job,
    /// Permit to be among the waiting runs, released when the run starts.
    pub(crate) place: HeldAmount,
    /// Permit to be among the waiting and active runs, released when the run ends.
    pub(crate) open: HeldAmount,
}

/// Effect of [`crate::Runs::shutdown`] on the runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// Number of runs that were stopped, including waiting runs.
    pub stopped: usize,
    /// Runs that did not end in time. The next start of the server marks them as interrupted.
    pub unfinished: Vec<RunId>,
}

/// Reserved part of the budget, released on drop.
#[derive(Debug)]
pub(crate) struct Part {
    client: ClientId,
    cost: Cost,
    owner: SyncSender<Message>,
}

impl Part {
    pub(crate) fn memory_mib(&self) -> u64 {
        self.cost.memory_mib
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.cost != Cost::default() {
            // The send fails if the owner has ended; the budget is not needed any more then.
            self.owner.send(Message::GiveBack(self.client.clone(), self.cost)).ok();
        }
    }
}

/// State of the live runs, as the owner publishes it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) runs: BTreeMap<RunId, Arc<LiveRun>>,
    /// Reason why each waiting run waits.
    pub(crate) waiting: BTreeMap<RunId, String>,
    pub(crate) clients: BTreeMap<ClientId, ClientUse>,
    pub(crate) shares: Shares<3>,
    /// Set while a waiting run has its turn but does not fit into the free budget.
    has_turn: bool,
    pub(crate) alive: u64,
}

impl View {
    /// Reason why a run of a client would wait; `None` if it could start at once.
    pub(crate) fn why_it_waits(&self, client: &ClientId, cost: Cost) -> Option<String> {
        let before = self.clients.get(client).map_or(0, |client| client.runs_queued);
        why_it_waits(&self.shares, client, cost.amounts(), before, self.has_turn)
    }
}

struct Alive {
    run: Arc<LiveRun>,
    client: ClientId,
    cost: Cost,
    thread: JoinHandle<()>,
    _open: HeldAmount,
}

/// Waiting run, and the time at which its wait ends with a failure.
struct InLine(Tick, Box<Waiting>);

pub(crate) struct Owner {
    messages: Receiver<Message>,
    to_self: SyncSender<Message>,
    workshop: Arc<Workshop>,
    feed: Feed,
    line: FairLine<InLine, 3>,
    alive: BTreeMap<RunId, Alive>,
    /// Runs that have ended and are not stored yet.
    unstored: VecDeque<Arc<LiveRun>>,
    /// Stored runs, with the time at which their events are dropped.
    expiring: VecDeque<(Tick, RunId)>,
    view: watch::Sender<Arc<View>>,
    clock: MonotonicClock,
    swept: Option<Tick>,
    measured: Tick,
    measuring: Option<Task<()>>,
    /// Set if the history may contain more runs than its limit, so that old runs must be removed.
    is_retain_due: bool,
    retaining: Option<Task<()>>,
}

impl Owner {
    pub(crate) fn new(
        shares: Shares<3>,
        (to_self, messages): (SyncSender<Message>, Receiver<Message>),
        workshop: Arc<Workshop>,
        feed: Feed,
    ) -> (Self, watch::Receiver<Arc<View>>) {
        let (runs, waiting, clients) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let empty = View { runs, waiting, clients, shares: shares.clone(), has_turn: false, alive: 0 };
        let (view, shown) = watch::channel(Arc::new(empty));
        let owner = Self {
            messages,
            to_self,
            workshop,
            feed,
            line: FairLine::new(shares),
            alive: BTreeMap::new(),
            unstored: VecDeque::new(),
            expiring: VecDeque::new(),
            view,
            clock: MonotonicClock::start(),
            swept: None,
            measured: Tick::ZERO,
            measuring: None,
            is_retain_due: true,
            retaining: None,
        };
        (owner, shown)
    }

    pub(crate) fn run(mut self) {
        let mut next_look = self.clock.now().after(LOOK);
        loop {
            // Periodic work is due by the clock, since a timeout that restarts with each message might never expire.
            let left = Duration::from_nanos(next_look - self.clock.now());
            match self.messages.recv_timeout(left) {
                Ok(Message::Shutdown(reply)) => {
                    let ended = self.shut_down();
                    // The send fails if the last handle was dropped.
                    reply.send(ended).ok();
                    return;
                }
                Ok(message) => self.on(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.clock.now() >= next_look {
                self.do_periodic_work();
                next_look = self.clock.now().after(LOOK);
            }
        }
    }

    fn on(&mut self, message: Message) {
        match message {
            Message::Join(waiting) => {
                let run = waiting.run.clone();
                self.is_retain_due = true;
                let until = self.clock.now().after(*self.workshop.settings.bounds.max_wait.get());
                let (client, part) = (waiting.client.clone(), waiting.cost.amounts());
                self.line.join(client, part, 0, InLine(until, waiting));
                self.admit_waiting_runs();
                self.show();
                run.tell_state();
            }
            Message::Stop(id, reply) => {
                // The send fails if the client has disconnected.
                reply.send(self.stop(&id)).ok();
            }
            Message::Ended { id, stored } => self.on_ended(&id, stored),
            Message::Take(client, cost, reply) => {
                let is_taken = self.line.take(&client, cost.amounts());
                let part = is_taken.then(|| Part { client, cost, owner: self.to_self.clone() });
                // The receiver may have been dropped.
                if let Err(Some(part)) = reply.send(part) {
                    self.give_back(part);
                }
                self.show();
            }
            Message::GiveBack(client, cost) => {
                self.line.shares.give_back(&client, cost.amounts());
                self.admit_waiting_runs();
                self.show();
            }
            Message::Shutdown(_) => {}
        }
    }

    /// Releases a part on this thread: its drop would send a message to this very thread, which would block for ever on a full channel.
    fn give_back(&mut self, mut part: Part) {
        self.line.shares.give_back(&part.client, std::mem::take(&mut part.cost).amounts());
    }

    fn admit_waiting_runs(&mut self) {
        while let Some((_, InLine(_, waiting))) = self.line.next() {
            let Waiting { client, cost, run, job, place, open } = *waiting;
            drop(place);
            let id = run.id().clone();
            let (own, workshop, messages) = (run.clone(), self.workshop.clone(), self.to_self.clone());
            let run_client = client.clone();
            let spawned = Builder::new().name(format!("own {id}")).spawn(move || {
                // All threads of the run inherit it.
                priority::lower();
                let id = own.id().clone();
                let worked = catch_unwind(AssertUnwindSafe(|| work(&workshop, &run_client, &own, &job)));
                let stored = worked.unwrap_or_else(|_| {
                    let error = "the thread that owns the run panicked; this is a defect of Penstock";
                    own.on_ended(None, RunState::Failed, Some(error.to_owned()), None);
                    false
                });
                // The send fails if the owner ended at a shutdown without waiting for the run.
                messages.send(Message::Ended { id, stored }).ok();
            });
            match spawned {
                Ok(thread) => {
                    self.alive.insert(id, Alive { run, client, cost, thread, _open: open });
                }
                Err(error) => {
                    self.line.shares.give_back(&client, cost.amounts());
                    let error = format!("cannot start a thread for the run: {error}");
                    self.end(run, RunState::Failed, Some(error));
                }
            }
        }
    }

    fn stop(&mut self, id: &RunId) -> Option<Arc<LiveRun>> {
        if let Some(alive) = self.alive.get(id) {
            alive.run.stop();
            return Some(alive.run.clone());
        }
        let InLine(_, waiting) = self.line.remove(|InLine(_, waiting)| waiting.run.id() == id).pop()?;
        let run = waiting.run;
        self.end(run.clone(), RunState::Stopped, None);
        self.admit_waiting_runs();
        self.show();
        Some(run)
    }

    /// Ends a run that has no thread.
    fn end(&mut self, run: Arc<LiveRun>, state: RunState, error: Option<String>) {
        run.on_ended(None, state, error, None);
        let stored = run.write_all();
        self.conclude(run, stored);
    }

    /// Ends runs as failed that have reached the maximum waiting time.
    fn end_late_runs(&mut self, now: Tick) {
        let late = self.line.remove(|InLine(until, _)| *until <= now);
        if late.is_empty() {
            return;
        }
        let waited = humantime::format_duration(*self.workshop.settings.bounds.max_wait.get());
        for InLine(_, waiting) in late {
            let error =
                format!("the run waited {waited} for its start, which is the limit (`limits.runs.max_wait`)");
            self.end(waiting.run, RunState::Failed, Some(error));
        }
        // Another run may have its turn now.
        self.admit_waiting_runs();
        self.show();
    }

    fn on_ended(&mut self, id: &RunId, stored: bool) {
        let Some(Alive { run, client, cost, thread, .. }) = self.alive.remove(id) else { return };
        if thread.join().is_err() {
            tracing::error!(run = %id, "a run's thread panicked; this is a defect of Penstock");
        }
        self.line.shares.give_back(&client, cost.amounts());
        for part in run.take_more() {
            self.give_back(part);
        }
        self.admit_waiting_runs();
        self.conclude(run, stored);
        self.show();
    }

    /// Publishes the end of a run. The owner keeps the run until it is stored.
    fn conclude(&mut self, run: Arc<LiveRun>, stored: bool) {
        if stored {
            // The view is updated before the end is published, because a client may delete the run as soon as it sees the end.
            self.show();
        }
        run.publish_end();
        if stored {
            self.expiring.push_back((self.clock.now().after(FEED_AFTER_END), run.id().clone()));
        } else {
            // Writes the end alone, without the other data of the run.
            let (id, ended) = (run.id().clone(), run.clone());
            self.workshop.history.work_later(
                move |connection| ended.write_end(connection),
                move |error| tracing::error!(run = %id, %error, "failed to store the end of a run"),
            );
            self.unstored.push_back(run.clone());
            if self.unstored.len() > MAX_UNSTORED
                && let Some(oldest) = self.unstored.pop_front()
            {
                tracing::error!(
                    run = %oldest.id(),
                    "lost the data of a run: too many runs could not be stored"
                );
                self.expiring.push_back((self.clock.now().after(FEED_AFTER_END), oldest.id().clone()));
            }
        }
        self.show();
        run.tell_end();
    }

    fn do_periodic_work(&mut self) {
        let now = self.clock.now();
        self.end_late_runs(now);
        while let Some((_, id)) = self.expiring.pop_front_if(|(until, _)| *until <= now) {
            self.feed.forget(&id);
        }
        if let Some(run) = self.unstored.pop_front_if(|run| run.write_all()) {
            self.expiring.push_back((now.after(FEED_AFTER_END), run.id().clone()));
            self.show();
        }
        let is_idle = |task: &Option<Task<()>>| task.as_ref().is_none_or(Task::is_finished);
        let start = |work: fn(&Workshop)| {
            let workshop = self.workshop.clone();
            Some(self.workshop.runtime.spawn_blocking(move || work(&workshop)))
        };
        if is_idle(&self.measuring) && now - self.measured > MEASURE_EVERY.as_nanos() as u64 {
            self.measured = now;
            self.measuring = start(Workshop::measure);
        }
        if is_idle(&self.retaining) && std::mem::take(&mut self.is_retain_due) {
            self.retaining = start(Workshop::retain);
        }
        if self.swept.is_none_or(|swept| now - swept > SWEEP_EVERY.as_nanos() as u64) {
            self.swept = Some(now);
            self.workshop.history.work_later(
                |connection| transact(connection, |transaction| sweep(transaction).map(drop)),
                |error| tracing::warn!(%error, "failed to remove old rows of the history"),
            );
        }
    }

    fn show(&self) {
        let alive = self.alive.values().map(|alive| &alive.run).chain(&self.unstored);
        let mut runs: BTreeMap<RunId, Arc<LiveRun>> =
            alive.map(|run| (run.id().clone(), run.clone())).collect();
        let shares = &self.line.shares;
        let use_of = |client: &ClientId| {
            let Held { parts: runs_alive, amounts: [threads_used, memory_mib_used, _] } = shares.held(client);
            let client = client.to_string();
            ClientUse { client, threads_used, memory_mib_used, runs_alive, runs_queued: 0 }
        };
        let clients = shares.clients().map(|(client, _)| (client.clone(), use_of(client)));
        let mut clients: BTreeMap<ClientId, ClientUse> = clients.collect();
        let mut waiting = BTreeMap::new();
        let turn = self.line.turn().map(|(client, _)| client);
        for (client, before, cost, InLine(_, entry)) in self.line.waiting() {
            clients.entry(client.clone()).or_insert_with(|| use_of(client)).runs_queued += 1;
            runs.insert(entry.run.id().clone(), entry.run.clone());
            let others_first = turn.is_some_and(|turn| turn != client);
            let why = why_it_waits(shares, client, cost, before as u64, others_first);
            waiting.insert(entry.run.id().clone(), why.unwrap_or_default());
        }
        let (shares, has_turn, alive) = (shares.clone(), turn.is_some(), self.alive.len() as u64);
        self.view.send_replace(Arc::new(View { runs, waiting, clients, shares, has_turn, alive }));
    }

    fn shut_down(mut self) -> Shutdown {
        let until = self.clock.now().after(SHUTDOWN);
        self.alive.values().for_each(|alive| alive.run.stop());
        let in_line = self.line.remove(|_| true).into_iter();
        let mut never_began: Vec<_> = in_line.map(|InLine(_, waiting)| waiting.run).collect();
        let mut stopped = 0;
        while !self.alive.is_empty() {
            let left = Duration::from_nanos(until - self.clock.now());
            match self.messages.recv_timeout(left) {
                Ok(Message::Ended { id, stored }) => {
                    stopped += 1;
                    self.on_ended(&id, stored);
                }
                Ok(Message::Join(waiting)) => never_began.push(waiting.run),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let mut unfinished: Vec<RunId> = self.alive.keys().cloned().collect();
        // The remaining threads are not joined, because they may hang in a system call; the process is about to end.
        self.alive.clear();
        self.show();
        let Self { messages, workshop, clock, feed, unstored, .. } = self;
        let (send, ended) = std::sync::mpsc::sync_channel(1);
        // This is the last work of the writer. Runs are registered by the writer only, so no run can be registered afterwards.
        let last = Box::new(move |connection: &mut rusqlite::Connection| {
            never_began.extend(messages.try_iter().filter_map(|message| match message {
                Message::Join(waiting) => Some(waiting.run),
                _ => None,
            }));
            let (mut stored, mut lost) = (0, Vec::new());
            for run in never_began {
                run.on_ended(None, RunState::Stopped, None, None);
                let is_stored = run.write(connection, &run.unwritten()).is_ok();
                run.publish_end();
                run.tell_end();
                if is_stored { stored += 1 } else { lost.push(run.id().clone()) }
            }
            for run in unstored {
                if run.write(connection, &run.unwritten()).is_err() {
                    lost.push(run.id().clone());
                }
            }
            // The send fails if the owner no longer waits because the time limit has passed.
            send.send((stored, lost)).ok();
        });
        workshop.history.close(last, Duration::from_nanos(until - clock.now()).max(CLOSING));
        feed.close();
        if let Ok((stored, lost)) = ended.try_recv() {
            stopped += stored;
            unfinished.extend(lost);
        }
        Shutdown { stopped, unfinished }
    }
}
