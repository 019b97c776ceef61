//! Selection and order of the entries of a source that a run visits.
//!
//! One rule holds for every source, so that ranks agree without communication: all entries are permuted globally by (seed,
//! epoch), then `limit` keeps the first entries of that order, then a shard takes every `world`-th entry, starting at `rank`.

mod mixture;
mod windows;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

pub use mixture::{Draw, MAX_WEIGHTS, Mixture, MixtureFault, Part, Pick, Stop, check_weights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use windows::Windows;

use crate::resume::{EpochShare, StartPoint, Visits};

/// Part of the entries that this process visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Number of this process, from 0; below `world`.
    pub rank: u32,
    /// Number of processes that share the source.
    pub world: NonZeroU32,
    /// Handling of the last entries when `world` does not divide their number.
    #[serde(default)]
    pub uneven: Uneven,
}

/// Handling of the last entries when the number of processes does not divide the number of entries.
///
/// No entry is ever visited twice to make all shares equal (as PyTorch's `DistributedSampler` does by default), since a repeated
/// sample falsifies an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Uneven {
    /// Leaves these entries out, so that all processes visit the same number. Training in lock step needs this: a rank with one
    /// step more than the others would wait for them forever.
    #[default]
    Drop,
    /// Keeps these entries, so that the first ranks visit one entry more than the others. For evaluation and inference.
    Keep,
}

/// A shard whose rank is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard rank {} is not below world {}; ranks count from 0", .0.rank, .0.world)]
pub struct ShardFault(pub Shard);

/// Order and range in which the entries of a source are visited; the same for every kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraversalSettings {
    /// Seed of the permutations; each epoch has its own.
    pub seed: u64,
    /// Permutes the entries, differently in every epoch.
    pub shuffle: bool,
    /// Number of units (shards, row groups) whose entries a shuffle mixes at a time; `None` mixes all entries.
    pub window: Option<NonZeroU32>,
    /// Part of the entries for this process; `None` visits all.
    pub shard: Option<Shard>,
    /// Maximum number of entries in one epoch, over all ranks together; `None` for all.
    pub limit: Option<u64>,
    /// Number of passes; `None` for an endless traversal.
    pub epochs: Option<NonZeroU32>,
    /// Number of the first pass: 0, unless earlier runs made the passes before it.
    pub first_epoch: u32,
}

/// The next part of a [`Traversal`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextVisits {
    /// Entries of one epoch, in order; never empty.
    Visits {
        /// Number of the pass, from 0.
        epoch: u32,
        /// Positions in the unshuffled source, from 0.
        indexes: Vec<u64>,
    },
    /// The epoch has ended and another one follows.
    EpochEnd,
}

/// The entries of a source in the order of their visits. Stores no list: memory is constant.
#[derive(Clone, Debug)]
pub struct Traversal {
    count: u64,
    settings: TraversalSettings,
    len_per_epoch: u64,
    epoch: u32,
    /// Number of entries that this rank has visited in the current epoch.
    visited: u64,
    /// Number of entries that this rank visits in the current epoch.
    len: u64,
    /// Epoch in which the visits begin.
    begin: u32,
    /// Epochs of which only a part is visited, because earlier runs have visited the rest.
    shares: BTreeMap<u32, EpochShare>,
    /// Visits of the current epoch, if it is one of these.
    visits: Option<Visits>,
    /// Numbers of entries of the units, if a shuffle mixes only some units at a time.
    units: Arc<[u64]>,
    order: Order,
}

/// Order of all entries in one epoch.
#[derive(Clone, Debug)]
pub enum Order {
    /// Order of the source.
    Source,
    /// All entries are permuted.
    Shuffled(Permutation),
    /// Units are permuted, then the entries of neighbouring units.
    InWindows(Windows),
}

/// A permutation of `0..count` that stores no list.
///
/// A Feistel network over the next power of four permutes a domain at most four times too large (256 at least), and results
/// outside `0..count` are permuted again until they are inside ("cycle walking"): J. Black and P. Rogaway, "Ciphers with
/// Arbitrary Finite Domains", CT-RSA 2002. The permutation looks random, but is not cryptographically secure.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

/// Rounds of the Feistel network. Four suffice for large domains; small domains need more to look random.
const ROUNDS: usize = 8;

/// Lower bound of half the number of bits: below 256 values there are so few round functions that some orders would be
/// noticeably more frequent.
const LEAST_HALF_BITS: u32 = 4;

impl TraversalSettings {
    /// Visits every entry once, in the order of the source.
    pub const IN_ORDER: Self = Self {
        seed: 0,
        shuffle: false,
        window: None,
        shard: None,
        limit: None,
        epochs: Some(NonZeroU32::MIN),
        first_epoch: 0,
    };

    /// Number of the pass after the pass `epoch`; `None` after the last pass.
    pub fn after(&self, epoch: u32) -> Option<u32> {
        let is_last = |epochs: NonZeroU32| epoch - self.first_epoch + 1 == epochs.get();
        epoch.checked_add(1).filter(|_| !self.epochs.is_some_and(is_last))
    }

    /// Number of the `count` entries of a source that this process visits in one epoch.
    fn len_per_epoch(&self, count: u64) -> u64 {
        let limited = self.limit.map_or(count, |limit| limit.min(count));
        self.shard.map_or(limited, |shard| shard.share_of(limited))
    }
}

impl Shard {
    /// Checks that `rank` is below `world`.
    pub fn check(&self) -> Result<(), ShardFault> {
        if self.rank < self.world.get() { Ok(()) } else { Err(ShardFault(*self)) }
    }

    /// Number of the `entries` entries of a source that this rank visits.
    pub fn share_of(&self, entries: u64) -> u64 {
        let world = u64::from(self.world.get());
        match self.uneven {
            Uneven::Drop => entries / world,
            Uneven::Keep => entries.saturating_sub(u64::from(self.rank)).div_ceil(world),
        }
    }
}

impl Traversal {
    /// A traversal of a source with `count` entries. Fails when the shard's rank is not below its world.
    pub fn new(count: u64, settings: TraversalSettings) -> Result<Self, ShardFault> {
        Self::in_units(count, [].into(), settings)
    }

    /// A traversal of a source with `count` entries in units of these sizes. Without units, all entries are mixed.
    pub fn in_units(count: u64, units: Arc<[u64]>, settings: TraversalSettings) -> Result<Self, ShardFault> {
        if let Some(shard) = &settings.shard {
            shard.check()?;
        }
        let len_per_epoch = settings.len_per_epoch(count);
        let epoch = settings.first_epoch;
        let order = Order::new(count, &units, &settings, epoch);
        let (len, shares) = (len_per_epoch, BTreeMap::new());
        Ok(Self {
            count,
            settings,
            len_per_epoch,
            epoch,
            visited: 0,
            len,
            begin: epoch,
            shares,
            visits: None,
            units,
            order,
        })
    }

    /// Continues where an earlier run has stopped.
    #[must_use]
    pub fn from(mut self, start: &StartPoint) -> Self {
        self.settings.first_epoch = start.token.first_epoch;
        self.shares.clone_from(&start.epochs);
        self.begin = start.epoch;
        self.begin_epoch(start.epoch);
        self
    }

    /// True if an epoch begins in which this rank visits some entries only, in another order than that of the source.
    pub fn is_scattered(&self) -> bool {
        self.shares.values().any(|share| !share.is_ascending())
    }

    /// True if this rank may visit the entry `index` of a source in order.
    pub fn may_visit(&self, index: u64) -> bool {
        match (self.shares.get(&self.epoch), &self.settings.shard) {
            (Some(share), _) => share.may_visit(index),
            (None, Some(shard)) => index % u64::from(shard.world.get()) == u64::from(shard.rank),
            (None, None) => true,
        }
    }

    /// Number of entries of the source, whoever visits them.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of entries that this rank visits in one epoch.
    pub fn len_per_epoch(&self) -> u64 {
        self.len_per_epoch
    }

    /// True if this rank has visited all of its entries in the current epoch.
    pub fn is_epoch_visited(&self) -> bool {
        self.visited == self.len
    }

    /// Lower bound of the entries that this rank has not visited in the current epoch. Only for a traversal in order.
    pub fn unvisited_from(&self) -> u64 {
        debug_assert!(self.visits.is_none(), "a part of an epoch is not visited in equal steps");
        self.visited * self.settings.shard.map_or(1, |shard| u64::from(shard.world.get()))
    }

    /// Sets the number of entries of a source whose first `count` entries are known so far. Must not be smaller than before.
    /// Panics if the traversal is shuffled, because its order depends on the number of all entries.
    pub fn grow(&mut self, count: u64) {
        assert!(
            matches!(self.order, Order::Source) && count >= self.count,
            "only a traversal in order may grow"
        );
        self.count = count;
        self.len_per_epoch = self.settings.len_per_epoch(count);
        self.visits = self.visits_of(self.epoch);
        self.len = self.visits.as_ref().map_or(self.len_per_epoch, |visits| visits.len);
    }

    /// Number of entries that this rank visits in all epochs together; `None` for an endless traversal.
    pub fn total(&self) -> Option<u64> {
        let lens = self.lens()?.into_iter();
        Some(lens.map(|(len, epochs)| len.saturating_mul(epochs)).fold(0, u64::saturating_add))
    }

    /// Numbers of entries that this rank visits in the epochs that are left, each with the number of epochs that have it; `None` for an
    /// endless traversal.
    pub fn lens(&self) -> Option<Vec<(u64, u64)>> {
        let last = u64::from(self.settings.first_epoch) + u64::from(self.settings.epochs?.get());
        let begin = u64::from(self.begin);
        let partly: Vec<(u64, u64)> = self
            .shares
            .keys()
            .filter_map(|epoch| Some((u64::from(*epoch), self.visits_of(*epoch)?.len)))
            .filter(|(epoch, _)| *epoch < last)
            .collect();
        let whole = last.saturating_sub(begin).saturating_sub(partly.len() as u64);
        let lens = partly.into_iter().map(|(_, len)| (len, 1)).chain([(self.len_per_epoch, whole)]);
        Some(lens.filter(|(_, epochs)| *epochs > 0).collect())
    }

    /// The next entries of one epoch, at most `most` (at least 1), or the epoch's end; `None` after the last epoch.
    pub fn next_visits(&mut self, most: usize) -> Option<NextVisits> {
        let epoch = self.epoch;
        let most = u64::try_from(most.max(1)).unwrap_or(u64::MAX);
        if self.is_over() {
            return None;
        }
        let end = self.visited + most.min(self.len - self.visited);
        if end == self.visited {
            return self.start_next_epoch().then_some(NextVisits::EpochEnd);
        }
        let indexes = (self.visited..end).map(|position| self.index_at(position)).collect();
        self.visited = end;
        Some(NextVisits::Visits { epoch, indexes })
    }

    /// The entry that this rank visits at `position` of the current epoch.
    fn index_at(&self, position: u64) -> u64 {
        let global = match (&self.visits, &self.settings.shard) {
            (Some(visits), _) => visits.at(position),
            (None, Some(shard)) => u64::from(shard.rank) + position * u64::from(shard.world.get()),
            (None, None) => position,
        };
        self.order.at(global)
    }

    /// Moves on to the next epoch; `false` when there is none. An epoch without entries is the last one, so that endless passes
    /// over an empty source do end, and so is the epoch `u32::MAX`.
    fn start_next_epoch(&mut self) -> bool {
        let Some(next) = self.settings.after(self.epoch) else { return false };
        if self.len_per_epoch == 0 {
            return false;
        }
        self.begin_epoch(next);
        true
    }

    fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.visited = 0;
        self.visits = self.visits_of(epoch);
        self.len = self.visits.as_ref().map_or(self.len_per_epoch, |visits| visits.len);
        self.order = Order::new(self.count, &self.units, &self.settings, epoch);
    }

    /// Visits of an epoch of which a part is visited.
    fn visits_of(&self, epoch: u32) -> Option<Visits> {
        let count = self.settings.limit.map_or(self.count, |limit| limit.min(self.count));
        Some(self.shares.get(&epoch)?.visits(count))
    }

    /// True if earlier runs have visited all epochs.
    pub fn is_over(&self) -> bool {
        let begun = self.epoch.saturating_sub(self.settings.first_epoch);
        self.settings.epochs.is_some_and(|epochs| begun >= epochs.get())
    }
}

impl Order {
    /// Order of `count` entries in units of these sizes, in `epoch`.
    pub fn new(count: u64, units: &[u64], settings: &TraversalSettings, epoch: u32) -> Self {
        match settings.window {
            _ if !settings.shuffle => Self::Source,
            Some(window) if (window.get() as usize) < units.len() => {
                Self::InWindows(Windows::new(units, window.get() as usize, settings.seed, epoch))
            }
            _ => Self::Shuffled(Permutation::new(count, settings.seed, epoch)),
        }
    }

    /// Entry at `position`, which is below the number of entries.
    pub fn at(&self, position: u64) -> u64 {
        match self {
            Self::Source => position,
            Self::Shuffled(permutation) => permutation.at(position),
            Self::InWindows(windows) => windows.at(position),
        }
    }
}

impl Permutation {
    /// The permutation of `0..count` for this `seed` and `epoch`.
    pub fn new(count: u64, seed: u64, epoch: u32) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(LEAST_HALF_BITS);
        // Mixing the epoch first distinguishes seed 1 in epoch 2 from seed 2 in epoch 1.
        let mut state = seed ^ mix(u64::from(epoch) + 1);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Self { count, half_bits, keys }
    }

    /// Image of `position`. Panics when `position` is not below `count`.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.count, "position {position} is outside the permutation of {}", self.count);
        let mut value = self.permute_domain(position);
        while value >= self.count {
            value = self.permute_domain(value);
        }
        value
    }

    fn permute_domain(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in &self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// The finaliser of SplitMix64 (Stafford's variant 13): every bit of the input changes about half of the output bits.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const SHUFFLED: TraversalSettings = TraversalSettings { shuffle: true, ..TraversalSettings::IN_ORDER };

    fn world(world: u32) -> NonZeroU32 {
        NonZeroU32::new(world).unwrap()
    }

    fn visits(count: u64, settings: TraversalSettings) -> Vec<u64> {
        steps(count, settings, 100).into_iter().flatten().map(|(_, index)| index).collect()
    }

    /// Epochs and indexes of up to 200 chunks, each of at most `most` entries; `None` between two epochs.
    fn steps(count: u64, settings: TraversalSettings, most: usize) -> Vec<Option<(u32, u64)>> {
        let mut traversal = Traversal::new(count, settings).unwrap();
        let mut steps = Vec::new();
        for _ in 0..200 {
            match traversal.next_visits(most) {
                None => break,
                Some(NextVisits::EpochEnd) => steps.push(None),
                Some(NextVisits::Visits { epoch, indexes }) => {
                    assert!(!indexes.is_empty() && indexes.len() <= most.max(1));
                    steps.extend(indexes.into_iter().map(|index| Some((epoch, index))));
                }
            }
        }
        steps
    }

    #[test]
    fn tiny_sources_are_permuted_completely() {
        for count in 0..600 {
            let seen: BTreeSet<u64> = visits(count, SHUFFLED).into_iter().collect();
            assert!(seen.iter().copied().eq(0..count), "{count} entries gave {seen:?}");
        }
    }

    #[test]
    fn huge_domains_stay_in_bounds_and_do_not_collide() {
        for count in [u64::MAX, 1 << 63, (1 << 62) + 1, 10_000_000_019] {
            let permutation = Permutation::new(count, 11, 3);
            let seen: BTreeSet<u64> = (0..2_000).map(|position| permutation.at(position)).collect();
            assert_eq!(seen.len(), 2_000);
            assert!(seen.iter().all(|value| *value < count));
            assert!(*seen.last().unwrap() > count / 2, "2000 values all lie in the lower half of {count}");
        }
    }

    #[test]
    fn each_seed_and_epoch_has_its_own_order() {
        let orders: BTreeSet<Vec<u64>> = (0..4)
            .flat_map(|seed| (0..4).map(move |epoch| Permutation::new(50, seed, epoch)))
            .map(|permutation| (0..50).map(|position| permutation.at(position)).collect())
            .collect();
        assert_eq!(orders.len(), 16);
        assert_eq!(visits(50, SHUFFLED), visits(50, SHUFFLED), "the same seed gives the same order");
    }

    /// Sum of squared deviations over the expected count, for cells that should be hit equally often.
    fn chi_square(counts: impl Iterator<Item = u64>, expected: f64) -> f64 {
        counts.map(|count| (count as f64 - expected).powi(2) / expected).sum()
    }

    #[test]
    fn all_orders_of_five_entries_come_up_equally_often() {
        let mut orders = BTreeMap::<Vec<u64>, u64>::new();
        for seed in 0..12_000 {
            let permutation = Permutation::new(5, seed, 0);
            *orders.entry((0..5).map(|position| permutation.at(position)).collect()).or_default() += 1;
        }
        assert_eq!(orders.len(), 120);
        // 119 degrees of freedom: mean 119, deviation 15.4; the bound is five standard deviations above the mean.
        assert!(chi_square(orders.into_values(), 100.0) < 196.0);
    }

    #[test]
    fn every_entry_appears_equally_often_at_every_position() {
        for count in [7_usize, 64, 100, 256] {
            let mut cells = vec![0_u64; count * count];
            let seeds = 20 * count as u64;
            for seed in 0..seeds {
                let permutation = Permutation::new(count as u64, seed, 1);
                for position in 0..count {
                    cells[position * count + permutation.at(position as u64) as usize] += 1;
                }
            }
            let freedom = ((count - 1) * (count - 1)) as f64;
            let deviation = (2.0 * freedom).sqrt();
            let found = chi_square(cells.into_iter(), 20.0);
            assert!((found - freedom).abs() < 5.0 * deviation, "{count} entries: {found} for {freedom}");
        }
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        let permutation = Permutation::new(10_000, 7, 0);
        let order: Vec<u64> = (0..10_000).map(|position| permutation.at(position)).collect();
        let near = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 10).count();
        // By chance, about 20 of 10,000 steps are this short.
        assert!(near < 45, "{near} of 10,000 steps go to an entry at most 10 away");
    }

    #[test]
    fn drop_leaves_out_an_incomplete_last_round() {
        let shard = |rank, uneven| TraversalSettings {
            shard: Some(Shard { rank, world: world(3), uneven }),
            ..TraversalSettings::IN_ORDER
        };
        assert_eq!(visits(8, shard(0, Uneven::Drop)), [0, 3]);
        assert_eq!(visits(8, shard(2, Uneven::Drop)), [2, 5]);
        assert_eq!(visits(8, shard(0, Uneven::Keep)), [0, 3, 6]);
        assert_eq!(visits(8, shard(2, Uneven::Keep)), [2, 5]);
    }

    #[test]
    fn an_epoch_end_comes_between_epochs_but_not_after_the_last() {
        let twice = TraversalSettings { epochs: NonZeroU32::new(2), ..TraversalSettings::IN_ORDER };
        assert_eq!(steps(2, twice, 9), [Some((0, 0)), Some((0, 1)), None, Some((1, 0)), Some((1, 1))]);
        let later = TraversalSettings { first_epoch: 7, ..twice };
        assert_eq!(steps(1, later, 9), [Some((7, 0)), None, Some((8, 0))]);
    }

    #[test]
    fn endless_passes_over_an_empty_source_end() {
        let endless = TraversalSettings { epochs: None, ..TraversalSettings::IN_ORDER };
        assert_eq!(Traversal::new(0, endless).unwrap().next_visits(1), None);
        assert_eq!(steps(1, endless, 1)[8], Some((4, 0)));
    }

    #[test]
    fn the_limit_keeps_the_first_of_the_permuted_entries_over_all_ranks() {
        let limited = TraversalSettings { limit: Some(10), ..SHUFFLED };
        assert_eq!(visits(100, limited), visits(100, SHUFFLED)[..10]);
        let sharded = TraversalSettings {
            shard: Some(Shard { rank: 1, world: world(2), uneven: Uneven::Drop }),
            ..limited
        };
        assert_eq!(visits(100, sharded).len(), 5);
    }

    #[test]
    fn a_rank_outside_the_world_is_a_fault() {
        let shard = Shard { rank: 4, world: world(4), uneven: Uneven::Drop };
        let settings = TraversalSettings { shard: Some(shard), ..TraversalSettings::IN_ORDER };
        let fault = Traversal::new(1, settings).unwrap_err();
        assert_eq!(fault.to_string(), "shard rank 4 is not below world 4; ranks count from 0");
    }

    #[test]
    fn a_shard_reads_as_documented() {
        let shard: Shard = serde_json::from_str(r#"{"rank": 1, "world": 4}"#).unwrap();
        assert_eq!(shard, Shard { rank: 1, world: world(4), uneven: Uneven::Drop });
        assert!(serde_json::from_str::<Shard>(r#"{"rank": 1, "world": 0}"#).is_err());
        assert!(serde_json::from_str::<Shard>(r#"{"rank": 1, "world": 2, "of": 3}"#).is_err());
    }

    proptest! {
        #[test]
        fn a_shuffled_epoch_visits_every_entry_once(count in 0_u64..5_000, seed: u64, epoch in 0_u32..9) {
            let permutation = Permutation::new(count, seed, epoch);
            let mut seen = vec![false; count as usize];
            for position in 0..count {
                let index = permutation.at(position) as usize;
                prop_assert!(!std::mem::replace(&mut seen[index], true));
            }
        }

        #[test]
        fn ranks_interleave_to_the_unsharded_order(
            count in 0_u64..400, ranks in 1_u32..=8, shuffle: bool, seed: u64,
            limit in proptest::option::of(0_u64..500),
        ) {
            let whole = TraversalSettings { seed, shuffle, limit, ..TraversalSettings::IN_ORDER };
            let shares: Vec<Vec<u64>> = (0..ranks)
                .map(|rank| Shard { rank, world: world(ranks), uneven: Uneven::Keep })
                .map(|shard| visits(count, TraversalSettings { shard: Some(shard), ..whole }))
                .collect();
            let rounds = shares[0].len();
            let merged: Vec<u64> = (0..rounds)
                .flat_map(|round| shares.iter().filter_map(move |share| share.get(round).copied()))
                .collect();
            prop_assert_eq!(&merged, &visits(count, whole));

            for (rank, share) in shares.iter().enumerate() {
                let shard = Shard { rank: rank as u32, world: world(ranks), uneven: Uneven::Drop };
                let even = visits(count, TraversalSettings { shard: Some(shard), ..whole });
                prop_assert_eq!(even.as_slice(), &share[..merged.len() / ranks as usize]);
            }
        }

        #[test]
        fn a_traversal_that_grows_visits_what_one_of_the_final_size_visits(
            pages in proptest::collection::vec(0_u64..40, 0..8), most in 1_usize..20, ranks in 1_u32..5, rank in 0_u32..5,
            keep: bool, limit in proptest::option::of(0_u64..150), epochs in 1_u32..3,
        ) {
            let uneven = if keep { Uneven::Keep } else { Uneven::Drop };
            let shard = Some(Shard { rank: rank % ranks, world: world(ranks), uneven });
            let epochs = NonZeroU32::new(epochs);
            let settings = TraversalSettings { shard, limit, epochs, ..TraversalSettings::IN_ORDER };
            let (mut growing, mut found, mut count) = (Traversal::new(0, settings).unwrap(), Vec::new(), 0);
            for page in pages {
                count += page;
                growing.grow(count);
                while !growing.is_epoch_visited() {
                    match growing.next_visits(most) {
                        Some(NextVisits::Visits { indexes, .. }) => found.extend(indexes),
                        other => panic!("{other:?}"),
                    }
                }
            }
            while let Some(next) = growing.next_visits(most) {
                if let NextVisits::Visits { indexes, .. } = next {
                    found.extend(indexes);
                }
            }
            prop_assert_eq!(found, visits(count, settings));
        }

        #[test]
        fn chunks_of_any_size_give_the_same_steps(
            count in 0_u64..50, epochs in 1_u32..4, most in 0_usize..20, shuffle: bool,
        ) {
            let settings = TraversalSettings { shuffle, epochs: NonZeroU32::new(epochs), ..SHUFFLED };
            let found = steps(count, settings, most);
            prop_assert_eq!(&found, &steps(count, settings, 1));
            let ends = if count == 0 { 0 } else { u64::from(epochs) - 1 };
            prop_assert_eq!(found.len() as u64, count * u64::from(epochs) + ends);
        }
    }
}
