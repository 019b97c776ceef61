//! Reads and checks a pipeline, with all of its faults reported at once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use penstock_device::Gpu;
use penstock_pipeline::{Modules, Outlets, Prepared, Runner, StdModule, Stores};
use penstock_types::config::CacheConfig;
use penstock_types::fault::{FaultKind, Pointer, SpecFault};
use penstock_types::plan::{Device, Plan, StageKind, Unit};
use penstock_types::spec::{self, Consumer, DeviceName, STD_PREFIX, Spec, Stage};
use penstock_types::text::with_causes;
use penstock_wasm::Sandbox;
use pyo3::prelude::*;
use serde_json::Value;

use crate::errors::invalid;

/// Content of a module.
#[derive(FromPyObject)]
pub(crate) enum ModuleSource {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// A document after reading.
pub(crate) struct Document {
    pub(crate) spec: Spec,
    /// Document as written: without defaults, with settings and the device applied.
    pub(crate) written: Value,
    /// Faults of arguments other than the document, one line each.
    faults: Vec<String>,
    /// Names of stores and modules whose arguments are invalid.
    unusable: Vec<String>,
}

impl Document {
    /// Reads a document and applies `settings`: pairs of a JSON pointer and a value as JSON. On failure, returns all faults of
    /// the document alone.
    pub(crate) fn read(bytes: &[u8], settings: Vec<(String, String)>) -> PyResult<Self> {
        let mut written = spec::parse(bytes).map_err(|faults| invalid(&faults))?;
        let mut faults = Vec::new();
        for (pointer, value) in settings {
            match serde_json::from_str(&value) {
                Ok(value) => faults.extend(spec::set(&mut written, &pointer, value).err()),
                Err(error) => {
                    let message = format!("the setting `{pointer}` is not JSON: {error}");
                    faults.push(SpecFault::new(Pointer::ROOT, message));
                }
            }
        }
        if !faults.is_empty() {
            return Err(invalid(&faults));
        }
        let mut spec = Spec::from_value(written.clone()).map_err(|faults| invalid(&faults))?;
        // The training loop replaces the document's consumer.
        spec.consumer = Consumer::default();
        Ok(Self { spec, written, faults: Vec::new(), unusable: Vec::new() })
    }

    /// Sets the device of all transfers.
    pub(crate) fn lead_to(&mut self, device: &str) {
        let Some(name) = DeviceName::new(device) else {
            self.faults.push(format!("`device` is `{device}`; expected `auto`, `host` or `cuda:N`"));
            return;
        };
        let mut is_led = false;
        for (place, stage) in self.spec.stages.iter_mut().enumerate() {
            if let Stage::Transfer(transfer) = stage {
                transfer.device = name.clone();
                is_led = true;
                let written = self.written.pointer_mut(&format!("/stages/{place}/transfer"));
                if let Some(members) = written.and_then(Value::as_object_mut) {
                    members.insert("device".to_owned(), Value::from(device));
                }
            }
        }
        if !is_led {
            self.faults.push(format!(
                "`device` is `{device}`, but no stage copies batches to a device: add `{{\"transfer\": {{}}}}` behind the `collate`"
            ));
        }
    }

    /// Adds the given stores, with the folders that their links may enter, except invalid ones, which are recorded as faults.
    pub(crate) fn stores(
        &mut self,
        given: Vec<(String, String)>,
        links: &BTreeMap<String, Vec<PathBuf>>,
        cache: Option<&str>,
    ) -> Stores {
        let cache = cache.and_then(|cache| {
            let cache = CacheConfig::from_flag(cache);
            cache.map_err(|wrong| self.faults.push(format!("`store_cache`: {wrong}"))).ok()
        });
        let mut stores = Stores::cached(cache);
        for (name, what) in given {
            let links = links.get(&name).map_or(&[][..], Vec::as_slice);
            if let Err(fault) = stores.add_linked(&name, &what, links) {
                self.faults.push(format!("the store `{name}`: {fault}"));
                self.unusable.push(name);
            }
        }
        for name in links.keys().filter(|name| !stores.is_folder(name) && !self.unusable.contains(name)) {
            self.faults.push(format!("`links` names the store `{name}`, which is no folder in `stores`"));
        }
        stores
    }

    /// Compiles and adds the given modules, except invalid ones, which are recorded as faults, and the modules of the program
    /// that the document names.
    pub(crate) fn modules(&mut self, sandbox: Sandbox, given: Vec<(String, ModuleSource)>) -> Modules {
        let mut modules = Modules::new(sandbox);
        for (name, source) in given {
            let refusal = StdModule::refusal(&name).map(|refusal| format!(": {refusal}"));
            let added = refusal.map_or(Ok(()), Err).and_then(|()| source.bytes()).and_then(|bytes| {
                let added = modules.add(&name, &bytes);
                added.map(drop).map_err(|error| format!(": {}", with_causes(&error)))
            });
            if let Err(why) = added {
                self.faults.push(format!("the module `{name}`{why}"));
                self.unusable.push(name);
            }
        }
        if let Err((name, error)) = modules.add_std(&self.spec) {
            self.faults.push(format!("the module `{name}`: {}", with_causes(&error)));
            self.unusable.push(name.to_owned());
        }
        modules
    }

    /// Checks the document and returns the pipeline; `keeps_letters` permits `dead_letter`. On failure, returns all faults.
    pub(crate) fn prepare(self, runner: &Runner, keeps_letters: bool) -> PyResult<Prepared> {
        // The training loop replaces the document's consumer.
        let outlets = Outlets { keeps_letters, ..Outlets::ALL };
        let prepared = runner.prepare_within(&self.spec, None, outlets, &not_collated);
        let mut faults = self.faults;
        // A store or module that is unknown because its argument is invalid has been reported already.
        let is_reported = |fault: &SpecFault| match &fault.kind {
            FaultKind::UnknownStore(name) => self.unusable.contains(name),
            FaultKind::UnknownModule(written) => written
                .split('@')
                .next()
                .is_some_and(|name| self.unusable.iter().any(|unusable| unusable == name)),
            _ => false,
        };
        let found = prepared.as_ref().err().into_iter().flatten().filter(|fault| !is_reported(fault));
        faults.extend(found.map(|fault| fault.clone().hinted(hint).to_string()));
        match prepared {
            Ok(prepared) if faults.is_empty() => Ok(prepared),
            _ => Err(invalid(&faults)),
        }
    }
}

/// Suggested correction in terms of the Python API.
fn hint(kind: &FaultKind) -> Option<String> {
    match kind {
        FaultKind::UnknownStore(name) => Some(format!("`stores={{\"{name}\": FOLDER}}` adds it")),
        // Modules cannot be named by a digest or as a module of the program in `modules`.
        FaultKind::UnknownModule(name) if !name.starts_with("sha256:") && !name.starts_with(STD_PREFIX) => {
            Some(format!("`modules={{\"{name}\": FILE}}` adds it"))
        }
        FaultKind::NoOutput => Some("set one with `out=FOLDER`, or use `skip`".to_owned()),
        _ => None,
    }
}

impl ModuleSource {
    fn bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::File(path) => std::fs::read(&path)
                .map_err(|error| format!(" cannot be read at `{}`: {error}", path.display())),
        }
    }
}

/// Checks that the pipeline makes collated batches, which a training loop requires.
fn not_collated(plan: &Plan) -> Vec<SpecFault> {
    let (found, hint) = match plan.flow().unit {
        Unit::Collated => return Vec::new(),
        Unit::Batches => ("batches of single samples", "add a `collate`"),
        Unit::Samples => ("samples", "add an `aggregate` and a `collate`"),
    };
    let found = format!("a training loop takes collated batches, but the pipeline delivers {found}");
    vec![SpecFault::new(Pointer::ROOT.key("stages"), found).hint(hint)]
}

/// Selects this GPU for transfers with device `auto`, if it exists: otherwise all ranks of a machine would share the first one.
/// If a launcher makes only one GPU visible to each rank, no GPU has this number, and `auto` selects the visible one.
pub(crate) fn prefer_gpu(plan: &mut Plan, number: u32) {
    for stage in &mut plan.stages {
        if let StageKind::Transfer(device) = &mut stage.kind
            && *device == Device::Auto
            && Gpu::check(number).is_ok()
        {
            *device = Device::Cuda(number);
        }
    }
}
