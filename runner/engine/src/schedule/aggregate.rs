use penstock_types::stats::{Slot, Tick};

use super::core::{Core, Step};
use super::queue::Take;
use crate::item::{Item, Sample};

/// Collects samples into batches of `size`. An epoch's last batch is passed on incomplete, or thrown away with `drop_last`;
/// no batch crosses epochs. It only moves samples, so it works within the step that hands it one.
#[derive(Debug)]
pub(crate) struct Aggregate {
    size: usize,
    drop_last: bool,
    collected: Vec<Sample>,
    /// A batch that waits for room, since when.
    batch: Option<(Item, Option<Tick>)>,
    end: Option<Take>,
}

impl Aggregate {
    pub(crate) fn new(size: usize, drop_last: bool) -> Self {
        Self { size, drop_last, collected: Vec::new(), batch: None, end: None }
    }

    /// Does everything that can be done now.
    pub(crate) fn step(&mut self, core: &mut Core, step: &mut Step<'_>) {
        while !core.closed && self.put_batch(core, step) {
            match self.end.take() {
                Some(Take::EpochEnd) => step.put_epoch_end(),
                Some(_) => core.close(step),
                None => match step.take() {
                    Take::Item(item) => self.collect(item, core),
                    Take::Empty => return,
                    end @ (Take::EpochEnd | Take::Ended) => self.flush(end, core),
                },
            }
        }
    }

    /// Samples inside.
    pub(crate) fn inside(&self) -> u64 {
        self.collected.len() as u64 + self.batch.as_ref().map_or(0, |(batch, _)| batch.samples())
    }

    fn collect(&mut self, item: Item, core: &mut Core) {
        core.book.taken += item.samples();
        core.meter.on_task(None, 0);
        match item {
            Item::Sample(sample) => self.collected.push(sample),
            Item::Batch(samples) => self.collected.extend(samples),
            // The plan lets none through: what was collated has no samples to collect.
            Item::Collated(batch) => self.batch = Some((Item::Collated(batch), None)),
        }
        if self.collected.len() >= self.size {
            self.batch = Some((self.take_collected(), None));
        }
    }

    fn flush(&mut self, end: Take, core: &mut Core) {
        self.end = Some(end);
        if self.collected.is_empty() {
            return;
        }
        if self.drop_last {
            core.book.discarded += self.collected.len() as u64;
            self.collected.clear();
        } else if self.batch.is_none() {
            self.batch = Some((self.take_collected(), None));
        }
    }

    fn take_collected(&mut self) -> Item {
        Item::Batch(std::mem::replace(&mut self.collected, Vec::with_capacity(self.size.min(1024))))
    }

    /// Whether no batch waits any more.
    fn put_batch(&mut self, core: &mut Core, step: &mut Step<'_>) -> bool {
        let Some((batch, since)) = self.batch.take() else { return true };
        let samples = batch.samples();
        match step.try_put(batch, since) {
            Ok(()) => {
                core.book.out += samples;
                if since.is_some() {
                    core.meter.on_slot(step.now, Slot::Blocked, Slot::Idle);
                }
                true
            }
            Err(batch) => {
                if since.is_none() {
                    step.output.on_put_waits(step.now);
                    core.meter.on_slot(step.now, Slot::Idle, Slot::Blocked);
                }
                self.batch = Some((batch, since.or(Some(step.now))));
                false
            }
        }
    }
}
