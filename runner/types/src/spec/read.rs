//! Reads a document and reports all of its faults at once.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::reader::{Misread, Node, Step, pointer};
use super::route::check_routes;
use super::{ELSE, MAX_STAGES, Name, Spec, parse};
use crate::fault::{MAX_FAULTS, Pointer, SpecFault};
use crate::kinds::has_setting;
use crate::policy::Order;

/// Maximum number of times that a document is read to find all faults; some readings find only consequences or repetitions of
/// earlier faults.
const MAX_ROUNDS: usize = 4 * MAX_FAULTS;

impl Spec {
    /// Reads a document. On failure, returns all faults, up to [`MAX_FAULTS`].
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        Self::from_value(parse(bytes)?)
    }

    /// Reads a document that is parsed already. On failure, returns all faults, up to [`MAX_FAULTS`].
    pub fn from_value(mut document: Value) -> Result<Self, Vec<SpecFault>> {
        let mut faults = Vec::new();
        if let Some(stages) = document.get_mut("stages").and_then(Value::as_array_mut)
            && stages.len() > MAX_STAGES
        {
            let message = format!("found {} stages, at most {MAX_STAGES} are allowed", stages.len());
            faults.push(SpecFault::new(Pointer::ROOT.key("stages"), message));
            stages.truncate(MAX_STAGES);
        }
        if document.get("deterministic") == Some(&Value::Bool(true))
            && let Some(stages) = document.get_mut("stages")
        {
            keep_order(stages, &Pointer::ROOT.key("stages"), &mut faults);
        }
        read_all(document, faults, check_routes)
    }

    /// Stores that the document names; may contain repetitions.
    pub fn stores(&self) -> impl Iterator<Item = &Name> {
        let mut of_stages = Vec::new();
        self.visit(&mut |stage| of_stages.extend(stage.written().stores()));
        self.source.stores().into_iter().chain(of_stages).chain(self.consumer.store())
    }
}

/// Adds `"order": "input"` to all stages of a list and of the paths in it. A stage with another order is a fault.
fn keep_order(stages: &mut Value, place: &Pointer, faults: &mut Vec<SpecFault>) {
    for (index, stage) in stages.as_array_mut().into_iter().flatten().enumerate() {
        for (kind, members) in stage.as_object_mut().into_iter().flatten() {
            let place = place.index(index).key(kind);
            if let Some(module) = members.pointer_mut("/by/module") {
                keep_order_of(module, &place.key("by").key("module"), faults);
            }
            for (path, stages) in
                members.get_mut("paths").and_then(Value::as_object_mut).into_iter().flatten()
            {
                keep_order(stages, &place.key("paths").key(path), faults);
            }
            if let Some(stages) = members.get_mut(ELSE) {
                keep_order(stages, &place.key(ELSE), faults);
            }
            if has_setting(kind, "order").unwrap_or(true) {
                keep_order_of(members, &place, faults);
            }
        }
    }
}

fn keep_order_of(stage: &mut Value, place: &Pointer, faults: &mut Vec<SpecFault>) {
    let Some(members) = stage.as_object_mut() else { return };
    let order = members.entry("order").or_insert_with(|| json!(Order::Input));
    if *order == json!(Order::Completion) && faults.len() < MAX_FAULTS {
        let found = "found `completion`, but the document has `\"deterministic\": true`, which keeps the order of the input";
        faults.push(SpecFault::new(place.key("order"), found).hint("remove one of the two"));
    }
}

/// Reads JSON of any shape. On failure, returns all faults, up to [`MAX_FAULTS`].
pub fn read_value<T: DeserializeOwned>(value: Value) -> Result<T, Vec<SpecFault>> {
    read_all(value, Vec::new(), |_| Vec::new())
}

/// Reads JSON with the `faults` found so far, and lets `check` inspect a value that deserializes. On failure, returns all faults,
/// up to [`MAX_FAULTS`].
///
/// serde stops at the first fault. So the faulty value is removed from the document, which is then read again until no fault is
/// left; members that are missing only because of such a removal do not count.
pub fn read_all<T: DeserializeOwned>(
    mut document: Value,
    mut faults: Vec<SpecFault>,
    check: impl Fn(&T) -> Vec<SpecFault>,
) -> Result<T, Vec<SpecFault>> {
    let mut removed = BTreeSet::new();
    for _ in 0..MAX_ROUNDS {
        if faults.len() >= MAX_FAULTS {
            break;
        }
        match T::deserialize(Node(&document)) {
            Ok(read) => {
                faults.extend(check(&read).into_iter().filter(|fault| !removed.contains(&fault.pointer)));
                return if faults.is_empty() { Ok(read) } else { Err(faults) };
            }
            Err(misread) => {
                let steps = misread.steps();
                let fault = SpecFault::new(pointer(&steps), misread.to_string());
                // Messages cut long names, so faults of names with the same beginning may be equal.
                if !is_caused_by(&misread, &steps, &removed) && !faults.contains(&fault) {
                    faults.push(fault);
                }
                if !remove(&mut document, steps, &mut removed) {
                    break;
                }
            }
        }
    }
    Err(faults)
}

/// True if a member is missing only because it was removed for another fault, or if the fault is in the placeholder of a removed
/// element.
fn is_caused_by(misread: &Misread, steps: &[Step], removed: &BTreeSet<Pointer>) -> bool {
    let place = pointer(steps);
    removed.contains(&place) || misread.missing.is_some_and(|field| removed.contains(&place.key(field)))
}

/// Removes the value at `steps` from the document; `false` when that is the whole document.
fn remove(document: &mut Value, mut steps: Vec<Step>, removed: &mut BTreeSet<Pointer>) -> bool {
    // Removing only the content of a tagged object would cause a new fault, so the tag is removed as well.
    while let Some(Step::Tag(_)) = steps.last() {
        steps.pop();
    }
    let place = pointer(&steps);
    let Some(last) = steps.pop() else { return false };
    // A placeholder keeps positions in a list, so that the pointers of later faults stay correct.
    let stand_in = match steps.as_slice() {
        [.., Step::Key(list)] if list == "stages" || list == "else" => json!({ "disaggregate": {} }),
        [.., Step::Key(paths), Step::Key(_)] if paths == "paths" => json!({ "disaggregate": {} }),
        _ => json!("x"),
    };
    let Some(parent) = document.pointer_mut(pointer(&steps).as_str()) else { return false };
    match (last, parent) {
        (Step::Key(key), Value::Object(members)) => {
            removed.insert(place);
            members.shift_remove(&key).is_some()
        }
        (Step::Index(index), Value::Array(elements)) => match elements.get_mut(index) {
            Some(element) if removed.insert(place) => {
                *element = stand_in;
                true
            }
            // No placeholder is valid in this list; removing the whole list lets reading find further faults.
            Some(_) => remove(document, steps, removed),
            None => false,
        },
        _ => false,
    }
}
