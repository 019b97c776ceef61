//! The thread that owns all runs: it admits them, ends them, and joins their threads.

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

use crate::admission::{Cost, why_it_waits};
use crate::fair::{ClientId, FairLine, Held, Shares};
use crate::feed::Feed;
use crate::history::{History, runs::sweep};
use crate::live::LiveRun;
use crate::turns::Place;
use crate::wire::ClientUse;
use crate::work::{Job, work};
use crate::workshop::Workshop;

/// Interval of periodic work.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which old rows are removed, the first time at the start.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// Interval at which the size of the data directory is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
/// Time for which events of a run are kept after its end.
const FEED_AFTER_END: Duration = Duration::from_secs(60);
/// Time for runs to end at a shutdown.
const SHUTDOWN: Duration = Duration::from_millis(2_700);
/// Least time for the history to be written after that.
const CLOSING: Duration = Duration::from_millis(250);
/// Most runs that could not be stored and are kept in memory.
const MAX_UNSTORED: usize = 16;

/// A message to the owner.
pub(crate) enum Message {
    /// Admits a registered run, or lets it wait.
    Join(Box<Waiting>),
    /// Stops a run. The answer is the run, unless the owner does not have it.
    Stop(RunId, oneshot::Sender<Option<Arc<LiveRun>>>),
    /// A run's thread is about to end. `stored`: all of the run is stored.
    Ended {
        id: RunId,
        stored: bool,
    },
    /// Takes a part of the budget for work of a client beside the runs.
    Take(ClientId, Cost, oneshot::Sender<Option<Part>>),
    GiveBack(ClientId, Cost),
    /// Ends all runs.
    Shutdown(oneshot::Sender<Shutdown>),
}

/// A registered run that waits for its part of the budget.
pub(crate) struct Waiting {
    pub(crate) client: ClientId,
    pub(crate) cost: Cost,
    pub(crate) run: Arc<LiveRun>,
    pub(crate) job: Job,
    /// Place in the line, released at the start.
    pub(crate) place: Place,
    /// Place among the client's runs that wait or are alive.
    pub(crate) open: Place,
}

/// Result of [`crate::Runs::shutdown`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// Runs that were stopped, those that waited included.
    pub stopped: usize,
    /// Runs that did not end in time: the next server finds them interrupted.
    pub unfinished: Vec<RunId>,
}

/// A part of the budget, given back on drop.
#[derive(Debug)]
pub(crate) struct Part {
    client: ClientId,
    cost: Cost,
    owner: SyncSender<Message>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.cost != Cost::default() {
            // With the owner gone there is nothing to give back to.
            self.owner.send(Message::GiveBack(self.client.clone(), self.cost)).ok();
        }
    }
}

/// The runs that are not over, as others see them.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) runs: BTreeMap<RunId, Arc<LiveRun>>,
    /// Reason of each waiting run.
    pub(crate) waiting: BTreeMap<RunId, String>,
    pub(crate) clients: BTreeMap<ClientId, ClientUse>,
    pub(crate) shares: Shares<3>,
    /// Set while the run whose turn it is does not fit.
    has_turn: bool,
    pub(crate) alive: u64,
}

impl View {
    pub(crate) fn new(shares: Shares<3>) -> Self {
        Self {
            runs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            clients: BTreeMap::new(),
            shares,
            has_turn: false,
            alive: 0,
        }
    }

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
    _open: Place,
}

/// A run in the line, and the end of the time for which it may wait.
struct InLine(Tick, Box<Waiting>);

pub(crate) struct Owner {
    messages: Receiver<Message>,
    to_self: SyncSender<Message>,
    workshop: Arc<Workshop>,
    history: History,
    feed: Feed,
    line: FairLine<InLine, 3>,
    alive: BTreeMap<RunId, Alive>,
    /// Over, and not stored yet.
    unstored: VecDeque<Arc<LiveRun>>,
    /// Runs that are stored, by the time at which their events are dropped.
    expiring: VecDeque<(Tick, RunId)>,
    view: watch::Sender<Arc<View>>,
    clock: MonotonicClock,
    swept: Option<Tick>,
    measured: Tick,
    measuring: Option<tokio::task::JoinHandle<()>>,
    /// Set when there may be more runs than are kept.
    is_retain_due: bool,
    retaining: Option<tokio::task::JoinHandle<()>>,
}

impl Owner {
    pub(crate) fn new(
        shares: Shares<3>,
        (to_self, messages): (SyncSender<Message>, Receiver<Message>),
        workshop: Arc<Workshop>,
        history: History,
        feed: Feed,
        view: watch::Sender<Arc<View>>,
    ) -> Self {
        Self {
            messages,
            to_self,
            workshop,
            history,
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
        }
    }

    /// Handles messages until a shutdown.
    pub(crate) fn run(mut self) {
        let mut next_look = self.clock.now().after(LOOK);
        loop {
            // By the clock and not by a silence: messages may come without a pause.
            let left = Duration::from_nanos(next_look - self.clock.now());
            match self.messages.recv_timeout(left) {
                Ok(Message::Shutdown(reply)) => {
                    let ended = self.shut_down();
                    // The receiver is gone when the last handle was dropped.
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
                let told = waiting.run.clone();
                self.is_retain_due = true;
                let until = self.clock.now().after(*self.workshop.bounds.max_wait.get());
                let (client, part) = (waiting.client.clone(), waiting.cost.amounts());
                self.line.join(client, part, 0, InLine(until, waiting));
                self.admit_waiting_runs();
                self.show();
                told.tell_state();
            }
            Message::Stop(id, reply) => {
                // The receiver is gone when the client is.
                reply.send(self.stop(&id)).ok();
            }
            Message::Ended { id, stored } => self.on_ended(&id, stored),
            Message::Take(client, cost, reply) => {
                let is_taken = self.line.take(&client, cost.amounts());
                let part = is_taken.then(|| Part { client, cost, owner: self.to_self.clone() });
                // The receiver may be gone. The part is given back here, because a message of the owner to itself could wait for
                // the owner.
                if let Err(Some(mut part)) = reply.send(part) {
                    self.line.give_back(&part.client, std::mem::take(&mut part.cost).amounts());
                }
                self.show();
            }
            Message::GiveBack(client, cost) => {
                self.line.give_back(&client, cost.amounts());
                self.admit_waiting_runs();
                self.show();
            }
            Message::Shutdown(_) => {}
        }
    }

    fn admit_waiting_runs(&mut self) {
        while let Some((_, InLine(_, waiting))) = self.line.next() {
            let Waiting { client, cost, run, job, place, open } = *waiting;
            drop(place);
            let id = run.id().clone();
            let (own, workshop, messages) = (run.clone(), self.workshop.clone(), self.to_self.clone());
            let whose = client.clone();
            let spawned = Builder::new().name(format!("own {id}")).spawn(move || {
                let id = own.id().clone();
                let worked = catch_unwind(AssertUnwindSafe(|| work(&workshop, &whose, &own, &job)));
                let stored = worked.unwrap_or_else(|_| {
                    let error = "the thread that owns the run panicked; this is a defect of Penstock";
                    own.on_ended(None, RunState::Failed, Some(error.to_owned()), None);
                    false
                });
                // The owner is gone when it did not end in time.
                messages.send(Message::Ended { id, stored }).ok();
            });
            match spawned {
                Ok(thread) => {
                    self.alive.insert(id, Alive { run, client, cost, thread, _open: open });
                }
                Err(error) => {
                    self.line.give_back(&client, cost.amounts());
                    self.end(
                        run,
                        RunState::Failed,
                        Some(format!("the machine gives no thread for the run: {error}")),
                    );
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

    /// Ends runs that have waited for as long as any may.
    fn end_late_runs(&mut self, now: Tick) {
        let late = self.line.remove(|InLine(until, _)| *until <= now);
        if late.is_empty() {
            return;
        }
        let waited = humantime::format_duration(*self.workshop.bounds.max_wait.get());
        for InLine(_, waiting) in late {
            let error = format!(
                "it waited for its start for {waited}, which is as long as a run may (`limits.runs.max_wait`)"
            );
            self.end(waiting.run, RunState::Failed, Some(error));
        }
        // It may be the turn of another one now.
        self.admit_waiting_runs();
        self.show();
    }

    fn on_ended(&mut self, id: &RunId, stored: bool) {
        let Some(Alive { run, client, cost, thread, .. }) = self.alive.remove(id) else { return };
        if thread.join().is_err() {
            tracing::error!(run = %id, "a run's thread panicked; this is a defect of Penstock");
        }
        self.line.give_back(&client, cost.amounts());
        self.admit_waiting_runs();
        self.conclude(run, stored);
        self.show();
    }

    /// Publishes the end of a run, and keeps the run here until it is stored.
    fn conclude(&mut self, run: Arc<LiveRun>, stored: bool) {
        if stored {
            // A client that learns of its end may delete it.
            self.show();
        }
        run.publish_end();
        if stored {
            self.expiring.push_back((self.clock.now().after(FEED_AFTER_END), run.id().clone()));
        } else {
            self.write_end(run.clone());
            self.unstored.push_back(run.clone());
            if self.unstored.len() > MAX_UNSTORED
                && let Some(oldest) = self.unstored.pop_front()
            {
                tracing::error!(
                    run = %oldest.id(),
                    "what a run did is lost: it cannot be stored, as too many others"
                );
                self.expiring.push_back((self.clock.now().after(FEED_AFTER_END), oldest.id().clone()));
            }
        }
        self.show();
        run.tell_end();
    }

    /// Queues a write of a run's end alone.
    fn write_end(&self, run: Arc<LiveRun>) {
        let id = run.id().clone();
        let handed_over = self.history.hand_over(Box::new(move |connection| {
            if let Err(error) = run.write_end(connection) {
                tracing::error!(run = %run.id(), %error, "how a run ended cannot be stored");
            }
        }));
        if let Err(error) = handed_over {
            tracing::error!(run = %id, %error, "how a run ended cannot be stored");
        }
    }

    fn do_periodic_work(&mut self) {
        let now = self.clock.now();
        self.end_late_runs(now);
        while self.expiring.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, id)) = self.expiring.pop_front() {
                self.feed.forget(&id);
            }
        }
        if let Some(run) = self.unstored.pop_front() {
            if run.write_all() {
                self.expiring.push_back((now.after(FEED_AFTER_END), run.id().clone()));
                self.show();
            } else {
                self.unstored.push_front(run);
            }
        }
        let is_measured = self.measuring.as_ref().is_none_or(|measuring| measuring.is_finished());
        if is_measured && now - self.measured > MEASURE_EVERY.as_nanos() as u64 {
            self.measured = now;
            let workshop = self.workshop.clone();
            self.measuring = Some(self.workshop.runtime.spawn_blocking(move || workshop.measure()));
        }
        let is_retained = self.retaining.as_ref().is_none_or(|retaining| retaining.is_finished());
        if is_retained && std::mem::take(&mut self.is_retain_due) {
            let workshop = self.workshop.clone();
            self.retaining = Some(self.workshop.runtime.spawn_blocking(move || workshop.retain()));
        }
        let is_due = self.swept.is_none_or(|swept| now - swept > SWEEP_EVERY.as_nanos() as u64);
        if is_due {
            self.swept = Some(now);
            let swept = self.history.hand_over(Box::new(|connection| {
                if let Err(error) = crate::history::transact(connection, sweep) {
                    tracing::warn!(%error, "old rows of the history cannot be removed");
                }
            }));
            if let Err(error) = swept {
                tracing::warn!(%error, "old rows of the history cannot be removed");
            }
        }
    }

    fn show(&self) {
        let alive = self.alive.values().map(|alive| &alive.run).chain(&self.unstored);
        let mut runs: BTreeMap<RunId, Arc<LiveRun>> =
            alive.map(|run| (run.id().clone(), run.clone())).collect();
        let shares = self.line.shares();
        let use_of = |client: &ClientId| {
            let Held { parts: runs_alive, amounts: [threads_used, memory_mib_used, _] } = shares.held(client);
            let client = client.to_string();
            ClientUse { client, threads_used, memory_mib_used, runs_alive, runs_queued: 0 }
        };
        let clients = shares.clients().map(|(client, _)| (client.clone(), use_of(client)));
        let mut clients: BTreeMap<ClientId, ClientUse> = clients.collect();
        let mut waiting = BTreeMap::new();
        let turn = self.line.turn().map(|(client, _)| client);
        for (client, before, cost, InLine(_, who)) in self.line.waiting() {
            clients.entry(client.clone()).or_insert_with(|| use_of(client)).runs_queued += 1;
            runs.insert(who.run.id().clone(), who.run.clone());
            let others_first = turn.is_some_and(|turn| turn != client);
            let why = why_it_waits(shares, client, cost, before as u64, others_first);
            waiting.insert(who.run.id().clone(), why.unwrap_or_default());
        }
        let (shares, has_turn, alive) = (shares.clone(), turn.is_some(), self.alive.len() as u64);
        self.view.send_replace(Arc::new(View { runs, waiting, clients, shares, has_turn, alive }));
    }

    /// Ends all runs and the history.
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
        // Their threads hang in the system and cannot be joined; the process is about to end.
        self.alive.clear();
        self.show();
        let Self { messages, history, clock, feed, unstored, .. } = self;
        let (told, ended) = std::sync::mpsc::sync_channel(1);
        // The writer's last work. It alone lets runs join, so that none can come behind these.
        let last = Box::new(move |connection: &mut rusqlite::Connection| {
            never_began.extend(messages.try_iter().filter_map(|message| match message {
                Message::Join(waiting) => Some(waiting.run),
                _ => None,
            }));
            let (mut stored, mut lost) = (0, Vec::new());
            for run in never_began {
                run.on_ended(None, RunState::Stopped, None, None);
                let is_stored = run.write(connection).is_ok();
                run.publish_end();
                run.tell_end();
                if is_stored { stored += 1 } else { lost.push(run.id().clone()) }
            }
            for run in unstored {
                if run.write(connection).is_err() {
                    lost.push(run.id().clone());
                }
            }
            // The receiver is gone when it took too long.
            told.send((stored, lost)).ok();
        });
        history.close(last, Duration::from_nanos(until - clock.now()).max(CLOSING));
        feed.close();
        if let Ok((stored, lost)) = ended.try_recv() {
            stopped += stored;
            unfinished.extend(lost);
        }
        Shutdown { stopped, unfinished }
    }
}
