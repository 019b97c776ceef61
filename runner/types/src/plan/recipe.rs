//! What decides the bytes that a pipeline makes.

use serde_json::{Map, Value};

use super::{StageKind, StagePlan};
use crate::fault::Pointer;
use crate::policy::Order;
use crate::spec::Spec;

/// Members of the document that say how a run is done, or what becomes of what it made.
const OF_THE_RUN: [&str; 7] =
    ["name", "threads", "interval_s", "buffer_mib", "sink", "consumer", "max_failures"];

/// Members of a stage that cannot change what comes out of it. A failed sample is missing in the batches, whatever else
/// `on_error` does with it. `order` and, where seeds are made of it, `name` are written again as they work out.
const OF_ANY_STAGE: [&str; 6] = ["name", "queue", "concurrency", "order", "on_error", "max_failures"];

/// How long a sleep takes changes nothing; whom it fails does.
const OF_SLEEP: [&str; 4] = ["mean_ms", "jitter", "shape", "on"];

/// The document less what cannot change a byte of the batches, so that two runs of equal recipes over the same data make
/// the same ones, as long as their order is fixed.
///
/// Modules are named by digest, and the stages whose seeds depend on it by the name they work out to. What the stores
/// hold is not in it.
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

/// The settings that let batches come in another order, or hold other samples, from run to run.
pub(super) fn unordered(stages: &[StagePlan]) -> Vec<Pointer> {
    stages.iter().filter(|stage| !keeps_order(stage)).map(|stage| stage.place().key("order")).collect()
}

/// One task at a time completes in the order of the input.
fn keeps_order(stage: &StagePlan) -> bool {
    stage.order == Order::Input || stage.concurrency.get() == 1
}

fn members_of(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("documents, stages and their settings are objects")
}
