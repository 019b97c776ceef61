//! What the sources of a run have found beside their samples, for its snapshots and states.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use penstock_engine::lock::locked;
use penstock_engine::notes::Notes;
use penstock_types::data_set::DataFields;
use penstock_types::left_out::LeftOut;
use penstock_types::run::LabelsRecord;

/// Labels and notes of the sources of a pipeline, by their names. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found(Arc<Mutex<Sources>>);

#[derive(Debug, Default)]
struct Sources {
    labels: BTreeMap<String, LabelsRecord>,
    /// Notes of the source, and of the sources that it mixes.
    notes: BTreeMap<String, Notes>,
}

impl Found {
    pub(crate) fn add_labels(&self, source: String, labels: LabelsRecord) {
        locked(&self.0).labels.insert(source, labels);
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, LabelsRecord> {
        locked(&self.0).labels.clone()
    }

    pub(crate) fn notes(&self, source: &str) -> Notes {
        locked(&self.0).notes.entry(source.to_owned()).or_default().clone()
    }

    pub(crate) fn left_out(&self) -> BTreeMap<String, Vec<LeftOut>> {
        let left_out = self.each().into_iter().map(|(name, notes)| (name, notes.left_out()));
        left_out.filter(|(_, left_out)| !left_out.is_empty()).collect()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.each().into_iter().flat_map(|(name, notes)| notes.warnings(&name)).collect()
    }

    /// Fields that were learnt from some of the samples, by source.
    pub(crate) fn learnt(&self) -> BTreeMap<String, DataFields> {
        let learnt =
            self.each().into_iter().filter_map(|(name, notes)| Some((name, (*notes.learnt()?).clone())));
        learnt.filter(|(_, fields)| fields.learnt_from.is_some()).collect()
    }

    fn each(&self) -> Vec<(String, Notes)> {
        locked(&self.0).notes.iter().map(|(name, notes)| (name.clone(), notes.clone())).collect()
    }
}
