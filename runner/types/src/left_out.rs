//! What a source did not take, by reason.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::fault::listed;
use crate::text::printable;

/// Maximum number of places that a record names.
pub const FIRST_LEFT_OUT: usize = 5;

/// Maximum number of endings that are told apart.
const MAX_ENDINGS: usize = 1000;

/// Maximum length of an ending in messages, in bytes.
const MAX_SHOWN_ENDING: usize = 40;

/// Things that a source did not take for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Reason.
    pub reason: LeftOutReason,
    /// Number of keys, files or rows.
    pub count: u64,
    /// Number of samples in them, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// First five of them; damaged ones with the place and the reason. Of keys with other endings, the five most frequent endings, each with
    /// the number of its keys.
    pub first: Vec<String>,
}

/// Numbers of keys by ending: the part of the last name from its last dot on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    count: u64,
    /// The first thousand endings; the empty one is that of names without a dot.
    by_ending: BTreeMap<String, u64>,
}

impl Endings {
    /// Counts a key.
    pub fn add(&mut self, key: &str) {
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        let ending = name.rfind('.').filter(|dot| *dot > 0).map_or("", |dot| &name[dot..]);
        self.add_all(ending, 1);
    }

    /// Adds the keys that `others` has counted.
    pub fn join(&mut self, others: &Self) {
        others.by_ending.iter().for_each(|(ending, count)| self.add_all(ending, *count));
        self.count += others.count - others.by_ending.values().sum::<u64>();
    }

    fn add_all(&mut self, ending: &str, count: u64) {
        self.count += count;
        if let Some(of_ending) = self.by_ending.get_mut(ending) {
            *of_ending += count;
        } else if self.by_ending.len() < MAX_ENDINGS {
            self.by_ending.insert(ending.to_owned(), count);
        }
    }

    /// Number of keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The most frequent endings with the numbers of their keys.
    pub fn first(&self) -> Vec<String> {
        let mut endings: Vec<_> = self.by_ending.iter().collect();
        endings.sort_by_key(|(_, count)| Reverse(**count));
        let shown = |(ending, count): (&String, &u64)| match ending.as_str() {
            "" => format!("no ending {count}"),
            ending => format!("`{}` {count}", printable(ending, MAX_SHOWN_ENDING)),
        };
        endings.into_iter().take(FIRST_LEFT_OUT).map(shown).collect()
    }
}

/// Reason why a source did not take something.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum LeftOutReason {
    /// Key with another ending than `suffix` names.
    Suffix,
    /// Row that does not meet `where`.
    Where,
    /// Listed key that the table of labels lacks, with `"missing": "skip"`.
    NoLabel,
    /// Listed key that lies in no class folder.
    NoClass,
    /// Key in a folder whose name begins with `.`, or in `__MACOSX`; in archives, hidden files, too.
    Hidden,
    /// Link that is not followed: it leads out of the store, or it is a link in an archive.
    Link,
    /// Name that cannot be a key.
    Name,
    /// Place that is no file: broken link, pipe, socket or device.
    NoFile,
    /// File of an archive whose name has no field.
    NoField,
    /// Damaged, cut, empty or missing part of the data.
    Damage,
}

impl LeftOutReason {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// True if the document selects what is left out. All other reasons are warned of.
    pub fn is_selection(self) -> bool {
        matches!(self, Self::Suffix | Self::Where | Self::NoLabel)
    }

    /// Noun phrase behind the number of things.
    fn phrase(self, is_one: bool) -> &'static str {
        let of = |one, several| if is_one { one } else { several };
        match self {
            Self::Suffix => of("key with another ending", "keys with other endings"),
            Self::Where => of("row that does not meet `where`", "rows that do not meet `where`"),
            Self::NoLabel => of("listed key without a label", "listed keys without a label"),
            Self::NoClass => of("listed key in no class folder", "listed keys in no class folder"),
            Self::Hidden => of("hidden file", "hidden files"),
            Self::Link => of("link that is not followed", "links that are not followed"),
            Self::Name => of("name that cannot be a key", "names that cannot be keys"),
            Self::NoFile => of("place that is no file", "places that are no files"),
            Self::NoField => of("file whose name has no field", "files whose names have no field"),
            Self::Damage => of("damaged part of the data", "damaged parts of the data"),
        }
    }

    /// Remedy, if there is one.
    fn remedy(self) -> &'static str {
        match self {
            Self::Hidden => "; `\"hidden\": true` takes those of folders",
            Self::Link => {
                "; links may lead into the folder of the store and into those that `--store-links` or the store's `links` names, and with \
                 `\"links\": \"files\"` only relative ones to files of the store are followed"
            }
            _ => "",
        }
    }
}

impl LeftOut {
    /// Sentence part that states the number, the reason and the first places.
    pub fn in_words(&self) -> String {
        let Self { reason, count, samples, first } = self;
        let mut words = format!("{count} {}", reason.phrase(*count == 1));
        if let Some(samples) = samples {
            let noun = if *samples == 1 { "sample" } else { "samples" };
            write!(words, " with {samples} {noun}").expect("a string takes any text");
        }
        if !first.is_empty() {
            let shown = match reason {
                LeftOutReason::Suffix => {
                    first.iter().filter_map(|ending| ending.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
                }
                _ => first.len() as u64,
            };
            let more = if *count > shown { ", ..." } else { "" };
            let first = match reason {
                LeftOutReason::Damage => first.join("; "),
                LeftOutReason::Suffix => first.join(", "),
                _ => listed(first.iter().map(String::as_str)),
            };
            write!(words, " ({first}{more})").expect("a string takes any text");
        }
        words
    }

    /// Warning about what the source `source` left out; `None` if the document selects it.
    pub fn warning(&self, source: &str) -> Option<String> {
        (!self.reason.is_selection())
            .then(|| format!("the source `{source}` left out {}{}", self.in_words(), self.reason.remedy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_by_the_part_behind_the_last_dot() {
        let mut endings = Endings::default();
        ["x/b.JPG", "x/c.jpeg", "x/d.PNG", "x/e.webp", "x/notes.txt", "x/Thumbs.db"]
            .iter()
            .for_each(|key| endings.add(key));
        let words = |endings: &Endings| {
            let (count, first) = (endings.count(), endings.first());
            LeftOut { reason: LeftOutReason::Suffix, count, samples: None, first }.in_words()
        };
        assert_eq!(
            words(&endings),
            "6 keys with other endings (`.JPG` 1, `.PNG` 1, `.db` 1, `.jpeg` 1, `.txt` 1, ...)"
        );
        let mut few = Endings::default();
        ["a.b/Makefile", ".gitignore", "a.tar.gz"].iter().for_each(|key| few.add(key));
        assert_eq!(words(&few), "3 keys with other endings (no ending 2, `.gz` 1)");
        (0..2 * MAX_ENDINGS).for_each(|number| endings.add(&format!("x.{number}")));
        assert_eq!((endings.count(), endings.by_ending.len()), (2 * MAX_ENDINGS as u64 + 6, MAX_ENDINGS));
        few.join(&endings);
        assert_eq!((few.count(), few.by_ending.len()), (2 * MAX_ENDINGS as u64 + 9, MAX_ENDINGS));
        assert!(
            words(&few).ends_with("(no ending 2, `.0` 1, `.1` 1, `.10` 1, `.100` 1, ...)"),
            "{}",
            words(&few)
        );
    }

    #[test]
    fn words_state_number_reason_and_first_places() {
        let of = |reason, count, samples, first: &[&str]| LeftOut {
            reason,
            count,
            samples,
            first: first.iter().map(|key| (*key).to_owned()).collect(),
        };
        assert_eq!(
            of(LeftOutReason::Suffix, 1, None, &["`.txt` 1"]).in_words(),
            "1 key with another ending (`.txt` 1)"
        );
        let many = of(LeftOutReason::Hidden, 7, None, &["a/.b", "a/.c"]);
        assert_eq!(many.in_words(), "7 hidden files (`a/.b`, `a/.c`, ...)");
        let damaged = of(LeftOutReason::Damage, 1, Some(10), &["`s-1.tar` is empty"]);
        assert_eq!(
            damaged.warning("0:src").unwrap(),
            "the source `0:src` left out 1 damaged part of the data with 10 samples (`s-1.tar` is empty)"
        );
        assert_eq!(of(LeftOutReason::Where, 3, None, &[]).warning("0:src"), None);
        // True of a link to a folder of the store that `"links": "files"` leaves out, too.
        assert_eq!(
            of(LeftOutReason::Link, 1, None, &["l1"]).warning("0:src").unwrap(),
            "the source `0:src` left out 1 link that is not followed (`l1`); links may lead into the folder of the store and into those that \
             `--store-links` or the store's `links` names, and with `\"links\": \"files\"` only relative ones to files of the store are followed"
        );
    }
}
