use std::collections::VecDeque;

/// Epochs that the source has begun, from the last settled one on.
#[derive(Debug, Default)]
pub(super) struct VisitEpochs {
    pub(super) begun: VecDeque<EpochVisits>,
    /// Number of epochs that the source has ended.
    pub(super) ends: u64,
    /// Set once the source was ended before the end of its data.
    pub(super) is_cut: bool,
}

#[derive(Debug)]
pub(super) struct EpochVisits {
    pub(super) epoch: u32,
    /// First visit.
    pub(super) first: u64,
    /// Visit after the last one, if the epoch has ended, and number of epochs that had ended then.
    pub(super) end: Option<(u64, u64)>,
}

impl VisitEpochs {
    /// Adds `visit` to the current epoch, which is `epoch` if this is its first visit. Returns the epoch and the visit's number in it.
    pub(super) fn add(&mut self, epoch: u32, visit: u64) -> (u32, u64) {
        match self.begun.back() {
            Some(last) if last.end.is_none() => (last.epoch, visit - last.first),
            _ => {
                self.begun.push_back(EpochVisits { epoch, first: visit, end: None });
                (epoch, 0)
            }
        }
    }

    /// Ends the current epoch before the visit `end`.
    pub(super) fn end(&mut self, end: u64) {
        self.ends += 1;
        if let Some(last) = self.begun.back_mut() {
            last.end.get_or_insert((end, self.ends));
        }
    }

    /// Forgets epochs before the last settled one, which another rank may not have settled. Settled epochs end at most at the visit
    /// `frontier`, and are among the first `finished` ones.
    pub(super) fn forget(&mut self, frontier: u64, finished: u64) {
        let is_settled = |(end, number): (u64, u64)| end <= frontier && number <= finished;
        while self.begun.get(1).is_some_and(|second| second.end.is_some_and(is_settled)) {
            self.begun.pop_front();
        }
    }
}
