use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use penstock_device::GpuError;
use penstock_engine::consumers::{Discard, Simulate};
use penstock_engine::graph::{Graph, GraphNode, StageNode, StageWork};
use penstock_engine::memory::BatchMemory;
use penstock_engine::ops::{CollateFactory, SleepFactory, SleepTask, SleepTimes};
use penstock_engine::ports::{Consumer, Source, TaskOp, ThreadOpFactory};
use penstock_engine::range::RangeSource;
use penstock_engine::timer::Timer;
use penstock_storage::{BoundedStore, FetchOp, IndexSource, ListSource, RecordSource, StoreError};
use penstock_types::manifest::Mode;
use penstock_types::plan::{
    AssetPlan, ConsumerPlan, Plan, SleepPlan, SourceKind, SourcePlan, StageId, StageKind, StagePlan, WasmPlan,
};
use penstock_types::policy::Capacity;
use penstock_types::spec::SleepOn;
use penstock_types::traversal::{ShardFault, Traversal};
use penstock_wasm::{StageFactory, StageSettings, WORKER_STACK_BYTES};
use tokio::runtime::Handle;

use crate::devices::{Gpus, Transfers};
use crate::files::{FilesConsumer, FilesCount, FilesError, FilesFolder};
use crate::modules::Modules;
use crate::stores::Stores;

/// Why a checked pipeline cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// A name the plan was checked with stands for nothing any more.
    #[error("{what} `{name}` is gone since the pipeline was checked")]
    Gone {
        /// What was named.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An asset cannot be read.
    #[error("stage `{stage}`: its asset `{asset}` cannot be read")]
    Asset {
        /// Id of the stage.
        stage: String,
        /// The asset's name.
        asset: String,
        /// Why not.
        source: StoreError,
    },
    /// The consumer `stream` needs a server.
    #[error(
        "the consumer `stream` is for runs of a server: start one with `penstock serve` and give it the pipeline with \
         `penstock submit`; here `discard`, `simulate` or `files` would do"
    )]
    Stream,
    /// The GPU that it brings batches to cannot be used.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The batches have no place.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The shard is none.
    #[error(transparent)]
    Shard(#[from] ShardFault),
    /// The machine gives no thread for the timer.
    #[error("cannot start the timer's thread")]
    Timer(#[source] io::Error),
}

/// A graph and what is known of its WASM stages.
pub(crate) struct Assembled {
    pub(crate) graph: Graph,
    /// The stages that run modules, by id.
    pub(crate) guests: BTreeMap<String, StageFactory>,
    /// What its stages copy to devices.
    pub(crate) transfers: Transfers,
}

/// What is found out while stages are built.
#[derive(Default)]
struct Found {
    guests: BTreeMap<String, StageFactory>,
    transfers: Transfers,
}

/// What assembling needs.
pub(crate) struct Parts<'a> {
    pub(crate) stores: &'a Stores,
    pub(crate) modules: &'a Modules,
    pub(crate) threads: usize,
    pub(crate) timer: OnceLock<Arc<Timer>>,
    /// What `collate` writes arrays to; the heap if there is none.
    pub(crate) memory: Option<Arc<dyn BatchMemory>>,
    /// How many batches who takes them may hold at a time.
    pub(crate) max_held: usize,
}

impl Parts<'_> {
    /// Builds the graph of a plan between these ends: the only place that maps a kind to what does it.
    pub(crate) async fn assemble(
        &self,
        plan: &Plan,
        source: Box<dyn Source>,
        consumer: Option<Box<dyn Consumer>>,
    ) -> Result<Assembled, AssembleError> {
        let gpus = Gpus::of(plan, self.max_held)?;
        let mut found = Found::default();
        let mut stages = Vec::with_capacity(plan.stages.len());
        for stage in &plan.stages {
            stages.push(StageNode {
                node: node(&stage.id, &stage.label(), stage.queue),
                kind: stage.kind.name(),
                on_error: stage.on_error,
                max_failures: stage.max_failures,
                work: self.work(plan, stage, &gpus, &mut found).await?,
            });
        }
        let graph = Graph {
            name: plan.name.clone(),
            source,
            source_node: node(&plan.source.id, &plan.source.id.to_string(), plan.source.queue),
            stages,
            sink_node: node(&plan.sink.id, &plan.sink.id.to_string(), plan.sink.queue),
            consumer,
            threads: self.threads,
            stack_bytes: WORKER_STACK_BYTES,
            buffer_bytes: plan.buffer_bytes,
            max_failures: plan.max_failures,
            interval: plan.interval,
            measured: true,
        };
        Ok(Assembled { graph, guests: found.guests, transfers: found.transfers })
    }

    /// The source that the document names.
    pub(crate) fn source(&self, source: &SourcePlan) -> Result<Box<dyn Source>, AssembleError> {
        Ok(match &source.kind {
            SourceKind::List { store, prefix, suffix } => Box::new(ListSource::new(
                self.store(store)?,
                prefix.as_str(),
                suffix.as_str(),
                source.traversal,
            )),
            SourceKind::Index { store, index } => {
                let (store, index) = self.index(store, index.as_deref())?;
                Box::new(IndexSource::new(store, index, source.traversal))
            }
            SourceKind::Range { count } => {
                Box::new(RangeSource::new(Traversal::new(*count, source.traversal)?))
            }
            SourceKind::Records { store, key } => {
                Box::new(RecordSource::new(self.store(store)?, key.as_str(), source.traversal))
            }
        })
    }

    /// The consumer that the document names, and what it counts, if it writes files.
    pub(crate) async fn consumer(
        &self,
        plan: &Plan,
        runtime: &Handle,
    ) -> Result<(Box<dyn Consumer>, Option<Arc<FilesCount>>), AssembleError> {
        Ok(match &plan.consumer {
            ConsumerPlan::Discard => (Box::new(Discard), None),
            ConsumerPlan::Simulate { step, jitter } => {
                (Box::new(Simulate::new(*step, *jitter, plan.seed)), None)
            }
            ConsumerPlan::Stream { .. } => return Err(AssembleError::Stream),
            ConsumerPlan::Files(files) => {
                let opened = FilesFolder::new(self.store(&files.store)?, files).open(files).await?;
                let consumer = FilesConsumer::new(opened, runtime.clone());
                let count = consumer.count();
                (Box::new(consumer), Some(count))
            }
        })
    }

    async fn work(
        &self,
        plan: &Plan,
        stage: &StagePlan,
        gpus: &Gpus,
        found: &mut Found,
    ) -> Result<StageWork, AssembleError> {
        let tasks =
            |op: Arc<dyn TaskOp>| StageWork::Tasks { op, concurrency: stage.concurrency, order: stage.order };
        let threads = |factory: Arc<dyn ThreadOpFactory>, stateful: bool| StageWork::Threads {
            factory,
            concurrency: stage.concurrency,
            order: stage.order,
            stateful,
        };
        Ok(match &stage.kind {
            StageKind::Aggregate { size, drop_last } => {
                StageWork::Aggregate { size: *size, drop_last: *drop_last }
            }
            StageKind::Disaggregate => StageWork::Disaggregate,
            StageKind::Fetch { store } => tasks(Arc::new(FetchOp::new(self.store(store)?))),
            StageKind::Wasm(wasm) => {
                let factory = self.guest(plan, stage, wasm).await?;
                found.guests.insert(stage.id.to_string(), factory.clone());
                threads(Arc::new(factory), wasm.mode == Mode::Stateful)
            }
            StageKind::Collate => {
                let memory = gpus.memory().or_else(|| self.memory.clone());
                threads(Arc::new(CollateFactory::into_memory(memory)), false)
            }
            StageKind::Transfer { device } => {
                tasks(gpus.transfer(&stage.id.to_string(), *device, &mut found.transfers)?)
            }
            StageKind::Sleep(sleep) => {
                let times = SleepTimes::new(*sleep, plan.seed, &stage.seeded_as);
                match sleep {
                    SleepPlan { on: SleepOn::Async, .. } => {
                        tasks(Arc::new(SleepTask::new(times, self.timer()?)))
                    }
                    SleepPlan { on: SleepOn::Thread, .. } => {
                        threads(Arc::new(SleepFactory::new(times)), false)
                    }
                }
            }
        })
    }

    /// What makes the op of a stage that computes; `None` for any other.
    pub(crate) async fn computing(
        &self,
        plan: &Plan,
        stage: &StagePlan,
    ) -> Result<Option<Arc<dyn ThreadOpFactory>>, AssembleError> {
        if matches!(stage.kind, StageKind::Transfer { .. }) {
            return Ok(None);
        }
        Ok(match self.work(plan, stage, &Gpus::none(), &mut Found::default()).await? {
            StageWork::Threads { factory, .. } => Some(factory),
            StageWork::Tasks { .. } | StageWork::Aggregate { .. } | StageWork::Disaggregate => None,
        })
    }

    async fn guest(
        &self,
        plan: &Plan,
        stage: &StagePlan,
        wasm: &WasmPlan,
    ) -> Result<StageFactory, AssembleError> {
        let gone = || AssembleError::Gone { what: "the module", name: wasm.module.clone() };
        let module = self.modules.find(&wasm.module).ok_or_else(gone)?;
        let mut assets = BTreeMap::new();
        for (name, AssetPlan { store, key }) in &wasm.assets {
            let (bytes, _) = self.store(store)?.get(key.as_str().into()).await;
            let unreadable =
                |source| AssembleError::Asset { stage: stage.id.to_string(), asset: name.clone(), source };
            assets.insert(name.clone(), bytes.map_err(unreadable)?);
        }
        Ok(module.stage(StageSettings {
            name: stage.seeded_as.clone(),
            params: wasm.params.clone().into(),
            deadline: wasm.deadline,
            memory_bytes: wasm.memory_bytes,
            assets,
            document_seed: plan.seed,
        }))
    }

    /// The timer that all sleeps of the run share.
    fn timer(&self) -> Result<Arc<Timer>, AssembleError> {
        if let Some(timer) = self.timer.get() {
            return Ok(timer.clone());
        }
        let timer = Arc::new(Timer::start().map_err(AssembleError::Timer)?);
        Ok(self.timer.get_or_init(|| timer).clone())
    }

    /// Where an index lies: in the store itself, or where the store's configuration says.
    fn index(&self, store: &str, key: Option<&str>) -> Result<(BoundedStore, Arc<str>), AssembleError> {
        let gone = || AssembleError::Gone { what: "the index of store", name: store.to_owned() };
        match key {
            Some(key) => Ok((self.store(store)?, Arc::from(key))),
            None => self.stores.index(store).ok_or_else(gone),
        }
    }

    fn store(&self, name: &str) -> Result<BoundedStore, AssembleError> {
        let gone = || AssembleError::Gone { what: "the store", name: name.to_owned() };
        self.stores.get(name).cloned().ok_or_else(gone)
    }
}

pub(crate) fn node(id: &StageId, label: &str, capacity: Capacity) -> GraphNode {
    GraphNode {
        id: id.to_string(),
        name: id.name().to_owned(),
        label: format!("[{label}]"),
        queue_id: id.queue_id(),
        queue_label: format!("[{label}_queue]"),
        capacity,
    }
}
