//! Fields that the manifest does not want never cross, and are carried past.

use penstock_engine::item::{Sample, Value};
use serde_json::json;

use crate::support::{apply, build, module, samples, settings, text};

/// What becomes of a sample with the fields `label`, `text` and `weight`.
fn carried(what: &str) -> Vec<Sample> {
    let mut sample = Sample::new("k", text("k", 0, "").origin);
    sample.set("label", Value::Text("cat".into()));
    sample.set("text", Value::Text(what.into()));
    sample.set("weight", Value::Real(0.5));
    samples(apply(&mut *build(&module("carrying").stage(settings(json!({})))), sample))
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
fn every_child_has_them() {
    let children: Vec<String> = carried("split").iter().map(shown).collect();
    assert_eq!(children, ["k/0: label=cat text=0 weight=0.5", "k/1: label=cat text=1 weight=0.5"]);
}

#[test]
fn a_field_of_the_same_name_from_the_guest_wins() {
    assert_eq!(shown(&carried("override")[0]), "k: label=mine text=override weight=0.5 seen=text");
}

#[test]
fn a_wanted_field_that_does_not_come_back_is_gone() {
    assert_eq!(shown(&carried("forget")[0]), "k: label=cat weight=0.5 seen=text");
}
