use std::sync::Arc;

use penstock_types::policy::{FailureLimit, OnError, RATE_NEEDS_TASKS};
use penstock_types::run::{Disposition, FailureClass, FailureGroup, FailureRecord};
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::ports::{Failed, Failure, Fault};

/// Most groups a run lists; what comes on top is only counted.
const MAX_GROUPS: usize = 100;
/// Keys a group names.
const FIRST_KEYS: usize = 5;

/// Counts and groups the failures of one run.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    groups: Vec<FailureGroup>,
    not_listed: u64,
    samples: u64,
    fresh: Vec<Failure>,
}

impl FailureLog {
    /// Notes a failed sample and says what becomes of it.
    pub(crate) fn note(&mut self, stage: &str, on_error: OnError, failed: Failed) -> Disposition {
        let disposition = match on_error {
            OnError::Skip | OnError::Fail => Disposition::Skipped,
            OnError::DeadLetter => Disposition::DeadLettered,
        };
        let Failed { sample, fault } = failed;
        self.samples += 1;
        self.group(stage, &sample.key, &fault);
        self.fresh.push(Failure {
            record: FailureRecord {
                stage: stage.to_owned(),
                key: sample.key.to_string(),
                epoch: sample.origin.epoch,
                index: sample.origin.index,
                class: fault.class,
                message: fault.message.to_string(),
                disposition,
            },
            sample,
        });
        disposition
    }

    /// Failures noted since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.fresh)
    }

    /// The groups, most frequent first, and how many failures are in none.
    pub(crate) fn groups(&self) -> (Vec<FailureGroup>, u64) {
        let mut groups = self.groups.clone();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        (groups, self.not_listed)
    }

    /// Samples that failed so far.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    fn group(&mut self, stage: &str, key: &Arc<str>, fault: &Fault) {
        let shown = printable(key, MAX_SHOWN_KEY);
        // A message that names the sample would make a group of every sample.
        let message =
            fault.message.replace(&format!("`{key}`"), "`{key}`").replace(&format!("`{shown}`"), "`{key}`");
        let same = |group: &&mut FailureGroup| {
            group.stage == stage && group.class == fault.class && group.message == message
        };
        if let Some(group) = self.groups.iter_mut().find(same) {
            group.count += 1;
            if group.first_keys.len() < FIRST_KEYS {
                group.first_keys.push(shown);
            }
        } else if self.groups.len() < MAX_GROUPS {
            let first_keys = vec![shown];
            self.groups.push(FailureGroup {
                stage: stage.to_owned(),
                class: fault.class,
                message,
                count: 1,
                first_keys,
            });
        } else {
            self.not_listed += 1;
        }
    }
}

/// Whether `failures` of `tasks` are too many. A rate needs enough tasks to mean something, unless the run is `over`.
pub(crate) fn exceeds(limit: FailureLimit, failures: u64, tasks: u64, over: bool) -> bool {
    match limit {
        FailureLimit::Count(most) => failures > most,
        FailureLimit::Rate(most) => {
            tasks > 0 && (over || tasks >= RATE_NEEDS_TASKS) && failures as f64 > most * tasks as f64
        }
    }
}

/// Says what was exceeded, for people.
pub(crate) fn too_many(who: &str, limit: FailureLimit, failures: u64, of: &str) -> String {
    match limit {
        FailureLimit::Count(most) => {
            format!("{who}: {failures} failed samples, `max_failures` allows {most}")
        }
        FailureLimit::Rate(most) => {
            format!("{who}: {failures} of {of} failed, `max_failures` allows a share of {most}")
        }
    }
}

/// The fault of an op that gave back fewer samples than it took.
pub(crate) fn lost_samples(missing: u64) -> Fault {
    Fault::new(
        FailureClass::Contract,
        format!(
            "the stage gave back {missing} samples fewer than it took, without saying what became of them"
        ),
    )
}
