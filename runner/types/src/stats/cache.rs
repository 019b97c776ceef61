//! Figures of data caches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::{count, mib, percent};

/// Figures of the data cache of a store during a run. A look-up is one for an object, or for a block of a large one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreCacheFigures {
    /// Look-ups that the cache answered.
    pub hits: u64,
    /// Look-ups that the store answered.
    pub misses: u64,
    /// Bytes that the cache provided.
    pub hit_bytes: u64,
    /// Requests to the store for versions of objects alone.
    pub asked: u64,
    /// Damaged entries that were found while the run had the cache open; each is a miss.
    pub damaged: u64,
    /// Misses that were not kept because the store gives the object no version that tells all changes.
    pub weak: u64,
    /// Misses that were not kept because the file had changed within the last 2 s.
    pub recent: u64,
    /// Misses that were not kept for want of space.
    pub full: u64,
    /// Misses that were not kept because too many entries waited to be written.
    pub busy: u64,
    /// Misses that were not kept because the cache could not be written.
    pub failed: u64,
    /// Time of reading from the cache, in seconds, summed over all reads.
    pub wait_s: f64,
}

impl StoreCacheFigures {
    /// The figures as a line for people.
    pub fn in_words(&self) -> String {
        let share = self.hit_share().map_or_else(|| "none".to_owned(), percent);
        let (all, bytes) = (count(self.hits + self.misses), mib(self.hit_bytes));
        let kept_out = [
            (self.weak, "without a version that tells all changes"),
            (self.recent, "changed within the last 2 s"),
            (self.full, "for want of space"),
            (self.busy, "because the disk is slow"),
            (self.failed, "because the cache cannot be written"),
        ];
        let kept_out = kept_out.iter().filter(|(number, _)| *number > 0);
        let kept_out: Vec<_> = kept_out.map(|(number, why)| format!("{} {why}", count(*number))).collect();
        let mut words = format!("{share} of {all} look-ups from the cache, {bytes}");
        if !kept_out.is_empty() {
            words.push_str(&format!("; not kept: {}", kept_out.join(", ")));
        }
        if self.damaged > 0 {
            words.push_str(&format!("; {} damaged entries", count(self.damaged)));
        }
        words
    }

    /// Share of the look-ups that the cache answered; `None` without any.
    pub fn hit_share(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}
