//! Changes the settings of a run while it goes on, by hand or by the tuner.

mod live;
mod propose;
mod report;
#[cfg(test)]
mod tests;
mod tuner;

use std::num::NonZeroUsize;

use penstock_engine::running::Resize;
use penstock_types::plan::{LiveSetting, Plan};
use penstock_types::policy::{Capacity, Concurrency};
use penstock_types::profile::Profile;
use serde_json::Value;

pub(crate) use self::live::TunerWork;
pub use self::live::{LiveSettings, SetFault};
use self::propose::propose;
pub use self::report::{TuneReport, WhatWouldHelp, tuned};
pub(crate) use self::tuner::median;
use self::tuner::{Question, Step, Tuner};
use crate::memory::{settings_mib, tuner_mib};
use crate::predict::Times;

/// Limits of what a tuner may propose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TuneLimits {
    /// Number of worker threads, which only users change.
    pub(crate) threads: u32,
    pub(crate) cores: f64,
    /// Maximum concurrency of a stage that waits.
    pub(crate) concurrency: u32,
    /// Maximum sum of the concurrency of all stages.
    pub(crate) tasks: u64,
    /// Maximum capacity of a queue, in items.
    pub(crate) queue: u32,
    /// Memory in MiB of all instances and of objects being fetched.
    pub(crate) memory_mib: u64,
}

/// Tasks per worker thread up to which more concurrency of a stage may help: results of the others wait for a slow one, to keep the order.
const TASKS_PER_THREAD: u32 = 4;

/// Default for [`TuneLimits::concurrency`].
const MAX_TASKS: u32 = 256;
/// Default for [`TuneLimits::queue`].
const MAX_QUEUE: u32 = 64;

impl TuneLimits {
    /// Limits of a run whose stages may have `tasks` tasks together.
    fn of(plan: &Plan, threads: u32, cores: f64, tasks: u64) -> Self {
        let memory_mib = tuner_mib(plan, threads);
        Self { threads, cores, concurrency: MAX_TASKS, tasks, queue: MAX_QUEUE, memory_mib }
    }

    /// The limits in a run with the settings of `plan`, which users may have changed.
    fn beside(self, plan: &Plan) -> Self {
        let threads = plan.threads.unwrap_or(self.threads);
        Self { threads, memory_mib: self.memory_mib.max(settings_mib(plan, threads)), ..self }
    }

    fn allow(&self, plan: &Plan) -> bool {
        let tasks: u64 = plan.stages.iter().map(|stage| u64::from(stage.concurrency.get())).sum();
        tasks <= self.tasks && settings_mib(plan, self.threads) <= self.memory_mib
    }

    /// Maximum concurrency of a stage.
    fn most_tasks(&self, is_on_thread: bool) -> u32 {
        if is_on_thread {
            self.concurrency.min(self.threads.saturating_mul(TASKS_PER_THREAD))
        } else {
            self.concurrency
        }
    }
}

impl Question {
    /// Searches for changes that are faster by the prediction of `rate`.
    pub(crate) fn search(
        &self,
        limits: &TuneLimits,
        rate: &mut propose::Rate<'_>,
    ) -> Option<propose::Proposed> {
        let may_change = |setting: LiveSetting| !self.resting.contains(&setting);
        propose(&self.plan, &self.verdict.slots, &limits.beside(&self.plan), &may_change, rate)
    }

    /// Times that the window has measured. `document` is that of the run.
    pub(crate) fn times(&self, document: &Value, limits: &TuneLimits, profile: Option<&Profile>) -> Times {
        let on = (limits.beside(&self.plan).threads, limits.cores);
        let times = Times::of_interval(&self.plan, document, on, &self.sums, self.machine);
        times.with_profile(&self.plan, profile)
    }
}

/// Calls `resize` for each part of the engine that has the setting.
fn resizes<E>(
    plan: &Plan,
    setting: LiveSetting,
    value: u32,
    mut resize: impl FnMut(Resize<'_>) -> Result<(), E>,
) -> Result<(), E> {
    match setting {
        LiveSetting::Concurrency(place) => {
            let Some(value) = Concurrency::new(value) else { return Ok(()) };
            resize(Resize::Concurrency(&plan.stages[place].id.to_string(), value))
        }
        LiveSetting::Queue(_) => {
            let Some(value) = Capacity::new(value) else { return Ok(()) };
            let ids: Vec<_> = plan.nodes().map(|(id, _)| id.queue_id()).collect();
            setting.queues(plan).into_iter().try_for_each(|node| resize(Resize::Capacity(&ids[node], value)))
        }
        LiveSetting::Threads => {
            let value = NonZeroUsize::new(value as usize);
            value.map_or(Ok(()), |value| resize(Resize::Workers(value)))
        }
    }
}
