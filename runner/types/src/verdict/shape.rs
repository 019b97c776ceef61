use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::Measured;
use crate::failure::FailureGroup;
use crate::fault::Pointer;
use crate::kinds::Work;
use crate::machine::MachineFigures;
use crate::plan::{Flow, Plan, StagePlan, Unit};
use crate::policy::Order;
use crate::routes::RouteSpan;
use crate::series::Row;
use crate::spec::Consumer;
use crate::stats::TaskRow;
use crate::tune::SettingChange;

/// Plural word for single samples.
pub(super) const SAMPLES: &str = "samples";

/// Properties of a pipeline that a verdict needs besides the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineShape {
    pub(super) source: SourceTraits,
    pub(super) stages: Vec<StageTraits>,
    /// Worker threads of the run.
    pub(super) threads: u32,
    /// Cores of the machine; `None` when they are not known.
    pub(super) cores: Option<u32>,
    /// Set if the document keeps the order of the input in all stages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) deterministic: bool,
    /// Set if the consumer drops items at once, so that it always waits.
    pub(super) discards: bool,
    /// Unit of the sink queue's items, in the plural.
    pub(super) unit: Cow<'static, str>,
    /// Capacity of the sink queue, in items.
    pub(super) sink_queue: usize,
    /// Routes among the nodes of the pipeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) routes: Vec<RouteSpan>,
}

/// Properties of the source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SourceTraits {
    pub(super) id: String,
    /// Store whose keys the source lists; `None` if it lists none.
    pub(super) store: Option<String>,
    /// Capacity of the queue behind the source, in items.
    pub(super) queue: usize,
}

/// Properties of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StageTraits {
    pub(super) id: String,
    /// Place of the stage in the document, e.g. `/stages/1/wasm`.
    pub(super) place: Pointer,
    pub(super) work: Work,
    pub(super) concurrency: u32,
    /// Set if the concurrency can change: a stateful module has one task at a time.
    pub(super) may_grow: bool,
    pub(super) order: Order,
    /// Capacity of the queue behind the stage, in items.
    pub(super) queue: usize,
    /// Number of samples in a full input item.
    pub(super) samples: u64,
    /// The store that the stage reads from; `None` when it reads none.
    pub(super) store: Option<StoreTraits>,
}

/// Properties of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoreTraits {
    pub(super) name: String,
    /// Permits for reads, shared by all runs; `None` when the number is not known.
    pub(super) reads: Option<u32>,
}

impl PipelineShape {
    /// Shape of a plan on `threads` worker threads of a machine with `cores`.
    pub fn of(plan: &Plan, threads: u32, cores: Option<u32>) -> Self {
        let lists = plan.source.spec.parts().iter().any(|part| part.rules().lists_keys());
        let store = plan.source.spec.store().filter(|_| lists).map(ToString::to_string);
        let stages = plan.stages.iter().enumerate();
        Self {
            source: SourceTraits {
                id: plan.source.id.to_string(),
                store,
                queue: plan.source.queue.get() as usize,
            },
            stages: stages.map(|(index, stage)| StageTraits::of(stage, plan.flow_into(index))).collect(),
            threads,
            cores,
            deterministic: plan.deterministic,
            discards: matches!(plan.consumer, Consumer::Discard(_)),
            unit: if plan.flow().unit == Unit::Samples { SAMPLES } else { "batches" }.into(),
            sink_queue: plan.sink.queue.get() as usize,
            routes: plan.routes(),
        }
    }

    /// True if the consumer takes batches, not single samples.
    pub fn delivers_batches(&self) -> bool {
        self.unit != SAMPLES
    }

    /// Routes among the nodes of the pipeline.
    pub fn routes(&self) -> &[RouteSpan] {
        &self.routes
    }

    /// Replaces the document's consumer by one that spends time on its items.
    #[must_use]
    pub fn with_working_consumer(self) -> Self {
        Self { discards: false, ..self }
    }

    /// Takes over the settings of a plan of the same pipeline that can change in a run.
    pub fn resize(&mut self, plan: &Plan) {
        self.source.queue = plan.source.queue.get() as usize;
        self.sink_queue = plan.sink.queue.get() as usize;
        self.threads = plan.threads.unwrap_or(self.threads);
        for (traits, stage) in self.stages.iter_mut().zip(&plan.stages) {
            (traits.concurrency, traits.queue) = (stage.concurrency.get(), stage.queue.get() as usize);
        }
    }

    /// The shape with the settings that held at `at_s`, in seconds since the start of a run with these changes, oldest first.
    #[must_use]
    pub fn at(&self, changes: &[SettingChange], at_s: f64) -> Self {
        let mut shape = self.clone();
        for (pointer, value) in
            changes.iter().filter_map(|change| Some((&change.pointer, change.value_at(at_s)?)))
        {
            shape.set(pointer, value);
        }
        shape
    }

    /// Concurrency of each stage.
    pub fn concurrency(&self) -> impl Iterator<Item = u32> {
        self.stages.iter().map(|stage| stage.concurrency)
    }

    /// Capacity of the queue behind each node: source, stages and sink.
    pub fn capacities(&self) -> impl Iterator<Item = usize> {
        let stages = self.stages.iter().map(|stage| stage.queue);
        std::iter::once(self.source.queue).chain(stages).chain([self.sink_queue])
    }

    fn set(&mut self, pointer: &Pointer, value: u32) {
        if *pointer == Pointer::ROOT.key("threads") {
            self.threads = value;
        } else if *pointer == Pointer::ROOT.key("sink").key("queue") {
            self.sink_queue = value as usize;
        }
        for place in 0..self.stages.len() {
            let stage = &mut self.stages[place];
            if *pointer == stage.place.key("concurrency") {
                stage.concurrency = value;
            } else if *pointer == stage.place.key("queue") {
                stage.queue = value as usize;
                // The gates of a route have the queue of its join. The source is node 0.
                let gates = self.routes.iter().filter(|route| route.join == place + 1);
                let gates = gates.flat_map(|route| &route.gates).map(|gate| gate - 1);
                gates.for_each(|gate| self.stages[gate].queue = value as usize);
            }
        }
    }

    /// Adds the permits of each store, by its name.
    #[must_use]
    pub fn with_reads(mut self, reads: impl Fn(&str) -> Option<u32>) -> Self {
        for store in self.stages.iter_mut().filter_map(|stage| stage.store.as_mut()) {
            store.reads = reads(&store.name);
        }
        self
    }

    /// Figures of the sums of an interval, for a verdict. `is_warm` and `is_over` as in [`Measured`].
    pub fn measured<'a>(
        &self,
        row: &Row,
        (is_warm, is_over): (bool, bool),
        failures: &'a [FailureGroup],
        machine: Option<&'a MachineFigures>,
    ) -> Measured<'a> {
        let queues = row.queues.iter().zip(self.capacities());
        Measured {
            from_s: row.t0 as f64 / 1e9,
            to_s: row.t1 as f64 / 1e9,
            stages: row.stages.iter().map(TaskRow::figures).collect(),
            queues: queues.map(|(row, capacity)| row.figures(capacity)).collect(),
            samples: row.delivered(),
            is_warm,
            is_over,
            failures,
            machine,
        }
    }

    /// True if all work on worker threads is computation, so that more threads than cores bring no gain.
    pub(super) fn computes_only(&self) -> bool {
        !self.stages.iter().any(|stage| stage.work == Work::Sleeping)
    }
}

impl StageTraits {
    fn of(stage: &StagePlan, flow: Flow) -> Self {
        let rules = stage.kind.rules();
        let work = rules.work();
        Self {
            id: stage.id.to_string(),
            place: stage.place.clone(),
            work,
            concurrency: stage.concurrency.get(),
            may_grow: rules.may_grow(),
            order: stage.order,
            queue: stage.queue.get() as usize,
            samples: flow.samples,
            store: rules.store().map(|store| StoreTraits { name: store.to_owned(), reads: None }),
        }
    }

    /// Number of reads that `tasks` tasks of the stage request at a time.
    pub(super) fn reads_of(&self, tasks: u32) -> u64 {
        u64::from(tasks).saturating_mul(self.samples)
    }
}
