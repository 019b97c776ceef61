//! The state of a rank after a run.

use std::collections::BTreeMap;
use std::iter;

use super::deal::StartPoint;
use super::ranges::{at_places, outside, union};
use super::rest::Places;
use super::{DataSet, EpochState, Hash, Kept, RankState, SELECTION, Token};
use crate::ledger::RunBook;

/// Least size of a range in a state, in bytes: `[0,1],`.
pub const LEAST_RANGE_BYTES: u64 = 6;

/// Least size of a settled sample of a position that is not settled, in bytes: `"0",`.
pub const LEAST_CHILD_BYTES: u64 = 4;

/// Least size of an epoch in a state, in bytes: `{"epoch":0,"frontier":0},`, less a range, since the first one may become the frontier.
pub const LEAST_EPOCH_BYTES: u64 = 25 - LEAST_RANGE_BYTES;

/// Progress of a run since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Epochs that the run has begun and not settled, and the last one that it has settled, in order.
    pub epochs: Vec<EpochProgress>,
    /// Samples settled in this run, by outcome.
    pub settled: RunBook,
    /// Items handed out in this run.
    pub items: u64,
    /// The data of the source, as far as they are known.
    pub data: DataSet,
    /// State of the stateful stage; `None` if it does not save that.
    pub kept: Option<Kept>,
    /// Number of epochs whose end the stateful stage has finished, if it saves its state: until then, an epoch has not ended.
    pub finished: Option<u64>,
    /// Set if the run has ended because another rank had no more batches: what was left of its epochs is settled.
    pub ended_together: bool,
}

/// Progress of a run in one epoch. Numbers count the visits of this run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochProgress {
    /// Number of the pass.
    pub epoch: u32,
    /// Settled visits, as first number and count, in order and not adjacent.
    pub settled: Vec<(u64, u64)>,
    /// Number of visits, if the source has made all of them.
    pub ended: Option<u64>,
    /// Settled samples of visits that are not settled, in the order of the visits.
    pub children: Vec<(u64, Vec<u64>)>,
}

impl StartPoint {
    /// State of this rank after a run that began here.
    pub fn after(&self, progress: &Progress) -> Token {
        let mut token = self.token.clone();
        token.count = progress.data.count.or(token.count);
        if progress.data.digest.is_some() {
            (token.digest, token.blocks) = (progress.data.digest, progress.data.blocks);
        }
        token.selection = SELECTION;
        let begun = progress.epochs.first().map(|epoch| epoch.epoch);
        let mut epochs: Vec<EpochState> =
            progress.epochs.iter().map(|progress| self.epoch_after(progress)).collect();
        match (begun, epochs.first().is_some_and(EpochState::is_settled)) {
            (None, _) => epochs.clone_from(&self.state.epochs),
            (Some(_), true) => {}
            // The last settled epoch was settled before, or nothing was left of it.
            (Some(begun), false) => {
                let earlier = self.state.epochs.iter().rfind(|state| state.epoch < begun);
                epochs.splice(
                    0..0,
                    earlier.map(|state| EpochState {
                        frontier: state.top(),
                        ended: Some(state.top()),
                        ..EpochState::begun(state.epoch)
                    }),
                );
            }
        }
        // Epochs that were begun before, and in this run not yet.
        if let Some(last) = epochs.last().map(|last| last.epoch) {
            epochs.extend(self.state.epochs.iter().filter(|state| state.epoch > last).cloned());
        }
        // Epochs without visits have no progress.
        if let [first, .., last] = &epochs[..] {
            let between = self.epochs.range(first.epoch..last.epoch).map(|(epoch, _)| *epoch);
            let missing: Vec<EpochState> = between
                .filter(|epoch| epochs.binary_search_by_key(epoch, |state| state.epoch).is_err())
                .map(|epoch| EpochState { ended: Some(0), ..EpochState::begun(epoch) })
                .collect();
            epochs.extend(missing);
            // Two lists in order, which this sort merges.
            epochs.sort_by_key(|state| state.epoch);
        }
        if let Some(finished) = progress.finished {
            let next = u64::from(self.epoch) + finished;
            if begun.is_none() {
                // Nothing was left but to finish it.
                let finished = epochs.iter_mut().filter(|state| {
                    (u64::from(self.epoch)..next).contains(&state.epoch.into()) && state.ended.is_none()
                });
                finished.for_each(|state| state.ended = Some(state.top()));
            }
            epochs
                .iter_mut()
                .filter(|state| u64::from(state.epoch) >= next)
                .for_each(|state| state.ended = None);
        }
        if let Some(first) = epochs.first() {
            token.rests = token.rests.split_off(&first.epoch);
        }
        let settled = self.state.settled.plus(&progress.settled);
        token.ranks = BTreeMap::from([(
            self.rank,
            RankState {
                epochs,
                settled,
                items: self.state.items.saturating_add(progress.items),
                kept: progress.kept.clone().unwrap_or_else(|| self.state.kept.clone()),
            },
        )]);
        // A state that was forced upon data with fewer samples has settled positions that these do not have.
        if token.least_entries().is_err() {
            token.count = None;
        }
        token
    }

    fn epoch_after(&self, progress: &EpochProgress) -> EpochState {
        let epoch = progress.epoch;
        let before = self.state.epochs.binary_search_by_key(&epoch, |state| state.epoch);
        let before =
            before.map_or_else(|_| EpochState::begun(epoch), |place| self.state.epochs[place].clone());
        let numbers = match self.epochs.get(&epoch) {
            Some(share) => share.numbers.clone(),
            None => Places::of_gaps(before.gaps(), before.top()).into(),
        };
        let known = iter::once((0, before.frontier)).filter(|(_, count)| *count > 0).chain(before.settled);
        let mut settled = union(known, at_places(progress.settled.iter().copied(), numbers.ranges()));
        let begun = settled.first().filter(|(first, _)| *first == 0).map(|(_, count)| *count);
        if begun.is_some() {
            settled.remove(0);
        }
        let frontier = begun.unwrap_or(0);
        let (top, before_top) = numbers.tail();
        let ended = progress.ended.map(|visits| top + visits.saturating_sub(before_top));
        let visits = progress.children.iter().map(|(visit, _)| (*visit, 1));
        let found = at_places(visits, numbers.ranges()).into_iter().map(|(number, _)| number);
        let hashes = progress.children.iter().map(|(_, hashes)| hashes.iter().copied().map(Hash).collect());
        // A child that was settled before is known to the run only from its visit on.
        let mut children = before.children;
        children.extend(found.zip(hashes));
        let mut is_left = outside(settled.iter().copied());
        children.retain(|number, _| *number >= frontier && is_left(*number));
        drop(is_left);
        EpochState { epoch, frontier, settled, ended: before.ended.or(ended), children }
    }
}
