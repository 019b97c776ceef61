//! What is wrong with a document that reads well.

use std::num::NonZeroU32;

use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::Stage;

use super::{
    AcceleratorSpec, Action, BenchSpec, DataSource, MAX_IN_FLIGHT, MAX_WORKERS, WarmUpKind, WholeSet,
};
use crate::accelerator::preset;

const MAX_ACTIONS: usize = 100;
/// Most repetitions of an action: each leaves a time.
const MAX_REPEAT: u32 = 10_000_000;
/// Most synthetic objects, and most bytes of one.
const MAX_OBJECTS: u32 = 10_000_000;
const MAX_OBJECT_BYTES: u32 = 256 << 20;
const MAX_STEP_MS: f64 = 600_000.0;
const MAX_TIMES: usize = 1000;

impl BenchSpec {
    /// All faults, in the order of the document.
    pub(super) fn faults(&self) -> Vec<SpecFault> {
        let mut faults = Vec::new();
        let root = Pointer::ROOT;
        self.check_source(&mut faults);
        self.check_stages(&mut faults);
        if self.actions.is_empty() || self.actions.len() > MAX_ACTIONS {
            let found = self.actions.len();
            faults.push(SpecFault::new(
                root.key("actions"),
                format!("found {found} actions, wanted 1 to {MAX_ACTIONS}"),
            ));
        }
        for (index, action) in self.actions.iter().enumerate() {
            let place = root.key("actions").index(index).key(action.name());
            match action {
                Action::WholeSet(set) => set.check(&place, &mut faults),
                Action::RandomToDevice(copy) => {
                    if copy.device != "host" {
                        let message = format!(
                            "found `{}`; this build copies to `host` only",
                            copy.device.escape_debug()
                        );
                        faults.push(SpecFault::new(place.key("device"), message));
                    }
                    check_repeat(&place, copy.repeat, &mut faults);
                    let numbers: u64 = copy.shape.iter().map(|side| u64::from(*side)).product();
                    if numbers.saturating_mul(u64::from(self.pool.max(1))) > 1 << 28 {
                        faults.push(SpecFault::new(
                            place.key("shape"),
                            "found more than 2^28 numbers in all arrays of the pool, which is 1 GiB",
                        ));
                    }
                }
                Action::Index(_) if matches!(self.source, DataSource::Memory(_)) => {
                    let message = "made-up objects have no index, so that there is nothing to time; leave it out, or read a store";
                    faults.push(SpecFault::new(place, message));
                }
                Action::Random(repeated) | Action::Single(repeated) | Action::Index(repeated) => {
                    check_repeat(&place, repeated.repeat, &mut faults);
                }
            }
        }
        if self.pool > MAX_WORKERS {
            let message = format!("found {}, wanted 0 to {MAX_WORKERS}", self.pool);
            faults.push(SpecFault::new(root.key("pool"), message));
        }
        let has_load = self.whole_sets().next().is_some();
        if let Some(accelerator) = &self.accelerator {
            accelerator.check(&root.key("accelerator"), &mut faults);
            if !has_load {
                let message = "it is fed by a load, and there is no action `whole_set`";
                faults.push(SpecFault::new(root.key("accelerator"), message));
            }
        }
        if self.counterfactuals && !has_load {
            let message = "they are made of a load, and there is no action `whole_set`";
            faults.push(SpecFault::new(root.key("counterfactuals"), message));
        }
        faults
    }

    fn check_source(&self, faults: &mut Vec<SpecFault>) {
        let place = Pointer::ROOT.key("source");
        let (kind, epochs) = match &self.source {
            DataSource::List(list) => ("list", list.epochs),
            DataSource::Index(index) => ("index", index.epochs),
            DataSource::Memory(memory) => {
                let mut within = |field: &str, found: u32, most: u32| {
                    if found > most {
                        let message = format!("found {found}, at most {most} are made");
                        faults.push(SpecFault::new(place.key("memory").key(field), message));
                    }
                };
                within("count", memory.count.get(), MAX_OBJECTS);
                within("bytes", memory.bytes, MAX_OBJECT_BYTES);
                if !self.stages.is_empty() {
                    let message =
                        "made-up objects mean nothing to stages; read real ones, or leave the stages out";
                    faults.push(SpecFault::new(place.key("memory"), message));
                }
                return;
            }
        };
        if epochs.is_none_or(|epochs| epochs.get() != 1) {
            let message = "passes are counted by `repeats` of an action; leave `epochs` out";
            faults.push(SpecFault::new(place.key(kind).key("epochs"), message));
        }
    }

    fn check_stages(&self, faults: &mut Vec<SpecFault>) {
        let sizes: Vec<u32> = self.whole_sets().map(|set| set.batch_size).collect();
        for (index, stage) in self.stages.iter().enumerate() {
            let place = Pointer::ROOT.key("stages").index(index);
            match stage {
                Stage::Wasm(_) | Stage::Collate(_) => {}
                Stage::Aggregate(aggregate) => {
                    let found = aggregate.size.get();
                    if let Some(size) = sizes.iter().find(|size| **size != found) {
                        let message = format!(
                            "found {found}, but a load has batches of {size}; a worker works on one batch at a time"
                        );
                        faults.push(SpecFault::new(place.key("aggregate").key("size"), message));
                    }
                }
                other => {
                    let message = "no worker of a load does this; wanted `wasm`, `aggregate` or `collate`";
                    faults.push(SpecFault::new(place.key(other.kind()), message));
                }
            }
        }
    }
}

fn check_repeat(place: &Pointer, repeat: NonZeroU32, faults: &mut Vec<SpecFault>) {
    if repeat.get() > MAX_REPEAT {
        let message = format!("found {repeat}, at most {MAX_REPEAT} are timed");
        faults.push(SpecFault::new(place.key("repeat"), message));
    }
}

impl WholeSet {
    fn check(&self, place: &Pointer, faults: &mut Vec<SpecFault>) {
        let mut within = |field: &str, found: usize, least: usize, most: usize| {
            if !(least..=most).contains(&found) {
                let message = format!("found {found}, wanted {least} to {most}");
                faults.push(SpecFault::new(place.key(field), message));
            }
        };
        within("in_flight", self.in_flight as usize, 1, MAX_IN_FLIGHT as usize);
        within("batch_size", self.batch_size as usize, 1, 1 << 16);
        within("prefetch", self.prefetch as usize, 1, MAX_TIMES);
        within("repeats", self.repeats as usize, 1, MAX_TIMES);
        let mut listed = |field: &str, found: usize, most: usize| {
            if found == 0 || found > most {
                let message = format!("found a list of {found}, wanted 1 to {most}");
                faults.push(SpecFault::new(place.key(field), message));
            }
        };
        listed("modes", self.modes.len(), 2);
        listed("workers", self.workers.len(), 100);
        for (index, workers) in self.workers.iter().enumerate() {
            if *workers == 0 || *workers > MAX_WORKERS {
                let message = format!("found {workers}, wanted 1 to {MAX_WORKERS}");
                faults.push(SpecFault::new(place.key("workers").index(index), message));
            }
        }
        let warm_up = place.key("warm_up");
        if self.warm_up.rounds.len() > MAX_TIMES {
            let found = self.warm_up.rounds.len();
            faults.push(SpecFault::new(
                warm_up.key("rounds"),
                format!("found {found}, at most {MAX_TIMES} are made"),
            ));
        }
        if self.warm_up.how == WarmUpKind::Inline && self.warm_up.rounds.len() > 1 {
            let message = "`inline` takes the head of the first pass: one round";
            faults.push(SpecFault::new(warm_up.key("rounds"), message));
        }
    }
}

impl AcceleratorSpec {
    fn check(&self, place: &Pointer, faults: &mut Vec<SpecFault>) {
        match &self.preset {
            Some(name) if preset(name).is_none() => {
                let known: Vec<String> =
                    crate::accelerator::presets().map(|preset| format!("`{}`", preset.name())).collect();
                let message = format!("found `{}`, known are {}", name.escape_debug(), known.join(", "));
                faults.push(SpecFault::new(place.key("preset"), message));
            }
            None if self.step_ms.is_none() => {
                let message = "it is missing, and so is `preset`: one of them says how long a step computes";
                faults.push(SpecFault::new(place.key("step_ms"), message));
            }
            _ => {}
        }
        if let Some(found) =
            self.step_ms.map(|step| step.get()).filter(|ms| !(1e-3..=MAX_STEP_MS).contains(ms))
        {
            let message = format!("found {found}, wanted 0.001 to {MAX_STEP_MS}");
            faults.push(SpecFault::new(place.key("step_ms"), message));
        }
        if let Some(found) = self.utilisation.filter(|share| !(0.01..=1.0).contains(share)) {
            faults
                .push(SpecFault::new(place.key("utilisation"), format!("found {found}, wanted 0.01 to 1.0")));
        }
    }
}
