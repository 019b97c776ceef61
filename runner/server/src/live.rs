//! A run that is not over: what it says and does, on its way to those who watch and to the history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::{Field, Sample, Value};
use penstock_engine::ports::{Observer, SampleFailure, Sums};
use penstock_engine::running::{RunHandle, StopReason};
use penstock_types::run::{PayloadField, RunDetail, RunError, RunSnapshot, RunState, RunSummary, Window};
use penstock_types::series::{LiveSample, Metric, Row};
use penstock_types::text::printable;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use crate::feed::{Event, Feed, RunLog};
use crate::history::{Entry, History, HistoryError, MAX_ERRORS, MAX_LOGS, Registered, RowBuffer, runs};
use crate::wire::LogEntry;
use penstock_pipeline::RunFacts;
use penstock_stream::StreamAddress;

/// How often what a run has done is written at least, in nanoseconds.
const WRITE_EVERY: u64 = 10_000_000_000;
/// Failed samples that wait to be written at most.
const MAX_UNWRITTEN_ERRORS: usize = 2_000;
/// Log lines that wait to be written at most; older ones give way.
const MAX_UNWRITTEN_LOGS: usize = 4_000;
/// Fields of a failed sample that are shown.
const SHOWN_FIELDS: usize = 16;
/// Bytes of a field that are shown as digits.
const SHOWN_BYTES: usize = 64;
/// Bytes of a text that are shown.
const SHOWN_TEXT: usize = 500;
/// Bytes of a field's name, a key or a message that are shown.
const SHOWN_NAME: usize = 256;
const SHOWN_MESSAGE: usize = 2_000;

/// A run that was submitted and is not over, or is over and not stored yet.
#[derive(Debug)]
pub(crate) struct LiveRun {
    pub(crate) registered: Registered,
    pub(crate) rows: RowBuffer,
    feed: Feed,
    history: History,
    totals: Arc<Totals>,
    begun: OnceLock<Begun>,
    started: OnceLock<RunHandle>,
    /// Where its batches are to be had, if other processes take them.
    stream: OnceLock<StreamAddress>,
    /// Its last snapshot and how it ended.
    ended: OnceLock<(RunSummary, Option<RunSnapshot>)>,
    /// Whether others may know how it ended: it is stored, or cannot be.
    is_told: AtomicBool,
    stop: watch::Sender<bool>,
    said: Mutex<Said>,
    /// Whether a write is under way.
    is_writing: AtomicBool,
}

/// What is counted over all runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) samples: AtomicU64,
    /// By failure class.
    pub(crate) failures: [AtomicU64; 4],
}

#[derive(Debug)]
struct Begun {
    clock: Arc<MonotonicClock>,
    facts: RunFacts,
    /// The machine's monotonic clock when the run's was zero.
    zero: Duration,
}

/// What a run has said that is not written yet.
#[derive(Debug, Default)]
struct Said {
    errors: Vec<RunError>,
    error_count: u64,
    errors_left_out: u64,
    logs: VecDeque<LogEntry>,
    log_count: u64,
    /// Lines that gave way before they were written.
    logs_lost: u64,
    /// Lines that were never kept, by stage.
    logs_dropped: BTreeMap<String, u64>,
    /// The next line of each stage.
    next_line: BTreeMap<String, u64>,
    state: Option<RunState>,
    delivered: u64,
    /// Items in each queue when it was last looked at.
    occupancy: Vec<usize>,
    written_at: u64,
    /// Why the last write failed.
    broken: Option<String>,
    /// Why its output is not whole.
    output: Option<String>,
}

/// The observer that a run calls; weak, because the live run reaches the run, which holds this.
pub(crate) struct LiveObserver(Weak<LiveRun>);

impl LiveObserver {
    pub(crate) fn of(live: &Arc<LiveRun>) -> Self {
        Self(Arc::downgrade(live))
    }
}

impl Observer for LiveObserver {
    fn on_failure(&self, failure: &SampleFailure) {
        if let Some(live) = self.0.upgrade() {
            live.on_failure(failure);
        }
    }

    fn on_window(&self, _window: &Window) {}

    fn on_sums(&self, stretch: &Sums) {
        if let Some(live) = self.0.upgrade() {
            live.on_sums(stretch);
        }
    }
}

impl LiveRun {
    pub(crate) fn new(registered: Registered, feed: Feed, history: History, totals: Arc<Totals>) -> Self {
        Self {
            rows: RowBuffer::new(&registered.layout),
            registered,
            feed,
            history,
            totals,
            begun: OnceLock::new(),
            started: OnceLock::new(),
            stream: OnceLock::new(),
            ended: OnceLock::new(),
            is_told: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            said: Mutex::default(),
            is_writing: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.registered.id
    }

    /// It is about to start.
    pub(crate) fn begin(&self, clock: Arc<MonotonicClock>, facts: RunFacts) {
        let zero = monotonic().saturating_sub(Duration::from_nanos(clock.now().nanos()));
        if self.begun.set(Begun { clock, facts, zero }).is_err() {
            tracing::error!(run = self.id(), "a run began twice; this is a defect of Penstock");
        }
    }

    /// It has started.
    pub(crate) fn on_started(&self, handle: RunHandle) {
        if self.started.set(handle).is_err() {
            tracing::error!(run = self.id(), "a run started twice; this is a defect of Penstock");
        }
        // Somebody may have wanted it to stop in between.
        if *self.stop.borrow() {
            self.stop();
        }
        self.tell_state();
    }

    /// Its batches are to be had there.
    pub(crate) fn on_stream(&self, address: StreamAddress) {
        if self.stream.set(address).is_err() {
            tracing::error!(run = self.id(), "a run streams twice; this is a defect of Penstock");
        }
    }

    /// Where its batches are to be had, from the moment at which they are.
    pub(crate) fn stream(&self) -> Option<&StreamAddress> {
        self.stream.get()
    }

    /// Ends it where it is, or before it starts.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        if let Some(handle) = self.started.get() {
            handle.stop(StopReason::Asked);
        }
    }

    /// Becomes true when somebody wants it to end.
    pub(crate) fn stop_wanted(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// A sample failed. Called from the run's threads.
    fn on_failure(&self, failure: &SampleFailure) {
        self.totals.failures[failure.record.class as usize].fetch_add(1, Ordering::Relaxed);
        let at_s = self.begun.get().map_or(0.0, |begun| begun.clock.now().seconds());
        let mut said = self.said();
        if said.error_count >= MAX_ERRORS || said.errors.len() >= MAX_UNWRITTEN_ERRORS {
            said.errors_left_out += 1;
            return;
        }
        said.error_count += 1;
        let mut record = failure.record.clone();
        record.key = printable(&record.key, SHOWN_NAME);
        record.message = printable(&record.message, SHOWN_MESSAGE);
        let number = said.error_count;
        said.errors.push(RunError { number, failure: record, at_s, payload: payload(&failure.sample) });
    }

    /// A stretch of time is over. Called from the thread that keeps the run's time.
    fn on_sums(self: &Arc<Self>, stretch: &Sums) {
        let row = self.rows.add(stretch);
        let (state, is_due) = {
            let mut said = self.said();
            let more = stretch.delivered.saturating_sub(said.delivered);
            said.delivered = stretch.delivered;
            said.occupancy.clone_from(&stretch.occupancy);
            self.totals.samples.fetch_add(more, Ordering::Relaxed);
            let state = (said.state != Some(stretch.state)).then_some(stretch.state);
            said.state = Some(stretch.state);
            let now = stretch.t1.nanos();
            let is_full =
                said.errors.len() > MAX_UNWRITTEN_ERRORS / 4 || said.logs.len() > MAX_UNWRITTEN_LOGS / 4;
            (state, is_full || now.saturating_sub(said.written_at) >= WRITE_EVERY)
        };
        self.hear();
        // How it ended is told when all of it is stored.
        let is_draining = state.is_some_and(|state| state == RunState::Draining);
        if is_draining {
            self.tell_state();
        }
        if let Some(row) = row {
            let (samples, failed) = (stretch.delivered, stretch.failed_samples);
            let occupancy = &stretch.occupancy;
            let sample = self.sample(&row, stretch.state, samples, failed, stretch.expected, occupancy);
            self.feed.tell(self.id(), Event::Sample(sample));
        }
        // Lists are looked up by what is written.
        if is_due || is_draining {
            self.write_soon(stretch.t1.nanos());
        }
    }

    /// Takes down what its modules have said.
    fn hear(&self) {
        let Some(begun) = self.begun.get() else { return };
        for (stage, guest) in begun.facts.guests() {
            let mut said = self.said();
            let next = said.next_line.get(stage).copied().unwrap_or(0);
            let heard = guest.logs_since(next);
            said.logs_dropped.insert(stage.clone(), heard.dropped);
            let Some(last) = heard.lines.last() else { continue };
            let first = heard.lines.first().map_or(next, |line| line.number);
            said.logs_lost += first.saturating_sub(next);
            said.next_line.insert(stage.clone(), last.number + 1);
            for line in heard.lines {
                said.log_count += 1;
                let entry = LogEntry {
                    number: said.log_count,
                    stage: stage.clone(),
                    level: line.level,
                    message: line.message,
                    at_s: line.at.saturating_sub(begun.zero).as_secs_f64(),
                };
                if said.logs.len() == MAX_UNWRITTEN_LOGS {
                    said.logs.pop_front();
                    said.logs_lost += 1;
                }
                said.logs.push_back(entry.clone());
                let log = RunLog { run: self.id().to_owned(), entry };
                self.feed.tell(self.id(), Event::Log(log));
            }
        }
    }

    fn sample(
        &self,
        row: &Row,
        state: RunState,
        samples: u64,
        failed_samples: u64,
        expected: Option<u64>,
        occupancy: &[usize],
    ) -> LiveSample {
        let layout = &self.registered.layout;
        let stages = layout.stages.iter().zip(&row.stages).map(|(stage, row)| {
            (stage.id.clone(), Metric::STAGE.map(|metric| (metric, row.metric(metric))).into())
        });
        let queues = layout.queues.iter().zip(&row.queues).map(|(queue, row)| {
            (queue.id.clone(), Metric::QUEUE.map(|metric| (metric, row.metric(metric))).into())
        });
        let items = layout.queues.iter().zip(occupancy);
        LiveSample {
            run: self.id().to_owned(),
            t0_s: row.t0 as f64 / 1e9,
            t1_s: row.t1 as f64 / 1e9,
            state: if state.is_over() { RunState::Draining } else { state },
            values: stages.chain(queues).collect(),
            samples,
            failed_samples,
            expected,
            occupancy: items.map(|(queue, items)| (queue.id.clone(), *items as u64)).collect(),
            verdict: self.begun.get().and_then(|begun| begun.facts.verdict()),
        }
    }

    /// Has the writer write, unless it is about to.
    pub(crate) fn write_soon(self: &Arc<Self>, now: u64) {
        if self.is_writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let run = self.clone();
        let handed_over = self.history.hand_over(Box::new(move |connection| {
            // Why it failed is noted, and the next time tries again.
            run.write(connection).ok();
        }));
        match handed_over {
            Ok(()) => self.said().written_at = now,
            Err(_) => self.is_writing.store(false, Ordering::Release),
        }
    }

    /// Writes what is not written yet, on the writer's thread.
    pub(crate) fn write(&self, connection: &mut rusqlite::Connection) -> Result<(), HistoryError> {
        let unwritten = self.rows.unwritten();
        let lost = self.rows.lost();
        let entry = {
            let said = self.said();
            Entry {
                summary: Some((self.last_summary().unwrap_or_else(|| self.summary()), self.snapshot())),
                // When this is written, nothing is broken.
                history: said.not_whole(None, lost),
                errors: said.errors.clone(),
                logs: said.logs.iter().cloned().collect(),
                errors_left_out: said.errors_left_out,
                logs_left_out: said.logs_left_out(),
            }
        };
        let written = crate::history::transact(connection, |transaction| {
            crate::history::write_entry(transaction, self.id(), &entry, &unwritten)
        });
        let mut said = self.said();
        match &written {
            Ok(()) => {
                said.errors.drain(..entry.errors.len());
                let last = entry.logs.last().map_or(0, |line| line.number);
                while said.logs.front().is_some_and(|line| line.number <= last) {
                    said.logs.pop_front();
                }
                said.broken = None;
                drop(said);
                self.rows.on_written(&unwritten);
            }
            Err(error) => {
                if said.broken.is_none() {
                    tracing::error!(run = self.id(), %error, "the history of a run cannot be written; the run goes on");
                }
                said.broken = Some(error.to_string());
            }
        }
        self.is_writing.store(false, Ordering::Release);
        written
    }

    /// Writes how it ended and no more, on the writer's thread: the rest of it cannot be written.
    pub(crate) fn write_end(&self, connection: &mut rusqlite::Connection) -> Result<(), HistoryError> {
        let Some((summary, snapshot)) = self.ended.get() else { return Ok(()) };
        let history = {
            let said = self.said();
            said.not_whole(said.broken.clone(), self.rows.lost())
        };
        crate::history::transact(connection, |transaction| {
            runs::write_end(transaction, summary, snapshot.as_ref(), history.as_deref())
        })
    }

    /// Its threads have ended: everything is taken down.
    pub(crate) fn on_ended(
        &self,
        snapshot: Option<RunSnapshot>,
        state: RunState,
        error: Option<String>,
        output: Option<String>,
    ) {
        self.hear();
        if let (Some(row), Some(snapshot)) = (self.rows.finish(), &snapshot) {
            let failed = snapshot.stages.iter().map(|stage| stage.task.failed_samples).sum();
            let delivered = snapshot.ledger.total.delivered;
            let occupancy = self.said().occupancy.clone();
            let sample = self.sample(&row, state, delivered, failed, snapshot.expected, &occupancy);
            self.feed.tell(self.id(), Event::Sample(sample));
        }
        let mut summary = self.summary();
        if let Some(snapshot) = &snapshot {
            figures(&mut summary, snapshot);
            summary.started_at = Some(snapshot.started_at.clone());
        }
        summary.state = state;
        summary.error = error;
        summary.ended_at = Some(crate::history::now());
        self.said().output = output;
        if self.ended.set((summary, snapshot)).is_err() {
            tracing::error!(run = self.id(), "a run ended twice; this is a defect of Penstock");
        }
    }

    /// What it looks like in a list for ever, once it has ended.
    fn last_summary(&self) -> Option<RunSummary> {
        self.ended.get().map(|(summary, _)| summary.clone())
    }

    /// What it looks like in a list now.
    pub(crate) fn summary(&self) -> RunSummary {
        if let Some(summary) = self.last_summary().filter(|_| self.is_over()) {
            return summary;
        }
        let run = &self.registered;
        let mut summary = RunSummary {
            id: run.id.clone(),
            name: run.name.clone(),
            state: RunState::Queued,
            error: None,
            submitted_at: run.submitted_at.clone(),
            started_at: None,
            ended_at: None,
            elapsed_s: None,
            threads: run.threads,
            memory_mib: run.memory_mib,
            samples: None,
            expected: None,
            failed_samples: 0,
            readiness: None,
            wait_s: None,
            qps: None,
            samples_per_s: None,
            modules: run.modules.clone(),
        };
        if let Some(begun) = self.begun.get() {
            summary.state = RunState::Running;
            summary.started_at = Some(begun.facts.started_at().to_owned());
        }
        if let Some(snapshot) = self.snapshot() {
            figures(&mut summary, &snapshot);
            // It is over for others when all of it is stored.
            summary.state = if snapshot.state.is_over() { RunState::Draining } else { snapshot.state };
        }
        summary
    }

    /// Its figures now; `None` before it started.
    pub(crate) fn snapshot(&self) -> Option<RunSnapshot> {
        if let Some((_, snapshot)) = self.ended.get() {
            return snapshot.clone();
        }
        let (begun, handle) = self.begun.get().zip(self.started.get())?;
        Some(begun.facts.snapshot(handle.view()))
    }

    /// All that is known of it.
    pub(crate) fn detail(&self, waiting: Option<String>) -> RunDetail {
        let summary = self.summary();
        let lost = self.rows.lost();
        let snapshot = self.snapshot();
        let said = self.said();
        RunDetail {
            waiting: waiting.filter(|_| summary.state == RunState::Queued),
            summary,
            snapshot,
            cloned_from: self.registered.cloned_from.clone(),
            history: said.not_whole(said.broken.clone(), lost),
            errors_left_out: said.errors_left_out,
            logs_left_out: said.logs_left_out(),
        }
    }

    /// Tells everybody what it is doing.
    pub(crate) fn tell_state(&self) {
        let summary = self.summary();
        self.feed.tell(self.id(), Event::State(summary.clone()));
        self.feed.tell_lists(summary);
    }

    /// Whether its threads have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Whether it is over for others: stored, or it cannot be.
    pub(crate) fn is_over(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }

    /// From now on it is over for others.
    pub(crate) fn reveal_end(&self) {
        self.is_told.store(true, Ordering::Release);
    }

    /// Tells everybody that it is over and stored.
    pub(crate) fn tell_end(&self) {
        self.tell_state();
        self.feed.tell(self.id(), Event::End(self.summary()));
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    /// Why what is kept is not whole.
    fn not_whole(&self, broken: Option<String>, lost: u64) -> Option<String> {
        let lost = (lost > 0).then(|| format!("{lost} stretches of it could not be written and are lost"));
        let parts = [broken, lost, self.output.clone()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn logs_left_out(&self) -> u64 {
        let beyond = self.log_count.saturating_sub(MAX_LOGS);
        beyond + self.logs_lost + self.logs_dropped.values().sum::<u64>()
    }
}

/// The figures of a list from those of a run.
fn figures(summary: &mut RunSummary, snapshot: &RunSnapshot) {
    let sink = snapshot.queues.last().map(|queue| &queue.figures);
    summary.state = snapshot.state;
    summary.error = snapshot.error.clone();
    summary.elapsed_s = Some(snapshot.elapsed_s);
    summary.samples = Some(snapshot.ledger.total.delivered);
    summary.expected = snapshot.expected;
    summary.failed_samples = snapshot.stages.iter().map(|stage| stage.task.failed_samples).sum();
    summary.readiness = sink.and_then(|figures| figures.readiness);
    summary.wait_s = sink.and_then(|figures| figures.ave_get_time_s);
    summary.qps = sink.and_then(|figures| figures.qps);
    summary.samples_per_s = snapshot.samples_per_s;
}

/// The head of what came into the stage.
fn payload(sample: &Sample) -> Option<Vec<PayloadField>> {
    (!sample.fields.is_empty()).then(|| sample.fields.iter().take(SHOWN_FIELDS).map(shown).collect())
}

fn shown(field: &Field) -> PayloadField {
    let hex = |bytes: &[u8]| bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let (kind, head) = match &field.value {
        Value::Blob(bytes) => ("bytes".to_owned(), hex(bytes)),
        Value::Text(text) => ("text".to_owned(), printable(text, SHOWN_TEXT)),
        Value::Int(int) => ("int".to_owned(), int.to_string()),
        Value::Real(real) => ("real".to_owned(), real.to_string()),
        Value::Tensor(tensor) => {
            (format!("tensor {} {:?}", tensor.dtype.name(), tensor.shape), hex(&tensor.data))
        }
    };
    PayloadField { name: printable(&field.name, SHOWN_NAME), kind, size_bytes: field.value.bytes(), head }
}

fn monotonic() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().expect("this clock counts up from zero")
}
