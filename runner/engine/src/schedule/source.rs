use std::collections::VecDeque;

use penstock_types::ledger::StageBook;
use penstock_types::policy::OnError;
use penstock_types::stats::{StageMeter, Tick};

use super::budget::ByteBudget;
use super::core::{Core, Hand, bytes_in, samples_in};
use super::end::RunFailures;
use super::epochs::EpochBooks;
use super::failures::FailedTask;
use super::queue::Queue;
use super::settled::Settled;
use crate::chunk::Outcome;
use crate::item::{Item, Sample};
use crate::parts::{PartBooks, SourceParts};
use crate::ports::{Failed, Produced};

/// The schedule's view of the source: the current chunk, and the sample that waits for room. The source runs in a task and makes
/// the next chunk while the current one is handed out.
#[derive(Debug)]
pub(crate) struct SourceEnd {
    /// Has no meter of its own, because its queue is measured.
    pub(super) core: Core,
    pub(super) parts: PartBooks,
    chunk: VecDeque<Next>,
    hand: Hand,
    chunk_bytes: u64,
    /// Bytes of the chunk that the source is waiting to offer, or bytes reserved for the chunk that it is making.
    ahead_bytes: u64,
    waits: bool,
    /// Size of the largest chunk so far, in bytes; the same size is reserved for the next chunk.
    pub(super) largest_bytes: u64,
    /// Bytes that the source keeps between chunks.
    kept_bytes: u64,
    ended: bool,
}

#[derive(Debug)]
enum Next {
    Sample(Sample),
    /// A sample that is not passed on.
    Ended(Box<(Sample, Outcome)>),
    EpochEnd,
}

impl SourceEnd {
    pub(crate) fn new(id: String, on_error: OnError, parts: SourceParts) -> Self {
        Self {
            core: Core::new(id, on_error, None, StageMeter::off()),
            parts: PartBooks::of(parts),
            chunk: VecDeque::new(),
            hand: None,
            chunk_bytes: 0,
            ahead_bytes: 0,
            waits: false,
            largest_bytes: 0,
            kept_bytes: 0,
            ended: false,
        }
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.chunk.is_empty() && !self.ended
    }

    /// Bytes of the chunk that the source is waiting to offer; `None` while it makes one.
    pub(crate) fn waiting_bytes(&self) -> Option<u64> {
        self.waits.then_some(self.ahead_bytes)
    }

    /// Records that the source has made a chunk of `bytes` and waits to offer it.
    pub(crate) fn wait_with(&mut self, bytes: u64, budget: &mut ByteBudget) {
        if !self.waits {
            self.waits = true;
            self.largest_bytes = self.largest_bytes.max(bytes);
            budget.replace(std::mem::replace(&mut self.ahead_bytes, bytes), bytes);
        }
    }

    /// True if no sample of the source waits for room in the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunk.is_empty() && self.hand.is_none()
    }

    /// Accepts a chunk; `None` is the end of the data.
    pub(crate) fn offer(&mut self, produced: Option<Produced>, budget: &mut ByteBudget) {
        self.waits = false;
        let bytes = produced.as_ref().map_or(0, Produced::memory_bytes);
        self.chunk_bytes += bytes;
        self.largest_bytes = self.largest_bytes.max(bytes);
        budget.replace(std::mem::replace(&mut self.ahead_bytes, self.largest_bytes), bytes);
        budget.hold(self.ahead_bytes);
        match produced {
            Some(Produced::Samples(chunk)) => {
                self.chunk.extend(chunk.into_outcomes().map(|(sample, outcome)| match outcome {
                    None => Next::Sample(sample),
                    Some(outcome) => Next::Ended(Box::new((sample, outcome))),
                }));
            }
            Some(Produced::EpochEnd) => self.chunk.push_back(Next::EpochEnd),
            None => self.finish(budget),
        }
    }

    pub(crate) fn keep(&mut self, bytes: u64, budget: &mut ByteBudget) {
        budget.replace(std::mem::replace(&mut self.kept_bytes, bytes), bytes);
    }

    /// Ends the source; samples that were not yet put into the queue are not counted as made.
    pub(crate) fn end(&mut self, budget: &mut ByteBudget) {
        self.chunk.clear();
        budget.release(std::mem::take(&mut self.chunk_bytes));
        self.finish(budget);
    }

    fn finish(&mut self, budget: &mut ByteBudget) {
        self.ended = true;
        budget.release(std::mem::take(&mut self.ahead_bytes) + std::mem::take(&mut self.kept_bytes));
    }

    /// Puts as many samples as there is room for. Returns true if at least one sample was put.
    pub(crate) fn step(
        &mut self,
        output: &mut Queue,
        failures: &mut RunFailures,
        settled: &mut Settled,
        now: Tick,
    ) -> bool {
        let mut put = false;
        while !self.core.closed {
            let had = self.hand.is_some();
            if !self.core.put_into(&mut self.hand, output, now) {
                break;
            }
            put |= had;
            match self.chunk.pop_front() {
                Some(Next::Sample(mut sample)) => {
                    self.make(&mut sample, &mut failures.epochs, settled);
                    self.hand = Some((Item::Sample(sample), None));
                }
                Some(Next::Ended(ended)) => {
                    let (mut sample, outcome) = *ended;
                    self.make(&mut sample, &mut failures.epochs, settled);
                    self.settle(sample, outcome, failures, settled);
                    // What follows may be the end of the data.
                    put = true;
                }
                Some(Next::EpochEnd) => {
                    output.put_epoch_end();
                    failures.epochs.end();
                    settled.end_epoch();
                    put = true;
                }
                None if self.ended => {
                    self.core.closed = true;
                    failures.epochs.end();
                    settled.end_epoch();
                    output.close(now);
                    put = true;
                }
                None => break,
            }
        }
        put
    }

    fn make(&mut self, sample: &mut Sample, epochs: &mut EpochBooks, settled: &mut Settled) {
        self.core.book.made += 1;
        epochs.made(sample.origin.epoch);
        settled.make(&mut sample.origin);
        self.parts.draw(&sample.origin);
        self.chunk_bytes -= sample.memory_bytes();
    }

    /// Settles a sample that is not passed on.
    #[cold]
    fn settle(
        &mut self,
        sample: Sample,
        outcome: Outcome,
        failures: &mut RunFailures,
        settled: &mut Settled,
    ) {
        let epoch = sample.origin.epoch;
        let Outcome::Failed(fault) = outcome else {
            self.core.book.dropped += 1;
            settled.settle(sample.origin);
            return;
        };
        let Core { id, on_error, .. } = &self.core;
        let task = FailedTask::new(id, *on_error, vec![Failed { sample, fault }], None);
        self.core.fail(&task);
        settled.fail(&task, self.core.on_error);
        failures.add(epoch, task);
    }

    /// Bytes of the samples, of the reservation for the next chunk, and of the memory that the source keeps.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunk_bytes + bytes_in(&self.hand) + self.ahead_bytes + self.kept_bytes
    }

    pub(crate) fn book(&self) -> StageBook {
        self.core.book_with(samples_in(&self.hand))
    }
}
