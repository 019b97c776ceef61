use std::collections::BTreeMap;

use super::rules::{Batching, Fails, Rules, Work, Written, only_behind_route};
use super::settings::{Settings, tasked_stage};
use crate::defaults::is_default;
use crate::fault::Pointer;
use crate::plan::{Faults, Fields, Flow, Unit};
use crate::policy::{Mismatch, OnError, Ragged};
use crate::spec::Name;

tasked_stage! {
    /// Stacks every field over the samples of a batch.
    Collate {
        /// Handling of tensors that differ in shape within a batch.
        // A run that completes with `fail` makes the same batches as with `skip`, the behaviour of earlier versions.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(extend("default" = Ragged::default()))]
        ragged: Ragged,
        /// Shapes of tensor fields, e.g. `{"image": [3, 224, 224]}`, with `"ragged": "skip"`: samples of other shapes fail. Without
        /// it, the most frequent shape of each batch decides.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        shape: BTreeMap<String, Vec<u32>>,
        /// Handling of samples whose fields differ from those of the data set in presence or type.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(extend("default" = Mismatch::default()))]
        mismatch: Mismatch,
    }
}

/// Settings of `collate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CollatePlan {
    /// Handling of tensors that differ in shape.
    pub ragged: Ragged,
    /// Shapes of tensor fields, by field; samples of other shapes fail with [`Ragged::Skip`].
    pub shapes: BTreeMap<String, Vec<u32>>,
    /// Handling of samples whose fields differ from those of the data set.
    pub mismatch: Mismatch,
}

impl Collate {
    pub(super) fn plan(&self, faults: &mut Faults<'_>, place: &Pointer) -> CollatePlan {
        if !self.shape.is_empty() && self.ragged != Ragged::Skip {
            let hint = "set `ragged` to `skip`, or remove `shape`";
            faults.fault(place.key("shape"), "only `\"ragged\": \"skip\"` has shapes", hint);
        }
        CollatePlan { ragged: self.ragged, shapes: self.shape.clone(), mismatch: self.mismatch }
    }
}

impl Written for Collate {
    fn settings(&self) -> Settings<'_> {
        self.all_settings()
    }

    fn fails(&self) -> Fails {
        Fails::OfABatch
    }

    fn prepare_for_replay(&mut self, on_error: OnError, _store: Option<&Name>) {
        self.fail_by(on_error);
        // The dead letters are not in the batches of the run, so that samples may meet that differ. Nothing is delivered.
        self.mismatch = Mismatch::Skip;
        if self.ragged == Ragged::Fail {
            self.ragged = Ragged::Skip;
        }
    }

    fn batching(&self) -> Batching {
        Batching::Converts
    }

    fn fields(&self, _faults: &mut Faults<'_>, _place: &Pointer, before: Fields) -> Fields {
        // Padding adds a field of shapes for each tensor field, and the plan does not know which fields are tensors.
        if self.ragged == Ragged::Pad { before.with_unknown() } else { before }
    }
}

impl Rules for CollatePlan {
    fn work(&self) -> Work {
        Work::Computing
    }

    fn takes(&self) -> &'static [Unit] {
        &[Unit::Batches]
    }

    fn gives(&self, before: Flow) -> (Flow, bool) {
        (Flow { unit: Unit::Collated, ..before }, true)
    }

    fn in_words(&self) -> String {
        let differ = match self.ragged {
            Ragged::Fail => "different shapes fail the run",
            Ragged::Pad => "pads different shapes with zeros",
            Ragged::List => "gives tensors as lists",
            Ragged::Skip => "skips samples of other shapes",
        };
        format!("stacks each field over the samples of a batch, {differ}")
    }

    fn keeps_size(&self) -> bool {
        self.ragged != Ragged::Pad
    }

    fn misfit_in_route(&self, _keeps_order: bool) -> Option<(String, &'static str)> {
        Some(only_behind_route("`collate` is for batches"))
    }
}
