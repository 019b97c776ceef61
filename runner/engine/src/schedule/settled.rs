//! Positions of the source whose samples are settled: handed out, left out on purpose, or failed.

mod epochs;
mod points;
mod visits;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use penstock_types::ledger::RunBook;
use penstock_types::policy::OnError;
use penstock_types::resume::{EpochProgress, Kept, LEAST_CHILD_BYTES, LEAST_EPOCH_BYTES, LEAST_RANGE_BYTES};

use self::epochs::VisitEpochs;
use self::points::{HashCounts, SavePoints};
use self::visits::{POINT, Visits};
use super::failures::FailedTask;
use crate::item::{Item, Origin};
use crate::ports::{Failed, Items};

/// Settled visits of a run. A visit is a sample that the source made; its number, counted over all epochs of the run, is its ticket. A
/// fan-out adds samples with the same ticket, and the visit is settled with the last of them.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    visits: Visits,
    fans: Fans,
    earlier: Earlier,
    epochs: VisitEpochs,
    points: SavePoints,
    pub(crate) counts: SettledCounts,
    /// Set if a delivered item is handed out later than it is delivered.
    hands_out_later: bool,
}

/// Visits that do not have exactly one sample.
#[derive(Debug, Default)]
struct Fans {
    /// Numbers of unsettled samples of visits that have other than one.
    live: HashMap<u64, u64>,
    /// Settled samples of unsettled visits, by the hashes of their fan-outs.
    children: HashMap<u64, Vec<u64>>,
    /// Tickets of samples that a stateful op has merged into others, by the visit that they are settled with.
    followers: HashMap<u64, Vec<u32>>,
}

/// Samples that earlier runs have settled, and that this run leaves out.
#[derive(Debug, Default)]
struct Earlier {
    /// Samples by epoch and number of the visit in the epoch.
    known: HashMap<(u32, u64), Vec<u64>>,
    /// Same, of visits that this run has made.
    repeated: HashMap<u64, HashCounts>,
    /// Last stage whose op keeps samples between calls and cannot save them: up to it, it needs all samples again.
    last_stateful: Option<usize>,
}

/// Numbers of samples that were handed out, and of those that the ledger counts and that are not settled.
#[derive(Debug, Default)]
pub(crate) struct SettledCounts {
    /// Samples handed out.
    handed: u64,
    /// Items handed out.
    pub(crate) items: u64,
    /// Samples that were made only to be left out again, because an earlier run has settled them.
    suppressed: u64,
    /// Samples that are counted as failed, and whose visits are not settled, because their failure ends the run.
    pub(crate) unsettled_failures: u64,
    /// Samples that are counted as discarded, and whose visits are not settled.
    unsettled_discards: u64,
}

impl Fans {
    /// True if each unsettled visit has one sample, and settles no other one.
    fn is_empty(&self) -> bool {
        self.live.is_empty() && self.children.is_empty() && self.followers.is_empty()
    }

    /// Removes a sample of a visit. Returns false if it was the last one.
    #[inline]
    fn remove(&mut self, visit: u64) -> bool {
        if self.live.is_empty() {
            return false;
        }
        let Some(live) = self.live.get_mut(&visit) else { return false };
        *live -= 1;
        if *live == 1 {
            self.live.remove(&visit);
        }
        true
    }
}

impl SettledCounts {
    /// Samples settled so far, of those in `total`.
    pub(crate) fn book(&self, total: &RunBook) -> RunBook {
        let book = RunBook {
            delivered: self.handed,
            dropped: total.dropped.saturating_sub(self.suppressed),
            skipped: total.skipped.saturating_sub(self.unsettled_failures),
            dead_lettered: total.dead_lettered,
            discarded: total.discarded.saturating_sub(self.unsettled_discards),
            ..RunBook::default()
        };
        book.closed()
    }
}

impl Settled {
    /// Starts where earlier runs have settled these samples: by epoch, number of the visit in the epoch, and hashes of fan-outs. `kept` is
    /// what the only stateful op had kept, if it saves its state.
    pub(crate) fn new(
        known: Vec<(u32, u64, Vec<u64>)>,
        kept: Option<Kept>,
        last_stateful: Option<usize>,
        hands_out_later: bool,
    ) -> Self {
        let known = known.into_iter().map(|(epoch, visit, hashes)| ((epoch, visit), hashes)).collect();
        let last_stateful = if kept.is_some() { None } else { last_stateful };
        let earlier = Earlier { known, last_stateful, ..Earlier::default() };
        Self { earlier, points: SavePoints::of(kept), hands_out_later, ..Self::default() }
    }

    /// True if the only stateful op saves its state.
    pub(crate) fn saves(&self) -> bool {
        self.points.saves
    }

    /// Gives a sample of the source its ticket.
    pub(crate) fn make(&mut self, origin: &mut Origin) {
        let visit = self.visits.make();
        let place = self.epochs.add(origin.epoch, visit);
        origin.ticket = visit as u32 & !POINT;
        if !self.earlier.known.is_empty()
            && let Some(hashes) = self.earlier.known.remove(&place)
        {
            self.earlier.repeated.insert(visit, HashCounts::of(&hashes));
            self.fans.children.insert(visit, hashes);
        }
    }

    /// Records that the source has made all samples of the epoch.
    pub(crate) fn end_epoch(&mut self) {
        if !self.epochs.is_cut {
            self.epochs.end(self.visits.made);
            self.forget_settled();
        }
    }

    /// Records that the source ends before the end of its data: what is discarded from now on is not settled.
    pub(crate) fn cut(&mut self) {
        self.epochs.is_cut = true;
    }

    /// Records that an item was delivered, and handed out unless that comes later.
    pub(crate) fn deliver(&mut self, item: &Item) {
        if self.hands_out_later {
            return;
        }
        self.counts.items += 1;
        match item {
            Item::Sample(sample) => {
                self.counts.handed += 1;
                self.settle(sample.origin);
            }
            several => self.hand_out_samples(&several.origins().collect::<Vec<_>>()),
        }
    }

    /// Records that samples were handed out.
    pub(crate) fn hand_out_samples(&mut self, origins: &[Origin]) {
        self.counts.handed += origins.len() as u64;
        let tickets: Vec<u32> = origins.iter().map(|origin| origin.ticket).collect();
        if !self.settle_run(&tickets) {
            origins.iter().for_each(|origin| self.settle(*origin));
        }
    }

    /// Settles a sample.
    #[inline]
    pub(crate) fn settle(&mut self, origin: Origin) {
        if let Some(point) = self.points.get(origin.ticket) {
            point.hand_out(origin);
            point.live -= 1;
            return self.remove_points();
        }
        let Some(visit) = self.visits.open(origin.ticket) else { return };
        match self.fans.remove(visit) {
            true => self.fans.children.entry(visit).or_default().push(origin.path),
            false => self.settle_visit(visit),
        }
    }

    /// Settles the samples of a failed task that were not taken by an op, unless a resumed run tries them again.
    pub(crate) fn fail(&mut self, task: &FailedTask, on_error: OnError) {
        match on_error {
            OnError::Fail => self.counts.unsettled_failures += task.samples(),
            OnError::Skip | OnError::DeadLetter => task.origins().for_each(|origin| self.settle(origin)),
        }
    }

    /// Discards a sample with an incomplete batch.
    pub(crate) fn discard(&mut self, origin: Origin) {
        match self.epochs.is_cut {
            true => self.counts.unsettled_discards += 1,
            false => self.settle(origin),
        }
    }

    /// Records that samples with the tickets `taken` became `items` and failures, or left no trace.
    pub(crate) fn replace(&mut self, taken: &[u32], items: &Items, failed: &[Failed]) {
        let items = items.as_slice();
        let is_same = match items {
            [] => self.settle_run(taken),
            [Item::Sample(sample)] => failed.is_empty() && [sample.origin.ticket] == *taken,
            [several] => {
                let tickets = several.origins().map(|origin| origin.ticket);
                failed.is_empty()
                    && several.samples() == taken.len() as u64
                    && tickets.eq(taken.iter().copied())
            }
            _ => false,
        };
        // Most ops pass on what they took.
        if is_same {
            return;
        }
        // The other samples of their visits may outlive them.
        let failed = if self.fans.live.is_empty() && self.points.open.is_empty() { &[][..] } else { failed };
        for origin in failed.iter().map(|failed| failed.sample.origin) {
            if let Some(point) = self.points.get(origin.ticket) {
                point.hand_out(origin);
            } else if let Some(visit) = self.visits.open(origin.ticket)
                && self.fans.live.contains_key(&visit)
            {
                self.fans.children.entry(visit).or_default().push(origin.path);
            }
        }
        let made = || items.iter().flat_map(Item::origins).map(|origin| origin.ticket);
        // Most ops keep the order of the samples: those that left no trace are missing, and no ticket is new.
        let mut rest = taken.iter();
        if made().all(|ticket| rest.any(|taken| *taken == ticket)) {
            let mut made = made().peekable();
            for ticket in taken {
                if made.next_if_eq(ticket).is_none() {
                    self.leave_out(*ticket);
                }
            }
        } else {
            made().for_each(|ticket| self.add(ticket));
            taken.iter().for_each(|ticket| self.leave_out(*ticket));
        }
    }

    /// Records that an op that held samples holds none any more: the samples with the tickets `taken` became `items` and failures, or
    /// others that were passed on before. Samples without a trace are settled with the last of the items, which may contain them.
    pub(crate) fn release(&mut self, taken: &[u32], items: &Items, failed: &[Failed]) {
        let last = items.as_slice().iter().flat_map(Item::origins).last();
        let Some((leader, visit)) = last.and_then(|last| Some((last.ticket, self.visits.open(last.ticket)?)))
        else {
            return self.replace(taken, items, failed);
        };
        let (own, others): (Vec<u32>, Vec<u32>) = taken.iter().partition(|ticket| **ticket == leader);
        self.fans.followers.entry(visit).or_default().extend(others);
        self.replace(&own, items, failed);
    }

    /// Records that the op that saves its state has made `items` of the samples `taken` since the last save point, and of its state.
    /// Removes those that an earlier run has settled, and returns their number.
    pub(crate) fn save(
        &mut self,
        taken: Vec<Origin>,
        items: &mut Items,
        state: Arc<[u8]>,
        is_finish: bool,
    ) -> u64 {
        self.points.add(taken, items, state, is_finish);
        let suppressed = self.remove_known(items);
        if let Some(point) = self.points.open.back_mut() {
            point.live = items.samples();
        }
        self.remove_points();
        suppressed
    }

    /// Removes samples that an earlier run has settled from the results of an op of `stage`. Returns their number.
    pub(crate) fn suppress(&mut self, stage: usize, items: &mut Items) -> u64 {
        if (self.earlier.repeated.is_empty() && !self.points.had_known)
            || self.earlier.last_stateful.is_some_and(|last| stage < last)
        {
            return 0;
        }
        self.remove_known(items)
    }

    fn remove_known(&mut self, items: &mut Items) -> u64 {
        let before = items.samples();
        let mut is_known = |origin: Origin| {
            if let Some(point) = self.points.get(origin.ticket) {
                return point.forgets(origin);
            }
            let Some(visit) = self.visits.open(origin.ticket) else { return false };
            let hashes = self.earlier.repeated.get_mut(&visit);
            hashes.is_some_and(|hashes| hashes.remove(origin.path))
        };
        let mut keep = |item: &mut Item| match item {
            Item::Sample(sample) => !is_known(sample.origin),
            Item::Batch(samples) => {
                samples.retain(|sample| !is_known(sample.origin));
                !samples.is_empty()
            }
            // Its samples were single before.
            Item::Collated(_) => true,
        };
        match items {
            Items::None => {}
            Items::One(item) => {
                if !keep(item) {
                    *items = Items::None;
                }
            }
            Items::Many(several) => several.retain_mut(keep),
        }
        let suppressed = before - items.samples();
        self.counts.suppressed += suppressed;
        suppressed
    }

    /// Least size of what a state has besides ranges, in bytes.
    fn least_bytes(&self) -> u64 {
        let (state, hashes) = self.points.sizes();
        let hashes = hashes + self.fans.children.values().map(Vec::len).sum::<usize>();
        state + LEAST_CHILD_BYTES * hashes as u64 + LEAST_EPOCH_BYTES * self.epochs.begun.len() as u64
    }

    /// State and settled samples that the stateful op has kept, if it saves its state.
    pub(crate) fn kept(&self) -> Option<Kept> {
        self.points.kept()
    }

    /// Number of epochs of this run that the stateful op has finished, if it saves its state.
    pub(crate) fn finished(&self) -> Option<u64> {
        self.points.finished(self.epochs.ends)
    }

    /// Progress by epoch; `None` if its state certainly has more than `most` bytes.
    pub(crate) fn progress(&mut self, most: u64) -> Option<Vec<EpochProgress>> {
        self.forget_settled();
        let mut ranges = most.checked_sub(self.least_bytes())? / LEAST_RANGE_BYTES;
        let mut children: BTreeMap<u64, &Vec<u64>> =
            self.fans.children.iter().map(|(visit, hashes)| (*visit, hashes)).collect();
        let epochs = self.epochs.begun.iter().map(|epoch| {
            let end = epoch.end.map_or(self.visits.made, |(end, _)| end);
            let later = children.split_off(&end);
            let own = std::mem::replace(&mut children, later);
            let settled = self.visits.ranges(epoch.first, end, ranges)?;
            ranges -= settled.len() as u64;
            Some(EpochProgress {
                epoch: epoch.epoch,
                settled,
                ended: epoch.end.map(|(end, _)| end - epoch.first),
                children: own
                    .into_iter()
                    .map(|(visit, hashes)| (visit - epoch.first, hashes.clone()))
                    .collect(),
            })
        });
        epochs.collect()
    }

    fn forget_settled(&mut self) {
        let finished = self.finished().unwrap_or(u64::MAX);
        self.epochs.forget(self.visits.frontier(), finished);
    }

    /// Removes the first save points as far as all of their samples are settled, and settles what they were made of.
    fn remove_points(&mut self) {
        while let Some(taken) = self.points.take_settled() {
            taken.into_iter().for_each(|origin| self.settle(origin));
        }
    }

    /// Settles the visits with these tickets word by word if they follow each other and have one sample each, as those of a large batch.
    /// Returns false, and settles none, for any other tickets.
    fn settle_run(&mut self, tickets: &[u32]) -> bool {
        tickets.is_empty() || self.fans.is_empty() && self.visits.set_run(tickets)
    }

    fn set(&mut self, visit: u64) {
        self.visits.set(visit);
        if !self.fans.children.is_empty() {
            self.fans.children.remove(&visit);
            self.earlier.repeated.remove(&visit);
        }
    }

    /// Settles a visit, and the samples that are settled with it.
    fn settle_visit(&mut self, visit: u64) {
        self.set(visit);
        if self.fans.followers.is_empty() {
            return;
        }
        let mut tickets = self.fans.followers.remove(&visit).unwrap_or_default();
        while let Some(ticket) = tickets.pop() {
            if let Some(visit) = self.visits.open(ticket)
                && !self.fans.remove(visit)
            {
                self.set(visit);
                tickets.extend(self.fans.followers.remove(&visit).into_iter().flatten());
            }
        }
    }

    /// Adds a sample with this ticket.
    fn add(&mut self, ticket: u32) {
        if let Some(point) = self.points.get(ticket) {
            point.live += 1;
        } else if let Some(visit) = self.visits.open(ticket) {
            *self.fans.live.entry(visit).or_insert(1) += 1;
        }
    }

    /// Removes a sample that others have replaced, that failed, or that left no trace.
    fn leave_out(&mut self, ticket: u32) {
        if let Some(point) = self.points.get(ticket) {
            point.live -= 1;
            self.remove_points();
        } else if let Some(visit) = self.visits.open(ticket)
            && !self.fans.remove(visit)
        {
            self.settle_visit(visit);
        }
    }
}
