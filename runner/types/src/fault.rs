//! What is wrong with a document, and where.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strsim::osa_distance;

use crate::text::printable;

/// Most bytes of a place; of a longer one the nearest place around it is told.
const MAX_POINTER: usize = 1024;
/// Most bytes of a place that messages show.
const MAX_SHOWN_POINTER: usize = 300;
/// Most bytes of a message: enough for every name that could be meant, too little for a document repeated in it.
const MAX_MESSAGE: usize = 2000;

/// One reason why a document cannot run as written. All of them are reported at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .pointer.in_words(), self.message())]
pub struct SpecFault {
    /// Place in the document.
    pub pointer: Pointer,
    /// Kind, where the remedy depends on the front end.
    pub kind: FaultKind,
    /// What was found.
    pub found: String,
    /// What would do, in terms of the document.
    pub hint: Option<String>,
}

/// Kind of a fault, by its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No store has this name.
    UnknownStore(String),
    /// No module has this name.
    UnknownModule(String),
    /// Neither the document nor the configuration of the store names an index.
    NoIndex,
    /// Dead letters have no folder.
    NoOutput,
    /// The consumer hands batches over from a server.
    NeedsServer,
    /// A stage wants a field that samples do not have.
    MissingField(String),
    /// Any other; the document has to change.
    Other,
}

/// A place in a JSON document as RFC 6901 writes it, e.g. `/stages/2/wasm/module`; empty for the whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Pointer(String);

impl SpecFault {
    /// A fault at `pointer`. Both may repeat what strangers wrote: the text is made printable and cut to 2,000 bytes, a pointer of more
    /// than 1,024 bytes is cut at the end of a step.
    pub fn new(pointer: Pointer, found: impl Into<String>) -> Self {
        Self {
            pointer: pointer.cut(),
            kind: FaultKind::Other,
            found: printable(&found.into(), MAX_MESSAGE),
            hint: None,
        }
    }

    /// The same fault of this kind.
    #[must_use]
    pub fn of_kind(self, kind: FaultKind) -> Self {
        Self { kind, ..self }
    }

    /// The same fault with this hint, made printable and cut, too.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(printable(&hint.into(), MAX_MESSAGE)), ..self }
    }

    /// The same fault with the hint that a front end has for its kind, if it has one.
    #[must_use]
    pub fn hinted(self, own: impl FnOnce(&FaultKind) -> Option<String>) -> Self {
        match own(&self.kind) {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// What was found and what would do, without the place.
    pub fn message(&self) -> String {
        // One colon is enough for a sentence.
        let mark = if self.found.contains(": ") { ';' } else { ':' };
        self.hint.as_ref().map_or_else(|| self.found.clone(), |hint| format!("{}{mark} {hint}", self.found))
    }
}

/// Sorts faults by their places, in the order of the document's lists.
pub fn sort(faults: &mut [SpecFault]) {
    faults.sort_by_cached_key(|fault| {
        let steps = fault.pointer.steps();
        steps.map(|step| (step.parse::<u64>().ok(), step)).collect::<Vec<_>>()
    });
}

/// The same faults in a document whose stages stand elsewhere; those of a stage without another place stay where they are.
pub fn with_stages_moved(faults: Vec<SpecFault>, place: impl Fn(usize) -> Option<usize>) -> Vec<SpecFault> {
    let moved = |fault: SpecFault| {
        let steps: Vec<String> = fault.pointer.steps().collect();
        let stage = steps.get(1).filter(|_| steps[0] == "stages").and_then(|stage| stage.parse().ok());
        let Some(stage) = stage.and_then(&place) else { return fault };
        let begin = Pointer::ROOT.key("stages").index(stage);
        SpecFault { pointer: steps[2..].iter().fold(begin, |place, step| place.key(step)), ..fault }
    };
    faults.into_iter().map(moved).collect()
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

    /// This place, or the nearest one around it that has at most 1,024 bytes.
    #[must_use]
    pub fn cut(mut self) -> Self {
        if self.0.len() > MAX_POINTER {
            let end = self.0.as_bytes()[..=MAX_POINTER].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            self.0.truncate(end);
        }
        self
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
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Edits that make `a` of `b`, in any case: inserted, left out or changed letters, and neighbours swapped.
fn distance(a: &str, b: &str) -> usize {
    let head = |text: &str| text.to_lowercase().chars().take(64).collect::<String>();
    osa_distance(&head(a), &head(b))
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
            fault.found.starts_with(r"`\u{1b}[2J\nxxx") && fault.message().len() <= MAX_MESSAGE + "…".len()
        );
    }

    #[test]
    fn a_long_place_is_told_by_the_nearest_one_around_it() {
        let around = Pointer::ROOT.key("stages").index(2);
        let at = |pointer: Pointer| SpecFault::new(pointer, "").pointer;
        assert_eq!(at(around.key(&"é".repeat(1 << 20))), around);
        assert_eq!(at(around.key(&"x".repeat(1 << 20)).key("y")), around);
        assert_eq!(at(Pointer::ROOT.key(&"x".repeat(1 << 20))), Pointer::ROOT);
        let longest = around.key(&"x".repeat(MAX_POINTER - around.as_str().len() - 1));
        assert_eq!((at(longest.clone()), at(longest.key("a"))), (longest.clone(), longest));
    }

    #[test]
    fn a_front_end_has_its_own_hint_for_a_kind_and_the_neutral_one_else() {
        let fault = SpecFault::new(Pointer::ROOT.key("source"), "there is no store `a`");
        let kind = FaultKind::UnknownStore("a".to_owned());
        let own = |kind: &FaultKind| matches!(kind, FaultKind::UnknownStore(_)).then(|| "add it".to_owned());
        let fault = fault.hint("use `b`");
        assert_eq!(fault.clone().hinted(own).to_string(), "/source: there is no store `a`: use `b`");
        assert_eq!(fault.of_kind(kind).hinted(own).message(), "there is no store `a`: add it");
    }

    #[test]
    fn faults_come_in_the_order_of_the_document() {
        let at = |index| SpecFault::new(Pointer::ROOT.key("stages").index(index), "");
        let mut faults = [at(10), at(2), SpecFault::new(Pointer::ROOT, "")];
        sort(&mut faults);
        assert_eq!(faults, [SpecFault::new(Pointer::ROOT, ""), at(2), at(10)]);
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
