//! What a source reports beside its samples: things that it left out, warnings, and the fields of the data set.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};

use penstock_types::data_set::DataFields;
use penstock_types::left_out::{Endings, FIRST_LEFT_OUT, LeftOut, LeftOutReason};
use penstock_types::resume::Hash;
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::lock::locked;
use crate::ports::SourceFault;

/// Maximum length of a description of damage, in bytes.
const MAX_SHOWN_DAMAGE: usize = 400;

/// Maximum number of damaged parts that are recognized when another epoch reads them again.
const MAX_KNOWN_PARTS: usize = 1 << 16;

/// Maximum number of things that one warning counts.
const MAX_KNOWN_THINGS: usize = 1 << 20;

/// Notes of one source. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    left_out: BTreeMap<LeftOutReason, LeftOut>,
    /// Keys that are left out for their endings.
    endings: Endings,
    /// Rules that changed the selection.
    rules: BTreeSet<&'static str>,
    damaged: BTreeSet<Arc<str>>,
    /// Warnings: each with the things that it concerns.
    warnings: BTreeMap<&'static str, Concerned>,
    /// Fields as they were learnt, and as the samples have them.
    fields: Option<(Arc<DataFields>, Arc<DataFields>)>,
}

#[derive(Debug, Default)]
struct Concerned {
    known: HashSet<Hash>,
    /// Set if there were others beyond the maximum number.
    has_more: bool,
    first: Vec<String>,
}

impl Notes {
    /// Counts `count` things that are left out for this reason; `first` are the names of the first of them.
    pub fn leave_out<'a>(&self, reason: LeftOutReason, count: u64, first: impl IntoIterator<Item = &'a str>) {
        if count > 0 {
            let first = first.into_iter().map(|key| printable(key, MAX_SHOWN_KEY));
            locked(&self.0).leave_out(reason, count, None, first);
        }
    }

    /// Counts keys that are left out for their endings.
    pub fn leave_out_endings(&self, endings: &Endings) {
        if endings.count() > 0 {
            let mut noted = locked(&self.0);
            noted.leave_out(LeftOutReason::Suffix, endings.count(), None, []);
            noted.endings.join(endings);
        }
    }

    /// Notes that a rule which is newer than the states of earlier versions changed the keys or classes of the source. `rule` is a sentence
    /// that names the rule, and the setting that restores what was before.
    pub fn rule(&self, rule: &'static str) {
        locked(&self.0).rules.insert(rule);
    }

    /// Rules that changed the keys or classes of the source, compared with earlier versions.
    pub fn rules(&self) -> Vec<&'static str> {
        locked(&self.0).rules.iter().copied().collect()
    }

    /// Counts a damaged part, which is named by `key`, with the number of its samples if that is known; `description` states place and
    /// reason. A part that was counted before is not counted again.
    pub fn damage(&self, key: &str, samples: Option<u64>, description: &str) {
        let mut noted = locked(&self.0);
        if noted.damaged.contains(key) {
            return;
        }
        if noted.damaged.len() < MAX_KNOWN_PARTS {
            noted.damaged.insert(Arc::from(key));
        }
        let first = printable(description, MAX_SHOWN_DAMAGE);
        noted.leave_out(LeftOutReason::Damage, 1, samples, [first]);
    }

    /// Fails if a source has no sample because all of its data are damaged and left out.
    pub fn check_some_left(&self, samples: u64) -> Result<(), SourceFault> {
        let noted = locked(&self.0);
        match noted.left_out.get(&LeftOutReason::Damage).filter(|_| samples == 0) {
            None => Ok(()),
            Some(damage) => {
                let message = format!("the source has no sample: it left out {}", damage.in_words());
                Err(SourceFault::new(message, None))
            }
        }
    }

    /// Adds a warning about the thing `name`; things with the same `warning`, a plural such as "shards without an end mark", are joined.
    pub fn warn(&self, warning: &'static str, name: &str) {
        let mut noted = locked(&self.0);
        let concerned = noted.warnings.entry(warning).or_default();
        if concerned.known.len() == MAX_KNOWN_THINGS {
            concerned.has_more = true;
        } else if concerned.known.insert(Hash::EMPTY.with(name.as_bytes()))
            && concerned.first.len() < FIRST_LEFT_OUT
        {
            concerned.first.push(printable(name, MAX_SHOWN_KEY));
        }
    }

    /// Sets the fields that were learnt, and those that the samples have after missing ones are filled in.
    pub fn set_fields(&self, learnt: Arc<DataFields>, made: Arc<DataFields>) {
        locked(&self.0).fields = Some((learnt, made));
    }

    /// Fields of the samples, once they are known.
    pub fn fields(&self) -> Option<Arc<DataFields>> {
        locked(&self.0).fields.as_ref().map(|(_, made)| made.clone())
    }

    /// Fields of the data set as they were learnt, once they are known.
    pub fn learnt(&self) -> Option<Arc<DataFields>> {
        locked(&self.0).fields.as_ref().map(|(learnt, _)| learnt.clone())
    }

    /// Things that were left out so far, by reason.
    pub fn left_out(&self) -> Vec<LeftOut> {
        locked(&self.0).left_out()
    }

    /// Warnings about the source `source`, those about things that were left out first.
    pub fn warnings(&self, source: &str) -> Vec<String> {
        let noted = locked(&self.0);
        let left_out = noted.left_out();
        let left_out = left_out.iter().filter_map(|left_out| left_out.warning(source));
        let others = noted.warnings.iter().map(|(warning, Concerned { known, first, has_more })| {
            let more = if known.len() > first.len() { ", ..." } else { "" };
            let names: Vec<String> = first.iter().map(|name| format!("`{name}`")).collect();
            let (least, count) = (if *has_more { "at least " } else { "" }, known.len());
            format!("the source `{source}`: {warning}: {least}{count} ({}{more})", names.join(", "))
        });
        left_out.chain(others).collect()
    }
}

impl Noted {
    fn left_out(&self) -> Vec<LeftOut> {
        let of_endings = |left_out: &LeftOut| match left_out.reason {
            LeftOutReason::Suffix if self.endings.count() > 0 => self.endings.first(),
            _ => left_out.first.clone(),
        };
        self.left_out
            .values()
            .map(|left_out| LeftOut { first: of_endings(left_out), ..left_out.clone() })
            .collect()
    }

    fn leave_out(
        &mut self,
        reason: LeftOutReason,
        count: u64,
        samples: Option<u64>,
        first: impl IntoIterator<Item = String>,
    ) {
        let none = LeftOut { reason, count: 0, samples: None, first: Vec::new() };
        let left_out = self.left_out.entry(reason).or_insert(none);
        // Once the number of samples of one part is not known, that of all is not.
        left_out.samples = match (left_out.count, left_out.samples, samples) {
            (0, _, samples) => samples,
            (_, Some(before), Some(more)) => Some(before + more),
            _ => None,
        };
        left_out.count += count;
        let room = FIRST_LEFT_OUT - left_out.first.len();
        left_out.first.extend(first.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted_by_reason_and_the_first_are_named() {
        let notes = Notes::default();
        notes.leave_out(LeftOutReason::Hidden, 3, ["a", "b"]);
        notes.leave_out(LeftOutReason::Suffix, 1, ["x"]);
        notes.leave_out(LeftOutReason::Hidden, 4, ["c", "d", "e", "f"]);
        notes.leave_out(LeftOutReason::Link, 0, []);
        let left_out = notes.left_out();
        let counts: Vec<_> = left_out.iter().map(|left_out| (left_out.reason, left_out.count)).collect();
        assert_eq!(counts, [(LeftOutReason::Suffix, 1), (LeftOutReason::Hidden, 7)]);
        assert_eq!(left_out[1].first, ["a", "b", "c", "d", "e"]);
        assert_eq!(notes.warnings("0:src").len(), 1, "the document selects by `suffix`");
    }

    #[test]
    fn endings_are_counted_over_all_pages_and_rules_are_kept() {
        let notes = Notes::default();
        for page in [["a.txt", "b.md"], ["c.md", "d"]] {
            let mut endings = Endings::default();
            page.iter().for_each(|key| endings.add(key));
            notes.leave_out_endings(&endings);
        }
        assert_eq!(
            notes.left_out()[0].in_words(),
            "4 keys with other endings (`.md` 2, no ending 1, `.txt` 1)"
        );
        assert_eq!((notes.warnings("0:src").len(), notes.rules().len()), (0, 0));
        ["b", "a", "b"].iter().for_each(|rule| notes.rule(rule));
        assert_eq!(notes.rules(), ["a", "b"]);
    }

    #[test]
    fn a_damaged_part_is_counted_once_in_all_epochs() {
        let notes = Notes::default();
        for _ in 0..2 {
            notes.damage("a", Some(3), "`a` is empty");
            notes.damage("b", Some(4), "`b` is missing");
        }
        let left_out = notes.left_out();
        assert_eq!((left_out[0].count, left_out[0].samples), (2, Some(7)));
        assert!(notes.check_some_left(1).is_ok());
        assert_eq!(
            notes.check_some_left(0).unwrap_err().to_string(),
            "the source has no sample: it left out 2 damaged parts of the data with 7 samples (`a` is empty; `b` is missing)"
        );
        notes.damage("c", None, "`c` ends early");
        assert_eq!(notes.left_out()[0].samples, None);
    }

    #[test]
    fn warnings_of_one_kind_are_joined() {
        let notes = Notes::default();
        let long = |end: &str| format!("{}{end}", "b".repeat(300));
        ["a", &long("1"), "a", &long("2")]
            .iter()
            .for_each(|name| notes.warn("shards without an end mark", name));
        notes.warn("objects without bytes", "c");
        assert_eq!(
            notes.warnings("0:src"),
            [
                "the source `0:src`: objects without bytes: 1 (`c`)".to_owned(),
                format!(
                    "the source `0:src`: shards without an end mark: 3 (`a`, `{0}`, `{0}`)",
                    printable(&long(""), MAX_SHOWN_KEY)
                )
            ]
        );
    }
}
