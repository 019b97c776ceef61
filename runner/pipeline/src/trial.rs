//! Tries a module on a few samples: with the sandbox, limits and seeds of a run, but without a pipeline.

mod call;
mod compare;
mod field;
mod input;
mod report;
mod settings;

use std::io;
use std::panic::resume_unwind;
use std::thread;

use penstock_engine::item::Sample;
use penstock_engine::ports::{Fault, StopFlag};
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::manifest::Mode;
use penstock_wasm::{Module, WORKER_STACK_BYTES};
use serde_json::{Map, Value};

use crate::param_patterns::check_patterns_of;
use crate::params::check_against;

use self::call::TrialGuest;
use self::report::{Pass, report};

pub use self::field::{MadeField, MadeValue};
pub use self::input::{FileField, InputError, MAX_INPUT_BYTES, MAX_INPUT_SAMPLES, read_samples};
pub use self::report::{
    CallTrial, Difference, DifferenceCause, Failure, MadeSample, ModuleLine, Outcome, SampleTrial,
    StartTrial, Suggestion, TrialLimits, TrialReport,
};
pub use self::settings::TrialSettings;

/// Reasons why a module cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error("the module does not start: {0}")]
    Start(Fault),
    #[error("cannot start the thread for the module")]
    Thread(#[source] io::Error),
}

/// Checks the params of a module as `check` does; pointers are relative to the params.
pub fn check_trial_params(module: &Module, params: &Map<String, Value>) -> Vec<SpecFault> {
    let manifest = module.manifest();
    let mut faults = check_patterns_of(params, manifest.params.as_ref(), &manifest.name);
    if !faults.is_empty() {
        return faults;
    }
    check_against(params, manifest.params.as_ref(), &manifest.name, &Pointer::ROOT, &mut faults);
    faults
}

/// Tries `module` on `samples` in order; the index of each sample is its position.
pub fn try_module(
    module: &Module,
    samples: Vec<Sample>,
    settings: &TrialSettings,
) -> Result<TrialReport, TrialError> {
    try_module_until(module, samples, settings, &StopFlag::default())
}

/// Same as [`try_module`], until `stop` is set, which ends the current call and all later ones.
pub fn try_module_until(
    module: &Module,
    mut samples: Vec<Sample>,
    settings: &TrialSettings,
    stop: &StopFlag,
) -> Result<TrialReport, TrialError> {
    for (sample, index) in samples.iter_mut().zip(0..) {
        sample.origin.index = index;
    }
    let trial = Trial { module, settings, samples: &samples, stop };
    // Guests need a stack of a known size, as on the workers of a run.
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("trial".to_owned()).stack_size(WORKER_STACK_BYTES);
        let thread = worker.spawn_scoped(scope, || trial.run()).map_err(TrialError::Thread)?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(TrialError::Start)
    })
}

struct Trial<'a> {
    module: &'a Module,
    settings: &'a TrialSettings,
    samples: &'a [Sample],
    stop: &'a StopFlag,
}

/// Use of instances in a pass; after an error, the next call always uses a new instance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Instances {
    One,
    ForEachCall,
}

impl Trial<'_> {
    fn run(&self) -> Result<TrialReport, Fault> {
        let passes = match self.module.manifest().mode {
            Mode::Stateful => self.stateful_passes()?,
            Mode::Sample | Mode::Batch => self.passes()?,
        };
        Ok(report(self.module, self.settings, self.samples, passes))
    }

    /// Passes for a stateless module. The first pass is as in a run: one instance gets all samples. Each repetition adds a pass
    /// with a new instance for each call, and a pass in another order.
    fn passes(&self) -> Result<Vec<Pass>, Fault> {
        let calls = self.calls();
        let forwards: Vec<usize> = (0..calls.len()).collect();
        let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
        // Only the first pass reports tensors; the other passes are compared by digest.
        let (mut shown, mut unseen) = (self.settings.shown_bytes, 0);
        let mut passes = vec![self.pass(&calls, &forwards, Instances::One, &mut shown)?];
        for repetition in 1..self.settings.repeat {
            passes.push(self.pass(&calls, &forwards, Instances::ForEachCall, &mut unseen)?);
            let order = if repetition % 2 == 1 { &backwards } else { &forwards };
            passes.push(self.pass(&calls, order, Instances::One, &mut unseen)?);
        }
        Ok(passes)
    }

    /// Passes for a stateful module. It may keep state between samples, but not past `finish`: each repetition adds an epoch on
    /// the first instance, and one on a new instance.
    fn stateful_passes(&self) -> Result<Vec<Pass>, Fault> {
        let calls = self.calls();
        let mut guest = TrialGuest::start(self.module, self.settings, self.stop)?;
        let (mut shown, mut unseen) = (self.settings.shown_bytes, 0);
        let mut passes = vec![self.epoch(&calls, &mut guest, true, &mut shown)?];
        for _ in 1..self.settings.repeat {
            passes.push(self.epoch(&calls, &mut guest, false, &mut unseen)?);
            let mut other = TrialGuest::start(self.module, self.settings, self.stop)?;
            passes.push(self.epoch(&calls, &mut other, true, &mut unseen)?);
        }
        Ok(passes)
    }

    fn epoch(
        &self,
        calls: &[&[Sample]],
        guest: &mut TrialGuest,
        is_fresh: bool,
        shown: &mut u64,
    ) -> Result<Pass, Fault> {
        let mut pass = Pass { is_fresh, start: guest.start_trial(), ..Pass::default() };
        for call in calls {
            let trial = guest.call(call, self.samples, shown);
            pass.calls.push(trial);
            if guest.is_broken() {
                self.renew(guest, &mut pass)?;
            }
        }
        pass.finish = Some(guest.finish(self.samples, shown));
        pass.collect_from(guest);
        Ok(pass)
    }

    fn pass(
        &self,
        calls: &[&[Sample]],
        order: &[usize],
        instances: Instances,
        shown: &mut u64,
    ) -> Result<Pass, Fault> {
        let mut guest = TrialGuest::start(self.module, self.settings, self.stop)?;
        let is_fresh = instances == Instances::ForEachCall;
        let mut pass = Pass { is_fresh, start: guest.start_trial(), ..Pass::default() };
        let mut made = Vec::with_capacity(calls.len());
        for &number in order {
            if guest.is_broken() || (is_fresh && !made.is_empty()) {
                self.renew(&mut guest, &mut pass)?;
            }
            made.push((number, guest.call(calls[number], self.samples, shown)));
        }
        pass.collect_from(&guest);
        made.sort_by_key(|(number, _)| *number);
        pass.calls = made.into_iter().map(|(_, trial)| trial).collect();
        Ok(pass)
    }

    /// Replaces an instance, as a run does after an error; the memory of the new instance is counted from zero.
    fn renew(&self, guest: &mut TrialGuest, pass: &mut Pass) -> Result<(), Fault> {
        pass.collect_from(guest);
        *guest = TrialGuest::start(self.module, self.settings, self.stop)?;
        Ok(())
    }

    fn calls(&self) -> Vec<&[Sample]> {
        let size = match self.module.manifest().mode {
            Mode::Batch => self.settings.batch.max(1),
            Mode::Sample | Mode::Stateful => 1,
        };
        self.samples.chunks(size).collect()
    }
}

impl Pass {
    /// Adds the logs and counters of a guest.
    fn collect_from(&mut self, guest: &TrialGuest) {
        let (counters, logs) = guest.counters_and_logs();
        for (name, sum) in counters {
            *self.counters.entry(name).or_default() += sum;
        }
        self.logs.lines.extend(logs.lines);
        self.logs.dropped += logs.dropped;
    }
}
