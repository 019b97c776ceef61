//! Samples into the guest and back. Everything that comes back is checked here, once, before anything else sees it.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Dtype, Field, Origin, Sample, Tensor, Value};
use penstock_engine::ports::{Failed, Fault};
use penstock_types::run::FailureClass;
use penstock_types::text::printable;

use crate::bindings::exports::penstock::stage::transform::{ItemParam, ItemResult, Outcome};
use crate::bindings::penstock::stage::types as wit;
use crate::error::mib;
use crate::limits::{
    MAX_CHILDREN, MAX_FIELDS, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_OUTPUT_BYTES, MAX_RANK, MAX_REASON_BYTES,
};
use crate::seed::{StageSeed, child_path};

/// Names of fields kept as shared strings; a guest with more names pays for each.
const KNOWN_NAMES: usize = 32;
/// Number of fields up to which names are compared pair by pair.
const FEW_FIELDS: usize = 16;
const SHOWN_NAME: usize = 64;

/// Converts for one stage on one thread.
#[derive(Debug)]
pub(crate) struct Converter {
    wants: Option<Vec<String>>,
    seed: StageSeed,
    known: Vec<Arc<str>>,
}

/// Result of one sample.
#[derive(Debug)]
pub(crate) enum Turned {
    Keep(Sample),
    Drop,
    Many(Vec<Sample>),
    Failed(Failed),
}

/// What the children of one sample start from: the sample, with nothing left in the fields that the guest was given, so
/// that a sample cut into its parts is not copied once for each of them.
#[derive(Debug)]
pub(crate) struct Template {
    sample: Sample,
    /// For each field, true if the guest was given it. An empty field keeps its place for a new value of its name.
    wanted: Vec<bool>,
}

impl Converter {
    /// A converter that lets the fields of `wants` cross, or all of them.
    pub(crate) fn new(wants: Option<Vec<String>>, seed: StageSeed) -> Self {
        Self { wants, seed, known: Vec::new() }
    }

    /// The fields that cross, borrowed.
    pub(crate) fn fields<'a>(&self, sample: &'a Sample, into: &mut Vec<wit::FieldParam<'a>>) {
        let crossing = sample.fields.iter().filter(|field| self.is_wanted(&field.name));
        into.extend(crossing.map(|field| wit::FieldParam { name: &field.name, value: param(&field.value) }));
    }

    /// The sample as the guest sees it, with the fields that cross.
    pub(crate) fn item<'a>(&self, sample: &'a Sample, fields: &'a [wit::FieldParam<'a>]) -> ItemParam<'a> {
        ItemParam { key: &sample.key, seed: self.seed.item(&sample.origin), fields }
    }

    /// Checks the guest's answer for a sample against the contract, where nothing may be held. Returns how many bytes of
    /// the sample will be copied to its children.
    pub(crate) fn check(&self, outcome: &Outcome, input: &Sample) -> Result<u64, Fault> {
        match outcome {
            Outcome::Keep(item) => check_items(std::slice::from_ref(item), Some(&input.key)).map(|()| 0),
            Outcome::Many(items) => {
                check_children(items, &input.key)?;
                self.check_copies(input, items.len())
            }
            Outcome::Held => Err(broken("answered `held`, but its manifest does not say `mode: stateful`")),
            Outcome::Drop | Outcome::Failed(_) => Ok(0),
        }
    }

    /// Converts a checked answer. `held` makes nothing.
    pub(crate) fn turn(&mut self, outcome: Outcome, input: Sample) -> Turned {
        match outcome {
            Outcome::Keep(item) => Turned::Keep(self.sample(item, input)),
            Outcome::Many(items) if !items.is_empty() => Turned::Many(self.children(items, input)),
            Outcome::Many(_) | Outcome::Drop | Outcome::Held => Turned::Drop,
            Outcome::Failed(reason) => Turned::Failed(failed(input, &reason)),
        }
    }

    /// Checks that a sample may have so many children, each with a copy of the fields carried past the guest: texts are
    /// copied, all other bytes are shared. Returns the bytes of the copies.
    pub(crate) fn check_copies(&self, parent: &Sample, children: usize) -> Result<u64, Fault> {
        let carried = parent.fields.iter().filter(|field| !self.is_wanted(&field.name));
        let each: u64 = carried.map(|field| copied_bytes(&field.value)).sum();
        // The sample itself is one of them.
        let bytes = each.saturating_mul(children.saturating_sub(1) as u64);
        if bytes > MAX_OUTPUT_BYTES {
            return Err(broken(format!(
                "made {children} samples of one, for which copies of the fields carried past it would take {} MiB, limit \
                 is {} MiB; a field named under `wants` is not carried",
                mib(bytes),
                mib(MAX_OUTPUT_BYTES)
            )));
        }
        Ok(bytes)
    }

    /// The sample made of a checked item: in `input`'s place, with the fields carried past the guest, in the order in
    /// which they were made.
    pub(crate) fn sample(&mut self, item: ItemResult, input: Sample) -> Sample {
        self.place(item, input, |this, _, field| this.is_wanted(&field.name))
    }

    /// The children made of checked items.
    pub(crate) fn children(&mut self, items: Vec<ItemResult>, parent: Sample) -> Vec<Sample> {
        let template = self.template(parent);
        items.into_iter().zip(0_u64..).map(|(item, number)| self.child(item, &template, number)).collect()
    }

    /// Starting point of the sample's children.
    pub(crate) fn template(&self, mut parent: Sample) -> Template {
        let wanted: Vec<bool> = parent.fields.iter().map(|field| self.is_wanted(&field.name)).collect();
        for (field, _) in parent.fields.iter_mut().zip(&wanted).filter(|(_, wanted)| **wanted) {
            field.value = Value::Int(0);
        }
        Template { sample: parent, wanted }
    }

    /// Child `number` of a template's sample, made of a checked item.
    pub(crate) fn child(&mut self, item: ItemResult, template: &Template, number: u64) -> Sample {
        let mut child = self.place(item, template.sample.clone(), |_, field, _| template.wanted[field]);
        child.origin = child_of(template.sample.origin, number);
        child
    }

    /// The item in `input`'s place. A field that `is_wanted`, given its number and itself, goes unless the item has it.
    fn place(
        &mut self,
        item: ItemResult,
        input: Sample,
        is_wanted: impl Fn(&Self, usize, &Field) -> bool,
    ) -> Sample {
        let key = if *item.key == *input.key { input.key } else { item.key.into() };
        let mut given: Vec<Option<wit::FieldResult>> = item.fields.into_iter().map(Some).collect();
        let mut fields = Vec::with_capacity(given.len().max(input.fields.len()));
        for (number, mut field) in input.fields.into_iter().enumerate() {
            let same = |slot: &Option<wit::FieldResult>| {
                slot.as_ref().is_some_and(|given| *given.name == *field.name)
            };
            if let Some(replaced) = given.iter_mut().find(|slot| same(slot)).and_then(Option::take) {
                field.value = value(replaced.value);
                fields.push(field);
            } else if !is_wanted(self, number, &field) {
                fields.push(field);
            }
        }
        for made in given.into_iter().flatten() {
            fields.push(Field { name: self.name(&made.name), value: value(made.value) });
        }
        Sample { key, origin: input.origin, fields }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.wants.as_ref().is_none_or(|wants| wants.iter().any(|wanted| wanted == name))
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.iter().find(|known| &***known == name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        if self.known.len() < KNOWN_NAMES {
            self.known.push(name.clone());
        }
        name
    }
}

/// Origin of child `number` of a sample.
pub(crate) fn child_of(parent: Origin, number: u64) -> Origin {
    Origin { path: child_path(parent.path, number), ..parent }
}

/// A sample that the stage refused.
pub(crate) fn failed(sample: Sample, reason: &str) -> Failed {
    let reason = match reason.trim() {
        "" => "refused the sample without a reason".to_owned(),
        reason => printable(reason, MAX_REASON_BYTES),
    };
    Failed { sample, fault: Fault::new(FailureClass::Data, reason) }
}

/// A fault of a guest that broke the contract.
pub(crate) fn broken(reason: impl Into<Arc<str>>) -> Fault {
    Fault::new(FailureClass::Contract, reason)
}

/// The same fault with words before its message.
pub(crate) fn at(place: &str, fault: &Fault) -> Fault {
    Fault::new(fault.class, format!("{place}{}", fault.message))
}

/// Checks the children of `many` against the contract.
pub(crate) fn check_children(items: &[ItemResult], key: &str) -> Result<(), Fault> {
    if items.len() > MAX_CHILDREN {
        return Err(broken(format!("made {} samples of one, limit is {MAX_CHILDREN}", items.len())));
    }
    check_items(items, Some(key))
}

/// Checks the items made of one sample against the contract. `key` is that of the sample, which may be returned
/// unchanged.
pub(crate) fn check_items(items: &[ItemResult], key: Option<&str>) -> Result<(), Fault> {
    let mut bytes = 0_u64;
    for item in items {
        if key != Some(item.key.as_str()) {
            check_length("key", &item.key, MAX_KEY_BYTES)?;
        }
        check_fields(&item.fields)?;
        bytes += item.fields.iter().map(|field| size(&field.value)).sum::<u64>();
    }
    if bytes > MAX_OUTPUT_BYTES {
        let (made, limit) = (mib(bytes), mib(MAX_OUTPUT_BYTES));
        return Err(broken(format!("made {made} MiB of one sample, limit is {limit} MiB")));
    }
    Ok(())
}

fn check_fields(fields: &[wit::FieldResult]) -> Result<(), Fault> {
    if fields.len() > MAX_FIELDS {
        return Err(broken(format!("gave a sample {} fields, limit is {MAX_FIELDS}", fields.len())));
    }
    for field in fields {
        check_length("field name", &field.name, MAX_NAME_BYTES)?;
        if let wit::ValueResult::Tensor(tensor) = &field.value {
            let place = || format!("field `{}`: ", printable(&field.name, SHOWN_NAME));
            check_tensor(tensor).map_err(|fault| at(&place(), &fault))?;
        }
    }
    match twice(fields) {
        Some(name) => Err(broken(format!("gave field `{}` twice", printable(name, SHOWN_NAME)))),
        None => Ok(()),
    }
}

fn check_length(what: &str, text: &str, limit: usize) -> Result<(), Fault> {
    match text.len() {
        0 => Err(broken(format!("gave an empty {what}"))),
        found if found > limit => Err(broken(format!("gave a {what} of {found} bytes, limit is {limit}"))),
        _ => Ok(()),
    }
}

/// The first name of more than one field.
fn twice(fields: &[wit::FieldResult]) -> Option<&str> {
    if fields.len() <= FEW_FIELDS {
        let earlier = |(number, field): &(usize, &wit::FieldResult)| {
            fields[..*number].iter().any(|other| other.name == field.name)
        };
        return fields.iter().enumerate().find(earlier).map(|(_, field)| field.name.as_str());
    }
    let mut seen = HashSet::with_capacity(fields.len());
    fields.iter().map(|field| field.name.as_str()).find(|name| !seen.insert(*name))
}

fn check_tensor(tensor: &wit::TensorResult) -> Result<(), Fault> {
    if tensor.shape.len() > MAX_RANK {
        return Err(broken(format!("a tensor with {} dimensions, limit is {MAX_RANK}", tensor.shape.len())));
    }
    let dtype = dtype(tensor.dtype);
    let elements =
        tensor.shape.iter().try_fold(1_u64, |product, length| product.checked_mul(u64::from(*length)));
    let needed = elements.and_then(|elements| elements.checked_mul(dtype.size() as u64));
    let found = tensor.data.len() as u64;
    match needed {
        Some(needed) if needed == found => Ok(()),
        Some(needed) => Err(broken(format!(
            "a {} tensor of shape {:?} has {needed} bytes, but {found} were given",
            dtype.name(),
            tensor.shape
        ))),
        None => Err(broken(format!("a tensor of shape {:?} is larger than any memory", tensor.shape))),
    }
}

fn size(value: &wit::ValueResult) -> u64 {
    match value {
        wit::ValueResult::Blob(bytes) => bytes.len() as u64,
        wit::ValueResult::Text(text) => text.len() as u64,
        wit::ValueResult::Int(_) | wit::ValueResult::Real(_) => 8,
        wit::ValueResult::Tensor(tensor) => tensor.data.len() as u64,
    }
}

/// Bytes that a copy of this value takes beside those it shares.
fn copied_bytes(value: &Value) -> u64 {
    let owned = match value {
        Value::Text(text) => text.len(),
        Value::Tensor(tensor) => std::mem::size_of_val(tensor.shape.as_slice()),
        Value::Blob(_) | Value::Int(_) | Value::Real(_) => 0,
    };
    (owned + size_of::<Field>()) as u64
}

/// Converts a checked value. The bytes move, they are not copied.
fn value(value: wit::ValueResult) -> Value {
    match value {
        wit::ValueResult::Blob(bytes) => Value::Blob(Bytes::from(bytes)),
        wit::ValueResult::Text(text) => Value::Text(text),
        wit::ValueResult::Int(number) => Value::Int(number),
        wit::ValueResult::Real(number) => Value::Real(number),
        wit::ValueResult::Tensor(tensor) => Value::Tensor(Tensor {
            dtype: dtype(tensor.dtype),
            shape: tensor.shape,
            data: Bytes::from(tensor.data),
        }),
    }
}

fn param(value: &Value) -> wit::ValueParam<'_> {
    match value {
        Value::Blob(bytes) => wit::ValueParam::Blob(bytes),
        Value::Text(text) => wit::ValueParam::Text(text),
        Value::Int(number) => wit::ValueParam::Int(*number),
        Value::Real(number) => wit::ValueParam::Real(*number),
        Value::Tensor(tensor) => wit::ValueParam::Tensor(wit::TensorParam {
            dtype: wit_dtype(tensor.dtype),
            shape: &tensor.shape,
            data: &tensor.data,
        }),
    }
}

/// Conversions between the element types of the contract and the engine's, whose names are the same.
macro_rules! dtypes {
    ($($name:ident)*) => {
        fn dtype(dtype: wit::Dtype) -> Dtype {
            match dtype { $(wit::Dtype::$name => Dtype::$name),* }
        }

        fn wit_dtype(dtype: Dtype) -> wit::Dtype {
            match dtype { $(Dtype::$name => wit::Dtype::$name),* }
        }
    };
}

dtypes!(Boolean Uint8 Int8 Int16 Uint16 Int32 Int64 Float16 Bfloat16 Float32 Float64);

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
