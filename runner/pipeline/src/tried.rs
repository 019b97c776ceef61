//! Trials of the parts of a pipeline before it runs: the start of its modules, and its stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use penstock_engine::item::{Sample, Value};
use penstock_engine::mixed::fields_of;
use penstock_engine::ports::{Fault, Produced, SourceFault, StopFlag, ThreadOpFactory};
use penstock_storage::{BoundedStore, StoreError};
use penstock_types::data_set::DataFields;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::left_out::LeftOut;
use penstock_types::plan::StageKind;
use penstock_types::run::FailureClass;
use penstock_types::spec::{self, Consumer, MixSource};
use penstock_types::text::with_causes;
use serde::Serialize;
use tokio::time::timeout;

use crate::assemble::AssembleError;
use crate::prepare::Prepared;
use crate::spatial::spatial_warnings;

/// Time for which a check without a trial of the stores waits for the source.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// Findings of a source that was opened for a check.
#[derive(Debug, Default, Serialize)]
pub struct TriedSource {
    /// Fields of the samples; `None` if the source does not know them, or was not opened.
    pub fields: Option<DataFields>,
    pub not_opened: Option<String>,
    /// Things that the source does not take, by the id of the source; in a mixture, by the name of the source in it.
    pub left_out: BTreeMap<String, Vec<LeftOut>>,
    pub warnings: Vec<String>,
}

impl Prepared {
    /// Starts one instance of each module, with its params and assets, and ends it. Returns a fault for each module that refuses to start.
    pub async fn try_init(&self) -> Vec<SpecFault> {
        let own = self.apart();
        let mut faults = Vec::new();
        for stage in &own.plan.stages {
            let StageKind::Wasm(wasm) = &stage.kind else { continue };
            let factory = match own.guest(stage, wasm).await {
                Ok(factory) => factory,
                Err(error) => {
                    let place = match &error {
                        AssembleError::Asset { asset, .. } => stage.place.key("assets").key(asset),
                        _ => stage.place.clone(),
                    };
                    faults.push(SpecFault::new(place, with_causes(&error)));
                    continue;
                }
            };
            // Guests run on a thread that may block.
            let started = self.runtime.spawn_blocking(move || factory.build(&StopFlag::default()).map(drop));
            let started = started.await.unwrap_or_else(|_| {
                Err(Fault::new(FailureClass::Bug, "the thread of the module has panicked"))
            });
            if let Err(fault) = started {
                let found = format!("the module `{}` cannot start: {}", wasm.module, fault.message);
                faults.push(SpecFault::new(stage.place.key("params"), found));
            }
        }
        faults
    }

    /// Opens the source in order until its fields are known, for a few seconds at most. Reads no more samples than types are learnt from.
    pub async fn look_at_source(&self) -> TriedSource {
        let name = self.plan.source.id.to_string();
        let looked = timeout(LOOK_TIME, async {
            match &self.plan.source.spec {
                spec::Source::Mix(mix) => self.look_at_parts(mix).await,
                _ => self.look_at(&name, &self.plan.source.spec).await,
            }
        });
        let looked = match looked.await {
            Ok(looked) => looked.map_err(|fault| with_causes(&fault)),
            Err(_) => {
                Err(format!("opening the source takes longer than {LOOK_TIME:?}; use `--stores` to wait"))
            }
        };
        let not_opened = |reason| TriedSource { not_opened: Some(reason), ..TriedSource::default() };
        let mut tried = looked.unwrap_or_else(not_opened);
        tried.warnings.extend(spatial_warnings(&self.plan, tried.fields.as_ref()));
        tried
    }

    /// Opens a source in order, as if it were the only one.
    async fn look_at(&self, name: &str, source: &spec::Source) -> Result<TriedSource, SourceFault> {
        let mut own = self.apart();
        own.plan.source.spec = source.clone();
        own.plan.source.traversal.shuffle = false;
        own.source().next().await?;
        let notes = own.found.notes(&own.plan.source.id.to_string());
        let left_out = Some(notes.left_out()).filter(|left_out| !left_out.is_empty());
        Ok(TriedSource {
            fields: own.own_fields(),
            not_opened: None,
            left_out: left_out.into_iter().map(|left_out| (name.to_owned(), left_out)).collect(),
            warnings: notes.warnings(name),
        })
    }

    async fn look_at_parts(&self, mix: &MixSource) -> Result<TriedSource, SourceFault> {
        if mix
            .sources
            .values()
            .any(|part| part.source.rules().settings().missing.is_some_and(|missing| !missing.is_empty()))
        {
            // A source may fill in the fields of another one, so that they are opened together, as in a run.
            let own = self.apart();
            own.source().next().await?;
            return Ok(own.found_source());
        }
        let (mut all, mut fields) = (TriedSource::default(), Vec::new());
        for (name, part) in mix.sources.iter().filter(|(_, part)| part.weight > 0) {
            let tried = self.look_at(name.as_str(), &part.source).await?;
            fields.extend(tried.fields.map(|fields| (Arc::from(name.as_str()), fields)));
            all.left_out.extend(tried.left_out);
            all.warnings.extend(tried.warnings);
        }
        all.fields = (!fields.is_empty()).then(|| fields_of(fields)).transpose()?;
        Ok(all)
    }

    /// Opens the source as a run does, and tries the other stores of the document: the objects of the first sample that stages fetch, and
    /// the folder that the consumer writes to. Nothing is written.
    pub async fn try_stores(&self) -> Result<TriedSource, Vec<SpecFault>> {
        let own = self.apart();
        let place = Pointer::ROOT.key("source").key(own.plan.source.spec.kind());
        let first = match own.source().next().await {
            Ok(Some(Produced::Samples(chunk))) => chunk.into_kept().into_iter().next(),
            Ok(Some(Produced::EpochEnd) | None) => None,
            Err(fault) => return Err(vec![SpecFault::new(place, with_causes(&fault))]),
        };
        let mut faults = Vec::new();
        let mut tried = BTreeSet::new();
        for stage in &own.plan.stages {
            let rules = stage.kind.rules();
            let Some(store) = rules.store() else { continue };
            let key = first.as_ref().and_then(|sample| key_of(sample, rules.object()));
            if !tried.insert((store, key.clone())) {
                continue;
            }
            let found = try_store(&own.store(store), key).await;
            faults.extend(found.err().map(|error| SpecFault::new(stage.place.clone(), error.with_causes())));
        }
        if let Consumer::Files(files) = &own.plan.consumer {
            let place = Pointer::ROOT.key("consumer").key("files").key("store");
            let found = try_store(&own.store(files.store.as_str()), None).await;
            faults.extend(found.err().map(|error| SpecFault::new(place, error.with_causes())));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut tried = own.found_source();
        tried.warnings.extend(spatial_warnings(&own.plan, tried.fields.as_ref()));
        Ok(tried)
    }

    fn found_source(&self) -> TriedSource {
        let (left_out, warnings) = (self.found.left_out(), self.found.warnings());
        TriedSource { fields: self.own_fields(), not_opened: None, left_out, warnings }
    }
}

/// Key of the object that a stage reads for a sample.
fn key_of(sample: &Sample, field: Option<&str>) -> Option<Arc<str>> {
    match field {
        None => Some(sample.key.clone()),
        Some(field) => match sample.field(field) {
            Some(Value::Text(key)) => Some(Arc::from(key.as_str())),
            _ => None,
        },
    }
}

/// Asks a store for an object, or for its first keys. An object that does not exist is a failed sample of a run and no fault of the
/// document.
async fn try_store(store: &BoundedStore, key: Option<Arc<str>>) -> Result<(), StoreError> {
    let tried = match key {
        Some(key) => match store.version(key.clone()).await {
            // The answer to a question for a version does not tell a missing object from a missing bucket.
            Err(StoreError::NotFound { .. }) => store.get(key).await.0.map(drop),
            tried => tried.map(drop),
        },
        None => store.list("").next().await.transpose().map(drop),
    };
    match tried {
        Err(StoreError::NotFound { .. }) => Ok(()),
        tried => tried,
    }
}
