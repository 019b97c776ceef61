//! Extracts the settings that determine the bytes of a pipeline's batches.

use serde_json::{Map, Value};

use super::StagePlan;
use crate::fault::Pointer;
use crate::policy::Order;
use crate::spec::Spec;
use crate::tune::Tune;

/// Members of the document that concern the execution of a run or its output, not the content of batches.
/// Neither does `deterministic`: the recipe has the effective `order` of each stage.
const OF_THE_RUN: [&str; 9] = [
    "name",
    "deterministic",
    "threads",
    "tune",
    "interval_s",
    "buffer_mib",
    "sink",
    "consumer",
    "max_failures",
];

/// Settings of a stage that cannot change the content of batches, so that recipes omit them. `on_error` is one of them, since a
/// failed sample is missing from the batches with every `on_error`. A recipe contains the effective `order` instead and, where
/// the seed of a stage depends on it, the effective `name`.
const OF_ANY_STAGE: [&str; 6] = ["name", "queue", "concurrency", "order", "on_error", "max_failures"];

/// Returns the document without the settings that cannot change the batches, so that two runs of equal recipes over the same data
/// make the same batches, as long as their order is fixed.
///
/// Modules are named by digest. A stage whose seed depends on its name has its effective name. The contents of the stores are not
/// part of a recipe.
pub(super) fn recipe(spec: &Spec, stages: &[StagePlan]) -> Value {
    let is_ordered = |stage: &StagePlan| keeps_order(stage, spec.tune);
    let mut document = serde_json::to_value(spec).expect("a document is JSON");
    let members = members_of(&mut document);
    OF_THE_RUN.iter().for_each(|member| drop(members.shift_remove(*member)));
    if let Some(written) = members.get_mut("stages") {
        abridge(written, &mut stages.iter(), &is_ordered);
    }
    document
}

/// Abridges a list of stages; `planned` are the plans of these stages, of the stages in their paths, and of later ones.
fn abridge(
    written: &mut Value,
    planned: &mut std::slice::Iter<'_, StagePlan>,
    is_ordered: &dyn Fn(&StagePlan) -> bool,
) {
    for value in written.as_array_mut().into_iter().flatten() {
        let (kind, value) = members_of(value).iter_mut().next().expect("a stage has a kind");
        if kind == "route" {
            if let Some(module) = value.pointer_mut("/by/module") {
                abridge_stage(module, planned, is_ordered);
            }
            let members = members_of(value);
            let paths = members.get_mut("paths").and_then(Value::as_object_mut).into_iter().flatten();
            // The gate stands before the stages of its path.
            for (_, list) in paths {
                planned.next();
                abridge(list, planned, is_ordered);
            }
            if let Some(list) = members.get_mut("else") {
                planned.next();
                abridge(list, planned, is_ordered);
            }
        }
        abridge_stage(value, planned, is_ordered);
    }
}

fn abridge_stage(
    value: &mut Value,
    planned: &mut std::slice::Iter<'_, StagePlan>,
    is_ordered: &dyn Fn(&StagePlan) -> bool,
) {
    let Some(stage) = planned.next() else { return };
    let recipe = stage.kind.rules().recipe();
    let members = members_of(value);
    OF_ANY_STAGE.iter().chain(recipe.omits).for_each(|member| drop(members.shift_remove(*member)));
    if recipe.is_seeded {
        members.insert("name".to_owned(), stage.seeded_as.as_str().into());
    }
    if let Some(digest) = recipe.digest {
        members.insert("module".to_owned(), digest.into());
    }
    if recipe.has_order {
        let order = if is_ordered(stage) { "input" } else { "completion" };
        members.insert("order".to_owned(), order.into());
    }
}

/// Settings that let the order or the content of batches differ from run to run.
pub(super) fn unordered(stages: &[StagePlan], tune: Tune) -> Vec<Pointer> {
    stages.iter().filter(|stage| !keeps_order(stage, tune)).map(|stage| stage.place.key("order")).collect()
}

/// True if results come in input order, which is always the case with one task at a time. A tuner may start more.
fn keeps_order(stage: &StagePlan, tune: Tune) -> bool {
    let rules = stage.kind.rules();
    let is_single = rules.abreast(stage.concurrency.get()) == 1 && !(tune == Tune::Apply && rules.may_grow());
    stage.order == Order::Input || is_single
}

fn members_of(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("documents, stages and their settings are objects")
}
