//! Hostile modules, files and machines, against the whole binary. Tests by kind of attack, here and elsewhere (`sandbox` and
//! `interrupt` are beside this file; `failures`, `uploads`, `modes`, `carried`, `stop` and `cache` in `runner/wasm/tests`; `gate`
//! and `component` in `runner/wasm/src`; `answers`, `tenants` and `corpus` in `tests/fuzz`):
//!
//! | Input | Tests |
//! |---|---|
//! | a loop in a sample | `sandbox::a_loop_is_ended_at_its_deadline` |
//! | a loop at the start, in `init`, in the allocator | `a_start_function_that_loops_*`, `sandbox::a_loop_in_init_*`, `an_allocator_that_loops_*` |
//! | a loop of host calls | `failures::a_loop_of_host_calls_*`, `ctrl_c_ends_a_guest_that_only_calls_the_host` |
//! | filling memory in an endless loop | `filling_memory_in_a_loop_*` |
//! | recursion, also through the host | `sandbox::deep_recursion_*`, `recursion_through_the_host_*` |
//! | unbounded memory | `sandbox::a_memory_bomb_is_stopped_at_its_limit` |
//! | memories and tables too large | `memory_that_is_too_large_from_the_start_*`, `gate::large_tables_*`, `limits::*` |
//! | every kind of trap | `each_kind_of_trap_has_its_own_message`, `failures::*` |
//! | a panic with a message | `sandbox::a_panic_is_reported_with_its_message_and_location` |
//! | a trap in the middle of a batch | `a_trap_in_the_middle_fails_its_sample_and_keeps_the_order`, `modes::*` |
//! | a trap on every sample | `a_storm_of_traps_*`, `sandbox::a_guest_that_traps_on_every_sample_*` |
//! | calls after a trap or a deadline | all of `sandbox`, `failures` and `answers`: the next sample succeeds |
//! | wrong pointers, lengths, overlaps, a lying allocator | `answers::*`, `corpus::answers_*` |
//! | too few, too many, empty | `sandbox::too_few_*`, `sandbox::too_many_*`, `failures::empty_values_*` |
//! | impossible tensors | `failures::{a_shape_that_overflows, rank_200, nan_payloads}_*`, `answers::discriminants_*` |
//! | an answer of a million small values | `time_to_read_an_answer_counts_towards_the_deadline` |
//! | bombs of output and of children | `sandbox::huge_output_*`, `sandbox::a_bomb_of_children_*`, `carried::*` |
//! | input changed while it is read | memory is never shared; `gate::large_tables_and_other_memories_*` |
//! | floods, long lines, escapes, invalid UTF-8 in the log | `sandbox::a_log_flood_*`, `failures::{a_long_line, log_lines}_*`, `text_that_is_not_utf8_*` |
//! | unbounded counters | `failures::an_undeclared_counter_*` |
//! | files that are not stages | `component::*`, `uploads::*`, `sandbox::*_named*` |
//! | compile bombs, the cache | `gate::*`, `cache::*` |
//! | two tenants on one worker | `tenants::*` |
//! | malformed documents and parameters | all of `malformed` |
//! | a module replaced while it runs | `a_module_that_is_replaced_while_it_runs_*` |
//! | a stop at any moment | `interrupt::*`, `ctrl_c_*` |
//! | paths that lead out of the store | `no_key_leads_out_of_its_store` |
//! | a full disk | `a_full_disk_*`, `standard_output_that_is_full_*` |

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_fuzz::{Encoding, typed, with_manifest};
use penstock_tests::{Call, Finished, Folder, lines, shown};
use penstock_types::run::{FailureRecord, RunSnapshot, RunState, Window};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Maximum time between Ctrl-C and the end of the process, in seconds.
const STOP_S: f64 = 3.0;

/// A module that keeps every sample unchanged, and runs the code `misdeed` before it keeps a sample whose key has three letters.
/// `parts` are added to the module, e.g. its memory.
fn guest(parts: &str, misdeed: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "penstock:stage/host@0.1.0" "log" (func $log (param i32 i32 i32)))
            {parts}
            (global $free (mut i32) (i32.const 0x1000))
            (global $spins (mut i32) (i32.const 0))
            (func (export "cabi_realloc") (param i32 i32) (param $align i32) (param $size i32) (result i32)
                (if (global.get $spins) (then (loop (br 0))))
                (global.set $free (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                (global.get $free)
                (global.set $free (i32.add (global.get $free) (local.get $size))))
            (func (export "penstock:stage/transform@0.1.0#init") (param i32 i32) (result i32) (i32.const 0))
            (func (export "penstock:stage/transform@0.1.0#process") (param $items i32) (param i32) (result i32)
                (if (i32.eq (i32.load offset=4 (local.get $items)) (i32.const 3)) (then {misdeed}))
                (global.set $free (i32.const 0x1000))
                ;; A list of one outcome, `keep`, of the item as it came in.
                (i32.store (i32.const 0x100) (i32.const 0x110))
                (i32.store (i32.const 0x104) (i32.const 1))
                (memory.copy (i32.const 0x118) (local.get $items) (i32.const 24))
                (i32.const 0x100))
            (func (export "penstock:stage/transform@0.1.0#finish") (result i32) (i32.const 0)))"#
    );
    with_manifest(typed(&text, Encoding::UTF8), br#"{"name":"hostile","version":"1"}"#)
}

const MEMORY: &str = r#"(memory (export "memory") 1)"#;

/// A folder with records of these keys, a module, and a document that runs them through it.
fn prepared<'a>(keys: impl IntoIterator<Item = &'a str>, module: &[u8]) -> (Folder, PathBuf) {
    let folder = Folder::new();
    folder.records(keys);
    folder.write("guest.wasm", module);
    let document = folder.document(&json!({
        "name": "hostile", "threads": 1, "interval_s": 0.1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "wasm": { "module": "guest", "deadline_ms": 500, "order": "input" } }]
    }));
    (folder, document)
}

fn call(folder: &Folder, document: &Path) -> Call {
    let call =
        Call::run(document).store("here", folder.path()).module_at("guest", &folder.join("guest.wasm"));
    call.out(&folder.join("out"))
}

/// Runs a module that misbehaves on the third of five samples, and checks that two instances deliver the others.
fn costs_one_sample(module: &[u8]) -> String {
    let (folder, document) = prepared(["a", "b", "bad", "d", "e"], module);
    let finished = call(&folder, &document).finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.ledger.total.delivered, snapshot.ledger.total.skipped), (4, 1));
    assert_eq!(snapshot.stages[0].task.instances, 2);
    finished.section("Failures")
}

/// Runs a module that cannot start, and checks that no sample is taken from the source.
fn cannot_start(module: &[u8]) -> String {
    let (folder, document) = prepared(["a"], module);
    let finished = call(&folder, &document).finish().exits(1);
    assert_eq!(finished.snapshot().ledger.total.made, 0);
    // The number of progress lines depends on the machine.
    let told = finished.stderr.lines().filter(|line| !line.starts_with("hostile running:"));
    told.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_start_function_that_loops_ends_the_run_before_anything_is_taken() {
    let told = cannot_start(&guest(&format!("{MEMORY} (func $loop (loop (br 0))) (start $loop)"), ""));
    insta::assert_snapshot!(told, @r#"
    error: the run failed: stage `1:guest` cannot start: could not start: exceeded its deadline of 5000 ms CPU time (10 x `deadline_ms`, but at least 1000 ms)
    "#);
}

#[test]
fn memory_that_is_too_large_from_the_start_is_refused_with_its_limit() {
    let told = cannot_start(&guest(r#"(memory (export "memory") 8192)"#, ""));
    insta::assert_snapshot!(told, @"error: the run failed: stage `1:guest` cannot start: could not start: requested 512 MiB of memory, but the limit is 256 MiB (`memory_mib`)");
}

#[test]
fn an_allocator_that_loops_is_ended_like_any_other_code() {
    // The allocator loops when the sample after the third is passed in; that sample is the one that fails.
    insta::assert_snapshot!(costs_one_sample(&guest(MEMORY, "(global.set $spins (i32.const 1))")), @"1 x [1:guest] bug: exceeded its deadline of 500 ms CPU time per sample (`deadline_ms`) (d)");
}

#[test]
fn filling_memory_in_a_loop_is_ended_at_the_deadline() {
    let misdeed = "(loop (memory.fill (i32.const 0) (i32.const 7) (i32.const 0xff00000)) (br 0))";
    insta::assert_snapshot!(costs_one_sample(&guest(r#"(memory (export "memory") 4080)"#, misdeed)), @"1 x [1:guest] bug: exceeded its deadline of 500 ms CPU time per sample (`deadline_ms`) (bad)");
}

/// Answers with 6,000 children that share one list of 250 small fields: little work for the guest, 1.5 million fields for the
/// host.
const MILLION_FIELDS: &str = r"
    (loop $fields
        (global.set $name (i32.add (i32.const 0x8000) (i32.mul (global.get $n) (i32.const 2))))
        (i32.store8 (global.get $name) (i32.add (i32.const 97) (i32.div_u (global.get $n) (i32.const 16))))
        (i32.store8 offset=1 (global.get $name) (i32.add (i32.const 97) (i32.rem_u (global.get $n) (i32.const 16))))
        (global.set $at (i32.add (i32.const 0x10000) (i32.mul (global.get $n) (i32.const 40))))
        (i32.store (global.get $at) (global.get $name))
        (i32.store offset=4 (global.get $at) (i32.const 2))
        (i32.store8 offset=8 (global.get $at) (i32.const 1)) ;; a text
        (i32.store offset=16 (global.get $at) (global.get $name))
        (i32.store offset=20 (global.get $at) (i32.const 1))
        (global.set $n (i32.add (global.get $n) (i32.const 1)))
        (br_if $fields (i32.lt_u (global.get $n) (i32.const 250))))
    (global.set $n (i32.const 0))
    (loop $items
        (global.set $at (i32.add (i32.const 0x20000) (i32.mul (global.get $n) (i32.const 24))))
        (i32.store (global.get $at) (i32.const 0x8000))
        (i32.store offset=4 (global.get $at) (i32.const 2))
        (i32.store offset=16 (global.get $at) (i32.const 0x10000))
        (i32.store offset=20 (global.get $at) (i32.const 250))
        (global.set $n (i32.add (global.get $n) (i32.const 1)))
        (br_if $items (i32.lt_u (global.get $n) (i32.const 6000))))
    (i32.store (i32.const 0x100) (i32.const 0x110))
    (i32.store (i32.const 0x104) (i32.const 1))
    (i32.store8 (i32.const 0x110) (i32.const 2)) ;; `many`
    (i32.store (i32.const 0x118) (i32.const 0x20000))
    (i32.store (i32.const 0x11c) (i32.const 6000))
    (return (i32.const 0x100))";

#[test]
fn time_to_read_an_answer_counts_towards_the_deadline() {
    let parts = r#"(memory (export "memory") 8)
        (global $n (mut i32) (i32.const 0)) (global $at (mut i32) (i32.const 0)) (global $name (mut i32) (i32.const 0))"#;
    let (folder, document) = prepared(["a", "b", "bad", "d", "e"], &guest(parts, MILLION_FIELDS));
    let finished = call(&folder, &document).set("/stages/0/wasm/deadline_ms=50").finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.ledger.total.delivered, snapshot.ledger.total.skipped), (4, 1));
    // On a busy machine the limit in wall-clock time may expire first, so only this part of the message is checked.
    let told = finished.section("Failures");
    assert!(told.contains("its deadline of 50 ms CPU time per sample (`deadline_ms`)"), "{told}");
}

#[test]
fn recursion_through_the_host_exhausts_the_guests_stack_alone() {
    let parts = format!(
        "{MEMORY} (func $dive (param i32) (result i32)
            (call $log (i32.const 0) (i32.const 0x200) (i32.const 4))
            (i32.add (call $dive (i32.add (local.get 0) (i32.const 1))) (local.get 0)))"
    );
    let misdeed = "(drop (call $dive (i32.const 0)))";
    insta::assert_snapshot!(costs_one_sample(&guest(&parts, misdeed)), @"1 x [1:guest] bug: stack exhausted: recursion too deep; in `function 0` < `dive` x31 (bad)");
}

#[test]
fn each_kind_of_trap_has_its_own_message() {
    let table = format!(
        "{MEMORY} (type $of_i64 (func (param i64))) (func $of_nothing) (table 2 funcref) (elem (i32.const 0) $of_nothing)"
    );
    let told: Vec<String> = [
        "unreachable",
        "(drop (i32.div_s (i32.const 1) (i32.load (i32.const 0x300))))",
        "(drop (i32.div_s (i32.const 0x80000000) (i32.sub (i32.load (i32.const 0x300)) (i32.const 1))))",
        "(drop (i32.trunc_f64_s (f64.const nan)))",
        "(drop (i32.load (i32.const -4)))",
        "(memory.fill (i32.const 0xffff) (i32.const 0) (i32.const 2))",
        "(call_indirect (type $of_i64) (i64.const 0) (i32.const 0))",
        "(call_indirect (type $of_i64) (i64.const 0) (i32.const 1))",
        "(call_indirect (type $of_i64) (i64.const 0) (i32.const 2))",
    ]
    .iter()
    .map(|misdeed| format!("{misdeed}\n  {}", costs_one_sample(&guest(&table, misdeed))))
    .collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    unreachable
      1 x [1:guest] bug: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one); in `function 4` (bad)
    (drop (i32.div_s (i32.const 1) (i32.load (i32.const 0x300))))
      1 x [1:guest] bug: divided by zero; in `function 4` (bad)
    (drop (i32.div_s (i32.const 0x80000000) (i32.sub (i32.load (i32.const 0x300)) (i32.const 1))))
      1 x [1:guest] bug: trapped: integer overflow; in `function 4` (bad)
    (drop (i32.trunc_f64_s (f64.const nan)))
      1 x [1:guest] bug: trapped: invalid conversion to integer; in `function 4` (bad)
    (drop (i32.load (i32.const -4)))
      1 x [1:guest] bug: accessed memory out of bounds: a bad pointer or index; in `function 4` (bad)
    (memory.fill (i32.const 0xffff) (i32.const 0) (i32.const 2))
      1 x [1:guest] bug: accessed memory out of bounds: a bad pointer or index; in `function 4` (bad)
    (call_indirect (type $of_i64) (i64.const 0) (i32.const 0))
      1 x [1:guest] bug: trapped: indirect call type mismatch; in `function 4` (bad)
    (call_indirect (type $of_i64) (i64.const 0) (i32.const 1))
      1 x [1:guest] bug: trapped: uninitialized element; in `function 4` (bad)
    (call_indirect (type $of_i64) (i64.const 0) (i32.const 2))
      1 x [1:guest] bug: trapped: undefined element: out of bounds table access; in `function 4` (bad)
    "#);
}

#[test]
fn text_that_is_not_utf8_is_not_logged() {
    let log = |address: &str, length: &str| {
        let parts = format!(r#"{MEMORY} (data (i32.const 0x200) "caf\ff")"#);
        costs_one_sample(&guest(
            &parts,
            &format!("(call $log (i32.const 1) (i32.const {address}) (i32.const {length}))"),
        ))
    };
    let level = costs_one_sample(&guest(MEMORY, "(call $log (i32.const 9) (i32.const 0) (i32.const 0))"));
    let told = [log("0x200", "4"), log("0x200", "-1"), log("-4", "4"), level];
    insta::assert_snapshot!(told.join("\n"), @r#"
    1 x [1:guest] contract: returned values that cannot be read: invalid utf-8 sequence of 1 bytes from index 3; in `function 0` < `function 3` (bad)
    1 x [1:guest] contract: returned values that cannot be read: string pointer/length out of bounds of memory; in `function 0` < `function 3` (bad)
    1 x [1:guest] contract: returned values that cannot be read: string pointer/length out of bounds of memory; in `function 0` < `function 3` (bad)
    1 x [1:guest] contract: returned values that cannot be read: unexpected discriminant: 9; in `function 0` < `function 3` (bad)
    "#);
}

#[test]
fn a_trap_in_the_middle_fails_its_sample_and_keeps_the_order() {
    let keys: Vec<String> =
        (0..32).map(|number| if number == 7 { "bad".into() } else { format!("{number:02}") }).collect();
    let (folder, document) = prepared(keys.iter().map(String::as_str), &guest(MEMORY, "unreachable"));
    let mut pipeline: Value = serde_json::from_slice(&fs::read(&document).unwrap()).unwrap();
    pipeline["threads"] = json!(2);
    pipeline["stages"][0]["wasm"]["concurrency"] = json!(4);
    // The file of each batch shows the samples and their order.
    let stages = pipeline["stages"].as_array_mut().unwrap();
    stages.extend([json!({ "aggregate": { "size": 32 } }), json!({ "collate": {} })]);
    pipeline["consumer"] = json!({ "files": { "store": "here", "prefix": "delivered" } });
    folder.document(&pipeline);
    call(&folder, &document).finish().exits(0).snapshot();
    let file = fs::read(folder.join("delivered/batch-00000000.safetensors")).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let told: Value = serde_json::from_str(header["__metadata__"]["penstock"].as_str().unwrap()).unwrap();
    let expected: Vec<&String> = keys.iter().filter(|key| *key != "bad").collect();
    assert_eq!(told["keys"], json!(expected));
    let errors: Vec<FailureRecord> = lines(&folder.join("out/errors.ndjson"));
    assert_eq!(errors.iter().map(|error| &*error.key).collect::<Vec<_>>(), ["bad"]);
}

#[test]
fn a_storm_of_traps_ends_by_policy_and_is_reported_once() {
    let mut keys = vec!["bad"; 20_000];
    keys.push("good");
    let (folder, document) = prepared(keys, &guest(MEMORY, "unreachable"));
    let finished = call(&folder, &document).set("/max_failures=null").finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!((snapshot.ledger.total.skipped, snapshot.failures.len()), (20_000, 1));
    // On a busy machine, a run also prints its progress every few seconds.
    let is_progress = |line: &str| line.starts_with("hostile running: ");
    assert!(finished.stderr.lines().all(is_progress), "{}", finished.stderr);
    assert!(finished.stdout.lines().count() < 40, "{}", finished.stdout);

    fs::remove_dir_all(folder.join("out")).unwrap();
    let finished = call(&folder, &document).set(r#"/max_failures={"count":100}"#).finish().exits(1);
    assert!((101..=110).contains(&finished.snapshot().ledger.total.skipped));
    insta::assert_snapshot!(finished.stderr, @"error: the run failed: run: 101 failed samples, `max_failures` allows 100");

    fs::remove_dir_all(folder.join("out")).unwrap();
    let finished = call(&folder, &document).finish().exits(1);
    assert!(finished.snapshot().ledger.total.made < 1_100, "the rate is checked after 1,000 samples");
    assert!(finished.stderr.contains("samples failed, which is more than 5 %"), "{}", finished.stderr);
}

#[test]
fn a_module_that_is_replaced_while_it_runs_keeps_its_old_code() {
    // The second-last sample breaks its instance, so that the last sample needs a new instance.
    let mut keys = vec!["a"; 200];
    keys.extend(["bad", "z"]);
    let module = guest(MEMORY, "unreachable");
    let (folder, document) = prepared(keys, &module);
    let mut pipeline: Value = serde_json::from_slice(&fs::read(&document).unwrap()).unwrap();
    pipeline["stages"].as_array_mut().unwrap().insert(0, json!({ "sleep": { "mean_ms": 4 } }));
    folder.document(&pipeline);
    let call = call(&folder, &document);
    let child = going(&call, &folder);
    folder.write("guest.wasm", b"something else");
    let replaced = call.finished(child).exits(0).snapshot();
    assert_eq!((replaced.ledger.total.delivered, replaced.ledger.total.skipped), (201, 1));
    assert_eq!(replaced.stages[1].task.instances, 2);

    folder.write("guest.wasm", &module);
    fs::remove_dir_all(folder.join("out")).unwrap();
    let untouched = call.finish().exits(0).snapshot();
    assert_eq!(replaced.modules, untouched.modules);
}

/// Starts a run and waits until its first window is written to `--out`.
fn going(call: &Call, folder: &Folder) -> Child {
    let mut child = call.start();
    let windows = folder.join("out/windows.ndjson");
    while fs::metadata(&windows).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before its first window");
        sleep(Duration::from_millis(5));
    }
    child
}

/// Interrupts a run, which must end soon, without failures, and with a balanced ledger.
fn stopped(call: &Call, child: Child) -> RunSnapshot {
    let clock = MonotonicClock::start();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let snapshot = call.finished(child).exits(130).snapshot();
    assert!((clock.now().nanos() as f64) < STOP_S * 1e9, "{:?}", clock.now());
    assert_eq!(snapshot.state, RunState::Stopped);
    assert!(snapshot.failures.is_empty(), "a stop causes no failures: {:?}", snapshot.failures);
    snapshot
}

#[test]
fn ctrl_c_ends_a_guest_that_only_calls_the_host() {
    let misdeed = "(loop (call $log (i32.const 0) (i32.const 0x200) (i32.const 1)) (br 0))";
    let (folder, document) = prepared(["a", "bad", "c"], &guest(MEMORY, misdeed));
    let call = call(&folder, &document).set("/stages/0/wasm/deadline_ms=60000");
    let snapshot = stopped(&call, going(&call, &folder));
    assert_eq!(snapshot.ledger.total.delivered + snapshot.ledger.total.left, snapshot.ledger.total.made);
}

/// True if all queues are full: as many items as the slots and the later queues can hold were taken from the source's queue, and
/// one each for the consumer and the sink; and the source's queue was ready throughout the last window.
fn is_full(windows: &Path) -> bool {
    let text = fs::read_to_string(windows).unwrap();
    // The last line may be incomplete.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let windows: Vec<Window> = whole.map(|line| serde_json::from_str(line).unwrap()).collect();
    let taken: u64 = windows.iter().map(|window| window.queues[0].figures.num_items).sum();
    let last = windows.last().unwrap();
    taken == 8 + 2 + 3 + 1 + 1 && last.queues[0].figures.readiness == Some(1.0)
}

#[test]
fn ctrl_c_ends_a_run_whose_queues_are_all_full() {
    let (folder, document) = prepared(vec!["a"; 1000], &guest(MEMORY, ""));
    let call = call(&folder, &document).set(r#"/consumer={"simulate":{"step_ms":3600000}}"#);
    let call = call.set("/stages/0/wasm/concurrency=8");
    let mut child = going(&call, &folder);
    while !is_full(&folder.join("out/windows.ndjson")) {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before its queues were full");
        sleep(Duration::from_millis(5));
    }
    let total = stopped(&call, child).ledger.total;
    // At least two items in the source's queue, eight in the stage's slots, two in the stage's queue and three in the sink's
    // queue.
    assert!(total.left >= 15, "{total:?}");
    assert_eq!(total.delivered + total.left, total.made);
}

#[test]
fn ctrl_c_ends_a_start_that_would_take_minutes() {
    let looping = guest(&format!("{MEMORY} (func $loop (loop (br 0))) (start $loop)"), "");
    let (folder, document) = prepared(["a"], &looping);
    let call = call(&folder, &document).set("/stages/0/wasm/deadline_ms=60000");
    let child = call.start();
    while !folder.join("out").exists() {
        sleep(Duration::from_millis(5));
    }
    // The module is still starting: the process must end soon at any point of the start.
    sleep(Duration::from_millis(200));
    let clock = MonotonicClock::start();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let finished = call.finished(child);
    assert!((clock.now().nanos() as f64) < STOP_S * 1e9, "{:?}", clock.now());
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
}

#[test]
fn no_key_leads_out_of_its_store() {
    let outside = Folder::new();
    let secret = outside.write("secret", "canary-7f3a");
    let (folder, document) = prepared([], b"");
    let store = folder.join("store");
    fs::create_dir_all(store.join("folder")).unwrap();
    symlink(&secret, store.join("link")).unwrap();
    symlink(outside.path(), store.join("link-to-folder")).unwrap();
    symlink("/dev/zero", store.join("device")).unwrap();
    folder.write("store/%2e%2e", "a file of this name");
    let long = "l".repeat(4096);
    let up = format!("../{}/secret", outside.path().file_name().unwrap().to_string_lossy());
    let keys = [
        "../guest.wasm",
        "folder/../../guest.wasm",
        "/etc/passwd",
        "//etc/passwd",
        &up,
        &secret.to_string_lossy(),
        "link",
        "link-to-folder/secret",
        "folder/link",
        "device",
        "/dev/zero",
        "folder",
        "folder/",
        ".",
        "..",
        "a\u{0}b",
        "a\\..\\b",
        "%2e%2e/guest.wasm",
        "%2e%2e",
        &long,
        "no such file",
    ];
    let records: String = keys.iter().map(|key| format!("{}\n", json!({ "key": key }))).collect();
    folder.write("store/keys.ndjson", records);
    fs::write(
        &document,
        json!({
            "max_failures": null,
            "source": { "records": { "store": "here", "key": "keys.ndjson" } },
            "stages": [{ "fetch": { "order": "input", "on_error": "dead_letter" } }]
        })
        .to_string(),
    )
    .unwrap();
    let call = Call::run(&document).store("here", &store).out(&folder.join("out"));
    let finished = call.finish().exits(0);
    assert_eq!(finished.snapshot().ledger.total.delivered, 1, "the one file that lies in the store");
    let errors: Vec<FailureRecord> = lines(&folder.join("out/errors.ndjson"));
    let mut told: Vec<String> =
        errors.iter().map(|error| format!("{:.60}: {}", error.key, error.message)).collect();
    // Failures are reported in the order in which they happen.
    told.sort();
    for file in ["errors.ndjson", "dead_letters.ndjson", "snapshot.json"] {
        let text = fs::read_to_string(folder.join("out").join(file)).unwrap();
        assert!(!text.contains("canary-7f3a") && !text.contains("root:"), "{file}: {text}");
    }
    let mut settings = shown();
    settings.add_filter(r"\.tmp\w+", "[TMP]");
    settings.bind(|| insta::assert_snapshot!(told.join("\n")));
}

/// Runs a call in which no file may grow beyond `kib`, as on a full disk: a write fails instead of ending the process.
fn on_a_full_disk(call: &Call, kib: u32) -> Finished {
    let command = call.command();
    let mut shell = Command::new("sh");
    let blocks = kib * 2; // of 512 bytes
    shell.args(["-c", &format!("trap '' XFSZ && ulimit -f {blocks} && exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.envs(set).env_remove("PENSTOCK_LOG");
    call.finished(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn a_full_disk_fails_the_run_and_names_the_error() {
    let keys = vec!["bad"; 2_000];
    let (folder, document) = prepared(keys, &guest(MEMORY, "unreachable"));
    let finished = on_a_full_disk(&call(&folder, &document).json(), 64).exits(1);
    let snapshot: RunSnapshot = serde_json::from_str(&finished.stdout).unwrap();
    assert!(snapshot.ledger.balanced, "{:?}", snapshot.ledger);
    shown().bind(|| insta::assert_snapshot!(finished.stderr));
}

/// Runs a call whose standard output is full; checks that the call fails, and returns its standard error.
fn with_full_output(call: &Call) -> String {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = call.command();
    let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn standard_output_that_is_full_fails_and_names_the_error() {
    let told = with_full_output(&Call::new(&["schema"]));
    insta::assert_snapshot!(told, @"error: No space left on device (os error 28)");
}

#[test]
fn standard_output_that_is_full_does_not_affect_written_files() {
    let folder = Folder::new();
    let out = folder.join("bench");
    let document = json!({
        "source": { "memory": { "count": 50, "bytes": 100 } }, "ceiling": false,
        "actions": [{ "whole_set": { "workers": [1], "batch_size": 10, "repeats": 1 } }]
    });
    let document = folder.write("bench.json", document.to_string());
    with_full_output(&Call::new(&["bench", "storage", "-q"]).argument(&document).out(&out));
    for name in ["report.json", "report.html", "reads.ndjson"] {
        assert!(out.join(name).exists(), "{name}");
    }

    // Both stages are replayed, although the report on the first stage cannot be printed.
    folder.records(["a", "b", "c", "d"]);
    let failing = |name: &str, rate: f64| json!({ "sleep": { "mean_ms": 0, "name": name, "fail_rate": rate, "on_error": "dead_letter" } });
    let document = folder.document(&json!({
        "seed": 3, "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [failing("half", 0.5), failing("all", 1.0)]
    }));
    let run = folder.join("run");
    Call::run(&document).store("here", folder.path()).out(&run).finish().exits(1);
    for json in [&[][..], &["--json"]] {
        let out = folder.join(if json.is_empty() { "words" } else { "json" });
        let call = Call::new(&["replay"]).argument(&run).out(&out);
        with_full_output(&json.iter().fold(call, |call, argument| call.argument(argument)));
        let replay: Value = serde_json::from_slice(&fs::read(out.join("replay.json")).unwrap()).unwrap();
        assert_eq!(replay["stages"].as_array().unwrap().len(), 2, "{replay}");
    }
}
