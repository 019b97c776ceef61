//! Labels that sources have found, for the snapshots of a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_types::run::LabelsRecord;

/// Labels that the sources of a pipeline have found, by their names. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabelsFound(Arc<Mutex<BTreeMap<String, LabelsRecord>>>);

impl LabelsFound {
    pub(crate) fn add(&self, source: String, labels: LabelsRecord) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(source, labels);
    }

    pub(crate) fn record(&self) -> BTreeMap<String, LabelsRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
