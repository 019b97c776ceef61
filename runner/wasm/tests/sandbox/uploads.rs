//! What is refused at upload, and with which words.

use penstock_wasm::{ModuleKind, Sandbox, inspect};

use crate::support::{guest, sandbox};

/// What loading says; inspecting says the same.
fn refusal(bytes: &[u8]) -> String {
    let sandbox: &Sandbox = sandbox();
    let loaded = sandbox.load(bytes).expect_err("it is refused").to_string();
    assert_eq!(inspect(bytes).expect_err("it is refused").to_string(), loaded);
    loaded
}

#[test]
fn a_stage_is_described_without_being_run() {
    let report = inspect(&guest("carrying")).unwrap();
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
fn an_import_that_is_not_offered_is_named() {
    insta::assert_snapshot!(refusal(&guest("extra_import")), @"the module imports `acme:clock/time@1.0.0`, which is not offered; the only interface a stage may import is `penstock:stage/host@0.1.0` (log, count, asset)");
}

#[test]
fn half_an_upload_is_truncated() {
    let bytes = guest("batch");
    assert!(refusal(&bytes[..bytes.len() / 2]).starts_with("the module is truncated: it ends after "));
}
