//! Modules are compiled by a child of the process that runs pipelines.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_pipeline::{Modules, Outlets, RunEnds, Runner, Stores};
use penstock_tests::{Call, Folder, penstock, shown};
use penstock_types::run::RunSnapshot;
use penstock_types::spec::Spec;
use penstock_wasm::{Compiler, CompilerProcess, ModuleError, Sandbox, SandboxSettings};
use serde_json::json;

/// A stage of some hundred kilobytes that passes the gate, but takes minutes and gigabytes to compile.
fn bomb() -> Vec<u8> {
    let mut body = String::from("(func (param i32) ");
    body.push_str(&"(local i32)".repeat(2_000));
    for number in 0..8_000 {
        let (one, other) = (1 + number % 2_000, 1 + (number * 7) % 2_000);
        write!(
            body,
            "(block (br_if 0 (local.get 0)) (local.set {one} (i32.add (local.get {other}) (local.get 0))))"
        )
        .unwrap();
    }
    body.push(')');
    let text = format!(
        r#"(component
        (core module $m (func (export "f")) {}
            (@custom "penstock.manifest" "{{\"name\":\"bomb\",\"version\":\"1\"}}"))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (instance $t (export "init" (func $f)) (export "process" (func $f)) (export "finish" (func $f)))
        (export "penstock:stage/transform@0.1.0" (instance $t)))"#,
        body.repeat(4)
    );
    wat::parse_str(text).unwrap()
}

/// Compiler process of the binary, with 2 s of CPU time.
fn compiler() -> Compiler {
    let mut process = CompilerProcess::new(penstock(), ["compile-module"]);
    process.limits.cpu = Duration::from_secs(2);
    Compiler::Child(process)
}

#[test]
fn a_run_continues_undisturbed_while_a_bomb_is_compiled() {
    let folder = Folder::new();
    folder.records(["a", "b", "c", "d", "e"]);
    let spec = Spec::from_value(json!({
        "threads": 1,
        "source": { "records": { "store": "here", "key": "records.ndjson", "epochs": 100 } },
        "stages": [
            { "sleep": { "mean_ms": 4, "on": "thread" } },
            { "wasm": { "module": "guest", "params": { "how": "good" } } }
        ]
    }))
    .unwrap();
    let settings = SandboxSettings { instances: 4, compiler: compiler(), ..SandboxSettings::default() };
    let sandbox = Sandbox::new(settings).unwrap();
    let mut stores = Stores::default();
    stores.add_folder("here", folder.path()).unwrap();
    let mut modules = Modules::new(sandbox.clone());
    modules.add("guest", &std::fs::read(penstock_tests::module("guest-misbehaving")).unwrap()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
    let run = || runtime.block_on(prepared.start(None, RunEnds::default())).unwrap().wait().snapshot;

    let undisturbed = run();
    let bomb = bomb();
    let is_over = AtomicBool::new(false);
    let (disturbed, refused) = std::thread::scope(|scope| {
        let compiling = scope.spawn(|| {
            let mut refused = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                refused.push(sandbox.load(&bomb).unwrap_err());
            }
            refused
        });
        let disturbed = run();
        is_over.store(true, Ordering::Relaxed);
        (disturbed, compiling.join().unwrap())
    });
    assert!(refused.iter().all(|refused| matches!(refused, ModuleError::CompileLimit { .. })), "{refused:?}");
    assert!(disturbed.ledger.balanced);
    assert_eq!(disturbed.ledger, undisturbed.ledger);
    assert_eq!(delivered(&disturbed), 500);
    // The run takes at least two seconds, mostly asleep; a compiler that disturbs the run would multiply that time.
    let ratio = disturbed.elapsed_s / undisturbed.elapsed_s;
    assert!(ratio < 2.0, "{} s instead of {} s", disturbed.elapsed_s, undisturbed.elapsed_s);
}

fn delivered(snapshot: &RunSnapshot) -> u64 {
    snapshot.ledger.total.delivered
}

/// A call of `penstock run` with an empty cache.
fn call(folder: &Folder, module: &Path) -> Call {
    folder.records(["a", "b"]);
    let document = folder.document(&json!({
        "threads": 1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "wasm": { "module": "guest", "params": { "how": "good" } } }]
    }));
    let call = Call::run(&document).store("here", folder.path()).module_at("guest", module);
    call.argument("--cache-dir").argument(folder.join("cache")).json()
}

fn guest() -> PathBuf {
    penstock_tests::module("guest-misbehaving")
}

/// The key of the cache and its entries, without the digests of known uploads.
fn entries(folder: &Folder) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder.join("cache/compiled"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "digest"))
        .collect();
    entries.sort();
    entries
}

#[test]
fn a_damaged_cache_entry_is_compiled_again_and_reported_once() {
    let folder = Folder::new();
    let call = call(&folder, &guest());
    assert_eq!(delivered(&call.finish().exits(0).snapshot()), 2);
    let entries = entries(&folder);
    let entry = entries.iter().find(|path| path.extension().is_some()).unwrap();
    assert_eq!(entries.len(), 2, "{entries:?}");
    let mut damaged = std::fs::read(entry).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(entry, damaged).unwrap();
    let again = call.finish().exits(0);
    assert_eq!(delivered(&again.snapshot()), 2);
    let name = entry.file_name().unwrap().to_str().unwrap();
    shown().bind(|| insta::assert_snapshot!(again.stderr.replace(name, "[ENTRY]")));
    assert_eq!(call.finish().exits(0).stderr, "");
}

#[test]
fn two_processes_that_start_at_once_share_a_cache() {
    let folder = Folder::new();
    let call = call(&folder, &guest());
    let all = [call.start(), call.start(), call.start(), call.start()];
    for one in all {
        let finished = call.finished(one).exits(0);
        assert_eq!((delivered(&finished.snapshot()), finished.stderr.as_str()), (2, ""));
    }
    assert_eq!(entries(&folder).len(), 2, "the key, and one entry");
    assert_eq!(call.finish().exits(0).stderr, "");
}

#[test]
fn the_compile_command_is_hidden() {
    let help = Call::new(&["--help"]).finish().exits(0);
    assert!(!help.stdout.contains("compile-module"), "{}", help.stdout);
    // Standard input is empty, so the process receives no request.
    let alone = Call::new(&["compile-module"]).finish().exits(1);
    shown().bind(|| insta::assert_snapshot!(alone.stderr, @"cannot compile: failed to fill whole buffer"));
}
