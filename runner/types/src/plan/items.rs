//! Items that pass through the queues of a plan.

use super::flow::Flow;
use super::{Plan, StagePlan};
use crate::kinds::{Fails, StageKind};
use crate::policy::OnError;
use crate::traversal::Uneven;

impl Plan {
    /// Items that reach the sink.
    pub fn flow(&self) -> Flow {
        self.stages.last().map_or(self.source.flow, |stage| stage.flow)
    }

    /// Items that reach the stage at `index`.
    pub fn flow_into(&self, index: usize) -> Flow {
        index.checked_sub(1).map_or(self.source.flow, |before| self.stages[before].flow)
    }

    /// Items that reach the sink in one epoch of a source that produces `samples`; `None` when their number is not known.
    pub fn items_of(&self, samples: u64) -> Option<u64> {
        let source = Flow::of_source(Some(samples));
        let flow = self.flows(source).pop().unwrap_or(source);
        flow.epoch.map(|epoch| epoch.items)
    }

    /// True if ranks get equally many items whatever their samples contain: no sample fails without failing the run, is left out, or becomes
    /// several.
    pub fn is_even(&self) -> bool {
        let traversal = &self.source.traversal;
        let is_cut = traversal.shard.is_none_or(|shard| shard.uneven == Uneven::Drop);
        let is_counted = self.source.spec.rules().is_counted();
        let keeps_all = |stage: &StagePlan| {
            stage.kind.rules().keeps_count()
                && (stage.fails == Fails::Nothing || stage.on_error == OnError::Fail)
        };
        traversal.epochs.is_none() || is_cut && is_counted && self.stages.iter().all(keeps_all)
    }

    /// Items behind each stage, if the source produces these items.
    pub(super) fn flows(&self, source: Flow) -> Vec<Flow> {
        let (mut flow, mut before_routes) = (source, Vec::new());
        let after = |stage: &StagePlan| {
            let before = match &stage.kind {
                StageKind::Route(_) => before_routes.pop().unwrap_or(flow),
                StageKind::Path(path) => {
                    if path.index == 0 {
                        before_routes.push(flow);
                    }
                    before_routes.last().copied().unwrap_or(flow)
                }
                _ => flow,
            };
            (flow, _) = stage.kind.rules().gives(before);
            flow
        };
        self.stages.iter().map(after).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{AggregatePlan, CollatePlan, Epoch, Unit};

    fn aggregate(size: usize, drop_last: bool) -> StageKind {
        StageKind::Aggregate(AggregatePlan { size, drop_last })
    }

    fn after(flow: Flow, kind: &StageKind) -> Flow {
        kind.rules().gives(flow).0
    }

    proptest! {
        #[test]
        fn item_counts_match_a_count_one_by_one(samples in 0_u64..200, size in 1_usize..20, again in 1_usize..20, drop_last: bool) {
            let batches = after(Flow::of_source(Some(samples)), &aggregate(size, drop_last));
            let counted: Vec<u64> = (0..samples)
                .collect::<Vec<_>>()
                .chunks(size)
                .map(|batch| batch.len() as u64)
                .filter(|len| !drop_last || *len == size as u64)
                .collect();
            let epoch = Epoch { samples: counted.iter().sum(), items: counted.len() as u64 };
            prop_assert_eq!(batches, Flow { unit: Unit::Batches, samples: size as u64, epoch: Some(epoch) });
            let single = after(batches, &StageKind::Disaggregate);
            prop_assert_eq!(single, Flow::of_source(Some(epoch.samples)));
            let last = after(after(single, &aggregate(again, false)), &StageKind::Collate(CollatePlan::default()));
            prop_assert_eq!((last.unit, last.samples), (Unit::Collated, again as u64));
            prop_assert_eq!(last.epoch.map(|epoch| epoch.items), Some(epoch.samples.div_ceil(again as u64)));
        }
    }

    #[test]
    fn an_unknown_number_of_samples_stays_unknown() {
        let flow = after(after(Flow::of_source(None), &aggregate(4, false)), &StageKind::Disaggregate);
        assert_eq!(flow.epoch, None);
    }
}
