//! The kinds of sources. Each kind is a file, which holds its settings, rules and words.

mod form;
mod index;
mod labels;
mod list;
mod mds;
mod mix;
mod parquet;
mod part;
mod range;
mod records;
mod rules;
mod settings;
mod table;
mod tar;
mod tfrecord;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

pub use self::form::{ColumnType, RecordForm};
pub use self::index::IndexSource;
pub use self::labels::{KeyPart, LabelTable, Missing};
pub use self::list::{LabelOrigin, ListSource};
pub use self::mds::MdsSource;
pub use self::mix::MixSource;
pub use self::parquet::{ComparedValue, Comparison, Operator, ParquetSource};
pub use self::part::MixPart;
pub use self::range::RangeSource;
pub use self::records::RecordsSource;
pub use self::rules::{Records, SourceRules, Unnumbered};
pub use self::settings::{By, Place, Shared, SourceSettings};
pub use self::table::{Table, TableSource};
pub use self::tar::TarSource;
pub use self::tfrecord::{RecordDecoding, TfrecordSource};
use crate::fault::Pointer;
use crate::plan::Faults;
use crate::spec::{ModuleRef, Name, Suffix, SuffixOf, WhenMissing};
use crate::traversal::TraversalSettings;

/// Source of the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    /// Reads the keys of a store.
    List(ListSource),
    /// Reads the keys of an index file.
    Index(IndexSource),
    /// Counts numbers from 0.
    Range(RangeSource),
    /// Reads the lines of NDJSON objects.
    Records(RecordsSource),
    /// Reads the rows of tables whose values are separated by commas.
    Csv(#[schemars(with = "TableSource")] Table<b','>),
    /// Reads the rows of tables whose values are separated by tabs.
    Tsv(#[schemars(with = "TableSource")] Table<b'\t'>),
    /// Reads the samples in tar shards.
    Tar(TarSource),
    /// Reads the rows of Parquet files.
    Parquet(ParquetSource),
    /// Reads the records in TFRecord files.
    Tfrecord(TfrecordSource),
    /// Reads the samples in shards of MosaicML Streaming.
    Mds(MdsSource),
    /// Mixes the samples of several sources.
    Mix(MixSource),
}

impl Source {
    /// Kind of the source, as written in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Settings of the traversal for this `seed`.
    pub fn traversal(&self, seed: u64) -> TraversalSettings {
        self.rules().settings().traversal(seed)
    }

    /// Rules of the kind, with these settings.
    pub fn rules(&self) -> &dyn SourceRules {
        match self {
            Self::List(source) => source,
            Self::Index(source) => source,
            Self::Range(source) => source,
            Self::Records(source) => source,
            Self::Csv(source) => source,
            Self::Tsv(source) => source,
            Self::Tar(source) => source,
            Self::Parquet(source) => source,
            Self::Tfrecord(source) => source,
            Self::Mds(source) => source,
            Self::Mix(source) => source,
        }
    }

    /// This source, or those that it mixes.
    pub fn parts(&self) -> Vec<&Self> {
        match self.rules().parts() {
            Some(parts) => parts.values().map(|part| &part.source).collect(),
            None => vec![self],
        }
    }

    /// Module whose files it lists, if it lists those of a module.
    pub(crate) fn lists_files_of(&self) -> Option<&ModuleRef> {
        match self {
            Self::List(ListSource { suffix: Suffix::Of(suffix), .. }) => Some(&suffix.of),
            _ => None,
        }
    }

    /// Store of the source's objects; `None` if there is none, or if a mixture has several.
    pub fn store(&self) -> Option<&Name> {
        let mut stores = self.parts().into_iter().map(|part| part.rules().place().map(|place| place.store));
        let first = stores.next()??;
        stores.all(|store| store == Some(first)).then_some(first)
    }

    /// Stores that the source reads from, that of its objects first.
    pub fn stores(&self) -> Vec<&Name> {
        self.parts().into_iter().flat_map(Self::own_stores).collect()
    }

    fn own_stores(&self) -> impl Iterator<Item = &Name> {
        let labels = self.rules().labels().and_then(|labels| labels.store.as_ref());
        self.rules().place().map(|place| place.store).into_iter().chain(labels)
    }

    /// Checks the settings that concern its data.
    pub(crate) fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        self.check_values_of_missing(faults, place);
        self.rules().check(faults, place);
    }

    /// Checks that the types in the document permit the values of `missing`.
    fn check_values_of_missing(&self, faults: &mut Faults<'_>, place: &Pointer) {
        let Some(types) = self.rules().types() else { return };
        for (name, when) in self.rules().settings().missing.into_iter().flatten() {
            if let Some(kind) = types.get(name)
                && !when.fits(*kind)
            {
                let found = match when {
                    WhenMissing::Value(value) => format!("`value` is {value}"),
                    _ => "only float numbers can be NaN".to_owned(),
                };
                let found = format!("{found}, and `types` makes the field `{}`", kind.name());
                let hint = "give it a value of that type, or change `types`";
                faults.fault(place.key("missing").key(name), found, hint);
            }
        }
    }

    /// Replaces the suffix `{"of": MODULE}` by the endings in the manifest of the module.
    pub(crate) fn resolve_endings(&mut self, faults: &mut Faults<'_>, place: &Pointer) {
        match self {
            Self::Mix(mix) => {
                for (name, part) in &mut mix.sources {
                    let place = MixPart::place(name, &part.source, place);
                    part.source.resolve_endings(faults, &place);
                }
            }
            Self::List(list) => {
                let Suffix::Of(SuffixOf { of }) = &list.suffix else { return };
                let place = place.key("suffix").key("of");
                let Some(facts) = faults.module(of, place.clone()) else { return };
                match facts.manifest.reads.clone().filter(|reads| !reads.is_empty()) {
                    Some(reads) => list.suffix = Suffix::Several(reads),
                    None => {
                        let found = format!("the module `{of}` does not say which files it reads");
                        faults.fault(place, found, "list the endings, such as `[\".jpg\", \".png\"]`");
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// All kinds with their rules, so that what differs is seen in one place.
    #[test]
    fn sources_and_their_rules() {
        let sources = json!([
            { "list": { "store": "s", "suffix": ".jpg", "label": "folder" } },
            { "index": { "store": "s" } },
            { "range": { "count": 4 } },
            { "records": { "store": "s", "key": "a.ndjson" } },
            { "csv": { "store": "s", "prefix": "p/", "types": { "n": "int" } } },
            { "tsv": { "store": "s", "shards": "{0..3}.tsv" } },
            { "tar": { "store": "s", "shards": "{0..3}.tar", "fields": { "bytes": "jpg" } } },
            { "tar": { "store": "s", "index": "i", "shuffle": true, "window": 2 } },
            { "parquet": { "store": "s", "prefix": "p/", "columns": ["a"] } },
            { "tfrecord": { "store": "s", "prefix": "p/", "decode": "bytes" } },
            { "mds": { "store": "s", "prefix": "p/" } },
            { "mix": { "sources": { "a": { "source": { "range": { "count": 4 } } } } } },
        ]);
        let sources: Vec<Source> = serde_json::from_value(sources).unwrap();
        let rows = sources.iter().map(|source| {
            let rules = source.rules();
            let fields = rules.fields();
            let more = if fields.lacks("any other") { "" } else { " and others" };
            let properties = [
                rules.is_counted().then_some("counted"),
                rules.unnumbered().map(|_| "unnumbered"),
                rules.records().map(|_| "records"),
                rules.parts().map(|_| "a mixture"),
                rules.settings().missing.map(|_| "may lack fields"),
            ];
            format!(
                "{:<8} {:?}; {}; fields: {}{more}; samples: {:?}; {}",
                source.kind(),
                rules.place().map(|place| place.by).unwrap_or_default(),
                properties.into_iter().flatten().collect::<Vec<_>>().join(", "),
                fields.names().collect::<Vec<_>>().join(", "),
                rules.samples(source.traversal(0)),
                rules.in_words(),
            )
        });
        insta::assert_snapshot!(rows.collect::<Vec<_>>().join("\n"));
    }
}
