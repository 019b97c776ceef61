//! A pipeline ready to run: names, limits and ops, without a thread yet.

use std::sync::Arc;
use std::time::Duration;

use penstock_types::policy::{Capacity, Concurrency, FailureLimit, OnError, Order, StageKindName};

use crate::ports::{Consumer, Source, TaskOp, ThreadOpFactory};
use crate::schedule::{ChainShape, NodeShape, RunsOn, StageRule, StageShape};

pub struct Graph {
    pub name: String,
    pub source: Box<dyn Source>,
    pub source_node: GraphNode,
    pub stages: Vec<StageNode>,
    pub sink_node: GraphNode,
    /// Drains the sink queue on a thread of its own; `None` leaves that to whoever calls [`RunHandle::take`].
    ///
    /// [`RunHandle::take`]: crate::running::RunHandle::take
    pub consumer: Option<Box<dyn Consumer>>,
    /// Worker threads; none are started when no stage needs them.
    pub threads: usize,
    pub stack_bytes: usize,
    /// Bytes that the run may hold between ops: in queues, in slots, and in batches that are being collected.
    pub buffer_bytes: u64,
    /// Limit of failed samples over all stages; a rate is taken of the samples that the source and
    /// fan-outs made.
    pub max_failures: Option<FailureLimit>,
    /// Permits epochs in which every sample fails; otherwise such an epoch fails the run.
    pub all_may_fail: bool,
    pub interval: Duration,
    /// Whether stages and queues are measured; off only to learn what measuring costs.
    pub measured: bool,
}

/// A node of the chain and the queue at its exit.
#[derive(Clone, Debug)]
pub struct GraphNode {
    /// Position and name, e.g. `2:download`.
    pub id: String,
    pub name: String,
    /// How people see it, e.g. `[2:download[12]]`.
    pub label: String,
    /// Its queue's id, e.g. `2:download_queue`.
    pub queue_id: String,
    pub queue_label: String,
    pub capacity: Capacity,
}

pub struct StageNode {
    pub node: GraphNode,
    pub kind: StageKindName,
    pub on_error: OnError,
    pub max_failures: Option<FailureLimit>,
    /// Set where results take no more memory than their inputs.
    pub keeps_size: bool,
    pub work: StageWork,
}

/// What a stage does with items.
pub enum StageWork {
    /// Calls an op that waits.
    Tasks {
        op: Arc<dyn TaskOp>,
        concurrency: Concurrency,
        order: Order,
    },
    /// Calls an op that computes.
    Threads {
        factory: Arc<dyn ThreadOpFactory>,
        concurrency: Concurrency,
        order: Order,
        /// Whether the op keeps samples from call to call, so that there may be only one of it.
        stateful: bool,
    },
    Aggregate {
        /// Samples in a batch, never 0.
        size: usize,
        /// Whether an epoch's last batch is thrown away if it is incomplete.
        drop_last: bool,
    },
    Disaggregate,
}

impl Graph {
    /// Factories of the ops that compute, by stage.
    pub(crate) fn factories(&self) -> Vec<Option<Arc<dyn ThreadOpFactory>>> {
        let factory = |stage: &StageNode| match &stage.work {
            StageWork::Threads { factory, .. } => Some(factory.clone()),
            _ => None,
        };
        self.stages.iter().map(factory).collect()
    }

    /// Ops that wait, by stage.
    pub(crate) fn task_ops(&self) -> Vec<Option<Arc<dyn TaskOp>>> {
        let op = |stage: &StageNode| match &stage.work {
            StageWork::Tasks { op, .. } => Some(op.clone()),
            _ => None,
        };
        self.stages.iter().map(op).collect()
    }

    pub(crate) fn shape(&self) -> ChainShape {
        let stage = |(position, stage): (usize, &StageNode)| StageShape {
            node: stage.node.shape(),
            on_error: stage.on_error,
            max_failures: stage.max_failures,
            keeps_size: stage.keeps_size,
            rule: stage.work.rule(position, self.threads),
        };
        ChainShape {
            source: self.source_node.shape(),
            stages: self.stages.iter().enumerate().map(stage).collect(),
            sink: self.sink_node.shape(),
            buffer_bytes: self.buffer_bytes,
            max_failures: self.max_failures,
            all_may_fail: self.all_may_fail,
            measured: self.measured,
        }
    }
}

impl StageWork {
    pub(crate) fn rule(&self, position: usize, threads: usize) -> StageRule {
        match self {
            Self::Tasks { concurrency, order, .. } => StageRule::Pipe {
                concurrency: concurrency.get() as usize,
                order: *order,
                runs_on: RunsOn::Tasks,
            },
            Self::Threads { concurrency, order, stateful, .. } => StageRule::Pipe {
                concurrency: concurrency.get() as usize,
                order: *order,
                runs_on: RunsOn::thread(*stateful, position, threads),
            },
            Self::Aggregate { size, drop_last } => {
                StageRule::Aggregate { size: *size, drop_last: *drop_last }
            }
            Self::Disaggregate => StageRule::Disaggregate,
        }
    }
}

impl GraphNode {
    pub(crate) fn shape(&self) -> NodeShape {
        NodeShape {
            id: self.id.clone(),
            queue_id: self.queue_id.clone(),
            capacity: self.capacity.get() as usize,
        }
    }
}
