use penstock_types::policy::{FailureLimit, OnError, Order};
use penstock_types::resume::Kept;

use super::work::RunsOn;
use crate::graph::Chain;
use crate::parts::SourceParts;

/// Description from which a schedule is built.
#[derive(Debug)]
pub(crate) struct ChainShape {
    pub(crate) nodes: Chain<PipeRule>,
    /// Handling of samples that the source finds damaged.
    pub(crate) source_on_error: OnError,
    pub(crate) parts: SourceParts,
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct PipeRule {
    pub(crate) concurrency: usize,
    pub(crate) order: Order,
    pub(crate) runs_on: RunsOn,
}
