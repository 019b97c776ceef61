use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shape::{PipelineShape, StageTraits};
use crate::fault::Pointer;
use crate::policy::Order;
use crate::stats::TaskFigures;

/// Use of the slots of one stage: mean numbers of slots, which add up to its concurrency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlotUse {
    /// Id of the stage.
    pub stage: String,
    /// Number of slots of the stage.
    pub concurrency: u32,
    /// Slots in which ops ran.
    pub busy: f64,
    /// Slots whose tasks waited for a worker thread.
    pub thread_wait: f64,
    /// Slots whose tasks waited for permits of the store they read.
    #[serde(default)]
    pub permit_wait: f64,
    /// Slots whose results waited for earlier results, to keep the input order.
    pub order_wait: f64,
    /// Slots whose results waited for room in the next queue.
    pub blocked: f64,
    /// Slots without a task.
    pub idle: f64,
    /// Lowest concurrency that would have sustained the rate.
    pub least: u32,
    /// Place of the concurrency in the document; `null` where it cannot be changed.
    pub pointer: Option<Pointer>,
}

/// Use of the worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadUse {
    /// Number of worker threads of the run.
    pub threads: u32,
    /// Mean number of threads that ran ops.
    pub busy: f64,
    /// Lowest number of threads that would have sustained the rate.
    pub least: u32,
}

impl SlotUse {
    /// Computes the use of the slots from the figures of the tasks; `None` where nothing was measured, and for stages whose slots
    /// do no work.
    pub(super) fn of(stage: &StageTraits, task: &TaskFigures) -> Option<Self> {
        let works = stage.work != crate::kinds::Work::Moving && task.elapsed_s > 0.0;
        let slots = |seconds: f64| seconds / task.elapsed_s;
        let mut use_of_slots = works.then(|| Self {
            stage: stage.id.clone(),
            concurrency: stage.concurrency,
            busy: slots(task.busy_s),
            thread_wait: slots(task.thread_wait_s),
            permit_wait: slots(task.permit_wait_s),
            order_wait: slots(task.order_wait_s),
            blocked: slots(task.blocked_s),
            idle: slots(task.idle_s),
            least: stage.concurrency,
            pointer: stage.may_grow.then(|| stage.place.key("concurrency")),
        })?;
        use_of_slots.least = use_of_slots.least_for(stage, 1.0);
        Some(use_of_slots)
    }

    /// Share of the stage's slots held by its own work, 0.0 to 1.0: by ops and their waits for threads and permits. The stage
    /// with the greatest share has the least reserve.
    pub(super) fn in_use(&self, stage: &StageTraits) -> f64 {
        let held = self.busy + self.thread_wait + self.permit_wait + self.own_order_wait(stage);
        (held / self.slots()).min(1.0)
    }

    /// Mean number of slots that there were, which the concurrency of the document is only as long as it does not change in the run.
    pub(super) fn slots(&self) -> f64 {
        self.busy + self.thread_wait + self.permit_wait + self.order_wait + self.blocked + self.idle
    }

    /// Slots whose results waited for a slower task earlier in the order. While the first result in the order waits for room, the
    /// results behind it wait for room, not for a task.
    pub(super) fn own_order_wait(&self, stage: &StageTraits) -> f64 {
        match stage.order {
            Order::Input => self.order_wait * (1.0 - self.blocked.min(1.0)),
            Order::Completion => 0.0,
        }
    }

    /// Lowest concurrency that sustains `more` times the rate.
    pub(super) fn least_for(&self, stage: &StageTraits, more: f64) -> u32 {
        if !stage.may_grow {
            return self.concurrency;
        }
        let least = staffed((self.busy + self.own_order_wait(stage)) * more);
        if more > 1.0 { least } else { least.min(self.concurrency) }
    }
}

impl ThreadUse {
    /// Computes the use of the worker threads from the use of the slots; `None` when no stage needs a worker thread.
    pub(super) fn of(shape: &PipelineShape, slots: &[Option<SlotUse>]) -> Option<Self> {
        let on_threads = || shape.stages.iter().zip(slots).filter(|(stage, _)| stage.work.is_on_thread());
        on_threads().next()?;
        let busy: f64 = on_threads().filter_map(|(_, slots)| slots.as_ref()).map(|slots| slots.busy).sum();
        Some(Self { threads: shape.threads, busy, least: staffed(busy).min(shape.threads) })
    }

    /// Share of the threads' time in which they ran ops.
    pub(super) fn share(&self) -> f64 {
        self.busy / f64::from(self.threads)
    }

    /// Lowest number of threads that sustains `more` times the rate.
    pub(super) fn least_for(&self, more: f64) -> u32 {
        staffed(self.busy * more)
    }
}

/// Number of slots (or threads) needed for work that occupies `load` slots on average (Little's law). Random arrivals vary the
/// need by about the square root of `load`; half of this square root is kept as reserve, and the queues on both sides absorb the
/// rest.
fn staffed(load: f64) -> u32 {
    // Tolerance for rounding: a load that is a whole number of slots, all in use, needs no additional one.
    ((load + 0.5 * load.sqrt() - 0.01).ceil()).clamp(1.0, f64::from(crate::policy::Concurrency::MOST)) as u32
}

#[cfg(test)]
mod tests {
    use super::staffed;

    #[test]
    fn the_least_concurrency_is_that_of_the_recorded_runs() {
        // In the pipeline `seeds/001-four-stages.json`, `preprocess` works in 4.17 of its 12 slots, and `download` in 1.53.
        assert_eq!([4.17, 1.53].map(staffed), [6, 3]);
        // In the pipelines `seeds/002-*.json`, a task takes 40 ms or 35 ms, and an item is needed every 30 ms.
        assert_eq!([40.0 / 30.0, 35.0 / 30.0].map(staffed), [2, 2]);
        assert_eq!([0.0, 0.25, 1e9].map(staffed), [1, 1, 4096]);
    }
}
