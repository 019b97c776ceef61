use penstock_types::policy::{FailureLimit, OnError, Order};
use penstock_types::resume::Kept;

use super::work::RunsOn;
use crate::parts::SourceParts;
use crate::route::Route;
use crate::stage_work::StageWork;

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

/// What a schedule does with the items of a stage.
pub(crate) type StageRule = StageWork<PipeRule>;

/// Rules by which an op is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PipeRule {
    pub(crate) concurrency: usize,
    pub(crate) order: Order,
    pub(crate) runs_on: RunsOn,
}

impl StageRule {
    pub(crate) fn concurrency(&self) -> usize {
        self.op().map_or(1, |pipe| pipe.concurrency)
    }
}
