//! The rules of a source, whatever its kind: callers ask for these properties instead of naming kinds.

use std::collections::BTreeMap;

use super::form::{ColumnType, RecordForm};
use super::labels::LabelTable;
use super::part::MixPart;
use super::settings::{Place, Shared};
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::Name;
use crate::traversal::{Traversal, TraversalSettings};

/// Rules of a source as written in a document. They are asked when a document is checked, prepared or explained, never per sample.
pub trait SourceRules: Shared {
    /// Objects that it reads, if it reads objects itself.
    fn place(&self) -> Option<Place<'_>> {
        None
    }

    /// Form of the records in its objects, if it reads records.
    fn records(&self) -> Option<Records<'_>> {
        None
    }

    /// Table whose fields are added to its samples.
    fn labels(&self) -> Option<&LabelTable> {
        None
    }

    /// Names of its classes, if the document names them.
    fn classes(&self) -> Option<&Vec<String>> {
        None
    }

    /// Types of fields in the document.
    fn types(&self) -> Option<&BTreeMap<String, ColumnType>> {
        self.records().map(|records| records.types)
    }

    /// Sources that it mixes.
    fn parts(&self) -> Option<&BTreeMap<Name, MixPart>> {
        None
    }

    /// Number of its samples; `None` if only reading the source reveals it. Predictions take a source with a count for one that needs no time.
    fn count(&self) -> Option<u64> {
        None
    }

    /// Number of samples in one epoch with this traversal, if their number is known.
    fn samples(&self, traversal: TraversalSettings) -> Option<u64> {
        Traversal::new(self.count()?, traversal).ok().map(|all| all.len_per_epoch())
    }

    /// True if its samples are the keys of a listing, which an index replaces.
    fn lists_keys(&self) -> bool {
        false
    }

    /// True if each position is a sample, whatever the data contain.
    fn is_counted(&self) -> bool {
        false
    }

    /// Set if its samples cannot be read by their numbers.
    fn unnumbered(&self) -> Option<Unnumbered> {
        None
    }

    /// Fields of its samples.
    fn fields(&self) -> Fields;

    /// Checks the settings that concern its data.
    fn check(&self, faults: &mut Faults<'_>, place: &Pointer);

    /// What it produces, in words.
    fn in_words(&self) -> String;

    /// Checks a source of shards: that one of `ways` names the `objects`, and that what is shuffled can be.
    fn check_shards(&self, ways: &[&str], objects: &str, faults: &mut Faults<'_>, place: &Pointer) {
        if let Some(own) = self.place() {
            own.check(ways, objects, faults, place);
        }
        let settings = self.settings();
        if let Some(unnumbered) = self.unnumbered().filter(|_| settings.shuffle) {
            let hint = format!(
                "make one with `penstock index create {}`, and set `index` instead of the {objects}",
                unnumbered.option
            );
            let found = format!("{} without an index are read in their order", unnumbered.objects);
            faults.fault(place.key("shuffle"), found, hint);
        }
        if settings.window.is_some() && !settings.shuffle {
            let hint = "set `shuffle`, or remove `window`";
            faults.fault(place.key("window"), "only a shuffle has a window", hint);
        }
    }

    /// Words for the order of its `objects`, if it differs from that of their numbers.
    fn order_in_words(&self, objects: &str) -> String {
        let settings = self.settings();
        match (settings.window.filter(|_| settings.shuffle), self.unnumbered()) {
            (Some(window), _) => format!(", {window} {objects} mixed at a time"),
            (None, Some(_)) => format!(
                ", in the order of the {objects}, since there is no index (a resumed run reads the samples before its place)"
            ),
            (None, None) => String::new(),
        }
    }
}

/// Records in the objects of a source.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    /// Form of the records.
    pub form: RecordForm,
    /// Column or member that is the key of a sample.
    pub sample_key: Option<&'a str>,
    /// Types of columns or members.
    pub types: &'a BTreeMap<String, ColumnType>,
}

/// Objects whose samples have no numbers, in messages.
#[derive(Clone, Copy, Debug)]
pub struct Unnumbered {
    /// Name of the objects.
    pub objects: &'static str,
    /// Option of `penstock index create` by which they get an index.
    pub option: &'static str,
}
