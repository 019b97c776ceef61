use std::collections::BTreeMap;

use super::rules::SourceRules;
use super::settings::{By, Place, source};
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::{Name, Suffix};
use crate::text::shown;

source! {
    /// Produces one sample for each sample in the shards of MosaicML Streaming that an `index.json` describes.
    MdsSource {
        /// Store that holds the shards.
        store: Name,
        /// Folder of the `index.json` in the store; the whole store when empty.
        #[serde(default)]
        prefix: String,
        /// Fields of the samples, each with the name of its column, e.g. `{"bytes": "image"}`. When missing, each column is a field
        /// with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Column that is the key of the sample. When missing, the key is that of the shard, `#`, and the number of the sample there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
    } + missing + damaged + windowed "Number of shards whose samples a shuffle mixes at a time; all when missing."
}

impl SourceRules for MdsSource {
    fn place(&self) -> Option<Place<'_>> {
        Some(Place::new(&self.store, [Some(By::Prefix(&self.prefix, Suffix::default()))]))
    }

    fn fields(&self) -> Fields {
        if self.fields.is_empty() {
            return Fields::UNKNOWN;
        }
        self.fields.keys().fold(Fields::NONE, |fields, name| fields.with(name.as_str()))
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        self.check_shards(&["prefix"], "shards", faults, place);
    }

    fn in_words(&self) -> String {
        let folder = match self.prefix.as_str() {
            "" => String::new(),
            prefix => format!(" below `{}`", shown(prefix)),
        };
        let order = self.order_in_words("shards");
        format!("the samples of the MDS shards{folder} in the store `{}`{order}", self.store)
    }
}
