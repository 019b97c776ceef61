use std::iter;

use penstock_types::plan::{Plan, StageId};
use penstock_types::policy::{Capacity, StageKindName};
use penstock_types::run::{QueueRecord, StageRecord, Window};
use penstock_types::series::Row;
use penstock_types::stats::{QueueRow, TaskRow};
use penstock_types::verdict::PipelineShape;
use serde::{Deserialize, Serialize};

use crate::wire::ValidQueue;

/// Stages and queues of a run, in the order in which rows hold their figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layout {
    pub(crate) stages: Vec<LayoutStage>,
    pub(crate) queues: Vec<ValidQueue>,
    /// Facts that verdicts need; `None` in runs of earlier versions.
    #[serde(default)]
    pub(crate) shape: Option<PipelineShape>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayoutStage {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) kind: StageKindName,
    pub(crate) label: String,
    pub(crate) concurrency: u32,
}

impl Layout {
    pub(crate) fn of(plan: &Plan, shape: PipelineShape) -> Self {
        let stages = plan.stages.iter().map(|stage| LayoutStage {
            id: stage.id.to_string(),
            name: stage.id.name().to_owned(),
            kind: stage.kind.name(),
            label: format!("[{}]", stage.label()),
            concurrency: stage.concurrency.get(),
        });
        let queue = |(id, label, capacity): (&StageId, String, Capacity)| ValidQueue {
            id: id.queue_id(),
            label: format!("[{label}_queue]"),
            capacity: capacity.get() as usize,
        };
        let (source, sink) = (&plan.source, &plan.sink);
        let queues = iter::once((&source.id, source.id.to_string(), source.queue))
            .chain(plan.stages.iter().map(|stage| (&stage.id, stage.label(), stage.queue)))
            .chain([(&sink.id, sink.id.to_string(), sink.queue)]);
        Self { stages: stages.collect(), queues: queues.map(queue).collect(), shape: Some(shape) }
    }

    /// Ids of source, stages and sink: each has a queue at its exit.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.queues.iter().map(|queue| queue.id.strip_suffix("_queue").unwrap_or(&queue.id))
    }

    /// Converts a row into a window. Percentiles are left out, because they need histograms.
    pub(crate) fn window(&self, row: &Row) -> Window {
        let stage = |(stage, row): (&LayoutStage, &TaskRow)| StageRecord {
            id: stage.id.clone(),
            name: stage.name.clone(),
            kind: stage.kind,
            label: stage.label.clone(),
            concurrency: stage.concurrency,
            task: row.figures(),
        };
        let queue = |(queue, row): (&ValidQueue, &QueueRow)| QueueRecord {
            id: queue.id.clone(),
            label: queue.label.clone(),
            figures: row.figures(queue.capacity),
        };
        Window {
            t0_s: row.t0 as f64 / 1e9,
            t1_s: row.t1 as f64 / 1e9,
            stages: self.stages.iter().zip(&row.stages).map(stage).collect(),
            queues: self.queues.iter().zip(&row.queues).map(queue).collect(),
            machine: None,
        }
    }
}
