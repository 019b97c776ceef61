use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use penstock_engine::clock::MonotonicClock;
use penstock_engine::graph::Graph;
use penstock_engine::memory::BatchMemory;
use penstock_engine::ports::Observer;
use penstock_engine::ports::{Consumer, Source as SampleSource, ThreadOpFactory};
use penstock_storage::{check_key, check_prefix};
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::plan::{Known, ModuleFacts, Plan, StageKind, StagePlan};
use penstock_types::policy::OnError;
use penstock_types::spec::{Consumer as DocumentConsumer, Source, Spec, Stage};
use penstock_types::verdict::Shape;
use tokio::runtime::Handle;

use crate::assemble::{AssembleError, Parts};
use crate::devices::check_devices;
use crate::modules::Modules;
use crate::output::{OutputError, OutputFolder};
use crate::params::check_params;
use crate::run::{Parts as RunParts, Run, RunFacts, Verdicts, Watcher};
use crate::stores::Stores;

/// Runs pipelines with the stores and modules it was given.
#[derive(Clone, Debug)]
pub struct Runner {
    runtime: Handle,
    stores: Stores,
    modules: Modules,
}

/// A stage that computes.
#[derive(Clone)]
pub struct Computing {
    /// What was planned.
    pub stage: StagePlan,
    /// What makes its op, on the thread that will use it.
    pub factory: Arc<dyn ThreadOpFactory>,
}

/// Why a run did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The pipeline cannot be built.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Its output has no place.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The machine gives no threads.
    #[error("cannot start the run's thread")]
    Thread(#[source] std::io::Error),
}

/// Ends of a run that replace those its document names.
#[derive(Default)]
pub struct RunEnds {
    /// Source of its items.
    pub source: Option<Box<dyn SampleSource>>,
    /// Consumer of its items.
    pub consumer: Option<Box<dyn Consumer>>,
    /// Set when [`Run::take`] takes the items, so that there is no consumer at all.
    pub is_taken: bool,
    /// Memory for the arrays of batches; the heap if there is none.
    pub memory: Option<Arc<dyn BatchMemory>>,
    /// Most batches that a taker may hold at a time.
    pub max_held: usize,
    /// Id of the run; a new one if there is none.
    pub id: Option<String>,
}

/// A run whose parts are built and whose threads do not run yet.
pub struct ReadyRun {
    graph: Graph,
    runtime: Handle,
    clock: Arc<MonotonicClock>,
    facts: RunFacts,
    watcher: Arc<Watcher>,
}

impl fmt::Debug for ReadyRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyRun").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl ReadyRun {
    /// The clock that the run is measured by.
    pub fn clock(&self) -> &Arc<MonotonicClock> {
        &self.clock
    }

    /// The facts of the run.
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Starts the run. Its threads tell `observers` what happens, one after the other.
    pub fn start(self, mut observers: Vec<Arc<dyn Observer>>) -> Result<Run, StartError> {
        observers.insert(0, self.watcher.clone());
        let running = self.graph.start(self.runtime, self.clock, observers).map_err(StartError::Thread)?;
        Ok(Run::new(running, self.facts, self.watcher))
    }
}

impl fmt::Debug for Computing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Computing").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl StartError {
    /// Whether something has to be changed by hand: the folder that is to be written to holds something else, or the pipeline is for
    /// a server.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Assemble(AssembleError::Files(error)) => error.is_refusal(),
            Self::Assemble(AssembleError::Stream) => true,
            Self::Output(error) => matches!(error, OutputError::Taken(_)),
            Self::Assemble(_) | Self::Thread(_) => false,
        }
    }
}

impl Runner {
    /// A runner whose storage reads run on `runtime`.
    pub fn new(runtime: Handle, stores: Stores, modules: Modules) -> Self {
        Self { runtime, stores, modules }
    }

    /// The threads a document asks for, or the machine's cores.
    pub fn threads(spec: &Spec) -> u32 {
        spec.threads.map_or_else(cores, |threads| threads.get())
    }

    /// The instances a document's modules may need at a time: one for each worker thread and WASM stage.
    pub fn instances(spec: &Spec) -> u32 {
        let guests = spec.stages.iter().filter(|stage| matches!(stage, Stage::Wasm(_))).count();
        Self::threads(spec).saturating_mul(u32::try_from(guests).unwrap_or(u32::MAX))
    }

    /// Checks a document against what this runner knows. Fails with everything that is wrong with it.
    pub fn check(&self, spec: &Spec) -> Result<Plan, Vec<SpecFault>> {
        let written = spec.stages.iter().filter_map(|stage| match stage {
            Stage::Wasm(wasm) => Some(wasm.module.as_str().to_owned()),
            _ => None,
        });
        check_against_known(spec, &self.modules.facts(written), &self.stores)
    }

    /// What a plan wants kept aside needs a folder to keep it in.
    pub fn check_output(plan: &Plan, has_output: bool) -> Vec<SpecFault> {
        let keeps = |stage: &&StagePlan| stage.on_error == OnError::DeadLetter;
        let fault = |stage: &StagePlan| {
            let place = Pointer::ROOT.key("stages").index(stage.id.position() as usize - 1);
            SpecFault::new(
                place.key(stage.kind.name().as_str()).key("on_error"),
                "`dead_letter` keeps failed samples in the run's output folder, and there is none; give one with `--out DIR`, or use `skip`",
            )
        };
        if has_output { Vec::new() } else { plan.stages.iter().filter(keeps).map(fault).collect() }
    }

    /// What a checked pipeline reads, for who reads it in another way.
    pub fn source(&self, plan: &Plan) -> Result<Box<dyn SampleSource>, AssembleError> {
        self.parts(1).source(&plan.source)
    }

    /// The stages of a checked pipeline that compute, in its order, with what makes their ops.
    pub async fn computing(&self, plan: &Plan) -> Result<Vec<Computing>, AssembleError> {
        let parts = self.parts(1);
        let mut found = Vec::new();
        for stage in &plan.stages {
            if let Some(factory) = parts.computing(plan, stage).await? {
                found.push(Computing { stage: stage.clone(), factory });
            }
        }
        Ok(found)
    }

    /// The stores that pipelines may name.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    fn parts(&self, threads: usize) -> Parts<'_> {
        Parts {
            stores: &self.stores,
            modules: &self.modules,
            threads,
            timer: OnceLock::new(),
            memory: None,
            max_held: 0,
        }
    }

    /// Starts a run of a checked pipeline. What it measures is also written to `output`, if there is one.
    pub async fn start(&self, plan: &Plan, output: Option<OutputFolder>) -> Result<Run, StartError> {
        self.ready(plan, output.map(Arc::new), RunEnds::default()).await?.start(Vec::new())
    }

    /// Starts a run whose items go to `consumer` instead of the one that the document names.
    pub async fn start_with(
        &self,
        plan: &Plan,
        output: Option<OutputFolder>,
        consumer: Box<dyn Consumer>,
    ) -> Result<Run, StartError> {
        let ends = RunEnds { consumer: Some(consumer), ..RunEnds::default() };
        self.ready(plan, output.map(Arc::new), ends).await?.start(Vec::new())
    }

    /// Starts a run whose items are taken by [`Run::take`], whatever consumer the document names. Arrays of batches lie in `memory`.
    /// Who takes them may hold `max_held` of them at a time, and still gets another one.
    pub async fn start_taken(
        &self,
        plan: &Plan,
        memory: Arc<dyn BatchMemory>,
        max_held: usize,
    ) -> Result<Run, StartError> {
        let ends = RunEnds { is_taken: true, memory: Some(memory), max_held, ..RunEnds::default() };
        self.ready(plan, None, ends).await?.start(Vec::new())
    }

    /// Builds a run between these ends, and those that the document names where there is none. What it measures is also
    /// written to `output`, if there is one.
    pub async fn ready(
        &self,
        plan: &Plan,
        output: Option<Arc<OutputFolder>>,
        ends: RunEnds,
    ) -> Result<ReadyRun, StartError> {
        let threads = plan.threads.unwrap_or_else(cores).max(1);
        let parts = Parts { memory: ends.memory, max_held: ends.max_held, ..self.parts(threads as usize) };
        let source = match ends.source {
            Some(source) => source,
            None => parts.source(&plan.source)?,
        };
        let shape = Shape::of(plan, threads, Some(cores()));
        // What is given in its place takes items to do something with them.
        let shape =
            if ends.consumer.is_some() || ends.is_taken { shape.with_working_consumer() } else { shape };
        let verdicts = Verdicts::of(shape);
        let (consumer, files) = match ends.consumer {
            Some(consumer) => (Some(consumer), None),
            None if ends.is_taken => (None, None),
            None => {
                let (consumer, files) = parts.consumer(plan, &self.runtime).await?;
                (Some(consumer), files)
            }
        };
        let assembled = parts.assemble(plan, source, consumer).await?;
        if let Some(output) = &output {
            output.begin()?;
        }
        let modules = plan.stages.iter().filter_map(|stage| match &stage.kind {
            StageKind::Wasm(wasm) => Some((stage.id.to_string(), wasm.digest.clone())),
            _ => None,
        });
        let transfers = assembled.transfers;
        let seen = RunParts { guests: assembled.guests, files, transfers: transfers.clone() };
        let facts = RunFacts::new(ends.id, &plan.name, threads, modules.collect(), seen, verdicts.clone());
        let watcher = Arc::new(Watcher::new(output, plan, verdicts, transfers));
        let clock = Arc::new(MonotonicClock::start());
        Ok(ReadyRun { graph: assembled.graph, runtime: self.runtime.clone(), clock, facts, watcher })
    }
}

/// Checks a document against these modules, by what it calls them, and these stores. Fails with everything that is wrong.
pub fn check_against_known(
    spec: &Spec,
    modules: &BTreeMap<String, ModuleFacts>,
    stores: &Stores,
) -> Result<Plan, Vec<SpecFault>> {
    let mut faults = check_params(spec, modules);
    faults.extend(check_keys(spec));
    faults.extend(check_devices(spec));
    match Plan::check(spec, Known { modules, stores: Some(&stores.facts()) }) {
        Ok(plan) if faults.is_empty() => Ok(plan),
        Ok(_) => Err(faults),
        Err(more) => {
            faults.extend(more);
            faults.sort_by(|one, other| one.pointer.cmp(&other.pointer));
            Err(faults)
        }
    }
}

/// The machine's cores.
pub fn cores() -> u32 {
    available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// Checks the keys that a document names: those that no store has.
fn check_keys(spec: &Spec) -> Vec<SpecFault> {
    let source = Pointer::ROOT.key("source").key(spec.source.kind());
    let mut faults = Vec::new();
    let mut check = |place: Pointer, checked: Result<(), &'static str>| {
        faults.extend(checked.err().map(|reason| SpecFault::new(place, reason)));
    };
    match &spec.source {
        Source::List(list) => check(source.key("prefix"), check_prefix(&list.prefix)),
        Source::Index(index) => {
            if let Some(key) = &index.index {
                check(source.key("index"), check_key(key.as_str()));
            }
        }
        Source::Records(records) => check(source.key("key"), check_key(records.key.as_str())),
        Source::Range(_) => {}
    }
    if let DocumentConsumer::Files(files) = &spec.consumer {
        let place = Pointer::ROOT.key("consumer").key("files").key("prefix");
        // The names below it are short and valid; what is between them is one `/`.
        let folder = files.prefix.strip_suffix('/').unwrap_or(&files.prefix);
        check(place, if folder.is_empty() { Ok(()) } else { check_key(folder) });
    }
    for (index, stage) in spec.stages.iter().enumerate() {
        let Stage::Wasm(wasm) = stage else { continue };
        let place = Pointer::ROOT.key("stages").index(index).key("wasm").key("assets");
        for (name, asset) in &wasm.assets {
            check(place.key(name.as_str()).key("key"), check_key(asset.key.as_str()));
        }
    }
    faults
}
