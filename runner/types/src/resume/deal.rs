//! The positions that a state leaves to each rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rest::{Places, Rest, Stride, stepped};
use super::{ALONE, DataSet, EpochState, Hash, Kept, MAX_STRIDES, RankState, Token, TokenFault};
use crate::ledger::RunBook;
use crate::traversal::{Shard, Uneven};

/// Settled samples of positions that are left, by their places.
type SettledSamples = Vec<(u64, Vec<Hash>)>;

/// Place at which a rank continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartPoint {
    /// State at the start, dealt to the world of this run, without the states of ranks.
    pub token: Token,
    pub(super) rank: u32,
    /// State of this rank.
    pub state: RankState,
    /// Samples settled before by all ranks of which the state knew.
    pub settled: RunBook,
    /// Epochs of which this rank visits a part.
    pub epochs: BTreeMap<u32, EpochShare>,
    /// Number of the pass in which this rank continues.
    pub epoch: u32,
    /// Least number of entries that the source must have.
    least_entries: u64,
}

/// Positions of an epoch that are left to a rank, in the order of their visits. They are a sequence of numbers, and a number `k` is
/// the position at the place `rank + k * world` of the epoch's rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochShare {
    places: Arc<Places>,
    shard: Shard,
    pub(super) numbers: Arc<Places>,
    ended: Option<u64>,
}

/// Visits of an epoch of a source whose number of entries is known.
#[derive(Clone, Debug)]
pub(crate) struct Visits {
    /// Positions without those that the source does not have.
    share: EpochShare,
    /// Number of visits.
    pub(crate) len: u64,
}

impl StartPoint {
    /// Place at which `shard` continues from a state. Fails if the state lacks ranks whose positions are to be dealt anew.
    pub fn new(mut token: Token, shard: Option<Shard>) -> Result<Self, TokenFault> {
        let shard = shard.unwrap_or(ALONE);
        let Shard { rank, world, uneven } = shard;
        let settled = token.settled();
        // Another pipeline, for which the state is forced, may have a lower limit.
        let least_entries = token.least_entries().unwrap_or(0);
        let is_same = token.world == world && (token.ranks.contains_key(&rank) || token.ranks.is_empty());
        let (mut token, state) = if is_same {
            let state = token.ranks.remove(&rank).unwrap_or_default();
            (token, state)
        } else {
            token.dealt(shard)?
        };
        token.ranks.clear();
        token.uneven = uneven;
        let next = state.epochs.last().map_or(token.first_epoch, |last| last.epoch.saturating_add(1));
        let first = state.epochs.iter().find(|epoch| !epoch.is_settled()).map_or(next, |epoch| epoch.epoch);
        let mut epochs = BTreeMap::new();
        for (epoch, rest) in token.rests.range(first..) {
            epochs.insert(*epoch, EpochShare::new(rest, shard, &EpochState::begun(*epoch)));
        }
        for state in state.epochs.iter().filter(|state| state.epoch >= first) {
            let rest = token.rests.get(&state.epoch);
            epochs.insert(state.epoch, EpochShare::new(rest.unwrap_or(&Rest::whole()), shard, state));
        }
        Ok(Self { token, rank, state, settled, epochs, epoch: first, least_entries })
    }

    /// The same for a source that may have fewer entries than the one of the state.
    #[must_use]
    pub fn for_other_data(self) -> Self {
        Self { least_entries: 0, ..self }
    }

    /// Checks that a source with `count` entries has all positions that are settled.
    pub fn check_count(&self, count: u64) -> Result<(), TokenFault> {
        match self.least_entries.checked_sub(1).filter(|last| *last >= count) {
            Some(last) => Err(TokenFault::Damaged(format!(
                "position {last} of an epoch is settled, and the source has {count} samples"
            ))),
            None => Ok(()),
        }
    }

    /// The data of the source when the state was written, as far as they were known.
    pub fn data(&self) -> DataSet {
        DataSet { count: self.token.count, digest: self.token.digest, blocks: self.token.blocks }
    }

    /// Settled samples of positions that are visited again: epoch, number of the visit in the epoch, and hashes of fan-outs.
    pub fn children(&self) -> impl Iterator<Item = (u32, u64, Vec<u64>)> + '_ {
        self.state.epochs.iter().flat_map(|state| {
            let share = self.epochs.get(&state.epoch);
            state.children.iter().filter_map(move |(number, hashes)| {
                let visit = share?.numbers.place_of(*number)?;
                Some((state.epoch, visit, hashes.iter().map(|Hash(hash)| *hash).collect()))
            })
        })
    }
}

impl EpochShare {
    fn new(rest: &Rest, shard: Shard, state: &EpochState) -> Self {
        let places = Arc::new(Places::new(rest.0.clone()));
        Self {
            places,
            shard,
            numbers: Arc::new(Places::of_gaps(state.gaps(), state.top())),
            ended: state.ended,
        }
    }

    /// True if the positions are visited in ascending order.
    pub fn is_ascending(&self) -> bool {
        self.places.is_ascending
    }

    /// True if the rank may visit this position. Only for positions that are visited in ascending order.
    pub fn may_visit(&self, position: u64) -> bool {
        let world = u64::from(self.shard.world.get());
        let Some(place) = self.places.place_of(position) else { return false };
        place % world == u64::from(self.shard.rank) && self.numbers.place_of(place / world).is_some()
    }

    /// The visits of a source with `count` entries.
    pub(crate) fn visits(&self, count: u64) -> Visits {
        let places = self.places.cut(count).map_or_else(|| self.places.clone(), Arc::new);
        let entries = places.len(count);
        let dealt = self.ended.unwrap_or_else(|| self.shard.share_of(entries));
        let most = Shard { uneven: Uneven::Keep, ..self.shard }.share_of(entries);
        let len = self.numbers.len(dealt.min(most));
        Visits { share: Self { places, ..self.clone() }, len }
    }
}

impl Visits {
    /// Position of a visit.
    pub(crate) fn at(&self, visit: u64) -> u64 {
        let EpochShare { places, shard, numbers, .. } = &self.share;
        let world = u64::from(shard.world.get());
        places.at(numbers.at(visit).saturating_mul(world).saturating_add(shard.rank.into()))
    }
}

impl Token {
    /// Number of entries in an epoch, as far as it is known.
    fn entries(&self) -> u64 {
        self.count.unwrap_or(u64::MAX).min(self.limit.unwrap_or(u64::MAX))
    }

    /// Least number of entries that the source must have, by the last position that is settled or has settled samples. Fails if the state
    /// names fewer.
    pub(super) fn least_entries(&self) -> Result<u64, TokenFault> {
        let (entries, world) = (self.entries(), u64::from(self.world.get()));
        let rests: BTreeMap<u32, Places> =
            self.rests.iter().map(|(epoch, rest)| (*epoch, Places::below(&rest.0, entries))).collect();
        let mut least = 0;
        for (rank, state) in &self.ranks {
            for state in &state.epochs {
                let Some(number) = state.top().checked_sub(1) else { continue };
                let place = number.saturating_mul(world).saturating_add(u64::from(*rank));
                let rest = rests.get(&state.epoch);
                let position = rest.map_or(place, |places| places.at(place));
                if position >= entries {
                    return Err(TokenFault::Damaged(format!(
                        "rank {rank} of {world} has settled {} positions of epoch {}, and all ranks together get {}",
                        state.top(),
                        state.epoch,
                        rest.map_or(entries, |places| places.len(entries))
                    )));
                }
                least = least.max(position + 1);
            }
        }
        Ok(least)
    }

    /// The state with all that is left dealt to the ranks of another number, and the state of one of them. Fails if it lacks a rank.
    fn dealt(&self, shard: Shard) -> Result<(Self, RankState), TokenFault> {
        if self.ranks.len() as u64 != u64::from(self.world.get()) {
            let ranks = self.ranks.keys().copied().collect();
            return Err(TokenFault::Ranks { ranks, world: self.world });
        }
        if let Some((rank, _)) = self.ranks.iter().find(|(_, rank)| rank.kept != Kept::default()) {
            return Err(TokenFault::Kept(*rank));
        }
        let mut listed: BTreeMap<u32, Vec<(u32, &EpochState)>> = BTreeMap::new();
        for (rank, state) in &self.ranks {
            state.epochs.iter().for_each(|state| listed.entry(state.epoch).or_default().push((*rank, state)));
        }
        let open = listed.iter().find(|(_, states)| states.iter().any(|(_, state)| !state.is_settled()));
        // A rank that has not begun the last epoch leaves all of it.
        let behind = self
            .ranks
            .values()
            .map(|rank| rank.epochs.last().map_or(self.first_epoch, |last| last.epoch.saturating_add(1)));
        let next = listed.last_key_value().map_or(self.first_epoch, |(last, _)| last.saturating_add(1));
        let first = open.map(|(epoch, _)| *epoch).into_iter().chain(behind).min().unwrap_or(next);
        // All ranks have settled the epochs before those that any of them lists.
        let begun = self.ranks.values().filter_map(|rank| rank.epochs.first()).map(|first| first.epoch).max();
        if first < next && begun.is_some_and(|begun| first < begun) {
            return Err(TokenFault::Apart(first));
        }
        let mut token = Self {
            world: shard.world,
            uneven: shard.uneven,
            before: self.settled(),
            settings: BTreeMap::new(),
            ranks: BTreeMap::new(),
            rests: BTreeMap::new(),
            ..self.clone()
        };
        let world = u64::from(shard.world.get());
        let (mut own, mut most) = (RankState::default(), MAX_STRIDES);
        for epoch in first..next {
            let states = listed.get(&epoch).map_or(&[][..], Vec::as_slice);
            let (rest, children) = self.left_of(epoch, states, &mut most)?;
            let of_rank = children.into_iter().filter(|(place, _)| place % world == u64::from(shard.rank));
            let children = of_rank.map(|(place, hashes)| (place / world, hashes)).collect();
            // An epoch of which a rank gets nothing is begun, too, so that all ranks end the same epochs.
            own.epochs.push(EpochState { children, ..EpochState::begun(epoch) });
            token.rests.insert(epoch, rest);
        }
        if first == next && next > self.first_epoch {
            // All epochs so far are settled: the next one begins.
            own.epochs.push(EpochState::begun(next));
        }
        Ok((token, own))
    }

    /// Positions of an epoch that no rank has settled, and those of them that have settled samples, by their places among them. `listed`
    /// are the ranks that have begun the epoch. Takes the strides of the epoch off `most`, the number that all epochs may have.
    fn left_of(
        &self,
        epoch: u32,
        listed: &[(u32, &EpochState)],
        most: &mut usize,
    ) -> Result<(Rest, SettledSamples), TokenFault> {
        let world = u64::from(self.world.get());
        let ended = listed.iter().filter(|(_, state)| state.ended.is_some()).count();
        if self.uneven == Uneven::Keep && self.count.is_none() && ended > 0 && ended < self.ranks.len() {
            return Err(TokenFault::Uncounted(epoch));
        }
        let entries = self.entries();
        let places = Places::below(&self.rests.get(&epoch).unwrap_or(&Rest::whole()).0, entries);
        let top = listed.iter().map(|(_, state)| state.top()).max().unwrap_or(0);
        let place = |rank: u32, number: u64| stepped(rank.into(), world, number);
        let fresh = EpochState::begun(epoch);
        let mut begun = listed.iter().peekable();
        let states: Vec<(u32, &EpochState)> = if top == 0 {
            listed.to_vec()
        } else {
            // The other ranks leave the positions that these have settled.
            let state_of =
                |rank: &u32| begun.next_if(|(listed, _)| listed == rank).copied().unwrap_or((*rank, &fresh));
            self.ranks.keys().map(state_of).collect()
        };
        *most = most.checked_sub(states.len()).ok_or(TokenFault::TooMany)?;
        // Positions with settled samples, by the first position of their stride and their number in it.
        let (mut strides, mut children) = (Vec::new(), Vec::new());
        for (rank, state) in states {
            let behind = if state.ended.is_some() { 0 } else { top - state.top() };
            let (gaps, begin) = (state.gaps(), strides.len());
            for (first, count) in
                gaps.iter().copied().chain([(state.top(), behind)]).filter(|(_, count)| *count > 0)
            {
                places.part(place(rank, first)?, world, Some(count), *most, &mut strides)?;
            }
            if !state.children.is_empty() {
                let (numbers, own) =
                    (Places::of_gaps(gaps, state.top()), Places::new(strides[begin..].to_vec()));
                children.extend(state.children.iter().filter_map(|(number, hashes)| {
                    let (Stride(first, ..), within) = own.stride_at(numbers.place_of(*number)?)?;
                    Some((first, within, hashes.clone()))
                }));
            }
        }
        // Of the ranks that have not ended the epoch, the last number may have no entry.
        strides.iter_mut().for_each(|stride| stride.cut(entries));
        strides.retain(|Stride(.., number)| *number != Some(0));
        strides.sort_unstable();
        let left = Places::new(strides.clone());
        let children = children.into_iter().filter_map(|(first, within, hashes)| {
            let (start, number) = left.stride_from(first)?;
            (within < number).then(|| (start + within, hashes))
        });
        let children = children.collect();
        let is_cut = self.uneven == Uneven::Drop && ended > 0;
        if !is_cut {
            places.part(place(0, top)?, 1, None, *most, &mut strides)?;
        }
        *most -= strides.len().min(*most);
        Ok((Rest(strides), children))
    }
}
