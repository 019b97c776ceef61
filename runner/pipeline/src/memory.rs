//! Upper bounds for the memory of a plan, before it runs.

use penstock_types::plan::{Plan, StagePlan};
use penstock_types::tune::Tune;

/// Memory for tasks that a tuner may add to a run, in MiB.
const TUNE_MIB: u64 = 256;

/// Memory that depends on a plan's concurrency and threads, in MiB: its instances, and its tasks, such as the objects in flight.
pub fn settings_mib(plan: &Plan, threads: u32) -> u64 {
    instances_mib(plan, threads) + tasks_mib(plan)
}

/// Memory that a run takes at most with the settings that its tuner may choose, in MiB.
pub fn tuned_mib(plan: &Plan, threads: u32) -> u64 {
    if plan.tune == Tune::Apply { tuner_mib(plan, threads) } else { settings_mib(plan, threads) }
}

/// Memory that a plan takes at most with the settings that a tuner may choose or suggest, in MiB.
pub(crate) fn tuner_mib(plan: &Plan, threads: u32) -> u64 {
    settings_mib(plan, threads) + TUNE_MIB
}

/// Memory of all instances of a plan, in MiB: each thread may have one instance of each module.
pub fn instances_mib(plan: &Plan, threads: u32) -> u64 {
    guests(plan).sum::<u64>() * u64::from(threads)
}

/// Memory limit of an instance of each module, in MiB.
pub fn guests(plan: &Plan) -> impl Iterator<Item = u64> {
    plan.stages.iter().filter_map(|stage| stage.kind.rules().memory().instance)
}

/// Memory of all tasks that a plan may have at a time, beside their items, in MiB.
fn tasks_mib(plan: &Plan) -> u64 {
    let tasks = |stage: &StagePlan| stage.kind.rules().memory().task * u64::from(stage.concurrency.get());
    plan.stages.iter().map(tasks).sum()
}
