use super::core::{Core, Hand, StageStep, bytes_in, samples_in};
use super::queue::Take;
use crate::item::{Item, Sample};

/// Takes batches and passes their samples on one by one. The stage only moves samples, so it needs no task: all work is done
/// within a step of the schedule.
#[derive(Debug, Default)]
pub(crate) struct Disaggregate {
    samples: std::vec::IntoIter<Sample>,
    next: Hand,
    end: bool,
}

impl Disaggregate {
    pub(crate) fn step(&mut self, core: &mut Core, step: &mut StageStep<'_>) {
        while !core.closed && self.put_samples(core, step) {
            if self.end {
                core.close(step);
                return;
            }
            match step.take() {
                Take::Item(item, _) => {
                    core.book.taken += item.samples();
                    core.meter.on_task(None, 0);
                    match item {
                        Item::Batch(samples) => self.samples = samples.into_iter(),
                        // The check of the plan excludes these inputs here; they are passed on unchanged.
                        whole @ (Item::Sample(_) | Item::Collated(_)) => self.next = Some((whole, None)),
                    }
                }
                Take::EpochEnd => step.put_epoch_end(),
                // The check of the plan excludes this stage in paths of routes, where marks are.
                Take::Mark => {}
                Take::Empty => return,
                Take::Ended => self.end = true,
            }
        }
    }

    pub(crate) fn inside(&self) -> u64 {
        self.samples.len() as u64 + samples_in(&self.next)
    }

    pub(crate) fn bytes(&self) -> u64 {
        let waiting = self.samples.as_slice().iter().map(Sample::memory_bytes);
        waiting.sum::<u64>() + bytes_in(&self.next)
    }

    /// Returns false while a sample has to wait for room.
    fn put_samples(&mut self, core: &mut Core, step: &mut StageStep<'_>) -> bool {
        while core.put(&mut self.next, step) {
            let Some(sample) = self.samples.next() else { return true };
            self.next = Some((Item::Sample(sample), None));
        }
        false
    }
}
