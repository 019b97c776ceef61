use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::rules::{Memory, Recipe, Rules, Work, Written, only_behind_route};
use super::settings::{Settings, tasked_stage};
use crate::amount::{self, count};
use crate::defaults::is_default;
use crate::fault::{FaultKind, MAX_FAULTS, Pointer, SpecFault, listed};
use crate::manifest::{Manifest, Mode, WantedField};
use crate::plan::{Faults, Fields, Flow, Known, ModuleFacts, Unit};
use crate::policy::OnError;
use crate::spec::{DeadlineMs, MemoryMib, ModuleRef, Name, ObjectKey, OutputMib, STD_PREFIX};
use crate::text::shown;

const MIB: u64 = 1 << 20;

/// Length of a module's digest in words, in bytes.
const SHOWN_DIGEST: usize = "sha256:".len() + 12;

tasked_stage! {
    /// Runs a WebAssembly module on the worker threads of the run.
    Wasm {
        /// Reference to the module: `name`, `name@version-or-alias` or `sha256:...`; the modules of the program are `std/name`.
        module: ModuleRef,
        /// Parameters of the module; its manifest has their JSON Schema.
        #[serde(default)]
        params: Map<String, Value>,
        /// CPU time the module may use for one sample, in milliseconds.
        #[serde(default)]
        deadline_ms: DeadlineMs,
        /// Memory that one instance of the module may use, in MiB.
        #[serde(default)]
        memory_mib: MemoryMib,
        /// Data the module may return for one sample, over all samples made from it, in MiB. A call that returns more fails.
        #[serde(default, skip_serializing_if = "is_default")]
        #[schemars(extend("default" = OutputMib::default()))]
        output_mib: OutputMib,
        /// Objects that the module may read by name: vocabularies, tables.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        assets: BTreeMap<Name, Asset>,
    }
}

/// An object that a module may read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asset {
    /// Store that holds the object.
    pub store: Name,
    /// Key of the object in the store.
    pub key: ObjectKey,
}

/// A module with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct WasmPlan {
    /// The module as the document names it.
    pub module: String,
    /// Digest of the module that runs: `sha256:` and 64 hex digits.
    pub digest: String,
    /// Unit of work of one call.
    pub mode: Mode,
    /// `true` if one sample may become several; `None` when the module does not state it.
    pub fan_out: Option<bool>,
    /// Parameters of the module. Not yet checked against the manifest's schema.
    pub params: Map<String, Value>,
    /// CPU time that the module may use for one sample.
    pub deadline: Duration,
    /// Memory that one instance may use, in bytes.
    pub memory_bytes: u64,
    /// Data that the module may return for one sample, in bytes.
    pub output_bytes: u64,
    /// Objects that the module may read by name.
    pub assets: BTreeMap<Name, Asset>,
}

impl Wasm {
    pub(super) fn plan(&self, faults: &mut Faults<'_>, place: &Pointer) -> WasmPlan {
        let facts = faults.module(&self.module, place.key("module"));
        for (name, asset) in &self.assets {
            faults.store(&asset.store, place.key("assets").key(name.as_str()).key("store"));
        }
        let mode = facts.map(|facts| facts.manifest.mode).unwrap_or_default();
        if mode == Mode::Stateful && self.concurrency.get() > 1 {
            let found = format!("found {}, but `{}` is stateful", self.concurrency.get(), self.module);
            faults.fault(place.key("concurrency"), found, "use 1, since all samples pass one instance");
        }
        WasmPlan {
            module: self.module.to_string(),
            digest: facts.map(|facts| facts.digest.clone()).unwrap_or_default(),
            mode,
            fan_out: facts.and_then(|facts| facts.manifest.fan_out),
            params: self.params.clone(),
            deadline: Duration::from_millis(u64::from(self.deadline_ms.get())),
            memory_bytes: u64::from(self.memory_mib.get()) * MIB,
            output_bytes: u64::from(self.output_mib.get()) * MIB,
            assets: self.assets.clone(),
        }
    }
}

impl Written for Wasm {
    fn settings(&self) -> Settings<'_> {
        self.all_settings()
    }

    fn prepare_for_replay(&mut self, on_error: OnError, _store: Option<&Name>) {
        self.fail_by(on_error);
    }

    fn stores(&self) -> Vec<&Name> {
        self.assets.values().map(|asset| &asset.store).collect()
    }

    fn usual_name<'a>(&self, known: &Known<'a>) -> Option<&'a str> {
        known.modules.get(self.module.as_str()).map(ModuleFacts::short_name)
    }

    fn may_be_called(&self, name: &str, _kind: &str) -> bool {
        let module = self.module.as_str();
        let own = module.split('@').next().unwrap_or(module);
        module.starts_with("sha256:") || own.strip_prefix(STD_PREFIX).unwrap_or(own) == name
    }

    fn subject(&self) -> Option<String> {
        Some(format!("module `{}`", self.module))
    }

    fn fields(&self, faults: &mut Faults<'_>, place: &Pointer, before: Fields) -> Fields {
        let Some(facts) = faults.known.modules.get(self.module.as_str()) else { return Fields::UNKNOWN };
        let room = MAX_FAULTS.saturating_sub(faults.found.len());
        for (WantedField { field, param, .. }, hint) in before.missing(&facts.manifest, &self.params, room) {
            let named = param.filter(|param| self.params.contains_key(param));
            let place = named.map_or_else(|| place.clone(), |param| place.key("params").key(&param));
            let found =
                format!("module `{}` needs the field `{field}`, but {}", self.module, before.in_words());
            let kind = FaultKind::MissingField(field);
            faults.push(SpecFault::new(place, found).of_kind(kind).hint(hint));
        }
        before.after_module(&facts.manifest, &self.params)
    }
}

impl WasmPlan {
    /// True if no module has the name that the document gives.
    fn is_unknown(&self) -> bool {
        self.digest.is_empty()
    }
}

impl Rules for WasmPlan {
    fn work(&self) -> Work {
        Work::Computing
    }

    fn takes(&self) -> &'static [Unit] {
        match self.mode {
            _ if self.is_unknown() => &[Unit::Samples, Unit::Batches],
            Mode::Batch => &[Unit::Batches],
            Mode::Sample | Mode::Stateful => &[Unit::Samples],
        }
    }

    fn gives(&self, before: Flow) -> (Flow, bool) {
        match self.mode {
            _ if self.is_unknown() => (before, false),
            Mode::Sample => (Flow { unit: Unit::Samples, ..before }, true),
            Mode::Batch => (Flow { unit: Unit::Batches, ..before }, true),
            // The module itself decides how many samples it returns.
            Mode::Stateful => (Flow { unit: Unit::Samples, epoch: None, ..before }, true),
        }
    }

    fn changes(&self, module: Option<&Manifest>) -> Option<Vec<String>> {
        let named = module.filter(|_| !self.is_stateful())?.fields(&self.params);
        let (wants, makes) = (named.wants?, named.makes?);
        Some(wants.into_iter().map(|want| want.field).chain(makes).collect())
    }

    fn recipe(&self) -> Recipe<'_> {
        Recipe { is_seeded: true, digest: Some(&self.digest), has_order: true, ..Recipe::default() }
    }

    fn in_words(&self) -> String {
        let on = match self.mode {
            Mode::Sample => "on each sample",
            Mode::Batch => "on each batch",
            Mode::Stateful => "on one sample after another in one instance",
        };
        let mut given = Vec::new();
        if !self.params.is_empty() {
            given.push(shown(&Value::Object(self.params.clone()).to_string()));
        }
        if !self.assets.is_empty() {
            given.push(format!("the assets {}", listed(self.assets.keys().map(|name| name.as_str()))));
        }
        let with = if given.is_empty() { "" } else { " with " };
        let digest = self.digest.get(..SHOWN_DIGEST).unwrap_or(&self.digest);
        format!("runs the module `{}` ({digest}) {on}{with}{}", self.module, given.join(" and "))
    }

    fn limits_in_words(&self) -> Option<String> {
        let deadline = amount::duration(self.deadline.as_secs_f64());
        let [memory, output] = [self.memory_bytes, self.output_bytes].map(|bytes| count(bytes >> 20));
        Some(format!(
            "at most {deadline} of CPU time and {output} MiB of output a sample, {memory} MiB an instance"
        ))
    }

    fn memory(&self) -> Memory {
        Memory { instance: Some(self.memory_bytes >> 20), task: 0 }
    }

    fn is_stateful(&self) -> bool {
        self.mode == Mode::Stateful
    }

    fn keeps_size(&self) -> bool {
        false
    }

    fn keeps_count(&self) -> bool {
        false
    }

    fn misfit_in_route(&self, keeps_order: bool) -> Option<(String, &'static str)> {
        match self.mode {
            Mode::Batch => Some(only_behind_route(&format!("module `{}` takes batches", self.module))),
            Mode::Stateful if keeps_order => {
                let found = format!(
                    "module `{}` keeps samples between calls, so its results have no place in the order of the input",
                    self.module
                );
                Some((found, "use `\"order\": \"completion\"` for the route"))
            }
            Mode::Sample | Mode::Stateful => None,
        }
    }
}
