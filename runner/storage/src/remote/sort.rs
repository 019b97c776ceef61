//! Sorts the keys of services that list them in no order, such as directory buckets of S3 Express One Zone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::index::MAX_INDEX_BYTES;
use crate::keys::{Keys, PackedKeys};
use crate::remote::failure::Failure;

/// Number of keys that are sorted at a time. The sorted keys are kept front-coded.
const RUN_KEYS: usize = 1 << 16;

const PAGE_KEYS: usize = 1000;

/// Keys on their way to being sorted.
#[derive(Default)]
pub(crate) struct Sorter {
    run: Vec<String>,
    runs: Vec<PackedKeys>,
    left_out: Keys,
}

/// Sorted keys, each of them once.
pub(crate) struct SortedKeys {
    runs: Vec<Box<dyn Iterator<Item = String> + Send>>,
    next: BinaryHeap<Reverse<(String, usize)>>,
    left_out: Option<Keys>,
}

impl Sorter {
    pub(crate) fn add(&mut self, page: &Keys) -> Result<(), Failure> {
        self.run.extend(page.iter().map(str::to_owned));
        self.left_out.add_left_out(page);
        if self.run.len() >= RUN_KEYS {
            self.end_run();
            if self.runs.iter().map(PackedKeys::bytes).sum::<u64>() > MAX_INDEX_BYTES {
                return Err(Failure::lasting(format!(
                    "the service lists keys in no order, and those to be sorted take more than {MAX_INDEX_BYTES} bytes of memory; list \
                     parts of them with longer prefixes"
                )));
            }
        }
        Ok(())
    }

    fn end_run(&mut self) {
        self.run.sort_unstable();
        let mut packed: PackedKeys = self.run.drain(..).collect();
        packed.shrink();
        self.runs.push(packed);
    }

    pub(crate) fn sorted(mut self) -> SortedKeys {
        self.end_run();
        let runs = self.runs.into_iter().map(|run| Box::new(run.into_keys()) as Box<_>).collect();
        let mut sorted = SortedKeys { runs, next: BinaryHeap::new(), left_out: Some(self.left_out) };
        (0..sorted.runs.len()).for_each(|run| sorted.advance(run));
        sorted
    }
}

impl SortedKeys {
    fn advance(&mut self, run: usize) {
        self.next.extend(self.runs[run].next().map(|key| Reverse((key, run))));
    }

    fn next_key(&mut self) -> Option<String> {
        let Reverse((key, run)) = self.next.pop()?;
        self.advance(run);
        while let Some(Reverse((_, run))) = self.next.peek().filter(|Reverse((next, _))| *next == key) {
            let run = *run;
            self.next.pop();
            self.advance(run);
        }
        Some(key)
    }

    /// Removes what was returned before: `count` keys up to `last`, and what was left out meanwhile. Returns false if the first keys are
    /// others.
    pub(crate) fn skip(&mut self, count: u64, last: &str, left_out: &Keys) -> bool {
        self.left_out.iter_mut().for_each(|all| all.subtract_left_out(left_out));
        count == 0
            || ((1..count).all(|_| self.next_key().is_some()) && self.next_key().as_deref() == Some(last))
    }

    /// Returns the next keys; `None` at the end.
    pub(crate) fn next_page(&mut self) -> Option<Keys> {
        let left_out = self.left_out.take();
        let mut page = left_out.unwrap_or_default();
        while page.len() < PAGE_KEYS {
            let Some(key) = self.next_key() else { break };
            page.push(&key);
        }
        (!page.is_empty() || !page.left_out.is_empty()).then_some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_many_runs_are_sorted_and_occur_once() {
        let mut sorter = Sorter::default();
        // 7919 and 200,003 have no common divisor, so that each number occurs twice.
        let keys: Vec<String> =
            (0..400_006_u64).map(|number| format!("{:06}", number * 7919 % 200_003)).collect();
        for page in keys.chunks(1000) {
            let mut of_page = Keys::default();
            page.iter().for_each(|key| of_page.push(key));
            sorter.add(&of_page).unwrap();
        }
        let mut sorted = sorter.sorted();
        assert!(sorted.skip(3, "000002", &Keys::default()));
        let mut found = Vec::new();
        while let Some(page) = sorted.next_page() {
            assert!(page.len() <= PAGE_KEYS);
            found.extend(page.iter().map(str::to_owned));
        }
        assert!(found.into_iter().eq((3..200_003).map(|number| format!("{number:06}"))));
        let mut other = Sorter::default();
        let mut page = Keys::default();
        ["b", "a"].iter().for_each(|key| page.push(key));
        other.add(&page).unwrap();
        assert!(!other.sorted().skip(1, "b", &Keys::default()));
    }
}
