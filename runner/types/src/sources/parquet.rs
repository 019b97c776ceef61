use std::cmp::Ordering;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::SourceRules;
use super::settings::{By, Place, source};
use crate::amount::plural;
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::{Name, ObjectKey, Suffix};
use crate::text::shown;

source! {
    /// Produces one sample for each row of Parquet files; each column is a field.
    ParquetSource {
        /// Store that holds the files.
        store: Name,
        /// Keys of the files, e.g. `train-{00000..00041}.parquet`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the files, which end with `.parquet`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Columns that become fields; all when `fields` is missing, too. A column in a struct is named with it, e.g. `image.path`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        columns: Vec<String>,
        /// Further fields, each with the name of its column, e.g. `{"bytes": "image"}`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Column whose values become the keys of the samples, instead of a field. When missing, keys are `FILE#ROW`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_key: Option<String>,
        /// Comparisons that a row meets, all of them; other rows are no samples.
        #[serde(default, rename = "where", skip_serializing_if = "Vec::is_empty")]
        filter: Vec<Comparison>,
    } + listed + missing + damaged + windowed "Number of row groups whose rows a shuffle mixes at a time; all when missing."
}

/// Comparison of a column's values with a value. A null meets no comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Name of the column.
    pub column: String,
    /// Relation of the column's value to `value`.
    pub op: Operator,
    /// A text for a column of texts, else a number or a truth value.
    pub value: ComparedValue,
}

/// Relation of two values. Texts are compared by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// Is equal.
    #[serde(rename = "==")]
    Equal,
    /// Is not equal.
    #[serde(rename = "!=")]
    NotEqual,
    /// Is less.
    #[serde(rename = "<")]
    Less,
    /// Is less or equal.
    #[serde(rename = "<=")]
    AtMost,
    /// Is greater.
    #[serde(rename = ">")]
    Greater,
    /// Is greater or equal.
    #[serde(rename = ">=")]
    AtLeast,
}

/// A value that the values of a column are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number, a text, `true` or `false`")]
pub enum ComparedValue {
    /// A truth value; true equals 1.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number.
    Real(f64),
    /// A text.
    Text(String),
}

impl Operator {
    /// True if values in this order have the relation.
    pub fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
}

impl SourceRules for ParquetSource {
    fn place(&self) -> Option<Place<'_>> {
        let suffix = || Suffix::One(".parquet".to_owned());
        let prefix = self.prefix.as_deref().map(|prefix| By::Prefix(prefix, suffix()));
        Some(Place::new(&self.store, [self.shards.as_ref().map(By::Shards), prefix]))
    }

    /// A sample lacks the fields whose values are nulls.
    fn fields(&self) -> Fields {
        Fields::chosen(self.columns.iter().map(String::as_str).chain(self.fields.keys().map(Name::as_str)))
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        self.check_shards(&["shards", "prefix"], "files", faults, place);
        for (at, name) in self.columns.iter().enumerate() {
            let is_field = self.fields.keys().any(|field| field.as_str() == name);
            if is_field || self.columns[..at].contains(name) {
                let found = format!("there is another field `{}`", shown(name));
                faults.fault(place.key("columns").index(at), found, "remove one of them");
            }
        }
    }

    fn in_words(&self) -> String {
        let files = match &self.shards {
            Some(shards) => format!("the files `{}`", shown(shards.as_str())),
            None => {
                let prefix = shown(self.prefix.as_deref().unwrap_or_default());
                format!("the Parquet files that start with `{prefix}`")
            }
        };
        let selected = match self.filter.len() {
            0 => String::new(),
            count => format!(
                " that meets {}, found by a pass over the compared columns before the first sample (1 bit kept for each row)",
                plural(count as u64, "comparison")
            ),
        };
        let order = match (self.shuffle, self.window) {
            (true, Some(window)) => format!(", {window} row groups mixed at a time, which are in memory together"),
            (true, None) => {
                ", all row groups mixed, of which one is read for nearly each sample unless all fit into half of a source's memory"
                    .to_owned()
            }
            (false, _) => String::new(),
        };
        format!("one sample for each row of {files} of the store `{}`{selected}{order}", self.store)
    }
}
