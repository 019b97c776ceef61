//! Misbehaving modules in whole runs: each failure names the module, the run ends according to its policy, the ledger balances,
//! and the samples around the bad one succeed.

use std::path::{Path, PathBuf};

use penstock_tests::{Call, Finished, Folder, lines, shown};
use penstock_types::run::{Disposition, FailureRecord, RunSnapshot, RunState};
use serde_json::json;

/// Two samples before the one at which kinds with the suffix `-on-bad` misbehave, and two after it.
const KEYS: [&str; 5] = ["a", "b", "bad", "c", "d"];

/// A folder with the records and a document whose only stage is the misbehaving guest.
fn prepared(how: &str, on_error: &str) -> (Folder, PathBuf) {
    let folder = Folder::new();
    folder.records(KEYS);
    // Long enough for all kinds except the loop: the wall-clock limit of a call is ten times the deadline, and the machine may be
    // busy.
    let deadline_ms = if how.starts_with("init") { 50 } else { 500 };
    let document = folder.document(&json!({
        "name": "misbehaving",
        "threads": 1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "wasm": {
            "module": "guest", "params": { "how": how }, "deadline_ms": deadline_ms, "on_error": on_error
        } }]
    }));
    (folder, document)
}

fn run(folder: &Folder, document: &Path) -> Finished {
    let call = Call::run(document).store("here", folder.path()).module("guest", "guest-misbehaving");
    call.out(&folder.join("out")).finish()
}

/// Error on standard error, without the log lines of the guest.
fn told(finished: &Finished) -> &str {
    finished.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default()
}

/// Runs a guest that misbehaves on the third of five samples, once with each policy that needs no output folder.
fn on_one_sample(how: &str) -> String {
    let how = format!("{how}-on-bad");
    let (folder, document) = prepared(&how, "skip");
    let skipping = run(&folder, &document).exits(0);
    let snapshot = skipping.snapshot();
    assert_eq!((snapshot.state, delivered(&snapshot)), (RunState::Completed, 4));
    assert_eq!(snapshot.ledger.total.skipped, 1);
    // The thread created a first instance, and one that replaced it.
    assert_eq!(snapshot.stages[0].task.instances, 2);
    let errors: Vec<FailureRecord> = lines(&folder.join("out/errors.ndjson"));
    assert_eq!((errors.len(), errors[0].key.as_str(), errors[0].index), (1, "bad", 2));
    assert_eq!(errors[0].disposition, Disposition::Skipped);

    let (folder, document) = prepared(&how, "fail");
    let failing = run(&folder, &document).exits(1);
    let snapshot = failing.snapshot();
    assert_eq!(
        (snapshot.state, delivered(&snapshot)),
        (RunState::Failed, 2),
        "finished samples are delivered"
    );
    assert_eq!(failing.section("Failures"), skipping.section("Failures"));
    format!("skip: {}\nfail: {}", skipping.section("Failures"), told(&failing))
}

fn delivered(snapshot: &RunSnapshot) -> u64 {
    snapshot.ledger.total.delivered
}

macro_rules! on_one_sample {
    ($($test:ident($how:literal);)*) => {
        $(
            #[test]
            fn $test() {
                shown().bind(|| insta::assert_snapshot!(on_one_sample($how)));
            }
        )*
    };
}

on_one_sample! {
    a_loop_is_ended_at_its_deadline("loop");
    a_memory_bomb_is_stopped_at_its_limit("memory");
    deep_recursion_exhausts_the_guests_stack_alone("recursion");
    a_trap_is_reported("trap");
    a_panic_is_reported_with_its_message_and_location("panic");
    too_few_outcomes_break_the_contract("too-few");
    too_many_outcomes_break_the_contract("too-many");
    a_tensor_whose_bytes_and_shape_disagree_breaks_the_contract("shape");
    huge_output_breaks_the_contract("huge");
    a_bomb_of_children_breaks_the_contract("many-bomb");
    held_without_stateful_breaks_the_contract("held");
}

#[test]
fn the_data_of_one_sample_is_limited_by_the_stage() {
    let (folder, document) = prepared("huge-on-bad", "fail");
    let call = |mib: u32| {
        let call = Call::run(&document).store("here", folder.path()).module("guest", "guest-misbehaving");
        call.set(&format!("/stages/0/wasm/output_mib={mib}")).argument("--json").finish()
    };
    assert_eq!(delivered(&call(130).exits(0).snapshot()), 5);
    let failing = call(64).exits(1);
    assert!(
        told(&failing).ends_with("returned more than 64 MiB in one call (`output_mib` per sample)"),
        "{failing:?}"
    );
    let refused = call(1025).exits(2);
    assert!(
        refused
            .stderr
            .contains("/stages/0/wasm/output_mib: found `1025`, expected a whole number from 1 to 1024"),
        "{refused:?}"
    );
}

/// Runs a guest that cannot start, and checks that no sample is taken from the source, not even with the policy `skip`.
fn in_init(how: &str) -> String {
    let (folder, document) = prepared(how, "skip");
    let finished = run(&folder, &document).exits(1);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.state, snapshot.ledger.total.made), (RunState::Failed, 0));
    assert!(snapshot.failures.is_empty(), "{:?}", snapshot.failures);
    told(&finished).to_owned()
}

#[test]
fn a_loop_in_init_ends_the_run_before_anything_is_taken() {
    shown().bind(|| insta::assert_snapshot!(in_init("init-loop")));
}

#[test]
fn a_trap_in_init_ends_the_run_before_anything_is_taken() {
    shown().bind(|| insta::assert_snapshot!(in_init("init-trap")));
}

#[test]
fn a_refusal_of_init_is_reported_without_control_characters() {
    shown().bind(|| insta::assert_snapshot!(in_init("init-error")));
}

#[test]
fn a_guest_that_traps_on_every_sample_gets_a_fresh_instance_for_each() {
    let (folder, document) = prepared("trap", "skip");
    let finished = run(&folder, &document).exits(1);
    let snapshot = finished.snapshot();
    assert_eq!((delivered(&snapshot), snapshot.ledger.total.skipped), (0, 5));
    assert_eq!(snapshot.stages[0].task.instances, 5);
    shown().bind(|| insta::assert_snapshot!(finished.section("Failures")));
}

#[test]
fn a_log_flood_fails_no_sample_and_is_truncated() {
    let (folder, document) = prepared("log-flood", "skip");
    let call = Call::run(&document).store("here", folder.path()).module("guest", "guest-misbehaving");
    let finished = call.set("/stages/0/wasm/deadline_ms=5000").out(&folder.join("out")).finish().exits(0);
    assert_eq!(delivered(&finished.snapshot()), 5);
    // The limit is 64 KiB per call, and a line counts as at least 256 bytes; the guest wrote 100,000 lines in each call.
    assert_eq!(finished.stderr.lines().count(), 5 * 256 + 1);
    let last = finished.stderr.lines().last();
    assert_eq!(last, Some("[1:guest] logged too much: 498,720 lines were dropped"));
    shown().bind(|| insta::assert_snapshot!(finished.stderr.lines().next().unwrap_or_default()));
}

/// Calls `penstock run` with a file that is not a stage, which is refused as bad input before a run starts.
fn as_module(path: &Path) -> String {
    let (folder, document) = prepared("good", "skip");
    let call = Call::run(&document).store("here", folder.path()).module_at("guest", path);
    let finished = call.out(&folder.join("out")).finish().exits(2);
    assert!(finished.stdout.is_empty(), "{}", finished.stdout);
    assert!(!folder.join("out").exists(), "no run was started");
    finished.stderr
}

/// A core module with WIT types and these imports, as text.
fn made_of(imports: &str) -> (Folder, PathBuf) {
    let folder = Folder::new();
    let text = format!(
        r#"(module (@custom "component-type:stage" "") {imports}
            (func (export "penstock:stage/transform@0.1.0#process")))"#
    );
    let path = folder.write("made.wasm", wat::parse_str(text).unwrap());
    (folder, path)
}

#[test]
fn an_import_that_the_sandbox_does_not_offer_is_named() {
    let refused = as_module(&penstock_tests::module("guest-extra-import"));
    shown().bind(|| insta::assert_snapshot!(refused));
}

#[test]
fn symbols_that_the_linker_missed_are_named() {
    let (_folder, path) = made_of(r#"(import "env" "inflate" (func))"#);
    shown().bind(|| insta::assert_snapshot!(as_module(&path)));
}

#[test]
fn a_component_of_another_world_is_named_by_its_exports() {
    let refused = as_module(&penstock_tests::module("guest-wrong-world"));
    shown().bind(|| insta::assert_snapshot!(refused));
}

#[test]
fn a_truncated_module_is_refused() {
    let folder = Folder::new();
    let whole = std::fs::read(penstock_tests::module("guest-batch")).unwrap();
    let half = folder.write("half.wasm", &whole[..5000]);
    shown().bind(|| insta::assert_snapshot!(as_module(&half)));
}
