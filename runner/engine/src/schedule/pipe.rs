use std::collections::VecDeque;
use std::sync::Arc;

use penstock_types::policy::{OnError, Order};
use penstock_types::stats::{Slot, Tick};

use super::budget::ResultSizes;
use super::core::{Core, StageStep};
use super::failures::{FailedTask, lost_samples};
use super::queue::Take;
use super::settled::Settled;
use super::shape::PipeRule;
use super::work::{OpCall, OpTime, RunsOn, Task, WorkerJob};
use crate::item::{Item, Origin, Sample};
use crate::ports::{Failed, Fault, Items, Output};

/// A stage that calls an op: takes an item, starts a task, and stops taking while `concurrency` tasks are unfinished. A task
/// holds its slot from the take until its last result was put into the next queue.
#[derive(Debug)]
pub(crate) struct Pipe {
    stage: usize,
    pub(super) runs_on: RunsOn,
    order: Order,
    /// Maximum number of tasks from now on. Above it are only tasks that began before it was lowered.
    pub(super) concurrency: usize,
    slots: Vec<TaskSlot>,
    /// Slots without a task; more than may have one after the concurrency was lowered.
    free: Vec<usize>,
    /// Slots in the order in which their results are put into the next queue. `Order::Input`: all slots with a task, and a `MARK`
    /// behind the last slot before each mark. `Order::Completion`: slots whose op is done.
    line: VecDeque<usize>,
    border: Option<Border>,
    held: Held,
    pub(super) sizes: ResultSizes,
    /// Number of tasks whose op is not done.
    pub(super) working: usize,
    /// Recent average time of an op in nanoseconds; `u64::MAX` before the first result.
    pub(super) op_nanos: u64,
    /// Epoch of the latest task: the stage starts no task of another epoch before all tasks of this epoch are done.
    pub(super) epoch: u32,
}

/// Samples that the op holds between calls.
#[derive(Debug, Default)]
struct Held {
    samples: u64,
    /// Memory of the samples outside of a WebAssembly guest, in bytes.
    bytes: u64,
    /// Tickets of the samples taken since the op last held none: they stay unsettled until it holds none again.
    since_empty: Vec<u32>,
    /// Samples that an op that saves its state has taken since it last did so.
    since_saved: Vec<Origin>,
}

/// Entry of `Pipe::line` for a mark, which the stage passes on once the results before it are put.
const MARK: usize = usize::MAX;

/// Maximum number of jobs that a worker takes at once.
const MAX_BATCH: usize = 16;

/// Expected time of a batch that one worker runs even if others are idle, in nanoseconds: waking another worker takes longer.
pub(super) const SHORT_BATCH_NANOS: u64 = 5_000;

/// Maximum expected time of a batch, in nanoseconds: its results wait until the last op is done.
const LONG_BATCH_NANOS: u64 = 50_000;

/// Maximum number of tasks that a stage may start before the size of a result is known.
const FIRST_TASKS: u64 = 4;

#[derive(Debug, Default)]
struct TaskSlot {
    state: SlotState,
    /// Number of samples in this slot: until the op is done, the samples taken; afterwards, the results not yet put into the next
    /// queue.
    inside: u64,
    input_bytes: u64,
    /// Bytes held for this slot: until the op is done, its reservation; afterwards, the results not yet put into the next queue.
    bytes: u64,
    tickets: Vec<u32>,
    /// Key and origin of the first sample taken, in case the op loses it.
    first: Option<(Arc<str>, Origin)>,
    results: Results,
    put_waits_since: Option<Tick>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Free,
    Working(Slot),
    Done(Slot),
}

#[derive(Debug, Default)]
struct Results {
    next: Option<Item>,
    rest: std::vec::IntoIter<Item>,
}

/// End of an epoch or of the data, which the stage passes on once the tasks before it are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Border {
    end: End,
    /// Set once the op's `finish` was started.
    finished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Epoch,
    Data,
}

impl Pipe {
    pub(crate) fn new(stage: usize, rule: PipeRule, keeps_size: bool) -> Self {
        let PipeRule { concurrency, order, runs_on } = rule;
        Self {
            stage,
            runs_on,
            order,
            concurrency,
            slots: (0..concurrency).map(|_| TaskSlot::default()).collect(),
            free: (0..concurrency).rev().collect(),
            line: VecDeque::new(),
            border: None,
            held: Held::default(),
            sizes: ResultSizes::of(keeps_size),
            working: 0,
            op_nanos: u64::MAX,
            epoch: 0,
        }
    }

    pub(crate) fn step(&mut self, core: &mut Core, step: &mut StageStep<'_>) {
        loop {
            self.pass_on(core, step);
            self.start_tasks(core, step);
            if !self.cross_border(core, step) {
                return;
            }
        }
    }

    pub(crate) fn resize(&mut self, concurrency: usize, core: &mut Core, now: Tick) {
        self.concurrency = concurrency;
        self.free.extend((self.slots.len()..concurrency).rev());
        self.slots.resize_with(self.slots.len().max(concurrency), TaskSlot::default);
        core.meter.on_resize(now, self.may_start());
    }

    /// Makes the stage take no more items; items already inside are still passed on.
    pub(crate) fn stop_taking(&mut self) {
        let finished = self.border.is_some_and(|border| border.finished);
        self.border = Some(Border { end: End::Data, finished });
    }

    /// Records that a worker thread starts the task in `slot`.
    pub(crate) fn on_thread(&mut self, slot: usize, core: &mut Core, now: Tick) {
        self.turn_slot(slot, SlotState::Working(Slot::Busy), core, now);
    }

    /// Records that the task in `slot` starts waiting for permits (if `waits`) or stops waiting.
    pub(crate) fn on_permit_wait(&mut self, slot: usize, waits: bool, core: &mut Core, now: Tick) {
        let doing = if waits { Slot::PermitWait } else { Slot::Busy };
        self.turn_slot(slot, SlotState::Working(doing), core, now);
    }

    /// Records the result of the op in `slot`; `Err` if the op ended without a result. Returns the failures, and the op's reason
    /// for ending the run.
    pub(crate) fn complete(
        &mut self,
        slot: usize,
        outcome: Result<Output, Fault>,
        time: OpTime,
        core: &mut Core,
        settled: &mut Settled,
        now: Tick,
    ) -> (Option<FailedTask>, Option<String>) {
        let (came_in, held) = (self.slots[slot].inside, self.held.samples);
        let was_task = self.slots[slot].first.is_some();
        let (mut output, fault) = match outcome {
            Ok(output) => (output, None),
            Err(fault) => (Output::default(), Some(fault)),
        };
        // Behind a failure that ends the run, a resumed run goes on from the state before.
        let on_error = if output.fatal.is_some() { OnError::Fail } else { core.on_error };
        let is_saved = self.save(slot, &mut output, on_error, settled);
        let lost = self.note(slot, &output, fault.is_some(), time, core);
        let is_fatal = on_error == OnError::Fail && (lost > 0 || !output.failed.is_empty());
        self.settle(slot, &output, is_fatal.then_some(lost), is_saved, settled);
        let failures = output.failed.len() as u64 + lost;
        if was_task || failures > 0 {
            let op_nanos =
                output.op_time.map_or(time.wall, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            core.meter.on_cpu(time.cpu);
            // A call of `finish` counts as a task only if it fails, because it takes no sample.
            core.meter.on_task(Some(op_nanos), failures);
            core.failed_held += failures.saturating_sub(came_in).min(held);
        }
        let failed = (failures > 0).then(|| {
            let lost = (lost > 0)
                .then(|| (self.placeholder(slot, fault.unwrap_or_else(|| lost_samples(lost))), lost));
            FailedTask::new(&core.id, on_error, output.failed, lost)
        });
        failed.iter().for_each(|failed| core.fail(failed));
        self.slots[slot].results = Results::new(output.items);
        self.settle_slot(slot, core, now);
        (failed, output.fatal)
    }

    /// True if this is the only stateful stage, and its op saves its state.
    fn saves(&self, settled: &Settled) -> bool {
        settled.saves() && matches!(self.runs_on, RunsOn::OneThread(_))
    }

    /// Adds a save point if the op in `slot` has saved its state and no resumed run repeats the call, and returns true if so. Removes
    /// samples that earlier runs have settled from the results.
    fn save(&mut self, slot: usize, output: &mut Output, on_error: OnError, settled: &mut Settled) -> bool {
        let is_tried_again = on_error == OnError::Fail && !output.failed.is_empty();
        let saved = output.saved.take().filter(|_| self.saves(settled) && !is_tried_again);
        let is_saved = saved.is_some();
        output.dropped += match saved {
            Some(state) => {
                let first = &self.slots[slot].first;
                let taken = self.held.since_saved.drain(..).chain(first.iter().map(|(_, origin)| *origin));
                settled.save(taken.collect(), &mut output.items, state, first.is_none())
            }
            None => settled.suppress(self.stage, &mut output.items),
        };
        is_saved
    }

    /// Notes the numbers of the op's result in `slot`, and returns the number of samples that the op has lost.
    fn note(&mut self, slot: usize, output: &Output, ended: bool, time: OpTime, core: &mut Core) -> u64 {
        let task = &mut self.slots[slot];
        let had = task.inside + self.held.samples;
        let passed_on = output.items.samples();
        let given = passed_on + output.dropped + output.failed.len() as u64 + output.held;
        // Without a result, all samples inside the op are lost. The failure of an op without samples, e.g. in `finish`, counts
        // as one lost sample.
        let lost = if ended { had.max(1) } else { had.saturating_sub(given) };
        core.book.made += (given + lost).saturating_sub(had);
        core.book.dropped += output.dropped;
        core.meter.on_instances(output.instances);
        core.meter.on_replaced(output.replaced);
        (self.held.samples, self.held.bytes) = (output.held, output.held_bytes);
        (task.inside, task.bytes) = (passed_on, output.items.memory_bytes());
        if passed_on > 0 {
            self.sizes.note(task.input_bytes, task.bytes);
        }
        self.working -= 1;
        self.op_nanos = match self.op_nanos {
            u64::MAX => time.wall,
            before => before - before / 8 + time.wall / 8,
        };
        lost
    }

    /// Settles the samples taken by the task in `slot`, unless the op holds them. `fatal` is the number of lost samples if a failure of
    /// the task ends the run: a resumed run tries the samples again.
    fn settle(
        &mut self,
        slot: usize,
        output: &Output,
        fatal: Option<u64>,
        is_saved: bool,
        settled: &mut Settled,
    ) {
        let (saves, held) = (self.saves(settled), &mut self.held);
        let mut taken = std::mem::take(&mut self.slots[slot].tickets);
        if let Some(lost) = fatal {
            settled.counts.unsettled_failures += output.failed.len() as u64 + lost;
            taken.clear();
        } else if saves {
            // Those of a call that saved the state are settled with what it made.
            let later = self.slots[slot].first.iter().filter(|_| !is_saved);
            held.since_saved.extend(later.map(|(_, origin)| *origin));
            taken.clear();
        } else if output.held > 0 {
            held.since_empty.append(&mut taken);
        }
        let failed = if fatal.is_some() { &[][..] } else { &output.failed[..] };
        if output.held == 0 && !held.since_empty.is_empty() {
            taken.append(&mut held.since_empty);
            settled.release(&taken, &output.items, failed);
        } else if !saves {
            settled.replace(&taken, &output.items, failed);
        }
        taken.clear();
        self.slots[slot].tickets = taken;
    }

    /// Number of jobs that a worker takes at once, if its share of the waiting jobs is `share`.
    pub(crate) fn batch(&self, share: usize) -> usize {
        let within = |nanos: u64| usize::try_from(nanos / self.op_nanos.max(1)).unwrap_or(usize::MAX);
        share.max(within(SHORT_BATCH_NANOS)).min(within(LONG_BATCH_NANOS)).clamp(1, MAX_BATCH)
    }

    pub(crate) fn inside(&self) -> u64 {
        self.held.samples + self.slots.iter().map(|slot| slot.inside).sum::<u64>()
    }

    pub(crate) fn alive(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn may_start(&self) -> usize {
        self.concurrency.saturating_sub(self.alive())
    }

    /// True if the op holds samples until further samples arrive.
    pub(crate) fn holds_back(&self) -> bool {
        self.held.bytes > 0
    }

    /// Bytes held for the tasks and by the op.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.bytes + self.slots.iter().map(|slot| slot.bytes).sum::<u64>()
    }

    /// Bytes held for the task in `slot`, and by the op.
    pub(crate) fn task_bytes(&self, slot: usize) -> u64 {
        self.slots[slot].bytes + self.held.bytes
    }

    /// Maximum number of bytes by which the results of ops that may start in free slots exceed their inputs.
    pub(crate) fn free_growth(&self) -> u64 {
        self.sizes.growth().saturating_mul(self.may_start() as u64)
    }

    /// Puts results into the next queue as long as it has room.
    fn pass_on(&mut self, core: &mut Core, step: &mut StageStep<'_>) {
        while let Some(slot) = self.next_to_put() {
            if slot == MARK {
                self.line.pop_front();
                step.put_mark();
                continue;
            }
            if self.slots[slot].state == SlotState::Done(Slot::OrderWait) {
                self.turn_slot(slot, SlotState::Done(Slot::Blocked), core, step.now);
            }
            let task = &mut self.slots[slot];
            let Some(item) = task.results.take() else {
                self.line.pop_front();
                self.free_slot(slot, core, step.now);
                continue;
            };
            let samples = item.samples();
            match step.try_put(item, task.put_waits_since) {
                Ok(bytes) => {
                    task.put_waits_since = None;
                    task.bytes -= bytes;
                    task.inside -= samples;
                    core.book.out += samples;
                }
                Err(item) => {
                    task.results.next = Some(item);
                    break;
                }
            }
        }
        self.note_waiting_puts(step);
    }

    /// Slot whose result is to be put next, if its op is done, or `MARK` if a mark is next.
    fn next_to_put(&self) -> Option<usize> {
        let slot = *self.line.front()?;
        (slot == MARK || matches!(self.slots[slot].state, SlotState::Done(_))).then_some(slot)
    }

    /// Starts the wait of each result that could not be put.
    fn note_waiting_puts(&mut self, step: &mut StageStep<'_>) {
        // The first slot may have put one result and wait with its next one; slots that wait for the first time are at the back.
        let front = self.next_to_put();
        let mut fresh: usize = 0;
        let others = if self.order == Order::Completion { self.line.len() } else { 0 };
        for slot in front.into_iter().chain(self.line.iter().rev().copied().take(others)) {
            let task = &mut self.slots[slot];
            if task.put_waits_since.is_none() {
                task.put_waits_since = Some(step.now);
                step.output.meter.on_put_waits(step.now);
                fresh += 1;
            } else if Some(slot) != front || fresh > 0 {
                break;
            }
        }
    }

    fn start_tasks(&mut self, core: &mut Core, step: &mut StageStep<'_>) {
        while self.border.is_none() && self.may_start() > 0 && self.may_take(core, step) {
            match step.take() {
                Take::Item(item, bytes) => self.start(item, bytes, core, step),
                Take::Mark if self.order == Order::Completion || self.line.is_empty() => step.put_mark(),
                Take::Mark => self.line.push_back(MARK),
                Take::EpochEnd => self.border = Some(Border { end: End::Epoch, finished: false }),
                Take::Ended => self.border = Some(Border { end: End::Data, finished: false }),
                Take::Empty => return,
            }
        }
    }

    /// True if the memory budget admits a task for the first item of the input queue.
    ///
    /// The number of running tasks exceeds the number of known results by at most `FIRST_TASKS`. If sizes occur in random order,
    /// the next n results after n known ones contain one larger result on average, so a stage's first results exceed their
    /// reservations only slightly.
    fn may_take(&self, core: &Core, step: &mut StageStep<'_>) -> bool {
        if self.sizes.are_kept || !step.budget.is_limited() {
            return true;
        }
        let Some(input) = step.input.front_bytes() else { return true };
        let (done, _) = core.meter.tasks();
        let reserved = self.sizes.reserve(input, step.budget);
        (self.alive() as u64) < done + FIRST_TASKS
            && step.admits(input, reserved, self.alive() == 0, self.holds_back())
    }

    fn start(&mut self, item: Item, bytes: u64, core: &mut Core, step: &mut StageStep<'_>) {
        let Some(slot) = self.free.pop() else { return };
        let samples = item.samples();
        let reserved = self.sizes.reserve(bytes, step.budget);
        step.budget.hold(reserved - bytes);
        self.slots[slot].input_bytes = bytes;
        self.slots[slot].bytes = reserved;
        core.book.taken += samples;
        self.slots[slot].inside = samples;
        self.slots[slot].tickets.extend(item.origins().map(|origin| origin.ticket));
        let first = first_of(&item);
        self.epoch = first.1.epoch;
        self.slots[slot].first = Some(first);
        if self.order == Order::Input {
            self.line.push_back(slot);
        }
        self.hand_out(slot, OpCall::Apply(item), core, step);
    }

    fn hand_out(&mut self, slot: usize, work: OpCall, core: &mut Core, step: &mut StageStep<'_>) {
        let task = Task { stage: self.stage, slot };
        self.working += 1;
        match (self.runs_on, work) {
            (RunsOn::Tasks, OpCall::Apply(item)) => {
                self.turn_slot(slot, SlotState::Working(Slot::Busy), core, step.now);
                step.work.starts.push((task, item));
            }
            (runs_on, work) => {
                self.turn_slot(slot, SlotState::Working(Slot::ThreadWait), core, step.now);
                step.work.jobs.push_back(WorkerJob { task, work, worker: runs_on.worker() });
            }
        }
    }

    /// Passes the end of an epoch or of the data on, once all tasks before it are done. Returns true if the stage can continue.
    fn cross_border(&mut self, core: &mut Core, step: &mut StageStep<'_>) -> bool {
        let Some(border) = self.border else { return false };
        if self.alive() > 0 || core.closed {
            return false;
        }
        if matches!(self.runs_on, RunsOn::OneThread(_)) && !border.finished {
            self.border = Some(Border { finished: true, ..border });
            if let Some(slot) = self.free.pop() {
                self.slots[slot].first = None;
                self.slots[slot].input_bytes = 0;
                if self.order == Order::Input {
                    self.line.push_back(slot);
                }
                self.hand_out(slot, OpCall::Finish, core, step);
            }
            return false;
        }
        match border.end {
            End::Epoch => {
                self.border = None;
                step.put_epoch_end();
                true
            }
            End::Data => {
                core.close(step);
                false
            }
        }
    }

    /// Decides the next state of a slot whose op is done.
    fn settle_slot(&mut self, slot: usize, core: &mut Core, now: Tick) {
        if self.slots[slot].results.is_empty() {
            if self.order == Order::Input {
                self.line.retain(|other| *other != slot);
            }
            self.free_slot(slot, core, now);
            return;
        }
        match self.order {
            Order::Completion => {
                self.line.push_back(slot);
                self.turn_slot(slot, SlotState::Done(Slot::Blocked), core, now);
            }
            Order::Input => self.turn_slot(slot, SlotState::Done(Slot::OrderWait), core, now),
        }
    }

    fn free_slot(&mut self, slot: usize, core: &mut Core, now: Tick) {
        self.turn_slot(slot, SlotState::Free, core, now);
        self.slots[slot].first = None;
        self.free.push(slot);
        if self.may_start() == 0 {
            // The slot was above a concurrency that was lowered.
            core.meter.on_resize(now, 0);
        }
    }

    fn turn_slot(&mut self, slot: usize, to: SlotState, core: &mut Core, now: Tick) {
        let from = std::mem::replace(&mut self.slots[slot].state, to);
        core.meter.on_slot(now, from.doing(), to.doing());
    }

    fn placeholder(&self, slot: usize, fault: Fault) -> Failed {
        let finish = || ("finish".into(), Origin { epoch: self.epoch, ..Origin::default() });
        let (key, origin) = self.slots[slot].first.clone().unwrap_or_else(finish);
        Failed { sample: Sample::new(key, origin), fault }
    }
}

impl SlotState {
    fn doing(self) -> Slot {
        match self {
            Self::Free => Slot::Idle,
            Self::Working(slot) | Self::Done(slot) => slot,
        }
    }
}

impl Results {
    fn new(items: Items) -> Self {
        match items {
            Items::None => Self::default(),
            Items::One(item) => Self { next: Some(item), ..Self::default() },
            Items::Many(items) => Self { next: None, rest: items.into_iter() },
        }
    }

    fn take(&mut self) -> Option<Item> {
        self.next.take().or_else(|| self.rest.next())
    }

    fn is_empty(&self) -> bool {
        self.next.is_none() && self.rest.len() == 0
    }
}

fn first_of(item: &Item) -> (Arc<str>, Origin) {
    let (key, origin) = item.first().unzip();
    (key.cloned().unwrap_or_default(), origin.unwrap_or_default())
}
