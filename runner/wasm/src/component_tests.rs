use super::*;

const MANIFEST: &str = r#"{\"name\":\"m\",\"version\":\"1\"}"#;

/// Core module with WIT types, the exports of the transform interface `interface`, and the additional sections `more`.
fn core(interface: &str, more: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (@custom "component-type:stage" "") {more} (func (export "{interface}#process")))"#
    );
    wat::parse_str(text).unwrap()
}

fn stage(more: &str) -> Vec<u8> {
    core("penstock:stage/transform@0.1.0", more)
}

fn manifest(json: &str) -> String {
    format!(r#"(@custom "penstock.manifest" "{json}")"#)
}

fn refusal(bytes: &[u8]) -> String {
    outline(bytes).expect_err("it is refused").to_string()
}

#[test]
fn files_of_other_formats_are_recognized_and_refused() {
    insta::assert_snapshot!(refusal(b""), @"not a WebAssembly module: the file is empty");
    insta::assert_snapshot!(refusal(b"\x7fELF\x02\x01\x01\0"), @"not a WebAssembly module: it is an ELF program or library for one machine; build it with `--target wasm32-unknown-unknown`");
    insta::assert_snapshot!(refusal(b"hello, world\n"), @"not a WebAssembly module: it is a text file; upload the .wasm that was built");
    insta::assert_snapshot!(refusal(b"\n  (module)"), @"not a WebAssembly module: it is WebAssembly text; translate it with `wasm-tools parse` and upload the .wasm");
    insta::assert_snapshot!(refusal(b"\x1f\x8b\x08\0"), @"not a WebAssembly module: it is compressed with gzip; upload it uncompressed");
    insta::assert_snapshot!(refusal(b"PK\x03\x04"), @"not a WebAssembly module: it is a zip archive; upload the .wasm inside");
    insta::assert_snapshot!(refusal(&[0xff, 0xd8, 0xff, 0xe0, 0]), @r"not a WebAssembly module: it starts with [ff, d8, ff, e0], not with `\0asm`");
}

#[test]
fn compiled_code_is_never_accepted() {
    let compiled = Engine::default().precompile_component(&wat::parse_str("(component)").unwrap()).unwrap();
    insta::assert_snapshot!(refusal(&compiled), @"not a WebAssembly module: it is compiled code (.cwasm), which is never accepted; upload the .wasm from which it was compiled");
}

#[test]
fn every_cut_of_a_module_is_refused_and_never_panics() {
    let bytes = stage(&manifest(MANIFEST));
    assert!(outline(&bytes).is_ok());
    for end in 0..bytes.len() {
        let error = outline(&bytes[..end]).expect_err("a cut module");
        // A module cut between two sections is still valid WebAssembly, but lacks a required section.
        assert!(
            matches!(
                error,
                ModuleError::NotWasm { .. }
                    | ModuleError::Truncated { .. }
                    | ModuleError::NoTypes
                    | ModuleError::Export { .. }
                    | ModuleError::Manifest { .. }
            ),
            "{end}: {error}"
        );
    }
    insta::assert_snapshot!(refusal(&bytes[..6]), @"the module is truncated: it ends after 6 bytes, before it is complete; upload it again");
}

#[test]
fn a_core_module_needs_its_types() {
    let bytes = wat::parse_str("(module)").unwrap();
    insta::assert_snapshot!(refusal(&bytes), @"a core module without WIT types, which declare its functions; build it with `penstock-guest` or wit-bindgen for the world `penstock:stage/stage@0.1.0`, and do not strip custom sections");
}

#[test]
fn a_stage_exports_the_transform_of_this_version() {
    let nothing = wat::parse_str("(component)").unwrap();
    insta::assert_snapshot!(refusal(&nothing), @"the module does not export `penstock:stage/transform@0.1.0`: it exports no interface at all; annotate a function with `#[penstock_guest::stage]`");
    let newer = core("penstock:stage/transform@0.2.0", "");
    insta::assert_snapshot!(refusal(&newer), @"the module does not export `penstock:stage/transform@0.1.0`: it was built for `penstock:stage/transform@0.2.0`; build it with the SDK of the Penstock version that runs it");
    assert!(outline(&core("penstock:stage/transform@0.1.9", &manifest(MANIFEST))).is_ok());
}

#[test]
fn unsupported_imports_are_named_with_a_remedy() {
    let threads = stage(r#"(import "wasi" "thread-spawn" (func))"#);
    insta::assert_snapshot!(refusal(&threads), @"the module imports `wasi`, which the host does not provide; the only form of WASI that a core module may import is `wasi_snapshot_preview1`, without threads");
    let wasi = wat::parse_str(
        r#"(component (import "wasi:cli/stderr@0.2.6" (instance)) (instance $i) (export "penstock:stage/transform@0.1.0" (instance $i)))"#,
    );
    insta::assert_snapshot!(refusal(&wasi.unwrap()), @"the module imports `wasi:cli/stderr@0.2.6`, which the host does not provide; stages have no files, clock, environment or network: stub WASI out (componentize-py and componentize-qjs have `--stub-wasi`), or build a core module for `wasm32-wasip1` or `wasm32-unknown-unknown` instead of a component");
    let preview1 = format!(r#"(import "wasi_snapshot_preview1" "fd_write" (func)) {}"#, manifest(MANIFEST));
    assert_eq!(outline(&stage(&preview1)).unwrap().imports, ["wasi_snapshot_preview1"]);
    let symbols = stage(r#"(import "env" "inflate" (func)) (import "env" "deflate" (func))"#);
    insta::assert_snapshot!(refusal(&symbols), @"the module imports `env`, which the host does not provide; the linker did not find these symbols: link the C library that defines them");
    let newer = stage(r#"(import "penstock:stage/host@0.2.0" "log" (func))"#);
    insta::assert_snapshot!(refusal(&newer), @"the module imports `penstock:stage/host@0.2.0`, which the host does not provide; it was built for another version of the contract: build it with the SDK of the Penstock version that runs it");
    let many: String = (0..9).map(|number| format!(r#"(import "m{number}" "f" (func))"#)).collect();
    assert!(refusal(&stage(&many)).contains("`m4`, 4 more, which"));
    let offered = format!(r#"(import "penstock:stage/host@0.1.0" "log" (func)) {}"#, manifest(MANIFEST));
    assert_eq!(outline(&stage(&offered)).unwrap().imports, ["penstock:stage/host@0.1.0"]);
}

#[test]
fn a_module_needs_exactly_one_valid_manifest() {
    insta::assert_snapshot!(refusal(&stage("")), @"the module has no manifest: custom section `penstock.manifest` is missing; build it with `penstock-guest` and do not strip custom sections, or write one with `penstock module manifest`");
    insta::assert_snapshot!(refusal(&stage(&manifest("{name"))), @"the module's manifest cannot be read: key must be a string at line 1 column 2");
    insta::assert_snapshot!(refusal(&stage(&manifest("{}"))), @"the module's manifest cannot be read: missing field `name` at line 1 column 2");
    let twice = manifest(MANIFEST).repeat(2);
    insta::assert_snapshot!(refusal(&stage(&twice)), @"the module has 2 manifests, but exactly one is required");
    let unnamed = manifest(r#"{\"name\":\"\",\"version\":\"1\"}"#);
    insta::assert_snapshot!(refusal(&stage(&unnamed)), @"the module's manifest has `` under `name`: 1 to 64 letters, digits, `-`, `_`, `.` or `+` are required");
    let climbing = manifest(r#"{\"name\":\"../m\",\"version\":\"1\"}"#);
    insta::assert_snapshot!(refusal(&stage(&climbing)), @"the module's manifest has `../m` under `name`: 1 to 64 letters, digits, `-`, `_`, `.` or `+` are required");
    let large = manifest(&" ".repeat((256 << 10) + 1));
    insta::assert_snapshot!(refusal(&stage(&large)), @"the module's manifest has 262145 bytes, the limit is 262144");
    let full = manifest(&format!("[{}0]", "0,".repeat(5_000)));
    insta::assert_snapshot!(refusal(&stage(&full)), @"the module's manifest has more names and values than 4096; move large data into `assets`");
}

#[test]
fn a_manifest_declares_at_most_16_counters_each_once() {
    let counters = |names: Vec<String>| {
        let names: Vec<String> = names.iter().map(|name| format!(r#"\"{name}\""#)).collect();
        stage(&manifest(&format!(
            r#"{{\"name\":\"m\",\"version\":\"1\",\"counters\":[{}]}}"#,
            names.join(",")
        )))
    };
    let numbered = |count: u32| (0..count).map(|number| format!("c{number}")).collect();
    assert!(outline(&counters(numbered(16))).is_ok());
    insta::assert_snapshot!(refusal(&counters(numbered(17))), @"the module's manifest declares 17 counters, at most 16 are allowed");
    insta::assert_snapshot!(refusal(&counters(vec!["a".into(), "a".into()])), @"the module's manifest declares a counter twice");
}

#[test]
fn the_manifest_of_a_component_is_that_of_a_module_inside() {
    let text = format!(
        r#"(component (core module {}) (instance $i) (export "penstock:stage/transform@0.1.0" (instance $i)))"#,
        manifest(MANIFEST)
    );
    let found = outline(&wat::parse_str(text).unwrap()).unwrap();
    assert_eq!((found.kind, found.manifest.name.as_str()), (ModuleKind::Component, "m"));
}
