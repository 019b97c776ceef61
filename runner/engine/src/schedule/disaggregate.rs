use penstock_types::stats::{Slot, Tick};

use super::core::{Core, Step};
use super::queue::Take;
use crate::item::{Item, Sample};

/// Takes batches and passes their samples on one by one. It only moves samples, so it works within the step that hands it a
/// batch.
#[derive(Debug, Default)]
pub(crate) struct Disaggregate {
    samples: std::vec::IntoIter<Sample>,
    /// A sample that waits for room, since when.
    next: Option<(Item, Option<Tick>)>,
    end: bool,
}

impl Disaggregate {
    /// Does everything that can be done now.
    pub(crate) fn step(&mut self, core: &mut Core, step: &mut Step<'_>) {
        while !core.closed && self.put_samples(core, step) {
            if self.end {
                core.close(step);
                return;
            }
            match step.take() {
                Take::Item(item) => {
                    core.book.taken += item.samples();
                    core.meter.on_task(None, 0);
                    match item {
                        Item::Batch(samples) => self.samples = samples.into_iter(),
                        // The plan lets none through: there is nothing to take apart.
                        whole @ (Item::Sample(_) | Item::Collated(_)) => self.next = Some((whole, None)),
                    }
                }
                Take::EpochEnd => step.put_epoch_end(),
                Take::Empty => return,
                Take::Ended => self.end = true,
            }
        }
    }

    /// Samples inside.
    pub(crate) fn inside(&self) -> u64 {
        self.samples.len() as u64 + self.next.as_ref().map_or(0, |(item, _)| item.samples())
    }

    /// Whether no sample waits any more.
    fn put_samples(&mut self, core: &mut Core, step: &mut Step<'_>) -> bool {
        loop {
            let Some((item, since)) =
                self.next.take().or_else(|| self.samples.next().map(|sample| (Item::Sample(sample), None)))
            else {
                return true;
            };
            let samples = item.samples();
            match step.try_put(item, since) {
                Ok(()) => {
                    core.book.out += samples;
                    if since.is_some() {
                        core.meter.on_slot(step.now, Slot::Blocked, Slot::Idle);
                    }
                }
                Err(item) => {
                    if since.is_none() {
                        step.output.on_put_waits(step.now);
                        core.meter.on_slot(step.now, Slot::Idle, Slot::Blocked);
                    }
                    self.next = Some((item, since.or(Some(step.now))));
                    return false;
                }
            }
        }
    }
}
