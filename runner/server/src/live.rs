//! A live run, which passes its figures, errors and logs on to the feed and to the history.

mod shown;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::lock::locked;
use penstock_engine::ports::{Observer, SampleFailure, Sums};
use penstock_engine::running::{RunHandle, StopReason};
use penstock_types::config::RunBounds;
use penstock_types::plan::Plan;
use penstock_types::resume::StartPoint;
use penstock_types::run::{RunDetail, RunError, RunId, RunSnapshot, RunState, RunSummary};
use penstock_types::series::{LiveSample, Metric, Row};
use penstock_types::tags::Tags;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use self::shown::shown;
use crate::admission::check_bounds;
use crate::error::RunsError;
use crate::feed::{Event, Feed, RunLog};
use crate::history::{
    Entry, History, HistoryError, MAX_ERRORS, MAX_LOGS, Registered, RowBuffer, Unwritten, runs,
};
use crate::owner::Part;
use crate::wire::{LogEntry, RunSettings};
use penstock_pipeline::memory::{settings_mib, tuned_mib};
use penstock_pipeline::tune::SetFault;
use penstock_pipeline::{Run, RunFacts};
use penstock_stream::StreamAddress;

/// Maximum time between two writes of a run's data, in nanoseconds.
const WRITE_EVERY: u64 = 10_000_000_000;
const MAX_UNWRITTEN_ERRORS: usize = 2_000;
/// Maximum number of log lines that wait to be written; a new line replaces the oldest.
const MAX_UNWRITTEN_LOGS: usize = 4_000;
const MAX_STATE_BYTES: u64 = 1 << 20;
/// Reason why settings cannot change after the end.
pub(crate) const ENDED: &str = "the run has ended, so its settings stay as they are";

/// Submitted run that has not ended yet, or that has ended but is not stored yet.
#[derive(Debug)]
pub(crate) struct LiveRun {
    pub(crate) registered: Registered,
    pub(crate) rows: RowBuffer,
    feed: Feed,
    history: History,
    totals: Arc<Totals>,
    begun: OnceLock<Begun>,
    started: OnceLock<(RunHandle, Arc<StartPoint>)>,
    /// Address of the batches of a run with the consumer `stream`; set once the stream is open.
    stream: OnceLock<StreamAddress>,
    /// Final summary, and the last snapshot if the run has started; set once the run has ended.
    ended: OnceLock<(RunSummary, Option<RunSnapshot>)>,
    /// Set once clients may see the end of the run: the run is stored, or storing it has failed.
    is_end_public: AtomicBool,
    stop: watch::Sender<bool>,
    /// Parts of the budget that the run has got for changed settings; `None` once the run has given its budget back.
    more: Mutex<Option<Vec<Part>>>,
    /// Current tags of the run; `registered` contains the tags as submitted.
    tags: Mutex<Tags>,
    pending: Mutex<Pending>,
    is_writing: AtomicBool,
    /// Number of pulses so far, and the summary that was made after one of them. A summary costs the figures of all stages, and lists,
    /// events and metrics ask for those of all live runs.
    pulses: AtomicU64,
    summarized: Mutex<Option<(u64, RunSummary)>>,
}

#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) samples: AtomicU64,
    pub(crate) failures: [AtomicU64; 4],
}

#[derive(Debug)]
struct Begun {
    clock: Arc<MonotonicClock>,
    facts: RunFacts,
    /// Reading of the machine's monotonic clock when the run's clock was zero.
    zero: Duration,
}

/// Errors and logs of a run that are not written yet, and other state that changes during the run.
#[derive(Debug, Default)]
struct Pending {
    errors: Vec<RunError>,
    error_count: u64,
    errors_left_out: u64,
    logs: VecDeque<LogEntry>,
    log_count: u64,
    /// Number of log lines that were dropped before they were written to the history.
    logs_lost: u64,
    /// Number of log lines that the log buffer of a stage dropped, by stage.
    logs_dropped: BTreeMap<String, u64>,
    /// Number of the next log line to collect, by stage.
    next_line: BTreeMap<String, u64>,
    state: Option<RunState>,
    /// Counts at the end of the last pulse, an interval of at most 250 ms.
    counted: Counted,
    written_at: u64,
    /// Set while the state of the run is too large to be kept.
    has_large_state: bool,
    /// Error of the last write to the history; `None` if it succeeded.
    broken: Option<String>,
    /// Error of the folder of dead letters; `None` if there was none.
    output: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    samples: u64,
    failed_samples: u64,
    expected: Option<u64>,
    occupancy: Vec<usize>,
}

/// Observer of a run. The reference is weak, because a strong one would form a cycle: the live run holds a handle to the run, and
/// the run holds the observer.
pub(crate) struct LiveObserver(pub(crate) Weak<LiveRun>);

impl Observer for LiveObserver {
    fn on_failure(&self, failure: &SampleFailure) {
        if let Some(live) = self.0.upgrade() {
            live.on_failure(failure);
        }
    }

    fn on_sums(&self, pulse: &Sums) {
        if let Some(live) = self.0.upgrade() {
            live.on_sums(pulse);
        }
    }
}

impl LiveRun {
    pub(crate) fn new(registered: Registered, feed: Feed, history: History, totals: Arc<Totals>) -> Self {
        Self {
            rows: RowBuffer::new(&registered.layout),
            tags: Mutex::new(registered.summary.tags.clone()),
            registered,
            feed,
            history,
            totals,
            begun: OnceLock::new(),
            started: OnceLock::new(),
            stream: OnceLock::new(),
            ended: OnceLock::new(),
            is_end_public: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            more: Mutex::new(Some(Vec::new())),
            pending: Mutex::default(),
            is_writing: AtomicBool::new(false),
            pulses: AtomicU64::new(0),
            summarized: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> &RunId {
        &self.registered.summary.id
    }

    pub(crate) fn begin(&self, clock: Arc<MonotonicClock>, facts: RunFacts) {
        let now: Duration =
            clock_gettime(ClockId::Monotonic).try_into().expect("this clock counts up from zero");
        let zero = now.saturating_sub(Duration::from_nanos(clock.now().nanos()));
        self.set_once(&self.begun, Begun { clock, facts, zero }, "began");
    }

    fn set_once<T>(&self, cell: &OnceLock<T>, value: T, what: &str) {
        if cell.set(value).is_err() {
            tracing::error!(run = %self.id(), "a run {what} twice; this is a defect of Penstock");
        }
    }

    pub(crate) fn on_started(&self, run: &Run) {
        self.set_once(&self.started, (run.handle.clone(), run.start.clone()), "started");
        // A stop that was requested before this point has not reached the run.
        if *self.stop.borrow() {
            self.stop();
        }
        self.tell_state();
    }

    pub(crate) fn on_stream(&self, address: StreamAddress) {
        self.set_once(&self.stream, address, "opened its stream");
    }

    pub(crate) fn stream(&self) -> Option<&StreamAddress> {
        self.stream.get()
    }

    /// Stops the run, or prevents its start.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        if let Some((handle, _)) = self.started.get() {
            handle.stop(StopReason::Asked);
        }
    }

    /// Settings that can change now, and their changes; `None` unless the run goes on.
    pub(crate) fn settings(&self) -> Option<RunSettings> {
        let (begun, _) = (self.begun.get()?, self.started.get().filter(|_| !self.has_ended())?);
        let settings = &begun.facts.settings;
        Some(RunSettings { settings: settings.all(), changes: settings.changes() })
    }

    /// The plan of the run with new values of settings; `None` before the run has started.
    pub(crate) fn with_settings(&self, values: &BTreeMap<String, u32>) -> Option<Result<Plan, SetFault>> {
        Some(self.begun.get()?.facts.settings.with(values))
    }

    /// Memory in MiB by which the settings of a plan exceed what the run has.
    pub(crate) fn memory_beyond(&self, plan: &Plan) -> u64 {
        let threads = self.registered.summary.threads;
        let had = self.begun.get().map_or(0, |begun| tuned_mib(&begun.facts.plan, threads));
        let more: u64 = locked(&self.more).iter().flatten().map(Part::memory_mib).sum();
        settings_mib(plan, threads).saturating_sub(had + more)
    }

    /// Changes settings of the run for a client; `None` before the run has started. `part` is the memory that they need beyond what the
    /// run has, and `bounds` those of the server: both are checked while no other client changes settings.
    pub(crate) fn set_settings(
        &self,
        values: &BTreeMap<String, u32>,
        part: Option<Part>,
        bounds: &RunBounds,
        token: &str,
    ) -> Option<Result<(), RunsError>> {
        let (begun, (handle, _)) = (self.begun.get()?, self.started.get()?);
        let admit = |plan: &Plan| {
            RunsError::refuse_faults(check_bounds(plan, bounds))?;
            if self.memory_beyond(plan) > part.as_ref().map_or(0, Part::memory_mib) {
                let why = "other settings of the run have changed meanwhile; send the change again";
                return Err(RunsError::Conflict(why.to_owned()));
            }
            let mut more = locked(&self.more);
            let more = more.as_mut().ok_or_else(|| RunsError::Conflict(ENDED.to_owned()))?;
            more.extend(part);
            Ok(())
        };
        let set = begun.facts.settings.set(handle, &begun.clock, values, &format!("set by {token}"), admit);
        self.pulses.fetch_add(1, Ordering::AcqRel);
        Some(set)
    }

    /// Takes the parts of the budget that the run has got for changed settings, at its end.
    pub(crate) fn take_more(&self) -> Vec<Part> {
        locked(&self.more).take().unwrap_or_default()
    }

    /// Returns a channel that becomes true once the run is to stop.
    pub(crate) fn stop_wanted(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Records a failed sample. Called from the run's threads.
    fn on_failure(&self, failure: &SampleFailure) {
        self.totals.failures[failure.record.class as usize].fetch_add(1, Ordering::Relaxed);
        let at_s = self.begun.get().map_or(0.0, |begun| begun.clock.now().seconds());
        let mut pending = locked(&self.pending);
        if pending.error_count >= MAX_ERRORS || pending.errors.len() >= MAX_UNWRITTEN_ERRORS {
            pending.errors_left_out += 1;
            return;
        }
        pending.error_count += 1;
        let error = shown(pending.error_count, failure, at_s);
        pending.errors.push(error);
    }

    /// Adds the sums of a pulse, an interval of at most 250 ms. Called from the timer thread of the run.
    fn on_sums(self: &Arc<Self>, pulse: &Sums) {
        let row = self.rows.add(pulse);
        let counted = Counted {
            samples: pulse.delivered,
            failed_samples: pulse.failed_samples,
            expected: pulse.expected,
            occupancy: pulse.occupancy.clone(),
        };
        self.pulses.fetch_add(1, Ordering::AcqRel);
        let (state, is_due) = {
            let mut pending = locked(&self.pending);
            let more = counted.samples.saturating_sub(pending.counted.samples);
            pending.counted = counted.clone();
            self.totals.samples.fetch_add(more, Ordering::Relaxed);
            let state = (pending.state != Some(pulse.state)).then_some(pulse.state);
            pending.state = Some(pulse.state);
            let now = pulse.t1.nanos();
            let is_full = pending.errors.len() > MAX_UNWRITTEN_ERRORS / 4
                || pending.logs.len() > MAX_UNWRITTEN_LOGS / 4;
            (state, is_full || now.saturating_sub(pending.written_at) >= WRITE_EVERY)
        };
        self.collect_logs();
        // Of the state changes, only `draining` is reported here: the end is reported once the whole run is stored.
        let is_draining = state == Some(RunState::Draining);
        if is_draining {
            self.tell_state();
        }
        if let Some(row) = row {
            self.feed.tell(self.id(), Event::Sample(self.sample(&row, pulse.state, counted)));
        }
        // Lists are filtered by the stored state, so the state `draining` is stored at once.
        if is_due || is_draining {
            self.write_soon();
        }
    }

    fn collect_logs(&self) {
        let Some(begun) = self.begun.get() else { return };
        for (stage, guest) in begun.facts.guests() {
            let mut pending = locked(&self.pending);
            let next = pending.next_line.get(stage).copied().unwrap_or(0);
            let logged = guest.logs_since(next);
            pending.logs_dropped.insert(stage.clone(), logged.dropped);
            let Some(last) = logged.lines.last() else { continue };
            let first = logged.lines.first().map_or(next, |line| line.number);
            pending.logs_lost += first.saturating_sub(next);
            pending.next_line.insert(stage.clone(), last.number + 1);
            for line in logged.lines {
                pending.log_count += 1;
                let entry = LogEntry {
                    number: pending.log_count,
                    stage: stage.clone(),
                    level: line.level,
                    message: line.message,
                    at_s: line.at.saturating_sub(begun.zero).as_secs_f64(),
                };
                if pending.logs.len() == MAX_UNWRITTEN_LOGS {
                    pending.logs.pop_front();
                    pending.logs_lost += 1;
                }
                pending.logs.push_back(entry.clone());
                self.feed.tell(self.id(), Event::Log(RunLog { run: self.id().clone(), entry }));
            }
        }
    }

    fn sample(&self, row: &Row, state: RunState, counted: Counted) -> LiveSample {
        let layout = &self.registered.layout;
        let stages = layout.stages.iter().zip(&row.stages).map(|(stage, row)| {
            (stage.id.clone(), Metric::STAGE.map(|metric| (metric, row.metric(metric))).into())
        });
        let queues = layout.queues.iter().zip(&row.queues).map(|(queue, row)| {
            (queue.id.clone(), Metric::QUEUE.map(|metric| (metric, row.metric(metric))).into())
        });
        let items = layout.queues.iter().zip(counted.occupancy);
        LiveSample {
            run: self.id().clone(),
            t0_s: row.t0 as f64 / 1e9,
            t1_s: row.t1 as f64 / 1e9,
            state: if state.is_over() { RunState::Draining } else { state },
            values: stages.chain(queues).collect(),
            samples: counted.samples,
            failed_samples: counted.failed_samples,
            expected: counted.expected,
            occupancy: items.map(|(queue, items)| (queue.id.clone(), items as u64)).collect(),
            verdict: self.begun.get().and_then(|begun| begun.facts.verdict()),
        }
    }

    /// Queues a write, unless one is queued already. The data are collected on the caller's thread, which may block, so that a large run
    /// does not delay the writer that all runs share.
    pub(crate) fn write_soon(self: &Arc<Self>) {
        if self.is_writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (run, had_ended) = (self.clone(), self.has_ended());
        let unwritten = self.unwritten();
        let handed_over = self.history.hand_over(Box::new(move |connection| {
            run.is_writing.store(false, Ordering::Release);
            // The end of a run is written with all data, and may have been written already.
            if run.has_ended() == had_ended {
                // `write` has recorded the error, and the next write includes the same data.
                run.write(connection, &unwritten).ok();
            }
        }));
        match handed_over {
            Ok(()) => {
                let now = self.begun.get().map_or(0, |begun| begun.clock.now().nanos());
                locked(&self.pending).written_at = now;
            }
            Err(_) => self.is_writing.store(false, Ordering::Release),
        }
    }

    /// Writes the whole run, from a thread that may block. Returns true if the run is stored; the owner tries again later if not.
    /// Returns false without waiting if too many other writes are queued.
    pub(crate) fn write_all(self: &Arc<Self>) -> bool {
        let (reply, answer) = sync_channel(1);
        let (own, unwritten) = (self.clone(), self.unwritten());
        let handed_over = self.history.hand_over(Box::new(move |connection| {
            reply.send(own.write(connection, &unwritten).is_ok()).ok();
        }));
        handed_over.is_ok() && answer.recv().unwrap_or(false)
    }

    pub(crate) fn unwritten(&self) -> (Entry, Unwritten) {
        let (rows, state) = (self.rows.unwritten(), self.state());
        let summary = Some(self.ended.get().cloned().unwrap_or_else(|| self.seen()));
        (Entry { summary, state, ..self.unwritten_errors_and_logs() }, rows)
    }

    pub(crate) fn unwritten_errors_and_logs(&self) -> Entry {
        let lost = self.rows.lost();
        let pending = locked(&self.pending);
        Entry {
            summary: None,
            // If this write succeeds, an earlier write error no longer applies.
            history: pending.gaps(None, lost),
            errors: pending.errors.clone(),
            logs: pending.logs.iter().cloned().collect(),
            errors_left_out: pending.errors_left_out,
            logs_left_out: pending.logs_left_out(),
            state: None,
        }
    }

    /// Writes data of the run, on the writer's thread. Another write may have written some of them since they were collected.
    pub(crate) fn write(
        &self,
        connection: &mut rusqlite::Connection,
        (entry, rows): &(Entry, Unwritten),
    ) -> Result<(), HistoryError> {
        let written = crate::history::transact(connection, |transaction| {
            crate::history::write_entry(transaction, self.id(), entry, rows)
        });
        let mut pending = locked(&self.pending);
        match &written {
            Ok(()) => {
                let last = entry.errors.last().map_or(0, |error| error.number);
                let left = pending.errors.partition_point(|error| error.number <= last);
                pending.errors.drain(..left);
                let last = entry.logs.last().map_or(0, |line| line.number);
                while pending.logs.pop_front_if(|line| line.number <= last).is_some() {}
                pending.broken = None;
                drop(pending);
                self.rows.on_written(rows);
            }
            Err(error) => {
                if pending.broken.is_none() {
                    tracing::error!(run = %self.id(), %error, "failed to write the history of a run; the run continues");
                }
                pending.broken = Some(error.to_string());
            }
        }
        written
    }

    /// State of the run once it has started; the inner `None` if no run can continue it.
    fn state(&self) -> Option<Option<String>> {
        let (handle, start) = self.started.get()?;
        let is_done = |(summary, _): &(RunSummary, _)| {
            let had_time = self.registered.for_s.is_none_or(|for_s| summary.elapsed_s < Some(for_s));
            summary.state == RunState::Completed && had_time
        };
        if self.ended.get().is_some_and(is_done) {
            return Some(None);
        }
        let state = self.begun.get()?.facts.state(start, handle, MAX_STATE_BYTES);
        let was_large = std::mem::replace(&mut locked(&self.pending).has_large_state, state.is_err());
        if let Err(error) = &state
            && !was_large
        {
            tracing::warn!(run = %self.id(), %error, "the state of the run is too large to be kept");
        }
        Some(state.ok())
    }

    /// Writes only the end of the run, on the writer's thread, after the other data could not be written.
    pub(crate) fn write_end(&self, connection: &mut rusqlite::Connection) -> Result<(), HistoryError> {
        let Some((summary, snapshot)) = self.ended.get() else { return Ok(()) };
        let history = {
            let pending = locked(&self.pending);
            pending.gaps(pending.broken.clone(), self.rows.lost())
        };
        crate::history::transact(connection, |transaction| {
            runs::write_end(transaction, summary, snapshot.as_ref(), history.as_deref())
        })
    }

    /// Records the end of the run, after its threads have ended.
    pub(crate) fn on_ended(
        &self,
        snapshot: Option<RunSnapshot>,
        state: RunState,
        error: Option<String>,
        output: Option<String>,
    ) {
        self.collect_logs();
        if let (Some(row), Some(snapshot)) = (self.rows.finish(), &snapshot) {
            let counted = Counted {
                samples: snapshot.ledger.total.delivered,
                failed_samples: snapshot.stages.iter().map(|stage| stage.task.failed_samples).sum(),
                expected: snapshot.expected,
                occupancy: locked(&self.pending).counted.occupancy.clone(),
            };
            self.feed.tell(self.id(), Event::Sample(self.sample(&row, state, counted)));
        }
        let mut summary = self.summary();
        if let Some(snapshot) = &snapshot {
            figures(&mut summary, snapshot);
            summary.started_at = Some(snapshot.started_at.clone());
        }
        summary.state = state;
        summary.error = error;
        summary.ended_at = Some(crate::history::now());
        locked(&self.pending).output = output;
        self.set_once(&self.ended, (summary, snapshot), "ended");
    }

    /// Summary of the run, whose figures are at most one pulse old.
    pub(crate) fn summary(&self) -> RunSummary {
        if self.started.get().is_none() || self.has_ended() {
            return self.seen().0;
        }
        let pulses = self.pulses.load(Ordering::Acquire);
        let mut summarized = locked(&self.summarized);
        let made = match summarized.take().filter(|(made_after, _)| *made_after == pulses) {
            Some(made) => made,
            None => (pulses, self.seen().0),
        };
        RunSummary { tags: self.tags(), ..summarized.insert(made).1.clone() }
    }

    /// Replaces the tags that clients see; the caller stores them.
    pub(crate) fn set_tags(&self, tags: Tags) {
        *locked(&self.tags) = tags;
    }

    fn tags(&self) -> Tags {
        locked(&self.tags).clone()
    }

    /// Returns the summary and the figures of the run, both as of the same time.
    fn seen(&self) -> (RunSummary, Option<RunSnapshot>) {
        if let Some(ended) = self.ended.get().filter(|_| self.is_over()) {
            let (summary, snapshot) = ended.clone();
            return (RunSummary { tags: self.tags(), ..summary }, snapshot);
        }
        let mut summary = RunSummary { tags: self.tags(), ..self.registered.summary.clone() };
        if let Some(begun) = self.begun.get() {
            summary.state = RunState::Running;
            summary.started_at = Some(begun.facts.started_at.clone());
        }
        let snapshot = self.snapshot();
        if let Some(snapshot) = &snapshot {
            figures(&mut summary, snapshot);
            // Until the whole run is stored, clients see a run that has ended as draining.
            summary.state = if snapshot.state.is_over() { RunState::Draining } else { snapshot.state };
        }
        (summary, snapshot)
    }

    /// Returns the figures of the run; `None` before its start.
    pub(crate) fn snapshot(&self) -> Option<RunSnapshot> {
        if let Some((_, snapshot)) = self.ended.get() {
            return snapshot.clone();
        }
        let (begun, (handle, _)) = self.begun.get().zip(self.started.get())?;
        Some(begun.facts.snapshot(handle.view()))
    }

    pub(crate) fn detail(&self, waiting: Option<String>) -> RunDetail {
        let (summary, snapshot) = self.seen();
        let lost = self.rows.lost();
        let pending = locked(&self.pending);
        RunDetail {
            waiting: waiting.filter(|_| summary.state == RunState::Queued),
            summary,
            snapshot,
            cloned_from: self.registered.cloned_from.clone(),
            resumes: self.registered.resumes.clone(),
            // It can be resumed once its end is stored.
            resumable: false,
            history: pending.gaps(pending.broken.clone(), lost),
            errors_left_out: pending.errors_left_out,
            logs_left_out: pending.logs_left_out(),
        }
    }

    /// Sends the state of the run to readers of its events and of the list of runs.
    pub(crate) fn tell_state(&self) {
        let summary = self.summary();
        self.feed.tell(self.id(), Event::State(summary.clone()));
        self.feed.tell(self.id(), Event::Runs(summary));
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_end_public.load(Ordering::Acquire)
    }

    pub(crate) fn publish_end(&self) {
        self.is_end_public.store(true, Ordering::Release);
    }

    pub(crate) fn tell_end(&self) {
        self.tell_state();
        self.feed.tell(self.id(), Event::End(self.summary()));
    }
}

impl Pending {
    /// Reasons why the history of the run is incomplete; `None` if it is complete.
    fn gaps(&self, broken: Option<String>, lost: u64) -> Option<String> {
        let lost = (lost > 0).then(|| format!("{lost} chunks of figures could not be written and are lost"));
        let parts = [broken, lost, self.output.clone()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn logs_left_out(&self) -> u64 {
        let beyond = self.log_count.saturating_sub(MAX_LOGS);
        beyond + self.logs_lost + self.logs_dropped.values().sum::<u64>()
    }
}

fn figures(summary: &mut RunSummary, snapshot: &RunSnapshot) {
    let sink = snapshot.queues.last().map(|queue| &queue.figures);
    summary.error = snapshot.error.clone();
    summary.elapsed_s = Some(snapshot.elapsed_s);
    summary.samples = Some(snapshot.ledger.total.delivered);
    summary.expected = snapshot.expected;
    summary.failed_samples = snapshot.stages.iter().map(|stage| stage.task.failed_samples).sum();
    summary.readiness = sink.and_then(|figures| figures.readiness);
    summary.wait_s = sink.and_then(|figures| figures.ave_get_time_s);
    summary.qps = sink.and_then(|figures| figures.qps);
    summary.samples_per_s = snapshot.samples_per_s;
    summary.verdict = snapshot.verdict.as_ref().map(|verdict| verdict.kind);
    summary.verdict_stage = snapshot.verdict.as_ref().and_then(|verdict| verdict.stage.clone());
}
