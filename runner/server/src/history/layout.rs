use std::borrow::Cow;
use std::iter;

use penstock_types::plan::{Plan, stage_label};
use penstock_types::policy::StageKindName;
use penstock_types::run::{QueueRecord, StageRecord, Window};
use penstock_types::series::Row;
use penstock_types::stats::{QueueRow, TaskRow};
use penstock_types::tune::SettingChange;
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
            label: String::new(),
            concurrency: stage.concurrency.get(),
        });
        let queues = plan.nodes().map(|(id, capacity)| ValidQueue {
            id: id.queue_id(),
            label: String::new(),
            capacity: capacity.get() as usize,
        });
        let mut layout = Self { stages: stages.collect(), queues: queues.collect(), shape: Some(shape) };
        layout.label();
        layout
    }

    /// Names stages and queues by their ids and their concurrency.
    fn label(&mut self) {
        for stage in &mut self.stages {
            stage.label = format!("[{}]", stage_label(&stage.id, stage.concurrency));
        }
        // Source and sink have one task each.
        let tasks = iter::once(1).chain(self.stages.iter().map(|stage| stage.concurrency)).chain([1]);
        for (queue, tasks) in self.queues.iter_mut().zip(tasks) {
            let node = queue.id.strip_suffix("_queue").unwrap_or(&queue.id);
            queue.label = format!("[{}_queue]", stage_label(node, tasks));
        }
    }

    /// The layout with the settings that held at `at_s`, in seconds since the start of a run with these changes, oldest first. Runs of
    /// earlier versions have no changes.
    pub(crate) fn at(&self, changes: &[SettingChange], at_s: f64) -> Cow<'_, Self> {
        let Some(shape) = self.shape.as_ref().filter(|_| !changes.is_empty()) else {
            return Cow::Borrowed(self);
        };
        let (shape, mut layout) = (shape.at(changes, at_s), self.clone());
        for (stage, tasks) in layout.stages.iter_mut().zip(shape.concurrency()) {
            stage.concurrency = tasks;
        }
        for (queue, capacity) in layout.queues.iter_mut().zip(shape.capacities()) {
            queue.capacity = capacity;
        }
        layout.label();
        Cow::Owned(layout)
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
