//! The one thread that owns all runs: it starts them when they fit, ends them, and joins their threads.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_types::run::RunState;
use penstock_types::stats::Tick;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use crate::admission::{Budget, Cost, Line};
use crate::feed::Feed;
use crate::history::{History, runs::sweep};
use crate::live::LiveRun;
use crate::work::{Job, work};
use crate::workshop::Workshop;

/// How often the owner looks around.
const LOOK: Duration = Duration::from_secs(1);
/// How often old rows are removed, and for the first time after the start.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// How often it is looked up how much room the data take.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
/// How long events of a run are kept after its end.
const FEED_AFTER_END: Duration = Duration::from_secs(60);
/// How long runs get to end when the server does.
const SHUTDOWN: Duration = Duration::from_millis(2_700);
/// How long the history then gets at least, to be written to its end.
const CLOSING: Duration = Duration::from_millis(250);
/// Runs that are over and could not be stored, which are kept in memory at most.
const MAX_UNSTORED: usize = 16;

/// What the owner is told.
pub(crate) enum Message {
    /// A run was registered and wants to start; the place among those that wait is given back then.
    Join { run: Arc<LiveRun>, job: Box<Job>, cost: Cost, place: OwnedSemaphorePermit },
    /// Somebody wants a run to end. The answer is the run, unless it is none of the owner's.
    Stop { id: String, reply: oneshot::Sender<Option<Arc<LiveRun>>> },
    /// A run's threads have ended, and this one is about to. `stored` says whether all of it is stored.
    Ended { id: String, stored: bool },
    /// Somebody does work beside the runs and needs a part of the budget.
    Take { cost: Cost, reply: oneshot::Sender<Option<Part>> },
    /// The part is given back.
    GiveBack { cost: Cost },
    /// The server ends. The answer is who did not end in time.
    Shutdown { reply: oneshot::Sender<(usize, Vec<String>)> },
}

/// A part of the budget, given back when it is not needed any more.
#[derive(Debug)]
pub(crate) struct Part {
    cost: Cost,
    owner: SyncSender<Message>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.cost != Cost::default() {
            // With the owner gone there is nothing to give back to.
            self.owner.send(Message::GiveBack { cost: self.cost }).ok();
        }
    }
}

/// What everybody may see of the runs that are not over.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) runs: BTreeMap<String, Arc<LiveRun>>,
    /// What those that wait wait for.
    pub(crate) waiting: BTreeMap<String, String>,
    pub(crate) used: Cost,
    pub(crate) alive: u64,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Join { .. } => "Join",
            Self::Stop { .. } => "Stop",
            Self::Ended { .. } => "Ended",
            Self::Take { .. } => "Take",
            Self::GiveBack { .. } => "GiveBack",
            Self::Shutdown { .. } => "Shutdown",
        })
    }
}

struct Waiting {
    run: Arc<LiveRun>,
    job: Box<Job>,
    place: OwnedSemaphorePermit,
}

struct Alive {
    run: Arc<LiveRun>,
    cost: Cost,
    thread: JoinHandle<()>,
}

/// The owner's own state, reached by its thread alone.
pub(crate) struct Owner {
    messages: Receiver<Message>,
    to_self: SyncSender<Message>,
    workshop: Arc<Workshop>,
    history: History,
    feed: Feed,
    line: Line<Waiting>,
    alive: BTreeMap<String, Alive>,
    /// Over, and not stored yet.
    unstored: VecDeque<Arc<LiveRun>>,
    /// Over and stored; their events are still kept.
    fading: VecDeque<(Tick, String)>,
    view: watch::Sender<Arc<View>>,
    clock: MonotonicClock,
    swept: Option<Tick>,
    measured: Tick,
    /// The look at the data that goes on.
    measuring: Option<tokio::task::JoinHandle<()>>,
    /// Whether there may be more runs than are kept, and the removal of the oldest that goes on.
    is_retain_due: bool,
    retaining: Option<tokio::task::JoinHandle<()>>,
}

impl Owner {
    pub(crate) fn new(
        budget: Budget,
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
            line: Line::new(budget),
            alive: BTreeMap::new(),
            unstored: VecDeque::new(),
            fading: VecDeque::new(),
            view,
            clock: MonotonicClock::start(),
            swept: None,
            measured: Tick::ZERO,
            measuring: None,
            is_retain_due: true,
            retaining: None,
        }
    }

    /// What its thread does, until it is told to shut down.
    pub(crate) fn own(mut self) {
        let mut next_look = self.clock.now().after(LOOK);
        loop {
            // By the clock and not by a silence: messages may come without a pause.
            let left = Duration::from_nanos(next_look - self.clock.now());
            match self.messages.recv_timeout(left) {
                Ok(Message::Shutdown { reply }) => {
                    let ended = self.shut_down();
                    // Nobody waits for it when the last handle was dropped.
                    reply.send(ended).ok();
                    return;
                }
                Ok(message) => self.on(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.clock.now() >= next_look {
                self.look_around();
                next_look = self.clock.now().after(LOOK);
            }
        }
    }

    fn on(&mut self, message: Message) {
        match message {
            Message::Join { run, job, cost, place } => {
                let told = run.clone();
                self.is_retain_due = true;
                self.line.join(cost, Waiting { run, job, place });
                self.start_who_fit();
                self.show();
                told.tell_state();
            }
            Message::Stop { id, reply } => {
                // Nobody waits for it any more when the client is gone.
                reply.send(self.stop(&id)).ok();
            }
            Message::Ended { id, stored } => self.on_ended(&id, stored),
            Message::Take { cost, reply } => {
                let part = self.line.take(cost).then(|| Part { cost, owner: self.to_self.clone() });
                // Whoever asked may have gone. It is given back here: no message of the owner to itself, which could wait
                // for the owner.
                if let Err(Some(mut part)) = reply.send(part) {
                    self.line.give_back(std::mem::take(&mut part.cost));
                }
                self.show();
            }
            Message::GiveBack { cost } => {
                self.line.give_back(cost);
                self.start_who_fit();
                self.show();
            }
            Message::Shutdown { .. } => {}
        }
    }

    fn start_who_fit(&mut self) {
        while let Some((cost, Waiting { run, job, place })) = self.line.next() {
            drop(place);
            let id = run.id().to_owned();
            let (own, workshop, messages) = (run.clone(), self.workshop.clone(), self.to_self.clone());
            let spawned = Builder::new().name(format!("own {id}")).spawn(move || {
                let id = own.id().to_owned();
                let worked = catch_unwind(AssertUnwindSafe(|| work(&workshop, &own, &job)));
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
                    self.alive.insert(id, Alive { run, cost, thread });
                }
                Err(error) => {
                    self.line.give_back(cost);
                    self.end(
                        run,
                        RunState::Failed,
                        Some(format!("the machine gives no thread for the run: {error}")),
                    );
                }
            }
        }
    }

    fn stop(&mut self, id: &str) -> Option<Arc<LiveRun>> {
        if let Some(alive) = self.alive.get(id) {
            alive.run.stop();
            return Some(alive.run.clone());
        }
        let Waiting { run, .. } = self.line.leave(|waiting| waiting.run.id() == id)?;
        self.end(run.clone(), RunState::Stopped, None);
        self.start_who_fit();
        self.show();
        Some(run)
    }

    /// Ends a run that has no thread.
    fn end(&mut self, run: Arc<LiveRun>, state: RunState, error: Option<String>) {
        run.on_ended(None, state, error, None);
        let stored = self.store(&run);
        self.fade(run, stored);
    }

    fn on_ended(&mut self, id: &str, stored: bool) {
        let Some(Alive { run, cost, thread }) = self.alive.remove(id) else { return };
        if thread.join().is_err() {
            tracing::error!(run = id, "a run's thread panicked; this is a defect of Penstock");
        }
        self.line.give_back(cost);
        self.start_who_fit();
        self.fade(run, stored);
        self.show();
    }

    /// A run is over: it is in the history from now on, or kept here until it is.
    fn fade(&mut self, run: Arc<LiveRun>, stored: bool) {
        if stored {
            // Whoever hears that it is over may delete it.
            self.show();
        }
        run.reveal_end();
        if stored {
            self.fading.push_back((self.clock.now().after(FEED_AFTER_END), run.id().to_owned()));
        } else {
            // Perhaps that much can be stored.
            self.write_end(run.clone());
            self.unstored.push_back(run.clone());
            if self.unstored.len() > MAX_UNSTORED
                && let Some(oldest) = self.unstored.pop_front()
            {
                tracing::error!(
                    run = oldest.id(),
                    "what a run did is lost: it cannot be stored, as too many others"
                );
                self.fading.push_back((self.clock.now().after(FEED_AFTER_END), oldest.id().to_owned()));
            }
        }
        self.show();
        run.tell_end();
    }

    /// Has the writer store how a run ended and no more.
    fn write_end(&self, run: Arc<LiveRun>) {
        let id = run.id().to_owned();
        let handed_over = self.history.hand_over(Box::new(move |connection| {
            if let Err(error) = run.write_end(connection) {
                tracing::error!(run = run.id(), %error, "how a run ended cannot be stored");
            }
        }));
        if let Err(error) = handed_over {
            tracing::error!(run = id, %error, "how a run ended cannot be stored");
        }
    }

    fn store(&self, run: &Arc<LiveRun>) -> bool {
        let (own, (reply, answer)) = (run.clone(), std::sync::mpsc::sync_channel(1));
        let handed_over = self.history.hand_over(Box::new(move |connection| {
            // Nobody waits for it when the server ended meanwhile.
            reply.send(own.write(connection).is_ok()).ok();
        }));
        handed_over.is_ok() && answer.recv().unwrap_or(false)
    }

    fn look_around(&mut self) {
        let now = self.clock.now();
        while self.fading.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, id)) = self.fading.pop_front() {
                self.feed.forget(&id);
            }
        }
        if let Some(run) = self.unstored.pop_front() {
            if self.store(&run) {
                self.fading.push_back((now.after(FEED_AFTER_END), run.id().to_owned()));
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
        let mut runs: BTreeMap<String, Arc<LiveRun>> =
            alive.map(|run| (run.id().to_owned(), run.clone())).collect();
        let mut waiting = BTreeMap::new();
        for (who, why) in self.line.waiting() {
            runs.insert(who.run.id().to_owned(), who.run.clone());
            waiting.insert(who.run.id().to_owned(), why);
        }
        let view = View { runs, waiting, used: self.line.used(), alive: self.alive.len() as u64 };
        self.view.send_replace(Arc::new(view));
    }

    /// Ends everything, the history too; those that do not end in time are told.
    fn shut_down(mut self) -> (usize, Vec<String>) {
        let until = self.clock.now().after(SHUTDOWN);
        self.alive.values().for_each(|alive| alive.run.stop());
        let mut never_began = Vec::new();
        while let Some(waiting) = self.line.leave(|_| true) {
            never_began.push(waiting.run);
        }
        let mut stopped = 0;
        while !self.alive.is_empty() {
            let left = Duration::from_nanos(until - self.clock.now());
            match self.messages.recv_timeout(left) {
                Ok(Message::Ended { id, stored }) => {
                    stopped += 1;
                    self.on_ended(&id, stored);
                }
                Ok(Message::Join { run, .. }) => never_began.push(run),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let mut unfinished: Vec<String> = self.alive.keys().cloned().collect();
        // Their threads hang in the system and cannot be joined; the process is about to end.
        self.alive.clear();
        self.show();
        let Self { messages, history, clock, feed, unstored, .. } = self;
        let (told, ended) = std::sync::mpsc::sync_channel(1);
        // The writer's last work. It alone lets runs join, so that none can come behind these.
        let last = Box::new(move |connection: &mut rusqlite::Connection| {
            never_began.extend(messages.try_iter().filter_map(|message| match message {
                Message::Join { run, .. } => Some(run),
                _ => None,
            }));
            let (mut stored, mut lost) = (0, Vec::new());
            for run in never_began {
                run.on_ended(None, RunState::Stopped, None, None);
                let is_stored = run.write(connection).is_ok();
                run.reveal_end();
                run.tell_end();
                if is_stored { stored += 1 } else { lost.push(run.id().to_owned()) }
            }
            for run in unstored {
                if run.write(connection).is_err() {
                    lost.push(run.id().to_owned());
                }
            }
            // Nobody waits for it when it took too long.
            told.send((stored, lost)).ok();
        });
        history.close(last, Duration::from_nanos(until - clock.now()).max(CLOSING));
        feed.close();
        if let Ok((stored, lost)) = ended.try_recv() {
            stopped += stored;
            unfinished.extend(lost);
        }
        (stopped, unfinished)
    }
}
