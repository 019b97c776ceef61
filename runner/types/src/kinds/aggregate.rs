use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Batching, Fails, Moving, Rules, Work, Written, only_behind_route};
use super::settings::Settings;
use crate::amount::plural;
use crate::plan::{Epoch, Flow, Unit};
use crate::policy::OnError;
use crate::spec::{BatchSize, Capacity, Name};

/// Collects samples into batches; a batch never contains samples of two epochs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// Number of samples in a batch.
    pub size: BatchSize,
    /// Discards the last batch of an epoch when it is not full.
    #[serde(default)]
    pub drop_last: bool,
    /// Name of the stage in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Maximum number of items in the queue after the stage.
    #[serde(default)]
    pub queue: Capacity,
}

/// Size of the batches of `aggregate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregatePlan {
    /// Number of samples in a batch.
    pub size: usize,
    /// Discards an epoch's last batch when it is not full.
    pub drop_last: bool,
}

impl Aggregate {
    pub(super) fn plan(&self) -> AggregatePlan {
        AggregatePlan { size: self.size.get() as usize, drop_last: self.drop_last }
    }
}

impl Written for Aggregate {
    fn settings(&self) -> Settings<'_> {
        Settings::of_moving(self.name.as_ref(), self.queue)
    }

    fn fails(&self) -> Fails {
        Fails::Nothing
    }

    fn prepare_for_replay(&mut self, _on_error: OnError, _store: Option<&Name>) {
        // The last dead letters are replayed even if they do not fill a batch.
        self.drop_last = false;
    }

    fn batching(&self) -> Batching {
        Batching::Begins
    }
}

impl Rules for AggregatePlan {
    fn work(&self) -> Work {
        Work::Moving
    }

    fn moving(&self) -> Option<Moving> {
        Some(Moving::Aggregate(*self))
    }

    fn gives(&self, before: Flow) -> (Flow, bool) {
        let size = self.size as u64;
        let epoch = before.epoch.map(|Epoch { samples, .. }| match self.drop_last {
            true => Epoch { samples: samples / size * size, items: samples / size },
            false => Epoch { samples, items: samples.div_ceil(size) },
        });
        (Flow { unit: Unit::Batches, samples: size, epoch }, true)
    }

    fn in_words(&self) -> String {
        let last = if self.drop_last { ", drops an epoch's last batch if it is not full" } else { "" };
        format!("collects {} into a batch{last}", plural(self.size as u64, "sample"))
    }

    fn misfit_in_route(&self, _keeps_order: bool) -> Option<(String, &'static str)> {
        Some(only_behind_route("`aggregate` is for batches"))
    }
}
