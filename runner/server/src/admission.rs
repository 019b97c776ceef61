//! Admission of runs: a budget of threads, memory and instances, and a line in order of submission.

use std::collections::VecDeque;

use penstock_engine::memory::process_limit_bytes;
use penstock_pipeline::memory::{FETCH_MIB, fetches, guests, settings_mib};
use penstock_types::config::RunBounds;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::plan::{Plan, StageKind, StagePlan};
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory a run is charged beside its instances and its `buffer_mib`, in MiB: its threads' stacks, what ops hold, rows that are not written.
pub(crate) const RUN_MIB: u64 = 64;

/// What all runs together may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// Worker threads.
    pub threads: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Instances of modules alive at a time. Each reserves 4 GiB of address space, not memory.
    pub instances: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) threads: u32,
    pub(crate) memory_mib: u64,
    pub(crate) instances: u32,
}

/// Waiting runs, in the order of submission. The first one starts as soon as it fits, and none before it: small runs
/// would otherwise pass a large one for ever.
#[derive(Debug)]
pub(crate) struct WaitingLine<T> {
    budget: Budget,
    used: Cost,
    waiting: VecDeque<(Cost, T)>,
}

impl Budget {
    /// The cores that this process may use, and three quarters of the memory.
    pub fn of_this_machine() -> Self {
        Self {
            threads: penstock_pipeline::cores(),
            memory_mib: process_limit_bytes().map_or(4096, |bytes| (bytes >> 20) * 3 / 4).max(1),
            instances: 256,
        }
    }
}

impl Cost {
    /// Cost of a run of a plan with assets of so many MiB.
    pub(crate) fn of(plan: &Plan, assets_mib: u64) -> Self {
        let threads = plan.threads.unwrap_or_else(penstock_pipeline::cores).max(1);
        let modules = u32::try_from(guests(plan).count()).unwrap_or(u32::MAX);
        Self {
            threads,
            memory_mib: settings_mib(plan, threads) + (plan.buffer_bytes >> 20) + assets_mib + RUN_MIB,
            instances: threads.saturating_mul(modules),
        }
    }

    /// Larger cost of both, part by part.
    pub(crate) fn most(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        let small = |mine: u32, other: u32| u32::try_from(of(mine.into(), other.into())).unwrap_or(u32::MAX);
        Self {
            threads: small(self.threads, other.threads),
            memory_mib: of(self.memory_mib, other.memory_mib),
            instances: small(self.instances, other.instances),
        }
    }

    fn fits(self, budget: &Budget) -> bool {
        self.threads <= budget.threads
            && self.memory_mib <= budget.memory_mib
            && self.instances <= budget.instances
    }
}

/// What of a plan's stages is more than the operator lets a run ask for.
pub(crate) fn check_bounds(plan: &Plan, bounds: &RunBounds) -> Vec<SpecFault> {
    let mut faults = Vec::new();
    let tasks: u64 = plan.stages.iter().map(|stage| u64::from(stage.concurrency.get())).sum();
    if tasks > u64::from(bounds.concurrency.get()) {
        faults.push(SpecFault::new(
            Pointer::ROOT.key("stages"),
            format!(
                "the `concurrency` of all {} stages comes to {tasks}, this server allows {} at most (`limits.runs.concurrency`)",
                plan.stages.len(),
                bounds.concurrency
            ),
        ));
    }
    for (index, stage) in plan.stages.iter().enumerate() {
        let StageKind::Wasm(wasm) = &stage.kind else { continue };
        let place = Pointer::ROOT.key("stages").index(index).key("wasm");
        let mut check = |field: &str, found: u128, most: u32, bound: &str| {
            if found > u128::from(most) {
                let message =
                    format!("found `{found}`, this server allows {most} at most (`limits.runs.{bound}`)");
                faults.push(SpecFault::new(place.key(field), message));
            }
        };
        check(
            "memory_mib",
            u128::from(wasm.memory_bytes >> 20),
            bounds.instance_memory_mib.get(),
            "instance_memory_mib",
        );
        check("deadline_ms", wasm.deadline.as_millis(), bounds.deadline_ms.get(), "deadline_ms");
    }
    faults
}

/// Checks the size of assets.
pub(crate) fn check_assets(plan: &Plan, assets_mib: u64, bounds: &RunBounds) -> Option<SpecFault> {
    let has_assets =
        |stage: &StagePlan| matches!(&stage.kind, StageKind::Wasm(wasm) if !wasm.assets.is_empty());
    let place = plan.stages.iter().position(has_assets)?;
    (assets_mib > u64::from(bounds.assets_mib.get())).then(|| {
        SpecFault::new(
            Pointer::ROOT.key("stages").index(place).key("wasm").key("assets"),
            format!(
                "the assets of all stages are {assets_mib} MiB, this server allows {} MiB at most (`limits.runs.assets_mib`)",
                bounds.assets_mib
            ),
        )
    })
}

/// Checks a plan against the budget, and shows the arithmetic of each fault.
pub(crate) fn check(plan: &Plan, assets_mib: u64, budget: &Budget) -> Vec<SpecFault> {
    let cost = Cost::of(plan, assets_mib);
    let mut faults = Vec::new();
    if cost.threads > budget.threads {
        faults.push(SpecFault::new(
            Pointer::ROOT.key("threads"),
            format!(
                "it asks for {} worker threads, and the server has {} for all runs together",
                cost.threads, budget.threads
            ),
        ));
    }
    let guests = plan.stages.iter().enumerate().filter_map(|(place, stage)| match &stage.kind {
        StageKind::Wasm(wasm) => Some((place, stage, wasm.memory_bytes >> 20)),
        _ => None,
    });
    if cost.memory_mib > budget.memory_mib {
        let largest = guests.clone().max_by_key(|(_, _, mib)| *mib);
        let buffer = plan.buffer_bytes >> 20;
        let place = match largest {
            Some((place, _, mib)) if mib * u64::from(cost.threads) >= buffer => {
                Pointer::ROOT.key("stages").index(place).key("wasm").key("memory_mib")
            }
            _ => Pointer::ROOT.key("buffer_mib"),
        };
        let guests = guests.clone().map(|(_, stage, mib)| {
            format!("{} threads x {mib} MiB for [{}] + ", cost.threads, printable(&stage.id.to_string(), 100))
        });
        let guests: String = guests.take(8).collect();
        let fetches = match fetches(plan) {
            0 => String::new(),
            fetches => format!("{fetches} fetches at a time x {FETCH_MIB} MiB + "),
        };
        let assets = if assets_mib > 0 { format!("{assets_mib} MiB of assets + ") } else { String::new() };
        faults.push(SpecFault::new(
            place,
            format!(
                "it may use {} MiB of memory ({guests}{fetches}{assets}{buffer} MiB between ops (`buffer_mib`) + {RUN_MIB} MiB of its own), and the server has {} MiB for all runs together",
                cost.memory_mib, budget.memory_mib
            ),
        ));
    }
    if cost.instances > budget.instances {
        faults.push(SpecFault::new(
            Pointer::ROOT.key("stages"),
            format!(
                "it may need {} instances of modules ({} threads x {} stages), and the server has {} for all runs together; use fewer `threads`",
                cost.instances,
                cost.threads,
                guests.count(),
                budget.instances
            ),
        ));
    }
    faults
}

impl<T> WaitingLine<T> {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, used: Cost::default(), waiting: VecDeque::new() }
    }

    pub(crate) fn join(&mut self, cost: Cost, who: T) {
        self.waiting.push_back((cost, who));
    }

    /// Returns the first one, if it fits now, and takes its cost from the budget.
    pub(crate) fn next(&mut self) -> Option<(Cost, T)> {
        let (cost, _) = self.waiting.front()?;
        if !self.used.plus(*cost).fits(&self.budget) {
            return None;
        }
        let (cost, who) = self.waiting.pop_front()?;
        self.used = self.used.plus(cost);
        Some((cost, who))
    }

    /// Takes a part without waiting, if it is free and no run waits.
    pub(crate) fn take(&mut self, cost: Cost) -> bool {
        let fits = self.waiting.is_empty() && self.used.plus(cost).fits(&self.budget);
        if fits {
            self.used = self.used.plus(cost);
        }
        fits
    }

    pub(crate) fn give_back(&mut self, cost: Cost) {
        self.used = self.used.minus(cost);
    }

    pub(crate) fn leave(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.waiting.iter().position(|(_, who)| is_it(who))?;
        self.waiting.remove(place).map(|(_, who)| who)
    }

    pub(crate) fn used(&self) -> Cost {
        self.used
    }

    /// Waiting runs, first to last, each with the reason.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&T, String)> {
        self.waiting
            .iter()
            .enumerate()
            .map(|(before, (cost, who))| (who, in_words(*cost, self.used, &self.budget, before)))
    }
}

/// Reason why a run would wait behind so many others; `None` when it could start at once.
pub(crate) fn would_wait(cost: Cost, used: Cost, budget: &Budget, before: usize) -> Option<String> {
    let fits = before == 0 && used.plus(cost).fits(budget);
    (!fits).then(|| in_words(cost, used, budget, before))
}

/// The arithmetic of a wait.
fn in_words(cost: Cost, used: Cost, budget: &Budget, before: usize) -> String {
    let free = Cost { threads: budget.threads, memory_mib: budget.memory_mib, instances: budget.instances }
        .minus(used);
    let mut lacks = Vec::new();
    let mut lack = |wanted: u64, free: u64, all: u64, what: &str| {
        if wanted > free {
            lacks.push(format!("{wanted} {what}, and {free} of {all} are free"));
        }
    };
    lack(cost.threads.into(), free.threads.into(), budget.threads.into(), "threads");
    lack(cost.memory_mib, free.memory_mib, budget.memory_mib, "MiB of memory");
    lack(cost.instances.into(), free.instances.into(), budget.instances.into(), "instances of modules");
    let line = match before {
        0 => None,
        1 => Some("1 run before it waits too".to_owned()),
        more => Some(format!("{more} runs before it wait too")),
    };
    let needs = (!lacks.is_empty()).then(|| format!("it needs {}", lacks.join("; ")));
    [needs, line].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: Budget = Budget { threads: 4, memory_mib: 1000, instances: 8 };

    fn cost(threads: u32, memory_mib: u64) -> Cost {
        Cost { threads, memory_mib, instances: 0 }
    }

    #[test]
    fn a_small_run_does_not_pass_a_large_one() {
        let mut line = WaitingLine::new(BUDGET);
        line.join(cost(3, 100), "first");
        line.join(cost(4, 100), "large");
        line.join(cost(1, 100), "small");
        assert_eq!(line.next().unwrap().1, "first");
        assert!(line.next().is_none());
        let told: Vec<String> = line.waiting().map(|(_, why)| why).collect();
        assert_eq!(told, ["it needs 4 threads, and 1 of 4 are free", "1 run before it waits too"]);
        line.give_back(cost(3, 100));
        assert_eq!(line.next().unwrap().1, "large");
        assert!(!line.take(cost(0, 1)), "somebody waits");
        line.give_back(cost(4, 100));
        assert_eq!(line.next().unwrap().1, "small");
        assert_eq!(would_wait(cost(3, 900), line.used(), &BUDGET, 0), None);
        assert_eq!(
            would_wait(cost(4, 950), line.used(), &BUDGET, 0).unwrap(),
            "it needs 4 threads, and 3 of 4 are free; 950 MiB of memory, and 900 of 1000 are free"
        );
    }

    proptest! {
        #[test]
        fn all_start_in_order_and_the_budget_holds(costs in prop::collection::vec((1_u32..=4, 1_u64..=1000), 1..50)) {
            let mut line = WaitingLine::new(BUDGET);
            for (place, (threads, memory)) in costs.iter().enumerate() {
                line.join(cost(*threads, *memory), place);
            }
            let mut alive: VecDeque<Cost> = VecDeque::new();
            let mut started = Vec::new();
            while started.len() < costs.len() {
                match line.next() {
                    Some((cost, place)) => {
                        started.push(place);
                        alive.push_back(cost);
                    }
                    None => line.give_back(alive.pop_front().unwrap()),
                }
                prop_assert!(line.used().fits(&BUDGET));
            }
            prop_assert!(started.is_sorted());
        }
    }
}
