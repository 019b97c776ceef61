use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::form::{ColumnType, RecordForm};
use super::rules::{Records, SourceRules};
use super::settings::{By, Place, Shared, SourceSettings, source};
use crate::defaults::is_default;
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::{
    Name, ObjectKey, Suffix, TableCharacter, TableForm, TextEncoding, double_quote, is_double_quote,
};
use crate::text::shown;

source! {
    /// Produces one sample for every row of tables whose first row names the columns: `key`, and the other columns as fields.
    TableSource {
        /// Store that holds the tables.
        store: Name,
        /// Key of the table in the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ObjectKey>,
        /// Keys of several tables, e.g. `train-{000..127}.csv`; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of several tables, in the order of their bytes; instead of `key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Suffix of the keys that start with `prefix`, or a list of them; `.csv` or `.tsv` when missing, also with
        /// `.gz` or `.zst` behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suffix: Option<Suffix>,
        /// Column that is the key of the sample. When missing, `key` or else the number of the row.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Character between two values, e.g. `;` or a tab. When missing, a comma in `csv` and a tab in `tsv`, and a table that seems to have
        /// another one is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delimiter: Option<TableCharacter>,
        /// Character around values that contain delimiters or line ends, written twice within them; `null` for none.
        #[serde(default = "double_quote", skip_serializing_if = "is_double_quote")]
        #[schemars(extend("default" = "\""))]
        quote: Option<TableCharacter>,
        /// Encoding of the text.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(extend("default" = TextEncoding::default()))]
        encoding: TextEncoding,
        /// Types of columns by name, e.g. `{"label": "int"}`. Columns without a type are texts.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        types: BTreeMap<String, ColumnType>,
    } + listed + missing + damaged
}

/// A table whose values are separated by `DELIMITER` unless the document names another character.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table<const DELIMITER: u8>(pub TableSource);

impl<const DELIMITER: u8> Shared for Table<DELIMITER> {
    fn settings(&self) -> SourceSettings<'_> {
        self.0.settings()
    }
}

impl<const DELIMITER: u8> SourceRules for Table<DELIMITER> {
    fn place(&self) -> Option<Place<'_>> {
        let Self(table) = self;
        let usual = if DELIMITER == b',' { ".csv" } else { ".tsv" };
        let prefix = by_prefix(table.prefix.as_deref(), table.suffix.as_ref(), usual);
        let keys = [table.key.as_ref().map(By::Key), table.shards.as_ref().map(By::Shards)];
        Some(Place::new(&table.store, keys.into_iter().chain([prefix])))
    }

    fn records(&self) -> Option<Records<'_>> {
        let TableSource { delimiter, quote, encoding, sample_key, types, .. } = &self.0;
        let form = TableForm::new(DELIMITER, delimiter.as_ref(), quote.as_ref(), *encoding);
        Some(Records { form: RecordForm::Rows(form), sample_key: sample_key.as_deref(), types })
    }

    /// The columns are known when a table is read.
    fn fields(&self) -> Fields {
        Fields::UNKNOWN
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        check(self, self.0.suffix.as_ref(), faults, place);
    }

    fn in_words(&self) -> String {
        in_words("row", self)
    }
}

/// Objects with records whose keys start with a prefix. Without `suffix`, they end with the usual one, also when they are compressed.
pub(super) fn by_prefix<'a>(prefix: Option<&'a str>, suffix: Option<&Suffix>, usual: &str) -> Option<By<'a>> {
    let usual = || ["", ".gz", ".zst"].map(|end| format!("{usual}{end}")).to_vec();
    prefix.map(|prefix| By::Prefix(prefix, suffix.cloned().unwrap_or_else(|| Suffix::Several(usual()))))
}

/// Checks the objects of a source that reads records; `suffix` is that of the document.
pub(super) fn check(
    source: &dyn SourceRules,
    suffix: Option<&Suffix>,
    faults: &mut Faults<'_>,
    place: &Pointer,
) {
    let Some(objects) = source.place() else { return };
    if matches!(suffix, Some(Suffix::Of(_))) {
        let found = "the files that a module reads are no tables or records";
        faults.fault(place.key("suffix"), found, "name the endings");
    }
    objects.check(&["key", "shards", "prefix"], "objects", faults, place);
    if suffix.is_some() && matches!(objects.by[..], [By::Key(_) | By::Shards(_)]) {
        let hint = "set `prefix`, or remove `suffix`";
        faults.fault(place.key("suffix"), "only keys with a `prefix` are listed", hint);
    }
    if let Some(records) = source.records() {
        records.form.check(faults, place);
    }
}

/// Describes a source whose samples are the `record`s of objects.
pub(super) fn in_words(record: &str, source: &dyn SourceRules) -> String {
    let Some(place) = source.place() else { return String::new() };
    let objects = match place.by.first() {
        Some(By::Key(key) | By::Shards(key) | By::Index(key)) => format!("`{}`", key.as_str()),
        Some(By::Prefix(prefix, suffix)) => {
            format!("the objects that start with `{}` and end with {suffix}", shown(prefix))
        }
        None => "no objects".to_owned(),
    };
    format!("one sample for each {record} of {objects} in the store `{}`", place.store)
}
