//! Extracts the settings that determine the bytes of a pipeline's batches.

use serde_json::{Map, Value};

use super::{StageKind, StagePlan};
use crate::fault::Pointer;
use crate::policy::Order;
use crate::spec::Spec;

/// Members of the document that concern the execution of a run or its output, not the content of batches.
const OF_THE_RUN: [&str; 7] =
    ["name", "threads", "interval_s", "buffer_mib", "sink", "consumer", "max_failures"];

/// Settings of a stage that cannot change the content of batches, so that recipes omit them. `on_error` is one of them, since a
/// failed sample is missing from the batches with every `on_error`. A recipe contains the effective `order` instead and, where
/// the seed of a stage depends on it, the effective `name`.
const OF_ANY_STAGE: [&str; 6] = ["name", "queue", "concurrency", "order", "on_error", "max_failures"];

/// Settings of `sleep` that cannot change the batches, unlike the rate and the seed of its failures.
const OF_SLEEP: [&str; 4] = ["mean_ms", "jitter", "shape", "on"];

/// Returns the document without the settings that cannot change the batches, so that two runs of equal recipes over the same data
/// make the same batches, as long as their order is fixed.
///
/// Modules are named by digest. A stage whose seed depends on its name has its effective name. The contents of the stores are not
/// part of a recipe.
pub(super) fn recipe(spec: &Spec, stages: &[StagePlan]) -> Value {
    let mut document = serde_json::to_value(spec).expect("a document is JSON");
    let members = members_of(&mut document);
    OF_THE_RUN.iter().for_each(|member| drop(members.shift_remove(*member)));
    let written = members.get_mut("stages").and_then(Value::as_array_mut);
    for (value, stage) in written.into_iter().flatten().zip(stages) {
        let members = members_of(&mut members_of(value)[stage.kind.name().as_str()]);
        OF_ANY_STAGE.iter().for_each(|member| drop(members.shift_remove(*member)));
        let name = Value::from(stage.seeded_as.as_str());
        match &stage.kind {
            StageKind::Aggregate { .. } | StageKind::Disaggregate => continue,
            StageKind::Wasm(wasm) => {
                members.insert("name".to_owned(), name);
                members.insert("module".to_owned(), wasm.digest.as_str().into());
            }
            StageKind::Sleep(_) => {
                OF_SLEEP.iter().for_each(|member| drop(members.shift_remove(*member)));
                members.insert("name".to_owned(), name);
            }
            StageKind::Transfer { .. } => drop(members.shift_remove("device")),
            StageKind::Fetch { .. } | StageKind::Collate { .. } => {}
        }
        let order = if keeps_order(stage) { "input" } else { "completion" };
        members.insert("order".to_owned(), order.into());
    }
    document
}

/// Settings that let the order or the content of batches differ from run to run.
pub(super) fn unordered(stages: &[StagePlan]) -> Vec<Pointer> {
    stages.iter().filter(|stage| !keeps_order(stage)).map(|stage| stage.place().key("order")).collect()
}

/// True if results come in input order, which is always the case with one task at a time.
fn keeps_order(stage: &StagePlan) -> bool {
    stage.order == Order::Input || stage.concurrency.get() == 1
}

fn members_of(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("documents, stages and their settings are objects")
}
