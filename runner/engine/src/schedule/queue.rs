use std::collections::VecDeque;

use penstock_types::ledger::QueueBook;
use penstock_types::stats::{BookRow, QueueMeter, Tick};

use crate::graph::GraphNode;
use crate::item::Item;

/// A bounded, measured queue with one reader. Contains items and, between them, ends of epochs, which need no capacity.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) id: String,
    /// A queue with more items, after a change of this, accepts no put until it has fewer.
    pub(super) capacity: usize,
    entries: VecDeque<Entry>,
    /// Number of items; ends of epochs do not count.
    pub(super) items: usize,
    pub(super) bytes: u64,
    closed: bool,
    pub(super) meter: QueueMeter,
    put: u64,
    /// Number of samples taken, minus those that the consumer did not complete.
    pub(super) taken: u64,
    /// Samples that a consumer took but did not complete.
    taken_back: u64,
    reader_waits: bool,
    /// Set if a put was refused since [`Self::take_refusal`].
    has_refused: bool,
    /// Set if consecutive ends of epochs stay separate, because the join of a route counts them.
    pub(super) keeps_ends: bool,
}

#[derive(Debug)]
enum Entry {
    Item(Item, Weight),
    EpochEnd,
    Mark,
}

/// Size of an item, computed once when it is put.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    samples: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Take {
    /// An item, and the bytes it takes in memory.
    Item(Item, u64),
    EpochEnd,
    /// All results of one item of a route have been taken.
    Mark,
    /// The queue is empty: from now on, the reader counts as waiting.
    Empty,
    /// The queue is empty and its writer has closed it.
    Ended,
}

impl Queue {
    /// Creates the output queue of `node`.
    pub(crate) fn new(node: &GraphNode, meter: QueueMeter) -> Self {
        let capacity = node.capacity.get() as usize;
        Self {
            id: node.queue_id.clone(),
            capacity,
            entries: VecDeque::with_capacity(capacity.min(1024)),
            items: 0,
            bytes: 0,
            closed: false,
            meter,
            put: 0,
            taken: 0,
            taken_back: 0,
            reader_waits: false,
            has_refused: false,
            keeps_ends: false,
        }
    }

    /// Puts `item` if there is room, and returns its size in bytes; otherwise returns the item. `since` is the time at which this
    /// put began to wait, if it did. The memory budget is not checked: the item's bytes are already counted as held.
    pub(crate) fn try_put(&mut self, item: Item, since: Option<Tick>, now: Tick) -> Result<u64, Item> {
        debug_assert!(!self.closed, "a put after the writer closed");
        if self.items >= self.capacity {
            self.has_refused = true;
            return Err(item);
        }
        let weight = Weight { samples: item.samples(), bytes: item.memory_bytes() };
        self.bytes += weight.bytes;
        self.put += weight.samples;
        self.items += 1;
        self.entries.push_back(Entry::Item(item, weight));
        self.meter.on_put(now, since);
        Ok(weight.bytes)
    }

    /// True if a put was refused since the last call, so that the writer waits for room.
    pub(crate) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    /// Puts the end of an epoch, which needs no capacity. Consecutive ends are merged into one, except in the paths of a route.
    pub(crate) fn put_epoch_end(&mut self) {
        if self.keeps_ends || !matches!(self.entries.back(), Some(Entry::EpochEnd)) {
            self.entries.push_back(Entry::EpochEnd);
        }
    }

    /// Puts a mark, which needs no capacity.
    pub(crate) fn put_mark(&mut self) {
        self.entries.push_back(Entry::Mark);
    }

    /// Closes the queue after the writer's last put.
    pub(crate) fn close(&mut self, now: Tick) {
        self.closed = true;
        if self.entries.is_empty() {
            self.give_up_waiting(now);
            self.meter.on_drained(now);
        }
    }

    /// Takes the first entry. If the queue is empty, its reader counts as waiting until the next call.
    pub(crate) fn take(&mut self, now: Tick) -> Take {
        let taken = match self.entries.pop_front() {
            Some(Entry::Item(item, weight)) => {
                self.items -= 1;
                self.taken += weight.samples;
                self.bytes -= weight.bytes;
                self.reader_waits = false;
                self.meter.on_take(now, self.items);
                Take::Item(item, weight.bytes)
            }
            Some(Entry::EpochEnd) => {
                self.give_up_waiting(now);
                Take::EpochEnd
            }
            // A reader that waits for an item goes on waiting.
            Some(Entry::Mark) => Take::Mark,
            None if self.closed => return Take::Ended,
            None => {
                if !self.reader_waits {
                    self.reader_waits = true;
                    self.meter.on_get_waits(now);
                }
                return Take::Empty;
            }
        };
        if self.closed && self.entries.is_empty() {
            self.meter.on_drained(now);
        }
        taken
    }

    /// Counts samples that the consumer took but did not complete as left.
    pub(crate) fn take_back(&mut self, samples: u64) {
        self.taken -= samples;
        self.taken_back += samples;
    }

    /// True if a `take` would return an entry or the end of the queue instead of [`Take::Empty`].
    pub(crate) fn has_news(&self) -> bool {
        self.closed || !self.entries.is_empty()
    }

    /// Bytes of the first entry; `None` if the entry is not an item.
    pub(crate) fn front_bytes(&self) -> Option<u64> {
        match self.entries.front()? {
            Entry::Item(_, weight) => Some(weight.bytes),
            Entry::EpochEnd | Entry::Mark => None,
        }
    }

    /// Number of samples that the consumer took, and number of these that it did not complete.
    pub(crate) fn consumer_row(&self) -> BookRow {
        BookRow { taken: self.taken + self.taken_back, discarded: self.taken_back, ..BookRow::default() }
    }

    /// Counts of the queue for the ledger. `left` is counted instead of computed from the other counts, so that a missing sample
    /// shows as an imbalance.
    pub(crate) fn book(&self) -> QueueBook {
        let inside = self.entries.iter().map(|entry| match entry {
            Entry::Item(item, _) => item.samples(),
            Entry::EpochEnd | Entry::Mark => 0,
        });
        let left = inside.sum::<u64>() + self.taken_back;
        QueueBook { id: self.id.clone(), put: self.put, taken: self.taken, left }
    }

    /// Ends the wait of the reader, if it waits, because the reader turns to another queue.
    pub(crate) fn pause_waiting(&mut self, now: Tick) {
        if std::mem::take(&mut self.reader_waits) {
            self.meter.on_get_paused(now);
        }
    }

    fn give_up_waiting(&mut self, now: Tick) {
        if std::mem::take(&mut self.reader_waits) {
            self.meter.on_get_given_up(now);
        }
    }
}
