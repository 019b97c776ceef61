//! Each test covers one kind of misbehaviour and checks the failure's class, its message, and that the next sample succeeds.

use std::time::Duration;

use penstock_engine::item::Value;
use penstock_engine::ports::{StopFlag, ThreadOpFactory};
use penstock_types::run::FailureClass;
use penstock_wasm::{LogLevel, StageFactory, StageSettings};
use serde_json::json;

use crate::support::{apply, build, misbehaving, module, only_failure, sample, samples, settings};

/// Stage with a long deadline, for misbehaviour that exceeds the usual deadline on a slow machine.
fn unhurried(how: &str) -> StageFactory {
    let settings = StageSettings { deadline: Duration::from_secs(5), ..settings(json!({ "how": how })) };
    module("misbehaving").stage(settings)
}

/// Misbehaves on a sample named `bad`. Checks that the samples before and after it succeed, that the failed sample is unchanged,
/// and that a new instance was created only if the old one broke. Returns the class and the message of the failure.
fn failure(how: &str) -> String {
    failure_in(&misbehaving(&format!("{how}-on-bad")))
}

fn failure_in(factory: &StageFactory) -> String {
    let mut op = build(factory);
    assert_eq!(samples(apply(&mut *op, sample("before", 0))), [sample("before", 0)]);
    let output = apply(&mut *op, sample("bad", 1));
    assert_eq!(output.instances, 0);
    let failed = only_failure(output);
    assert_eq!(failed.sample, sample("bad", 1));
    let after = apply(&mut *op, sample("after", 2));
    assert_eq!(after.instances, u64::from(failed.fault.class != FailureClass::Data));
    assert_eq!(samples(after), [sample("after", 2)]);
    format!("{}: {}", failed.fault.class.name(), failed.fault.message)
}

macro_rules! failures {
    ($($test:ident($how:literal, @$snapshot:literal);)*) => {
        $(
            #[test]
            fn $test() {
                insta::with_settings!({ filters => vec![
                    (r"src/lib\.rs:\d+:\d+", "src/lib.rs:[LINE]"),
                    (r"requested 2[5-9]\d MiB", "requested [N] MiB"),
                    // On a busy machine, a guest that gets less than a tenth of a core reaches its wall-clock limit first.
                    (r"took 10 times its (.*) in wall-clock time, .*", "exceeded its $1"),
                ] }, {
                    insta::assert_snapshot!(failure($how), @$snapshot);
                });
            }
        )*
    };
}

failures! {
    a_loop_ends_at_its_deadline("loop", @"bug: exceeded its deadline of 50 ms CPU time per sample (`deadline_ms`)");
    a_loop_of_host_calls_ends_at_its_deadline("log-loop", @"bug: exceeded its deadline of 50 ms CPU time per sample (`deadline_ms`)");
    a_memory_bomb_ends_at_its_limit("memory", @"bug: requested [N] MiB of memory, but the limit is 256 MiB (`memory_mib`)");
    deep_recursion_exhausts_the_stack("recursion", @"bug: stack exhausted: recursion too deep; in `guest_misbehaving::dive` x32");
    a_trap_without_a_message_is_explained("trap", @"bug: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one)");
    a_division_by_zero_is_a_panic_in_rust("divide", @"bug: panicked: attempt to divide by zero at tests/guests/misbehaving/src/lib.rs:[LINE]");
    a_wild_read_is_out_of_bounds("out-of-bounds", @"bug: accessed memory out of bounds: a bad pointer or index");
    a_panic_keeps_its_message_and_place("panic", @"bug: panicked: no `bad` today at tests/guests/misbehaving/src/lib.rs:[LINE]");
    an_abort_has_no_message("abort", @"bug: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one)");
    a_refusal_is_a_fault_of_the_data("failed", @r"data: not a JPEG: starts with \u{1b}[2Jhello");
    held_needs_a_stateful_module("held", @"contract: answered `held`, but the module's manifest does not say `mode: stateful`");
    too_few_outcomes_break_the_contract("too-few", @"contract: returned 0 outcomes instead of 1, one per sample");
    too_many_outcomes_break_the_contract("too-many", @"contract: returned 2 outcomes instead of 1, one per sample");
    a_tensor_of_the_wrong_size_breaks_the_contract("shape", @"contract: field `pixels`: a float32 tensor of shape [2, 3] has 24 bytes, but 7 were returned");
    a_shape_that_overflows_breaks_the_contract("shape-overflow", @"contract: field `pixels`: a tensor of shape [4294967295, 4294967295, 4294967295] is larger than the limit of 4 TiB");
    a_shape_without_elements_that_overflows_breaks_the_contract("shape-of-nothing", @"contract: field `pixels`: a tensor of shape [4294967295, 4294967295, 0] is larger than the limit of 4 TiB");
    rank_200_breaks_the_contract("rank", @"contract: field `pixels`: a tensor with 200 dimensions, but the limit is 16");
    huge_output_breaks_the_contract("huge", @"contract: returned more than 128 MiB in one call (`output_mib` per sample)");
    a_field_given_twice_breaks_the_contract("twice", @"contract: returned field `a` twice");
    too_many_fields_break_the_contract("fields", @"contract: returned a sample with 300 fields, but the limit is 256");
    a_long_name_breaks_the_contract("long-name", @"contract: returned a field name of 300 bytes, but the limit is 256");
    an_empty_key_breaks_the_contract("no-key", @"contract: returned an empty key");
    a_long_key_breaks_the_contract("long-key", @"contract: returned a key of 5000 bytes, but the limit is 4096");
    an_undeclared_counter_breaks_the_contract("count-unknown", @r"contract: counted `other\u{7}`, which the module's manifest does not declare under `counters`");
    a_counter_takes_no_nan("count-nan", @"contract: added NaN to counter `seen`, but only finite numbers can be added");
}

fn init_failure(how: &str) -> String {
    let Err(fault) = misbehaving(how).build(&StopFlag::default()) else { panic!("`{how}` built an op") };
    format!("{}: {}", fault.class.name(), fault.message)
}

#[test]
fn a_bomb_of_children_breaks_the_contract() {
    let message = failure_in(&unhurried("many-bomb-on-bad"));
    insta::assert_snapshot!(message, @"contract: made 100000 samples from one sample, but the limit is 65536");
}

#[test]
fn a_loop_in_init_ends_at_its_deadline() {
    insta::assert_snapshot!(init_failure("init-loop"), @"bug: `init` failed: exceeded its deadline of 1000 ms CPU time (10 x `deadline_ms`, but at least 1000 ms)");
}

#[test]
fn an_error_of_init_is_reported_with_escaped_control_characters() {
    insta::assert_snapshot!(init_failure("init-error"), @r"bug: `init` refused: no `size` given;\n\u{1b}[31mit is needed");
}

#[test]
fn a_trap_in_init_is_reported_as_such() {
    insta::assert_snapshot!(init_failure("init-trap"), @"bug: `init` failed: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one)");
}

#[test]
fn an_unknown_asset_is_refused_and_a_named_one_is_read() {
    let factory = misbehaving("init-asset");
    let Err(fault) = factory.build(&StopFlag::default()) else { panic!("the missing asset was found") };
    insta::assert_snapshot!(fault.message, @"`init` refused: no asset `none`: add it under `assets` of this stage in the pipeline");
    assert_eq!(factory.logs().lines[0].message, "7 bytes");
}

#[test]
fn a_guest_that_traps_on_every_sample_gets_a_fresh_instance_each_time() {
    let factory = misbehaving("trap");
    let mut op = build(&factory);
    for index in 0..50 {
        let output = apply(&mut *op, sample("any", index));
        assert_eq!(output.instances, u64::from(index > 0));
        assert_eq!(only_failure(output).fault.class, FailureClass::Bug);
    }
}

#[test]
fn a_flood_of_log_lines_is_cut_off_and_counted() {
    let factory = unhurried("log-flood");
    let mut op = build(&factory);
    assert_eq!(samples(apply(&mut *op, sample("a", 0))), [sample("a", 0)]);
    let logs = factory.logs();
    assert_eq!(logs.lines.len(), 256); // 64 KiB per call, and a line counts as at least 256 bytes
    assert_eq!(logs.dropped, 100_000 - 256);
}

#[test]
fn a_long_line_is_cut_and_a_call_cannot_log_more_than_64_kib() {
    let factory = misbehaving("log-long");
    let mut op = build(&factory);
    assert_eq!(samples(apply(&mut *op, sample("a", 0))), [sample("a", 0)]);
    assert_eq!((factory.logs().lines.len(), factory.logs().dropped), (0, 1));
}

#[test]
fn log_lines_are_escaped_and_keep_their_level() {
    let factory = misbehaving("log");
    let mut op = build(&factory);
    apply(&mut *op, sample("a", 0));
    let line = factory.logs().lines.remove(0);
    assert_eq!((line.number, line.level), (0, LogLevel::Warn));
    assert_eq!(line.message, "two\\nlines and \\u{1b}[31mred");
}

#[test]
fn counters_add_up_over_all_instances_of_a_stage() {
    let factory = misbehaving("count");
    for _ in 0..2 {
        let mut op = build(&factory);
        apply(&mut *op, sample("a", 0));
    }
    assert_eq!(factory.counters(), [("seen".to_owned(), 5.0)].into());
}

#[test]
fn nan_payloads_are_preserved() {
    let mut op = build(&misbehaving("nan"));
    let out = samples(apply(&mut *op, sample("a", 0))).remove(0);
    let Some(Value::Real(real)) = out.field("nan") else { panic!("{out:?}") };
    assert_eq!(real.to_bits(), 0x7ff8_0000_dead_beef);
    let Some(Value::Tensor(tensor)) = out.field("nans") else { panic!("{out:?}") };
    assert_eq!(*tensor.data, 0x7fc0_1234_u32.to_le_bytes());
}

#[test]
fn empty_values_and_scalars_are_values() {
    let mut op = build(&misbehaving("zero-length"));
    let out = samples(apply(&mut *op, sample("a", 0))).remove(0);
    assert_eq!(out.bytes(), 0);
    assert_eq!(out.fields.len(), 3);
    let mut op = build(&misbehaving("scalar"));
    let out = samples(apply(&mut *op, sample("a", 0))).remove(0);
    let Some(Value::Tensor(tensor)) = out.field("scalar") else { panic!("{out:?}") };
    assert_eq!((tensor.shape.len(), tensor.data.len()), (0, 4));
}
