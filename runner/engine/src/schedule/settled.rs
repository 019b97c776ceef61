//! Positions of the source whose samples are settled: handed out, left out on purpose, or failed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use penstock_types::policy::OnError;
use penstock_types::resume::{
    EpochProgress, Hash, Kept, LEAST_CHILD_BYTES, LEAST_EPOCH_BYTES, LEAST_RANGE_BYTES,
};

use super::failures::FailedTask;
use crate::item::{Item, Origin};
use crate::ports::{Failed, Items};

/// Settled visits of a run. A visit is a sample that the source made; its number, counted over all epochs of the run, is its ticket. A
/// fan-out adds samples with the same ticket, and the visit is settled with the last of them.
///
/// A bit for each visit from the first unsettled one on: a sample that takes long must not make the others cost more.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Number of visits.
    made: u64,
    /// Visit of the first bit, a multiple of 64. All earlier visits are settled.
    base: u64,
    /// Bits of settled visits.
    words: VecDeque<u64>,
    /// Numbers of unsettled samples of visits that have other than one.
    live: HashMap<u64, u64>,
    /// Settled samples of unsettled visits, by the hashes of their fan-outs.
    children: HashMap<u64, Vec<u64>>,
    /// Tickets of samples that a stateful op has merged into others, by the visit that they are settled with.
    followers: HashMap<u64, Vec<u32>>,
    /// Samples that earlier runs have settled, by epoch and number of the visit in the epoch.
    known: HashMap<(u32, u64), Vec<u64>>,
    /// Same, of visits that this run has made.
    repeated: HashMap<u64, HashCounts>,
    /// Epochs that the source has begun, from the last settled one on.
    epochs: VecDeque<EpochVisits>,
    /// Samples handed out.
    pub(crate) handed: u64,
    /// Items handed out.
    pub(crate) items: u64,
    /// Samples that were made only to be left out again, because an earlier run has settled them.
    pub(crate) suppressed: u64,
    /// Samples that are counted as failed, and whose visits are not settled, because their failure ends the run.
    pub(crate) unsettled_failures: u64,
    /// Samples that are counted as discarded, and whose visits are not settled.
    pub(crate) unsettled_discards: u64,
    /// Last stage whose op keeps samples between calls and cannot save them: up to it, it needs all samples again.
    last_stateful: Option<usize>,
    /// Set if the only stateful op saves its state.
    pub(crate) saves: bool,
    /// State of the op at the last save point that was removed.
    state: Arc<[u8]>,
    /// Save points with unsettled samples, and all after the first of them.
    points: VecDeque<SavePoint>,
    /// Number of save points that were removed.
    first_point: u64,
    /// Number of epochs that the source has ended.
    ends: u64,
    /// Number of epochs that the op has finished, with all that it made at their ends settled.
    finished: u64,
    /// Samples that earlier runs have settled, by the save points that the op makes again.
    known_points: VecDeque<Vec<u64>>,
    /// Set if there were any.
    has_known_points: bool,
    /// Set once the source was ended before the end of its data.
    is_cut: bool,
}

/// Bit of the tickets that stand for save points instead of visits.
const POINT: u32 = 1 << 31;

/// A call of the stateful op that saved its state. The samples that it returned have the ticket of this point: they may be made of any
/// samples before, which are in its state as far as they are not in these.
#[derive(Debug)]
struct SavePoint {
    /// Samples that the op has taken since the point before. They are settled once this point is removed.
    taken: Vec<Origin>,
    /// Number of unsettled samples.
    live: u64,
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
struct HashCounts(HashMap<u64, u32>);

#[derive(Debug)]
struct EpochVisits {
    epoch: u32,
    /// First visit.
    first: u64,
    /// Visit after the last one, if the epoch has ended, and number of epochs that had ended then.
    end: Option<(u64, u64)>,
}

/// Hash of a sample among those of a save point, which may be made of any samples.
fn hash(origin: Origin) -> u64 {
    let Origin { epoch, index, path, .. } = origin;
    [index, path].iter().fold(u64::from(epoch), |hash, part| {
        (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

impl HashCounts {
    fn of(hashes: &[u64]) -> Self {
        let mut counts = HashMap::new();
        hashes.iter().for_each(|hash| *counts.entry(*hash).or_default() += 1);
        Self(counts)
    }

    /// Removes a hash; false if it is not among them.
    fn remove(&mut self, hash: u64) -> bool {
        match self.0.get_mut(&hash) {
            Some(0) | None => false,
            Some(count) => {
                *count -= 1;
                true
            }
        }
    }
}

impl Settled {
    /// Starts where earlier runs have settled these samples: by epoch, number of the visit in the epoch, and hashes of fan-outs. `kept` is
    /// what the only stateful op had kept, if it saves its state.
    pub(crate) fn new(
        known: Vec<(u32, u64, Vec<u64>)>,
        kept: Option<Kept>,
        last_stateful: Option<usize>,
    ) -> Self {
        let known = known.into_iter().map(|(epoch, visit, hashes)| ((epoch, visit), hashes)).collect();
        let Some(Kept { state, handed }) = kept else {
            return Self { known, last_stateful, ..Self::default() };
        };
        let hashes = |hashes: Vec<Hash>| hashes.into_iter().map(|Hash(hash)| hash).collect();
        Self {
            known,
            saves: true,
            state: state.into(),
            has_known_points: !handed.is_empty(),
            known_points: handed.into_iter().map(hashes).collect(),
            ..Self::default()
        }
    }

    /// Gives a sample of the source its ticket.
    pub(crate) fn make(&mut self, origin: &mut Origin) {
        let visit = self.made;
        if self.epochs.back().is_none_or(|last| last.end.is_some()) {
            self.epochs.push_back(EpochVisits { epoch: origin.epoch, first: visit, end: None });
        }
        if visit - self.base == 64 * self.words.len() as u64 {
            self.words.push_back(0);
        }
        origin.ticket = visit as u32 & !POINT;
        self.made += 1;
        if !self.known.is_empty()
            && let Some(begun) = self.epochs.back()
            && let Some(hashes) = self.known.remove(&(begun.epoch, visit - begun.first))
        {
            self.repeated.insert(visit, HashCounts::of(&hashes));
            self.children.insert(visit, hashes);
        }
    }

    /// Records that the source has made all samples of the epoch.
    pub(crate) fn end_epoch(&mut self) {
        if self.is_cut {
            return;
        }
        self.ends += 1;
        if let Some(last) = self.epochs.back_mut() {
            last.end.get_or_insert((self.made, self.ends));
        }
        self.forget_settled();
    }

    /// Records that the source ends before the end of its data: what is discarded from now on is not settled.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Records that an item was handed out.
    pub(crate) fn hand_out(&mut self, item: &Item) {
        self.items += 1;
        match item {
            Item::Sample(sample) => {
                self.handed += 1;
                self.settle(sample.origin);
            }
            several => self.hand_out_samples(&several.origins().collect::<Vec<_>>()),
        }
    }

    /// Records that samples were handed out.
    pub(crate) fn hand_out_samples(&mut self, origins: &[Origin]) {
        self.handed += origins.len() as u64;
        let tickets: Vec<u32> = origins.iter().map(|origin| origin.ticket).collect();
        if !self.settle_run(&tickets) {
            origins.iter().for_each(|origin| self.settle(*origin));
        }
    }

    /// Settles a sample.
    #[inline]
    pub(crate) fn settle(&mut self, origin: Origin) {
        if let Some(point) = self.point_of(origin.ticket) {
            point.handed.push(hash(origin));
            point.live -= 1;
            return self.remove_points();
        }
        let Some(visit) = self.open(origin.ticket) else { return };
        if self.live.is_empty() || !self.remove(visit) {
            self.settle_visit(visit);
        } else {
            self.children.entry(visit).or_default().push(origin.path);
        }
    }

    /// Settles the samples of a failed task that were not taken by an op, unless a resumed run tries them again.
    pub(crate) fn fail(&mut self, task: &FailedTask, on_error: OnError) {
        match on_error {
            OnError::Fail => self.unsettled_failures += task.samples(),
            OnError::Skip | OnError::DeadLetter => task.origins().for_each(|origin| self.settle(origin)),
        }
    }

    /// Discards a sample with an incomplete batch.
    pub(crate) fn discard(&mut self, origin: Origin) {
        match self.is_cut {
            true => self.unsettled_discards += 1,
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
        let failed = if self.live.is_empty() && self.points.is_empty() { &[][..] } else { failed };
        for origin in failed.iter().map(|failed| failed.sample.origin) {
            if let Some(point) = self.point_of(origin.ticket) {
                point.handed.push(hash(origin));
            } else if let Some(visit) = self.open(origin.ticket).filter(|visit| self.live.contains_key(visit))
            {
                self.children.entry(visit).or_default().push(origin.path);
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
        let Some((leader, visit)) = last.and_then(|last| Some((last.ticket, self.open(last.ticket)?))) else {
            return self.replace(taken, items, failed);
        };
        let (own, others): (Vec<u32>, Vec<u32>) = taken.iter().partition(|ticket| **ticket == leader);
        self.followers.entry(visit).or_default().extend(others);
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
        let handed = self.known_points.pop_front().unwrap_or_default();
        let ticket = POINT | (self.first_point + self.points.len() as u64) as u32;
        for item in items.as_mut_slice() {
            match item {
                Item::Sample(sample) => sample.origin.ticket = ticket,
                Item::Batch(samples) => samples.iter_mut().for_each(|sample| sample.origin.ticket = ticket),
                Item::Collated(batch) => batch.origins.iter_mut().for_each(|origin| origin.ticket = ticket),
            }
        }
        self.points.push_back(SavePoint {
            taken,
            live: 0,
            state,
            is_finish,
            repeated: HashCounts::of(&handed),
            handed,
        });
        let suppressed = self.remove_known(items);
        if let Some(point) = self.points.back_mut() {
            point.live = items.samples();
        }
        self.remove_points();
        suppressed
    }

    /// Removes samples that an earlier run has settled from the results of an op of `stage`. Returns their number.
    pub(crate) fn suppress(&mut self, stage: usize, items: &mut Items) -> u64 {
        if (self.repeated.is_empty() && !self.has_known_points)
            || self.last_stateful.is_some_and(|last| stage < last)
        {
            return 0;
        }
        self.remove_known(items)
    }

    fn remove_known(&mut self, items: &mut Items) -> u64 {
        let before = items.samples();
        let mut is_known = |origin: Origin| {
            let (hashes, hash) = match self.point_of(origin.ticket) {
                Some(point) => (&mut point.repeated, hash(origin)),
                None => {
                    let Some(visit) = self.open(origin.ticket) else { return false };
                    let Some(hashes) = self.repeated.get_mut(&visit) else { return false };
                    (hashes, origin.path)
                }
            };
            hashes.remove(hash)
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
        self.suppressed += suppressed;
        suppressed
    }

    /// Least size of what a state has besides ranges, in bytes.
    fn least_bytes(&self) -> u64 {
        let kept = self.points.iter().map(|point| &point.handed).chain(&self.known_points);
        let hashes = self.children.values().chain(kept).map(Vec::len).sum::<usize>();
        self.state.len() as u64
            + LEAST_CHILD_BYTES * hashes as u64
            + LEAST_EPOCH_BYTES * self.epochs.len() as u64
    }

    /// What the stateful op has kept, if it saves that.
    pub(crate) fn kept(&self) -> Option<Kept> {
        let open = self.points.iter().map(|point| &point.handed).chain(&self.known_points);
        let mut handed: Vec<Vec<Hash>> =
            open.map(|hashes| hashes.iter().copied().map(Hash).collect()).collect();
        while handed.last().is_some_and(Vec::is_empty) {
            handed.pop();
        }
        self.saves.then(|| Kept { state: self.state.to_vec(), handed })
    }

    /// Number of epochs of this run that the stateful op has finished, if it saves its state.
    pub(crate) fn finished(&self) -> Option<u64> {
        // A source that is ended early has not ended its epoch.
        self.saves.then(|| self.finished.min(self.ends))
    }

    /// Progress by epoch; `None` if its state certainly has more than `most` bytes.
    pub(crate) fn progress(&mut self, most: u64) -> Option<Vec<EpochProgress>> {
        self.forget_settled();
        let mut ranges = most.checked_sub(self.least_bytes())? / LEAST_RANGE_BYTES;
        let mut children: BTreeMap<u64, &Vec<u64>> =
            self.children.iter().map(|(visit, hashes)| (*visit, hashes)).collect();
        let epochs = self.epochs.iter().map(|epoch| {
            let end = epoch.end.map_or(self.made, |(end, _)| end);
            let later = children.split_off(&end);
            let own = std::mem::replace(&mut children, later);
            let settled = self.ranges(epoch.first, end, ranges)?;
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

    /// Forgets epochs before the last settled one, which another rank may not have settled.
    fn forget_settled(&mut self) {
        let (frontier, finished) = (self.frontier(), self.finished().unwrap_or(u64::MAX));
        let is_settled = |(end, number): (u64, u64)| end <= frontier && number <= finished;
        while self.epochs.get(1).is_some_and(|second| second.end.is_some_and(is_settled)) {
            self.epochs.pop_front();
        }
    }

    /// Settled visits of `first..end`, as numbers from `first` on: first number and count. `None` if there are more than `most` ranges.
    fn ranges(&self, first: u64, end: u64, most: u64) -> Option<Vec<(u64, u64)>> {
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

    /// Visit below which all are settled.
    fn frontier(&self) -> u64 {
        self.base + self.words.front().map_or(0, |word| word.trailing_ones().into())
    }

    /// The save point with this ticket.
    #[inline]
    fn point_of(&mut self, ticket: u32) -> Option<&mut SavePoint> {
        let place = ticket.wrapping_sub(self.first_point as u32) & !POINT;
        if ticket & POINT == 0 { None } else { self.points.get_mut(place as usize) }
    }

    /// Removes the first save points as far as all of their samples are settled, and settles what they were made of.
    fn remove_points(&mut self) {
        while let Some(point) = self.points.pop_front_if(|point| point.live == 0) {
            self.first_point += 1;
            self.finished += u64::from(point.is_finish);
            self.state = point.state;
            point.taken.into_iter().for_each(|origin| self.settle(origin));
        }
    }

    /// The unsettled visit with this ticket.
    #[inline]
    fn open(&self, ticket: u32) -> Option<u64> {
        if ticket & POINT != 0 {
            return None;
        }
        let offset = ticket.wrapping_sub(self.base as u32) & !POINT;
        let word = *self.words.get(offset as usize / 64)?;
        let visit = self.base + u64::from(offset);
        (visit < self.made && word >> (offset % 64) & 1 == 0).then_some(visit)
    }

    fn set(&mut self, visit: u64) {
        let offset = visit - self.base;
        self.words[offset as usize / 64] |= 1 << (offset % 64);
        if !self.children.is_empty() {
            self.children.remove(&visit);
            self.repeated.remove(&visit);
        }
        self.forget_words();
    }

    /// Forgets visits before the first unsettled one.
    fn forget_words(&mut self) {
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.base += 64;
        }
    }

    /// Settles the visits with these tickets word by word if they follow each other and have one sample each, as those of a large batch.
    /// Returns false, and settles none, for any other tickets.
    fn settle_run(&mut self, tickets: &[u32]) -> bool {
        let ([first, ..], [.., last]) = (tickets, tickets) else { return true };
        let is_run = self.live.is_empty()
            && self.children.is_empty()
            && self.followers.is_empty()
            && tickets.is_sorted_by(|one, next| *next == one.wrapping_add(1));
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

    /// Settles a visit, and the samples that are settled with it.
    fn settle_visit(&mut self, visit: u64) {
        self.set(visit);
        let mut followers = if self.followers.is_empty() { None } else { self.followers.remove(&visit) };
        while let Some(ticket) = followers.as_mut().and_then(Vec::pop) {
            if let Some(visit) = self.open(ticket)
                && !self.remove(visit)
            {
                self.set(visit);
                followers
                    .iter_mut()
                    .for_each(|more| more.extend(self.followers.remove(&visit).into_iter().flatten()));
            }
        }
    }

    /// Adds a sample with this ticket.
    fn add(&mut self, ticket: u32) {
        if let Some(point) = self.point_of(ticket) {
            point.live += 1;
        } else if let Some(visit) = self.open(ticket) {
            *self.live.entry(visit).or_insert(1) += 1;
        }
    }

    /// Removes a sample that others have replaced, that failed, or that left no trace.
    fn leave_out(&mut self, ticket: u32) {
        if let Some(point) = self.point_of(ticket) {
            point.live -= 1;
            self.remove_points();
        } else if let Some(visit) = self.open(ticket)
            && (self.live.is_empty() || !self.remove(visit))
        {
            self.settle_visit(visit);
        }
    }

    /// Removes a sample of a visit. Returns false if it was the last one.
    fn remove(&mut self, visit: u64) -> bool {
        let Some(live) = self.live.get_mut(&visit) else { return false };
        *live -= 1;
        if *live == 1 {
            self.live.remove(&visit);
        }
        true
    }
}
