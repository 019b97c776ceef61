use penstock_types::ledger::StageBook;
use penstock_types::stats::Tick;

use super::core::Step;
use super::queue::Take;
use crate::item::Item;

/// The last stage: moves items into the queue that the consumer drains, one at a time. Ends of epochs stop here.
#[derive(Debug)]
pub(crate) struct Sink {
    book: StageBook,
    hand: Option<(Item, Option<Tick>)>,
    closed: bool,
}

impl Sink {
    pub(crate) fn new(id: String) -> Self {
        Self { book: StageBook { id, ..StageBook::default() }, hand: None, closed: false }
    }

    /// Moves what there is room for.
    pub(crate) fn step(&mut self, step: &mut Step<'_>) {
        while !self.closed {
            if let Some((item, since)) = self.hand.take() {
                let samples = item.samples();
                match step.try_put(item, since) {
                    Ok(()) => self.book.out += samples,
                    Err(item) => {
                        if since.is_none() {
                            step.output.on_put_waits(step.now);
                        }
                        self.hand = Some((item, since.or(Some(step.now))));
                        return;
                    }
                }
            }
            match step.take() {
                Take::Item(item) => {
                    self.book.taken += item.samples();
                    self.hand = Some((item, None));
                }
                Take::EpochEnd => {}
                Take::Empty => return,
                Take::Ended => {
                    self.closed = true;
                    step.output.close(step.now);
                    step.put = true;
                }
            }
        }
    }

    pub(crate) fn book(&self) -> StageBook {
        StageBook { left: self.hand.as_ref().map_or(0, |(item, _)| item.samples()), ..self.book.clone() }
    }
}
