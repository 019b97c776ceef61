//! Faults of a document, each with its place.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strsim::osa_distance;

use crate::text::printable;

/// Maximum number of faults reported at a time; any beyond it are reported by the next check.
pub const MAX_FAULTS: usize = 100;

/// Maximum length of a pointer in bytes; a longer pointer is cut to an enclosing object or list.
const MAX_POINTER: usize = 1024;
/// Maximum length of a pointer in messages, in bytes.
const MAX_SHOWN_POINTER: usize = 300;
/// Maximum length of a message in bytes: enough for a list of all possible names, too little to repeat a document.
const MAX_MESSAGE: usize = 2000;

/// One reason why a document cannot run as written. All reasons are reported at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .pointer.in_words(), self.message())]
pub struct SpecFault {
    /// Place of the fault in the document.
    pub pointer: Pointer,
    /// Kind of the fault, from which a front end may derive its own hint.
    pub kind: FaultKind,
    /// Description of the problem.
    pub found: String,
    /// Suggested correction, in terms of the document.
    pub hint: Option<String>,
}

/// Kind of a fault; kinds differ in their remedies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No store has this name.
    UnknownStore(String),
    /// No module has this name.
    UnknownModule(String),
    /// Neither the document nor the configuration of the store names an index.
    NoIndex,
    /// No folder is set for dead letters.
    NoOutput,
    /// The consumer delivers batches through a server.
    NeedsServer,
    /// A stage requires a field that the samples do not have.
    MissingField(String),
    /// Any other kind; the document must change.
    Other,
}

/// Pointer into a JSON document in the form of RFC 6901, e.g. `/stages/2/wasm/module`; empty for the whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Pointer(String);

impl SpecFault {
    /// Creates a fault at `pointer`. Both arguments may repeat untrusted input: the text is made printable and cut to 2,000
    /// bytes; a pointer of more than 1,024 bytes is cut at the end of a step.
    pub fn new(pointer: Pointer, found: impl Into<String>) -> Self {
        Self {
            pointer: pointer.cut(),
            kind: FaultKind::Other,
            found: printable(&found.into(), MAX_MESSAGE),
            hint: None,
        }
    }

    /// Sets the kind of the fault.
    #[must_use]
    pub fn of_kind(self, kind: FaultKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets the hint, which is made printable and cut to 2,000 bytes.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(printable(&hint.into(), MAX_MESSAGE)), ..self }
    }

    /// Replaces the hint by the front end's hint for this kind of fault, if there is one.
    #[must_use]
    pub fn hinted(self, own: impl FnOnce(&FaultKind) -> Option<String>) -> Self {
        match own(&self.kind) {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Problem and correction, without the place.
    pub fn message(&self) -> String {
        // A message contains at most one colon.
        let mark = if self.found.contains(": ") { ';' } else { ':' };
        self.hint.as_ref().map_or_else(|| self.found.clone(), |hint| format!("{}{mark} {hint}", self.found))
    }
}

/// Sorts faults by place, in the order of the document's lists.
pub fn sort(faults: &mut [SpecFault]) {
    faults.sort_by_cached_key(|fault| {
        let steps = fault.pointer.steps();
        steps.map(|step| (step.parse::<u64>().ok(), step)).collect::<Vec<_>>()
    });
}

/// Translates the pointers of faults to a document in which stages have other places. `place` returns the new place of the stage at a
/// position, without its kind; `None` keeps the place.
pub fn with_stages_moved(faults: Vec<SpecFault>, place: impl Fn(usize) -> Option<Pointer>) -> Vec<SpecFault> {
    let moved = |fault: SpecFault| {
        let steps: Vec<String> = fault.pointer.steps().collect();
        let stage = steps.get(1).filter(|_| steps[0] == "stages").and_then(|stage| stage.parse().ok());
        let Some(begin) = stage.and_then(&place) else { return fault };
        SpecFault { pointer: steps[2..].iter().fold(begin, |place, step| place.key(step)), ..fault }
    };
    faults.into_iter().map(moved).collect()
}

impl Pointer {
    /// Pointer to the whole document.
    pub const ROOT: Self = Self(String::new());

    /// Parses a pointer; `None` unless it is empty or starts with `/`.
    pub fn parse(text: &str) -> Option<Self> {
        (text.is_empty() || text.starts_with('/')).then(|| Self(text.to_owned()))
    }

    /// Pointer to the member `name` of this place.
    #[must_use]
    pub fn key(&self, name: &str) -> Self {
        Self(format!("{}/{}", self.0, name.replace('~', "~0").replace('/', "~1")))
    }

    /// Pointer to the element `index` of this place.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}/{index}", self.0))
    }

    /// Steps from the document's root, unescaped.
    pub fn steps(&self) -> impl Iterator<Item = String> {
        self.0.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"))
    }

    /// Shortens the pointer to the nearest enclosing object or list whose pointer has at most 1,024 bytes.
    #[must_use]
    pub fn cut(mut self) -> Self {
        if self.0.len() > MAX_POINTER {
            let end = self.0.as_bytes()[..=MAX_POINTER].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            self.0.truncate(end);
        }
        self
    }

    /// Text of the pointer in the form of RFC 6901.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Text for messages: without control characters, cut to one or two lines.
    fn in_words(&self) -> String {
        if self.0.is_empty() { "the document".to_owned() } else { printable(&self.0, MAX_SHOWN_POINTER) }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// ``did you mean `name`? `` with the name nearest to `found`, or an empty text when no name is near.
pub fn suggestion<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // A third of the letters may differ: enough for typing errors, too little for another word.
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
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Number of edits between `a` and `b`, ignoring case: inserted, deleted or changed letters, and swapped neighbours.
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
    fn a_message_escapes_control_characters_and_is_cut() {
        let fault = SpecFault::new(Pointer::ROOT, format!("`\u{1b}[2J\n{}`", "x".repeat(1 << 20)));
        assert!(
            fault.found.starts_with(r"`\u{1b}[2J\nxxx") && fault.message().len() <= MAX_MESSAGE + "…".len()
        );
    }

    #[test]
    fn a_long_pointer_is_cut_to_the_nearest_place_around_it() {
        let around = Pointer::ROOT.key("stages").index(2);
        let at = |pointer: Pointer| SpecFault::new(pointer, "").pointer;
        assert_eq!(at(around.key(&"é".repeat(1 << 20))), around);
        assert_eq!(at(around.key(&"x".repeat(1 << 20)).key("y")), around);
        assert_eq!(at(Pointer::ROOT.key(&"x".repeat(1 << 20))), Pointer::ROOT);
        let longest = around.key(&"x".repeat(MAX_POINTER - around.as_str().len() - 1));
        assert_eq!((at(longest.clone()), at(longest.key("a"))), (longest.clone(), longest));
    }

    #[test]
    fn a_front_end_replaces_the_hint_of_a_kind_it_handles() {
        let fault = SpecFault::new(Pointer::ROOT.key("source"), "there is no store `a`");
        let kind = FaultKind::UnknownStore("a".to_owned());
        let own = |kind: &FaultKind| matches!(kind, FaultKind::UnknownStore(_)).then(|| "add it".to_owned());
        let fault = fault.hint("use `b`");
        assert_eq!(fault.clone().hinted(own).to_string(), "/source: there is no store `a`: use `b`");
        assert_eq!(fault.of_kind(kind).hinted(own).message(), "there is no store `a`: add it");
    }

    #[test]
    fn faults_are_sorted_in_the_order_of_the_document() {
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
