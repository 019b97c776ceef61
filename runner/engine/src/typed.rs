//! Samples whose fields have the types of their data set.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use penstock_types::data_set::{
    DataField, DataFields, FieldType, LEARN_BYTES, LEARN_SAMPLES, Learner, TypeFault, is_exact,
};
use penstock_types::dtype::Dtype;
use penstock_types::fault::suggestion;
use penstock_types::left_out::LeftOutReason;
use penstock_types::resume::Hash;
use penstock_types::spec::{FillValue, WhenMissing};
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::chunk::Outcome;
use crate::element::{cast, put};
use crate::gathered::Gathered;
use crate::item::{Field, Sample, Tensor, Value};
use crate::mixed::fields_of;
use crate::notes::Notes;
use crate::numbered::{Numbered, Open, ReadFault, ReadSamples, chunk};
use crate::parts::SourcePart;
use crate::ports::SourceFault;
use crate::share::Share;

/// End of the name of a field that is true for each sample that has the field before it.
pub const PRESENT: &str = ".present";

/// Settings by which the fields of a source get their types.
#[derive(Clone, Debug)]
pub struct Typing {
    /// Handling of samples that lack a field, by field.
    pub missing: BTreeMap<String, WhenMissing>,
    /// Fields that an earlier run has learnt, which this one continues.
    pub earlier: Option<DataFields>,
    /// Types that the document declares, by field. `missing` may name one of them that the data set does not have.
    pub declared: BTreeMap<String, FieldType>,
    /// Type of a field by its name, where the name determines it.
    pub kind_of: fn(&str) -> Option<FieldType>,
    pub cures: Cures,
    /// Fields of all sources of the mixture, with the names of the sources: `missing` of one may name the fields of another.
    pub mixture: Option<(Arc<str>, Gathered<NamedFields>)>,
    pub notes: Notes,
}

/// Fields of the source with this name.
pub type NamedFields = (Arc<str>, DataFields);

/// Remedies for data that do not fit together, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Cures {
    /// For values of different types.
    pub differs: &'static str,
    /// For a whole number among broken ones that float64 does not hold exactly.
    pub inexact: &'static str,
    /// For a field of `missing` that the data set does not have; empty if there is none.
    pub unknown: &'static str,
}

/// Rules by which samples get the fields of their data set.
#[derive(Debug)]
pub struct FieldRules {
    rules: Vec<Rule>,
    by_name: HashMap<Arc<str>, usize>,
    /// Set if a rule fills in values or adds fields.
    fills: bool,
    is_open: bool,
    learnt_from: Option<u64>,
    cures: Cures,
}

#[derive(Debug)]
struct Rule {
    name: Arc<str>,
    kind: FieldType,
    /// Handling of a sample without the field; `None` leaves it as it is.
    fill: Option<Fill>,
    /// Name of the field that is true where this one is present.
    present: Option<Arc<str>>,
}

#[derive(Debug)]
enum Fill {
    Drop,
    Value(Value),
}

impl Default for Typing {
    fn default() -> Self {
        Self {
            missing: BTreeMap::new(),
            earlier: None,
            declared: BTreeMap::new(),
            kind_of: |_| None,
            cures: Cures::of("make the values alike"),
            mixture: None,
            notes: Notes::default(),
        }
    }
}

impl Cures {
    /// The same remedy for all values that do not fit together.
    pub const fn of(differs: &'static str) -> Self {
        Self { differs, inexact: differs, unknown: "" }
    }

    /// Message of a contradiction between values of one field.
    pub fn fault(&self, fault: &TypeFault) -> SourceFault {
        let cure = if matches!(fault, TypeFault::Inexact { .. }) { self.inexact } else { self.differs };
        SourceFault::new(format!("{fault}; {cure}"), None)
    }
}

impl Typing {
    /// Rules for a data set with these fields. Fails if a setting names a field that the data set does not have, or that its type does
    /// not permit. The notes get the fields.
    pub fn rules(&self, learnt: DataFields) -> Result<Arc<FieldRules>, SourceFault> {
        let (rules, made) = self
            .rules_for(&learnt)
            .map_err(|reason| SourceFault::new(format!("`missing` {reason}"), None))?;
        self.notes.set_fields(Arc::new(learnt), Arc::new(made));
        Ok(Arc::new(rules))
    }

    /// Samples with the types of their data set: those that an earlier run has learnt, those that the samples state, or else those of
    /// their first values, which are read for this.
    pub fn samples(mut self, open: Open) -> Open {
        async move {
            let samples = open.await?;
            let learnt = match (&self.earlier, samples.fields()) {
                (Some(earlier), _) => earlier.clone(),
                (None, Some(fields)) => fields,
                (None, None) => self.learn(&samples).await?,
            };
            self.notes.check_some_left(samples.count())?;
            self.declare_those_of_others(&learnt).await?;
            let rules = self.rules(learnt)?;
            let fields = self.notes.fields();
            Ok(Arc::new(Typed { samples, rules, fields }) as _)
        }
        .boxed()
    }

    /// Declares the fields of `missing` that other sources of the mixture have. Adds the fields of this one for the others.
    async fn declare_those_of_others(&mut self, learnt: &DataFields) -> Result<(), SourceFault> {
        let Some((name, mixture)) = &self.mixture else { return Ok(()) };
        mixture.add((name.clone(), learnt.clone()));
        let is_known = |name: &str| learnt.field(name).is_some() || self.declared.contains_key(name);
        let unknown: Vec<&String> = self.missing.keys().filter(|name| !is_known(name)).collect();
        if !unknown.is_empty() {
            let all = fields_of(mixture.all().await)?;
            let found = unknown.into_iter().filter_map(|name| Some((name.clone(), all.field(name)?.kind)));
            self.declared.extend(found.collect::<Vec<_>>());
        }
        Ok(())
    }

    async fn learn(&self, samples: &Arc<dyn Numbered>) -> Result<DataFields, SourceFault> {
        let (mut learner, mut bytes) = (Learner::default(), 0);
        let (most, at_a_time) = (samples.count().min(LEARN_SAMPLES), chunk(&**samples));
        let mut read = 0;
        while read < most && bytes < LEARN_BYTES {
            let numbers = (read..most.min(read + at_a_time)).collect();
            let share = Share::alone(LEARN_BYTES);
            let chunk = samples.clone().read(0, numbers, share).await.map_err(|fault| fault.fault)?;
            read += chunk.len() as u64;
            bytes += chunk.iter().map(Sample::bytes).sum::<u64>();
            for (sample, outcome) in chunk.into_outcomes() {
                if outcome.is_none() {
                    learn(&mut learner, &sample).map_err(|fault| self.cures.fault(&fault))?;
                }
            }
        }
        Ok(learner.finish(read == samples.count()))
    }

    /// The rules, and the fields of the samples that they make. The error is the end of a sentence about `missing`.
    fn rules_for(&self, learnt: &DataFields) -> Result<(FieldRules, DataFields), String> {
        let mut fields = learnt.fields.clone();
        // The samples that were not read may have fields that the document declares.
        let is_all = learnt.learnt_from.is_none() && !learnt.is_open;
        for (name, kind) in self.declared.iter().filter(|(name, _)| !is_all && learnt.field(name).is_none()) {
            fields.push(DataField { name: name.as_str().into(), kind: *kind, optional: None });
        }
        let is_damaged =
            self.notes.left_out().iter().any(|left_out| left_out.reason == LeftOutReason::Damage);
        for name in self.missing.keys() {
            if fields.iter().any(|field| *field.name == **name) {
                continue;
            }
            let Some(kind) = self.declared.get(name).copied().or_else(|| (self.kind_of)(name)) else {
                // The samples with the field may be those that are lost.
                if is_damaged {
                    self.notes.warn("fields of `missing` that are in no data that damage has left", name);
                    continue;
                }
                let near = suggestion(name, learnt.fields.iter().map(|field| &*field.name));
                let (of, name) = (known_samples(learnt.learnt_from), printable(name, MAX_SHOWN_KEY));
                let have = if learnt.learnt_from.is_some() { "do" } else { "does" };
                let cures = format!("; {near}{}", self.cures.unknown);
                let cures = cures.trim_end_matches([';', ' ']);
                return Err(format!("names the field `{name}`, which {of} {have} not have{cures}"));
            };
            fields.push(DataField { name: name.as_str().into(), kind, optional: Some(true) });
        }
        let mut made = DataFields { fields: Vec::new(), ..learnt.clone() };
        let mut rules = Vec::with_capacity(fields.len());
        for field in fields {
            let DataField { name, kind, optional } = field.clone();
            let when = self.missing.get(&*name).unwrap_or(&WhenMissing::Fail);
            let fill = fill(when, kind).map_err(|reason| {
                format!("cannot fill the field `{}`: {reason}", printable(&name, MAX_SHOWN_KEY))
            })?;
            let present = (*when == WhenMissing::Mask).then(|| Arc::from(format!("{name}{PRESENT}")));
            made.fields
                .push(DataField { optional: if fill.is_some() { Some(false) } else { optional }, ..field });
            if let Some(present) = &present {
                if learnt.field(present).is_some() {
                    return Err(format!(
                        "would make the field `{}`, which the data set has",
                        printable(present, MAX_SHOWN_KEY)
                    ));
                }
                let kind = FieldType::tensor(Dtype::Boolean, 0);
                made.fields.push(DataField { name: present.clone(), kind, optional: Some(false) });
            }
            rules.push(Rule { name, kind, fill, present });
        }
        let by_name = rules.iter().enumerate().map(|(place, rule)| (rule.name.clone(), place)).collect();
        let fills = rules.iter().any(|rule| rule.fill.is_some());
        let (is_open, learnt_from) = (learnt.is_open, learnt.learnt_from);
        Ok((FieldRules { rules, by_name, fills, is_open, learnt_from, cures: self.cures }, made))
    }
}

/// Value for a missing one of this type. The error is a reason.
fn fill(when: &WhenMissing, kind: FieldType) -> Result<Option<Fill>, String> {
    let tensor = |dtype: Dtype, shape: Vec<u32>, data: Vec<u8>| {
        Value::Tensor(Tensor { dtype, shape, data: data.into() })
    };
    let value = match (when, kind) {
        (WhenMissing::Fail, _) => return Ok(None),
        (WhenMissing::Drop, _) => return Ok(Some(Fill::Drop)),
        (WhenMissing::Mask, FieldType::Bytes) => Value::Blob(Bytes::new()),
        (WhenMissing::Mask, FieldType::Text) => Value::Text(String::new()),
        (WhenMissing::Mask, FieldType::Int) => Value::Int(0),
        (WhenMissing::Mask, FieldType::Real) => Value::Real(0.0),
        (WhenMissing::Mask, FieldType::Tensor { dtype: Some(dtype), dimensions: Some(dimensions) }) => {
            let elements = if dimensions == 0 { dtype.size() } else { 0 };
            tensor(dtype, vec![0; dimensions as usize], vec![0; elements])
        }
        (WhenMissing::Mask, FieldType::Tensor { .. }) => {
            return Err("its values are arrays of any type or shape, which have no zero".to_owned());
        }
        (WhenMissing::Nan, FieldType::Real) => Value::Real(f64::NAN),
        // Nulls in lists become NaN where the source reads them.
        (WhenMissing::Nan, FieldType::Tensor { dtype: Some(dtype), .. }) if dtype.is_float() => {
            return Ok(None);
        }
        (WhenMissing::Nan, _) => {
            return Err(format!("it {}, and only float numbers can be NaN", kind.in_words()));
        }
        (WhenMissing::Value(value), kind) => match (value, kind) {
            (FillValue::Bool(is_true), FieldType::Int) => Value::Int((*is_true).into()),
            (FillValue::Int(number), FieldType::Int) => Value::Int(*number),
            (FillValue::Int(number), FieldType::Real) if is_exact(*number) => Value::Real(*number as f64),
            (FillValue::Real(number), FieldType::Real) => Value::Real(*number),
            (FillValue::Text(text), FieldType::Text) => Value::Text(text.clone()),
            (FillValue::List(numbers), FieldType::Tensor { dtype: Some(dtype), dimensions: Some(1) }) => {
                let mut data = Vec::with_capacity(numbers.len() * dtype.size());
                if let Some(number) = numbers.iter().find(|number| !put(&mut data, dtype, **number)) {
                    return Err(format!("{number} is no {}", dtype.name()));
                }
                tensor(dtype, vec![numbers.len() as u32], data)
            }
            (value, _) => return Err(format!("it {}, and `value` is {value}", kind.in_words())),
        },
    };
    Ok(Some(Fill::Value(value)))
}

/// Adds the values of a sample to what is learnt.
pub fn learn(learner: &mut Learner, sample: &Sample) -> Result<(), TypeFault> {
    learner.begin_sample();
    let at = || format!("the sample `{}`", printable(&sample.key, MAX_SHOWN_KEY));
    for Field { name, value } in &sample.fields {
        let number = if let Value::Int(number) = value { Some(*number) } else { None };
        learner.see(name, type_of(value), number, &at)?;
    }
    Ok(())
}

pub fn type_of(value: &Value) -> FieldType {
    match value {
        Value::Blob(_) => FieldType::Bytes,
        Value::Text(_) => FieldType::Text,
        Value::Int(_) => FieldType::Int,
        Value::Real(_) => FieldType::Real,
        Value::Tensor(tensor) => FieldType::tensor(tensor.dtype, tensor.shape.len()),
    }
}

impl FieldRules {
    /// First field of the data set that is not among these, also one that `missing` fills in.
    pub fn lacking(&self, fields: &[Arc<str>]) -> Option<&Arc<str>> {
        self.rules.iter().map(|rule| &rule.name).find(|name| !fields.contains(name))
    }

    /// Gives a sample the fields of the data set. Returns an outcome if the sample is not passed on; fails if a value contradicts the
    /// type of its field.
    pub fn apply(&self, sample: &mut Sample) -> Result<Option<Outcome>, SourceFault> {
        let is_same = |(field, rule): (&Field, &Rule)| {
            (Arc::ptr_eq(&field.name, &rule.name) || field.name == rule.name)
                && has_type(&field.value, rule.kind)
        };
        let are_all = sample.fields.len() == self.rules.len();
        if are_all && !self.fills && sample.fields.iter().zip(&self.rules).all(is_same) {
            return Ok(None);
        }
        self.apply_each(sample)
    }

    fn apply_each(&self, sample: &mut Sample) -> Result<Option<Outcome>, SourceFault> {
        for at in 0..sample.fields.len() {
            let field = &mut sample.fields[at];
            let Some(rule) = self.by_name.get(&field.name).map(|place| &self.rules[*place]) else {
                if self.is_open {
                    continue;
                }
                return Err(self.unknown(sample, at));
            };
            if !has_type(&field.value, rule.kind) {
                match converted(&field.value, rule.kind) {
                    Some(value) => field.value = value,
                    None => return Err(self.contradiction(sample, at, rule)),
                }
            }
        }
        if !self.fills {
            return Ok(None);
        }
        // The fields that are filled in stand in the order of the rules, as in other samples.
        let mut given: Vec<Option<Field>> =
            std::mem::take(&mut sample.fields).into_iter().map(Some).collect();
        let mut outcome = None;
        for rule in &self.rules {
            let place =
                given.iter().position(|field| field.as_ref().is_some_and(|field| field.name == rule.name));
            let field = place.and_then(|place| given[place].take());
            let is_present = field.is_some();
            match (field, &rule.fill) {
                (Some(field), _) => sample.fields.push(field),
                (None, Some(Fill::Value(value))) => {
                    sample.fields.push(Field { name: rule.name.clone(), value: value.clone() });
                }
                (None, Some(Fill::Drop)) => outcome = Some(Outcome::Dropped),
                (None, None) => {}
            }
            if let Some(present) = &rule.present {
                let data = Bytes::from_static(if is_present { &[1] } else { &[0] });
                let value = Value::Tensor(Tensor { dtype: Dtype::Boolean, shape: Vec::new(), data });
                sample.fields.push(Field { name: present.clone(), value });
            }
        }
        sample.fields.extend(given.into_iter().flatten());
        Ok(outcome)
    }

    fn contradiction(&self, sample: &Sample, at: usize, rule: &Rule) -> SourceFault {
        let (found, cure) = match (&sample.fields[at].value, rule.kind) {
            (Value::Int(number), FieldType::Real) => {
                (format!("is {number}, which float64 does not hold exactly"), self.cures.inexact)
            }
            (value, _) => (type_of(value).in_words(), self.cures.differs),
        };
        let (name, of) = (printable(&rule.name, MAX_SHOWN_KEY), known_samples(self.learnt_from));
        let reason = format!("the field `{name}` {found}, and in {of} it {}; {cure}", rule.kind.in_words());
        fault(sample, &reason)
    }

    fn unknown(&self, sample: &Sample, at: usize) -> SourceFault {
        let Field { name, value } = &sample.fields[at];
        let of = match self.learnt_from {
            Some(samples) => format!("none of the first {samples} samples has"),
            None => "the data set does not have".to_owned(),
        };
        let (name, found) = (printable(name, MAX_SHOWN_KEY), type_of(value).in_words());
        fault(sample, &format!("the field `{name}` {found}, a field that {of}; {}", self.cures.differs))
    }
}

/// Describes the samples whose fields are known, for messages.
fn known_samples(learnt_from: Option<u64>) -> String {
    learnt_from.map_or("the data set".to_owned(), |samples| format!("the first {samples} samples"))
}

fn fault(sample: &Sample, reason: &str) -> SourceFault {
    let (key, position) = (printable(&sample.key, MAX_SHOWN_KEY), sample.origin.index);
    SourceFault::new(format!("sample `{key}` (position {position}): {reason}"), None)
}

/// True if the value needs no conversion to be of the type.
fn has_type(value: &Value, kind: FieldType) -> bool {
    match (value, kind) {
        (Value::Int(_), FieldType::Int)
        | (Value::Real(_), FieldType::Real)
        | (Value::Text(_), FieldType::Text)
        | (Value::Blob(_), FieldType::Bytes) => true,
        (Value::Tensor(_), FieldType::Tensor { .. }) => type_of(value).is(kind),
        _ => false,
    }
}

/// The value as one of the type; `None` if that would change it.
fn converted(value: &Value, kind: FieldType) -> Option<Value> {
    let list = |dtype, data: &[u8]| {
        Some(Value::Tensor(Tensor { dtype, shape: vec![1], data: Bytes::copy_from_slice(data) }))
    };
    match (value, kind) {
        (Value::Int(number), FieldType::Real) if is_exact(*number) => Some(Value::Real(*number as f64)),
        (Value::Int(number), FieldType::Tensor { dtype: Some(Dtype::Int64), dimensions: Some(1) }) => {
            list(Dtype::Int64, &number.to_le_bytes())
        }
        (Value::Real(number), FieldType::Tensor { dtype: Some(Dtype::Float64), dimensions: Some(1) }) => {
            list(Dtype::Float64, &number.to_le_bytes())
        }
        (Value::Real(number), FieldType::Tensor { dtype: Some(Dtype::Float32), dimensions: Some(1) })
            if f64::from(*number as f32) == *number || number.is_nan() =>
        {
            list(Dtype::Float32, &(*number as f32).to_le_bytes())
        }
        // The common type of the elements holds them all.
        (Value::Tensor(tensor), FieldType::Tensor { dtype: Some(dtype), dimensions })
            if dimensions.is_none_or(|dimensions| dimensions as usize == tensor.shape.len())
                && tensor.dtype.common(dtype) == Some(dtype) =>
        {
            cast(tensor, dtype).map(Value::Tensor)
        }
        _ => None,
    }
}

/// Numbered samples that get the types of their data set as they are read.
struct Typed {
    samples: Arc<dyn Numbered>,
    rules: Arc<FieldRules>,
    /// Fields of the samples, with those that are filled in.
    fields: Option<Arc<DataFields>>,
}

impl Numbered for Typed {
    fn count(&self) -> u64 {
        self.samples.count()
    }

    fn digest(&self) -> Option<Hash> {
        self.samples.digest()
    }

    fn older_digest(&self) -> Option<Hash> {
        self.samples.older_digest()
    }

    fn fields(&self) -> Option<DataFields> {
        self.fields.as_deref().cloned()
    }

    fn digest_of(&self, blocks: u64) -> Option<Hash> {
        self.samples.digest_of(blocks)
    }

    fn units(&self) -> Arc<[u64]> {
        self.samples.units()
    }

    fn parts(&self) -> Vec<SourcePart> {
        self.samples.parts()
    }

    fn mean_bytes(&self) -> u64 {
        self.samples.mean_bytes()
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move {
            let read = self.samples.clone().read(epoch, indexes, share).await;
            let (mut chunk, fault) = match read {
                Ok(chunk) => (chunk, None),
                Err(ReadFault { before, fault }) => (before, Some(fault)),
            };
            // A contradiction stands before a fault of the reading.
            match chunk.try_change(|sample| self.rules.apply(sample)).err().or(fault) {
                None => Ok(chunk),
                Some(fault) => Err(ReadFault { before: chunk, fault }),
            }
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.samples.kept_bytes()
    }

    fn objects(&self) -> Vec<Arc<str>> {
        self.samples.objects()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Origin;

    fn field(name: &str, kind: FieldType) -> DataField {
        DataField { name: name.into(), kind, optional: None }
    }

    fn sample(fields: &[(&str, Value)]) -> Sample {
        let mut sample = Sample::new("k", Origin::at(0, 7));
        fields.iter().for_each(|(name, value)| sample.set(*name, value.clone()));
        sample
    }

    fn array(dtype: Dtype, shape: &[u32], data: &[u8]) -> Value {
        Value::Tensor(Tensor { dtype, shape: shape.to_vec(), data: data.to_vec().into() })
    }

    /// Applies rules for these fields to a sample.
    fn apply(
        fields: &[DataField],
        missing: &[(&str, WhenMissing)],
        mut sample: Sample,
    ) -> Result<(Sample, Option<Outcome>), String> {
        let missing = missing.iter().map(|(name, when)| ((*name).to_owned(), when.clone())).collect();
        let cures = Cures { inexact: "set `text`", ..Cures::of("set `types`") };
        let declared = BTreeMap::from([("declared".to_owned(), FieldType::Int)]);
        let typing = Typing { missing, cures, declared, ..Typing::default() };
        let rules = typing.rules(DataFields::of(fields.to_vec())).map_err(|fault| fault.to_string())?;
        let outcome = rules.apply(&mut sample).map_err(|fault| fault.to_string())?;
        Ok((sample, outcome))
    }

    #[test]
    fn values_get_the_type_of_their_field_if_that_holds_them() {
        let converted = |value: Value, kind| apply(&[field("x", kind)], &[], sample(&[("x", value)]));
        let is = |value: Value, kind, expected: Value| {
            assert_eq!(converted(value, kind).unwrap().0.field("x"), Some(&expected));
        };
        is(Value::Int(3), FieldType::Real, Value::Real(3.0));
        is(
            Value::Int(3),
            FieldType::tensor(Dtype::Int64, 1),
            array(Dtype::Int64, &[1], &3_i64.to_le_bytes()),
        );
        is(
            Value::Real(0.5),
            FieldType::tensor(Dtype::Float32, 1),
            array(Dtype::Float32, &[1], &0.5_f32.to_le_bytes()),
        );
        is(
            array(Dtype::Int8, &[2], &[0xff, 1]),
            FieldType::tensor(Dtype::Int32, 1),
            array(Dtype::Int32, &[2], &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]),
        );
        is(
            array(Dtype::Uint8, &[1], &[200]),
            FieldType::tensor(Dtype::Float64, 1),
            array(Dtype::Float64, &[1], &200_f64.to_le_bytes()),
        );
        for (value, kind, told, cure) in [
            (
                Value::Int((1 << 53) + 1),
                FieldType::Real,
                "is 9007199254740993, which float64 does not hold exactly, and in the data set it is a single float64",
                "text",
            ),
            (
                Value::Real(0.5),
                FieldType::Int,
                "is a single float64, and in the data set it is a single int64",
                "types",
            ),
            (
                Value::Text("x".into()),
                FieldType::Int,
                "is a text, and in the data set it is a single int64",
                "types",
            ),
            (
                array(Dtype::Int64, &[1], &[0; 8]),
                FieldType::tensor(Dtype::Int32, 1),
                "is int64 with 1 dimension, and in the data set it is int32 with 1 dimension",
                "types",
            ),
        ] {
            assert_eq!(
                converted(value, kind).unwrap_err(),
                format!("sample `k` (position 7): the field `x` {told}; set `{cure}`")
            );
        }
    }

    #[test]
    fn a_field_that_the_data_set_does_not_have_is_a_contradiction() {
        let fields = [field("x", FieldType::Int)];
        let given = sample(&[("x", Value::Int(1)), ("y", Value::Int(1))]);
        assert_eq!(
            apply(&fields, &[], given).unwrap_err(),
            "sample `k` (position 7): the field `y` is a single int64, a field that the data set does not have; set `types`"
        );
    }

    #[test]
    fn missing_values_are_masked_filled_or_drop_their_sample() {
        let fields = [field("a", FieldType::Int), field("b", FieldType::Text)];
        let only_b = || sample(&[("b", Value::Text("t".into()))]);
        let (left, outcome) = apply(&fields, &[], only_b()).unwrap();
        assert_eq!((left.field("a"), outcome), (None, None));
        let names =
            |sample: &Sample| sample.fields.iter().map(|field| field.name.to_string()).collect::<Vec<_>>();
        let (masked, _) = apply(&fields, &[("a", WhenMissing::Mask)], only_b()).unwrap();
        assert_eq!(names(&masked), ["a", "a.present", "b"]);
        assert_eq!(masked.field("a"), Some(&Value::Int(0)));
        assert_eq!(masked.field("a.present"), Some(&array(Dtype::Boolean, &[], &[0])));
        let both = sample(&[("b", Value::Text("t".into())), ("a", Value::Int(4))]);
        let (masked, _) = apply(&fields, &[("a", WhenMissing::Mask)], both).unwrap();
        assert_eq!(names(&masked), ["a", "a.present", "b"], "in any order");
        assert_eq!(masked.field("a.present"), Some(&array(Dtype::Boolean, &[], &[1])));
        let (_, outcome) = apply(&fields, &[("a", WhenMissing::Drop)], only_b()).unwrap();
        assert_eq!(outcome, Some(Outcome::Dropped));
        let value = |value| WhenMissing::Value(value);
        let (filled, _) = apply(&fields, &[("a", value(FillValue::Int(-1)))], only_b()).unwrap();
        assert_eq!(filled.field("a"), Some(&Value::Int(-1)));
    }

    #[test]
    fn a_policy_for_a_field_that_damage_has_taken_is_a_warning() {
        let missing = BTreeMap::from([("y".to_owned(), WhenMissing::Mask)]);
        let typing = Typing { missing, ..Typing::default() };
        let rules = || typing.rules(DataFields::of(vec![field("x", FieldType::Int)]));
        assert!(rules().is_err());
        typing.notes.damage("s-0", Some(1), "`s-0` is missing");
        assert!(rules().is_ok());
        let warnings = typing.notes.warnings("0:src").join("\n");
        assert!(
            warnings.contains("fields of `missing` that are in no data that damage has left: 1 (`y`)"),
            "{warnings}"
        );
    }

    #[test]
    fn settings_that_do_not_fit_the_data_are_refused() {
        let fields = [field("label", FieldType::Int), field("x", FieldType::tensor(Dtype::Float32, 1))];
        let told = |name: &str, when| apply(&fields, &[(name, when)], sample(&[])).unwrap_err();
        assert_eq!(
            told("lable", WhenMissing::Mask),
            "`missing` names the field `lable`, which the data set does not have; did you mean `label`?"
        );
        assert_eq!(
            told("label", WhenMissing::Value(FillValue::Real(0.5))),
            "`missing` cannot fill the field `label`: it is a single int64, and `value` is 0.5"
        );
        assert_eq!(
            told("label", WhenMissing::Nan),
            "`missing` cannot fill the field `label`: it is a single int64, and only float numbers can be NaN"
        );
        let told = told("declared", WhenMissing::Value(FillValue::Text("x".into())));
        assert_eq!(
            told,
            "`missing` cannot fill the field `declared`: it is a single int64, and `value` is the text `x`"
        );
        let value = WhenMissing::Value(FillValue::Int(-1));
        let (filled, _) = apply(&fields, &[("declared", value)], sample(&[])).unwrap();
        assert_eq!(
            filled.field("declared"),
            Some(&Value::Int(-1)),
            "no sample has it, the document declares it"
        );
        assert!(
            apply(&fields, &[("x", WhenMissing::Value(FillValue::List(vec![1.0, 2.0])))], sample(&[]))
                .is_ok()
        );
    }
}
