use std::collections::VecDeque;

use crate::item::{Item, Origin};
use crate::schedule::Schedule;

/// Items that a consumer has taken and has not completed, for consumers that complete items later.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    /// Origins of the samples of each item, in the order of the items.
    waiting: VecDeque<Vec<Origin>>,
    completed: u64,
    /// Items and samples that are completed and not yet reported to the schedule.
    items: u64,
    samples: Vec<Origin>,
}

impl Handed {
    pub(crate) fn take(&mut self, item: &Item) {
        self.waiting.push_back(item.origins().collect());
    }

    /// Records that the consumer has completed its first items, `completed` in all.
    pub(crate) fn complete(&mut self, completed: u64) {
        while self.completed < completed
            && let Some(samples) = self.waiting.pop_front()
        {
            self.samples.extend(samples);
            self.completed += 1;
            self.items += 1;
        }
    }

    /// Reports the completed items.
    pub(crate) fn settle(&mut self, schedule: &mut Schedule) {
        if self.items > 0 {
            schedule.hand_out(std::mem::take(&mut self.items), &self.samples);
            self.samples.clear();
        }
    }
}
