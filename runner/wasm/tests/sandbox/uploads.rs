//! Tests of modules that are refused at upload, and of their messages.

use penstock_wasm::{ModuleKind, Sandbox};
use serde_json::json;

use crate::support::{apply, build, guest, inspected, sample, samples, sandbox, settings};

/// Error of loading a module; asserts that inspecting the module returns the same error.
fn refusal(bytes: &[u8]) -> String {
    let sandbox: &Sandbox = sandbox();
    let loaded = sandbox.load(bytes).expect_err("the sandbox refuses it").to_string();
    assert_eq!(inspected(bytes).expect_err("the sandbox refuses it").to_string(), loaded);
    loaded
}

#[test]
fn a_stage_is_described_without_being_run() {
    let report = inspected(&guest("carrying")).unwrap();
    assert_eq!(report.kind, ModuleKind::Core);
    assert_eq!(report.exports, ["penstock:stage/transform@0.1.0"]);
    assert_eq!(report.imports, [""; 0]);
    assert_eq!(report.manifest.wants, Some(vec!["text".into()]));
    assert!(report.functions > 10 && report.code_bytes > 1000, "{report:?}");
    let module = sandbox().load(&guest("carrying")).unwrap();
    assert_eq!((module.digest(), module.size()), (report.digest.as_str(), report.size_bytes));
    assert!(report.digest.starts_with("sha256:") && report.digest.len() == 71);
    assert_eq!(serde_json::to_value(&report).unwrap()["kind"], "core");
}

#[test]
fn another_world_is_refused_by_its_exports() {
    insta::assert_snapshot!(refusal(&guest("wrong_world")), @"the module does not export `penstock:stage/transform@0.1.0`: it exports `acme:images/rotate@1.0.0`, so it was built for another world; build it for `penstock:stage/stage@0.1.0`");
}

#[test]
fn an_unsupported_import_is_named() {
    insta::assert_snapshot!(refusal(&guest("extra_import")), @"the module imports `acme:clock/time@1.0.0`, which the host does not provide; the only interface a stage may import is `penstock:stage/host@0.1.0` (log, count, asset, memory-limit)");
}

#[test]
fn an_incomplete_upload_is_reported_as_truncated() {
    let bytes = guest("batch");
    assert!(refusal(&bytes[..bytes.len() / 2]).starts_with("the module is truncated: it ends after "));
}

#[test]
fn a_component_runs_like_the_core_module_it_was_made_from() {
    let core = guest("misbehaving");
    let encoder = wit_component::ComponentEncoder::default();
    let component = encoder.module(&core).unwrap().encode().unwrap();
    assert_eq!(inspected(&component).unwrap().kind, ModuleKind::Component);
    let module = sandbox().load(&component).unwrap();
    assert_eq!(module.manifest().name, "misbehaving");
    let mut op = build(&module.stage(settings(json!({ "how": "good" }))));
    assert_eq!(samples(apply(&mut *op, sample("a", 0))), [sample("a", 0)]);
}

#[test]
fn a_function_of_another_type_is_refused_when_the_module_is_loaded() {
    let text = r#"(component
        (core module $m (func (export "f")) (@custom "penstock.manifest" "{\"name\":\"m\",\"version\":\"1\"}"))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (instance $t (export "init" (func $f)) (export "process" (func $f)) (export "finish" (func $f)))
        (export "penstock:stage/transform@0.1.0" (instance $t)))"#;
    let refused = sandbox().load(&wat::parse_str(text).unwrap()).unwrap_err();
    insta::assert_snapshot!(refused, @"the module does not export `penstock:stage/transform@0.1.0`: its function `init` is `()`, which differs from the contract; build it with the SDK of the Penstock version that runs it");
}

#[test]
fn a_damaged_module_is_loaded_or_refused_without_a_panic() {
    let whole = guest("batch");
    for at in (8..whole.len()).step_by(101) {
        for damage in [0x00, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= damage;
            if let Err(error) = inspected(&bytes) {
                assert!(!error.to_string().contains("panicked"), "byte {at}: {error}");
            }
        }
    }
}
