//! What is wrong with a document, and where.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::printable;

/// Most bytes of a place that messages show.
const MAX_SHOWN_POINTER: usize = 300;
/// Most bytes of a message: enough for every name that could be meant, too little for a document repeated in it.
const MAX_MESSAGE: usize = 2000;

/// One reason why a document cannot run as written. All of them are reported at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize, JsonSchema)]
#[error("{}: {message}", .pointer.in_words())]
pub struct SpecFault {
    /// Where it is.
    pub pointer: Pointer,
    /// What was found and what would do.
    pub message: String,
}

/// A place in a JSON document as RFC 6901 writes it, e.g. `/stages/2/wasm/module`; empty for the whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Pointer(String);

impl SpecFault {
    /// A fault at `pointer`. The message may repeat what strangers wrote: it is made printable and cut to 2,000 bytes.
    pub fn new(pointer: Pointer, message: impl Into<String>) -> Self {
        Self { pointer, message: printable(&message.into(), MAX_MESSAGE) }
    }
}

impl Pointer {
    /// The whole document.
    pub const ROOT: Self = Self(String::new());

    /// The pointer as written; `None` unless it is empty or starts with `/`.
    pub fn parse(text: &str) -> Option<Self> {
        (text.is_empty() || text.starts_with('/')).then(|| Self(text.to_owned()))
    }

    /// The member `name` of this place.
    #[must_use]
    pub fn key(&self, name: &str) -> Self {
        Self(format!("{}/{}", self.0, name.replace('~', "~0").replace('/', "~1")))
    }

    /// The element `index` of this place.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}/{index}", self.0))
    }

    /// The steps from the document's root, unescaped.
    pub fn steps(&self) -> impl Iterator<Item = String> {
        self.0.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"))
    }

    /// As RFC 6901 writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// For people: without control characters, and not longer than a line or two.
    fn in_words(&self) -> String {
        if self.0.is_empty() { "the document".to_owned() } else { printable(&self.0, MAX_SHOWN_POINTER) }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// ``did you mean `name`? `` with the name nearest to `found`, or nothing when none is near.
pub(crate) fn suggestion<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // A third of the letters may be wrong: enough for typing errors, too little for another word.
    let most = (found.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|name| (distance(found, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| format!("did you mean `{name}`? "))
        .unwrap_or_default()
}

/// Names in backticks, separated by commas; `nothing` when there are none.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Edits that make `a` of `b`: inserted, left out or changed letters, and neighbours swapped.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().take(64).collect(), b.to_lowercase().chars().take(64).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_escapes_tilde_and_slash_and_gives_its_steps_back() {
        let pointer = Pointer::ROOT.key("a/b").key("c~d").index(3).key("~1");
        assert_eq!(pointer.as_str(), "/a~1b/c~0d/3/~01");
        assert_eq!(pointer.steps().collect::<Vec<_>>(), ["a/b", "c~d", "3", "~1"]);
        assert_eq!(Pointer::ROOT.steps().count(), 0);
        assert_eq!(Pointer::parse("a"), None);
    }

    #[test]
    fn a_message_repeats_nothing_that_acts_and_has_an_end() {
        let fault = SpecFault::new(Pointer::ROOT, format!("`\u{1b}[2J\n{}`", "x".repeat(1 << 20)));
        assert!(
            fault.message.starts_with(r"`\u{1b}[2J\nxxx") && fault.message.len() <= MAX_MESSAGE + "…".len()
        );
    }

    #[test]
    fn a_swapped_letter_is_one_edit() {
        assert_eq!(distance("concurrency", "concurrnecy"), 1);
        assert_eq!(distance("size", "sise"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        assert_eq!(suggestion("concurency", ["queue", "concurrency"]), "did you mean `concurrency`? ");
        assert_eq!(suggestion("colour", ["queue", "concurrency"]), "");
    }
}
