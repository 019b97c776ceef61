use std::collections::BTreeMap;

use super::form::{ColumnType, RecordForm};
use super::rules::{Records, SourceRules};
use super::settings::{By, Place, source};
use super::table;
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::{Name, ObjectKey, Suffix};

source! {
    /// Produces one sample for every line of NDJSON objects: `key`, and the other members of the line as fields.
    RecordsSource {
        /// Store that holds the objects.
        store: Name,
        /// Key of the object in the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ObjectKey>,
        /// Keys of several objects, e.g. `train-{000..127}.ndjson`; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of several objects, in the order of their bytes; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Suffix of the keys that start with `prefix`, or a list of them; `.ndjson` when missing, also with `.gz`
        /// or `.zst` behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suffix: Option<Suffix>,
        /// Member that is the key of the sample. When missing, `key` or else the number of the line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Types of members by name, e.g. `{"score": "float"}`. The types of other members are learnt from the first 10,000 lines or
        /// 8 MiB; with a shuffle, from all lines.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        types: BTreeMap<String, ColumnType>,
    } + listed + missing + damaged
}

impl SourceRules for RecordsSource {
    fn place(&self) -> Option<Place<'_>> {
        let prefix = table::by_prefix(self.prefix.as_deref(), self.suffix.as_ref(), ".ndjson");
        let keys = [self.key.as_ref().map(By::Key), self.shards.as_ref().map(By::Shards)];
        Some(Place::new(&self.store, keys.into_iter().chain([prefix])))
    }

    fn records(&self) -> Option<Records<'_>> {
        Some(Records { form: RecordForm::Lines, sample_key: self.sample_key.as_deref(), types: &self.types })
    }

    fn fields(&self) -> Fields {
        Fields::UNKNOWN
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        table::check(self, self.suffix.as_ref(), faults, place);
    }

    fn in_words(&self) -> String {
        table::in_words("line", self)
    }
}
