use std::collections::VecDeque;

use penstock_types::ledger::QueueBook;
use penstock_types::stats::{BookRow, QueueMeter, Tick};

use crate::item::Item;

/// A bounded, measured queue with one reader. Contains items and, between them, ends of epochs, which need no capacity.
#[derive(Debug)]
pub(crate) struct Queue {
    id: String,
    capacity: usize,
    entries: VecDeque<Entry>,
    items: usize,
    /// Total bytes of the items.
    bytes: u64,
    closed: bool,
    meter: QueueMeter,
    put: u64,
    taken: u64,
    /// Samples that a consumer took but did not complete.
    taken_back: u64,
    reader_waits: bool,
    /// Set if a put was refused since [`Self::take_refusal`].
    has_refused: bool,
    /// Set if consecutive ends of epochs stay separate.
    keeps_ends: bool,
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
    pub(crate) fn new(id: String, capacity: usize, meter: QueueMeter) -> Self {
        Self {
            id,
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

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Changes the capacity. A queue with more items accepts no put until it has fewer.
    pub(crate) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Keeps consecutive ends of epochs separate, because the join of a route counts them.
    pub(crate) fn keep_ends(&mut self) {
        self.keeps_ends = true;
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

    /// Records that a put was refused and is waiting from now on.
    pub(crate) fn on_put_waits(&mut self, now: Tick) {
        self.meter.on_put_waits(now);
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
        match self.entries.pop_front() {
            Some(Entry::Item(item, weight)) => {
                self.items -= 1;
                self.taken += weight.samples;
                self.bytes -= weight.bytes;
                self.reader_waits = false;
                self.meter.on_take(now, self.items);
                if self.closed && self.entries.is_empty() {
                    self.meter.on_drained(now);
                }
                Take::Item(item, weight.bytes)
            }
            Some(Entry::EpochEnd) => {
                self.give_up_waiting(now);
                if self.closed && self.entries.is_empty() {
                    self.meter.on_drained(now);
                }
                Take::EpochEnd
            }
            // A reader that waits for an item goes on waiting.
            Some(Entry::Mark) => {
                if self.closed && self.entries.is_empty() {
                    self.meter.on_drained(now);
                }
                Take::Mark
            }
            None if self.closed => Take::Ended,
            None => {
                if !self.reader_waits {
                    self.reader_waits = true;
                    self.meter.on_get_waits(now);
                }
                Take::Empty
            }
        }
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

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the first entry; `None` if the entry is not an item.
    pub(crate) fn front_bytes(&self) -> Option<u64> {
        match self.entries.front()? {
            Entry::Item(_, weight) => Some(weight.bytes),
            Entry::EpochEnd | Entry::Mark => None,
        }
    }

    /// Total bytes of the items.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of items; ends of epochs do not count.
    pub(crate) fn items(&self) -> usize {
        self.items
    }

    /// Number of samples taken, minus those that the consumer did not complete.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of samples that the consumer took, and number of these that it did not complete.
    pub(crate) fn consumer_row(&self) -> BookRow {
        BookRow { taken: self.taken + self.taken_back, discarded: self.taken_back, ..BookRow::default() }
    }

    pub(crate) fn meter(&mut self) -> &mut QueueMeter {
        &mut self.meter
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
