//! Failures of reads and stages, grouped by kind.

use std::collections::BTreeMap;

use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::subject::Subject;
use crate::worker::ReadFailure;

const MAX_GROUPS: usize = 50;
const MAX_KEYS: usize = 5;
const MAX_MESSAGE: usize = 1000;

/// Failures with the same error message, apart from the key of the object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadFailures {
    /// Failed part: `storage`, or `stage`.
    pub what: String,
    /// Error message, with `…` in place of the object's key.
    pub message: String,
    pub count: u64,
    /// Keys of some of the failed objects.
    pub keys: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) groups: Vec<ReadFailures>,
    /// Number of failures that have no group because there are already `MAX_GROUPS`, by failed part.
    others: BTreeMap<&'static str, u64>,
}

impl Failures {
    pub(crate) fn add(&mut self, subject: &Subject, failures: Vec<ReadFailure>) {
        for ReadFailure { object, what, message } in failures {
            let key = object.map_or("", |object| &*subject.objects[object as usize].key);
            // The key is replaced together with its quotes, because a key such as `7` may also occur elsewhere in the message.
            let message = printable(&message.replace(&format!("`{key}`"), "`…`"), MAX_MESSAGE);
            let what: &'static str = what.into();
            let keys: Vec<String> = object.map(|_| printable(key, MAX_MESSAGE)).into_iter().collect();
            match self.groups.iter().position(|group| group.what == what && group.message == message) {
                Some(place) => {
                    let group = &mut self.groups[place];
                    group.count += 1;
                    for key in keys {
                        // The first keys in sorted order are kept: since reads end in any order, the first failures would differ
                        // in each run.
                        if let Err(place) = group.keys.binary_search(&key) {
                            group.keys.insert(place, key);
                            group.keys.truncate(MAX_KEYS);
                        }
                    }
                }
                None if self.groups.len() < MAX_GROUPS => {
                    self.groups.push(ReadFailures { what: what.to_owned(), message, count: 1, keys });
                }
                None => *self.others.entry(what).or_default() += 1,
            }
        }
    }

    /// Returns all groups, and then at most two more: failures of storage and of stages that have no group of their own.
    pub(crate) fn into_groups(self) -> Vec<ReadFailures> {
        let Self { mut groups, others } = self;
        groups.sort_by(|one, other| (&one.what, &one.message).cmp(&(&other.what, &other.message)));
        groups.extend(others.into_iter().map(|(what, count)| ReadFailures {
            what: what.to_owned(),
            message: "further kinds of failures".to_owned(),
            count,
            keys: Vec::new(),
        }));
        groups
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use penstock_storage::{BoundedStore, MemoryStore};
    use penstock_types::config::BenchStoreKind;

    use super::*;
    use crate::worker::FailedIn;

    #[test]
    fn further_kinds_of_failures_are_counted_by_the_failed_part() {
        let store = BoundedStore::new(Arc::new(MemoryStore::new("memory")), NonZeroUsize::MIN);
        let subject = Subject::of(store, BenchStoreKind::Memory, Vec::new());
        let mut failures = Failures::default();
        for number in 0..MAX_GROUPS + 3 {
            let message = format!("stage `decode`: kind {number}");
            failures.add(&subject, vec![ReadFailure { object: None, what: FailedIn::Stage, message }]);
        }
        let told = failures.into_groups();
        let others: Vec<(&str, u64)> =
            told[MAX_GROUPS..].iter().map(|group| (group.what.as_str(), group.count)).collect();
        assert_eq!(others, [("stage", 3)]);
    }
}
