use penstock_types::policy::FailureLimit;

use super::epochs::EpochBooks;
use super::failures::{FailedTask, exceeds, too_many};

/// Message of an error that ends a run as failed.
#[derive(Debug)]
pub(crate) struct RunError(pub(crate) String);

/// State of a run at and after its end, or after a failure that ends it.
#[derive(Debug, Default)]
pub(crate) struct RunEnd {
    pub(super) error: Option<String>,
    pub(super) over: bool,
    /// Set if the run has ended because another rank had no more batches: number of samples that the source would still have made.
    pub(super) unread: Option<u64>,
    /// Nodes that are stopped, because a stage downstream of them failed the run; empty before.
    pub(super) dead: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct RunFailures {
    pub(super) samples: u64,
    /// Tasks that failed since they were last taken.
    pub(super) tasks: Vec<FailedTask>,
    pub(super) epochs: EpochBooks,
    limit: Option<FailureLimit>,
}

impl RunEnd {
    /// Records an error, unless there is one.
    pub(crate) fn fail(&mut self, message: String) {
        self.error.get_or_insert(message);
    }

    pub(crate) fn is_dead(&self, node: usize) -> bool {
        self.dead.get(node) == Some(&true)
    }
}

impl RunFailures {
    /// Starts without failures; all samples of epochs before `epoch` may fail.
    pub(crate) fn judged_from(epoch: u32, limit: Option<FailureLimit>) -> Self {
        Self { samples: 0, tasks: Vec::new(), epochs: EpochBooks::judged_from(epoch, limit), limit }
    }

    /// Counts the samples of a failed task, which are of `epoch`.
    pub(crate) fn add(&mut self, epoch: u32, task: FailedTask) {
        self.samples += task.samples();
        self.epochs.failed(epoch, task.samples(), || task.in_words());
        self.tasks.push(task);
    }

    /// Reason for ending the run if its limit is exceeded; `made` returns the number of samples made.
    pub(crate) fn exceeded(&self, made: impl FnOnce() -> u64, over: bool) -> Option<String> {
        let limit = self.limit.filter(|_| self.samples > 0)?;
        let made = made();
        exceeds(limit, self.samples, made, over)
            .then(|| too_many("run", limit, self.samples, &format!("{made} samples")))
    }
}
