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
use penstock_types::manifest::{Manifest, Mode};
use penstock_wasm::{Module, WORKER_STACK_BYTES};
use serde_json::{Map, Value};

use crate::params::{Params, check_params};

use self::call::TrialGuest;
use self::report::{Pass, report};

pub use self::field::{MadeField, MadeValue};
pub use self::input::{FileField, InputError, MAX_INPUT_BYTES, MAX_INPUT_SAMPLES, read_samples};
pub use self::report::{
    CallTrial, Difference, DifferenceCause, Failure, MadeSample, ModuleLine, Outcome, SampleTrial,
    StartTrial, Suggestion, TrialLimits, TrialReport,
};
pub use self::settings::TrialSettings;

#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error("the module does not start: {0}")]
    Start(Fault),
    #[error("cannot start the thread for the module")]
    Thread(#[source] io::Error),
}

/// Checks the params of a module as `check` does; pointers are relative to the params.
pub fn check_trial_params(module: &Module, params: &Map<String, Value>) -> Vec<SpecFault> {
    let Manifest { params: schema, name: module, .. } = module.manifest();
    check_params(&[Params { given: params, schema: schema.as_ref(), module, place: Pointer::ROOT }])
}

/// Tries `module` on `samples` in order; the index of each sample is its position. `stop` ends the current call and all later ones.
pub fn try_module(
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
        let mut passes = vec![self.pass(&calls, &forwards, false, &mut shown)?];
        for repetition in 1..self.settings.repeat {
            passes.push(self.pass(&calls, &forwards, true, &mut unseen)?);
            let order = if repetition % 2 == 1 { &backwards } else { &forwards };
            passes.push(self.pass(&calls, order, false, &mut unseen)?);
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
        let mut pass = Pass { is_fresh, start: guest.start, ..Pass::default() };
        for call in calls {
            let trial = guest.call(call, self.samples, shown);
            pass.calls.push(trial);
            if guest.is_broken {
                self.renew(guest, &mut pass)?;
            }
        }
        pass.finish = Some(guest.finish(self.samples, shown));
        pass.collect_from(guest);
        Ok(pass)
    }

    /// One pass in this order. With `is_fresh`, each call uses a new instance; after an error, the next call always does.
    fn pass(
        &self,
        calls: &[&[Sample]],
        order: &[usize],
        is_fresh: bool,
        shown: &mut u64,
    ) -> Result<Pass, Fault> {
        let mut guest = TrialGuest::start(self.module, self.settings, self.stop)?;
        let mut pass = Pass { is_fresh, start: guest.start, ..Pass::default() };
        let mut made = Vec::with_capacity(calls.len());
        for &number in order {
            if guest.is_broken || (is_fresh && !made.is_empty()) {
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
    fn collect_from(&mut self, guest: &TrialGuest) {
        for (name, sum) in guest.factory.counters() {
            *self.counters.entry(name).or_default() += sum;
        }
        let logs = guest.factory.logs();
        self.logs.lines.extend(logs.lines);
        self.logs.dropped += logs.dropped;
    }
}
