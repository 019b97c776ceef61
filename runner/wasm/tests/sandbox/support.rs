//! Guests, sandboxes and samples for the tests.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{Failed, Items, Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::config::GateBounds;
use penstock_wasm::{
    Compiler, Module, ModuleError, ModuleReport, Sandbox, SandboxSettings, StageFactory, StageSettings,
    inspect,
};
use serde_json::json;

/// Bytes of a guest module of this workspace.
pub(crate) fn guest(name: &str) -> Vec<u8> {
    // The target folder is derived from the path of the test binary, `TARGET/PROFILE/deps/sandbox-0123`.
    let program = std::env::current_exe().unwrap();
    let path = program
        .ancestors()
        .nth(3)
        .unwrap()
        .join("wasm32-unknown-unknown/guest")
        .join(format!("guest_{name}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make guests` first", path.display()))
}

/// Sandbox without a cache that all tests of this process share.
pub(crate) fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| {
        Sandbox::new(SandboxSettings { instances: 64, ..SandboxSettings::default() }).unwrap()
    })
}

/// A guest of this workspace, compiled once per process.
pub(crate) fn module(name: &'static str) -> Module {
    static MODULES: OnceLock<Vec<(&str, Module)>> = OnceLock::new();
    let modules = MODULES.get_or_init(|| {
        ["misbehaving", "batch", "stateful", "carrying"]
            .map(|name| (name, sandbox().load(&guest(name)).unwrap()))
            .into()
    });
    modules.iter().find(|(known, _)| *known == name).unwrap().1.clone()
}

/// Settings with small limits, so that guests exceed them quickly.
pub(crate) fn settings(params: serde_json::Value) -> StageSettings {
    StageSettings {
        name: "stage".into(),
        params,
        deadline: Duration::from_millis(50),
        memory_bytes: 256 << 20,
        output_bytes: 128 << 20,
        held_bytes: 256 << 20,
        assets: [("words".to_owned(), Bytes::from_static(b"one two"))].into(),
        document_seed: 7,
    }
}

/// Stage of the guest that misbehaves in the way named by `how`.
pub(crate) fn misbehaving(how: &str) -> StageFactory {
    module("misbehaving").stage(settings(json!({ "how": how })))
}

pub(crate) fn build(factory: &StageFactory) -> Box<dyn ThreadOp> {
    factory.build(&StopFlag::default()).unwrap()
}

/// Sample with a blob field and position `index` in the source.
pub(crate) fn sample(key: &str, index: u64) -> Sample {
    let mut sample = Sample::new(key, Origin::at(0, index));
    sample.set("blob", Value::Blob(Bytes::from_static(b"\x01\x02\x03")));
    sample
}

/// Sample with a text field.
pub(crate) fn text(key: &str, index: u64, text: &str) -> Sample {
    let mut sample = Sample::new(key, Origin::at(0, index));
    sample.set("text", Value::Text(text.into()));
    sample
}

pub(crate) fn apply(op: &mut dyn ThreadOp, sample: Sample) -> Output {
    op.apply(Item::Sample(sample), &StopFlag::default())
}

/// Samples of an output, in order, including the samples in batches.
pub(crate) fn samples(output: Output) -> Vec<Sample> {
    assert!(output.failed.is_empty(), "{:?}", output.failed);
    let items = match output.items {
        Items::None => Vec::new(),
        Items::One(item) => vec![item],
        Items::Many(items) => items,
    };
    items
        .into_iter()
        .flat_map(|item| match item {
            Item::Sample(sample) => vec![sample],
            Item::Batch(samples) => samples,
            Item::Collated(batch) => panic!("no stage here collates: {batch:?}"),
        })
        .collect()
}

pub(crate) fn keys(samples: &[Sample]) -> Vec<&str> {
    samples.iter().map(|sample| &*sample.key).collect()
}

/// Returns the only failure of a call that returned no samples.
pub(crate) fn only_failure(mut output: Output) -> Failed {
    assert!(matches!(output.items, Items::None), "{:?}", output.items);
    assert_eq!((output.failed.len(), output.dropped), (1, 0), "{output:?}");
    output.failed.remove(0)
}

/// Inspects a module with the default bounds.
pub(crate) fn inspected(bytes: &[u8]) -> Result<ModuleReport, ModuleError> {
    inspect(bytes, &GateBounds::default(), &Compiler::InProcess)
}
