use penstock_types::plan::AggregatePlan;

use super::core::{Core, Hand, StageStep, bytes_in, samples_in};
use super::fill::Fill;
use super::queue::Take;
use crate::item::{Item, Sample};

/// Collects samples into batches by a fill rule. An incomplete last batch of an epoch is passed on, or discarded with `drop_last`; no
/// batch spans two epochs. The stage only moves samples, so it needs no task: all work is done within a step of the schedule.
#[derive(Debug)]
pub(crate) struct Aggregate {
    fill: Fill,
    drop_last: bool,
    collected: Vec<Sample>,
    collected_bytes: u64,
    pub(super) batch: Hand,
    end: Option<Take>,
}

impl Aggregate {
    pub(crate) fn new(plan: AggregatePlan) -> Self {
        Self {
            fill: Fill::of(plan),
            drop_last: plan.drop_last,
            collected: Vec::new(),
            collected_bytes: 0,
            batch: None,
            end: None,
        }
    }

    pub(crate) fn step(&mut self, core: &mut Core, step: &mut StageStep<'_>) {
        while !core.closed && core.put(&mut self.batch, step) {
            match self.end.take() {
                Some(Take::EpochEnd) => step.put_epoch_end(),
                Some(_) => core.close(step),
                None => match step.take() {
                    Take::Item(item, bytes) => self.collect(item, bytes, core),
                    Take::Empty => return,
                    // The check of the plan excludes this stage in paths of routes, where marks are.
                    Take::Mark => {}
                    end @ (Take::EpochEnd | Take::Ended) => self.flush(end, core, step),
                },
            }
        }
    }

    pub(crate) fn inside(&self) -> u64 {
        self.collected.len() as u64 + samples_in(&self.batch)
    }

    /// Bytes of the collected samples, and of a batch that waits for room in the next queue.
    pub(crate) fn bytes(&self) -> u64 {
        self.collected_bytes + bytes_in(&self.batch)
    }

    pub(crate) fn collects(&self) -> bool {
        !self.collected.is_empty()
    }

    /// Expected bytes of the samples that are missing from the current batch.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.fill.missing_bytes(&self.collected)
    }

    /// Progress of an incomplete batch, e.g. `3 of 8 samples`.
    pub(crate) fn in_words(&self) -> Option<String> {
        self.collects().then(|| self.fill.in_words(&self.collected))
    }

    fn collect(&mut self, item: Item, bytes: u64, core: &mut Core) {
        core.book.taken += item.samples();
        core.meter.on_task(None, 0);
        match item {
            Item::Sample(sample) => self.collected.push(sample),
            Item::Batch(samples) => self.collected.extend(samples),
            // The check of the plan excludes collated input here: a collated batch has no single samples to collect. It is passed
            // on unchanged.
            Item::Collated(batch) => {
                self.batch = Some((Item::Collated(batch), None));
                return;
            }
        }
        self.collected_bytes += bytes;
        if self.fill.completes(&self.collected, self.collected_bytes) {
            self.batch = Some((self.take_collected(), None));
        }
    }

    fn flush(&mut self, end: Take, core: &mut Core, step: &mut StageStep<'_>) {
        self.end = Some(end);
        let Some(epoch) = self.collected.first().map(|sample| sample.origin.epoch) else { return };
        if self.drop_last {
            core.book.discarded += self.collected.len() as u64;
            step.epochs.discarded(epoch, self.collected.len() as u64);
            self.collected.drain(..).for_each(|sample| step.settled.discard(sample.origin));
            step.budget.release(std::mem::take(&mut self.collected_bytes));
        } else if self.batch.is_none() {
            self.batch = Some((self.take_collected(), None));
        }
    }

    fn take_collected(&mut self) -> Item {
        self.collected_bytes = 0;
        let next = Vec::with_capacity(self.fill.capacity());
        Item::Batch(std::mem::replace(&mut self.collected, next))
    }
}
