use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::lock::locked;
use penstock_engine::ports::{Observer, SampleFailure, Sums};
use penstock_engine::running::{RunHandle, RunView, Running};
use penstock_storage::BoundedStore;
use penstock_types::ledger::RunBook;
use penstock_types::plan::Plan;
use penstock_types::policy::FailureLimit;
use penstock_types::resume::{MAX_TOKEN_BYTES, StartPoint, StateTooLarge};
use penstock_types::run::{FilesRecord, RunId, RunSnapshot, Window};
use penstock_types::series::TaskTimes;
use penstock_types::stats::{Histogram, StoreCacheFigures};
use penstock_types::verdict::{Diagnosis, PipelineShape, VerdictSpan};
use penstock_wasm::{LogLines, StageFactory};

use crate::dead_letter::LetterStage;
use crate::devices::Transfers;
use crate::found::Found;
use crate::machine::MachineReading;
use crate::output::{OutputError, OutputFolder};
use crate::spatial::spatial_warnings;
use crate::tune::{LiveSettings, SetFault};

/// Longest time that a run waits at its end for the caches of its stores.
const CACHE_WAIT: Duration = Duration::from_secs(10);

/// A run in this process.
#[derive(Debug)]
pub struct Run {
    running: Running,
    /// Thread of the tuner, if the run is tuned.
    tuner: Option<JoinHandle<()>>,
    clock: Arc<MonotonicClock>,
    pub handle: RunHandle,
    watcher: Arc<Watcher>,
    pub start: Arc<StartPoint>,
}

#[derive(Debug)]
pub struct Ended {
    pub snapshot: RunSnapshot,
    /// Last lines that each module logged, by stage id.
    pub logs: BTreeMap<String, LogLines>,
    /// Error that made the output incomplete, if there was one.
    pub output: Result<(), OutputError>,
    /// State from which another run continues, as JSON.
    pub state: Result<String, StateTooLarge>,
}

/// Constant properties of a run, with handles to the counters of its parts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RunFacts {
    id: RunId,
    /// Start time of the run, RFC 3339 in UTC.
    pub started_at: String,
    threads: u32,
    /// Samples settled by the runs that this one continues.
    resumed: Option<RunBook>,
    pub(crate) watched: Watched,
    machine: MachineReading,
    /// Verdicts: updated by the thread that keeps the time of the run, read by any thread.
    verdicts: Arc<Mutex<Diagnosis>>,
    /// Settings that can change in the run.
    pub settings: LiveSettings,
    /// Times of ops for each stage, in the order of the pipeline.
    times: Arc<Mutex<Vec<Histogram>>>,
    pub plan: Arc<Plan>,
}

/// Parts of a run that have counters of their own, which are read during the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    /// Stages that run modules, by id.
    pub(crate) guests: BTreeMap<String, StageFactory>,
    /// Counters of a consumer that writes files.
    pub(crate) files: Option<Arc<Mutex<FilesRecord>>>,
    pub(crate) transfers: Transfers,
    pub(crate) found: Found,
    /// Stores whose objects are kept in a cache.
    pub(crate) cached: Vec<BoundedStore>,
}

/// Observer that writes the output of a run.
#[derive(Debug)]
pub(crate) struct Watcher {
    output: Option<Arc<OutputFolder>>,
    /// Properties of stages for dead letters, by stage id.
    stages: BTreeMap<String, LetterStage>,
    pub(crate) facts: RunFacts,
    /// Machine counters at the end of the last window; only recorded for an output.
    machine: Mutex<MachineReading>,
}

impl Watched {
    /// Waits until the caches have written what the run has added. A slow disk loses the rest, which a later run adds.
    fn wait_for_caches(&self, clock: &MonotonicClock) {
        let most = clock.now().nanos().saturating_add(CACHE_WAIT.as_nanos() as u64);
        for store in &self.cached {
            let left = store.cache_written(Duration::from_nanos(most.saturating_sub(clock.now().nanos())));
            if left > 0 {
                tracing::warn!(
                    store = &**store.name(),
                    entries = left,
                    "the disk of the cache is slow; not all was written"
                );
            }
        }
    }

    fn caches(&self) -> BTreeMap<String, StoreCacheFigures> {
        let figures = |store: &BoundedStore| Some((store.name().to_string(), store.cache_figures()?));
        let caches = self.cached.iter().filter_map(figures);
        caches.filter(|(_, figures)| figures.hits + figures.misses > 0).collect()
    }
}

impl Run {
    pub(crate) fn new(
        running: Running,
        tuner: Option<JoinHandle<()>>,
        clock: Arc<MonotonicClock>,
        watcher: Arc<Watcher>,
        start: Arc<StartPoint>,
    ) -> Self {
        Self { handle: running.handle(), running, tuner, clock, watcher, start }
    }

    /// Changes a setting of the run; see [`LiveSettings::set`].
    pub fn set(&self, values: &BTreeMap<String, u32>, by: &str) -> Result<(), SetFault> {
        self.facts().settings.set(&self.handle, &self.clock, values, by, |_| Ok(()))
    }

    /// State from which another run continues, as JSON: what is handed out, left out or failed is not repeated.
    pub fn state(&self) -> Result<String, StateTooLarge> {
        self.facts().state(&self.start, &self.handle, MAX_TOKEN_BYTES)
    }

    pub fn facts(&self) -> &RunFacts {
        &self.watcher.facts
    }

    /// Length of a measuring window.
    pub(crate) fn interval(&self) -> Duration {
        self.facts().plan.interval
    }

    pub fn output(&self) -> Option<Arc<OutputFolder>> {
        self.watcher.output.clone()
    }

    pub fn snapshot(&self) -> RunSnapshot {
        self.facts().snapshot(self.handle.view())
    }

    /// Waits until the run has ended and its output is written.
    pub fn wait(self) -> Ended {
        let Watcher { facts, output, .. } = &*self.watcher;
        let view = self.running.wait();
        if self.tuner.is_some_and(|tuner| tuner.join().is_err()) {
            tracing::error!("the tuner panicked; this is a defect of Penstock");
        }
        facts.watched.wait_for_caches(&self.clock);
        let snapshot = facts.snapshot(view);
        let state = facts.state(&self.start, &self.handle, MAX_TOKEN_BYTES);
        let guests = facts.watched.guests.iter();
        let logs = guests.map(|(stage, guest)| (stage.clone(), guest.logs())).collect();
        let output = match output {
            Some(output) => output.finish(&snapshot, &facts.times(&snapshot)),
            None => Ok(()),
        };
        Ended { snapshot, logs, output, state }
    }
}

impl RunFacts {
    pub(crate) fn new(
        id: Option<RunId>,
        plan: &Plan,
        threads: u32,
        resumed: Option<RunBook>,
        watched: Watched,
        shape: PipelineShape,
        settings: impl FnOnce(Arc<Mutex<Diagnosis>>) -> LiveSettings,
    ) -> Self {
        let verdicts = Arc::new(Mutex::new(Diagnosis::of(shape)));
        Self {
            id: id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string().into()),
            started_at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            threads,
            resumed,
            watched,
            machine: MachineReading::now(),
            settings: settings(verdicts.clone()),
            verdicts,
            times: Arc::new(Mutex::new(vec![Histogram::default(); plan.stages.len()])),
            plan: Arc::new(plan.clone()),
        }
    }

    /// State from which another run continues, as JSON with at most `most` bytes.
    pub fn state(&self, start: &StartPoint, handle: &RunHandle, most: u64) -> Result<String, StateTooLarge> {
        let progress = handle.progress(most).ok_or(StateTooLarge(most))?;
        let (mut state, learnt) = (start.after(&progress), self.watched.found.learnt());
        if let Some(epochs) = self.plan.source.traversal.epochs.filter(|_| progress.ended_together) {
            state = state.ended(start.token.first_epoch.saturating_add(epochs.get() - 1));
        }
        if !learnt.is_empty() {
            state.fields = learnt;
        }
        state.settings = self.settings.changed();
        state.to_json_within(most)
    }

    /// Distribution of op times for each stage of a snapshot of the run, by id.
    pub fn times(&self, snapshot: &RunSnapshot) -> BTreeMap<String, TaskTimes> {
        let times = locked(&self.times);
        let named = snapshot.stages.iter().zip(&*times);
        named.map(|(stage, times)| (stage.id.clone(), TaskTimes::from(times))).collect()
    }

    /// Stages that run modules, by id.
    pub fn guests(&self) -> &BTreeMap<String, StageFactory> {
        &self.watched.guests
    }

    pub fn verdict(&self) -> Option<VerdictSpan> {
        locked(&self.verdicts).current().cloned()
    }

    /// Completes the engine's `view` to a snapshot.
    pub fn snapshot(&self, view: RunView) -> RunSnapshot {
        let machine = MachineReading::now().since(&self.machine);
        let (verdict, verdicts) = {
            let diagnosis = locked(&self.verdicts);
            let sink = &view.queues.last().expect("each run has a sink").figures;
            (diagnosis.whole_now(sink, &view.failures, machine.as_ref()), diagnosis.spans())
        };
        let digest = |guest: &StageFactory| guest.module().digest().to_owned();
        let modules = self.watched.guests.iter().map(|(stage, guest)| (stage.clone(), digest(guest)));
        let counters = self.watched.guests.iter().map(|(stage, guest)| (stage.clone(), guest.counters()));
        let fields = self.watched.found.notes(&self.plan.source.id.to_string()).fields();
        let changes = self.settings.changes();
        let mut warnings = self.watched.found.warnings();
        warnings.extend(spatial_warnings(&self.plan, fields.as_deref()));
        RunSnapshot {
            id: self.id.clone(),
            name: self.plan.name.clone(),
            state: view.state,
            error: view.error,
            started_at: self.started_at.clone(),
            elapsed_s: view.elapsed.as_secs_f64(),
            expected: view.expected,
            samples_per_s: None,
            consumer_waited: None,
            sink_items: BTreeMap::new(),
            threads: self.threads,
            modules: modules.collect(),
            counters: counters.filter(|(_, counters)| !counters.is_empty()).collect(),
            files: self.watched.files.as_ref().map(|files| *locked(files)),
            labels: self.watched.found.labels(),
            fields: fields.map(|fields| (*fields).clone()),
            left_out: self.watched.found.left_out(),
            warnings,
            caches: self.watched.caches(),
            transfers: self.watched.transfers.record(),
            stages: view.stages,
            queues: view.queues,
            machine,
            ledger: view.ledger,
            resumed: self.resumed.clone(),
            failure_limit: self.plan.max_failures.map(|limit: FailureLimit| limit.in_words("samples")),
            failures: view.failures,
            failures_not_listed: view.failures_not_listed,
            verdict: Some(verdict.with_tried(&changes)),
            verdicts,
            changes,
        }
        .completed()
    }
}

impl Watcher {
    pub(crate) fn new(output: Option<Arc<OutputFolder>>, facts: RunFacts) -> Self {
        let plan = &facts.plan;
        let stages = plan.stages.iter().map(|stage| (stage.id.to_string(), LetterStage::of(stage)));
        let source = (plan.source.id.to_string(), LetterStage::default());
        let stages = stages.chain([source]).collect();
        Self { output, stages, facts, machine: Mutex::new(MachineReading::now()) }
    }
}

impl Observer for Watcher {
    fn on_failure(&self, failure: &SampleFailure) {
        let record = &failure.record;
        tracing::trace!(
            stage = record.stage,
            key = record.key,
            class = record.class.name(),
            message = record.message,
            "sample failed"
        );
        if let Some(output) = &self.output {
            output.write_failure(failure, self.stages.get(&record.stage));
        }
    }

    fn on_window(&self, window: &Window) {
        if let Some(output) = &self.output {
            let now = MachineReading::now();
            let mut before = locked(&self.machine);
            let machine = now.since(&std::mem::replace(&mut before, now));
            output.write_window(&Window { machine, ..window.clone() });
        }
    }

    fn on_sums(&self, stretch: &Sums) {
        let mut times = locked(&self.facts.times);
        times.iter_mut().zip(&stretch.stages).for_each(|(all, stage)| all.merge(&stage.op_times));
        drop(times);
        self.facts.settings.measure(stretch);
        let (at, is_over) = (stretch.t1.nanos(), stretch.state.is_over());
        locked(&self.facts.verdicts).add(at, &stretch.stages, &stretch.queues, &stretch.books, is_over);
    }
}

/// Reads the state of the devices. This takes longer than readers of snapshots should wait, so this observer is the last one and
/// does nothing at the end of a run.
impl Observer for Transfers {
    fn on_sums(&self, sums: &Sums) {
        if !sums.state.is_over() {
            self.look();
        }
    }
}
