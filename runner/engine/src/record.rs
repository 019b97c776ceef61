use penstock_types::plan::stage_label;
use penstock_types::policy::StageKindName;
use penstock_types::run::{QueueRecord, StageRecord, Window};
use penstock_types::stats::{BookRow, QueueSums, TaskSums, Tick};

use crate::dispatch::RunReading;
use crate::graph::{Chain, GraphNode};
use crate::ports::Sums;
use crate::schedule::RunSums;

/// Turns the sums of a run into records with names.
#[derive(Debug)]
pub(crate) struct Recorder {
    stages: Vec<(GraphNode, StageKindName)>,
    queues: Vec<GraphNode>,
}

impl Recorder {
    pub(crate) fn of<Op>(chain: &Chain<Op>) -> Self {
        let Chain { source, stages, sink, .. } = chain;
        let nodes = stages.iter().map(|stage| &stage.node);
        let queues = std::iter::once(source).chain(nodes).chain([sink]).cloned().collect();
        Self { stages: stages.iter().map(|stage| (stage.node.clone(), stage.kind)).collect(), queues }
    }

    pub(crate) fn stages(&self, sums: &[TaskSums], concurrency: &[usize]) -> Vec<StageRecord> {
        let stages = self.stages.iter().zip(sums).zip(concurrency);
        let record = stages.map(|(((node, kind), sums), concurrency)| StageRecord {
            id: node.id.clone(),
            name: node.name.clone(),
            kind: *kind,
            label: format!("[{}]", stage_label(&node.id, *concurrency as u32)),
            concurrency: *concurrency as u32,
            task: sums.figures(),
        });
        record.collect()
    }

    pub(crate) fn queues(
        &self,
        sums: &[QueueSums],
        concurrency: &[usize],
        capacity: &[usize],
    ) -> Vec<QueueRecord> {
        // Source and sink have one task each.
        let tasks = std::iter::once(&1).chain(concurrency).chain([&1]);
        let queues = self.queues.iter().zip(tasks).zip(sums).zip(capacity);
        let record = queues.map(|(((node, tasks), sums), capacity)| QueueRecord {
            id: node.queue_id.clone(),
            label: format!("[{}_queue]", stage_label(&node.id, *tasks as u32)),
            figures: sums.figures(*capacity),
        });
        record.collect()
    }

    /// Sums of a run that is about to start.
    pub(crate) fn nothing(&self) -> RunSums {
        RunSums {
            at: Tick::ZERO,
            stages: vec![TaskSums::default(); self.stages.len()],
            queues: vec![QueueSums::default(); self.queues.len()],
            books: vec![BookRow::default(); self.stages.len() + 3],
            ..RunSums::default()
        }
    }

    /// Figures of the interval between two readings, with the settings at its end.
    pub(crate) fn window(&self, from: &RunSums, to: &RunSums) -> Window {
        Window {
            t0_s: from.at.seconds(),
            t1_s: to.at.seconds(),
            stages: self.stages(&stage_sums(from, to), &to.concurrency),
            queues: self.queues(&queue_sums(from, to), &to.concurrency, &to.capacity),
            machine: None,
        }
    }

    /// Sums of the interval between two readings.
    pub(crate) fn sums(&self, from: &RunSums, run: &RunReading) -> Sums {
        let to = &run.sums;
        Sums {
            t0: from.at,
            t1: to.at,
            stages: stage_sums(from, to),
            queues: queue_sums(from, to),
            state: run.state,
            expected: run.expected,
            delivered: to.delivered,
            failed_samples: to.failed_samples,
            occupancy: to.occupancy.clone(),
            books: to.books.iter().zip(&from.books).map(|(to, from)| to.since(from)).collect(),
        }
    }
}

fn stage_sums(from: &RunSums, to: &RunSums) -> Vec<TaskSums> {
    to.stages.iter().zip(&from.stages).map(|(to, from)| to.since(from)).collect()
}

fn queue_sums(from: &RunSums, to: &RunSums) -> Vec<QueueSums> {
    to.queues.iter().zip(&from.queues).map(|(to, from)| to.since(from)).collect()
}
