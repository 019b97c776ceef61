//! Form of records, and the types of their values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::fault::Pointer;
use crate::plan::Faults;
use crate::spec::TableForm;

/// Type of the values in a column of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ColumnType {
    /// Text, as written.
    #[default]
    Text,
    /// Whole number of 64 bits, also written as `3.0`; an empty value is no field.
    Int,
    /// Number; an empty value is no field.
    Float,
    /// `true`, `false`, `1` or `0`, in any case, as an int; an empty value is no field.
    Bool,
}

/// Form of the records in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordForm {
    /// A JSON object on each line.
    Lines,
    /// A table with a header.
    Rows(TableForm),
}

impl ColumnType {
    /// Name in the document.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl RecordForm {
    /// Checks that the delimiter of a table is not its quote.
    pub(super) fn check(self, faults: &mut Faults<'_>, place: &Pointer) {
        let Self::Rows(TableForm { delimiter, is_named, quote, .. }) = self else { return };
        if quote == Some(delimiter) {
            let name = if is_named { "delimiter" } else { "quote" };
            let character = char::from(delimiter).escape_debug();
            let found = format!("`{character}` is both the delimiter and the quote");
            let hint = "name another character; `\"quote\": null` reads quotes as text";
            faults.fault(place.key(name), found, hint);
        }
    }
}
