use penstock_types::ledger::StageBook;
use penstock_types::policy::OnError;
use penstock_types::stats::StageMeter;

use super::core::{Core, Hand, StageStep, samples_in};
use super::queue::Take;

/// The last node: moves items one by one into the queue from which the consumer takes. Ends of epochs are not passed on.
#[derive(Debug)]
pub(crate) struct SinkEnd {
    /// Has no meter of its own, because the queues on both sides are measured.
    core: Core,
    pub(super) hand: Hand,
    /// Set while the consumer waits and was not called.
    pub(super) consumer_waits: bool,
}

impl SinkEnd {
    pub(crate) fn new(id: String) -> Self {
        Self {
            core: Core::new(id, OnError::Skip, None, StageMeter::off()),
            hand: None,
            consumer_waits: false,
        }
    }

    pub(crate) fn step(&mut self, step: &mut StageStep<'_>) {
        while !self.core.closed && self.core.put(&mut self.hand, step) {
            match step.take() {
                Take::Item(item, _) => {
                    self.core.book.taken += item.samples();
                    self.hand = Some((item, None));
                }
                Take::EpochEnd => step.epochs.pass(),
                Take::Mark => {}
                Take::Empty => return,
                Take::Ended => {
                    step.epochs.pass();
                    self.core.close(step);
                }
            }
        }
    }

    pub(crate) fn book(&self) -> StageBook {
        self.core.book_with(samples_in(&self.hand))
    }
}
