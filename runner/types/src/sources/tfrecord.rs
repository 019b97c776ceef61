use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{SourceRules, Unnumbered};
use super::settings::{By, Place, source};
use crate::fault::Pointer;
use crate::plan::{BYTES_FIELD, Faults, Fields};
use crate::spec::{Name, ObjectKey, Suffix};
use crate::text::shown;

source! {
    /// Produces one sample for each record in TFRecord files. Checksums are verified on every read.
    TfrecordSource {
        /// Store that holds the files.
        store: Name,
        /// Keys of the files, e.g. `train-{00000..01023}-of-01024`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the files, which have names such as `a.tfrecord` or `a.tfrecord-00000-of-00128`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Key of an index in that store, made by `penstock index create --tfrecord`; instead of `shards`. A shuffle needs an index.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
        /// Content of the records.
        #[serde(default)]
        decode: RecordDecoding,
        /// Fields of the samples, each with the name of its feature, e.g. `{"bytes": "image/encoded"}`. When missing, each feature is
        /// a field with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Features of bytes that are texts in UTF-8; the others are blobs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        texts: Vec<String>,
        /// Numeric features that have one value in each record.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        scalars: Vec<String>,
        /// Features whose values are lists, also of one or no element. A list of blobs becomes two fields: their bytes in sequence, and
        /// their places in `NAME.offsets`. A list of texts, which `texts` names, too, becomes a text in JSON. A feature of numbers that
        /// neither `scalars` nor `lists` names is one value if each record from which the types are learnt has exactly one, and
        /// otherwise a list.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lists: Vec<String>,
        /// Feature that is the key of the sample. When missing, the key is that of the file, `#`, and the number of the record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
    } + listed + missing + damaged + windowed "Number of files whose samples a shuffle mixes at a time; all when missing."
}

/// Content of the records in TFRecord files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecordDecoding {
    /// `tf.train.Example`: features become fields.
    #[default]
    Example,
    /// Bytes: a record becomes the field `bytes`.
    Bytes,
}

impl SourceRules for TfrecordSource {
    fn place(&self) -> Option<Place<'_>> {
        let prefix = self.prefix.as_deref().map(|prefix| By::Prefix(prefix, Suffix::default()));
        let ways = [self.index.as_ref().map(By::Index), self.shards.as_ref().map(By::Shards), prefix];
        Some(Place::new(&self.store, ways))
    }

    fn unnumbered(&self) -> Option<Unnumbered> {
        self.index.is_none().then_some(Unnumbered { objects: "TFRecord files", option: "--tfrecord" })
    }

    /// A record may lack any feature.
    fn fields(&self) -> Fields {
        match self.decode {
            RecordDecoding::Bytes => Fields::NONE.with(BYTES_FIELD),
            RecordDecoding::Example => Fields::chosen(self.fields.keys().map(Name::as_str)),
        }
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        self.check_shards(&["shards", "prefix", "index"], "files", faults, place);
        let of_examples = [
            ("fields", !self.fields.is_empty()),
            ("texts", !self.texts.is_empty()),
            ("scalars", !self.scalars.is_empty()),
            ("lists", !self.lists.is_empty()),
            ("sample_key", self.sample_key.is_some()),
        ];
        let is_bytes = self.decode == RecordDecoding::Bytes;
        for (name, _) in of_examples.iter().filter(|(_, is_set)| *is_set && is_bytes) {
            let hint = format!("remove `{name}`, or set `decode` to `example`");
            faults.fault(place.key(name), "records that are read as bytes have no features", hint);
        }
        let ways = [("texts", &self.texts), ("scalars", &self.scalars), ("lists", &self.lists)];
        for (number, (way, names)) in ways.iter().enumerate() {
            for (at, name) in names.iter().enumerate() {
                // A feature may be in both of these: its values are then lists of texts.
                let is_other = |other: &str| (other, *way) != ("texts", "lists");
                let mut others = ways[..number].iter().filter(|(other, _)| is_other(other));
                if let Some((other, _)) = others.find(|(_, names)| names.contains(name)) {
                    let name = shown(name);
                    let found = format!("`{other}` names the feature `{name}`, too");
                    faults.fault(place.key(way).index(at), found, "remove one of them");
                }
            }
        }
    }

    fn in_words(&self) -> String {
        let prefix = shown(self.prefix.as_deref().unwrap_or_default());
        let files = match (&self.index, &self.shards) {
            (Some(index), _) => format!("the files of the index `{index}`"),
            (None, Some(shards)) => format!("the files `{}`", shown(shards.as_str())),
            (None, None) => format!("the TFRecord files that start with `{prefix}`"),
        };
        let order = self.order_in_words("files");
        format!("one sample for each record in {files} of the store `{}`{order}", self.store)
    }
}
