//! Checks of a document beyond the validity of each single field.

use std::fmt::Display;

use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::Stage;

use super::{
    AcceleratorSpec, BenchAction, BenchSpec, DataSource, MAX_IN_FLIGHT, MAX_WORKERS, WarmUpKind, WholeSet,
};
use crate::accelerator::{preset, presets};

const MAX_ACTIONS: usize = 100;
/// Maximum number of repetitions of an action: the time of each repetition is kept in memory.
const MAX_REPEAT: u32 = 10_000_000;
/// Maximum number of synthetic objects.
const MAX_OBJECTS: u32 = 10_000_000;
/// Maximum size of a synthetic object, in bytes.
const MAX_OBJECT_BYTES: u32 = 256 << 20;
const MAX_STEP_MS: f64 = 600_000.0;
const MAX_TIMES: u32 = 1000;

struct Faults(Vec<SpecFault>);

impl Faults {
    fn add(&mut self, place: Pointer, message: impl Into<String>) {
        self.0.push(SpecFault::new(place, message.into()));
    }

    fn within<T: PartialOrd + Display + Copy>(&mut self, place: Pointer, found: T, least: T, most: T) {
        if !(least..=most).contains(&found) {
            self.add(place, format!("found {found}, expected {least} to {most}"));
        }
    }

    fn at_most(&mut self, place: Pointer, found: u32, most: u32) {
        if found > most {
            self.add(place, format!("found {found}, expected at most {most}"));
        }
    }

    fn listed(&mut self, place: Pointer, found: usize, most: usize) {
        if !(1..=most).contains(&found) {
            self.add(place, format!("found a list of {found} entries, expected 1 to {most}"));
        }
    }
}

impl BenchSpec {
    /// Returns all faults, in the order of the document.
    pub(super) fn faults(&self) -> Vec<SpecFault> {
        let mut faults = Faults(Vec::new());
        let root = Pointer::ROOT;
        self.check_source(&mut faults);
        self.check_stages(&mut faults);
        let found = self.actions.len();
        if !(1..=MAX_ACTIONS).contains(&found) {
            faults.add(root.key("actions"), format!("found {found} actions, expected 1 to {MAX_ACTIONS}"));
        }
        for (index, action) in self.actions.iter().enumerate() {
            self.check_action(action, &root.key("actions").index(index).key(action.name()), &mut faults);
        }
        faults.within(root.key("pool"), self.pool, 0, MAX_WORKERS);
        let has_load = self.whole_sets().next().is_some();
        if let Some(accelerator) = &self.accelerator {
            let place = root.key("accelerator");
            accelerator.check(&place, &mut faults);
            if !has_load {
                faults.add(
                    place,
                    "accelerators are fed by a load, but there is no action `whole_set`; add one",
                );
            }
        }
        if self.counterfactuals && !has_load {
            let message = "counterfactuals repeat a load, but there is no action `whole_set`; add one";
            faults.add(root.key("counterfactuals"), message);
        }
        faults.0
    }

    fn check_action(&self, action: &BenchAction, place: &Pointer, faults: &mut Faults) {
        let repeat = match action {
            BenchAction::WholeSet(set) => return set.check(place, faults),
            BenchAction::Index(_) if matches!(self.source, DataSource::Memory(_)) => {
                let message = "synthetic objects have no index to time; omit the action, or read a store";
                return faults.add(place.clone(), message);
            }
            BenchAction::RandomToDevice(copy) => {
                if copy.device != "host" {
                    let found = copy.device.escape_debug();
                    faults.add(
                        place.key("device"),
                        format!("found `{found}`; this build copies to `host` only"),
                    );
                }
                copy.repeat
            }
            BenchAction::Random(repeated) | BenchAction::Single(repeated) | BenchAction::Index(repeated) => {
                repeated.repeat
            }
        };
        faults.at_most(place.key("repeat"), repeat.get(), MAX_REPEAT);
        if let BenchAction::RandomToDevice(copy) = action {
            let numbers: u64 = copy.shape.iter().map(|side| u64::from(*side)).product();
            if numbers.saturating_mul(u64::from(self.pool.max(1))) > 1 << 28 {
                let message = "all arrays of the pool together have more than 2^28 numbers (1 GiB); use a smaller shape or pool";
                faults.add(place.key("shape"), message);
            }
        }
    }

    fn check_source(&self, faults: &mut Faults) {
        let place = Pointer::ROOT.key("source");
        if let DataSource::Memory(memory) = &self.source {
            let place = place.key("memory");
            faults.at_most(place.key("count"), memory.count.get(), MAX_OBJECTS);
            faults.at_most(place.key("bytes"), memory.bytes, MAX_OBJECT_BYTES);
            if !self.stages.is_empty() {
                let message = "stages cannot read synthetic objects; omit the stages, or read a store";
                faults.add(place, message);
            }
        } else if let Some(source) = self.source.in_pipeline()
            && source.traversal(0).epochs.is_none_or(|epochs| epochs.get() != 1)
        {
            let message = "`repeats` of an action sets the number of passes; omit `epochs`";
            faults.add(place.key(source.kind()).key("epochs"), message);
        }
    }

    fn check_stages(&self, faults: &mut Faults) {
        let sizes: Vec<u32> = self.whole_sets().map(|set| set.batch_size).collect();
        for (index, stage) in self.stages.iter().enumerate() {
            let place = Pointer::ROOT.key("stages").index(index).key(stage.kind());
            match stage {
                Stage::Wasm(_) | Stage::Collate(_) => {}
                Stage::Aggregate(aggregate) => {
                    let found = aggregate.size.get();
                    if let Some(size) = sizes.iter().find(|size| **size != found) {
                        let message = format!(
                            "found {found}, but the batches of a load have {size} samples; use the same size"
                        );
                        faults.add(place.key("size"), message);
                    }
                }
                _ => faults.add(place, "a load cannot run this stage; use `wasm`, `aggregate` or `collate`"),
            }
        }
    }
}

impl WholeSet {
    fn check(&self, place: &Pointer, faults: &mut Faults) {
        faults.within(place.key("in_flight"), self.in_flight, 1, MAX_IN_FLIGHT);
        faults.within(place.key("batch_size"), self.batch_size, 1, 1 << 16);
        faults.within(place.key("prefetch"), self.prefetch, 1, MAX_TIMES);
        faults.within(place.key("repeats"), self.repeats, 1, MAX_TIMES);
        faults.listed(place.key("modes"), self.modes.len(), 2);
        faults.listed(place.key("workers"), self.workers.len(), 100);
        for (index, workers) in self.workers.iter().enumerate() {
            faults.within(place.key("workers").index(index), *workers, 1, MAX_WORKERS);
        }
        let place = place.key("warm_up").key("rounds");
        let rounds = self.warm_up.rounds.len();
        faults.at_most(place.clone(), u32::try_from(rounds).unwrap_or(u32::MAX), MAX_TIMES);
        if self.warm_up.how == WarmUpKind::Inline && rounds > 1 {
            faults.add(place, "`inline` takes the head of the first pass; use a single round");
        }
    }
}

impl AcceleratorSpec {
    fn check(&self, place: &Pointer, faults: &mut Faults) {
        match &self.preset {
            Some(name) if preset(name).is_none() => {
                let known: Vec<String> = presets().map(|preset| format!("`{}`", preset.name())).collect();
                let message =
                    format!("found `{}`; the presets are {}", name.escape_debug(), known.join(", "));
                faults.add(place.key("preset"), message);
            }
            None if self.step_ms.is_none() => {
                let message = "neither `step_ms` nor `preset` is set; set one of them";
                faults.add(place.key("step_ms"), message);
            }
            _ => {}
        }
        if let Some(step_ms) = self.step_ms {
            faults.within(place.key("step_ms"), step_ms.get(), 1e-3, MAX_STEP_MS);
        }
        if let Some(found) = self.utilisation.filter(|share| !(0.01..=1.0).contains(share)) {
            faults.add(place.key("utilisation"), format!("found {found}, expected 0.01 to 1.0"));
        }
    }
}
