use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use penstock_device::HostMemory;
use penstock_engine::clock::MonotonicClock;
use penstock_engine::graph::{Graph, StageOp};
use penstock_engine::memory::{BatchMemory, Pool};
use penstock_engine::ports::{Consumer, Observer, Source as SampleSource, ThreadOpFactory};
use penstock_engine::running::StopReason;
use penstock_storage::MOST_WAITING;
use penstock_types::fault::SpecFault;
use penstock_types::plan::{Fields, Plan, StagePlan};
use penstock_types::policy::OnError;
use penstock_types::profile::Profile;
use penstock_types::resume::StartPoint;
use penstock_types::run::RunId;
use penstock_types::spec::Spec;
use penstock_types::verdict::PipelineShape;
use tokio::runtime::Handle;

use crate::assemble::{AssembleError, Assembly};
use crate::devices::Gpus;
use crate::found::Found;
use crate::modules::Modules;
use crate::output::{OutputError, OutputFolder};
use crate::prepare::{Context, Outlets, Prepared, prepare};
use crate::run::{Run, RunFacts, Watched, Watcher};
use crate::stores::Stores;
use crate::tune::{LiveSettings, TunerWork};

/// Divisor of a run's memory budget for the share in which entries of data caches wait to be written.
const CACHE_SHARE: u64 = 8;

/// Prepares pipelines with a fixed set of stores and modules.
#[derive(Clone, Debug)]
pub struct Runner {
    runtime: Handle,
    stores: Stores,
    modules: Modules,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot start the run's thread")]
    Thread(#[source] std::io::Error),
}

/// Parts of a run that replace those of its document.
#[derive(Default)]
pub struct RunEnds {
    /// Source of samples that have failed in an earlier run. In a run with such a source, any number of samples may fail.
    pub source: Option<Box<dyn SampleSource>>,
    pub consumer: Option<Box<dyn Consumer>>,
    /// Set when `RunHandle::take` takes the items, so that the run has no consumer.
    pub is_taken: bool,
    /// Memory for the arrays of batches; regions of this run's own if `None`.
    pub memory: Option<Arc<dyn BatchMemory>>,
    /// Maximum number of batches that the caller of `RunHandle::take` may hold at a time.
    pub max_held: usize,
    /// Id of the run; a new one if `None`.
    pub id: Option<RunId>,
    /// Maximum sum of the concurrency of all stages that the tuner of the run may choose; no limit if `None`.
    pub max_tasks: Option<u32>,
    /// Slowdown of ops by each other, for the predictions of the run's tuner.
    pub profile: Option<Profile>,
    /// Ops that run in place of those of stages that compute, by stage id. A run of a server permits none.
    pub ops: BTreeMap<String, Arc<dyn ThreadOpFactory>>,
}

/// A run whose parts are built but whose threads are not started yet.
pub struct ReadyRun {
    graph: Graph,
    runtime: Handle,
    pub clock: Arc<MonotonicClock>,
    watcher: Arc<Watcher>,
    start: Arc<StartPoint>,
    /// Maximum sum of the concurrency of all stages that the tuner may choose.
    max_tasks: u64,
}

impl ReadyRun {
    pub fn facts(&self) -> &RunFacts {
        &self.watcher.facts
    }

    /// Starts the run. Its threads report events to `observers` in order.
    pub fn start(self, mut observers: Vec<Arc<dyn Observer>>) -> Result<Run, StartError> {
        let facts = &self.watcher.facts;
        observers.insert(0, self.watcher.clone());
        observers.push(Arc::new(facts.watched.transfers.clone()));
        let tuner = TunerWork::of(&facts.settings, &facts.plan, cores(), self.max_tasks);
        let tuner = tuner.map(|(work, feed)| {
            observers.push(feed);
            work
        });
        let running =
            self.graph.start(self.runtime, self.clock.clone(), observers).map_err(StartError::Thread)?;
        let tuner = match tuner.map(|work| work.start(running.handle(), self.clock.clone())).transpose() {
            Ok(tuner) => tuner,
            Err(error) => {
                running.handle().stop(StopReason::Asked);
                running.wait();
                return Err(StartError::Thread(error));
            }
        };
        Ok(Run::new(running, tuner, self.clock, self.watcher, self.start))
    }
}

impl StartError {
    /// True if the user has to change something, such as the output folder; otherwise the same call may succeed later.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Assemble(AssembleError::Files(error)) => error.is_refusal(),
            Self::Output(error) => matches!(error, OutputError::Taken(_)),
            Self::Assemble(_) | Self::Thread(_) => false,
        }
    }
}

impl Runner {
    /// Creates a runner whose storage reads run on `runtime`.
    pub fn new(runtime: Handle, stores: Stores, modules: Modules) -> Self {
        Self { runtime, stores, modules }
    }

    /// Number of worker threads: the document's, or the number of the machine's cores.
    pub fn threads(spec: &Spec) -> u32 {
        spec.threads.map_or_else(cores, |threads| threads.get())
    }

    /// Maximum number of module instances at a time: one for each worker thread and WASM stage.
    pub fn instances(spec: &Spec) -> u32 {
        let guests = spec.modules().len();
        Self::threads(spec).saturating_mul(u32::try_from(guests).unwrap_or(u32::MAX))
    }

    /// Prepares a document for a run with these outlets. On failure, returns all faults.
    pub fn prepare(&self, spec: &Spec, outlets: Outlets) -> Result<Prepared, Vec<SpecFault>> {
        self.prepare_within(spec, None, outlets, &|_| Vec::new())
    }

    /// Same as [`Self::prepare`], with further checks by the caller, and with the fields of samples from a source other than the
    /// document's.
    pub fn prepare_within(
        &self,
        spec: &Spec,
        fields: Option<Fields>,
        outlets: Outlets,
        bounds: &dyn Fn(&Plan) -> Vec<SpecFault>,
    ) -> Result<Prepared, Vec<SpecFault>> {
        let context = Context {
            runtime: &self.runtime,
            stores: &self.stores,
            modules: &self.modules.named(spec),
            fields,
            outlets,
            bounds,
        };
        prepare(spec, &context)
    }

    pub fn stores(&self) -> &Stores {
        &self.stores
    }
}

impl Prepared {
    /// Stages that compute, in the order of the pipeline, with the factories of their ops.
    pub async fn computing(&self) -> Result<Vec<(StagePlan, Arc<dyn ThreadOpFactory>)>, AssembleError> {
        let assembly = self.assembly(1, RunEnds::default());
        let mut found = Vec::new();
        for stage in self.plan.stages.iter().filter(|stage| stage.kind.rules().work().is_on_thread()) {
            let op = assembly.op(stage, &Gpus::default(), &mut Watched::default()).await?;
            if let Some(StageOp::Threads { factory, .. }) = op {
                found.push((stage.clone(), factory));
            }
        }
        Ok(found)
    }

    fn assembly(&self, threads: u32, ends: RunEnds) -> Assembly<'_> {
        let RunEnds { memory, max_held, ops, .. } = ends;
        // Not the heap: large arrays would leave holes in it that samples do not fill.
        let memory = memory.unwrap_or_else(|| Arc::new(Pool::new(HostMemory)));
        Assembly { prepared: self, threads: threads as usize, timer: OnceLock::new(), memory, max_held, ops }
    }

    /// Starts a run with the parts in `ends`, as [`Self::ready`] builds it.
    pub async fn start(&self, output: Option<Arc<OutputFolder>>, ends: RunEnds) -> Result<Run, StartError> {
        self.ready(output, ends).await?.start(Vec::new())
    }

    /// Builds a run with the parts in `ends`; parts that are missing there come from the document. Measurements are also written
    /// to `output`, if given.
    pub async fn ready(
        &self,
        output: Option<Arc<OutputFolder>>,
        mut ends: RunEnds,
    ) -> Result<ReadyRun, StartError> {
        // Each run finds what it finds.
        let own = Self { found: Found::default(), stores: self.stores.for_run(), ..self.clone() };
        let plan = &own.plan;
        let threads = plan.threads.unwrap_or_else(cores).max(1);
        let has_own_source = ends.source.is_some();
        let source = ends.source.take().unwrap_or_else(|| own.source());
        let (id, consumer, is_taken) = (ends.id.take(), ends.consumer.take(), ends.is_taken);
        let profile = ends.profile.take().map(Arc::new);
        let max_tasks = ends.max_tasks.map_or(u64::MAX, u64::from);
        let assembly = own.assembly(threads, ends);
        assembly.check_ops()?;
        let shape = shape_of(plan, own.stores());
        // A consumer that replaces the document's takes time for its items, so the verdict may name it as the limit.
        let shape = if consumer.is_some() || is_taken { shape.with_working_consumer() } else { shape };
        let cached: Vec<_> = own.stores().with_caches().cloned().collect();
        let cache_bytes =
            if cached.is_empty() { 0 } else { MOST_WAITING.min(plan.buffer_bytes / CACHE_SHARE) };
        cached.iter().for_each(|store| store.set_cache_room(cache_bytes / cached.len() as u64));
        let buffer_bytes = plan.buffer_bytes - cache_bytes;
        let mut watched = Watched { found: own.found.clone(), cached, ..Watched::default() };
        let consumer = match consumer {
            None if !is_taken => Some(assembly.consumer(&mut watched).await?),
            given => given,
        };
        let graph = assembly.assemble(source, consumer, &mut watched).await?;
        let start = own.start_point();
        let resumed = own.start.as_ref().map(|start| start.settled.clone());
        let all_may_fail_before = match has_own_source {
            true => u32::MAX,
            // Earlier runs have delivered samples of the epochs that are begun.
            false => start.epochs.last_key_value().map_or(0, |(epoch, _)| epoch.saturating_add(1)),
        };
        let (known, kept) = (start.children().collect(), start.state.kept.clone());
        let source_on_error = if output.is_some() { OnError::DeadLetter } else { OnError::Skip };
        let graph = Graph { buffer_bytes, all_may_fail_before, known, kept, source_on_error, ..graph };
        if let Some(output) = &output {
            output.begin()?;
        }
        let settings = |verdicts| LiveSettings::new(&own, threads, shape.clone(), verdicts, profile);
        let facts = RunFacts::new(id, plan, threads, resumed, watched, shape.clone(), settings);
        let watcher = Arc::new(Watcher::new(output, facts));
        let (runtime, clock) = (own.runtime.clone(), Arc::new(MonotonicClock::start()));
        Ok(ReadyRun { graph, runtime, clock, watcher, start, max_tasks })
    }
}

/// Properties of a plan and of this machine that are needed for verdicts on runs of the plan.
pub fn shape_of(plan: &Plan, stores: &Stores) -> PipelineShape {
    let reads = |name: &str| u32::try_from(stores.get(name)?.reads().get()).ok();
    PipelineShape::of(plan, plan.threads.unwrap_or_else(cores).max(1), Some(cores())).with_reads(reads)
}

pub fn cores() -> u32 {
    available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use penstock_engine::item::Item;
    use penstock_engine::ports::{Fault, Output, StopFlag, ThreadOp};
    use penstock_wasm::{Sandbox, SandboxSettings};
    use serde_json::json;
    use tokio::runtime::Runtime;

    use super::*;

    #[derive(Clone, Default)]
    struct Counting(Arc<AtomicU64>);

    impl ThreadOp for Counting {
        fn apply(&mut self, item: Item, _stop: &StopFlag) -> Output {
            self.0.fetch_add(item.samples(), Ordering::Relaxed);
            Output::one(item)
        }
    }

    impl ThreadOpFactory for Counting {
        fn build(&self, _stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
            Ok(Box::new(self.clone()))
        }
    }

    fn started(runtime: &Runtime, outlets: Outlets, op: (&str, Counting)) -> Result<Run, StartError> {
        // The stage's own op would fail every sample.
        let document = json!({
            "source": { "range": { "count": 50 } },
            "stages": [
                { "sleep": { "mean_ms": 0, "on": "thread", "fail_rate": 1, "name": "own" } },
                { "aggregate": { "size": 7 } },
            ],
        });
        let modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
        let runner = Runner::new(runtime.handle().clone(), Stores::default(), modules);
        let prepared = runner.prepare(&Spec::from_value(document).unwrap(), outlets).unwrap();
        let ops = BTreeMap::from([(op.0.to_owned(), Arc::new(op.1) as Arc<dyn ThreadOpFactory>)]);
        let ends = RunEnds { ops, ..RunEnds::default() };
        runtime.block_on(prepared.start(None, ends))
    }

    #[test]
    fn an_op_from_outside_runs_in_place_of_that_of_its_stage() {
        let (runtime, op) = (Runtime::new().unwrap(), Counting::default());
        let run = started(&runtime, Outlets::ALL, ("1:own", op.clone())).unwrap();
        let ended = run.wait();
        assert_eq!((ended.snapshot.ledger.total.delivered, op.0.load(Ordering::Relaxed)), (50, 50));
    }

    #[test]
    fn an_op_from_outside_is_refused_where_no_stage_takes_it() {
        let runtime = Runtime::new().unwrap();
        let refused =
            |outlets, id| started(&runtime, outlets, (id, Counting::default())).unwrap_err().to_string();
        for id in ["2:aggregate", "3:own"] {
            let found =
                format!("`{id}` has an op from outside the document, but no stage of that id computes");
            assert_eq!(refused(Outlets::ALL, id), found);
        }
        let of_server = Outlets { takes_ops: false, ..Outlets::ALL };
        let found = "the op of `1:own` comes from outside the document, which this server does not permit";
        assert_eq!(refused(of_server, "1:own"), found);
    }
}
