use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Batching, Fails, Moving, Rules, Work, Written, only_behind_route};
use super::settings::Settings;
use crate::plan::{Flow, Unit};
use crate::policy::OnError;
use crate::spec::{Capacity, Name};

/// Splits batches into samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disaggregate {
    /// Name of the stage in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Maximum number of items in the queue after the stage.
    #[serde(default)]
    pub queue: Capacity,
}

/// Rules of `disaggregate`, which has no settings of its own.
#[derive(Debug)]
pub(super) struct DisaggregatePlan;

impl Written for Disaggregate {
    fn settings(&self) -> Settings<'_> {
        Settings::of_moving(self.name.as_ref(), self.queue)
    }

    fn fails(&self) -> Fails {
        Fails::Nothing
    }

    // No sample fails in it.
    fn prepare_for_replay(&mut self, _on_error: OnError, _store: Option<&Name>) {}

    fn batching(&self) -> Batching {
        Batching::Ends
    }
}

impl Rules for DisaggregatePlan {
    fn work(&self) -> Work {
        Work::Moving
    }

    fn moving(&self) -> Option<Moving> {
        Some(Moving::Disaggregate)
    }

    fn takes(&self) -> &'static [Unit] {
        &[Unit::Batches]
    }

    fn gives(&self, before: Flow) -> (Flow, bool) {
        (Flow::of_source(before.epoch.map(|epoch| epoch.samples)), true)
    }

    fn in_words(&self) -> String {
        "splits batches into samples".to_owned()
    }

    fn misfit_in_route(&self, _keeps_order: bool) -> Option<(String, &'static str)> {
        Some(only_behind_route("`disaggregate` is for batches"))
    }
}
