use std::cmp::Reverse;
use std::sync::Mutex;

use penstock_types::policy::{
    FailureLimit, OnError, RATE_NEEDS_TASKS, USUAL_NEEDS_FAILURES, USUAL_NEEDS_SAMPLES, USUAL_RATE,
};
use penstock_types::run::{Disposition, FailureClass, FailureGroup, FailureRecord};
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::item::Origin;
use crate::lock::locked;
use crate::ports::{Failed, Fault, SampleFailure};

/// Maximum number of failure groups of a run; failures outside these groups are only counted.
const MAX_GROUPS: usize = 100;
const FIRST_KEYS: usize = 5;

/// Maximum number of samples added to groups before the lock of the groups is released to other threads.
const BOOKED_AT_ONCE: usize = 256;

/// Failed samples of one task, as returned by the schedule: they are turned into records outside the run's lock.
#[derive(Debug)]
pub(crate) struct FailedTask {
    stage: String,
    pub(super) disposition: Disposition,
    failed: Vec<Failed>,
    /// Placeholder failure for the samples that the op did not return, and the number of these samples.
    lost: Option<(Failed, u64)>,
}

/// Failures of a run by group, behind their own lock.
#[derive(Debug, Default)]
pub(crate) struct FailureGroups {
    groups: Vec<OpenGroup>,
    not_listed: u64,
}

/// A group to which further failures may be added.
#[derive(Debug)]
struct OpenGroup {
    stage: String,
    class: FailureClass,
    message: String,
    count: u64,
    /// Epoch, index and key of the group's first samples in the order of the source; needed because failures arrive in any order.
    first: Vec<(u32, u64, String)>,
}

impl FailedTask {
    pub(crate) fn new(
        stage: &str,
        on_error: OnError,
        failed: Vec<Failed>,
        lost: Option<(Failed, u64)>,
    ) -> Self {
        let disposition = match on_error {
            OnError::Skip | OnError::Fail => Disposition::Skipped,
            OnError::DeadLetter => Disposition::DeadLettered,
        };
        Self { stage: stage.to_owned(), disposition, failed, lost }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.failed.len() as u64 + self.lost.as_ref().map_or(0, |(_, lost)| *lost)
    }

    /// Origins of the samples that the op returned as failed.
    pub(crate) fn origins(&self) -> impl Iterator<Item = Origin> + '_ {
        self.failed.iter().map(|failed| failed.sample.origin)
    }

    /// Key and message of the first sample that failed.
    pub(crate) fn first_in_words(&self) -> String {
        let first = self.failed.first().or(self.lost.as_ref().map(|(failed, _)| failed));
        first.map_or_else(String::new, |Failed { sample, fault }| {
            format!("sample `{}` failed: {}", printable(&sample.key, MAX_SHOWN_KEY), fault.message)
        })
    }

    /// Stage, key and message of the first sample that failed.
    pub(crate) fn in_words(&self) -> String {
        format!("stage `{}`: {}", self.stage, self.first_in_words())
    }

    /// Adds all samples to their groups and calls `report` for each. Called without the run's lock.
    pub(crate) fn book(self, groups: &Mutex<FailureGroups>, mut report: impl FnMut(&SampleFailure)) {
        let Self { stage, disposition, failed, lost } = self;
        let lost = lost.into_iter().flat_map(|(failed, lost)| (0..lost).map(move |_| failed.clone()));
        let mut rest = failed.into_iter().chain(lost).peekable();
        while rest.peek().is_some() {
            let some = rest.by_ref().take(BOOKED_AT_ONCE).map(|failed| (common_message(&failed), failed));
            let some: Vec<(String, Failed)> = some.collect();
            let mut groups = locked(groups);
            some.iter().for_each(|(message, failed)| groups.add(&stage, failed, message));
            drop(groups);
            for (_, Failed { sample, fault }) in some {
                let record = FailureRecord {
                    stage: stage.clone(),
                    key: sample.key.to_string(),
                    epoch: sample.origin.epoch,
                    index: sample.origin.index,
                    class: fault.class,
                    message: fault.message.to_string(),
                    disposition,
                };
                report(&SampleFailure { record, sample });
            }
        }
    }
}

/// Message of a failure with a placeholder in place of the sample's key; with the key, each sample would form a separate group.
fn common_message(failed: &Failed) -> String {
    let (key, message) = (&failed.sample.key, &failed.fault.message);
    if !message.contains('`') {
        return message.to_string();
    }
    let shown = printable(key, MAX_SHOWN_KEY);
    message.replace(&format!("`{key}`"), "`…`").replace(&format!("`{shown}`"), "`…`")
}

impl FailureGroups {
    /// Failure groups, most frequent first and then in the order of the source, and the number of failures in no group.
    pub(crate) fn listed(&self) -> (Vec<FailureGroup>, u64) {
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

    fn add(&mut self, stage: &str, failed: &Failed, message: &str) {
        let Failed { sample, fault } = failed;
        let same = |group: &&mut OpenGroup| {
            group.stage == stage && group.class == fault.class && group.message == message
        };
        let first = || (sample.origin.epoch, sample.origin.index, printable(&sample.key, MAX_SHOWN_KEY));
        if let Some(group) = self.groups.iter_mut().find(same) {
            group.count += 1;
            let is_early =
                |last: &(u32, u64, String)| (sample.origin.epoch, sample.origin.index) <= (last.0, last.1);
            if group.first.len() < FIRST_KEYS || group.first.last().is_some_and(is_early) {
                let first = first();
                let place = group.first.partition_point(|other| *other <= first);
                group.first.insert(place, first);
                group.first.truncate(FIRST_KEYS);
            }
        } else if self.groups.len() < MAX_GROUPS {
            let (stage, message) = (stage.to_owned(), message.to_owned());
            self.groups.push(OpenGroup {
                stage,
                class: fault.class,
                message,
                count: 1,
                first: vec![first()],
            });
        } else {
            self.not_listed += 1;
        }
    }
}

/// True if `failures` among `tasks` exceed the limit. A rate applies only after enough tasks, unless the run is `over`.
pub(crate) fn exceeds(limit: FailureLimit, failures: u64, tasks: u64, over: bool) -> bool {
    match limit {
        FailureLimit::Count(most) => failures > most,
        FailureLimit::Usual => {
            let is_judged = tasks >= USUAL_NEEDS_SAMPLES || over && failures >= USUAL_NEEDS_FAILURES;
            is_judged && failures as f64 > USUAL_RATE * tasks as f64
        }
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
        FailureLimit::Usual => {
            let most = USUAL_RATE * 100.0;
            format!(
                "{who}: {failures} of {of} failed, which is more than {most} %; to permit it, set `max_failures`, such as \
                 `{{\"rate\": 0.2}}` or `null`"
            )
        }
    }
}

/// Fault of an op that returned fewer samples than it took.
pub(crate) fn lost_samples(missing: u64) -> Fault {
    let message = format!(
        "the stage returned {missing} samples fewer than it took, and reported them neither as dropped nor as failed"
    );
    Fault::new(FailureClass::Contract, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Sample;

    fn failed(index: u64) -> Failed {
        let origin = Origin::at(0, index);
        let sample = Sample { key: format!("{index}.txt").into(), origin, fields: Vec::new() };
        Failed { sample, fault: Fault::new(FailureClass::Storage, format!("no object `{index}.txt`")) }
    }

    #[test]
    fn a_group_lists_its_first_samples_in_source_order_independent_of_failure_order() {
        let groups = Mutex::new(FailureGroups::default());
        let mut reported = Vec::new();
        for indexes in [vec![9, 3], vec![12, 6, 0], vec![7], vec![1]] {
            let task =
                FailedTask::new("1:fetch", OnError::Skip, indexes.into_iter().map(failed).collect(), None);
            task.book(&groups, |failure| reported.push(failure.record.index));
        }
        assert_eq!(reported, [9, 3, 12, 6, 0, 7, 1]);
        let (groups, _) = groups.into_inner().unwrap().listed();
        assert_eq!(groups[0].count, 7);
        assert_eq!(groups[0].first_keys, ["0.txt", "1.txt", "3.txt", "6.txt", "7.txt"]);
    }
}
