//! Conversion of samples for the guest and back. All results of guests are checked in this module before anything else uses them.

use std::collections::{HashMap, HashSet};
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
    CallClock, MAX_CHILDREN, MAX_FIELDS, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_RANK, MAX_REASON_BYTES,
    MAX_SHAPE_BYTES,
};
use crate::seed::{StageSeed, child_path};
use crate::trap::CallEnd;

/// Maximum number of field names that are kept as shared strings; each further name is allocated again for every sample.
const KNOWN_NAMES: usize = 32;
/// Maximum number of fields for which names are compared pair by pair instead of with a map.
const FEW_FIELDS: usize = 16;
/// Number of bytes that the host copies in about the time of converting one value.
const BYTES_PER_VALUE: u64 = 4_096;
const SHOWN_NAME: usize = 64;

/// Converter of samples for one stage on one thread.
#[derive(Debug)]
pub(crate) struct Converter {
    wants: Wants,
    seed: StageSeed,
    /// Maximum size of the results of one sample in bytes, over all of its children.
    output_bytes: u64,
    /// Set if the manifest declares that one sample never becomes several.
    is_one_to_one: bool,
    known: Vec<Arc<str>>,
}

/// Converted result of one sample.
#[derive(Debug)]
pub(crate) enum Turned {
    Keep(Sample),
    Drop,
    Many(Vec<Sample>),
    Failed(Failed),
}

/// Fields that are passed to the guest.
#[derive(Debug)]
enum Wants {
    All,
    Few(Vec<String>),
    Many(HashSet<String>),
}

/// Template for the children of one sample: the sample as it entered the stage, and its carried fields, which bypass the guest
/// and are copied to each child.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) parent: Sample,
    /// Positions of the carried fields in the sample, ascending.
    carried: Vec<usize>,
    /// Positions of all fields by name; `None` if the sample has only a few fields.
    places: Option<HashMap<Arc<str>, usize>>,
}

impl Converter {
    /// Creates a converter that passes the fields named in `wants` to the guest, or all fields if `wants` is `None`.
    pub(crate) fn new(
        wants: Option<Vec<String>>,
        seed: StageSeed,
        output_bytes: u64,
        fan_out: Option<bool>,
    ) -> Self {
        let wants = match wants {
            None => Wants::All,
            Some(wants) if wants.len() <= FEW_FIELDS => Wants::Few(wants),
            Some(wants) => Wants::Many(wants.into_iter().collect()),
        };
        Self { wants, seed, output_bytes, is_one_to_one: fan_out == Some(false), known: Vec::new() }
    }

    /// Appends the fields that are passed to the guest, borrowed from the sample.
    pub(crate) fn fields<'a>(&self, sample: &'a Sample, into: &mut Vec<wit::FieldParam<'a>>) {
        let crossing = sample.fields.iter().filter(|field| self.is_wanted(&field.name));
        into.extend(crossing.map(|field| wit::FieldParam { name: &field.name, value: param(&field.value) }));
    }

    /// Form in which a sample is passed to the guest, with the given fields.
    pub(crate) fn item<'a>(&self, sample: &'a Sample, fields: &'a [wit::FieldParam<'a>]) -> ItemParam<'a> {
        ItemParam { key: &sample.key, seed: self.seed.item(&sample.origin), fields }
    }

    /// Checks the guest's outcome for a sample against the contract, for modes in which no sample may be held. Returns the number
    /// of bytes that will be copied from the sample to its children.
    pub(crate) fn check(
        &self,
        outcome: &Outcome,
        input: &Sample,
        clock: &mut CallClock,
    ) -> Result<u64, CallEnd> {
        match outcome {
            Outcome::Keep(item) => {
                self.check_items(std::slice::from_ref(item), Some(&input.key), clock).map(|()| 0)
            }
            Outcome::Many(items) if self.is_one_to_one && items.len() > 1 => Err(broken(format!(
                "made {} samples from one sample, but the module's manifest says `fan_out: false`; a stage of the SDK declares `#[stage(fan_out)]`",
                items.len()
            ))
            .into()),
            Outcome::Many(items) => {
                self.check_children(items, &input.key, clock)?;
                Ok(self.check_copies(input, items.len())?)
            }
            Outcome::Held => {
                Err(broken("answered `held`, but the module's manifest does not say `mode: stateful`").into())
            }
            Outcome::Drop | Outcome::Failed(_) => Ok(clock.on_work(1).map(|()| 0)?),
        }
    }

    /// Checks the children of an outcome `many` against the contract.
    pub(crate) fn check_children(
        &self,
        items: &[ItemResult],
        key: &str,
        clock: &mut CallClock,
    ) -> Result<(), CallEnd> {
        if items.len() > MAX_CHILDREN {
            return Err(broken(format!(
                "made {} samples from one sample, but the limit is {MAX_CHILDREN}",
                items.len()
            ))
            .into());
        }
        self.check_items(items, Some(key), clock)
    }

    /// Checks the items made from one sample against the contract. `key` is the sample's key, which may be returned unchanged
    /// even if it breaks the rules for keys.
    pub(crate) fn check_items(
        &self,
        items: &[ItemResult],
        key: Option<&str>,
        clock: &mut CallClock,
    ) -> Result<(), CallEnd> {
        let mut bytes = 0_u64;
        for item in items {
            if key != Some(item.key.as_str()) {
                check_length("key", &item.key, MAX_KEY_BYTES)?;
            }
            check_fields(&item.fields)?;
            let made: u64 = item.fields.iter().map(|field| size(&field.value)).sum();
            clock.on_work(work_of(item) + made / BYTES_PER_VALUE)?;
            bytes += made;
        }
        if bytes > self.output_bytes {
            let (made, limit) = (mib(bytes), mib(self.output_bytes));
            return Err(broken(format!(
                "made {made} MiB from one sample, but the limit is {limit} MiB (`output_mib`)"
            ))
            .into());
        }
        Ok(())
    }

    /// Converts a checked outcome; `held` produces no sample. If the call is ended during the conversion, the error contains the
    /// unchanged sample.
    pub(crate) fn turn(
        &mut self,
        outcome: Outcome,
        input: Sample,
        clock: &mut CallClock,
    ) -> Result<Turned, (CallEnd, Sample)> {
        match outcome {
            Outcome::Keep(item) => match clock.on_work(work_of(&item) + input.fields.len() as u64) {
                Ok(()) => Ok(Turned::Keep(self.sample(item, input))),
                Err(kill) => Err((kill.into(), input)),
            },
            Outcome::Many(items) if !items.is_empty() => self.children(items, input, clock).map(Turned::Many),
            Outcome::Many(_) | Outcome::Drop | Outcome::Held => Ok(Turned::Drop),
            Outcome::Failed(reason) => Ok(Turned::Failed(failed(input, &reason))),
        }
    }

    /// Checks that a sample may have `children` children, each with a copy of the carried fields: texts are copied, all other bytes
    /// are shared. Returns the size of the copies, in bytes.
    pub(crate) fn check_copies(&self, parent: &Sample, children: usize) -> Result<u64, Fault> {
        let carried = parent.fields.iter().filter(|field| !self.is_wanted(&field.name));
        let each: u64 = carried.map(|field| copied_bytes(&field.value)).sum();
        // One child takes over the sample's fields without a copy.
        let bytes = each.saturating_mul(children.saturating_sub(1) as u64);
        if bytes > self.output_bytes {
            return Err(broken(format!(
                "made {children} samples from one sample, for which copies of the fields that bypass the module would take {} MiB, \
                 but the limit is {} MiB (`output_mib`); fields named under `wants` do not bypass the module",
                mib(bytes),
                mib(self.output_bytes)
            )));
        }
        Ok(bytes)
    }

    /// Makes a sample from a checked item, which replaces `input`: fields that `input` has keep their order, including the
    /// carried fields; new fields are appended.
    pub(crate) fn sample(&mut self, item: ItemResult, input: Sample) -> Sample {
        let Sample { key, origin, mut fields } = input;
        let key = if *item.key == *key { key } else { item.key.into() };
        let mut given: Vec<Option<wit::FieldResult>> = item.fields.into_iter().map(Some).collect();
        let by_name = (given.len() > FEW_FIELDS && fields.len() > FEW_FIELDS).then(|| {
            let names = given.iter().flatten().map(|field| field.name.clone());
            names.zip(0..).collect::<HashMap<String, usize>>()
        });
        fields.retain_mut(|field| {
            let same = |slot: &Option<wit::FieldResult>| {
                slot.as_ref().is_some_and(|given| *given.name == *field.name)
            };
            let slot = match &by_name {
                Some(slots) => slots.get(&*field.name).copied(),
                None => given.iter().position(same),
            };
            match slot.and_then(|slot| given[slot].take()) {
                Some(replaced) => {
                    field.value = value(replaced.value);
                    true
                }
                None => !self.is_wanted(&field.name),
            }
        });
        for made in given.into_iter().flatten() {
            fields.push(Field { name: self.name(&made.name), value: value(made.value) });
        }
        // Frees the unused capacity of a sample that has lost most of its fields.
        if fields.capacity() > 4 * (fields.len() + FEW_FIELDS) {
            fields.shrink_to_fit();
        }
        Sample { key, origin, fields }
    }

    /// Makes children from checked items. If the call is ended during the conversion, the error contains the unchanged parent.
    pub(crate) fn children(
        &mut self,
        items: Vec<ItemResult>,
        parent: Sample,
        clock: &mut CallClock,
    ) -> Result<Vec<Sample>, (CallEnd, Sample)> {
        let template = self.template(parent);
        let mut children = Vec::with_capacity(items.len());
        if let Err(kill) = clock.on_work(template.parent.fields.len() as u64) {
            return Err((kill.into(), template.parent));
        }
        for (item, number) in items.into_iter().zip(0_u64..) {
            if let Err(kill) = clock.on_work(template.work_of(&item)) {
                return Err((kill.into(), template.parent));
            }
            children.push(self.child(item, &template, number));
        }
        Ok(children)
    }

    pub(crate) fn template(&self, parent: Sample) -> Template {
        let named = || parent.fields.iter().map(|field| &field.name).enumerate();
        let carried = named().filter(|(_, name)| !self.is_wanted(name)).map(|(place, _)| place).collect();
        let places = (parent.fields.len() > FEW_FIELDS)
            .then(|| named().map(|(place, name)| (name.clone(), place)).collect());
        Template { carried, places, parent }
    }

    /// Makes child `number` of the template's sample from a checked item: fields that the sample has keep their order, and new
    /// fields are appended.
    pub(crate) fn child(&mut self, item: ItemResult, template: &Template, number: u64) -> Sample {
        let parent = &template.parent;
        let key = if *item.key == *parent.key { parent.key.clone() } else { item.key.into() };
        let (mut placed, mut made) = (Vec::with_capacity(item.fields.len()), Vec::new());
        for field in item.fields {
            let value = value(field.value);
            match template.place_of(&field.name) {
                Some(place) => {
                    placed.push((place, Field { name: parent.fields[place].name.clone(), value }));
                }
                None => made.push(Field { name: self.name(&field.name), value }),
            }
        }
        placed.sort_unstable_by_key(|(place, _)| *place);
        let mut fields = Vec::with_capacity(template.carried.len() + placed.len() + made.len());
        let mut carried = template.carried.iter().copied().peekable();
        for (place, field) in placed {
            while let Some(before) = carried.next_if(|before| *before < place) {
                fields.push(parent.fields[before].clone());
            }
            carried.next_if_eq(&place);
            fields.push(field);
        }
        fields.extend(carried.map(|place| parent.fields[place].clone()));
        fields.append(&mut made);
        Sample { key, origin: child_of(parent.origin, number), fields }
    }

    fn is_wanted(&self, name: &str) -> bool {
        match &self.wants {
            Wants::All => true,
            Wants::Few(wants) => wants.iter().any(|wanted| wanted == name),
            Wants::Many(wants) => wants.contains(name),
        }
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

impl Template {
    fn place_of(&self, name: &str) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(name).copied(),
            None => self.parent.fields.iter().position(|field| &*field.name == name),
        }
    }

    /// Number of values in a child made from this item, including the carried fields.
    fn work_of(&self, item: &ItemResult) -> u64 {
        work_of(item) + self.carried.len() as u64
    }
}

/// Number of values in an item, as counted by [`CallClock::on_work`].
fn work_of(item: &ItemResult) -> u64 {
    1 + item.fields.len() as u64
}

pub(crate) fn child_of(parent: Origin, number: u64) -> Origin {
    Origin { path: child_path(parent.path, number), ..parent }
}

/// Failure of a sample that the stage refused.
pub(crate) fn failed(sample: Sample, reason: &str) -> Failed {
    let reason = match reason.trim() {
        "" => "refused the sample without a reason".to_owned(),
        reason => printable(reason, MAX_REASON_BYTES),
    };
    Failed { sample, fault: Fault::new(FailureClass::Data, reason) }
}

/// Fault of a guest that broke the contract.
pub(crate) fn broken(reason: impl Into<Arc<str>>) -> Fault {
    Fault::new(FailureClass::Contract, reason)
}

fn check_fields(fields: &[wit::FieldResult]) -> Result<(), Fault> {
    if fields.len() > MAX_FIELDS {
        return Err(broken(format!(
            "returned a sample with {} fields, but the limit is {MAX_FIELDS}",
            fields.len()
        )));
    }
    for field in fields {
        check_length("field name", &field.name, MAX_NAME_BYTES)?;
        if let wit::ValueResult::Tensor(tensor) = &field.value {
            check_tensor(tensor).map_err(|fault| {
                broken(format!("field `{}`: {}", printable(&field.name, SHOWN_NAME), fault.message))
            })?;
        }
    }
    match twice(fields) {
        Some(name) => Err(broken(format!("returned field `{}` twice", printable(name, SHOWN_NAME)))),
        None => Ok(()),
    }
}

fn check_length(what: &str, text: &str, limit: usize) -> Result<(), Fault> {
    match text.len() {
        0 => Err(broken(format!("returned an empty {what}"))),
        found if found > limit => {
            Err(broken(format!("returned a {what} of {found} bytes, but the limit is {limit}")))
        }
        _ => Ok(()),
    }
}

/// Name of the first field whose name occurs more than once.
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
    let rank = tensor.shape.len();
    if rank > MAX_RANK {
        return Err(broken(format!("a tensor with {rank} dimensions, but the limit is {MAX_RANK}")));
    }
    let dtype = dtype(tensor.dtype);
    // Sizes of 0 count as 1, because a consumer may multiply the other sizes even if the tensor has no elements.
    let sizes = tensor.shape.iter().map(|size| u64::from(*size).max(1));
    let product = sizes.fold(dtype.size() as u64, u64::saturating_mul);
    if product > MAX_SHAPE_BYTES {
        let shape = &tensor.shape;
        return Err(broken(format!("a tensor of shape {shape:?} is larger than the limit of 4 TiB")));
    }
    let needed = if tensor.shape.contains(&0) { 0 } else { product };
    let found = tensor.data.len() as u64;
    if needed == found {
        return Ok(());
    }
    let (dtype, shape) = (dtype.name(), &tensor.shape);
    Err(broken(format!("a {dtype} tensor of shape {shape:?} has {needed} bytes, but {found} were returned")))
}

fn size(value: &wit::ValueResult) -> u64 {
    match value {
        wit::ValueResult::Blob(bytes) => bytes.len() as u64,
        wit::ValueResult::Text(text) => text.len() as u64,
        wit::ValueResult::Int(_) | wit::ValueResult::Real(_) => 8,
        wit::ValueResult::Tensor(tensor) => tensor.data.len() as u64,
    }
}

/// Bytes that a copy of this value occupies in addition to the bytes shared with the original.
fn copied_bytes(value: &Value) -> u64 {
    let owned = match value {
        Value::Text(text) => text.len(),
        Value::Tensor(tensor) => std::mem::size_of_val(tensor.shape.as_slice()),
        Value::Blob(_) | Value::Int(_) | Value::Real(_) => 0,
    };
    (owned + size_of::<Field>()) as u64
}

/// Converts a checked value. Its bytes are moved, not copied.
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

/// Defines the conversions between the element types of the contract and of the engine, which have the same names.
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
