use std::collections::VecDeque;

use penstock_types::policy::{FailureLimit, USUAL_NEEDS_FAILURES, USUAL_RATE};

use super::failures::too_many;

/// Samples made and failed in each of the latest epochs.
#[derive(Debug, Default)]
pub(crate) struct EpochBooks {
    /// Counts of samples by epoch, oldest epoch first.
    books: VecDeque<EpochBook>,
    /// Description of the first epoch in which every sample failed, or more than the default limit permits.
    lost: Option<String>,
    /// First epoch whose samples may not all fail.
    judged_from: u32,
    /// Set if the default limit applies to each epoch.
    is_usual: bool,
}

#[derive(Debug, Default)]
struct EpochBook {
    epoch: u32,
    /// Samples made by the source and by fan-outs, minus the samples discarded with incomplete batches.
    made: u64,
    failed: u64,
    first_failure: Option<String>,
    /// Set once the source has put its last sample of this epoch.
    ended: bool,
    /// Set once all its samples have passed the stages.
    passed: bool,
}

/// Maximum number of observed epochs: a failure in an older epoch counts only as a failure of the run. More epochs can be in
/// progress only if queues hold more than a thousand epochs of a few samples each.
const MAX_EPOCHS: usize = 1024;

impl EpochBooks {
    /// Creates books without samples; all samples of epochs before `epoch` may fail.
    pub(crate) fn judged_from(epoch: u32, limit: Option<FailureLimit>) -> Self {
        Self { judged_from: epoch, is_usual: limit == Some(FailureLimit::Usual), ..Self::default() }
    }

    /// Counts a sample made by the source, which makes one epoch after the other.
    pub(crate) fn made(&mut self, epoch: u32) {
        if let Some(book) = self.books.back_mut().filter(|book| book.epoch == epoch) {
            book.made += 1;
            return;
        }
        if self.books.len() == MAX_EPOCHS {
            self.books.pop_front();
        }
        self.books.push_back(EpochBook { epoch, made: 1, ..EpochBook::default() });
    }

    /// Counts samples that a fan-out added in `epoch`.
    pub(crate) fn added(&mut self, epoch: u32, samples: u64) {
        self.change(epoch, |book| book.made += samples);
    }

    /// Counts samples of `epoch` that were discarded with an incomplete batch.
    pub(crate) fn discarded(&mut self, epoch: u32, samples: u64) {
        self.change(epoch, |book| book.made = book.made.saturating_sub(samples));
    }

    /// Counts samples that failed in `epoch`; `first` describes the first of them.
    pub(crate) fn failed(&mut self, epoch: u32, samples: u64, first: impl FnOnce() -> String) {
        self.change(epoch, |book| {
            book.failed += samples;
            book.first_failure.get_or_insert_with(first);
        });
    }

    /// Records that the source has put the last sample of its current epoch.
    pub(crate) fn end(&mut self) {
        if let Some(epoch) = self.books.back().map(|book| book.epoch) {
            self.change(epoch, |book| book.ended = true);
        }
    }

    /// Records that all samples of the oldest epoch have passed the stages.
    pub(crate) fn pass(&mut self) {
        let Some(book) = self.books.iter_mut().find(|book| !book.passed) else { return };
        book.passed = true;
        let (failed, made) = (book.failed, book.made);
        let is_exceeded = failed >= USUAL_NEEDS_FAILURES && failed as f64 > USUAL_RATE * made as f64;
        if self.is_usual && is_exceeded && book.epoch >= self.judged_from && self.lost.is_none() {
            let of = format!("{made} samples");
            self.lost = Some(too_many(&format!("epoch {}", book.epoch), FailureLimit::Usual, failed, &of));
        }
    }

    /// Reason for failing the run: an epoch in which every sample failed, or too many.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn change(&mut self, epoch: u32, change: impl FnOnce(&mut EpochBook)) {
        let Some(book) = self.books.iter_mut().rev().find(|book| book.epoch == epoch) else { return };
        change(book);
        let lost = book.lost().filter(|_| epoch >= self.judged_from);
        self.lost = self.lost.take().or(lost);
    }
}

impl EpochBook {
    /// Returns a description if every sample of the epoch failed.
    fn lost(&self) -> Option<String> {
        let first = self.first_failure.as_ref()?;
        (self.ended && self.failed >= self.made).then(|| {
            format!("all {} samples of epoch {} failed, the first in {first}", self.failed, self.epoch)
        })
    }
}
