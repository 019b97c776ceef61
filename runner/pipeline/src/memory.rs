//! Memory that a plan may come to use, before it runs.

use penstock_types::plan::{Plan, StageKind};

/// Memory that is assumed for each object that is being fetched, in MiB: its connection and what that buffers. The object itself
/// counts against `buffer_mib`.
pub const FETCH_MIB: u64 = 1;

/// Memory that a plan's concurrency and threads decide, in MiB: its instances, and the objects that are being fetched.
pub fn settings_mib(plan: &Plan, threads: u32) -> u64 {
    instances_mib(plan, threads) + fetches(plan) * FETCH_MIB
}

/// Memory of all instances of a plan, in MiB: each thread may come to have one of each module.
pub fn instances_mib(plan: &Plan, threads: u32) -> u64 {
    guests(plan).sum::<u64>() * u64::from(threads)
}

/// Memory that an instance of each module may have, in MiB.
pub fn guests(plan: &Plan) -> impl Iterator<Item = u64> {
    plan.stages.iter().filter_map(|stage| match &stage.kind {
        StageKind::Wasm(wasm) => Some(wasm.memory_bytes >> 20),
        _ => None,
    })
}

/// Tasks of all stages that fetch, at a time.
pub fn fetches(plan: &Plan) -> u64 {
    let fetches = plan.stages.iter().filter(|stage| matches!(stage.kind, StageKind::Fetch { .. }));
    fetches.map(|stage| u64::from(stage.concurrency.get())).sum()
}
