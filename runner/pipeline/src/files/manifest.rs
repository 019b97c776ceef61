use std::fmt;

use bytes::Bytes;
use penstock_types::fault::Pointer;
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the files' format: names, metadata, and the mapping of fields to tensors.
pub(super) const FORMAT: u32 = 2;

/// Maximum length of a value that is shown in a difference, in characters.
const MAX_SHOWN_VALUE: usize = 80;

/// Manifest of a folder of batches: `penstock-files.json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    made_by: MadeBy,
    /// `None` until a run has completed.
    pub(super) complete: Option<Complete>,
}

/// Recipe of the batches: equal recipes make equal files.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct MadeBy {
    format: u32,
    /// Document without the settings that cannot change the batches.
    document: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Complete {
    pub(super) batches: u64,
    pub(super) samples: u64,
}

const MAX_CHANGES: usize = 1000;

/// A difference between two documents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DocumentChange {
    /// Location of the value in both documents.
    #[schemars(with = "String")]
    pub pointer: Pointer,
    /// Value in the first document, as JSON; `null` if it has none.
    pub from: Option<String>,
    /// Value in the second document, as JSON; `null` if it has none.
    pub to: Option<String>,
}

impl Manifest {
    pub(super) const NAME: &str = "penstock-files.json";
    /// Upper bound of a manifest's size, in bytes: a document has at most 4 MiB, but line breaks and indentation make it longer.
    pub(super) const MOST_BYTES: u64 = 64 << 20;

    pub(super) fn of(recipe: &Value) -> Self {
        Self { made_by: MadeBy { format: FORMAT, document: recipe.clone() }, complete: None }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub(super) fn bytes(&self) -> Bytes {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest is JSON");
        text.push(b'\n');
        text.into()
    }

    /// Part of the manifest that must be equal for a later run to continue.
    pub(super) fn recipe(&self) -> Value {
        // Serialised and parsed like the stored manifest, since a computed number may differ slightly from a parsed one.
        let text = serde_json::to_vec(&self.made_by).expect("a manifest is JSON");
        serde_json::from_slice(&text).expect("what was just written can be read")
    }
}

/// Lists the differences between `there` and `here`, at most [`MAX_CHANGES`] of them.
pub(crate) fn differences(there: &Value, here: &Value) -> Vec<DocumentChange> {
    let mut found = Vec::new();
    compare(&Pointer::ROOT, Some(there), Some(here), &mut found);
    found
}

fn compare(place: &Pointer, there: Option<&Value>, here: Option<&Value>, found: &mut Vec<DocumentChange>) {
    if found.len() == MAX_CHANGES {
        return;
    }
    // Pointers are built only where values differ: names from untrusted documents can be long.
    match (there, here) {
        (Some(Value::Object(there)), Some(Value::Object(here))) => {
            for (name, value) in there.iter().filter(|(name, value)| here.get(*name) != Some(*value)) {
                compare(&place.key(name), Some(value), here.get(name), found);
            }
            for (name, value) in here.iter().filter(|(name, _)| !there.contains_key(*name)) {
                compare(&place.key(name), None, Some(value), found);
            }
        }
        (Some(Value::Array(there)), Some(Value::Array(here))) => {
            let both =
                (0..there.len().max(here.len())).map(|index| (index, there.get(index), here.get(index)));
            for (index, there, here) in both.filter(|(_, there, here)| there != here) {
                compare(&place.index(index), there, here, found);
            }
        }
        (there, here) if there == here => {}
        (there, here) => {
            let shown = |value: &Value| printable(&value.to_string(), MAX_SHOWN_VALUE);
            let (from, to) = (there.map(shown), here.map(shown));
            found.push(DocumentChange { pointer: place.clone().cut(), from, to });
        }
    }
}

impl fmt::Display for DocumentChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| {
            value.as_ref().map_or_else(|| "nothing".to_owned(), |value| format!("`{value}`"))
        };
        write!(f, "{}: there {}, here {}", self.pointer, shown(&self.from), shown(&self.to))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_limited_in_number_and_length() {
        let name = "x".repeat(1 << 20);
        let long = |value: u32| json!({ "a": vec![value; 5000], (name.clone()): vec![value; 5000] });
        let found = differences(&long(1), &long(2));
        assert_eq!(found.len(), MAX_CHANGES);
        let long = |value: u32| json!({ (name.clone()): vec![value; 5] });
        let places: Vec<_> =
            differences(&long(1), &long(2)).into_iter().map(|change| change.pointer).collect();
        assert_eq!(places, vec![Pointer::ROOT; 5]);
    }

    #[test]
    fn every_difference_is_reported_with_its_place() {
        let there = json!({ "document": { "seed": 1, "stages": [{ "a": 1 }], "old": true }, "format": 1 });
        let here =
            json!({ "format": 1, "document": { "stages": [{ "a": 2 }, "b"], "seed": 1, "new": null } });
        let told: Vec<String> = differences(&there, &here).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "/document/stages/0/a: there `1`, here `2`",
                "/document/stages/1: there nothing, here `\"b\"`",
                "/document/old: there `true`, here nothing",
                "/document/new: there nothing, here `null`",
            ]
        );
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        let recipe = json!({ "seed": 7, "source": { "range": { "count": 3 } }, "rate": 0.1 });
        let mut manifest = Manifest::of(&recipe);
        manifest.complete = Some(Complete { batches: 2, samples: 3 });
        assert_eq!(Manifest::read(&manifest.bytes()).unwrap(), manifest);
        assert!(Manifest::read(b"{").unwrap_err().to_string().contains("EOF"));
        assert!(Manifest::read(br#"{"complete": null}"#).unwrap_err().to_string().contains("made_by"));
    }
}
