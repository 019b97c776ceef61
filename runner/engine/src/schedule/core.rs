use penstock_types::ledger::StageBook;
use penstock_types::policy::{FailureLimit, OnError};
use penstock_types::run::Disposition;
use penstock_types::stats::{Slot, StageMeter, Tick};

use super::budget::{Behind, ByteBudget};
use super::epochs::EpochBooks;
use super::failures::{FailedTask, exceeds, too_many};
use super::queue::{Queue, Take};
use super::settled::Settled;
use super::work::WorkList;
use crate::item::Item;

/// Parts common to all stages: a name, the ledger's counts, a meter, and a policy for failures.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: String,
    pub(crate) book: StageBook,
    pub(crate) meter: StageMeter,
    pub(crate) on_error: OnError,
    pub(crate) max_failures: Option<FailureLimit>,
    /// Set once the stage has put its last item.
    pub(crate) closed: bool,
    /// Number of held samples that failed after the task that took them had succeeded; the task of each such sample counts as
    /// failed, too.
    pub(crate) failed_held: u64,
    failed_samples: u64,
    /// Description of the first failure: the sample's key and the reason.
    first_failure: Option<String>,
}

/// An item for the next queue; if it waits for room, with the time since which it waits.
pub(crate) type Hand = Option<(Item, Option<Tick>)>;

/// Context of one step of a stage: the queues on both sides, and the jobs and tasks to be started.
pub(crate) struct StageStep<'a> {
    pub(crate) now: Tick,
    pub(crate) input: &'a mut Queue,
    pub(crate) output: &'a mut Queue,
    pub(crate) budget: &'a mut ByteBudget,
    /// Demand of the nodes downstream of the output queue; the argument is true if no item is between the stage and these nodes.
    pub(crate) behind: &'a dyn Fn(bool) -> Behind,
    pub(crate) work: &'a mut WorkList,
    pub(crate) epochs: &'a mut EpochBooks,
    pub(crate) settled: &'a mut Settled,
    /// Set if an item was taken, so that the upstream stage may now have room.
    pub(crate) took: bool,
    /// Set if an item was put, so that the downstream stage may now have work.
    pub(crate) put: bool,
}

impl Core {
    pub(crate) fn new(
        id: String,
        on_error: OnError,
        max_failures: Option<FailureLimit>,
        meter: StageMeter,
    ) -> Self {
        Self {
            book: StageBook { id: id.clone(), ..StageBook::default() },
            id,
            meter,
            on_error,
            max_failures,
            closed: false,
            failed_held: 0,
            failed_samples: 0,
            first_failure: None,
        }
    }

    /// Counts the samples of a failed task by the stage's policy, in constant time.
    pub(crate) fn fail(&mut self, task: &FailedTask) {
        let samples = task.samples();
        self.failed_samples += samples;
        match task.disposition {
            Disposition::Skipped => self.book.skipped += samples,
            Disposition::DeadLettered => self.book.dead_lettered += samples,
        }
        if self.first_failure.is_none() {
            self.first_failure = Some(task.first_in_words());
        }
    }

    /// Reason why failures of this stage end the run; `None` if they do not. A limit as a share is relative to tasks, an absolute
    /// limit counts failed samples. If the run is `over`, a share applies even after few tasks.
    pub(crate) fn exceeded(&self, over: bool) -> Option<String> {
        if self.failed_samples == 0 {
            return None;
        }
        if self.on_error == OnError::Fail {
            let first = self.first_failure.as_deref().unwrap_or_default();
            return Some(format!("stage `{}`, whose `on_error` is `fail`: {first}", self.id));
        }
        let limit = self.max_failures?;
        let (tasks, failed_tasks) = self.meter.tasks();
        let failures = match limit {
            FailureLimit::Count(_) => self.failed_samples,
            FailureLimit::Rate(_) | FailureLimit::Usual => (failed_tasks + self.failed_held).min(tasks),
        };
        exceeds(limit, failures, tasks, over)
            .then(|| too_many(&format!("stage `{}`", self.id), limit, failures, &format!("{tasks} tasks")))
    }

    /// Puts the item in `hand`, if there is one, into the next queue. Returns false while the item has to wait for room in the
    /// queue.
    pub(crate) fn put(&mut self, hand: &mut Hand, step: &mut StageStep<'_>) -> bool {
        if hand.is_none() {
            return true;
        }
        let is_put = self.put_into(hand, step.output, step.now);
        step.put |= is_put;
        is_put
    }

    /// Puts the item in `hand`, if there is one, into `output`. Returns false while the item has to wait for room in the queue.
    pub(crate) fn put_into(&mut self, hand: &mut Hand, output: &mut Queue, now: Tick) -> bool {
        let Some((item, since)) = hand.take() else { return true };
        let samples = item.samples();
        match output.try_put(item, since, now) {
            Ok(_) => {
                self.book.out += samples;
                if since.is_some() {
                    self.meter.on_slot(now, Slot::Blocked, Slot::Idle);
                }
                true
            }
            Err(item) => {
                if since.is_none() {
                    output.meter.on_put_waits(now);
                    self.meter.on_slot(now, Slot::Idle, Slot::Blocked);
                }
                *hand = Some((item, since.or(Some(now))));
                false
            }
        }
    }

    pub(crate) fn book_with(&self, left: u64) -> StageBook {
        StageBook { left, ..self.book.clone() }
    }

    pub(crate) fn close(&mut self, step: &mut StageStep<'_>) {
        self.closed = true;
        self.meter.on_closed(step.now);
        step.output.close(step.now);
        step.put = true;
    }
}

impl<'a> StageStep<'a> {
    pub(crate) fn take(&mut self) -> Take {
        let take = self.input.take(self.now);
        self.took |= matches!(take, Take::Item(..));
        take
    }

    pub(crate) fn try_put(&mut self, item: Item, since: Option<Tick>) -> Result<u64, Item> {
        let bytes = self.output.try_put(item, since, self.now)?;
        self.put = true;
        Ok(bytes)
    }

    /// True if the budget admits an op that takes `input` bytes and reserves `result` bytes. `is_alone` is set if the stage has
    /// no other task, and `holds_back` if the stage's op holds samples.
    pub(crate) fn admits(&mut self, input: u64, result: u64, is_alone: bool, holds_back: bool) -> bool {
        let is_clear = is_alone && self.output.items == 0;
        self.budget.admits(input, result, || {
            let behind = (self.behind)(is_clear);
            Behind { collects: behind.collects || holds_back, ..behind }
        })
    }

    pub(crate) fn put_epoch_end(&mut self) {
        self.output.put_epoch_end();
        self.put = true;
    }

    pub(crate) fn put_mark(&mut self) {
        self.output.put_mark();
        self.put = true;
    }
}

pub(crate) fn samples_in(hand: &Hand) -> u64 {
    hand.as_ref().map_or(0, |(item, _)| item.samples())
}

pub(crate) fn bytes_in(hand: &Hand) -> u64 {
    hand.as_ref().map_or(0, |(item, _)| item.memory_bytes())
}
