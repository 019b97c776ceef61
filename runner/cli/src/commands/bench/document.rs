//! Document of a benchmark, and the pipeline that reads the same objects.

use anyhow::Result;
use penstock_bench::{BenchSpec, preset};
use penstock_pipeline::{Outlets, Prepared};
use penstock_types::fault::{self, Pointer, SpecFault};
use penstock_types::plan::{StageKind, StagePlan};
use penstock_types::spec::{self, Spec};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::args::BenchStorageArgs;
use crate::input::{self, Document as Pipeline, bad, bytes, faults};

/// A document with the changes of the command line applied.
pub(super) struct Document {
    origin: String,
    pub(super) spec: BenchSpec,
    value: Value,
}

impl Document {
    pub(super) fn read(args: &BenchStorageArgs) -> Result<Self> {
        let (origin, mut value) = match &args.file {
            Some(file) => {
                let origin = format!("`{}`", file.display());
                (origin.clone(), spec::parse(&bytes(file)?).map_err(|found| faults(&origin, &found))?)
            }
            None => ("the benchmark".to_owned(), plain(args)?),
        };
        change(&mut value, args)?;
        let spec = BenchSpec::from_value(value.clone()).map_err(|found| faults(&origin, &found))?;
        Ok(Self { origin, spec, value })
    }

    /// Prepares a pipeline that reads the same objects or samples as the benchmark and has the same stages.
    pub(super) fn plan(&self, args: &BenchStorageArgs, passes: usize, runtime: &Runtime) -> Result<Prepared> {
        let mut source = self.value["source"].clone();
        if let Some(kind) = kind_of(&mut source) {
            kind.insert("epochs".to_owned(), json!(passes));
        }
        // Samples of a format have fields of their own.
        let fetch = self.spec.source.format().is_none().then(|| json!({ "fetch": {} }));
        let before = usize::from(fetch.is_some());
        let mut stages = Vec::from_iter(fetch);
        stages.extend(self.value.get("stages").and_then(Value::as_array).cloned().unwrap_or_default());
        let pipeline = json!({
            "name": self.spec.name.as_str(), "seed": self.spec.seed, "source": source, "stages": stages,
            "consumer": { "discard": {} }, "threads": self.spec.whole_sets().flat_map(|set| set.workers.clone()).max().unwrap_or(1)
        });
        // Pointers in faults are shifted by one stage if the pipeline has a `fetch` before the stages of the benchmark.
        let own = |place: usize| Some(Pointer::ROOT.key("stages").index(place.checked_sub(before)?));
        let told = |found| faults(&self.origin, &fault::with_stages_moved(found, own));
        let spec = Spec::from_value(pipeline).map_err(told)?;
        let document = Pipeline { origin: self.origin.clone(), spec };
        let runner = document.runner(&args.stores, &args.modules, runtime)?;
        let prepared = runner.prepare(&document.spec, Outlets::ALL).map_err(told)?;
        let refused = |stage: &StagePlan, kind: &str, message: &str| {
            let position = stage.id.position() as usize - 1 - before;
            let place = Pointer::ROOT.key("stages").index(position).key(kind);
            faults(&self.origin, &[SpecFault::new(place, message)])
        };
        let stages = &prepared.plan.stages;
        if let Some(stage) = stages.iter().find(|stage| stage.kind.rules().is_stateful()) {
            let message = "a stateful module needs all samples in order, and each worker of a benchmark reads only some of them";
            return Err(refused(stage, "wasm", message));
        }
        if let Some(stage) = stages.iter().find(|stage| matches!(stage.kind, StageKind::Route(_))) {
            let message = "the workers of a benchmark run all stages on each sample, and a route runs those of one path only";
            return Err(refused(stage, "route", message));
        }
        Ok(prepared)
    }
}

/// Creates the default document, which reads all objects of the single store, or all samples of a format.
fn plain(args: &BenchStorageArgs) -> Result<Value> {
    let [store] = args.stores.stores.as_slice() else {
        return Err(bad("nothing to read; give a document or a single `--store NAME=LOCATION`"));
    };
    let name = store.split_once('=').map_or(store.as_str(), |(name, _)| name);
    let mut source = json!({ "store": name });
    if args.format.is_some() {
        source["prefix"] = json!("");
    }
    for (field, given) in [("suffix", &args.suffix), ("prefix", &args.prefix)] {
        if let Some(given) = given {
            source[field] = json!(given);
        }
    }
    Ok(match &args.format {
        None => json!({ "name": name, "source": { "list": source } }),
        Some(format) => {
            let actions = json!([{ "whole_set": {} }, { "random": {} }]);
            json!({ "name": name, "source": { format: source }, "actions": actions })
        }
    })
}

/// Applies the flags of the command line to a document.
fn change(value: &mut Value, args: &BenchStorageArgs) -> Result<()> {
    input::change(value, &args.settings)?;
    if !value.is_object() {
        return Ok(());
    }
    if args.cold {
        value["cache"] = json!("cold");
    }
    if args.counterfactuals {
        value["counterfactuals"] = json!(true);
    }
    if let Some(given) = &args.accelerator {
        value["accelerator"] = accelerator(given)?;
    }
    if let Some(limit) = args.limit
        && let Some(kind) = kind_of(&mut value["source"])
    {
        kind.insert("limit".to_owned(), json!(limit));
    }
    let load = [
        ("in_flight", json!(args.in_flight)),
        ("batch_size", json!(args.batch_size)),
        ("prefetch", json!(args.prefetch)),
        ("repeats", json!(args.repeats)),
        ("modes", json!(args.modes)),
        ("workers", json!(args.workers)),
    ];
    let is_given = |to: &Value| !to.is_null() && to.as_array().is_none_or(|words| !words.is_empty());
    let load: Vec<_> = load.into_iter().filter(|(_, to)| is_given(to)).collect();
    if load.is_empty() {
        return Ok(());
    }
    if value.get("actions").is_none() {
        value["actions"] = json!([{ "whole_set": {} }]);
    }
    let actions = value["actions"].as_array_mut().into_iter().flatten();
    let mut sets: Vec<&mut Value> = actions.filter_map(|action| action.get_mut("whole_set")).collect();
    if sets.is_empty() {
        return Err(bad("the flags change a load, but the document has no action `whole_set`"));
    }
    for set in sets.iter_mut().filter(|set| set.is_object()) {
        for (field, to) in &load {
            set[*field] = to.clone();
        }
    }
    Ok(())
}

/// Returns the inner object of a source such as `{"list": {...}}`, of any kind; `None` if there is none.
fn kind_of(source: &mut Value) -> Option<&mut Map<String, Value>> {
    source.as_object_mut()?.values_mut().next()?.as_object_mut()
}

fn accelerator(given: &str) -> Result<Value> {
    if preset(given).is_some() {
        return Ok(json!({ "preset": given }));
    }
    match humantime::parse_duration(given) {
        Ok(step) => Ok(json!({ "step_ms": step.as_secs_f64() * 1e3 })),
        Err(_) => {
            let known: Vec<String> = penstock_bench::presets().map(|preset| preset.name()).collect();
            let known = fault::listed(known.iter().map(String::as_str));
            let length = "the length of a step, e.g. `30ms`";
            Err(bad(format!("`--accelerator {given}` is neither {length}, nor one of {known}")))
        }
    }
}
