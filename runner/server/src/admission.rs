//! Admission of runs: the cost of a run in threads, memory and instances, and the reason why a run waits.

use std::collections::BTreeMap;

use penstock_engine::memory::process_limit_bytes;
use penstock_pipeline::memory::{guests, tuned_mib};
use penstock_types::config::RunBounds;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::plan::{Plan, StageKind, StagePlan, WasmPlan};
use penstock_types::text::printable;

use crate::fair::{Amounts, ClientId, Shares};

/// Memory that each run is charged in addition to its instances and `buffer_mib`, in MiB, for thread stacks, ops and unwritten
/// rows.
pub(crate) const RUN_MIB: u64 = 64;

/// Resources that all runs together may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub threads: u32,
    pub memory_mib: u64,
    /// Maximum number of module instances at a time. Each reserves 12 GiB of address space, but not of memory.
    pub instances: u32,
}

/// Part of the budget that a run takes.
pub(crate) type Cost = Budget;

impl Budget {
    /// Derives the budget from the cores that this process may use and from three quarters of the memory.
    pub fn of_this_machine() -> Self {
        Self {
            threads: penstock_pipeline::cores(),
            memory_mib: process_limit_bytes().map_or(4096, |bytes| (bytes >> 20) * 3 / 4).max(1),
            instances: 256,
        }
    }

    /// Computes the cost of a run of `plan` with assets of `assets_mib` MiB.
    pub(crate) fn of(plan: &Plan, assets_mib: u64) -> Self {
        let threads = plan.threads.unwrap_or_else(penstock_pipeline::cores).max(1);
        let modules = u32::try_from(guests(plan).count()).unwrap_or(u32::MAX);
        Self {
            threads,
            memory_mib: tuned_mib(plan, threads) + (plan.buffer_bytes >> 20) + assets_mib + RUN_MIB,
            instances: threads.saturating_mul(modules),
        }
    }

    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            threads: self.threads.max(other.threads),
            memory_mib: self.memory_mib.max(other.memory_mib),
            instances: self.instances.max(other.instances),
        }
    }

    pub(crate) fn amounts(self) -> Amounts<3> {
        [self.threads.into(), self.memory_mib, self.instances.into()]
    }
}

pub(crate) fn wasm_stages(plan: &Plan) -> impl Iterator<Item = (&StagePlan, &WasmPlan)> {
    plan.stages.iter().filter_map(|stage| match &stage.kind {
        StageKind::Wasm(wasm) => Some((stage, wasm)),
        _ => None,
    })
}

/// Checks the stages of a plan against the bounds that the operator sets for a run.
pub(crate) fn check_bounds(plan: &Plan, bounds: &RunBounds) -> Vec<SpecFault> {
    let mut faults = Vec::new();
    let tasks: u64 = plan.stages.iter().map(|stage| u64::from(stage.concurrency.get())).sum();
    if tasks > u64::from(bounds.concurrency.get()) {
        let message = format!(
            "the `concurrency` of all {} stages adds up to {tasks}, but this server allows at most {} (`limits.runs.concurrency`)",
            plan.stages.len(),
            bounds.concurrency
        );
        faults.push(SpecFault::new(Pointer::ROOT.key("stages"), message));
    }
    for (stage, wasm) in wasm_stages(plan) {
        let mut check = |field: &str, found: u128, most: u32, bound: &str| {
            if found > u128::from(most) {
                let message =
                    format!("found `{found}`, but this server allows at most {most} (`limits.runs.{bound}`)");
                faults.push(SpecFault::new(stage.place.key(field), message));
            }
        };
        let [memory_mib, output_mib] =
            [wasm.memory_bytes, wasm.output_bytes].map(|bytes| u128::from(bytes >> 20));
        check("memory_mib", memory_mib, bounds.instance_memory_mib.get(), "instance_memory_mib");
        check("output_mib", output_mib, bounds.output_mib.get(), "output_mib");
        check("deadline_ms", wasm.deadline.as_millis(), bounds.deadline_ms.get(), "deadline_ms");
    }
    faults
}

pub(crate) fn check_assets(plan: &Plan, assets_mib: u64, bounds: &RunBounds) -> Option<SpecFault> {
    let (stage, _) = wasm_stages(plan).find(|(_, wasm)| !wasm.assets.is_empty())?;
    (assets_mib > u64::from(bounds.assets_mib.get())).then(|| {
        let message = format!(
            "the assets of all stages have {assets_mib} MiB, but this server allows at most {} MiB (`limits.runs.assets_mib`)",
            bounds.assets_mib
        );
        SpecFault::new(stage.place.key("assets"), message)
    })
}

/// Checks that the budget of the server suffices for a plan; the faults show how the cost was computed.
pub(crate) fn check(plan: &Plan, assets_mib: u64, budget: &Budget) -> Vec<SpecFault> {
    let cost = Cost::of(plan, assets_mib);
    let mut faults = Vec::new();
    if cost.threads > budget.threads {
        let message = format!(
            "the pipeline needs {} worker threads, but the server has {} for all runs together",
            cost.threads, budget.threads
        );
        faults.push(SpecFault::new(Pointer::ROOT.key("threads"), message));
    }
    let guests = plan.stages.iter().filter_map(|stage| Some((stage, stage.kind.rules().memory().instance?)));
    if cost.memory_mib > budget.memory_mib {
        let largest = guests.clone().max_by_key(|(_, mib)| *mib);
        let buffer = plan.buffer_bytes >> 20;
        let place = match largest {
            Some((stage, mib)) if mib * u64::from(cost.threads) >= buffer => stage.place.key("memory_mib"),
            _ => Pointer::ROOT.key("buffer_mib"),
        };
        let guests = guests.clone().map(|(stage, mib)| {
            format!("{} threads x {mib} MiB for [{}] + ", cost.threads, printable(&stage.id.to_string(), 100))
        });
        let guests: String = guests.take(8).collect();
        let tasks = tasks_in_words(plan);
        let assets = if assets_mib > 0 { format!("{assets_mib} MiB of assets + ") } else { String::new() };
        let message = format!(
            "the pipeline may use {} MiB of memory ({guests}{tasks}{assets}{buffer} MiB for items between ops (`buffer_mib`) + {RUN_MIB} MiB for the run itself), but the server has {} MiB for all runs together",
            cost.memory_mib, budget.memory_mib
        );
        faults.push(SpecFault::new(place, message));
    }
    if cost.instances > budget.instances {
        let message = format!(
            "the pipeline may need {} instances of modules ({} threads x {} stages), but the server has {} for all runs together; use fewer `threads`",
            cost.instances,
            cost.threads,
            guests.count(),
            budget.instances
        );
        faults.push(SpecFault::new(Pointer::ROOT.key("stages"), message));
    }
    faults
}

/// Tasks of a plan that take memory beside their items, as summands.
fn tasks_in_words(plan: &Plan) -> String {
    let mut tasks = BTreeMap::<_, u64>::new();
    for stage in &plan.stages {
        let rules = stage.kind.rules();
        *tasks.entry((rules.tasks_in_words(), rules.memory().task)).or_default() +=
            u64::from(stage.concurrency.get());
    }
    let tasks = tasks.into_iter().filter(|((_, mib), _)| *mib > 0);
    tasks.map(|((name, mib), count)| format!("{count} {name} at a time x {mib} MiB + ")).collect()
}

/// Reason why a run waits; `None` if it does not wait. `before` is the number of earlier waiting runs of the same client;
/// `others_first` is true if a waiting run of another client starts first.
pub(crate) fn why_it_waits(
    shares: &Shares<3>,
    client: &ClientId,
    cost: Amounts<3>,
    before: u64,
    others_first: bool,
) -> Option<String> {
    const KINDS: [&str; 3] = ["threads", "MiB of memory", "instances of modules"];
    let (whole, free, most, own) =
        (shares.whole(), shares.free(), shares.most(client), shares.held(client).amounts);
    let lacks = (0..3).filter(|kind| cost[*kind] > free[*kind]);
    let lacks = lacks
        .map(|kind| format!("{} {} needed, {} of {} free", cost[kind], KINDS[kind], free[kind], whole[kind]));
    let lacks = lacks.collect::<Vec<_>>().join("; ");
    let reason = if !lacks.is_empty() {
        Some(format!("not enough capacity: {lacks}"))
    } else if before == 0 && !shares.may_have(client, cost) {
        let beyond = (0..3).filter(|kind| own[*kind] + cost[*kind] > most[*kind]);
        let beyond =
            beyond.map(|kind| format!("{} of {} {}", own[kind] + cost[kind], whole[kind], KINDS[kind]));
        Some(format!(
            "with this run, the client would hold {}; one client may hold only a share of the capacity that other clients do not use (`limits.clients.share_percent`)",
            beyond.collect::<Vec<_>>().join(" and ")
        ))
    } else if before == 0 && others_first {
        Some("runs of other clients, which use less of the budget, start first".to_owned())
    } else {
        None
    };
    let line = match before {
        0 => None,
        1 => Some("1 earlier run of the same client is waiting".to_owned()),
        more => Some(format!("{more} earlier runs of the same client are waiting")),
    };
    let reasons: Vec<String> = [reason, line].into_iter().flatten().collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use penstock_types::spec::Percent;

    use super::*;
    use crate::fair::FairLine;

    #[test]
    fn the_reason_for_waiting_names_the_missing_resources() {
        let budget = Budget { threads: 4, memory_mib: 1000, instances: 8 };
        let mut line = FairLine::<(), 3>::new(Shares::new(budget.amounts(), Percent::default()));
        let [one, other] = ["one", "other"].map(ClientId::new);
        assert!(line.take(&one, [3, 100, 0]));
        let why = |client, cost, before, others_first| {
            why_it_waits(&line.shares, client, cost, before, others_first).unwrap_or_default()
        };
        assert_eq!(why(&other, [1, 900, 0], 0, false), "");
        assert_eq!(
            why(&other, [4, 950, 0], 0, true),
            "not enough capacity: 4 threads needed, 1 of 4 free; 950 MiB of memory needed, 900 of 1000 free"
        );
        let beyond = "with this run, the client would hold 4 of 4 threads; one client may hold only a share of the capacity that other clients do not use (`limits.clients.share_percent`)";
        assert_eq!(why(&one, [1, 100, 0], 0, true), beyond);
        assert_eq!(why(&one, [1, 100, 0], 1, true), "1 earlier run of the same client is waiting");
        assert_eq!(
            why(&other, [1, 100, 0], 0, true),
            "runs of other clients, which use less of the budget, start first"
        );
        assert_eq!(why(&other, [1, 100, 0], 2, true), "2 earlier runs of the same client are waiting");
    }
}
