//! Upper bounds for the memory of a plan, before it runs.

use penstock_types::plan::{Plan, StageKind};

/// Memory assumed for each object in flight, in MiB: its connection with buffers. The object itself counts against `buffer_mib`.
pub const FETCH_MIB: u64 = 1;

/// Memory that depends on a plan's concurrency and threads, in MiB: its instances, and the objects in flight.
pub fn settings_mib(plan: &Plan, threads: u32) -> u64 {
    instances_mib(plan, threads) + fetches(plan) * FETCH_MIB
}

/// Memory of all instances of a plan, in MiB: each thread may have one instance of each module.
pub fn instances_mib(plan: &Plan, threads: u32) -> u64 {
    guests(plan).sum::<u64>() * u64::from(threads)
}

/// Memory limit of an instance of each module, in MiB.
pub fn guests(plan: &Plan) -> impl Iterator<Item = u64> {
    plan.stages.iter().filter_map(|stage| match &stage.kind {
        StageKind::Wasm(wasm) => Some(wasm.memory_bytes >> 20),
        _ => None,
    })
}

/// Maximum number of concurrent tasks over all `fetch` stages.
pub fn fetches(plan: &Plan) -> u64 {
    let fetches = plan.stages.iter().filter(|stage| matches!(stage.kind, StageKind::Fetch { .. }));
    fetches.map(|stage| u64::from(stage.concurrency.get())).sum()
}
