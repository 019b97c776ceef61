//! All front ends report the same faults of a document.

use penstock_pipeline::{Modules, Outlets, Runner, Stores};
use penstock_tests::{Call, Folder, Serving, photos};
use penstock_types::fault::{FaultKind, SpecFault};
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::{Value, json};

/// An out-of-range value, a missing field, an invalid param, an unknown store, an unknown module, and a missing device.
fn wrong() -> Value {
    json!({
        "name": "wrong",
        "source": { "range": { "count": 5, "shard": { "rank": 7, "world": 2 } } },
        "stages": [
            { "wasm": { "module": "std/image", "params": { "ops": [{ "Resize": { "size": 0 } }] } } },
            { "fetch": { "store": "nowhere" } },
            { "wasm": { "module": "decode" } },
            { "aggregate": { "size": 2 } },
            { "collate": {} },
            { "transfer": { "device": "cuda:99" } }
        ]
    })
}

/// Faults found by the library, on which the front ends are built.
fn found(document: &Value) -> Vec<SpecFault> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut stores = Stores::default();
    stores.add_folder("photos", photos()).unwrap();
    let spec = Spec::from_value(document.clone()).unwrap();
    let mut modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    modules.add_std(&spec).unwrap();
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    runner.prepare(&spec, Outlets::ALL).unwrap_err()
}

#[test]
fn the_library_the_command_and_the_server_find_the_same_faults() {
    let document = wrong();
    let found = found(&document);
    let kinds: Vec<_> = found.iter().map(|fault| (fault.pointer.as_str(), fault.kind.clone())).collect();
    assert_eq!(
        kinds,
        [
            ("/source/range/shard/rank", FaultKind::Other),
            ("/stages/0/wasm", FaultKind::MissingField("bytes".to_owned())),
            ("/stages/0/wasm/params/ops/0/Resize/size", FaultKind::Other),
            ("/stages/1/fetch/store", FaultKind::UnknownStore("nowhere".to_owned())),
            ("/stages/2/wasm/module", FaultKind::UnknownModule("decode".to_owned())),
            ("/stages/5/transfer/device", FaultKind::Other),
        ]
    );
    let folder = Folder::new();
    let call = Call::check(&folder.document(&document)).store("photos", photos());
    let told = call.finish().exits(2).stderr;
    let told: Vec<&str> = told.lines().skip(1).map(str::trim_start).collect();
    assert_eq!(told.len(), found.len(), "{told:#?}");

    let served = Serving::default().store("photos", photos()).start();
    for path in ["/runs?validate_only=true", "/runs"] {
        let problem = served.post(path, &document).is(422).json();
        let errors = problem["errors"].as_array().unwrap();
        assert_eq!(errors.len(), found.len(), "{problem:#}");
        // Each fault has a kind, for which each front end adds its own hint.
        for ((fault, told), error) in found.iter().zip(&told).zip(errors) {
            let (pointer, what) = (fault.pointer.as_str(), &fault.found);
            assert!(told.starts_with(&format!("{pointer}: {what}")), "{told}\n{fault}");
            assert_eq!(error["pointer"], pointer);
            assert!(error["detail"].as_str().unwrap().starts_with(what), "{error}\n{fault}");
        }
    }
}
