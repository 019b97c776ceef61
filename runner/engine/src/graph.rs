//! A pipeline ready to run: names, limits and ops, without a thread yet.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use penstock_types::policy::{Capacity, Concurrency, FailureLimit, OnError, Order, StageKindName};

use crate::ports::{Consumer, Source, TaskOp, ThreadOpFactory};
use crate::schedule::{Does, NodeShape, RunsOn, Shape, StageShape};
use crate::worker::Factories;

/// A pipeline ready to run.
pub struct Graph {
    /// The pipeline's name; threads carry it.
    pub name: String,
    /// Makes the samples.
    pub source: Box<dyn Source>,
    /// The source's name and its queue.
    pub source_node: Node,
    /// Stages between source and sink, first to last.
    pub stages: Vec<StageNode>,
    /// The sink's name and its queue.
    pub sink_node: Node,
    /// Drains the sink queue on a thread of its own; `None` leaves that to whoever calls [`RunHandle::take`].
    ///
    /// [`RunHandle::take`]: crate::running::RunHandle::take
    pub consumer: Option<Box<dyn Consumer>>,
    /// Worker threads; none are started when no stage needs them.
    pub threads: usize,
    /// Stack of each worker thread, in bytes.
    pub stack_bytes: usize,
    /// Bytes that all queues together may hold.
    pub buffer_bytes: u64,
    /// How many failed samples end the run, counted over all stages; a rate is taken of the samples the source made.
    pub max_failures: Option<FailureLimit>,
    /// Length of a measuring interval.
    pub interval: Duration,
    /// Whether stages and queues are measured; off only to learn what measuring costs.
    pub measured: bool,
}

/// A node of the chain and the queue at its exit.
#[derive(Clone, Debug)]
pub struct Node {
    /// Position and name, e.g. `2:download`.
    pub id: String,
    /// Its name alone.
    pub name: String,
    /// How people see it, e.g. `[2:download[12]]`.
    pub label: String,
    /// Its queue's id, e.g. `2:download_queue`.
    pub queue_id: String,
    /// How people see its queue.
    pub queue_label: String,
    /// How many items the queue may hold.
    pub capacity: Capacity,
}

/// One stage between source and sink.
#[derive(Debug)]
pub struct StageNode {
    /// Its names and its queue.
    pub node: Node,
    /// Its kind.
    pub kind: StageKindName,
    /// What becomes of samples that fail here.
    pub on_error: OnError,
    /// How many of them end the run.
    pub max_failures: Option<FailureLimit>,
    /// What it does with items.
    pub work: StageWork,
}

/// What a stage does with items.
pub enum StageWork {
    /// Calls an op that waits.
    Tasks {
        /// The op, shared by all tasks.
        op: Arc<dyn TaskOp>,
        /// How many tasks may be alive.
        concurrency: Concurrency,
        /// In which order results are passed on.
        order: Order,
    },
    /// Calls an op that computes.
    Threads {
        /// Builds an op on each worker thread.
        factory: Arc<dyn ThreadOpFactory>,
        /// How many tasks may be alive.
        concurrency: Concurrency,
        /// In which order results are passed on.
        order: Order,
        /// Whether the op keeps samples from call to call, so that there may be only one of it.
        stateful: bool,
    },
    /// Collects samples into batches.
    Aggregate {
        /// Samples in a batch, never 0.
        size: usize,
        /// Whether an epoch's last batch is thrown away if it is incomplete.
        drop_last: bool,
    },
    /// Takes batches apart.
    Disaggregate,
}

impl Graph {
    /// Whether any stage needs worker threads.
    pub(crate) fn needs_workers(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage.work, StageWork::Threads { .. }))
    }

    /// The factories of ops that compute, by stage.
    pub(crate) fn factories(&self) -> Factories {
        let factory = |stage: &StageNode| match &stage.work {
            StageWork::Threads { factory, .. } => Some(factory.clone()),
            _ => None,
        };
        self.stages.iter().map(factory).collect()
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            source: self.source_node.shape(),
            stages: self
                .stages
                .iter()
                .enumerate()
                .map(|(position, stage)| self.stage_shape(position, stage))
                .collect(),
            sink: self.sink_node.shape(),
            buffer_bytes: self.buffer_bytes,
            max_failures: self.max_failures,
            measured: self.measured,
        }
    }

    fn stage_shape(&self, position: usize, stage: &StageNode) -> StageShape {
        let does = match &stage.work {
            StageWork::Tasks { concurrency, order, .. } => {
                Does::Pipe { concurrency: concurrency.get(), order: *order, runs_on: RunsOn::Tasks }
            }
            StageWork::Threads { concurrency, order, stateful, .. } => Does::Pipe {
                concurrency: concurrency.get(),
                order: *order,
                // Stateful stages are spread over the workers.
                runs_on: if *stateful {
                    RunsOn::OneThread(position % self.threads)
                } else {
                    RunsOn::AnyThread
                },
            },
            StageWork::Aggregate { size, drop_last } => {
                Does::Aggregate { size: *size, drop_last: *drop_last }
            }
            StageWork::Disaggregate => Does::Disaggregate,
        };
        StageShape {
            node: stage.node.shape(),
            on_error: stage.on_error,
            max_failures: stage.max_failures,
            does,
        }
    }
}

impl StageWork {
    /// How many tasks may be alive; aggregate and disaggregate have one.
    pub(crate) fn concurrency(&self) -> Concurrency {
        match self {
            Self::Tasks { concurrency, .. } | Self::Threads { concurrency, .. } => *concurrency,
            Self::Aggregate { .. } | Self::Disaggregate => Concurrency::ONE,
        }
    }
}

impl Node {
    fn shape(&self) -> NodeShape {
        NodeShape { id: self.id.clone(), queue_id: self.queue_id.clone(), capacity: self.capacity.get() }
    }
}

impl fmt::Debug for StageWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tasks { .. } => "Tasks",
            Self::Threads { .. } => "Threads",
            Self::Aggregate { .. } => "Aggregate",
            Self::Disaggregate => "Disaggregate",
        })
    }
}
