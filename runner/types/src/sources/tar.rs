use std::collections::BTreeMap;

use super::rules::{SourceRules, Unnumbered};
use super::settings::{By, Place, source};
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::{Name, ObjectKey, Suffix};
use crate::text::shown;

source! {
    /// Produces one sample for each group of neighbouring files with one key in tar shards, as WebDataset writes them: a file
    /// `KEY.NAME` is the field `NAME` of the sample `KEY`.
    TarSource {
        /// Store that holds the shards.
        store: Name,
        /// Keys of the shards, e.g. `train-{000..127}.tar`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the shards, which end with `.tar`, `.tar.gz`, `.tgz` or `.tar.zst`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Key of an index in that store, made by `penstock index create --tar`; instead of `shards`. A shuffle needs an index.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
        /// Fields of the samples, each with the names of its file, e.g. `{"bytes": "jpg;jpeg"}`. When missing, each file is a field
        /// with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
    } + listed + missing + damaged + windowed "Number of shards whose samples a shuffle mixes at a time; all when missing."
}

impl SourceRules for TarSource {
    fn place(&self) -> Option<Place<'_>> {
        let prefix = self.prefix.as_deref().map(|prefix| By::Prefix(prefix, Suffix::of_tar()));
        let ways = [self.index.as_ref().map(By::Index), self.shards.as_ref().map(By::Shards), prefix];
        Some(Place::new(&self.store, ways))
    }

    fn unnumbered(&self) -> Option<Unnumbered> {
        self.index.is_none().then_some(Unnumbered { objects: "tar shards", option: "--tar" })
    }

    /// A sample may lack any of its files.
    fn fields(&self) -> Fields {
        Fields::chosen(self.fields.keys().map(Name::as_str))
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        self.check_shards(&["shards", "prefix", "index"], "shards", faults, place);
    }

    fn in_words(&self) -> String {
        let prefix = shown(self.prefix.as_deref().unwrap_or_default());
        let shards = match (&self.index, &self.shards) {
            (Some(index), _) => format!("the shards of the index `{index}`"),
            (None, Some(shards)) => format!("the shards `{shards}`"),
            (None, None) => format!("the tar shards that start with `{prefix}`"),
        };
        let order = self.order_in_words("shards");
        format!("one sample for each key in {shards} of the store `{}`{order}", self.store)
    }
}
