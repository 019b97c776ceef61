//! Turns a document into a pipeline that can run, or reports all of its faults.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use penstock_formats::expand;
use penstock_storage::{BoundedStore, check_key, check_named_key, check_named_prefix, check_prefix};
use penstock_types::fault::{self, FaultKind, Pointer, SpecFault};
use penstock_types::plan::{Draft, Fields, Known, ModuleFacts, Plan, StageKind, StagePlan, WasmPlan};
use penstock_types::policy::OnError;
use penstock_types::resume::{ChangedSetting, StartPoint};
use penstock_types::spec::{By, Consumer, MixPart, Source, Spec};
use penstock_wasm::Module;
use tokio::runtime::Handle;

use crate::devices::check_devices;
use crate::found::Found;
use crate::params::{check_params, params_of};
use crate::stores::Stores;
use crate::tap::Tap;

/// Environment that a document refers to. `M` is the type of a module: the module itself, or `()` where it is loaded later.
pub struct Context<'a, M = Module> {
    pub runtime: &'a Handle,
    pub stores: &'a Stores,
    pub modules: &'a NamedModules<M>,
    /// Fields of the source's samples; if `None`, those that follow from the kind of source.
    pub fields: Option<Fields>,
    pub outlets: Outlets,
    /// Additional checks of the operator's limits.
    pub bounds: &'a dyn Fn(&Plan) -> Vec<SpecFault>,
}

/// Ends of a run beyond those of its document.
#[derive(Clone, Copy, Debug)]
pub struct Outlets {
    /// Set when there is a folder for dead letters.
    pub keeps_letters: bool,
    /// Set when a server delivers batches to other processes.
    pub streams: bool,
    /// Set when batches may be written to every store; otherwise only to stores with `"writable": true`.
    pub writes_anywhere: bool,
    /// Set when the caller may bring ops of its own for stages.
    pub takes_ops: bool,
}

/// Modules by their reference in the document.
#[derive(Clone, Debug)]
pub struct NamedModules<M> {
    pub found: BTreeMap<String, (ModuleFacts, M)>,
    /// Names of existing modules, suggested in place of an unknown name.
    pub names: Vec<String>,
}

/// A checked pipeline: all faults that can be found before it reads or writes have been reported.
#[derive(Clone)]
pub struct Prepared<M = Module> {
    /// The checked pipeline. Changes may only use the stores and modules that it names.
    pub plan: Plan,
    pub(crate) runtime: Handle,
    /// Stores as seen by this run: reads through this value and its clones count as one user when runs take turns.
    pub(crate) stores: Stores,
    pub(crate) modules: BTreeMap<String, M>,
    /// Findings of the sources.
    pub(crate) found: Found,
    /// Place where the runs continue; `None` if they begin at the beginning.
    pub(crate) start: Option<Arc<StartPoint>>,
    pub(crate) takes_ops: bool,
    /// Settings that an earlier run has changed, by their places in the document.
    pub(crate) changed: BTreeMap<String, ChangedSetting>,
    /// Taps at the inputs of ops, by stage id.
    pub(crate) taps: BTreeMap<String, Arc<Tap>>,
}

/// Checks a document in its context. On failure, returns all faults in the order of the document.
pub fn prepare<M: Clone>(spec: &Spec, context: &Context<'_, M>) -> Result<Prepared<M>, Vec<SpecFault>> {
    let NamedModules { found, names } = context.modules;
    let facts = found.iter().map(|(written, (facts, _))| (written.clone(), facts.clone())).collect();
    let known = Known {
        modules: &facts,
        names,
        fields: context.fields.clone(),
        stores: Some(&context.stores.facts()),
    };
    let Draft { plan, mut faults } = Plan::draft(spec, known);
    faults.extend(check_params(&params_of(&plan, &facts)));
    faults.extend(check_keys(&plan, context.stores));
    faults.extend(check_devices(&plan));
    faults.extend(context.outlets.check(&plan, context.stores));
    faults.extend((context.bounds)(&plan));
    if !faults.is_empty() {
        fault::sort(&mut faults);
        return Err(faults);
    }
    Ok(Prepared {
        plan,
        runtime: context.runtime.clone(),
        stores: context.stores.for_run(),
        modules: found.values().map(|(facts, module)| (facts.digest.clone(), module.clone())).collect(),
        found: Found::default(),
        start: None,
        takes_ops: context.outlets.takes_ops,
        changed: BTreeMap::new(),
        taps: BTreeMap::new(),
    })
}

impl Outlets {
    /// All ends, for a check of a document that may run anywhere.
    pub const ALL: Self = Self { keeps_letters: true, streams: true, writes_anywhere: true, takes_ops: true };

    fn check(self, plan: &Plan, stores: &Stores) -> Vec<SpecFault> {
        let keeps = |stage: &&StagePlan| stage.on_error == OnError::DeadLetter && !self.keeps_letters;
        let mut faults: Vec<SpecFault> = plan
            .stages
            .iter()
            .filter(keeps)
            .map(|stage| {
                let found =
                    "`dead_letter` keeps failed samples in the run's output folder, and there is none";
                let fault = SpecFault::new(stage.place.key("on_error"), found);
                fault.of_kind(FaultKind::NoOutput).hint("use `skip`")
            })
            .collect();
        if matches!(plan.consumer, Consumer::Stream(_)) && !self.streams {
            let place = Pointer::ROOT.key("consumer").key("stream");
            let fault = SpecFault::new(place, "the consumer `stream` is for runs of a server");
            faults.push(fault.of_kind(FaultKind::NeedsServer).hint("use `discard`, `simulate` or `files`"));
        }
        if let Consumer::Files(files) = &plan.consumer
            && !self.writes_anywhere
            && stores.is_read_only(files.store.as_str())
        {
            let place = Pointer::ROOT.key("consumer").key("files").key("store");
            let fault = SpecFault::new(
                place,
                format!("runs of this server may not write to the store `{}`", files.store.as_str()),
            );
            faults.push(
                fault.hint(
                    "the operator can permit it with `\"writable\": true` in the store's configuration",
                ),
            );
        }
        faults
    }
}

impl<M> Prepared<M> {
    /// Stores that the pipeline may read from and write to.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    pub(crate) fn store(&self, name: &str) -> BoundedStore {
        self.stores.get(name).cloned().expect("all stores that a prepared plan names exist")
    }
}

impl Prepared {
    pub(crate) fn module(&self, digest: &str) -> &Module {
        self.modules.get(digest).expect("all modules that a prepared plan names exist")
    }
}

impl Prepared<()> {
    /// Loads each module once.
    pub fn load<E>(self, mut load: impl FnMut(&WasmPlan) -> Result<Module, E>) -> Result<Prepared, E> {
        let mut modules = BTreeMap::new();
        for stage in &self.plan.stages {
            if let StageKind::Wasm(wasm) = &stage.kind
                && !modules.contains_key(&wasm.digest)
            {
                modules.insert(wasm.digest.clone(), load(wasm)?);
            }
        }
        Ok(Prepared {
            plan: self.plan,
            runtime: self.runtime,
            stores: self.stores,
            modules,
            found: self.found,
            start: self.start,
            takes_ops: self.takes_ops,
            changed: self.changed.clone(),
            taps: self.taps.clone(),
        })
    }
}

impl<M> fmt::Debug for Prepared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Checks that the keys in a source are valid in its stores.
fn check_keys_of(
    source: &Source,
    stores: &Stores,
    place: &Pointer,
    check: &mut impl FnMut(Pointer, Result<(), String>),
) {
    let is_folder = source.stores().iter().any(|store| stores.is_folder(store.as_str()));
    let key =
        |key: &str| if is_folder { check_key(key) } else { check_named_key(key) }.map_err(str::to_owned);
    let prefix = |prefix: &str| {
        if is_folder { check_prefix(prefix) } else { check_named_prefix(prefix) }.map_err(str::to_owned)
    };
    let pattern = |pattern: &str| {
        let keys = expand(pattern).map_err(|fault| fault.to_string())?;
        keys.first().map_or(Ok(()), |first| key(first))
    };
    let rules = source.rules();
    for (name, part) in rules.parts().into_iter().flatten() {
        check_keys_of(&part.source, stores, &MixPart::place(name, &part.source, place), check);
    }
    for by in rules.place().into_iter().flat_map(|own| own.by) {
        match by {
            By::Key(text) => check(place.key("key"), key(text.as_str())),
            By::Shards(text) => check(place.key("shards"), pattern(text.as_str())),
            By::Prefix(text, _) => check(place.key("prefix"), prefix(text)),
            By::Index(text) => check(place.key("index"), key(text.as_str())),
        }
    }
    if let Some(labels) = rules.labels() {
        check(place.key("labels").key("key"), key(labels.key.as_str()));
    }
}

/// Checks that the keys in a document are valid in their stores.
fn check_keys(plan: &Plan, stores: &Stores) -> Vec<SpecFault> {
    let source = Pointer::ROOT.key("source").key(plan.source.spec.kind());
    let mut faults = Vec::new();
    let mut check = |place: Pointer, checked: Result<(), String>| {
        faults.extend(checked.err().map(|reason| SpecFault::new(place, reason)));
    };
    check_keys_of(&plan.source.spec, stores, &source, &mut check);
    // The names below the folder are short and valid; they are joined by one `/`.
    if let Consumer::Files(files) = &plan.consumer
        && !files.folder().is_empty()
    {
        check(
            Pointer::ROOT.key("consumer").key("files").key("prefix"),
            check_key(files.folder()).map_err(str::to_owned),
        );
    }
    for stage in &plan.stages {
        let StageKind::Wasm(wasm) = &stage.kind else { continue };
        for (name, asset) in &wasm.assets {
            let place = stage.place.key("assets").key(name.as_str()).key("key");
            check(place, check_key(asset.key.as_str()).map_err(str::to_owned));
        }
    }
    faults
}
