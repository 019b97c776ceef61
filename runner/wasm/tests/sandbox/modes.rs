//! Tests of the three modes, of fan-out, and of the effect of a broken instance in each mode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_engine::item::{Collated, Item, Origin, Sample, Value};
use penstock_engine::ports::{Items, Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::run::FailureClass;
use penstock_wasm::StageSettings;
use penstock_wasm::seed::{child_path, item_seed};
use serde_json::json;

use crate::support::{
    apply, build, keys, misbehaving, module, only_failure, sample, samples, settings, text,
};

fn number(key: &str, index: u64, x: i64) -> Sample {
    let mut sample = Sample::new(key, Origin::at(0, index));
    sample.set("x", Value::Int(x));
    sample
}

fn batch(keys: &[&str]) -> Output {
    let mut op = build(&module("batch").stage(settings(json!({}))));
    apply_batch(&mut *op, keys)
}

fn apply_batch(op: &mut dyn ThreadOp, keys: &[&str]) -> Output {
    let samples = keys.iter().zip(0..).map(|(key, index)| number(key, index, 1)).collect();
    op.apply(Item::Batch(samples), &StopFlag::default())
}

fn stateful(how: &str) -> Box<dyn ThreadOp> {
    build(&module("stateful").stage(settings(json!(how))))
}

#[expect(clippy::disallowed_methods, reason = "compares with the time that the op reports")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    (work(), begin.elapsed())
}

fn finish(op: &mut dyn ThreadOp) -> Output {
    op.finish(&StopFlag::default())
}

#[test]
fn one_instance_serves_all_samples_of_a_thread() {
    let mut op = build(&misbehaving("good"));
    for index in 0..1000 {
        let output = apply(&mut *op, sample("a", index));
        assert_eq!(output.instances, 0);
        assert_eq!(samples(output), [sample("a", index)]);
    }
}

#[test]
fn a_dropped_sample_is_counted() {
    let output = apply(&mut *build(&misbehaving("drop")), sample("a", 0));
    assert_eq!((output.dropped, samples(output).len()), (1, 0));
}

#[test]
fn children_have_their_own_keys_and_paths() {
    let mut op = build(&misbehaving("many"));
    let out = samples(apply(&mut *op, sample("a", 5)));
    assert_eq!(keys(&out), ["a/0", "a/1", "a/2"]);
    assert_eq!(out[2].origin, Origin { epoch: 0, index: 5, path: child_path(0, 2), ..Origin::default() });
    let seeds = out.iter().map(|child| item_seed(7, "next", &child.origin));
    assert_eq!(seeds.collect::<std::collections::HashSet<_>>().len(), 3);
}

#[test]
fn a_fan_out_without_children_drops_the_sample() {
    let output = apply(&mut *build(&misbehaving("many-none")), sample("a", 0));
    assert_eq!((output.dropped, samples(output).len()), (1, 0));
}

#[test]
fn an_item_of_the_wrong_kind_fails_as_a_contract_fault() {
    let mut op = build(&misbehaving("good"));
    let output = op.apply(Item::Batch(vec![sample("a", 0), sample("b", 1)]), &StopFlag::default());
    assert_eq!(output.failed.len(), 2);
    insta::assert_snapshot!(output.failed[0].fault, @"was given a batch, which its mode does not take; put a disaggregate stage before it");
    let collated = Collated { keys: vec!["c".into()], origins: vec![Origin::default()], fields: Vec::new() };
    let failed = only_failure(op.apply(Item::Collated(collated), &StopFlag::default()));
    assert_eq!((&*failed.sample.key, failed.fault.class), ("c", FailureClass::Contract));
    let mut op = build(&module("batch").stage(settings(json!({}))));
    insta::assert_snapshot!(only_failure(apply(&mut *op, sample("a", 0))).fault, @"was given a single sample, which its mode does not take; put an aggregate stage before it");
}

#[test]
fn a_batch_is_passed_as_a_whole_and_its_remaining_samples_stay_together() {
    let mut output = batch(&["a", "drop", "refuse", "two", "b"]);
    assert_eq!(output.dropped, 1);
    let failed = output.failed.remove(0);
    assert_eq!((&*failed.sample.key, failed.fault.class), ("refuse", FailureClass::Data));
    assert!(matches!(output.items, Items::One(Item::Batch(_))));
    let out = samples(output);
    assert_eq!(keys(&out), ["a", "two", "two/b", "b"]);
    assert_eq!(out[0].field("sum"), Some(&Value::Int(5)));
    assert_eq!(out[1].origin, Origin { epoch: 0, index: 3, path: child_path(0, 0), ..Origin::default() });
}

#[test]
fn a_batch_whose_samples_are_all_dropped_yields_no_item() {
    let output = batch(&["drop", "drop"]);
    assert_eq!(output.dropped, 2);
    assert!(matches!(output.items, Items::None));
    assert!(matches!(batch(&[]).items, Items::None));
}

#[test]
fn a_trap_fails_the_whole_batch_and_the_next_one_succeeds() {
    let mut op = build(&module("batch").stage(settings(json!({}))));
    let output = apply_batch(&mut *op, &["a", "trap", "b"]);
    let failed: Vec<&str> = output.failed.iter().map(|failed| &*failed.sample.key).collect();
    assert_eq!(failed, ["a", "trap", "b"]);
    assert!(output.failed.iter().all(|failed| failed.fault.class == FailureClass::Bug));
    let next = apply_batch(&mut *op, &["a", "b"]);
    assert_eq!(next.instances, 1);
    assert_eq!(keys(&samples(next)), ["a", "b"]);
}

#[test]
fn a_missing_outcome_fails_the_whole_batch() {
    let output = batch(&["a", "too-few"]);
    assert_eq!(output.failed.len(), 2);
    insta::assert_snapshot!(output.failed[0].fault, @"returned 1 outcomes instead of 2, one per sample");
}

#[test]
fn an_outcome_that_breaks_the_contract_fails_the_whole_batch() {
    for (bad, says) in [("shape", "has 16 bytes, but 8 were returned"), ("held", "answered `held`")] {
        let mut op = build(&module("batch").stage(settings(json!({}))));
        let output = apply_batch(&mut *op, &["a", bad, "drop"]);
        let failed: Vec<&str> = output.failed.iter().map(|failed| &*failed.sample.key).collect();
        assert_eq!(failed, ["a", bad, "drop"]);
        assert_eq!(output.failed[0].sample, number("a", 0, 1));
        for failed in &output.failed {
            let message = &failed.fault.message;
            assert_eq!(failed.fault.class, FailureClass::Contract);
            assert!(message.contains(&format!("sample `{bad}`")) && message.contains(says), "{message}");
        }
        assert_eq!(output.dropped, 0);
        assert!(matches!(output.items, Items::None));
        assert_eq!(apply_batch(&mut *op, &["b"]).instances, 1);
    }
}

#[test]
fn too_much_output_of_a_batch_names_the_limit_of_the_batch() {
    let roomy =
        StageSettings { memory_bytes: 1 << 30, deadline: Duration::from_secs(10), ..settings(json!({})) };
    let mut op = build(&module("batch").stage(roomy));
    let output = apply_batch(&mut *op, &["huge", "huge"]);
    assert_eq!(output.failed.len(), 2);
    insta::assert_snapshot!(output.failed[0].fault, @"returned more than 256 MiB in one call (`output_mib` per sample)");
}

#[test]
fn packed_samples_are_dropped_when_the_epoch_ends() {
    let mut op = stateful("pack");
    for (key, held) in [("a", 1), ("b", 2)] {
        let output = apply(&mut *op, text(key, held, key));
        assert_eq!((output.held, output.dropped), (held, 0));
    }
    let output = apply(&mut *op, text("c", 3, "c"));
    assert_eq!((output.held, output.dropped), (2, 0));
    let out = samples(output);
    assert_eq!(keys(&out), ["pack-of-a"]);
    assert_eq!(out[0].field("text"), Some(&Value::Text("a b c".into())));
    assert_eq!(apply(&mut *op, text("d", 4, "d")).held, 3);
    let output = finish(&mut *op);
    assert_eq!((output.held, output.dropped), (0, 3));
    let out = samples(output);
    assert_eq!(keys(&out), ["pack-of-d"]);
    assert_eq!(out[0].origin, Origin { epoch: 0, index: 4, path: child_path(0, 0), ..Origin::default() });
    let next_epoch = apply(&mut *op, text("e", 0, "e"));
    assert_eq!((next_epoch.held, next_epoch.instances), (1, 0));
}

#[test]
fn a_held_sample_that_is_returned_by_key_keeps_its_origin_and_carried_fields() {
    let mut op = stateful("swap");
    for (key, index) in [("a", 0), ("b", 1)] {
        let mut sample = text(key, index, key);
        sample.set("label", Value::Int(index.try_into().unwrap()));
        apply(&mut *op, sample);
    }
    let output = apply(&mut *op, text("c", 2, "c"));
    assert_eq!((output.held, output.dropped), (2, 0));
    let out = samples(output);
    assert_eq!((keys(&out), out[0].origin.index), (vec!["a"], 0));
    assert_eq!(out[0].field("label"), Some(&Value::Int(0)));
    let output = finish(&mut *op);
    assert_eq!((output.held, output.dropped), (0, 0));
    let out = samples(output);
    assert_eq!(keys(&out), ["b", "c"]);
    assert_eq!((out[0].origin.index, out[1].origin.index), (1, 2));
}

#[test]
fn a_trap_fails_the_current_sample_and_all_held_samples() {
    let mut op = stateful("pack");
    apply(&mut *op, text("a", 0, "a"));
    apply(&mut *op, text("b", 1, "b"));
    let output = apply(&mut *op, text("trap", 2, "c"));
    assert_eq!(output.held, 0);
    let failed: Vec<&str> = output.failed.iter().map(|failed| &*failed.sample.key).collect();
    assert_eq!(failed, ["trap", "a", "b"]);
    assert_eq!(output.failed[1].sample, text("a", 0, "a"));
    insta::assert_snapshot!(output.failed[1].fault, @"held by a module instance that failed on sample `trap`: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one)");
    let next = apply(&mut *op, text("d", 3, "d"));
    assert_eq!((next.held, next.instances, next.failed.len()), (1, 1, 0));
}

#[test]
fn a_broken_contract_fails_the_held_samples_too() {
    let mut op = stateful("pack");
    apply(&mut *op, text("a", 0, "a"));
    let output = apply(&mut *op, text("shape", 1, "b"));
    assert_eq!((output.failed.len(), output.held), (2, 0));
    assert!(output.failed.iter().all(|failed| failed.fault.class == FailureClass::Contract));
}

#[test]
fn a_refused_or_dropped_sample_does_not_affect_held_samples() {
    let mut op = stateful("pack");
    apply(&mut *op, text("a", 0, "a"));
    let output = apply(&mut *op, text("refuse", 1, "b"));
    assert_eq!((output.held, only_failure(output).fault.class), (1, FailureClass::Data));
    let output = apply(&mut *op, text("drop", 2, "b"));
    assert_eq!((output.held, output.dropped), (1, 1));
}

#[test]
fn a_trap_in_finish_fails_the_held_samples() {
    let mut op = stateful("pack");
    apply(&mut *op, text("late", 0, "a"));
    let output = finish(&mut *op);
    assert_eq!((output.failed.len(), output.held, output.dropped), (1, 0, 0));
    insta::assert_snapshot!(output.failed[0].fault, @"held by a module instance that failed in `finish`: reached `unreachable`: it panicked or aborted without a message (the SDK's panic hook sends one)");
    assert_eq!(apply(&mut *op, text("b", 1, "b")).instances, 1);
}

#[test]
fn a_trap_in_finish_without_held_samples_is_still_a_failure() {
    let mut op = stateful("pack");
    let hidden = text("hide-late", 3, "a");
    assert_eq!(apply(&mut *op, hidden.clone()).dropped, 1);
    let output = finish(&mut *op);
    assert_eq!((output.held, output.dropped), (0, 0));
    let failed = only_failure(output);
    assert_eq!(
        (failed.fault.class, failed.sample),
        (FailureClass::Bug, Sample::new("finish", hidden.origin))
    );
    assert_eq!(apply(&mut *op, text("b", 1, "b")).instances, 1);
}

#[test]
fn the_time_of_the_op_excludes_the_creation_of_instances() {
    let slow = settings(json!({ "how": "trap-on-bad", "start": "slow-start" }));
    let mut op = build(&module("misbehaving").stage(slow));
    assert_eq!(apply(&mut *op, sample("a", 0)).op_time, None);
    assert_eq!(apply(&mut *op, sample("bad", 1)).op_time, None);
    let (output, took) = timed(|| apply(&mut *op, sample("b", 2)));
    let op_time = output.op_time.expect("an instance was made");
    assert_eq!(output.instances, 1);
    assert!(op_time * 2 < took, "{op_time:?} of {took:?}, most of which `init` took");
    assert_eq!(apply(&mut *op, sample("c", 3)).op_time, None);
}

#[test]
fn an_epoch_without_samples_finishes_without_items() {
    let output = finish(&mut *stateful("pack"));
    assert_eq!((output.held, output.dropped), (0, 0));
    assert!(samples(output).is_empty());
}

/// Op of the stage that keeps two samples and returns the oldest, with its state.
fn saving(state: &[u8]) -> Box<dyn ThreadOp> {
    let factory = module("stateful").stage(settings(json!("swap"))).saving(state.into());
    assert!(factory.saves());
    build(&factory)
}

/// Applies an op to samples with these keys, and returns the keys of the results of the last call, with the state behind it.
fn after(op: &mut dyn ThreadOp, keys_in: &[(&str, u64)]) -> (Vec<String>, Option<Arc<[u8]>>) {
    let mut last = (Vec::new(), None);
    for (key, index) in keys_in {
        let output = apply(op, text(key, *index, "x"));
        let saved = output.saved.clone();
        last = (keys(&samples(output)).into_iter().map(str::to_owned).collect(), saved);
    }
    last
}

#[test]
fn a_saved_state_goes_on_in_another_instance() {
    let mut first = saving(&[]);
    for (key, index) in [("a", 0), ("b", 1)] {
        let output = apply(&mut *first, text(key, index, "x"));
        assert_eq!((output.held, &output.saved), (index + 1, &None));
    }
    let output = apply(&mut *first, text("c", 2, "x"));
    // `a` is returned, `b` and `c` are in the state.
    assert_eq!((output.held, output.held_bytes, output.dropped), (0, 0, 2));
    let state = output.saved.clone().unwrap();
    assert_eq!(keys(&samples(output)), ["a"]);
    let mut second = saving(&state);
    for op in [&mut first, &mut second] {
        let (returned, saved) = after(&mut **op, &[("d", 3)]);
        assert_eq!(returned, ["b"]);
        assert_ne!(saved.unwrap(), state);
        let output = finish(&mut **op);
        assert_eq!(output.saved.as_deref(), Some(&[][..]));
        assert_eq!(keys(&samples(output)), ["c", "d"]);
    }
}

#[test]
fn a_failure_takes_only_the_samples_since_the_last_state() {
    let mut op = saving(&[]);
    assert_eq!(after(&mut *op, &[("a", 0), ("b", 1), ("c", 2)]).0, ["a"]);
    let failed = apply(&mut *op, text("trap", 3, "x"));
    let failed: Vec<&str> = failed.failed.iter().map(|failed| &*failed.sample.key).collect();
    assert_eq!(failed, ["trap"]);
    assert_eq!(after(&mut *op, &[("d", 4)]).0, ["b"]);
    // An epoch that cannot be finished leaves nothing to the next one.
    assert_eq!(after(&mut *op, &[("late", 5)]).0, ["c"]);
    let output = finish(&mut *op);
    assert_eq!((output.failed.len(), output.saved.as_deref()), (1, Some(&[][..])));
    assert_eq!(after(&mut *op, &[("e", 6), ("f", 7), ("g", 8)]).0, ["e"]);
    finish(&mut *op);
    // The state behind an epoch is known without an instance, too.
    assert_eq!(apply(&mut *op, text("trap", 9, "x")).failed.len(), 1);
    assert_eq!(finish(&mut *op).saved.as_deref(), Some(&[][..]));
}

#[test]
fn a_state_that_cannot_be_saved_or_loaded_is_a_fault() {
    for (key, message) in
        [("stuck", "`save` failed: "), ("huge", "`save` returned 1048577 bytes, but the limit is 1048576")]
    {
        let mut op = saving(&[]);
        apply(&mut *op, text("a", 0, "x"));
        apply(&mut *op, text(key, 1, "x"));
        let output = apply(&mut *op, text("c", 2, "x"));
        assert_eq!((output.items.samples(), output.failed.len(), output.saved), (0, 3, None));
        assert!(output.failed[0].fault.message.contains(message), "{}", output.failed[0].fault.message);
    }
    let factory = module("stateful").stage(settings(json!("swap")));
    for (state, message) in
        [(&b"short"[..], "too short"), (&[0xff; 40][..], "`load` refused the state of an earlier run: ")]
    {
        let fault = factory.clone().saving(state.into()).build(&StopFlag::default()).err().unwrap();
        assert!(fault.message.contains(message), "{}", fault.message);
    }
}
