use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, OnceLock};

use penstock_device::GpuError;
use penstock_engine::consumers::{Discard, Simulate};
use penstock_engine::graph::{Chain, Graph, GraphNode, StageNode, StageOp};
use penstock_engine::memory::BatchMemory;
use penstock_engine::ops::{Collate, SleepTask, SleepTimes, Usual};
use penstock_engine::ports::{Consumer, Source, TaskOp, ThreadOpFactory};
use penstock_engine::route::{Choice, FieldChoice, Route};
use penstock_engine::stage_work::StageWork;
use penstock_engine::timer::Timer;
use penstock_storage::{FetchOp, StoreError};
use penstock_types::plan::{FetchPlan, Plan, RoutePlan, StageId, StageKind, StagePlan, WasmPlan};
use penstock_types::policy::{Capacity, OnError};
use penstock_types::resume::{Kept, Progress};
use penstock_types::spec::{self, Asset, SleepOn};
use penstock_wasm::{StageFactory, StageSettings, WORKER_STACK_BYTES};

use crate::devices::Gpus;
use crate::files::{FilesConsumer, FilesError, FilesFolder};
use crate::prepare::Prepared;
use crate::run::Watched;

#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    #[error("stage `{stage}`: its asset `{asset}` cannot be read")]
    Asset { stage: String, asset: String, source: StoreError },
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("cannot start the timer thread")]
    Timer(#[source] io::Error),
    #[error("`{0}` has an op from outside the document, but no stage of that id computes")]
    NoSuchOp(String),
    #[error("the op of `{0}` comes from outside the document, which this server does not permit")]
    OpFromOutside(String),
}

/// Divisor of a run's memory budget for the share that a stateful stage may hold.
const HELD_SHARE: u64 = 4;

/// A prepared pipeline, and the settings of one run.
pub(crate) struct Assembly<'a> {
    pub(crate) prepared: &'a Prepared,
    pub(crate) threads: usize,
    pub(crate) timer: OnceLock<Arc<Timer>>,
    /// Memory that `collate` writes arrays to, unless they go to a GPU.
    pub(crate) memory: Arc<dyn BatchMemory>,
    /// Maximum number of batches that the reader of the run's output may hold at a time.
    pub(crate) max_held: usize,
    /// Ops from outside the document, by stage id.
    pub(crate) ops: BTreeMap<String, Arc<dyn ThreadOpFactory>>,
}

impl Assembly<'_> {
    /// Builds the graph of a plan with this source and consumer: the only place that maps a kind of stage to its implementation.
    pub(crate) async fn assemble(
        &self,
        source: Box<dyn Source>,
        consumer: Option<Box<dyn Consumer>>,
        watched: &mut Watched,
    ) -> Result<Graph, AssembleError> {
        let plan = &self.prepared.plan;
        let gpus = Gpus::of(plan, self.max_held)?;
        let mut stages = Vec::with_capacity(plan.stages.len());
        for stage in &plan.stages {
            let tap = self.prepared.taps.get(&stage.id.to_string());
            let op = self.op(stage, &gpus, watched).await?.map(|op| match tap {
                Some(tap) => tap.clone().on(op),
                None => op,
            });
            let work = op.map(StageWork::Op).or_else(|| StageWork::moving(&stage.kind));
            stages.push(stage_node(stage, work.expect("a stage without an op moves samples")));
        }
        let routes = routes(plan, |route, _| Some(Choice::Field(field_choice(route)))).unwrap_or_default();
        Ok(Graph {
            name: plan.name.clone(),
            source,
            chain: chain(plan, stages, routes),
            source_on_error: OnError::Skip,
            consumer,
            threads: self.threads,
            stack_bytes: WORKER_STACK_BYTES,
            buffer_bytes: plan.buffer_bytes,
            known: Vec::new(),
            kept: Kept::default(),
            max_failures: plan.max_failures,
            all_may_fail_before: 0,
            interval: plan.interval,
            measured: true,
        })
    }

    pub(crate) async fn consumer(&self, watched: &mut Watched) -> Result<Box<dyn Consumer>, AssembleError> {
        let plan = &self.prepared.plan;
        Ok(match &plan.consumer {
            spec::Consumer::Discard(_) => Box::new(Discard),
            spec::Consumer::Simulate(simulate) => Box::new(Simulate::new(simulate, plan.seed)),
            spec::Consumer::Stream(_) => unreachable!("a server brings the consumer of its streams"),
            spec::Consumer::Files(files) => {
                let start = self.prepared.start_point();
                let folder = FilesFolder::new(self.prepared.store(files.store.as_str()), files);
                let earlier = self.prepared.start.as_ref().map(|start| start.state.items);
                let state = start.after(&Progress::default()).to_json();
                let opened = folder.open(&plan.recipe, &plan.unordered, earlier, state.into()).await?;
                let consumer = FilesConsumer::new(
                    opened,
                    start.state.items,
                    start.settled.delivered,
                    self.prepared.runtime.clone(),
                );
                watched.files = Some(consumer.count.clone());
                Box::new(consumer)
            }
        })
    }

    /// Builds the op of a stage; `None` for a stage that only moves samples.
    pub(crate) async fn op(
        &self,
        stage: &StagePlan,
        gpus: &Gpus,
        watched: &mut Watched,
    ) -> Result<Option<StageOp>, AssembleError> {
        let (concurrency, order) = (stage.concurrency, stage.order);
        let tasks = |op: Arc<dyn TaskOp>| StageOp::Tasks { op, concurrency, order };
        let stateful = stage.kind.rules().is_stateful();
        let threads =
            |factory: Arc<dyn ThreadOpFactory>| StageOp::Threads { factory, concurrency, order, stateful };
        if let Some(factory) = self.ops.get(&stage.id.to_string()) {
            return Ok(Some(threads(factory.clone())));
        }
        Ok(Some(match &stage.kind {
            StageKind::Fetch(FetchPlan { store, object }) => {
                tasks(Arc::new(FetchOp::new(self.prepared.store(store), object.as_deref())))
            }
            StageKind::Wasm(wasm) => {
                let factory = self.prepared.guest(stage, wasm).await?;
                watched.guests.insert(stage.id.to_string(), factory.clone());
                threads(Arc::new(factory))
            }
            StageKind::Collate(collate) => {
                let memory = gpus.memory().unwrap_or_else(|| self.memory.clone());
                let notes = self.prepared.found.notes(&self.prepared.plan.source.id.to_string());
                let usual = Usual::of(notes, self.changed_before(stage));
                threads(Arc::new(Collate::new(collate.clone(), usual, Some(memory))))
            }
            StageKind::Transfer(device) => {
                tasks(gpus.transfer(&stage.id.to_string(), *device, &mut watched.transfers)?)
            }
            StageKind::Sleep(sleep) => {
                let times = SleepTimes::new(*sleep, self.prepared.plan.seed, &stage.seeded_as);
                match sleep.on {
                    SleepOn::Async => tasks(Arc::new(SleepTask { times, timer: self.timer()? })),
                    SleepOn::Thread => threads(Arc::new(times)),
                }
            }
            StageKind::Aggregate(_) | StageKind::Disaggregate | StageKind::Path(_) | StageKind::Route(_) => {
                return Ok(None);
            }
        }))
    }

    /// Checks that each op from outside the document has a stage to run in.
    pub(crate) fn check_ops(&self) -> Result<(), AssembleError> {
        let stages = &self.prepared.plan.stages;
        let computing = stages.iter().filter(|stage| stage.kind.rules().work().is_on_thread());
        let computing: BTreeSet<String> = computing.map(|stage| stage.id.to_string()).collect();
        match self.ops.keys().find(|id| !self.prepared.takes_ops || !computing.contains(*id)) {
            Some(id) if self.prepared.takes_ops => Err(AssembleError::NoSuchOp(id.clone())),
            Some(id) => Err(AssembleError::OpFromOutside(id.clone())),
            None => Ok(()),
        }
    }

    /// Names of the fields that the stages before `stage` may change; `None` if they may change all.
    fn changed_before(&self, stage: &StagePlan) -> Option<BTreeSet<String>> {
        let mut changed = BTreeSet::new();
        for before in self.prepared.plan.stages.iter().take_while(|before| before.id != stage.id) {
            let rules = before.kind.rules();
            let module = rules.recipe().digest.map(|digest| self.prepared.module(digest).manifest());
            changed.extend(rules.changes(module)?);
        }
        Some(changed)
    }

    /// The timer that all sleeps of the run share.
    fn timer(&self) -> Result<Arc<Timer>, AssembleError> {
        if let Some(timer) = self.timer.get() {
            return Ok(timer.clone());
        }
        let timer = Arc::new(Timer::start().map_err(AssembleError::Timer)?);
        Ok(self.timer.get_or_init(|| timer).clone())
    }
}

impl Prepared {
    /// Factory of the op of a stage that runs a module, with its assets.
    pub(crate) async fn guest(
        &self,
        stage: &StagePlan,
        wasm: &WasmPlan,
    ) -> Result<StageFactory, AssembleError> {
        let mut assets = BTreeMap::new();
        for (name, Asset { store, key }) in &wasm.assets {
            let (bytes, _) = self.store(store.as_str()).get(key.as_str().into()).await;
            let unreadable = |source| AssembleError::Asset {
                stage: stage.id.to_string(),
                asset: name.to_string(),
                source,
            };
            assets.insert(name.to_string(), bytes.map_err(unreadable)?);
        }
        let factory = self.module(&wasm.digest).stage(StageSettings {
            name: stage.seeded_as.clone(),
            params: wasm.params.clone().into(),
            deadline: wasm.deadline,
            memory_bytes: wasm.memory_bytes,
            output_bytes: wasm.output_bytes,
            held_bytes: wasm.memory_bytes.min(self.plan.buffer_bytes / HELD_SHARE),
            assets,
            document_seed: self.plan.seed,
        });
        let stateful = self.plan.stages.iter().filter(|stage| stage.kind.rules().is_stateful()).count();
        let saves = stateful == 1 && stage.kind.rules().is_stateful() && factory.module().saves();
        let kept = self.start.as_ref().map(|start| start.state.kept.state.clone());
        Ok(if saves { factory.saving(kept.unwrap_or_default().into()) } else { factory })
    }
}

/// Routes of a plan by number, with the choice that `choice` returns for each; `None` if it returns none for one of them.
pub(crate) fn routes(
    plan: &Plan,
    mut choice: impl FnMut(&RoutePlan, &StagePlan) -> Option<Choice>,
) -> Option<Vec<Route>> {
    let spans = plan.routes().into_iter().map(|span| {
        let stage = &plan.stages[span.join - 1];
        let StageKind::Route(route) = &stage.kind else { return None };
        Some(Route { choice: choice(route, stage)?, order: stage.order, span })
    });
    spans.collect()
}

/// Choice of a path by the field that the document names.
fn field_choice(route: &RoutePlan) -> FieldChoice {
    let named = route.paths.len() - usize::from(route.has_else);
    let paths = route.paths[..named].iter().map(String::as_str);
    FieldChoice::new(&route.field, paths, route.has_else.then_some(named))
}

/// Nodes of a plan with these stages and routes.
pub(crate) fn chain<Op>(plan: &Plan, stages: Vec<StageNode<Op>>, routes: Vec<Route>) -> Chain<Op> {
    Chain {
        source: node(&plan.source.id, plan.source.queue),
        stages,
        routes,
        sink: node(&plan.sink.id, plan.sink.queue),
    }
}

pub(crate) fn stage_node<Op>(stage: &StagePlan, work: StageWork<Op>) -> StageNode<Op> {
    StageNode {
        node: node(&stage.id, stage.queue),
        kind: stage.kind.name(),
        on_error: stage.on_error,
        max_failures: stage.max_failures,
        keeps_size: stage.kind.rules().keeps_size(),
        work,
    }
}

fn node(id: &StageId, capacity: Capacity) -> GraphNode {
    GraphNode { id: id.to_string(), name: id.name().to_owned(), queue_id: id.queue_id(), capacity }
}
