//! Reading a document so that one look tells everything that is wrong with it.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::reader::{Misread, Node, Step, pointer};
use super::{MAX_STAGES, Name, Spec, Stage, parse};
use crate::fault::{Pointer, SpecFault};

/// Most faults that are told at a time; who has more of them starts with these.
pub const MAX_FAULTS: usize = 100;
/// Times that a document is read to find them: some rounds only find what an earlier fault has caused, or what was told before.
const MAX_ROUNDS: usize = 4 * MAX_FAULTS;

impl Spec {
    /// Reads a document. Fails with everything that is wrong with it, up to [`MAX_FAULTS`].
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        Self::from_value(parse(bytes)?)
    }

    /// Reads a document that is JSON already. Fails with everything that is wrong with it, up to [`MAX_FAULTS`].
    pub fn from_value(mut document: Value) -> Result<Self, Vec<SpecFault>> {
        let mut faults = Vec::new();
        if let Some(stages) = document.get_mut("stages").and_then(Value::as_array_mut)
            && stages.len() > MAX_STAGES
        {
            let message = format!("found {} stages, at most {MAX_STAGES} are allowed", stages.len());
            faults.push(SpecFault::new(Pointer::ROOT.key("stages"), message));
            stages.truncate(MAX_STAGES);
        }
        read_all(document, faults, |_| Vec::new())
    }

    /// The stores that the document names; one may come more than once.
    pub fn stores(&self) -> impl Iterator<Item = &Name> {
        let of_stages = self.stages.iter().flat_map(Stage::stores);
        self.source.store().into_iter().chain(of_stages).chain(self.consumer.store())
    }
}

/// Reads JSON of any shape. Fails with everything that is wrong with it, up to [`MAX_FAULTS`].
pub fn read_value<T: DeserializeOwned>(value: Value) -> Result<T, Vec<SpecFault>> {
    read_all(value, Vec::new(), |_| Vec::new())
}

/// Reads JSON whose `faults` so far are known, and lets `check` look at what serde is content with. Fails with everything
/// that is wrong, up to [`MAX_FAULTS`].
///
/// serde stops at the first fault. So what is at fault is taken out of the document, which is then read again, until
/// nothing is left to complain about; members that are missing only since they were taken out do not count.
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
                // Long names that begin alike are told alike.
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

/// Whether a member is missing only because it was removed for a fault of its own, or what stands in for a removed element
/// is none either.
fn is_caused_by(misread: &Misread, steps: &[Step], removed: &BTreeSet<Pointer>) -> bool {
    let place = pointer(steps);
    removed.contains(&place) || misread.missing().is_some_and(|field| removed.contains(&place.key(field)))
}

/// Takes the value at `steps` out of the document; `false` when that is the whole document.
fn remove(document: &mut Value, mut steps: Vec<Step>, removed: &mut BTreeSet<Pointer>) -> bool {
    // Without its tag, an object that says its kind would be a new fault.
    while let Some(Step::Tag(_)) = steps.last() {
        steps.pop();
    }
    let place = pointer(&steps);
    let Some(last) = steps.pop() else { return false };
    // Places in a list must not move, so that the pointers of later faults are right: something else stands in.
    let stand_in = match steps.last() {
        Some(Step::Key(list)) if list == "stages" => json!({ "disaggregate": {} }),
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
            // Nothing of this list takes what stands in: without it there is more to be found.
            Some(_) => remove(document, steps, removed),
            None => false,
        },
        _ => false,
    }
}
