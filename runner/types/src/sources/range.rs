use super::rules::SourceRules;
use super::settings::source;
use crate::amount::plural;
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};

source! {
    /// Produces samples numbered from 0, without fields.
    RangeSource {
        /// Number of samples in one epoch.
        count: u64,
    }
}

impl SourceRules for RangeSource {
    fn count(&self) -> Option<u64> {
        Some(self.count)
    }

    fn is_counted(&self) -> bool {
        true
    }

    fn fields(&self) -> Fields {
        Fields::NONE
    }

    fn check(&self, _faults: &mut Faults<'_>, _place: &Pointer) {}

    fn in_words(&self) -> String {
        format!("{}, numbered from 0", plural(self.count, "sample"))
    }
}
