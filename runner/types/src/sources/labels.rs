//! Tables whose fields are added to listed samples.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::form::{ColumnType, RecordForm};
use crate::defaults::is_default;
use crate::fault::Pointer;
use crate::plan::Faults;
use crate::spec::{Name, ObjectKey, TableCharacter, TableForm, TextEncoding, double_quote, is_double_quote};

/// Table whose fields are added to listed samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelTable {
    /// Store that holds the table; that of the source when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Name>,
    /// Key of the table. It ends with `.csv`, `.tsv`, `.ndjson` or `.jsonl`.
    pub key: ObjectKey,
    /// Column or member that contains the keys of samples; `key` when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_key: Option<String>,
    /// Part of a sample's key that the table contains: `key` or `stem`.
    #[serde(default, rename = "match")]
    pub matches: KeyPart,
    /// Character between two values, e.g. `;` or a tab. When missing, a comma, or a tab if the key ends with `.tsv`; a table
    /// that seems to have another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<TableCharacter>,
    /// Character around values that contain delimiters or line ends, written twice within them; `null` for none.
    #[serde(default = "double_quote", skip_serializing_if = "is_double_quote")]
    #[schemars(extend("default" = "\""))]
    pub quote: Option<TableCharacter>,
    /// Encoding of the text.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(extend("default" = TextEncoding::default()))]
    pub encoding: TextEncoding,
    /// Types of columns by name; columns without a type are texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, ColumnType>,
    /// Handling of listed keys that are not in the table: `fail` or `skip`.
    #[serde(default)]
    pub missing: Missing,
}

/// Part of a listed key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyPart {
    /// The whole key.
    #[default]
    Key,
    /// The key without the `prefix` and the `suffix` of the source.
    Stem,
}

/// Handling of listed keys that are not in a table of labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Fails before the first sample.
    #[default]
    Fail,
    /// Makes no samples of these keys, and reports their number.
    Skip,
}

impl LabelTable {
    /// Form of the table, which the end of its key names; `None` if it names no form.
    pub fn form(&self) -> Option<RecordForm> {
        let rows = |delimiter| {
            let (own, quote) = (self.delimiter.as_ref(), self.quote.as_ref());
            RecordForm::Rows(TableForm::new(delimiter, own, quote, self.encoding))
        };
        match self.key.as_str().rsplit_once('.')?.1 {
            "csv" => Some(rows(b',')),
            "tsv" => Some(rows(b'\t')),
            "ndjson" | "jsonl" => Some(RecordForm::Lines),
            _ => None,
        }
    }

    pub(super) fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        if let Some(store) = &self.store {
            faults.store(store, place.key("store"));
        }
        match self.form() {
            None => {
                let found = format!("the key `{}` names no form of the table", self.key);
                let hint = match self.key.as_str() {
                    key if key.ends_with(".gz") || key.ends_with(".zst") => {
                        "decompress it: tables of labels are read by the places of their rows"
                    }
                    _ => "its end is `.csv`, `.tsv`, `.ndjson` or `.jsonl`",
                };
                faults.fault(place.key("key"), found, hint);
            }
            Some(RecordForm::Lines) => {
                if !self.types.is_empty() {
                    faults.fault(place.key("types"), "values of NDJSON have their types", "remove `types`");
                }
                let of_tables = [
                    ("delimiter", self.delimiter.is_some()),
                    ("quote", !is_double_quote(&self.quote)),
                    ("encoding", self.encoding != TextEncoding::default()),
                ];
                for (name, _) in of_tables.iter().filter(|(_, is_stated)| *is_stated) {
                    faults.fault(place.key(name), "NDJSON is no table", format!("remove `{name}`"));
                }
            }
            Some(form) => form.check(faults, place),
        }
    }
}
