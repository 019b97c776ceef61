use penstock_types::policy::StageKindName;
use penstock_types::run::{QueueRecord, StageRecord, Window};
use penstock_types::stats::{QueueSums, TaskSums, Tick};

use crate::graph::{Graph, Node};
use crate::ports::Sums;
use crate::schedule::Reading;
use crate::shared::Pulse;

/// Turns the sums of a run into records with names.
#[derive(Debug)]
pub(crate) struct Recorder {
    stages: Vec<(Node, StageKindName, u32)>,
    queues: Vec<Node>,
}

impl Recorder {
    pub(crate) fn of(graph: &Graph) -> Self {
        let stages = graph
            .stages
            .iter()
            .map(|stage| (stage.node.clone(), stage.kind, stage.work.concurrency().get() as u32))
            .collect();
        Self::new(&graph.source_node, stages, &graph.sink_node)
    }

    /// Of stages by kind and concurrency, between source and sink.
    pub(crate) fn new(source: &Node, stages: Vec<(Node, StageKindName, u32)>, sink: &Node) -> Self {
        let nodes = stages.iter().map(|(node, _, _)| node);
        let queues = std::iter::once(source).chain(nodes).chain([sink]).cloned().collect();
        Self { stages, queues }
    }

    pub(crate) fn stages(&self, sums: &[TaskSums]) -> Vec<StageRecord> {
        let record =
            |((node, kind, concurrency), sums): (&(Node, StageKindName, u32), &TaskSums)| StageRecord {
                id: node.id.clone(),
                name: node.name.clone(),
                kind: *kind,
                label: node.label.clone(),
                concurrency: *concurrency,
                task: sums.figures(),
            };
        self.stages.iter().zip(sums).map(record).collect()
    }

    pub(crate) fn queues(&self, sums: &[QueueSums]) -> Vec<QueueRecord> {
        let record = |(node, sums): (&Node, &QueueSums)| QueueRecord {
            id: node.queue_id.clone(),
            label: node.queue_label.clone(),
            figures: sums.figures(node.capacity.get()),
        };
        self.queues.iter().zip(sums).map(record).collect()
    }

    /// The reading of a run that is about to start.
    pub(crate) fn nothing(&self) -> Reading {
        Reading {
            at: Tick::ZERO,
            stages: vec![TaskSums::default(); self.stages.len()],
            queues: vec![QueueSums::default(); self.queues.len()],
        }
    }

    /// What was done between two readings.
    pub(crate) fn window(&self, from: &Reading, to: &Reading) -> Window {
        Window {
            t0_s: from.at.seconds(),
            t1_s: to.at.seconds(),
            stages: self.stages(&stage_sums(from, to)),
            queues: self.queues(&queue_sums(from, to)),
            machine: None,
        }
    }

    /// The same as sums.
    pub(crate) fn sums(&self, from: &Reading, pulse: &Pulse) -> Sums {
        let to = &pulse.reading;
        Sums {
            t0: from.at,
            t1: to.at,
            stages: stage_sums(from, to),
            queues: queue_sums(from, to),
            state: pulse.state,
            expected: pulse.expected,
            delivered: pulse.delivered,
            failed_samples: pulse.failed_samples,
            occupancy: pulse.occupancy.clone(),
        }
    }
}

fn stage_sums(from: &Reading, to: &Reading) -> Vec<TaskSums> {
    to.stages.iter().zip(&from.stages).map(|(to, from)| to.since(from)).collect()
}

fn queue_sums(from: &Reading, to: &Reading) -> Vec<QueueSums> {
    to.queues.iter().zip(&from.queues).map(|(to, from)| to.since(from)).collect()
}
