//! A running guest: a store and an instance of a module, for one worker thread and one stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use penstock_engine::ports::Fault;
use penstock_types::run::FailureClass;
use penstock_types::text::printable;
use wasmtime::Store;

use crate::bindings::Stage;
use crate::bindings::exports::penstock::stage::transform::{ItemParam, ItemResult, Outcome};
use crate::bindings::saving::Saving;
use crate::convert::broken;
use crate::counters::Counters;
use crate::limits::{
    Allowed, CallClock, INIT_FACTOR, MAX_CALL_OUTPUT_BYTES, MAX_FINISH_FACTOR, MAX_REASON_BYTES,
    MAX_STATE_BYTES, MIN_INIT, MemoryLimit,
};
use crate::linker::{Guest, HostSide};
use crate::log::LogSink;
use crate::module::Module;
use crate::seed::StageSeed;
use crate::settings::StageSettings;
use crate::ticker::Ticking;
use crate::trap::CallEnd;

/// State that all instances of one stage share.
#[derive(Debug)]
pub(crate) struct StageParts {
    /// Fields that are passed to the guest; `None` for all fields.
    pub(crate) wants: Option<Vec<String>>,
    pub(crate) module: Module,
    pub(crate) settings: Arc<StageSettings>,
    pub(crate) memory_peak: Arc<AtomicU64>,
    pub(crate) seed: StageSeed,
    pub(crate) log: Arc<LogSink>,
    pub(crate) counters: Arc<Counters>,
}

/// A started guest. Must be dropped after any error of a call.
pub(crate) struct Instance {
    store: Store<Guest>,
    stage: Stage,
    /// Set if the module saves its state.
    saving: Option<Saving>,
    deadline: Duration,
    instances: u32,
    /// Maximum size of the results of one sample, in bytes.
    output_bytes: u64,
    /// Maximum number of bytes that the current call may return, as configured in the store.
    output_limit: u64,
    _ticking: Ticking,
}

impl Instance {
    /// Creates an instance and runs its `init`.
    pub(crate) fn start(parts: &StageParts, stop: Arc<AtomicBool>) -> Result<Self, CallEnd> {
        let module = &*parts.module.0;
        let sandbox = &*module.sandbox.0;
        let StageSettings { deadline, memory_bytes, output_bytes, .. } = *parts.settings;
        let init = deadline.saturating_mul(INIT_FACTOR).max(MIN_INIT);
        let allowed = Allowed { per_sample: init, samples: 0 };
        let guest = Guest {
            memory: MemoryLimit { bytes: memory_bytes, used: 0, peak: parts.memory_peak.clone() },
            clock: CallClock::new(stop, allowed),
            host: HostSide {
                settings: parts.settings.clone(),
                log: parts.log.clone(),
                counters: parts.counters.clone(),
                logged: 0,
                panic: None,
            },
        };
        let ticking = sandbox.ticker.tick();
        let mut store = Store::new(&sandbox.engine, guest);
        store.limiter(|guest| &mut guest.memory);
        store.epoch_deadline_callback(|mut context| Ok(context.data_mut().clock.on_tick()?));
        store.set_epoch_deadline(1);
        let output_limit = output_limit(output_bytes, 1);
        store.set_hostcall_fuel(fuel(output_limit));
        let instances = sandbox.instances;
        let made = match &module.saving {
            None => module.pre.instantiate(&mut store).map(|stage| (stage, None)),
            Some(saving) => saving.instance_pre().instantiate(&mut store).and_then(|instance| {
                let saving = Saving::new(&mut store, &instance)?;
                Ok((Stage::new(&mut store, &instance)?, Some(saving)))
            }),
        };
        let (stage, saving) = made.map_err(|error| {
            let panic = store.data().host.panic.as_deref();
            CallEnd::of(&error, panic, instances, output_limit).at("could not start: ")
        })?;
        let mut this =
            Self { store, stage, saving, deadline, instances, output_bytes, output_limit, _ticking: ticking };
        let params = parts.settings.params.to_string();
        let answer = this.stage.penstock_stage_transform().call_init(&mut this.store, &params);
        match answer {
            Ok(Ok(())) => Ok(this),
            Ok(Err(reason)) => Err(refusal("`init` refused", &reason)),
            Err(error) => Err(this.end(&error).at("`init` failed: ")),
        }
    }

    /// Returns the outcomes of the items, in order. Does not check that there is one outcome per item. [`Self::begin`] must be
    /// called first.
    pub(crate) fn process(&mut self, items: &[ItemParam<'_>]) -> Result<Vec<Outcome>, CallEnd> {
        let answer = self.stage.penstock_stage_transform().call_process(&mut self.store, items);
        answer.map_err(|error| self.end(&error))
    }

    /// Returns the remaining items of a stateful guest at the end of an epoch; `held` is the number of samples that it holds.
    pub(crate) fn finish(&mut self, held: usize) -> Result<Vec<ItemResult>, CallEnd> {
        self.begin(held.clamp(1, MAX_FINISH_FACTOR as usize));
        let answer = self.stage.penstock_stage_transform().call_finish(&mut self.store);
        answer.map_err(|error| self.end(&error))
    }

    /// Returns the state of a guest that saves it.
    pub(crate) fn save(&mut self) -> Result<Vec<u8>, CallEnd> {
        self.begin(1);
        let Some(saving) = &self.saving else { return Ok(Vec::new()) };
        let answer = saving.penstock_stage_state().call_save(&mut self.store);
        let state = answer.map_err(|error| self.end(&error).at("`save` failed: "))?;
        if state.len() > MAX_STATE_BYTES {
            let (found, limit) = (state.len(), MAX_STATE_BYTES);
            return Err(broken(format!("`save` returned {found} bytes, but the limit is {limit}")).into());
        }
        Ok(state)
    }

    /// Makes a new guest go on from a state.
    pub(crate) fn load(&mut self, state: &[u8]) -> Result<(), CallEnd> {
        self.begin(1);
        let Some(saving) = &self.saving else { return Ok(()) };
        match saving.penstock_stage_state().call_load(&mut self.store, state) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(refusal("`load` refused the state of an earlier run", &reason)),
            Err(error) => Err(self.end(&error).at("`load` failed: ")),
        }
    }

    /// Begins a call with this number of samples. From now on, work of the host is charged to this call.
    pub(crate) fn begin(&mut self, samples: usize) {
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        let guest = self.store.data_mut();
        guest.clock.begin(Allowed { per_sample: self.deadline, samples });
        (guest.host.logged, guest.host.panic) = (0, None);
        let output_limit = output_limit(self.output_bytes, samples);
        if self.output_limit != output_limit {
            self.output_limit = output_limit;
            self.store.set_hostcall_fuel(fuel(output_limit));
        }
    }

    pub(crate) fn clock(&mut self) -> &mut CallClock {
        &mut self.store.data_mut().clock
    }

    fn end(&self, error: &wasmtime::Error) -> CallEnd {
        let panic = self.store.data().host.panic.as_deref();
        CallEnd::of(error, panic, self.instances, self.output_limit)
    }
}

/// Fault of a guest whose function returned an error.
fn refusal(what: &str, reason: &str) -> CallEnd {
    Fault::new(FailureClass::Bug, format!("{what}: {}", printable(reason, MAX_REASON_BYTES))).into()
}

/// Maximum number of bytes that a call may return: `output_bytes` for each sample, at most [`MAX_CALL_OUTPUT_BYTES`] in total.
fn output_limit(output_bytes: u64, samples: u32) -> u64 {
    output_bytes.saturating_mul(u64::from(samples)).min(MAX_CALL_OUTPUT_BYTES)
}

/// Fuel of the store for this output limit: one unit for every byte that is copied out of the guest.
fn fuel(output_limit: u64) -> usize {
    usize::try_from(output_limit).unwrap_or(usize::MAX)
}
