//! Each worker thread that ran a stage created one instance of its module, and instances are not shared between runs.

use std::path::Path;

use penstock_pipeline::{Modules, Outlets, RunEnds, Runner, Stores};
use penstock_tests::{Call, Folder, photos, repository};
use penstock_types::policy::StageKindName;
use penstock_types::run::{RunSnapshot, StageRecord};
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::json;

fn photos_on(threads: u32) -> RunSnapshot {
    let document = repository().join("examples/pipelines/photos-max.json");
    let call = Call::run(&document).store("photos", photos()).threads(threads).json();
    call.finish().exits(0).snapshot()
}

fn wasm_stages(snapshot: &RunSnapshot) -> impl Iterator<Item = &StageRecord> {
    snapshot.stages.iter().filter(|stage| stage.kind == StageKindName::Wasm)
}

#[test]
fn one_thread_makes_one_instance_of_each_stage() {
    let snapshot = photos_on(1);
    let made: Vec<u64> = wasm_stages(&snapshot).map(|stage| stage.task.instances).collect();
    assert_eq!(made, [1]);
}

#[test]
fn a_stage_has_no_more_instances_than_there_are_threads() {
    for threads in [2, 5] {
        let snapshot = photos_on(threads);
        assert_eq!(snapshot.threads, threads);
        for stage in wasm_stages(&snapshot) {
            assert!((1..=u64::from(threads)).contains(&stage.task.instances), "{stage:#?}");
        }
    }
}

#[test]
fn each_thread_that_runs_a_task_makes_an_instance() {
    let folder = Folder::new();
    // Twelve tasks of 50 ms: with four threads at work, the run takes only 150 ms.
    let document = folder.document(&json!({
        "threads": 4,
        "source": { "range": { "count": 12 } },
        "stages": [{ "sleep": { "mean_ms": 50, "on": "thread", "concurrency": 4 } }]
    }));
    let snapshot = Call::run(&document).json().finish().exits(0).snapshot();
    assert_eq!(snapshot.stages[0].task.instances, 4, "{:#?}", snapshot.stages[0]);
}

#[test]
fn a_stateful_stage_has_one_instance_for_any_number_of_threads() {
    let folder = Folder::new();
    folder.records(["a", "b", "c", "d", "e"]);
    let document = folder.document(&json!({
        "threads": 4,
        "source": { "records": { "store": "here", "key": "records.ndjson", "epochs": 3 } },
        "stages": [{ "wasm": { "module": "buffer" } }]
    }));
    let call = Call::run(&document).store("here", folder.path()).module("buffer", "guest-stateful").json();
    let snapshot = call.finish().exits(0).snapshot();
    assert_eq!((snapshot.stages[0].task.instances, snapshot.ledger.total.delivered), (1, 15));
}

#[test]
fn runs_of_one_process_share_code_and_no_instance() {
    let folder = Folder::new();
    folder.records(["a", "b", "c"]);
    let spec = Spec::from_value(json!({
        "threads": 1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "wasm": { "module": "guest", "params": { "how": "count" } } }]
    }))
    .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let runner = runner(runtime.handle(), folder.path());
    let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
    for _ in 0..3 {
        let run = runtime.block_on(prepared.start(None, RunEnds::default())).unwrap();
        let snapshot = run.wait().snapshot;
        assert_eq!((snapshot.stages[0].task.instances, snapshot.ledger.total.delivered), (1, 3));
        assert_eq!(snapshot.counters["1:guest"]["seen"], 3.0 * 2.5, "counters of runs are separate");
    }
}

fn runner(runtime: &tokio::runtime::Handle, store: &Path) -> Runner {
    let mut stores = Stores::default();
    stores.add_folder("here", store).unwrap();
    let settings = SandboxSettings { instances: 4, ..SandboxSettings::default() };
    let mut modules = Modules::new(Sandbox::new(settings).unwrap());
    let code = std::fs::read(penstock_tests::module("guest-misbehaving")).unwrap();
    modules.add("guest", &code).unwrap();
    Runner::new(runtime.clone(), stores, modules)
}
