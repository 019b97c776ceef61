use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use penstock_types::resume::{Hash, Kept};

use super::visits::POINT;
use crate::item::{Item, Origin};
use crate::ports::Items;

/// Calls of the only stateful op, if it saves its state.
#[derive(Debug, Default)]
pub(super) struct SavePoints {
    /// Set if the op saves its state.
    pub(super) saves: bool,
    /// State of the op at the last save point that was removed.
    state: Arc<[u8]>,
    /// Save points with unsettled samples, and all after the first of them.
    pub(super) open: VecDeque<SavePoint>,
    /// Number of save points that were removed.
    first: u64,
    /// Number of epochs that the op has finished, with all that it made at their ends settled.
    finished: u64,
    /// Samples that earlier runs have settled, by the save points that the op makes again.
    known: VecDeque<Vec<u64>>,
    /// Set if there were any.
    pub(super) had_known: bool,
}

/// A call of the stateful op that saved its state. The samples that it returned have the ticket of this point: they may be made of any
/// samples before, which are in its state as far as they are not in these.
#[derive(Debug)]
pub(super) struct SavePoint {
    /// Samples that the op has taken since the point before. They are settled once this point is removed.
    taken: Vec<Origin>,
    /// Number of unsettled samples.
    pub(super) live: u64,
    /// State of the op behind the call.
    state: Arc<[u8]>,
    /// True if the op was called at the end of an epoch.
    is_finish: bool,
    /// Settled samples, by their hashes.
    handed: Vec<u64>,
    /// Samples that earlier runs have settled, and that this run has not made yet.
    repeated: HashCounts,
}

/// Multiset of hashes, from which one is removed in constant time.
#[derive(Debug, Default)]
pub(super) struct HashCounts(HashMap<u64, u32>);

/// Hash of a sample among those of a save point, which may be made of any samples.
fn hash(origin: Origin) -> u64 {
    let Origin { epoch, index, path, .. } = origin;
    [index, path].iter().fold(u64::from(epoch), |hash, part| {
        (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

impl HashCounts {
    pub(super) fn of(hashes: &[u64]) -> Self {
        let mut counts = HashMap::new();
        hashes.iter().for_each(|hash| *counts.entry(*hash).or_default() += 1);
        Self(counts)
    }

    /// Removes a hash; false if it is not among them.
    pub(super) fn remove(&mut self, hash: u64) -> bool {
        match self.0.get_mut(&hash) {
            Some(0) | None => false,
            Some(count) => {
                *count -= 1;
                true
            }
        }
    }
}

impl SavePoint {
    /// Adds a sample to the settled ones.
    pub(super) fn hand_out(&mut self, origin: Origin) {
        self.handed.push(hash(origin));
    }

    /// True if an earlier run has settled this sample, which counts once.
    pub(super) fn forgets(&mut self, origin: Origin) -> bool {
        self.repeated.remove(hash(origin))
    }
}

impl SavePoints {
    /// Starts with what the op had kept in earlier runs; `None` if it does not save its state.
    pub(super) fn of(kept: Option<Kept>) -> Self {
        let Some(Kept { state, handed }) = kept else { return Self::default() };
        let hashes = |hashes: Vec<Hash>| hashes.into_iter().map(|Hash(hash)| hash).collect();
        let known: VecDeque<Vec<u64>> = handed.into_iter().map(hashes).collect();
        Self { saves: true, state: state.into(), had_known: !known.is_empty(), known, ..Self::default() }
    }

    #[inline]
    pub(super) fn get(&mut self, ticket: u32) -> Option<&mut SavePoint> {
        let place = ticket.wrapping_sub(self.first as u32) & !POINT;
        if ticket & POINT == 0 { None } else { self.open.get_mut(place as usize) }
    }

    /// Adds a point, and gives `items` its ticket. Its unsettled samples are not yet counted.
    pub(super) fn add(&mut self, taken: Vec<Origin>, items: &mut Items, state: Arc<[u8]>, is_finish: bool) {
        let handed = self.known.pop_front().unwrap_or_default();
        let ticket = POINT | (self.first + self.open.len() as u64) as u32;
        for item in items.as_mut_slice() {
            match item {
                Item::Sample(sample) => sample.origin.ticket = ticket,
                Item::Batch(samples) => samples.iter_mut().for_each(|sample| sample.origin.ticket = ticket),
                Item::Collated(batch) => batch.origins.iter_mut().for_each(|origin| origin.ticket = ticket),
            }
        }
        let repeated = HashCounts::of(&handed);
        self.open.push_back(SavePoint { taken, live: 0, state, is_finish, handed, repeated });
    }

    /// Removes the first point if all of its samples are settled, and returns what it was made of.
    pub(super) fn take_settled(&mut self) -> Option<Vec<Origin>> {
        let point = self.open.pop_front_if(|point| point.live == 0)?;
        self.first += 1;
        self.finished += u64::from(point.is_finish);
        self.state = point.state;
        Some(point.taken)
    }

    /// Settled samples of the points, first to last, and of those that the op makes again.
    fn handed(&self) -> impl Iterator<Item = &Vec<u64>> {
        self.open.iter().map(|point| &point.handed).chain(&self.known)
    }

    /// Bytes of the state, and number of the hashes beside it.
    pub(super) fn sizes(&self) -> (u64, usize) {
        (self.state.len() as u64, self.handed().map(Vec::len).sum())
    }

    /// State and settled samples that the op has kept, if it saves its state.
    pub(super) fn kept(&self) -> Option<Kept> {
        let hashes = self.handed().map(|hashes| hashes.iter().copied().map(Hash).collect());
        let mut handed: Vec<Vec<Hash>> = hashes.collect();
        while handed.last().is_some_and(Vec::is_empty) {
            handed.pop();
        }
        self.saves.then(|| Kept { state: self.state.to_vec(), handed })
    }

    /// Number of epochs of this run that the op has finished, of `ends` that the source has ended; `None` if the op does not save its
    /// state.
    pub(super) fn finished(&self, ends: u64) -> Option<u64> {
        // A source that is ended early has not ended its epoch.
        self.saves.then(|| self.finished.min(ends))
    }
}
