use std::cmp::Reverse;

use penstock_types::policy::{FailureLimit, OnError, RATE_NEEDS_TASKS};
use penstock_types::run::{Disposition, FailureClass, FailureGroup, FailureRecord};
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::item::Sample;
use crate::ports::{Failed, Fault, SampleFailure};

/// Most groups a run lists; what comes on top is only counted.
const MAX_GROUPS: usize = 100;
const FIRST_KEYS: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    groups: Vec<OpenGroup>,
    not_listed: u64,
    samples: u64,
    fresh: Vec<SampleFailure>,
}

/// A group that may grow.
#[derive(Debug)]
struct OpenGroup {
    stage: String,
    class: FailureClass,
    message: String,
    count: u64,
    /// Epoch, index and key of the group's first samples in the order of the source: failures complete in any order.
    first: Vec<(u32, u64, String)>,
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
        self.group(stage, &sample, &fault);
        self.fresh.push(SampleFailure {
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

    pub(crate) fn take_fresh(&mut self) -> Vec<SampleFailure> {
        std::mem::take(&mut self.fresh)
    }

    /// The groups, most frequent first and then in the order of the source, and the number of failures outside of them.
    pub(crate) fn groups(&self) -> (Vec<FailureGroup>, u64) {
        let mut groups: Vec<&OpenGroup> = self.groups.iter().collect();
        groups.sort_by_key(|group| (Reverse(group.count), &group.first, &group.stage, &group.message));
        let groups = groups.into_iter().map(|group| FailureGroup {
            stage: group.stage.clone(),
            class: group.class,
            message: group.message.clone(),
            count: group.count,
            first_keys: group.first.iter().map(|(_, _, key)| key.clone()).collect(),
        });
        (groups.collect(), self.not_listed)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    fn group(&mut self, stage: &str, sample: &Sample, fault: &Fault) {
        let key = &sample.key;
        let shown = printable(key, MAX_SHOWN_KEY);
        // A message that names the sample would make a group of every sample.
        let message =
            fault.message.replace(&format!("`{key}`"), "`{key}`").replace(&format!("`{shown}`"), "`{key}`");
        let same = |group: &&mut OpenGroup| {
            group.stage == stage && group.class == fault.class && group.message == message
        };
        let first = (sample.origin.epoch, sample.origin.index, shown);
        if let Some(group) = self.groups.iter_mut().find(same) {
            group.count += 1;
            let place = group.first.partition_point(|other| *other <= first);
            if place < FIRST_KEYS {
                group.first.insert(place, first);
                group.first.truncate(FIRST_KEYS);
            }
        } else if self.groups.len() < MAX_GROUPS {
            let (stage, class, first) = (stage.to_owned(), fault.class, vec![first]);
            self.groups.push(OpenGroup { stage, class, message, count: 1, first });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Origin;

    fn failed(index: u64) -> Failed {
        let origin = Origin { epoch: 0, index, path: 0 };
        let sample = Sample { key: format!("{index}.txt").into(), origin, fields: Vec::new() };
        Failed { sample, fault: Fault::new(FailureClass::Storage, format!("no object `{index}.txt`")) }
    }

    #[test]
    fn a_group_names_its_first_samples_of_the_source_whatever_order_they_fail_in() {
        let mut log = FailureLog::default();
        for index in [9, 3, 12, 6, 0, 7, 1] {
            log.note("1:fetch", OnError::Skip, failed(index));
        }
        let (groups, _) = log.groups();
        assert_eq!(groups[0].count, 7);
        assert_eq!(groups[0].first_keys, ["0.txt", "1.txt", "3.txt", "6.txt", "7.txt"]);
    }
}
