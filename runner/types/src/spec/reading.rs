//! Settings of sources that decide what is read, and what becomes of missing and damaged data.

use std::fmt::{self, Display, Formatter};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::ModuleRef;
use crate::data_set::is_exact;
use crate::sources::ColumnType;
use crate::text::{printable, shown};

/// Handling of samples that lack a field of their data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenMissing {
    /// The sample lacks the field, which fails where a stage needs it, and in `collate` where other samples have it.
    Fail,
    /// The sample gets the zero of the type (an empty text, blob or list), and each sample gets the field `NAME.present`, a bool.
    Mask,
    /// The sample is dropped.
    Drop,
    /// The sample gets NaN; in lists of float numbers, each null becomes NaN.
    Nan,
    /// The sample gets this value.
    Value(FillValue),
}

impl WhenMissing {
    /// True unless a field of this type cannot get the value.
    pub(crate) fn fits(&self, kind: ColumnType) -> bool {
        let value = match self {
            Self::Fail | Self::Mask | Self::Drop => return true,
            Self::Nan => return kind == ColumnType::Float,
            Self::Value(value) => value,
        };
        match kind {
            ColumnType::Text => matches!(value, FillValue::Text(_)),
            ColumnType::Int | ColumnType::Bool => matches!(value, FillValue::Bool(_) | FillValue::Int(_)),
            ColumnType::Float => match value {
                FillValue::Int(number) => is_exact(*number),
                value => matches!(value, FillValue::Real(_)),
            },
        }
    }
}

/// Value in place of a missing one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number, a text, a truth value or a list of numbers")]
pub enum FillValue {
    /// A truth value; true is 1.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number.
    Real(f64),
    /// A text.
    Text(String),
    /// Elements of a list.
    List(Vec<f64>),
}

impl Display for FillValue {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(is_true) => write!(out, "{is_true}"),
            Self::Int(number) => write!(out, "{number}"),
            Self::Real(number) => write!(out, "{number}"),
            Self::Text(text) => write!(out, "the text `{}`", printable(text, 40)),
            Self::List(numbers) => write!(out, "a list of {} numbers", numbers.len()),
        }
    }
}

/// Handling of damaged data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDamage {
    /// Ends the run.
    #[default]
    Fail,
    /// Leaves damaged, cut, empty and missing parts out, and counts them; a damaged record is a failed sample.
    Skip,
}

/// Links in folders that a listing follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Links {
    /// Links to files and to folders.
    #[default]
    All,
    /// Links to files only, as in versions before.
    Files,
}

/// Endings of the keys that a listing takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text, a list of texts, or `{\"of\": MODULE}`")]
pub enum Suffix {
    /// One ending, compared as it is; all keys when empty.
    One(String),
    /// Several endings, compared without case.
    Several(Vec<String>),
    /// Endings of the files that a module reads, as its manifest lists them, compared without case.
    Of(SuffixOf),
}

/// Module whose files a listing takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuffixOf {
    /// Module, e.g. `std/image`.
    pub of: ModuleRef,
}

impl Default for Suffix {
    fn default() -> Self {
        Self::One(String::new())
    }
}

impl Suffix {
    /// Endings of tar shards, also of compressed ones.
    pub fn of_tar() -> Self {
        Self::Several([".tar", ".tar.gz", ".tgz", ".tar.zst"].map(str::to_owned).to_vec())
    }

    /// Number of bytes of the ending by which a key is taken; `None` if it is not taken. The endings of a module are not known here: they
    /// replace it when a document is checked.
    pub fn matched(&self, key: &str) -> Option<usize> {
        match self {
            Self::One(suffix) => key.ends_with(suffix.as_str()).then_some(suffix.len()),
            Self::Several(several) => {
                let ends = |suffix: &&String| {
                    let start = key.len().checked_sub(suffix.len())?;
                    let end = key.get(start..)?;
                    end.eq_ignore_ascii_case(suffix).then_some(suffix.len())
                };
                several.iter().filter_map(|suffix| ends(&suffix)).max()
            }
            Self::Of(_) => None,
        }
    }

    /// True if a key is taken.
    pub fn takes(&self, key: &str) -> bool {
        self.matched(key).is_some()
    }

    /// True if all keys are taken.
    pub fn is_all(&self) -> bool {
        matches!(self, Self::One(suffix) if suffix.is_empty())
    }
}

/// Endings in messages.
impl Display for Suffix {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let shown = |suffix: &String| format!("`{}`", shown(suffix));
        match self {
            Self::One(suffix) => out.write_str(&shown(suffix)),
            Self::Several(several) => {
                let most = several.len().min(10);
                let more = if several.len() > most { ", ..." } else { "" };
                write!(out, "{}{more}", several[..most].iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            Self::Of(of) => write!(out, "an ending of a file that `{}` reads", of.of),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn suffix(value: serde_json::Value) -> Suffix {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn one_ending_is_compared_as_it_is_and_several_without_case() {
        let keys = ["a.jpg", "b.JPG", "c.jpeg", "d.png", "jpg", ""];
        let taken_by = |value: serde_json::Value| {
            let suffix = suffix(value);
            keys.into_iter().filter(|key| suffix.takes(key)).collect::<Vec<_>>()
        };
        assert_eq!(taken_by(json!(".jpg")), ["a.jpg"]);
        assert_eq!(taken_by(json!([".jpg", ".PNG"])), ["a.jpg", "b.JPG", "d.png"]);
        assert_eq!(taken_by(json!("")).len(), 6);
        assert_eq!(taken_by(json!([])), Vec::<&str>::new());
        assert_eq!(suffix(json!([".gz", ".tar.gz"])).matched("x.tar.gz"), Some(7));
        assert_eq!(
            suffix(json!({ "of": "std/image" })),
            Suffix::Of(SuffixOf { of: serde_json::from_value(json!("std/image")).unwrap() })
        );
    }
}
