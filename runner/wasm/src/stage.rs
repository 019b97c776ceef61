//! A stage of one run: a module with its parameters, limits, counters and log lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_engine::ports::{Fault, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::run::FailureClass;
use serde_json::Map;

use crate::counters::Counters;
use crate::instance::StageParts;
use crate::log::{LogLines, LogSink};
use crate::module::Module;
use crate::op::GuestOp;
use crate::seed::StageSeed;
use crate::settings::StageSettings;
use crate::trap::CallEnd;

/// Factory of the ops of one stage, each of which has its own instance. Cheap to clone; all clones share counters and log.
#[derive(Clone, Debug)]
pub struct StageFactory {
    parts: Arc<StageParts>,
    /// State from which the op goes on; empty for a new one. `None` if the op does not save its state.
    saved: Option<Arc<[u8]>>,
}

impl Module {
    /// Creates a stage that runs this module. No guest code runs before the stage's first op is built.
    pub fn stage(&self, settings: StageSettings) -> StageFactory {
        let none = Map::new();
        let manifest = self.manifest();
        let wants = manifest.fields(settings.params.as_object().unwrap_or(&none)).wants;
        let parts = Arc::new(StageParts {
            wants: wants.map(|wants| wants.into_iter().map(|want| want.field).collect()),
            memory_peak: Arc::default(),
            seed: StageSeed::new(settings.document_seed, &settings.name),
            log: Arc::new(LogSink::new(&settings.name)),
            counters: Arc::new(Counters::new(&manifest.counters)),
            module: self.clone(),
            settings: Arc::new(settings),
        });
        StageFactory { parts, saved: None }
    }
}

impl StageFactory {
    /// Makes the op save its state, and go on from `state`, which an op of the same stage has saved; from the begin if it is empty. The
    /// module must be able to save its state.
    #[must_use]
    pub fn saving(self, state: Arc<[u8]>) -> Self {
        Self { saved: Some(state), ..self }
    }

    pub fn module(&self) -> &Module {
        &self.parts.module
    }

    /// Fields that are passed to the module; `None` for all fields.
    pub fn wants(&self) -> Option<&[String]> {
        self.parts.wants.as_deref()
    }

    /// Sums of the declared counters over all instances so far, by name.
    pub fn counters(&self) -> BTreeMap<String, f64> {
        self.parts.counters.snapshot()
    }

    /// Peak memory of any of the stage's instances so far, in bytes. The memory of an instance never shrinks.
    pub fn memory_peak(&self) -> u64 {
        self.parts.memory_peak.load(Ordering::Relaxed)
    }

    /// Lines that the stage's instances logged, from this number on, if they are still kept.
    pub fn logs_since(&self, number: u64) -> LogLines {
        self.parts.log.since(number)
    }

    pub fn logs(&self) -> LogLines {
        self.parts.log.since(0)
    }
}

impl ThreadOpFactory for StageFactory {
    /// Builds an op with a running instance. Fails if the guest's `init` returns an error, traps or takes too long. `stop`
    /// interrupts the guest, so it must be the flag that is also passed to `apply`.
    fn build(&self, stop: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        match GuestOp::start(self.parts.clone(), self.saved.clone(), stop) {
            Ok(op) => Ok(Box::new(op)),
            Err(CallEnd::Fault(fault)) => Err(fault),
            Err(CallEnd::Stopped) => {
                Err(Fault::new(FailureClass::Bug, "the run was stopped while the module started"))
            }
        }
    }

    fn saves(&self) -> bool {
        self.saved.is_some()
    }
}
