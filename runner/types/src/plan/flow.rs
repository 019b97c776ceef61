//! Units and amounts of the items that pass between two stages.

use super::{Plan, RoutePlan, StageKind, StagePlan};
use crate::manifest::Mode;
use crate::policy::OnError;
use crate::spec::Source;
use crate::traversal::Uneven;

/// Items that pass through a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Unit of the items.
    pub unit: Unit,
    /// Number of samples in a full item.
    pub samples: u64,
    /// Samples and items of one epoch when no sample fails, is dropped or fans out; `None` when they are not known.
    pub epoch: Option<Epoch>,
}

/// Unit of the items in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Single samples, not collected into batches.
    Samples,
    /// Batches of samples whose fields are not stacked.
    Batches,
    /// Batches whose fields are stacked.
    Collated,
}

/// Number of samples and items in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Number of samples in the epoch.
    pub samples: u64,
    /// Number of items that contain these samples.
    pub items: u64,
}

impl Unit {
    /// Plural name of the unit for messages and figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Batches => "batches",
            Self::Collated => "collated batches",
        }
    }
}

impl Flow {
    /// Flow behind a source that produces `samples` samples in one epoch; `None` means that the number is unknown.
    pub fn of_source(samples: Option<u64>) -> Self {
        let epoch = samples.map(|samples| Epoch { samples, items: samples });
        Self { unit: Unit::Samples, samples: 1, epoch }
    }

    /// Flow behind a stage of this kind that takes these items.
    #[must_use]
    pub fn after(self, kind: &StageKind) -> Self {
        match kind {
            StageKind::Aggregate { size, drop_last } => {
                let size = *size as u64;
                let epoch = self.epoch.map(|Epoch { samples, .. }| match drop_last {
                    true => Epoch { samples: samples / size * size, items: samples / size },
                    false => Epoch { samples, items: samples.div_ceil(size) },
                });
                Self { unit: Unit::Batches, samples: size, epoch }
            }
            StageKind::Disaggregate => Self::of_source(self.epoch.map(|epoch| epoch.samples)),
            StageKind::Collate(_) => Self { unit: Unit::Collated, ..self },
            StageKind::Wasm(wasm) => match wasm.mode {
                Mode::Sample => Self { unit: Unit::Samples, ..self },
                Mode::Batch => Self { unit: Unit::Batches, ..self },
                // The module itself decides how many samples it returns.
                Mode::Stateful => Self { unit: Unit::Samples, epoch: None, ..self },
            },
            // The number of samples with this value is not known.
            StageKind::Path(_) => Self { epoch: None, ..self },
            StageKind::Route(_)
            | StageKind::Fetch { .. }
            | StageKind::Transfer { .. }
            | StageKind::Sleep(_) => self,
        }
    }

    /// Flow behind a route whose paths take these items.
    #[must_use]
    pub(super) fn behind(self, route: &RoutePlan) -> Self {
        Self { epoch: self.epoch.filter(|_| route.is_counted), ..self }
    }
}

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
        let is_counted = matches!(self.source.spec, Source::List(_) | Source::Index(_) | Source::Range(_));
        let keeps_all = |stage: &StagePlan| match &stage.kind {
            StageKind::Aggregate { .. } | StageKind::Disaggregate => true,
            StageKind::Sleep(sleep) if sleep.fail_rate == 0.0 => true,
            StageKind::Sleep(_)
            | StageKind::Fetch { .. }
            | StageKind::Collate(_)
            | StageKind::Transfer { .. } => stage.on_error == OnError::Fail,
            StageKind::Wasm(_) | StageKind::Path(_) | StageKind::Route(_) => false,
        };
        traversal.epochs.is_none() || is_cut && is_counted && self.stages.iter().all(keeps_all)
    }

    /// Items behind each stage, if the source produces these items.
    pub(super) fn flows(&self, source: Flow) -> Vec<Flow> {
        let (mut flow, mut before_routes) = (source, Vec::new());
        let after = |stage: &StagePlan| {
            flow = match &stage.kind {
                StageKind::Route(route) => before_routes.pop().unwrap_or(flow).behind(route),
                StageKind::Path(path) => {
                    if path.index == 0 {
                        before_routes.push(flow);
                    }
                    before_routes.last().copied().unwrap_or(flow).after(&stage.kind)
                }
                kind => flow.after(kind),
            };
            flow
        };
        self.stages.iter().map(after).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::CollatePlan;

    fn aggregate(size: usize, drop_last: bool) -> StageKind {
        StageKind::Aggregate { size, drop_last }
    }

    proptest! {
        #[test]
        fn item_counts_match_a_count_one_by_one(samples in 0_u64..200, size in 1_usize..20, again in 1_usize..20, drop_last: bool) {
            let batches = Flow::of_source(Some(samples)).after(&aggregate(size, drop_last));
            let counted: Vec<u64> = (0..samples)
                .collect::<Vec<_>>()
                .chunks(size)
                .map(|batch| batch.len() as u64)
                .filter(|len| !drop_last || *len == size as u64)
                .collect();
            let epoch = Epoch { samples: counted.iter().sum(), items: counted.len() as u64 };
            prop_assert_eq!(batches, Flow { unit: Unit::Batches, samples: size as u64, epoch: Some(epoch) });
            let single = batches.after(&StageKind::Disaggregate);
            prop_assert_eq!(single, Flow::of_source(Some(epoch.samples)));
            let last = single.after(&aggregate(again, false)).after(&StageKind::Collate(CollatePlan::default()));
            prop_assert_eq!((last.unit, last.samples), (Unit::Collated, again as u64));
            prop_assert_eq!(last.epoch.map(|epoch| epoch.items), Some(epoch.samples.div_ceil(again as u64)));
        }
    }

    #[test]
    fn an_unknown_number_of_samples_stays_unknown() {
        let flow = Flow::of_source(None).after(&aggregate(4, false)).after(&StageKind::Disaggregate);
        assert_eq!(flow.epoch, None);
    }
}
