//! A checked pipeline, and a run of it drained by a training loop.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use penstock_device::HostMemory;
use penstock_engine::item::{Collated, Item, Origin};
use penstock_engine::lock::locked;
use penstock_engine::memory::Pool;
use penstock_engine::running::{RunHandle, StopReason, Taken};
use penstock_pipeline::headspace::Headspace;
use penstock_pipeline::predict::{Baseline, Machine, Recording, predict_plan};
use penstock_pipeline::{Ended, OutputError, Prepared, Run, RunEnds, RunFacts, Runner, StartError, cores};
use penstock_types::kinds::Work;
use penstock_types::manifest::Mode;
use penstock_types::plan::{StageKind, StagePlan, WasmPlan};
use penstock_types::resume::{ChangedSetting, MAX_TOKEN_BYTES, StartPoint, Token, TokenFault};
use penstock_types::run::{RunSnapshot, RunState};
use penstock_types::spec::Consumer;
use penstock_types::text::with_causes;
use penstock_types::traversal::{Shard, Uneven};
use penstock_types::verdict::Verdict;
use penstock_wasm::{Compiler, Sandbox, SandboxSettings};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::batch::{Batch, Held};
use crate::checked::{Document, ModuleSource, prefer_gpu};
use crate::command::compiler;
use crate::errors::{InvalidPipeline, PenstockError, RunFailed, failed, invalid};
use crate::logs;
use crate::output::folder_of;
use crate::process::{Home, SLICE, io, wait_for};

/// Maximum time for stopping a run: the engine needs up to three seconds.
const STOP: Duration = Duration::from_secs(10);

/// A share of a source as a Python tuple: rank, number of ranks, and true if the entries that remain after an even division among
/// the ranks are kept.
type WrittenShard = (u32, u32, bool);

/// A checked pipeline.
#[pyclass(frozen, module = "penstock._penstock")]
pub(crate) struct Loader {
    home: Home,
    prepared: Prepared,
    /// Document of the runs, with defaults.
    document: Arc<serde_json::Value>,
    /// Same document as JSON without defaults: as given, with settings and `device` applied.
    written: String,
    /// Pool of host memory, reused from run to run.
    memory: Pool<HostMemory>,
    held: Held,
    max_held: usize,
    /// Set while a run is active: the sandbox has room for the instances of one run.
    is_running: Arc<AtomicBool>,
    /// Settings that the last loop had changed at its end, for the next one.
    tuned: Arc<Mutex<BTreeMap<String, ChangedSetting>>>,
}

/// A run of a pipeline, drained by the training loop.
#[pyclass(frozen, module = "penstock._penstock")]
pub(crate) struct Running {
    home: Home,
    handle: RunHandle,
    held: Held,
    max_held: usize,
    /// Samples of the last batches that were returned, in order; settled once they are certain to be in the hands of the loop.
    recent: Mutex<VecDeque<Vec<Origin>>>,
    /// Document of the run, with defaults.
    document: Arc<serde_json::Value>,
    /// Place where the run began.
    start: Arc<StartPoint>,
    facts: RunFacts,
    /// Batches that arrived while the loop held too many; several if several threads called `next`.
    waiting: Mutex<VecDeque<Collated>>,
    /// `None` once the run has ended.
    run: Mutex<Option<Run>>,
    /// Figures of the run once it has ended.
    last: OnceLock<RunSnapshot>,
    /// Error of an incomplete output, until it is reported to the loop.
    unwritten: Mutex<Option<OutputError>>,
    /// Set once the loop has closed the run.
    is_closed: AtomicBool,
    /// Flag shared with the [`Loader`].
    is_running: Arc<AtomicBool>,
    tuned: Arc<Mutex<BTreeMap<String, ChangedSetting>>>,
}

#[pymethods]
impl Loader {
    /// Checks a document with its stores and modules. `device` is the target of all transfers; `local_rank` is the GPU for
    /// transfers with `auto`. With `keeps_letters`, each run gets a folder for dead letters.
    #[new]
    #[pyo3(signature = (document, *, settings, stores, links, store_cache, modules, device, local_rank, max_held, keeps_letters, cache_dir, interpreter, library))]
    #[expect(clippy::too_many_arguments, reason = "the package's `Pipeline` passes them by name")]
    fn new(
        py: Python<'_>,
        document: &[u8],
        settings: Vec<(String, String)>,
        stores: Vec<(String, String)>,
        links: BTreeMap<String, Vec<PathBuf>>,
        store_cache: Option<String>,
        modules: Vec<(String, ModuleSource)>,
        device: Option<&str>,
        local_rank: Option<u32>,
        max_held: usize,
        keeps_letters: bool,
        cache_dir: Option<PathBuf>,
        interpreter: PathBuf,
        library: PathBuf,
    ) -> PyResult<Self> {
        let runtime = io()?;
        let mut document = Document::read(document, settings)?;
        if let Some(device) = device {
            document.lead_to(device);
        }
        let process = compiler(interpreter, library);
        let written = document.written.to_string();
        let whole = serde_json::to_value(&document.spec).map_err(failed)?;
        // An interrupted wait does not end the compilation, which continues in the background and fills the cache.
        let checking = runtime.spawn_blocking(move || {
            let sandbox = Sandbox::new(SandboxSettings {
                cache_dir,
                instances: Runner::instances(&document.spec).max(1),
                compiler: Compiler::Child(process),
                ..SandboxSettings::default()
            })
            .map_err(failed)?;
            let (stores, modules) =
                (document.stores(stores, &links, store_cache.as_deref()), document.modules(sandbox, modules));
            let runner = Runner::new(runtime.clone(), stores, modules);
            let mut prepared = document.prepare(&runner, keeps_letters)?;
            // A module may refuse params that agree with its schema.
            let refused = runtime.block_on(prepared.try_init());
            if !refused.is_empty() {
                return Err(invalid(&refused));
            }
            if let Some(number) = local_rank {
                prefer_gpu(&mut prepared.plan, number);
            }
            Ok::<_, PyErr>(prepared)
        });
        let checked = wait_for(py, checking)?;
        logs::flush_to_python(py)?;
        let prepared = checked.unwrap_or_else(|panic| resume_unwind(panic.into_panic()))?;
        Ok(Self {
            home: Home::here(),
            prepared,
            document: Arc::new(whole),
            written,
            memory: Pool::new(HostMemory),
            held: Held::default(),
            max_held: max_held.max(1),
            is_running: Arc::default(),
            tuned: Arc::default(),
        })
    }

    /// Name of the pipeline.
    #[getter]
    fn name(&self) -> &str {
        &self.prepared.plan.name
    }

    /// Document as JSON: as given, without defaults, with settings and `device` applied.
    #[getter]
    fn document(&self) -> &str {
        &self.written
    }

    /// The document's share of the source: rank, number of ranks, and true if the last entries are kept when their number is not
    /// a multiple of the number of ranks.
    #[getter]
    fn shard(&self) -> Option<WrittenShard> {
        let Shard { rank, world, uneven } = self.prepared.plan.source.traversal.shard?;
        Some((rank, world.get(), uneven == Uneven::Keep))
    }

    /// Number of passes over the source in one run; `None` for endless runs.
    #[getter]
    fn epochs(&self) -> Option<u32> {
        self.prepared.plan.source.traversal.epochs.map(std::num::NonZero::get)
    }

    /// True if the number of batches of a share is the same for all ranks, whatever the samples contain.
    fn is_even(&self, shard: Option<WrittenShard>) -> PyResult<bool> {
        Ok(self.share(shard)?.plan.is_even())
    }

    /// Description of the pipeline for a share of the source.
    fn explain(&self, shard: Option<WrittenShard>) -> PyResult<String> {
        Ok(self.share(shard)?.plan.explain())
    }

    /// Starts a run over a share of the source, beginning with the pass `first_epoch`, without a last pass if `endless`. `drained
    /// = false` drops batches as they arrive. The run's own folder is created in `out`. A `state` continues an earlier run; `force`
    /// ignores that another pipeline has written it.
    #[pyo3(signature = (first_epoch, shard=None, *, out=None, drained=true, endless=false, state=None, force=false))]
    #[expect(clippy::too_many_arguments, reason = "the package's `Pipeline` passes them by name")]
    fn start(
        &self,
        py: Python<'_>,
        first_epoch: u32,
        shard: Option<WrittenShard>,
        out: Option<PathBuf>,
        drained: bool,
        endless: bool,
        state: Option<&str>,
        force: bool,
    ) -> PyResult<Running> {
        self.home.check()?;
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Err(PenstockError::new_err(
                "a loop over this pipeline is still active: end it (leave it, or `close()` the pipeline), or create a second `Pipeline` for \
                 a second loop at the same time",
            ));
        }
        let mut prepared =
            self.prepared_run(first_epoch, shard, endless, state, force).inspect_err(|_| {
                self.is_running.store(false, Ordering::Release);
            })?;
        let plan = &mut prepared.plan;
        if !drained {
            plan.consumer = Consumer::default();
        }
        let started = wait_for(py, async {
            loop {
                let traversal = &prepared.plan.source.traversal;
                let output =
                    out.as_deref().map(|out| folder_of(out, &self.document, traversal)).transpose()?;
                let ends = match drained {
                    true => RunEnds {
                        is_taken: true,
                        memory: Some(Arc::new(self.memory.clone())),
                        max_held: self.max_held,
                        ..RunEnds::default()
                    },
                    false => RunEnds::default(),
                };
                let started = prepared.start(output.map(Arc::new), ends).await;
                // Another process took the folder after the check.
                if !matches!(started, Err(StartError::Output(OutputError::Taken(_)))) {
                    return started;
                }
            }
        });
        let run = started
            .and_then(|run| run.map_err(failed))
            .inspect_err(|_| self.is_running.store(false, Ordering::Release))?;
        Ok(Running {
            home: self.home,
            handle: run.handle.clone(),
            held: self.held.clone(),
            max_held: self.max_held,
            recent: Mutex::default(),
            document: self.document.clone(),
            start: run.start.clone(),
            facts: run.facts().clone(),
            waiting: Mutex::default(),
            run: Mutex::new(Some(run)),
            last: OnceLock::new(),
            unwritten: Mutex::default(),
            is_closed: AtomicBool::new(false),
            is_running: self.is_running.clone(),
            tuned: self.tuned.clone(),
        })
    }

    /// Checks that `state` is a state of this pipeline, or any state with `force`.
    fn check_state(&self, state: &str, force: bool) -> PyResult<()> {
        let token = Token::read(state.as_bytes()).map_err(refused)?;
        if force { Ok(()) } else { self.prepared.check_state(&token).map_err(refused) }
    }

    /// State of a run that begins with the pass `first_epoch`, as JSON.
    fn fresh_state(&self, first_epoch: u32, shard: Option<WrittenShard>) -> PyResult<String> {
        Ok(self.prepared_run(first_epoch, shard, false, None, false)?.fresh_state().to_json())
    }

    /// Number of batches in one run over a share of the source if no sample fails or is dropped; `None` for endless runs. With a `state`,
    /// of the run that continues from it; `force` ignores that another pipeline has written it.
    #[pyo3(signature = (first_epoch, shard, *, state=None, force=false))]
    fn batches(
        &self,
        py: Python<'_>,
        first_epoch: u32,
        shard: Option<WrittenShard>,
        state: Option<&str>,
        force: bool,
    ) -> PyResult<Option<u64>> {
        self.home.check()?;
        let prepared = self.prepared_run(first_epoch, shard, false, state, force)?;
        let plan = &prepared.plan;
        if plan.source.traversal.epochs.is_none() {
            return Ok(None);
        }
        // Checked before the samples of the source are counted, which may require reading all of them.
        if let Some(unknown) = plan.stages.iter().find_map(unknown_output) {
            return Err(PyTypeError::new_err(format!("the number of batches is not known: {unknown}")));
        }
        let counted = wait_for(py, prepared.counts())?.map_err(failed)?;
        let batches = |counts: Vec<(u64, u64)>| {
            counts.into_iter().map(|(samples, epochs)| Some(plan.items_of(samples)? * epochs)).sum()
        };
        Ok(counted.and_then(batches))
    }

    /// Fields of the source's samples, as JSON, read from the source; `None` if the source does not know them.
    fn fields(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.home.check()?;
        let fields = wait_for(py, self.prepared.fields())?.map_err(failed)?;
        fields.map(|fields| serde_json::to_string(&fields)).transpose().map_err(failed)
    }
}

fn refused(fault: TokenFault) -> PyErr {
    let force = match fault {
        TokenFault::Differs(_) => "; pass `force=True` to resume nevertheless",
        _ => "",
    };
    InvalidPipeline::new_err(format!("cannot resume: {fault}{force}"))
}

/// Merges the states of several ranks, each as JSON.
#[pyfunction]
pub(crate) fn merge_states(states: Vec<String>) -> PyResult<String> {
    let states = states.iter().map(|state| Token::read(state.as_bytes())).collect::<Result<Vec<_>, _>>();
    let merged = states.and_then(Token::merge);
    let merged = merged.map_err(|fault| InvalidPipeline::new_err(format!("cannot merge: {fault}")))?;
    Ok(merged.to_json())
}

/// Reason why the number of samples behind a stage is not known.
fn unknown_output(stage: &StagePlan) -> Option<String> {
    let rules = stage.kind.rules();
    let StageKind::Wasm(WasmPlan { fan_out, mode, .. }) = &stage.kind else {
        // The plan counts the items behind a stage that only moves samples.
        let is_unknown = rules.work() != Work::Moving && !rules.keeps_count();
        return is_unknown.then(|| {
            format!(
                "the stage `{}` {}, so the number of its samples is not known",
                stage.id,
                rules.in_words()
            )
        });
    };
    if *mode == Mode::Stateful {
        return Some(format!(
            "the stage `{}` is stateful, so the number of its samples is not known",
            stage.id
        ));
    }
    match fan_out {
        Some(false) => None,
        Some(true) => Some(format!("the stage `{}` may make several samples from one", stage.id)),
        None => Some(format!(
            "the module of the stage `{}` does not state in its manifest whether one sample may become several (`fan_out`); a build \
             with the current SDK does",
            stage.id
        )),
    }
}

impl Loader {
    /// Pipeline for a run.
    fn prepared_run(
        &self,
        first_epoch: u32,
        shard: Option<WrittenShard>,
        endless: bool,
        state: Option<&str>,
        force: bool,
    ) -> PyResult<Prepared> {
        let mut prepared = self.share(shard)?;
        if state.is_none() {
            prepared.take_over(locked(&self.tuned).clone());
        }
        let traversal = &mut prepared.plan.source.traversal;
        traversal.first_epoch = first_epoch;
        if endless {
            traversal.epochs = None;
        }
        if let Some(state) = state {
            let token = Token::read(state.as_bytes()).map_err(refused)?;
            prepared.resume(token, force).map_err(refused)?;
            prepared.begin_anew_if_over();
        }
        Ok(prepared)
    }

    /// Pipeline for a share of the source; `None` keeps the share in the document.
    fn share(&self, shard: Option<WrittenShard>) -> PyResult<Prepared> {
        let mut prepared = self.prepared.clone();
        let Some((rank, world, keeps)) = shard else { return Ok(prepared) };
        let world = NonZeroU32::new(world)
            .ok_or_else(|| InvalidPipeline::new_err("`world` is 0; expected at least 1"))?;
        let uneven = if keeps { Uneven::Keep } else { Uneven::Drop };
        let shard = Shard { rank, world, uneven };
        shard.check().map_err(|fault| InvalidPipeline::new_err(fault.to_string()))?;
        prepared.plan.source.traversal.shard = Some(shard);
        Ok(prepared)
    }
}

#[pymethods]
impl Running {
    /// Next batch; `None` after the last, or once `is_needless` returns true while the loop waits for it. Waits without the GIL, and
    /// handles Ctrl-C.
    #[pyo3(signature = (is_needless = None))]
    fn next(&self, py: Python<'_>, is_needless: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Batch>> {
        self.home.check()?;
        logs::flush_to_python(py)?;
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(None);
        }
        let waiting = locked(&self.waiting).pop_front();
        let Some(batch) = waiting.map_or_else(|| self.take(py, is_needless), |batch| Ok(Some(batch)))? else {
            return Ok(None);
        };
        match self.held.lease(py, self.max_held) {
            Ok(lease) => {
                locked(&self.recent).push_back(batch.origins.clone());
                self.hand_out(self.max_held);
                Ok(Some(Batch::new(batch, lease)))
            }
            Err(error) => {
                locked(&self.waiting).push_front(batch);
                Err(error)
            }
        }
    }

    /// Takes the next batch from the queue if it is there: true if `next` will return a batch without waiting, even if the run fails
    /// meanwhile.
    fn claim(&self, py: Python<'_>) -> PyResult<bool> {
        self.home.check()?;
        if self.is_closed.load(Ordering::Acquire) || !self.held.has_room(self.max_held) {
            return Ok(false);
        }
        if !locked(&self.waiting).is_empty() {
            return Ok(true);
        }
        let Taken::Item(Item::Collated(batch)) = py.detach(|| self.handle.take(Duration::ZERO)) else {
            return Ok(false);
        };
        locked(&self.waiting).push_back(batch);
        Ok(true)
    }

    /// Number of the first pass of the run.
    #[getter]
    fn first_epoch(&self) -> u32 {
        self.start.token.first_epoch
    }

    /// True once the run has ended.
    #[getter]
    fn has_ended(&self) -> bool {
        self.last.get().is_some()
    }

    /// True once the loop has closed the run.
    #[getter]
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// State behind all returned batches except the last `pending` ones, as JSON.
    fn state(&self, py: Python<'_>, pending: usize) -> PyResult<String> {
        self.home.check()?;
        self.hand_out(pending);
        let state = py.detach(|| self.facts.state(&self.start, &self.handle, MAX_TOKEN_BYTES));
        state.map_err(failed)
    }

    /// Figures of the run, as JSON.
    fn snapshot(&self, py: Python<'_>) -> PyResult<String> {
        self.home.check()?;
        let snapshot = py.detach(|| self.figures());
        serde_json::to_string(&snapshot).map_err(failed)
    }

    /// Ratio of the rate predicted for `changed`, the pipeline of this run with other settings, to that predicted for the run itself; or
    /// the reason why it is not known.
    fn gain(&self, py: Python<'_>, changed: &Loader) -> PyResult<(Option<f64>, Option<String>)> {
        self.home.check()?;
        let Some(snapshot) = py.detach(|| self.figures()) else { return Ok((None, None)) };
        let of_run = &*self.facts.plan;
        let mut plan = changed.prepared.plan.clone();
        plan.source.traversal = of_run.source.traversal;
        plan.consumer = of_run.consumer.clone();
        Ok(py.detach(|| {
            let times = self.facts.times(&snapshot);
            let recording = Recording::new(snapshot, self.document.as_ref().clone(), &times);
            let as_is = recording.settled(of_run.clone(), 0.0, recording.snapshot.elapsed_s);
            let baseline = Baseline::new(recording, as_is, f64::from(cores()));
            let threads = plan.threads.unwrap_or_else(cores).max(1);
            let machine = Machine { threads, cores: f64::from(cores()), foreign_cores: None };
            match predict_plan(&plan, Some(&baseline), machine, None) {
                Ok(report) => (report.gain, report.no_gain),
                Err(error) => (None, Some(error.to_string())),
            }
        }))
    }

    /// Value at a JSON pointer in the document of the run, with defaults, as JSON; `None` if there is none.
    fn setting(&self, pointer: &str) -> Option<String> {
        self.document.pointer(pointer).map(ToString::to_string)
    }

    /// Takes back the last batch that was returned, which the loop has not got: its samples are not settled.
    fn take_back(&self) {
        let samples = locked(&self.recent).pop_back();
        self.handle.take_back(samples.map_or(0, |samples| samples.len() as u64));
    }

    /// Ends the run because another rank has no more batches: what is left is discarded, and counts as settled. Returns the number of
    /// samples discarded. Fails like `next` if the run failed.
    fn end_together(&self, py: Python<'_>) -> PyResult<u64> {
        self.home.check()?;
        let waiting = std::mem::take(&mut *locked(&self.waiting));
        let waiting: usize = waiting.iter().map(|batch| batch.origins.len()).sum();
        self.hand_out(0);
        let discarded = || self.handle.view().ledger.total.discarded;
        let before = discarded();
        py.detach(|| {
            self.handle.take_back(waiting as u64);
            self.handle.end_together();
        });
        let cut = discarded() - before;
        self.end(py).map(|()| cut)
    }

    /// True if samples have failed or were left out on purpose so far.
    fn loses_samples(&self) -> bool {
        let total = self.handle.view().ledger.total;
        total.dropped + total.skipped + total.dead_lettered > 0
    }

    /// Stops the run early and waits for its end; fails if that takes too long.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.home.check()?;
        self.is_closed.store(true, Ordering::Release);
        // The loop takes no more batches, so the ones that wait are released.
        locked(&self.waiting).clear();
        py.detach(|| self.handle.stop(StopReason::Asked));
        let joined = self.join(py);
        logs::flush_to_python(py)?;
        joined
    }
}

impl Running {
    /// Settles all returned batches except the last `pending` ones.
    fn hand_out(&self, pending: usize) {
        let mut recent = locked(&self.recent);
        while recent.len() > pending {
            recent.pop_front().iter().for_each(|samples| self.handle.hand_out(samples));
        }
    }

    /// Takes the next batch from the queue; `None` if there is none, or once `is_needless` returns true.
    fn take(&self, py: Python<'_>, is_needless: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Collated>> {
        loop {
            match py.detach(|| self.handle.take(SLICE)) {
                Taken::Item(Item::Collated(batch)) => return Ok(Some(batch)),
                // A pipeline that ends in `collate` delivers collated batches only.
                Taken::Item(Item::Sample(_) | Item::Batch(_)) => {}
                Taken::Over => return self.end(py).map(|()| None),
                Taken::NotYet => {
                    logs::flush_to_python(py)?;
                    py.check_signals()?;
                    if is_needless.map_or(Ok(false), |ask| ask.call0()?.is_truthy())? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Ends the loop over a run that has ended. Fails if the run failed, or if it completed with an incomplete output: for any
    /// other run the output error is only logged, since the loop ends for another reason.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.join(py)?;
        match self.last.get() {
            Some(snapshot) if snapshot.state == RunState::Failed => {
                let why =
                    snapshot.error.as_deref().unwrap_or("the reason is unknown, which is a bug in Penstock");
                Err(RunFailed::new_err(why.to_owned()))
            }
            Some(snapshot) if snapshot.state == RunState::Completed => {
                // Reported once.
                locked(&self.unwritten).take().map_or(Ok(()), |error| {
                    let message = format!("the run's output is incomplete: {}", with_causes(&error));
                    Err(PenstockError::new_err(message))
                })
            }
            _ => Ok(()),
        }
    }

    /// Waits for all threads of the run and stores its final figures; fails if that takes too long. Handles Ctrl-C.
    fn join(&self, py: Python<'_>) -> PyResult<()> {
        for _ in 0..STOP.as_millis() / SLICE.as_millis() {
            if py.detach(|| self.handle.ended_within(SLICE)) {
                py.detach(|| self.settle());
                return Ok(());
            }
            py.check_signals()?;
        }
        let most = STOP.as_secs();
        Err(PenstockError::new_err(format!(
            "the run did not end within {most} s: a call of a stage does not return"
        )))
    }

    /// Stores the final figures of a run that has ended.
    fn settle(&self) {
        let mut run = locked(&self.run);
        if let Some(run) = run.take() {
            let Ended { snapshot, output, .. } = run.wait();
            *locked(&self.unwritten) = output.err();
            *locked(&self.tuned) = self.facts.settings.changed();
            self.last.get_or_init(|| snapshot);
            self.is_running.store(false, Ordering::Release);
        }
    }

    fn figures(&self) -> Option<RunSnapshot> {
        // `settle` moves the figures to `last` under this lock, so one of the two always has them.
        let run = locked(&self.run);
        run.as_ref().map(Run::snapshot).or_else(|| self.last.get().cloned())
    }
}

/// Releases the run of a loop that was left early.
impl Drop for Running {
    fn drop(&mut self) {
        let run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(run) = run else { return };
        if !self.home.is_here() {
            // This is a forked process: the run's threads belong to its parent, so they cannot be stopped here.
            std::mem::forget(run);
            return;
        }
        run.handle.stop(StopReason::Asked);
        let (handle, is_running) = (&self.handle, &self.is_running);
        Python::attach(|py| {
            py.detach(|| {
                // A run that does not end still has its instances, so it still counts as active.
                if handle.ended_within(STOP) {
                    run.wait();
                    is_running.store(false, Ordering::Release);
                }
            });
        });
    }
}

/// Sentence, evidence and advice of a verdict, which is given as JSON, as in the report of a run.
#[pyfunction]
pub(crate) fn verdict_in_words(verdict: &str) -> PyResult<String> {
    let verdict: Verdict = serde_json::from_str(verdict).map_err(failed)?;
    Ok(verdict.to_string())
}

/// Computes the headspace from three rates in batches per second, as JSON, and describes the contradiction between them, if there
/// is one. The figures of the sink queue come from a snapshot.
#[pyfunction]
pub(crate) fn headspace_of(
    real: f64,
    loader: f64,
    consumer: f64,
    snapshot: &str,
) -> PyResult<(String, Option<String>)> {
    let snapshot: RunSnapshot = serde_json::from_str(snapshot).map_err(failed)?;
    let sink = snapshot.queues.into_iter().next_back().map(|queue| queue.figures);
    let sink = sink.ok_or_else(|| PenstockError::new_err("the run has no queues"))?;
    let found = Headspace::new(real, loader, Some(consumer), sink);
    Ok((serde_json::to_string(&found).map_err(failed)?, found.contradiction()))
}
