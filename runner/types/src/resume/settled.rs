//! The state of a rank after a run.

use std::collections::BTreeMap;

use super::deal::StartPoint;
use super::rest::Rest;
use super::{DataSet, EpochState, Hash, Kept, RankState, SELECTION, Token};
use crate::ledger::RunBook;

/// Progress of a run since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Epochs that the run has begun and not settled, and the last one that it has settled.
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
    /// Settled samples of visits that are not settled.
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
        for epoch in self.epochs.keys() {
            let place = epochs.partition_point(|state| state.epoch < *epoch);
            if place > 0 && epochs.get(place).is_some_and(|next| next.epoch != *epoch) {
                epochs.insert(place, EpochState { ended: Some(0), ..EpochState::begun(*epoch) });
            }
        }
        if let Some(finished) = progress.finished {
            let next = u64::from(self.first) + finished;
            if begun.is_none() {
                // Nothing was left but to finish it.
                let finished = epochs.iter_mut().filter(|state| {
                    (u64::from(self.first)..next).contains(&state.epoch.into()) && state.ended.is_none()
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
                items: self.state.items + progress.items,
                kept: progress.kept.clone().unwrap_or_else(|| self.state.kept.clone()),
            },
        )]);
        token
    }

    fn epoch_after(&self, progress: &EpochProgress) -> EpochState {
        let epoch = progress.epoch;
        let before = self.state.epochs.iter().find(|state| state.epoch == epoch);
        let before = before.cloned().unwrap_or_else(|| EpochState::begun(epoch));
        let whole;
        let share = match self.epochs.get(&epoch) {
            Some(share) => share,
            None => {
                whole = self.share_of(Rest::whole(), &before);
                &whole
            }
        };
        let mut settled: Vec<(u64, u64)> =
            std::iter::once((0, before.frontier)).chain(before.settled).collect();
        for (first, count) in &progress.settled {
            settled.extend(share.numbers(*first, first + count));
        }
        settled.retain(|(_, count)| *count > 0);
        settled.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(settled.len());
        for (first, count) in settled {
            match merged.last_mut() {
                Some((start, before)) if *start + *before >= first => {
                    *before = (first + count - *start).max(*before)
                }
                _ => merged.push((first, count)),
            }
        }
        let frontier = merged.first().filter(|(first, _)| *first == 0).map_or(0, |(_, count)| *count);
        merged.retain(|(first, _)| *first > 0);
        let ended = progress.ended.map(|visits| share.top + visits.saturating_sub(share.in_gaps()));
        let number = |visit: u64| share.numbers(visit, visit + 1).first().map(|(number, _)| *number);
        let children = progress.children.iter().filter_map(|(visit, hashes)| {
            Some((number(*visit)?, hashes.iter().copied().map(Hash).collect()))
        });
        // A child that was settled before is known to the run only from its visit on.
        let mut known = before.children;
        known.extend(children);
        known.retain(|number, _| {
            *number >= frontier
                && !merged.iter().any(|(first, count)| (*first..first + count).contains(number))
        });
        EpochState { epoch, frontier, settled: merged, ended: before.ended.or(ended), children: known }
    }
}
