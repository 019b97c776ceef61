use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_types::stats::Tick;

use crate::parcel::Parcel;
use crate::protocol::End;

/// Unacknowledged batches of a stream: implements the rules of delivery without sockets. The caller passes the time.
#[derive(Debug)]
pub(crate) struct Outbox {
    ahead: usize,
    /// Maximum number and size of acknowledged regions that a consumer may still read when it receives the next batch, including
    /// the regions of the next batch.
    most_kept: KeptRegions,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    consumer: Option<Reading>,
    /// Time since which at least one batch has waited while no consumer is connected.
    alone_since: Option<Tick>,
    end: Option<End>,
}

#[derive(Debug)]
struct Waiting {
    parcel: Arc<Parcel>,
    /// Set while the current consumer has the batch.
    is_out: bool,
    /// Set once any consumer has received the batch.
    was_out: bool,
}

/// Regions that a consumer may still read, by id. The memory of these regions is not reused before this value is dropped.
pub(crate) type Reading = BTreeMap<u64, Bytes>;

#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) seq: u64,
    pub(crate) parcel: Arc<Parcel>,
    pub(crate) redelivered: bool,
}

/// Regions of acknowledged batches that a consumer still reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptRegions {
    /// Number of regions; each region takes a file descriptor of this process.
    pub(crate) regions: usize,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "with the next batch it would keep {} arrays of {} bytes of acknowledged batches, but the limit is {} of {} bytes: release \
     arrays, or copy those to be kept",
    .with_next.regions, .with_next.bytes, .most.regions, .most.bytes
)]
pub(crate) struct KeepsTooMuch {
    with_next: KeptRegions,
    most: KeptRegions,
}

/// Error for a message that refers to a batch or region that the consumer does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotGiven {
    #[error("batch {0} was not sent to this consumer, or is already acknowledged")]
    Batch(u64),
    #[error("region {0} was not sent to this consumer, or is already released")]
    Region(u64),
}

impl Outbox {
    pub(crate) fn new(ahead: usize, most_kept: KeptRegions) -> Self {
        let waiting = BTreeMap::new();
        Self { ahead, most_kept, next: 0, waiting, consumer: None, alone_since: None, end: None }
    }

    pub(crate) fn put(&mut self, parcel: Parcel, now: Tick) {
        self.waiting.insert(self.next, Waiting { parcel: Arc::new(parcel), is_out: false, was_out: false });
        self.next += 1;
        if self.consumer.is_none() {
            self.alone_since.get_or_insert(now);
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < self.ahead
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Number of batches, from the first, that are all acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.waiting.first_key_value().map_or(self.next, |(seq, _)| *seq)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.waiting.values().map(|waiting| waiting.parcel.samples).sum()
    }

    /// Time for which batches have waited while no consumer is connected.
    pub(crate) fn alone_for(&self, now: Tick) -> Duration {
        self.alone_since.map_or(Duration::ZERO, |since| Duration::from_nanos(now - since))
    }

    /// Registers a new consumer; no other consumer may be registered.
    pub(crate) fn on_consumer(&mut self) {
        debug_assert!(self.consumer.is_none());
        self.consumer = Some(Reading::default());
        self.alone_since = None;
    }

    /// Returns the first batch not yet sent to the consumer; fails if the consumer keeps too many arrays of earlier batches.
    pub(crate) fn give(&mut self) -> Result<Option<Delivery>, KeepsTooMuch> {
        let kept = self.kept();
        let Some(reading) = self.consumer.as_mut().filter(|_| self.end.is_none()) else { return Ok(None) };
        let Some((seq, waiting)) = self.waiting.iter_mut().find(|(_, waiting)| !waiting.is_out) else {
            return Ok(None);
        };
        let with_next = KeptRegions {
            regions: kept.regions + waiting.parcel.regions.len(),
            bytes: kept.bytes + waiting.parcel.region_bytes(),
        };
        let most = self.most_kept;
        let is_too_much = with_next.regions > most.regions || with_next.bytes > most.bytes;
        if kept.regions > 0 && is_too_much {
            return Err(KeepsTooMuch { with_next, most });
        }
        let redelivered = waiting.was_out;
        (waiting.is_out, waiting.was_out) = (true, true);
        let shown = waiting.parcel.regions.iter().map(|shown| (shown.region.id, shown.kept.clone()));
        reading.extend(shown);
        Ok(Some(Delivery { seq: *seq, parcel: waiting.parcel.clone(), redelivered }))
    }

    fn kept(&self) -> KeptRegions {
        let read = self.consumer.iter().flatten();
        let out = self.waiting.values().filter(|waiting| waiting.is_out);
        let out: BTreeSet<u64> =
            out.flat_map(|waiting| waiting.parcel.regions.iter().map(|shown| shown.region.id)).collect();
        read.filter(|(id, _)| !out.contains(id)).fold(KeptRegions::default(), |kept, (_, bytes)| {
            KeptRegions { regions: kept.regions + 1, bytes: kept.bytes + bytes.len() as u64 }
        })
    }

    pub(crate) fn acknowledge(&mut self, seq: u64) -> Result<(), NotGiven> {
        let is_out = self.waiting.get(&seq).is_some_and(|waiting| waiting.is_out);
        if !is_out {
            return Err(NotGiven::Batch(seq));
        }
        self.waiting.remove(&seq);
        Ok(())
    }

    pub(crate) fn release(&mut self, region: u64) -> Result<(), NotGiven> {
        let reading = self.consumer.as_mut();
        reading.and_then(|reading| reading.remove(&region)).map(drop).ok_or(NotGiven::Region(region))
    }

    /// Unregisters the consumer: its unacknowledged batches go to the next consumer. Returns the regions that the old consumer
    /// may still read.
    pub(crate) fn on_leave(&mut self, now: Tick) -> Reading {
        self.waiting.values_mut().for_each(|waiting| waiting.is_out = false);
        if !self.waiting.is_empty() {
            self.alone_since = Some(now);
        }
        self.consumer.take().unwrap_or_default()
    }

    pub(crate) fn close(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::memory::Pool;
    use proptest::prelude::*;

    use super::*;
    use crate::parcel::tests::{large, plain};
    use crate::region::SharedMemory;

    const UNLIMITED: KeptRegions = KeptRegions { regions: usize::MAX, bytes: u64::MAX };

    fn outbox(ahead: usize, batches: u64) -> Outbox {
        let mut outbox = Outbox::new(ahead, UNLIMITED);
        (0..batches).for_each(|_| outbox.put(plain(2), Tick::ZERO));
        outbox
    }

    fn given(outbox: &mut Outbox) -> Vec<(u64, bool)> {
        std::iter::from_fn(|| outbox.give().unwrap())
            .map(|delivery| (delivery.seq, delivery.redelivered))
            .collect()
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO.after(Duration::from_secs(seconds))
    }

    #[test]
    fn unacknowledged_batches_go_first_and_in_order_to_the_next_consumer() {
        let mut outbox = outbox(4, 3);
        assert!(given(&mut outbox).is_empty(), "there is no consumer");
        outbox.on_consumer();
        assert_eq!(given(&mut outbox), [(0, false), (1, false), (2, false)]);
        outbox.acknowledge(1).unwrap();
        outbox.on_leave(at(1));
        outbox.put(plain(1), at(1));
        assert_eq!((outbox.len(), outbox.samples()), (3, 5));
        outbox.on_consumer();
        assert_eq!(given(&mut outbox), [(0, true), (2, true), (3, false)]);
    }

    #[test]
    fn only_sent_batches_can_be_acknowledged_and_only_once() {
        let mut outbox = outbox(4, 2);
        outbox.on_consumer();
        assert_eq!(outbox.acknowledge(0), Err(NotGiven::Batch(0)), "the batch was not sent yet");
        outbox.give().unwrap().unwrap();
        outbox.acknowledge(0).unwrap();
        assert_eq!(outbox.acknowledge(0), Err(NotGiven::Batch(0)));
        assert_eq!(outbox.acknowledge(1), Err(NotGiven::Batch(1)));
        assert_eq!(outbox.release(0), Err(NotGiven::Region(0)));
        outbox.give().unwrap().unwrap();
        outbox.on_leave(at(0));
        outbox.on_consumer();
        assert_eq!(outbox.acknowledge(1), Err(NotGiven::Batch(1)), "the batch was sent to another consumer");
    }

    #[test]
    fn there_is_room_until_ahead_batches_are_unacknowledged() {
        let mut outbox = outbox(2, 1);
        assert!(outbox.has_room());
        outbox.put(plain(1), Tick::ZERO);
        assert!(!outbox.has_room());
        outbox.on_consumer();
        given(&mut outbox);
        outbox.acknowledge(0).unwrap();
        assert!(outbox.has_room() && !outbox.is_empty());
    }

    #[test]
    fn time_alone_counts_while_a_batch_waits_without_a_consumer() {
        let mut outbox = Outbox::new(4, UNLIMITED);
        assert_eq!(outbox.alone_for(at(9)), Duration::ZERO, "no batch waits");
        outbox.put(plain(1), at(10));
        outbox.put(plain(1), at(12));
        assert_eq!(outbox.alone_for(at(13)), Duration::from_secs(3));
        outbox.on_consumer();
        assert_eq!(outbox.alone_for(at(20)), Duration::ZERO);
        outbox.on_leave(at(30));
        assert_eq!(outbox.alone_for(at(31)), Duration::from_secs(1));
        outbox.on_consumer();
        given(&mut outbox);
        (0..2).for_each(|seq| outbox.acknowledge(seq).unwrap());
        outbox.on_leave(at(40));
        assert_eq!(outbox.alone_for(at(50)), Duration::ZERO, "no batch waits");
    }

    #[test]
    fn a_consumer_that_keeps_too_many_arrays_receives_no_more_batches() {
        for most in [KeptRegions { bytes: 150_000, ..UNLIMITED }, KeptRegions { regions: 2, ..UNLIMITED }] {
            let mut outbox = Outbox::new(8, most);
            let memory = Pool::new(SharedMemory::default());
            (0..5).for_each(|_| outbox.put(large(&memory, 60_000), Tick::ZERO));
            outbox.on_consumer();
            for seq in [0, 1] {
                outbox.give().unwrap().unwrap();
                outbox.acknowledge(seq).unwrap();
            }
            let error = outbox.give().unwrap_err();
            assert_eq!((error.with_next, error.most), (KeptRegions { regions: 3, bytes: 180_000 }, most));
            outbox.release(0).unwrap();
            outbox.give().unwrap().unwrap();
            outbox.on_leave(Tick::ZERO);
            outbox.on_consumer();
            assert_eq!(
                given(&mut outbox),
                [(2, true), (3, false), (4, false)],
                "unacknowledged batches do not count"
            );
        }
    }

    #[test]
    fn no_batch_is_sent_after_the_end() {
        let mut outbox = outbox(4, 2);
        outbox.on_consumer();
        outbox.give().unwrap().unwrap();
        outbox.close(End { whole: false, error: None });
        assert!(outbox.give().unwrap().is_none());
        outbox.acknowledge(0).unwrap();
        assert_eq!(outbox.samples(), 2);
    }

    /// One random action of the run or of a consumer; the number selects a batch.
    #[derive(Clone, Debug)]
    enum Step {
        Put,
        Give,
        Acknowledge(usize),
        Change,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Put),
            4 => Just(Step::Give),
            3 => any::<usize>().prop_map(Step::Acknowledge),
            1 => Just(Step::Change),
        ]
    }

    proptest! {
        #[test]
        fn each_batch_is_redelivered_until_it_is_acknowledged_and_never_afterwards(steps in prop::collection::vec(step(), 1..200)) {
            let mut outbox = Outbox::new(64, UNLIMITED);
            let (mut made, mut acknowledged) = (0_u64, BTreeSet::new());
            let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
            outbox.on_consumer();
            for step in steps {
                match step {
                    Step::Put => {
                        outbox.put(plain(1), Tick::ZERO);
                        made += 1;
                    }
                    Step::Give => {
                        let first = (0..made).find(|seq| !acknowledged.contains(seq) && !out.contains(seq));
                        let given = outbox.give().unwrap().map(|delivery| (delivery.seq, delivery.redelivered));
                        prop_assert_eq!(given, first.map(|seq| (seq, seen.contains(&seq))));
                        out.extend(first);
                        seen.extend(first);
                    }
                    Step::Acknowledge(which) if !out.is_empty() => {
                        let seq = out.swap_remove(which % out.len());
                        prop_assert_eq!(outbox.acknowledge(seq), Ok(()));
                        acknowledged.insert(seq);
                    }
                    Step::Acknowledge(_) => prop_assert!(outbox.acknowledge(made).is_err()),
                    Step::Change => {
                        outbox.on_leave(Tick::ZERO);
                        outbox.on_consumer();
                        out.clear();
                    }
                }
                prop_assert_eq!(outbox.samples(), made - acknowledged.len() as u64);
            }
        }
    }
}
