//! What failed, in groups.

use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::subject::Subject;
use crate::worker::{FailedIn, ReadFailure};

/// Most kinds of failures that are told.
const MAX_GROUPS: usize = 50;
/// Most objects of a kind that are named.
const MAX_KEYS: usize = 5;
/// Most bytes of a message.
const MAX_MESSAGE: usize = 1000;

/// Failures that differ in their objects only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ReadFailures")]
pub struct FailureGroup {
    /// `storage`, or `stage`.
    pub what: String,
    /// What was found; the object's key stands as `…`.
    pub message: String,
    /// How many.
    pub count: u64,
    /// Some of the objects.
    pub keys: Vec<String>,
}

/// All failures of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) groups: Vec<FailureGroup>,
    /// Those of further kinds.
    others: u64,
}

impl Failures {
    pub(crate) fn add(&mut self, subject: &Subject, failures: Vec<ReadFailure>) {
        for ReadFailure { object, what, message } in failures {
            let key = object.map_or("", |object| &*subject.objects[object as usize].key);
            // As messages quote it: a key may be a number that stands elsewhere, too.
            let message = printable(&message.replace(&format!("`{key}`"), "`…`"), MAX_MESSAGE);
            let what = match what {
                FailedIn::Storage => "storage",
                FailedIn::Stage => "stage",
            };
            let keys: Vec<String> = object.map(|_| printable(key, MAX_MESSAGE)).into_iter().collect();
            match self.groups.iter().position(|group| group.what == what && group.message == message) {
                Some(place) => {
                    let group = &mut self.groups[place];
                    group.count += 1;
                    for key in keys {
                        if group.keys.len() < MAX_KEYS && !group.keys.contains(&key) {
                            group.keys.push(key);
                        }
                    }
                }
                None if self.groups.len() < MAX_GROUPS => {
                    self.groups.push(FailureGroup { what: what.to_owned(), message, count: 1, keys });
                }
                None => self.others += 1,
            }
        }
    }

    /// All groups, with one more for what does not fit.
    pub(crate) fn told(self) -> Vec<FailureGroup> {
        let Self { mut groups, others } = self;
        if others > 0 {
            let message = "further kinds of failures".to_owned();
            groups.push(FailureGroup {
                what: "storage".to_owned(),
                message,
                count: others,
                keys: Vec::new(),
            });
        }
        groups
    }
}
