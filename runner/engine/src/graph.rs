//! A pipeline ready to run: names, limits and ops. No thread has been started yet.

use std::sync::Arc;
use std::time::Duration;

use penstock_types::policy::{Capacity, Concurrency, FailureLimit, OnError, Order, StageKindName};
use penstock_types::resume::Kept;

use crate::ports::{Consumer, Source, TaskOp, ThreadOpFactory};
use crate::route::Route;
use crate::schedule::{ChainShape, PipeRule, RunsOn};
use crate::stage_work::StageWork;

pub struct Graph {
    pub name: String,
    pub source: Box<dyn Source>,
    pub chain: Chain<StageOp>,
    /// Handling of samples that the source finds damaged: skipped or kept as dead letters.
    pub source_on_error: OnError,
    /// Drains the sink queue on its own thread; with `None`, the caller takes the items with [`RunHandle::take`].
    ///
    /// [`RunHandle::take`]: crate::running::RunHandle::take
    pub consumer: Option<Box<dyn Consumer>>,
    /// Number of worker threads; none are started if no stage needs them.
    pub threads: usize,
    pub stack_bytes: usize,
    /// Memory limit in bytes for items between ops: items in queues and in slots, and batches that are being collected.
    pub buffer_bytes: u64,
    /// Samples of this run that earlier runs have settled: by epoch, number of the visit in the epoch, and hashes of fan-outs.
    pub known: Vec<(u32, u64, Vec<u64>)>,
    /// What the stateful stage has kept in earlier runs, for an op that saves its state.
    pub kept: Kept,
    /// Limit of failed samples over all stages; a rate is relative to the number of samples made by the source and the fan-outs.
    pub max_failures: Option<FailureLimit>,
    /// Number of the first epoch that fails the run if all of its samples fail.
    pub all_may_fail_before: u32,
    pub interval: Duration,
    /// Enables the measurement of stages and queues. Disabled only to determine the overhead of measuring.
    pub measured: bool,
}

/// Nodes of a pipeline, whose stages apply ops of the type `Op`.
#[derive(Clone, Debug)]
pub struct Chain<Op> {
    pub source: GraphNode,
    pub stages: Vec<StageNode<Op>>,
    /// Routes by number; their gates and joins are among the stages.
    pub routes: Vec<Route>,
    pub sink: GraphNode,
}

/// A node of the chain and its output queue.
#[derive(Clone, Debug)]
pub struct GraphNode {
    /// Position and name, e.g. `2:download`.
    pub id: String,
    pub name: String,
    /// Id of the node's queue, e.g. `2:download_queue`.
    pub queue_id: String,
    pub capacity: Capacity,
}

#[derive(Clone, Debug)]
pub struct StageNode<Op> {
    pub node: GraphNode,
    pub kind: StageKindName,
    pub on_error: OnError,
    pub max_failures: Option<FailureLimit>,
    /// Set if results never take more memory than their inputs.
    pub keeps_size: bool,
    pub work: StageWork<Op>,
}

pub enum StageOp {
    /// Runs an op that mostly waits, as a future.
    Tasks { op: Arc<dyn TaskOp>, concurrency: Concurrency, order: Order },
    /// Runs an op that computes, on worker threads.
    Threads {
        factory: Arc<dyn ThreadOpFactory>,
        concurrency: Concurrency,
        order: Order,
        /// Set if the op keeps samples between calls, so that the stage may have only one instance.
        stateful: bool,
    },
}

impl Graph {
    /// Factories of the ops that run on worker threads, by stage.
    pub(crate) fn factories(&self) -> Vec<Option<Arc<dyn ThreadOpFactory>>> {
        let factory = |stage: &StageNode<StageOp>| match stage.work.op()? {
            StageOp::Threads { factory, .. } => Some(factory.clone()),
            StageOp::Tasks { .. } => None,
        };
        self.chain.stages.iter().map(factory).collect()
    }

    /// Ops that run as futures, by stage.
    pub(crate) fn task_ops(&self) -> Vec<Option<Arc<dyn TaskOp>>> {
        let op = |stage: &StageNode<StageOp>| match stage.work.op()? {
            StageOp::Tasks { op, .. } => Some(op.clone()),
            StageOp::Threads { .. } => None,
        };
        self.chain.stages.iter().map(op).collect()
    }

    /// True if the only stateful op saves its state.
    fn saves(&self) -> bool {
        let stateful = self.chain.stages.iter().filter_map(|stage| match stage.work.op()? {
            StageOp::Threads { factory, stateful: true, .. } => Some(factory),
            StageOp::Threads { .. } | StageOp::Tasks { .. } => None,
        });
        matches!(stateful.collect::<Vec<_>>()[..], [one] if one.saves())
    }

    pub(crate) fn shape(&self) -> ChainShape {
        ChainShape {
            nodes: self.chain.map(|position, op| op.rule(position, self.threads)),
            source_on_error: self.source_on_error,
            parts: self.source.parts(),
            buffer_bytes: self.buffer_bytes,
            known: self.known.clone(),
            kept: self.saves().then(|| self.kept.clone()),
            hands_out_later: self.consumer.as_ref().is_none_or(|consumer| consumer.completed().is_some()),
            max_failures: self.max_failures,
            all_may_fail_before: self.all_may_fail_before,
            measured: self.measured,
        }
    }
}

impl<Op> Chain<Op> {
    /// Same nodes with other ops, made from the positions of the stages and their ops.
    pub(crate) fn map<Other>(&self, other: impl Fn(usize, &Op) -> Other) -> Chain<Other> {
        let stage = |(position, stage): (usize, &StageNode<Op>)| StageNode {
            node: stage.node.clone(),
            kind: stage.kind,
            on_error: stage.on_error,
            max_failures: stage.max_failures,
            keeps_size: stage.keeps_size,
            work: stage.work.map(|op| other(position, op)),
        };
        Chain {
            source: self.source.clone(),
            stages: self.stages.iter().enumerate().map(stage).collect(),
            routes: self.routes.clone(),
            sink: self.sink.clone(),
        }
    }
}

impl StageOp {
    fn rule(&self, position: usize, threads: usize) -> PipeRule {
        let (concurrency, order, runs_on) = match self {
            Self::Tasks { concurrency, order, .. } => (concurrency, order, RunsOn::Tasks),
            Self::Threads { concurrency, order, stateful, .. } => {
                (concurrency, order, RunsOn::thread(*stateful, position, threads))
            }
        };
        PipeRule { concurrency: concurrency.get() as usize, order: *order, runs_on }
    }
}
