use penstock_types::plan::AggregatePlan;

use crate::item::Sample;

/// Most samples for which a new batch gets memory in advance.
const MAX_RESERVED: usize = 1024;

/// Rule by which `aggregate` completes a batch: the number of its samples.
#[derive(Debug)]
pub(super) struct Fill {
    size: usize,
    /// Mean size of the samples in the current batch, or in the previous one if the current batch is empty, in bytes.
    sample_bytes: u64,
}

impl Fill {
    pub(super) fn of(plan: AggregatePlan) -> Self {
        Self { size: plan.size, sample_bytes: 0 }
    }

    /// True if the batch of `collected` samples is complete. The samples were added since the last call, and have `bytes` together.
    pub(super) fn completes(&mut self, collected: &[Sample], bytes: u64) -> bool {
        self.sample_bytes = bytes / (collected.len() as u64).max(1);
        collected.len() >= self.size
    }

    /// Expected bytes of the samples that complete the batch.
    pub(super) fn missing_bytes(&self, collected: &[Sample]) -> u64 {
        let missing = self.size.saturating_sub(collected.len()) as u64;
        missing.saturating_mul(self.sample_bytes)
    }

    /// Number of samples for which a new batch gets memory.
    pub(super) fn capacity(&self) -> usize {
        self.size.min(MAX_RESERVED)
    }

    /// Progress of a batch, e.g. `3 of 8 samples`.
    pub(super) fn in_words(&self, collected: &[Sample]) -> String {
        format!("{} of {} samples", collected.len(), self.size)
    }
}
