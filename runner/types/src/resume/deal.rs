//! The positions that a state leaves to each rank.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::rest::{Places, Rest, Stride};
use super::{ALONE, DataSet, EpochState, Hash, Kept, RankState, Token, TokenFault};
use crate::data_set::DataFields;
use crate::ledger::RunBook;
use crate::traversal::{Shard, Uneven};

/// Place at which a rank continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartPoint {
    /// State at the start, dealt to the world of this run, without the states of ranks.
    pub(super) token: Token,
    pub(super) rank: u32,
    pub(super) state: RankState,
    /// Samples settled before by all ranks of which the state knew.
    settled: RunBook,
    /// Epochs of which this rank visits a part.
    pub(super) epochs: BTreeMap<u32, EpochShare>,
    pub(super) first: u32,
}

/// Positions of an epoch that are left to a rank, in the order of their visits. They are a sequence of numbers, and a number `k` is
/// the position at the place `rank + k * world` of the epoch's rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochShare {
    rest: Rest,
    shard: Shard,
    /// Numbers to be visited below `top`, as first number and count.
    gaps: Vec<(u64, u64)>,
    /// Number from which on all are visited.
    pub(super) top: u64,
    ended: Option<u64>,
}

/// Visits of an epoch of a source whose number of entries is known.
#[derive(Clone, Debug)]
pub(crate) struct Visits {
    places: Places,
    shard: Shard,
    /// Number of the visit with which each gap begins, and its first number; in the end, the tail that has no end.
    gaps: Vec<(u64, u64)>,
    /// Number of visits.
    pub(crate) len: u64,
}

impl StartPoint {
    /// Place at which `shard` continues from a state. Fails if the state lacks ranks whose positions are to be dealt anew.
    pub fn new(token: Token, shard: Option<Shard>) -> Result<Self, TokenFault> {
        let shard = shard.unwrap_or(ALONE);
        let Shard { rank, world, uneven } = shard;
        let settled = token.settled();
        let mut token =
            match token.world == world && (token.ranks.contains_key(&rank) || token.ranks.is_empty()) {
                true => token,
                false => token.dealt(world, uneven)?,
            };
        let state = token.ranks.remove(&rank).unwrap_or_default();
        token.ranks.clear();
        token.uneven = uneven;
        let next = state.epochs.last().map_or(token.first_epoch, |last| last.epoch.saturating_add(1));
        let first = state.epochs.iter().find(|epoch| !epoch.is_settled()).map_or(next, |epoch| epoch.epoch);
        let mut epochs = BTreeMap::new();
        for (epoch, rest) in token.rests.range(first..) {
            epochs.insert(*epoch, EpochShare::new(rest.clone(), shard, &EpochState::begun(*epoch)));
        }
        for state in state.epochs.iter().filter(|state| state.epoch >= first) {
            let rest = token.rests.get(&state.epoch).cloned().unwrap_or_else(Rest::whole);
            epochs.insert(state.epoch, EpochShare::new(rest, shard, state));
        }
        Ok(Self { token, rank, state, settled, epochs, first })
    }

    pub(super) fn share_of(&self, rest: Rest, state: &EpochState) -> EpochShare {
        let Token { world, uneven, .. } = self.token;
        EpochShare::new(rest, Shard { rank: self.rank, world, uneven }, state)
    }

    /// Number of the first pass of the run that continues.
    pub fn first_epoch(&self) -> u32 {
        self.token.first_epoch
    }

    /// Number of the pass in which the rank continues.
    pub fn epoch(&self) -> u32 {
        self.first
    }

    /// Epochs of which the rank visits a part.
    pub fn epochs(&self) -> &BTreeMap<u32, EpochShare> {
        &self.epochs
    }

    /// The data of the source when the state was written, as far as they were known.
    pub fn data(&self) -> DataSet {
        DataSet { count: self.token.count, digest: self.token.digest, blocks: self.token.blocks }
    }

    /// Fields that earlier runs have learnt, by source.
    pub fn fields(&self) -> &BTreeMap<String, DataFields> {
        &self.token.fields
    }

    /// True if a version wrote the state whose sources selected by older rules.
    pub fn is_selected_by_older_rules(&self) -> bool {
        self.token.is_selected_by_older_rules()
    }

    /// Samples settled before, by all ranks of the state.
    pub fn settled(&self) -> &RunBook {
        &self.settled
    }

    /// Items that this rank handed out before.
    pub fn items(&self) -> u64 {
        self.state.items
    }

    /// What the stateful stage of this rank kept.
    pub fn kept(&self) -> &Kept {
        &self.state.kept
    }

    /// Settled samples of positions that are visited again: epoch, number of the visit in the epoch, and hashes of fan-outs.
    pub fn children(&self) -> impl Iterator<Item = (u32, u64, Vec<u64>)> + '_ {
        self.state.epochs.iter().flat_map(|state| {
            let share = self.epochs.get(&state.epoch);
            state.children.iter().filter_map(move |(number, hashes)| {
                Some((
                    state.epoch,
                    share?.visit_of(*number)?,
                    hashes.iter().map(|Hash(hash)| *hash).collect(),
                ))
            })
        })
    }
}

impl EpochShare {
    fn new(rest: Rest, shard: Shard, state: &EpochState) -> Self {
        Self { rest, shard, gaps: state.gaps(), top: state.top(), ended: state.ended }
    }

    /// True if the positions are visited in ascending order.
    pub fn is_ascending(&self) -> bool {
        self.rest.0.windows(2).all(|pair| match pair[0] {
            Stride(first, step, Some(number)) => (number - 1) * step + first < pair[1].0,
            Stride(.., None) => false,
        })
    }

    /// True if the rank may visit this position.
    pub fn may_visit(&self, position: u64) -> bool {
        let world = u64::from(self.shard.world.get());
        let Some(place) = self.rest.place_of(position) else { return false };
        let number = place / world;
        place % world == u64::from(self.shard.rank)
            && (number >= self.top
                || self.gaps.iter().any(|(first, count)| (*first..first + count).contains(&number)))
    }

    /// Number of numbers below `top` that are visited.
    pub(super) fn in_gaps(&self) -> u64 {
        self.gaps.iter().map(|(_, count)| count).sum()
    }

    /// Numbers of the visits `first..end`, as ranges.
    pub(super) fn numbers(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut before, mut found) = (0, Vec::new());
        let tail = [(self.top, u64::MAX - self.top)];
        for (start, count) in self.gaps.iter().chain(&tail) {
            let from = first.max(before);
            let to = end.min(before.saturating_add(*count));
            if from < to {
                found.push((start + (from - before), to - from));
            }
            before = before.saturating_add(*count);
        }
        found
    }

    /// The visit of a number.
    fn visit_of(&self, number: u64) -> Option<u64> {
        let mut before = 0;
        for (first, count) in &self.gaps {
            if (*first..first + count).contains(&number) {
                return Some(before + number - first);
            }
            before += count;
        }
        Some(before + number.checked_sub(self.top)?)
    }

    /// The visits of a source with `count` entries.
    pub(crate) fn visits(&self, count: u64) -> Visits {
        let places = Places::below(&self.rest, count);
        let dealt = self.ended.unwrap_or_else(|| self.shard.share_of(self.rest.len(count)));
        let mut len = 0;
        let mut gaps = Vec::with_capacity(self.gaps.len() + 1);
        for (first, count) in &self.gaps {
            gaps.push((len, *first));
            len += dealt.saturating_sub(*first).min(*count);
        }
        gaps.push((len, self.top));
        len += dealt.saturating_sub(self.top);
        Visits { places, shard: self.shard, gaps, len }
    }
}

impl Visits {
    /// Position of a visit.
    pub(crate) fn at(&self, visit: u64) -> u64 {
        let gap = self.gaps.partition_point(|(before, _)| *before <= visit) - 1;
        let (before, first) = self.gaps[gap];
        let world = u64::from(self.shard.world.get());
        let number = first.saturating_add(visit - before);
        self.places.at(number.saturating_mul(world).saturating_add(self.shard.rank.into()))
    }
}

impl Token {
    /// The state with all that is left dealt to another number of ranks. Fails if it lacks a rank.
    fn dealt(&self, world: NonZeroU32, uneven: Uneven) -> Result<Self, TokenFault> {
        if self.ranks.len() as u64 != u64::from(self.world.get()) {
            let ranks = self.ranks.keys().copied().collect();
            return Err(TokenFault::Ranks { ranks, world: self.world });
        }
        if let Some((rank, _)) = self.ranks.iter().find(|(_, rank)| !rank.kept.is_empty()) {
            return Err(TokenFault::Kept(*rank));
        }
        let listed = || self.ranks.values().flat_map(|rank| rank.epochs.iter());
        let last = listed().map(|epoch| epoch.epoch).max();
        let open = listed().filter(|epoch| !epoch.is_settled()).map(|epoch| epoch.epoch).min();
        // A rank that has not begun the last epoch leaves all of it.
        let behind = self
            .ranks
            .values()
            .map(|rank| rank.epochs.last().map_or(self.first_epoch, |last| last.epoch.saturating_add(1)));
        let next = last.map_or(self.first_epoch, |last| last.saturating_add(1));
        let first = open.into_iter().chain(behind).min().unwrap_or(next);
        let mut token = Self {
            world,
            uneven,
            before: self.settled(),
            ranks: BTreeMap::new(),
            rests: BTreeMap::new(),
            ..self.clone()
        };
        let mut states: BTreeMap<u32, RankState> =
            (0..world.get()).map(|rank| (rank, RankState::default())).collect();
        for epoch in first..next {
            let (rest, children) = self.left_of(epoch)?;
            // An epoch of which a rank gets nothing is begun, too, so that all ranks end the same epochs.
            states.values_mut().for_each(|state| state.epochs.push(EpochState::begun(epoch)));
            for (position, hashes) in children {
                let Some(place) = rest.place_of(position) else { continue };
                let (rank, number) = (place % u64::from(world.get()), place / u64::from(world.get()));
                let state =
                    u32::try_from(rank).ok().and_then(|rank| states.get_mut(&rank)?.epochs.last_mut());
                state.map(|state| state.children.insert(number, hashes));
            }
            token.rests.insert(epoch, rest);
        }
        if first == next && next > self.first_epoch {
            // All epochs so far are settled: the next one begins.
            states.values_mut().for_each(|state| state.epochs.push(EpochState::begun(next)));
        }
        token.ranks = states;
        Ok(token)
    }

    /// Positions of an epoch that no rank has settled, and those of them that have settled samples.
    fn left_of(&self, epoch: u32) -> Result<(Rest, BTreeMap<u64, Vec<Hash>>), TokenFault> {
        let fresh = EpochState::begun(epoch);
        let mut states = Vec::with_capacity(self.ranks.len());
        for (rank, state) in &self.ranks {
            let is_earlier = state.epochs.first().is_some_and(|first| epoch < first.epoch);
            if is_earlier {
                return Err(TokenFault::Apart(epoch));
            }
            let listed = state.epochs.iter().find(|state| state.epoch == epoch);
            states.push((u64::from(*rank), listed.unwrap_or(&fresh)));
        }
        let world = u64::from(self.world.get());
        let ended = states.iter().filter(|(_, state)| state.ended.is_some()).count();
        if self.uneven == Uneven::Keep && self.count.is_none() && ended > 0 && ended < states.len() {
            return Err(TokenFault::Uncounted(epoch));
        }
        let entries = self.count.unwrap_or(u64::MAX).min(self.limit.unwrap_or(u64::MAX));
        let places = Places::below(self.rests.get(&epoch).unwrap_or(&Rest::whole()), entries);
        let top = states.iter().map(|(_, state)| state.top()).max().unwrap_or(0);
        let overflow = || TokenFault::Damaged("a position is too large".to_owned());
        let place = |rank: u64, number: u64| {
            number.checked_mul(world).and_then(|place| place.checked_add(rank)).ok_or_else(overflow)
        };
        let (mut strides, mut children) = (Vec::new(), BTreeMap::new());
        for (rank, state) in &states {
            let behind = if state.ended.is_some() { 0 } else { top - state.top() };
            for (first, count) in
                state.gaps().into_iter().chain([(state.top(), behind)]).filter(|(_, count)| *count > 0)
            {
                places.part(place(*rank, first)?, world, Some(count), &mut strides)?;
            }
            for (number, hashes) in &state.children {
                children.insert(places.at(place(*rank, *number)?), hashes.clone());
            }
        }
        // Of the ranks that have not ended the epoch, the last number may have no entry.
        strides.iter_mut().for_each(|stride| stride.cut(entries));
        strides.retain(|Stride(.., number)| *number != Some(0));
        strides.sort_unstable();
        let is_cut = self.uneven == Uneven::Drop && ended > 0;
        if !is_cut {
            places.part(place(0, top)?, 1, None, &mut strides)?;
        }
        Ok((Rest(strides), children))
    }
}
