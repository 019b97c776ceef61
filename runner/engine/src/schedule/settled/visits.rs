use std::collections::VecDeque;

/// Bit of the tickets that stand for save points instead of visits.
pub(super) const POINT: u32 = 1 << 31;

/// Visits by number, each settled or not.
///
/// A bit for each visit from the first unsettled one on: a sample that takes long must not make the others cost more.
#[derive(Debug, Default)]
pub(super) struct Visits {
    pub(super) made: u64,
    /// Visit of the first bit, a multiple of 64. All earlier visits are settled.
    base: u64,
    /// Bits of settled visits.
    words: VecDeque<u64>,
}

impl Visits {
    /// Adds an unsettled visit, and returns its number.
    pub(super) fn make(&mut self) -> u64 {
        let visit = self.made;
        if visit - self.base == 64 * self.words.len() as u64 {
            self.words.push_back(0);
        }
        self.made += 1;
        visit
    }

    /// The unsettled visit with this ticket.
    #[inline]
    pub(super) fn open(&self, ticket: u32) -> Option<u64> {
        if ticket & POINT != 0 {
            return None;
        }
        let offset = ticket.wrapping_sub(self.base as u32) & !POINT;
        let word = *self.words.get(offset as usize / 64)?;
        let visit = self.base + u64::from(offset);
        (visit < self.made && word >> (offset % 64) & 1 == 0).then_some(visit)
    }

    pub(super) fn set(&mut self, visit: u64) {
        let offset = visit - self.base;
        self.words[offset as usize / 64] |= 1 << (offset % 64);
        self.forget_words();
    }

    /// Settles the visits with these tickets word by word if they follow each other, as those of a large batch. Returns false, and
    /// settles none, for any other tickets.
    pub(super) fn set_run(&mut self, tickets: &[u32]) -> bool {
        let ([first, ..], [.., last]) = (tickets, tickets) else { return true };
        let is_run = tickets.is_sorted_by(|one, next| *next == one.wrapping_add(1));
        let (true, Some(first), Some(last)) = (is_run, self.open(*first), self.open(*last)) else {
            return false;
        };
        let (first, end) = (first - self.base, last + 1 - self.base);
        for (word, start) in self.words.iter_mut().zip((0..).step_by(64)).skip((first / 64) as usize) {
            if start >= end {
                break;
            }
            let (from, to) = (first.max(start) - start, end.min(start + 64) - start);
            *word |= u64::MAX >> (64 - (to - from)) << from;
        }
        self.forget_words();
        true
    }

    /// Visit below which all are settled.
    pub(super) fn frontier(&self) -> u64 {
        self.base + self.words.front().map_or(0, |word| word.trailing_ones().into())
    }

    /// Settled visits of `first..end`, as numbers from `first` on: first number and count. `None` if there are more than `most` ranges.
    pub(super) fn ranges(&self, first: u64, end: u64, most: u64) -> Option<Vec<(u64, u64)>> {
        let mut ranges = Vec::new();
        let mut begun = (first < self.base).then_some(first);
        let mut visit = first.max(self.base);
        while visit < end {
            let word = (visit - self.base) / 64;
            let bits = self.words[word as usize] >> (visit % 64);
            let left = (64 - visit % 64).min(end - visit);
            let alike = if bits & 1 == 1 { bits.trailing_ones() } else { bits.trailing_zeros() };
            match (begun, bits & 1 == 1) {
                (None, true) => begun = Some(visit),
                (Some(start), false) => {
                    if ranges.len() as u64 >= most {
                        return None;
                    }
                    ranges.push((start - first, visit - start));
                    begun = None;
                }
                _ => {}
            }
            visit += u64::from(alike).clamp(1, left);
        }
        if let Some(start) = begun.filter(|start| *start < end) {
            ranges.push((start - first, end - start));
        }
        (ranges.len() as u64 <= most).then_some(ranges)
    }

    /// Forgets visits before the first unsettled one.
    fn forget_words(&mut self) {
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.base += 64;
        }
    }
}
