use std::collections::VecDeque;

use penstock_types::ledger::StageBook;
use penstock_types::stats::Tick;

use super::core::{Hand, samples_in};
use super::queue::{ByteBudget, Queue};
use crate::item::{Item, Sample};
use crate::ports::Produced;

/// The near end of the source: samples that were produced, and the one that waits for room. The source itself works
/// elsewhere and offers the next chunk while this one is handed out.
#[derive(Debug)]
pub(crate) struct SourceEnd {
    book: StageBook,
    chunk: VecDeque<Next>,
    hand: Hand,
    ended: bool,
    closed: bool,
}

#[derive(Debug)]
enum Next {
    Sample(Sample),
    EpochEnd,
}

impl SourceEnd {
    pub(crate) fn new(id: String) -> Self {
        Self {
            book: StageBook { id, ..StageBook::default() },
            chunk: VecDeque::new(),
            hand: None,
            ended: false,
            closed: false,
        }
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.chunk.is_empty() && !self.ended
    }

    /// Takes a chunk; `None` is the end of the data.
    pub(crate) fn offer(&mut self, produced: Option<Produced>) {
        match produced {
            Some(Produced::Samples(samples)) => self.chunk.extend(samples.into_iter().map(Next::Sample)),
            Some(Produced::EpochEnd) => self.chunk.push_back(Next::EpochEnd),
            None => self.ended = true,
        }
    }

    /// Produces nothing any more; what was not yet put was never made.
    pub(crate) fn end(&mut self) {
        self.chunk.clear();
        self.ended = true;
    }

    /// Puts what there is room for. Says whether anything was put.
    pub(crate) fn step(&mut self, output: &mut Queue, budget: &mut ByteBudget, now: Tick) -> bool {
        let mut put = false;
        while !self.closed {
            if let Some((item, since)) = self.hand.take() {
                match output.try_put(item, since, budget, now) {
                    Ok(()) => {
                        self.book.out += 1;
                        put = true;
                    }
                    Err(item) => {
                        if since.is_none() {
                            output.on_put_waits(now);
                        }
                        self.hand = Some((item, since.or(Some(now))));
                        break;
                    }
                }
            }
            match self.chunk.pop_front() {
                Some(Next::Sample(sample)) => {
                    self.book.made += 1;
                    self.hand = Some((Item::Sample(sample), None));
                }
                Some(Next::EpochEnd) => {
                    output.put_epoch_end();
                    put = true;
                }
                None if self.ended => {
                    self.closed = true;
                    output.close(now);
                    put = true;
                }
                None => break,
            }
        }
        put
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn made(&self) -> u64 {
        self.book.made
    }

    pub(crate) fn book(&self) -> StageBook {
        StageBook { left: samples_in(&self.hand), ..self.book.clone() }
    }
}
