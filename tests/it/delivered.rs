//! Batches of an example pipeline as the training loop receives them, collected by a consumer of this file.

use std::path::Path;
use std::sync::{Arc, Mutex};

use penstock_engine::item::{Collated, Dtype, Item, Stacked, Tensor};
use penstock_engine::ports::{Consumer, Fault, StopFlag};
use penstock_pipeline::{Modules, Outlets, RunEnds, Runner, Stores};
use penstock_tests::{module, repository};
use penstock_types::run::{RunSnapshot, RunState};
use penstock_types::spec::{self, Spec};
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::Value;

/// Settings of a run of a document in `examples/pipelines`, made step by step.
pub(crate) struct Example<'a> {
    document: Value,
    stores: Vec<(&'a str, &'a Path)>,
    modules: Vec<&'a str>,
}

impl<'a> Example<'a> {
    /// Loads the document of that name, with each stage's module from the crate of the same name.
    pub(crate) fn new(name: &str, modules: &[&'a str]) -> Self {
        let written = std::fs::read(repository().join("examples/pipelines").join(name)).unwrap();
        Self { document: spec::parse(&written).unwrap(), stores: Vec::new(), modules: modules.to_vec() }
    }

    pub(crate) fn store(mut self, name: &'a str, folder: &'a Path) -> Self {
        self.stores.push((name, folder));
        self
    }

    pub(crate) fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        spec::set(&mut self.document, pointer, value.into()).unwrap();
        self
    }

    /// Runs the pipeline to its end and checks that the ledger balances. Returns the last snapshot and the delivered items.
    pub(crate) fn run(self) -> (RunSnapshot, Vec<Item>) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut stores = Stores::default();
        for (name, folder) in &self.stores {
            stores.add_folder(name, folder).unwrap();
        }
        let settings = SandboxSettings { instances: 64, ..SandboxSettings::default() };
        let mut modules = Modules::new(Sandbox::new(settings).unwrap());
        for name in &self.modules {
            modules.add(name, &std::fs::read(module(name)).unwrap()).unwrap();
        }
        let spec = Spec::from_value(self.document).unwrap();
        modules.add_std(&spec).unwrap();
        let runner = Runner::new(runtime.handle().clone(), stores, modules);
        let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
        let items = Arc::new(Mutex::new(Vec::new()));
        let consumer = Box::new(Keeps(items.clone()));
        let ends = RunEnds { consumer: Some(consumer), ..RunEnds::default() };
        let snapshot = runtime.block_on(prepared.start(None, ends)).unwrap().wait().snapshot;
        assert_eq!(snapshot.state, RunState::Completed, "{snapshot:#?}");
        assert!(snapshot.ledger.balanced, "{:#?}", snapshot.ledger);
        let items = std::mem::take(&mut *items.lock().unwrap());
        (snapshot, items)
    }
}

/// A consumer that keeps every item, in order.
struct Keeps(Arc<Mutex<Vec<Item>>>);

impl Consumer for Keeps {
    fn consume(&mut self, item: Item, _: &StopFlag) -> Result<(), Fault> {
        self.0.lock().unwrap().push(item);
        Ok(())
    }
}

/// Batches among the items of a document whose last stage is `collate`.
pub(crate) fn batches(items: Vec<Item>) -> Vec<Collated> {
    let collated = |item| match item {
        Item::Collated(batch) => batch,
        other => panic!("the document collates: {other:?}"),
    };
    items.into_iter().map(collated).collect()
}

/// Shape of a stacked field, and its elements of `N` bytes decoded by `number`.
pub(crate) fn stacked<T, const N: usize>(
    batch: &Collated,
    name: &str,
    dtype: Dtype,
    number: fn([u8; N]) -> T,
) -> (Vec<u32>, Vec<T>) {
    let column = batch.fields.iter().find(|column| &*column.name == name);
    match column.map(|column| &column.values) {
        Some(Stacked::Tensor(Tensor { dtype: found, shape, data })) if *found == dtype => {
            (shape.clone(), data.as_chunks::<N>().0.iter().map(|&bytes| number(bytes)).collect())
        }
        other => panic!("`{name}` is {other:?}"),
    }
}
