use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use penstock_engine::item::Item;
use penstock_engine::running::{StopReason, Taken};
use penstock_types::run::RunState;
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use tokio::runtime::Runtime;

use super::*;
use crate::modules::Modules;
use crate::prepare::Outlets;
use crate::run::Run;
use crate::runner::{RunEnds, Runner, cores};
use crate::stores::Stores;

const LONG: Duration = Duration::from_secs(60);
/// Number of random changes in a run.
const CHANGES: u32 = 1_000;

#[test]
fn memory_is_short_when_tasks_wait_for_it_in_the_last_second() {
    let quarter = 250_000_000;
    let mut watch = MemoryWatch::default();
    // A tenth of a second of waits in all, at once, and before a pause without readings none.
    let short: Vec<bool> = [0, 0, 0, 100_000, 100_000, 100_000, 100_000, 100_000]
        .into_iter()
        .zip(0..)
        .map(|(waited, time)| watch.is_short(time * quarter, Some(5_000_000 + waited)))
        .collect();
    assert_eq!(short, [false, false, false, true, true, true, false, false]);
    assert!(!watch.is_short(100 * quarter, Some(5_130_000)), "30 ms in 23 s");
    assert!(!watch.is_short(101 * quarter, None));
}

/// A run with failures, and with a route that keeps the order of its samples; the test takes its batches.
fn started(runtime: &Runtime, folder: &Path) -> Run {
    let line =
        |number: usize| format!("{{\"key\": \"{number}\", \"kind\": \"{}\"}}\n", ["a", "b", "c"][number % 3]);
    fs::write(folder.join("lines.ndjson"), (0..31).map(line).collect::<String>()).unwrap();
    let nap = |on: &str| json!({ "sleep": { "mean_ms": 0.05, "jitter": 1, "on": on, "order": "input", "fail_rate": 0.05 } });
    let paths = json!({ "a": [nap("thread"), nap("async")], "b": [nap("thread")] });
    let document = json!({
        "source": { "records": { "store": "here", "key": "lines.ndjson", "epochs": null } },
        "seed": 7, "threads": 3, "max_failures": null,
        "stages": [
            nap("async"),
            { "route": { "by": { "field": "kind" }, "paths": paths, "else": [], "order": "input" } },
            nap("thread"),
            { "aggregate": { "size": 3 } },
        ],
    });
    let mut stores = Stores::default();
    stores.add_folder("here", folder).unwrap();
    let modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    let prepared = runner.prepare(&Spec::from_value(document).unwrap(), Outlets::ALL).unwrap();
    let ends = RunEnds { is_taken: true, max_held: 4, ..RunEnds::default() };
    runtime.block_on(prepared.start(None, ends)).unwrap()
}

/// Keys of the samples of the next batches, while `go_on` returns true for their number.
fn taken(run: &Run, mut go_on: impl FnMut(usize) -> bool) -> Vec<String> {
    let mut keys = Vec::new();
    while go_on(keys.len()) {
        let Taken::Item(Item::Batch(samples)) = run.handle.take(LONG) else { panic!("a batch comes") };
        keys.extend(samples.into_iter().map(|sample| format!("{} of {}", sample.key, sample.origin.epoch)));
    }
    keys
}

#[test]
fn random_changes_of_a_run_lose_nothing_and_keep_the_order() {
    let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let run = started(&runtime, folder.path());
    let is_over = AtomicBool::new(false);
    let mut made = 0;
    let keys = thread::scope(|scope| {
        scope.spawn(|| {
            let settings = run.facts().settings.all();
            let mut held: BTreeMap<_, _> =
                settings.iter().map(|setting| (setting.pointer.to_string(), setting.value)).collect();
            let mut state = 9_u64;
            for number in 0..CHANGES {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let setting = &settings[(state >> 33) as usize % settings.len()];
                let value = 1 + (state >> 40) as u32 % setting.most.min(9);
                let pointer = setting.pointer.to_string();
                run.set(&BTreeMap::from([(pointer.clone(), value)]), "a test").unwrap();
                made += usize::from(held.insert(pointer, value) != Some(value));
                if number % 8 == 0 {
                    thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Release);
        });
        taken(&run, |samples| samples < 1_000 || !is_over.load(Ordering::Acquire))
    });
    let (settings, changes) = (run.facts().settings.all(), run.facts().settings.changes());
    run.handle.stop(StopReason::Asked);
    let ended = run.wait().snapshot;
    assert_eq!((ended.state, ended.ledger.balanced), (RunState::Stopped, true), "{:#?}", ended.ledger);
    assert_eq!(changes.len(), made, "a value that holds already is no change");
    for setting in settings {
        let last =
            changes.iter().rev().find(|change| change.pointer == setting.pointer).map(|change| change.to);
        assert_eq!(last.unwrap_or(setting.value), setting.value, "{}", setting.pointer);
    }
    let undisturbed = started(&runtime, folder.path());
    assert_eq!(taken(&undisturbed, |samples| samples < keys.len()), keys);
    undisturbed.handle.stop(StopReason::Asked);
    undisturbed.wait();
}

#[test]
fn a_refused_change_changes_nothing() {
    let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let run = started(&runtime, folder.path());
    let settings = &run.facts().settings;
    let before = settings.all();
    let refuse = |plan: &Plan| {
        assert_eq!(plan.stages[0].concurrency.get(), 5);
        Err(SetFault::Threads { value: 1, threads: 1 })
    };
    let values = BTreeMap::from([("/stages/0/sleep/concurrency".to_owned(), 5)]);
    let refused = settings.set(&run.handle, &MonotonicClock::start(), &values, "a test", refuse);
    assert_eq!(refused, Err(SetFault::Threads { value: 1, threads: 1 }));
    assert_eq!((settings.all(), settings.changes().len()), (before, 0));
    run.handle.stop(StopReason::Asked);
    run.wait();
}

#[test]
fn each_change_is_recorded_until_no_more_are_made() {
    let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let run = started(&runtime, folder.path());
    let set = |value| run.set(&BTreeMap::from([("/stages/0/sleep/concurrency".to_owned(), value)]), "a test");
    (0..CHANGES).for_each(|number| set(5 + number % 2).unwrap());
    assert_eq!(set(7), Err(SetFault::TooMany));
    assert_eq!(run.facts().settings.changes().len() as u32, CHANGES);
    run.handle.stop(StopReason::Asked);
    run.wait();
}

#[test]
fn a_number_of_threads_that_the_document_leaves_open_is_kept_for_the_next_run() {
    let runtime = Runtime::new().unwrap();
    let modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    let runner = Runner::new(runtime.handle().clone(), Stores::default(), modules);
    let document = json!({ "source": { "range": { "count": 9, "epochs": null } }, "stages": [{ "sleep": { "mean_ms": 1 } }] });
    let prepared = || runner.prepare(&Spec::from_value(document.clone()).unwrap(), Outlets::ALL).unwrap();
    let ends = RunEnds { is_taken: true, max_held: 4, ..RunEnds::default() };
    let run = runtime.block_on(prepared().start(None, ends)).unwrap();
    run.set(&BTreeMap::from([("/threads".to_owned(), 1)]), "a test").unwrap();
    let changed = run.facts().settings.changed();
    run.handle.stop(StopReason::Asked);
    run.wait();
    let mut next = prepared();
    next.take_over(changed);
    assert_eq!(next.plan.threads, (cores() > 1).then_some(1));
}

#[test]
fn a_change_by_a_user_is_measured() {
    let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let run = started(&runtime, folder.path());
    let rates = || run.facts().settings.changes().last().map(|change| (change.before, change.measured));
    // The second change comes when the first one was measured, so that there is a rate before it.
    for value in [2, 3] {
        run.set(&BTreeMap::from([("/sink/queue".to_owned(), value)]), "a test").unwrap();
        let is_measured = || rates().is_some_and(|(_, measured)| measured.is_some());
        taken(&run, |_| !is_measured() && run.snapshot().elapsed_s < LONG.as_secs_f64());
    }
    let (before, measured) = rates().unwrap();
    assert!(before.is_some_and(|rate| rate > 0.0) && measured.is_some_and(|rate| rate > 0.0));
    run.handle.stop(StopReason::Asked);
    run.wait();
}
