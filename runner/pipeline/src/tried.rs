//! Trials of the parts of a pipeline before it runs: the start of its modules, and its stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use penstock_engine::item::{Sample, Value};
use penstock_engine::ports::{Fault, Produced, SourceFault, StopFlag, ThreadOpFactory};
use penstock_storage::{BoundedStore, StoreError};
use penstock_types::data_set::DataFields;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::left_out::LeftOut;
use penstock_types::plan::{ConsumerPlan, StageKind};
use penstock_types::run::FailureClass;
use penstock_types::text::with_causes;

use crate::assemble::AssembleError;
use crate::prepare::Prepared;
use crate::spatial::spatial_warnings;

/// Findings of a source that was opened for a check.
#[derive(Debug)]
pub struct TriedSource {
    /// Fields of the samples, if the source knows them.
    pub fields: Option<DataFields>,
    /// Things that the source does not take, by the id of the source; in a mixture, by the name of the source in it.
    pub left_out: BTreeMap<String, Vec<LeftOut>>,
    /// Warnings about the data, in words.
    pub warnings: Vec<String>,
}

impl Prepared {
    /// Warnings that follow from the document alone.
    pub fn warnings(&self) -> Vec<String> {
        spatial_warnings(&self.plan, None)
    }

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

    /// Opens the source as a run does, and tries the other stores of the document: the objects of the first sample that stages fetch, and
    /// the folder that the consumer writes to. Nothing is written.
    pub async fn try_stores(&self) -> Result<TriedSource, Vec<SpecFault>> {
        let own = self.apart();
        let source = Pointer::ROOT.key("source").key(own.plan.source.spec.kind());
        let first = match own.source().next().await {
            Ok(Some(Produced::Samples(chunk))) => chunk.into_kept().into_iter().next(),
            Ok(Some(Produced::EpochEnd) | None) => None,
            Err(fault) => return Err(vec![SpecFault::new(source, in_words(&fault))]),
        };
        let mut faults = Vec::new();
        let mut tried = BTreeSet::new();
        for stage in &own.plan.stages {
            let StageKind::Fetch { store, object } = &stage.kind else { continue };
            let key = first.as_ref().and_then(|sample| key_of(sample, object.as_deref()));
            if !tried.insert((store.as_str(), key.clone())) {
                continue;
            }
            let found = try_store(&own.store(store), key).await;
            faults.extend(found.err().map(|error| SpecFault::new(stage.place.clone(), error.with_causes())));
        }
        if let ConsumerPlan::Files(files) = &own.plan.consumer {
            let place = Pointer::ROOT.key("consumer").key("files").key("store");
            let found = try_store(&own.store(&files.store), None).await;
            faults.extend(found.err().map(|error| SpecFault::new(place, error.with_causes())));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let fields = own.own_fields();
        let mut warnings = own.found.warnings();
        warnings.extend(spatial_warnings(&own.plan, fields.as_ref()));
        Ok(TriedSource { fields, left_out: own.found.left_out(), warnings })
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
        Some(key) => store.version(key).await.map(drop),
        None => store.list("").next().await.transpose().map(drop),
    };
    match tried {
        Err(StoreError::NotFound { .. }) => Ok(()),
        tried => tried,
    }
}

fn in_words(fault: &SourceFault) -> String {
    with_causes(fault)
}
