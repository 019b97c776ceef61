//! Tests of carried fields: fields not named under `wants` are not passed to the guest, but added to its results.

use std::time::Duration;

use bytes::Bytes;
use penstock_engine::item::{Item, Sample, Value};
use penstock_engine::ports::{Output, StopFlag};
use penstock_types::run::FailureClass;
use penstock_wasm::StageSettings;
use serde_json::json;

use crate::support::{apply, build, module, samples, settings, text};

/// Applies the guest to a sample with the fields `label`, `text` and `weight`; returns the resulting samples.
fn carried(what: &str) -> Vec<Sample> {
    samples(output(what, Value::Text("cat".into())))
}

fn output(what: &str, label: Value) -> Output {
    let mut sample = Sample::new("k", text("k", 0, "").origin);
    sample.set("label", label);
    sample.set("text", Value::Text(what.into()));
    sample.set("weight", Value::Real(0.5));
    // A slow machine needs more than a usual deadline for 65,536 children.
    let settings = StageSettings { deadline: Duration::from_secs(10), ..settings(json!({})) };
    apply(&mut *build(&module("carrying").stage(settings)), sample)
}

fn shown(sample: &Sample) -> String {
    let fields = sample.fields.iter().map(|field| match &field.value {
        Value::Text(text) => format!("{}={text}", field.name),
        Value::Real(real) => format!("{}={real}", field.name),
        other => format!("{}={other:?}", field.name),
    });
    format!("{}: {}", sample.key, fields.collect::<Vec<_>>().join(" "))
}

#[test]
fn a_kept_sample_has_its_other_fields_in_their_old_places() {
    assert_eq!(shown(&carried("keep")[0]), "k: label=cat text=keep weight=0.5 seen=text");
}

#[test]
fn every_child_has_the_carried_fields() {
    let children: Vec<String> = carried("split").iter().map(shown).collect();
    assert_eq!(children, ["k/0: label=cat text=0 weight=0.5", "k/1: label=cat text=1 weight=0.5"]);
}

#[test]
fn a_returned_field_replaces_a_carried_field_of_the_same_name() {
    assert_eq!(shown(&carried("override")[0]), "k: label=mine text=override weight=0.5 seen=text");
}

#[test]
fn a_wanted_field_that_is_not_returned_is_removed() {
    assert_eq!(shown(&carried("forget")[0]), "k: label=cat weight=0.5 seen=text");
}

#[test]
fn text_that_would_be_copied_to_too_many_children_breaks_the_contract() {
    let mut output = output("burst", Value::Text("x".repeat(4096)));
    assert_eq!((output.failed.len(), output.items.samples()), (1, 0));
    let failed = output.failed.remove(0);
    assert_eq!(failed.fault.class, FailureClass::Contract);
    insta::assert_snapshot!(failed.fault, @"made 65536 samples from one sample, for which copies of the fields that bypass the module would take 266 MiB, but the limit is 128 MiB (`output_mib`); fields named under `wants` do not bypass the module");
    assert_eq!(failed.sample.fields.len(), 3);
}

#[test]
fn bytes_are_shared_by_any_number_of_children() {
    let blob = Bytes::from(vec![7; 1 << 20]);
    let children = samples(output("burst", Value::Blob(blob.clone())));
    assert_eq!(children.len(), 65_536);
    let Some(Value::Blob(last)) = children[65_535].field("label") else {
        panic!("the label must be carried")
    };
    assert_eq!(last.as_ptr(), blob.as_ptr());
}

#[test]
fn a_stateful_stage_cannot_copy_text_to_too_many_children_either() {
    let mut op = build(&module("stateful").stage(settings(json!("pack"))));
    apply(&mut *op, text("held", 0, "a"));
    let mut sample = text("burst", 1, "b");
    sample.set("label", Value::Text("x".repeat(4096)));
    let output = apply(&mut *op, sample);
    let failed: Vec<&str> = output.failed.iter().map(|failed| &*failed.sample.key).collect();
    assert_eq!((failed, output.held), (vec!["burst", "held"], 0));
    assert!(output.failed.iter().all(|failed| failed.fault.class == FailureClass::Contract));
}

#[test]
fn the_samples_of_a_batch_share_the_limit_of_their_call() {
    let mut op = build(&module("batch").stage(settings(json!({}))));
    let batch: Vec<Sample> = (0..16)
        .map(|index| {
            let mut sample = text(&format!("burst-{index}"), index, "");
            sample.set("text", Value::Text("x".repeat(1536)));
            sample
        })
        .collect();
    let output = op.apply(Item::Batch(batch), &StopFlag::default());
    assert_eq!(output.failed.len(), 16);
    insta::assert_snapshot!(output.failed[0].fault, @"made so many samples that copies of the fields that bypass the module would take 1616 MiB in one call, but the limit is 1024 MiB; fields named under `wants` do not bypass the module");
}
