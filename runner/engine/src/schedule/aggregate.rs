use super::core::{Core, Hand, StageStep, samples_in};
use super::queue::Take;
use crate::item::{Item, Sample};

/// Collects samples into batches of `size`. An epoch's last batch is passed on incomplete, or thrown away with `drop_last`;
/// no batch crosses epochs. It only moves samples, so it works within the step that hands it one.
#[derive(Debug)]
pub(crate) struct Aggregate {
    size: usize,
    drop_last: bool,
    collected: Vec<Sample>,
    batch: Hand,
    end: Option<Take>,
}

impl Aggregate {
    pub(crate) fn new(size: usize, drop_last: bool) -> Self {
        Self { size, drop_last, collected: Vec::new(), batch: None, end: None }
    }

    pub(crate) fn step(&mut self, core: &mut Core, step: &mut StageStep<'_>) {
        while !core.closed && core.put(&mut self.batch, step) {
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

    pub(crate) fn inside(&self) -> u64 {
        self.collected.len() as u64 + samples_in(&self.batch)
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
}
