//! Shuffle in two levels, for data that is read in units: shards, or row groups.

use super::{Permutation, mix};

/// An order of all entries in which the units are permuted, and then the entries of `window` neighbouring units among each other. So
/// at most that many units are open at a time. Stores the units, but no entries.
#[derive(Clone, Debug)]
pub struct Windows {
    /// First entry of each unit in the order of the source, and the number of all entries.
    starts: Vec<u64>,
    /// Units in permuted order.
    units: Vec<u32>,
    /// Number of entries in the permuted units before each of them, and in all.
    before: Vec<u64>,
    window: usize,
    key: u64,
}

impl Windows {
    /// The order of units with these numbers of entries, in `epoch`; `window` is at least 1.
    pub fn new(sizes: &[u64], window: usize, seed: u64, epoch: u32) -> Self {
        let permutation = Permutation::new(sizes.len() as u64, seed, epoch);
        let units: Vec<u32> = (0..sizes.len() as u64).map(|at| permutation.at(at) as u32).collect();
        let before = sums(units.iter().map(|unit| sizes[*unit as usize]));
        let key = mix(seed ^ mix(u64::from(epoch) + 1));
        Self { starts: sums(sizes.iter().copied()), units, before, window: window.max(1), key }
    }

    /// Entry at `position`. Panics when `position` is not below the number of entries.
    pub fn at(&self, position: u64) -> u64 {
        let window = self.unit_at(position) / self.window;
        let first = window * self.window;
        let last = self.units.len().min(first + self.window);
        let start = self.before[first];
        let permutation = Permutation::new(self.before[last] - start, self.key ^ window as u64, 0);
        let position = start + permutation.at(position - start);
        let place = self.unit_at(position);
        self.starts[self.units[place] as usize] + position - self.before[place]
    }

    /// Place of the unit, in permuted order, that has this position.
    fn unit_at(&self, position: u64) -> usize {
        // Units without entries begin where the next one does: the last of them has the position.
        self.before.partition_point(|before| *before <= position) - 1
    }
}

/// Sums of the numbers before each of them, and of all.
fn sums(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0;
    let mut sums = vec![0];
    sums.extend(numbers.map(|number| {
        sum += number;
        sum
    }));
    sums
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_entry_has_one_position_and_few_units_are_open_at_a_time(
            sizes in proptest::collection::vec(0_u64..30, 0..40), window in 1_usize..50, seed: u64, epoch in 0_u32..3,
        ) {
            let starts = sums(sizes.iter().copied());
            let count = *starts.last().unwrap();
            let windows = Windows::new(&sizes, window, seed, epoch);
            let order: Vec<u64> = (0..count).map(|position| windows.at(position)).collect();
            let all: BTreeSet<u64> = order.iter().copied().collect();
            prop_assert!(all.into_iter().eq(0..count));
            let units: Vec<usize> = order.iter().map(|entry| starts.partition_point(|start| start <= entry) - 1).collect();
            // A unit is open from its first to its last entry.
            for position in 0..units.len() {
                let is_open = |unit: &&usize| units[position..].contains(unit) && units[..=position].contains(unit);
                let open: BTreeSet<&usize> = units.iter().filter(is_open).collect();
                prop_assert!(open.len() <= window, "{} of {window}", open.len());
            }
        }
    }

    #[test]
    fn epochs_differ_in_the_order_of_units_and_of_their_entries() {
        let order = |epoch| {
            let windows = Windows::new(&[100; 8], 2, 7, epoch);
            (0..800).map(|position| windows.at(position)).collect::<Vec<_>>()
        };
        assert_ne!(order(0), order(1));
        let first: BTreeSet<u64> = order(0)[..200].iter().map(|entry| entry / 100).collect();
        assert_eq!(first.len(), 2);
        assert!(!order(0)[..200].is_sorted());
    }
}
