use penstock_types::policy::{FailureLimit, OnError, Order};
use penstock_types::resume::Kept;

use super::work::RunsOn;
use crate::parts::SourceParts;
use crate::route::Route;

/// Description from which a schedule is built.
#[derive(Debug)]
pub(crate) struct ChainShape {
    pub(crate) source: NodeShape,
    /// Handling of samples that the source finds damaged.
    pub(crate) source_on_error: OnError,
    /// Sources of a mixture.
    pub(crate) parts: SourceParts,
    pub(crate) stages: Vec<StageShape>,
    /// Routes by number.
    pub(crate) routes: Vec<Route>,
    pub(crate) sink: NodeShape,
    pub(crate) buffer_bytes: u64,
    /// Samples that earlier runs have settled: by epoch, number of the visit in the epoch, and hashes of fan-outs.
    pub(crate) known: Vec<(u32, u64, Vec<u64>)>,
    /// What the only stateful op has kept in earlier runs; `None` if it does not save its state.
    pub(crate) kept: Option<Kept>,
    /// Set if a delivered item is handed out only when [`Schedule::hand_out`] says so.
    ///
    /// [`Schedule::hand_out`]: super::Schedule::hand_out
    pub(crate) hands_out_later: bool,
    /// Limit of failed samples over all stages; a rate is relative to the number of samples made by the source and the fan-outs.
    pub(crate) max_failures: Option<FailureLimit>,
    /// Number of the first epoch that fails the run if all of its samples fail.
    pub(crate) all_may_fail_before: u32,
    pub(crate) measured: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeShape {
    pub(crate) id: String,
    pub(crate) queue_id: String,
    pub(crate) capacity: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct StageShape {
    pub(crate) node: NodeShape,
    pub(crate) on_error: OnError,
    pub(crate) max_failures: Option<FailureLimit>,
    /// Set if the stage's results take no more memory than their inputs.
    pub(crate) keeps_size: bool,
    pub(crate) rule: StageRule,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StageRule {
    Pipe {
        concurrency: usize,
        order: Order,
        runs_on: RunsOn,
    },
    Aggregate {
        size: usize,
        drop_last: bool,
    },
    Disaggregate,
    /// Entry of a path of the route with this number.
    Gate {
        route: usize,
    },
    /// Join of the route with this number.
    Join {
        route: usize,
    },
}

impl StageRule {
    pub(crate) fn concurrency(self) -> usize {
        match self {
            Self::Pipe { concurrency, .. } => concurrency,
            Self::Aggregate { .. } | Self::Disaggregate | Self::Gate { .. } | Self::Join { .. } => 1,
        }
    }
}
