//! Types of the fields of a data set: the same for all of its samples, independent of the order in which they are delivered.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::text::printable;

/// Number of samples from which the types of a data set are learnt if not all of them are read beforehand.
pub const LEARN_SAMPLES: u64 = 10_000;

/// Size of the samples from which the types of a data set are learnt, in bytes; the last one may exceed it.
pub const LEARN_BYTES: u64 = 8 << 20;

/// Maximum number of different fields of a data set.
pub const MAX_FIELDS: usize = 1 << 14;

/// Maximum length of a field's name in messages, in bytes.
const MAX_SHOWN_NAME: usize = 100;

/// Type of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldType {
    /// Unparsed bytes.
    Bytes,
    /// Text in UTF-8.
    Text,
    /// Whole number of 64 bits.
    Int,
    /// Floating-point number of 64 bits.
    Real,
    /// Array.
    Tensor {
        /// Element type; `None` if each value states its own.
        dtype: Option<Dtype>,
        /// Number of dimensions; `None` if values may differ in it.
        dimensions: Option<u32>,
    },
}

/// A field of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FieldRecord", into = "FieldRecord")]
pub struct DataField {
    /// Name in the samples.
    pub name: Arc<str>,
    /// Type of all values.
    pub kind: FieldType,
    /// True if some samples lack the field, false if none does; `None` if this is not known.
    pub optional: Option<bool>,
}

/// Fields of a data set, in the order in which its first samples have them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataFields {
    /// The fields.
    #[schemars(with = "Vec<FieldRecord>")]
    pub fields: Vec<DataField>,
    /// Number of samples from which the types were learnt; `null` if the form of the data states them, or if all samples were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learnt_from: Option<u64>,
    /// Set if samples may have further fields, whose names determine their types, as in tar shards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
}

/// A field of a data set, as snapshots and states have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldRecord {
    /// Name in the samples.
    pub name: String,
    /// `bytes`, `text`, or the element type as NumPy names it, e.g. `int64`; `null` if each value states its own.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Number of dimensions of a value, 0 for a single one; `null` if values may differ in it.
    pub dimensions: Option<u32>,
    /// True if some samples lack the field, false if none does; `null` if this is not known.
    pub optional: Option<bool>,
}

/// Reason why the values of a field have no common type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeFault {
    /// Two values have types without a common one.
    #[error("the field `{}` {} in {one_at}, and {} in {other_at}", printable(name, MAX_SHOWN_NAME), one.in_words(), other.in_words())]
    Differs {
        /// Name of the field.
        name: String,
        /// Type of the first value.
        one: FieldType,
        /// Place of the first value, for a message.
        one_at: String,
        /// Another type.
        other: FieldType,
        /// Place of its first value.
        other_at: String,
    },
    /// A field has broken numbers, and a whole one that is not among the numbers of `float64`.
    #[error(
        "the field `{}` has broken numbers, such as in {real_at}, and the whole number {number} in {at}, which float64 does not hold exactly",
        printable(name, MAX_SHOWN_NAME)
    )]
    Inexact {
        /// Name of the field.
        name: String,
        /// The whole number.
        number: i64,
        /// Place of the whole number.
        at: String,
        /// Place of a broken number.
        real_at: String,
    },
    /// The samples have too many different fields.
    #[error("the samples have more than {MAX_FIELDS} different fields, of which `{}` is one", printable(.0, MAX_SHOWN_NAME))]
    TooMany(String),
}

/// Learns the fields of a data set from its samples.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    seen: Vec<Seen>,
    by_name: HashMap<Arc<str>, usize>,
    samples: u64,
    /// Position of the field that is expected next: samples mostly have their fields in one order.
    next: usize,
}

#[derive(Clone, Debug)]
struct Seen {
    name: Arc<str>,
    kind: FieldType,
    /// Number of samples with the field.
    count: u64,
    /// Number of the last sample with the field, from 1.
    last: u64,
    /// Place of the first value of the type.
    at: String,
    /// First whole number that float64 does not hold exactly, with its place.
    inexact: Option<(i64, String)>,
}

impl FieldType {
    /// Type of arrays with these elements and this number of dimensions.
    pub fn tensor(dtype: Dtype, dimensions: usize) -> Self {
        Self::Tensor { dtype: Some(dtype), dimensions: Some(u32::try_from(dimensions).unwrap_or(u32::MAX)) }
    }

    /// Type that all values of both types can have: whole and broken numbers become broken ones, and elements get the smallest type
    /// that holds both. `None` if there is none.
    pub fn common(self, other: Self) -> Option<Self> {
        use FieldType::{Int, Real, Tensor};
        match (self, other) {
            _ if self == other => Some(self),
            (Int, Real) | (Real, Int) => Some(Real),
            (Tensor { dtype: one, dimensions }, Tensor { dtype: other, dimensions: dimensions_of_other }) => {
                let is_same = dimensions.zip(dimensions_of_other).is_none_or(|(one, other)| one == other);
                let dtype = match one.zip(other) {
                    Some((one, other)) => Some(one.common(other)?),
                    None => None,
                };
                let dimensions = dimensions.and(dimensions_of_other);
                is_same.then_some(Tensor { dtype, dimensions })
            }
            _ => None,
        }
    }

    /// Type of the lists of numbers that single numbers and lists become, in records in which a list of one number looks like a single
    /// one. `None` for other types.
    fn list_with(self, other: Self) -> Option<Self> {
        let of_single = |single: Self, list: Self| {
            let dtype = if single == Self::Int { Dtype::Int64 } else { Dtype::Float32 };
            (matches!(single, Self::Int | Self::Real) && list == Self::tensor(dtype, 1)).then_some(list)
        };
        of_single(self, other).or_else(|| of_single(other, self))
    }

    /// True if values of this type are of the type `of` as they are.
    pub fn is(self, of: Self) -> bool {
        match (self, of) {
            (
                Self::Tensor { dtype, dimensions },
                Self::Tensor { dtype: of_dtype, dimensions: of_dimensions },
            ) => {
                of_dtype.is_none_or(|of| dtype == Some(of))
                    && of_dimensions.is_none_or(|of| dimensions == Some(of))
            }
            _ => self == of,
        }
    }

    /// Predicate of a sentence about a field, e.g. `is a single int64`.
    pub fn in_words(self) -> String {
        match self {
            Self::Bytes => "is a blob".to_owned(),
            Self::Text => "is a text".to_owned(),
            Self::Int => "is a single int64".to_owned(),
            Self::Real => "is a single float64".to_owned(),
            Self::Tensor { dtype, dimensions } => {
                let dtype = dtype.map_or("an array", Dtype::name);
                match dimensions {
                    None => format!("is {dtype} of any shape"),
                    Some(0) => format!("is a single {dtype}"),
                    Some(1) => format!("is {dtype} with 1 dimension"),
                    Some(dimensions) => format!("is {dtype} with {dimensions} dimensions"),
                }
            }
        }
    }

    /// Name of the type, and number of dimensions.
    fn record(self) -> (Option<&'static str>, Option<u32>) {
        match self {
            Self::Bytes => (Some("bytes"), Some(0)),
            Self::Text => (Some("text"), Some(0)),
            Self::Int => (Some("int64"), Some(0)),
            Self::Real => (Some("float64"), Some(0)),
            Self::Tensor { dtype, dimensions } => (dtype.map(Dtype::name), dimensions),
        }
    }
}

/// Short name, e.g. `int64`, `float32 [2 dimensions]`.
impl Display for FieldType {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let (kind, dimensions) = self.record();
        out.write_str(kind.unwrap_or("array"))?;
        match dimensions {
            Some(0) => Ok(()),
            Some(1) => out.write_str(" [1 dimension]"),
            Some(dimensions) => write!(out, " [{dimensions} dimensions]"),
            None => out.write_str(" [any shape]"),
        }
    }
}

impl From<DataField> for FieldRecord {
    fn from(field: DataField) -> Self {
        let (kind, dimensions) = field.kind.record();
        Self {
            name: field.name.as_ref().to_owned(),
            kind: kind.map(str::to_owned),
            dimensions,
            optional: field.optional,
        }
    }
}

impl TryFrom<FieldRecord> for DataField {
    type Error = String;

    fn try_from(FieldRecord { name, kind, dimensions, optional }: FieldRecord) -> Result<Self, String> {
        let kind = match (kind.as_deref(), dimensions) {
            (Some("bytes"), Some(0)) => FieldType::Bytes,
            (Some("text"), Some(0)) => FieldType::Text,
            (Some("int64"), Some(0)) => FieldType::Int,
            (Some("float64"), Some(0)) => FieldType::Real,
            (None, dimensions) => FieldType::Tensor { dtype: None, dimensions },
            (Some(kind), dimensions) => {
                let dtype = Dtype::named(kind)
                    .ok_or_else(|| format!("`{}` is no type of a field", printable(kind, 40)))?;
                FieldType::Tensor { dtype: Some(dtype), dimensions }
            }
        };
        Ok(Self { name: name.into(), kind, optional })
    }
}

impl DataFields {
    /// Fields whose types the form of the data states.
    pub fn of(fields: Vec<DataField>) -> Self {
        Self { fields, ..Self::default() }
    }

    /// The field `name`.
    pub fn field(&self, name: &str) -> Option<&DataField> {
        self.fields.iter().find(|field| *field.name == *name)
    }

    /// Fields of samples that come from several sources, named by `names`. A field that only some of them have is optional.
    pub fn of_several(parts: &[(Arc<str>, Self)]) -> Result<Self, TypeFault> {
        let mut all = Self { is_open: parts.iter().any(|(_, part)| part.is_open), ..Self::default() };
        let mut of: Vec<&Arc<str>> = Vec::new();
        for (place, (name, part)) in parts.iter().enumerate() {
            for field in &part.fields {
                let Some(at) = all.fields.iter().position(|known| known.name == field.name) else {
                    let optional = if place == 0 { field.optional } else { Some(true) };
                    all.fields.push(DataField { optional, ..field.clone() });
                    of.push(name);
                    continue;
                };
                let known = &mut all.fields[at];
                let Some(kind) = known.kind.common(field.kind) else {
                    return Err(TypeFault::Differs {
                        name: field.name.as_ref().to_owned(),
                        one: known.kind,
                        one_at: format!("the source `{}`", of[at]),
                        other: field.kind,
                        other_at: format!("the source `{name}`"),
                    });
                };
                known.kind = kind;
                known.optional = match (known.optional, field.optional) {
                    (Some(true), _) | (_, Some(true)) => Some(true),
                    (Some(false), Some(false)) => Some(false),
                    _ => None,
                };
            }
            for known in &mut all.fields {
                if part.field(&known.name).is_none() {
                    known.optional = if part.is_open { None } else { Some(true) };
                }
            }
            all.learnt_from = all.learnt_from.max(part.learnt_from);
        }
        Ok(all)
    }
}

impl Learner {
    /// Number of samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Begins the next sample.
    pub fn begin_sample(&mut self) {
        self.samples += 1;
        self.next = 0;
    }

    /// Adds a value of the current sample, with the number if it is a whole one. `at` is its place, for a message.
    pub fn see(
        &mut self,
        name: &str,
        kind: FieldType,
        number: Option<i64>,
        at: &dyn Fn() -> String,
    ) -> Result<(), TypeFault> {
        let inexact = number.filter(|number| !is_exact(*number));
        let place = match self.seen.get(self.next) {
            Some(seen) if *seen.name == *name => self.next,
            _ => match self.by_name.get(name) {
                Some(place) => *place,
                None => {
                    self.add(Seen { name: name.into(), kind, count: 0, last: 0, at: at(), inexact: None })?
                }
            },
        };
        self.next = place + 1;
        let seen = &mut self.seen[place];
        // A name may stand twice in one sample.
        seen.count += u64::from(seen.last != self.samples);
        seen.last = self.samples;
        if seen.kind != kind {
            seen.join(kind, at)?;
        }
        if let Some(number) = inexact.filter(|_| seen.inexact.is_none()) {
            seen.inexact = Some((number, at()));
            seen.check_exact(&seen.at)?;
        }
        Ok(())
    }

    /// Adds what was learnt from the samples behind those of this value.
    pub fn join(&mut self, other: Self) -> Result<(), TypeFault> {
        for theirs in other.seen {
            let Some(place) = self.by_name.get(&theirs.name).copied() else {
                self.add(theirs)?;
                continue;
            };
            let seen = &mut self.seen[place];
            seen.count += theirs.count;
            seen.join(theirs.kind, &|| theirs.at.clone())?;
            if seen.inexact.is_none() {
                seen.inexact = theirs.inexact;
            }
            let real_at = if theirs.kind == FieldType::Real { &theirs.at } else { &seen.at };
            seen.check_exact(real_at)?;
        }
        self.samples += other.samples;
        Ok(())
    }

    /// Adds a field that was not seen before. Returns its place.
    fn add(&mut self, field: Seen) -> Result<usize, TypeFault> {
        if self.seen.len() == MAX_FIELDS {
            return Err(TypeFault::TooMany(field.name.as_ref().to_owned()));
        }
        self.by_name.insert(field.name.clone(), self.seen.len());
        self.seen.push(field);
        Ok(self.seen.len() - 1)
    }

    /// Fields of the samples; `is_all` if there are no others.
    pub fn finish(self, is_all: bool) -> DataFields {
        let samples = self.samples;
        let field = |seen: Seen| DataField {
            name: seen.name,
            kind: seen.kind,
            optional: match (seen.count < samples, is_all) {
                (true, _) => Some(true),
                (false, true) => Some(false),
                (false, false) => None,
            },
        };
        DataFields {
            fields: self.seen.into_iter().map(field).collect(),
            learnt_from: (!is_all).then_some(samples),
            is_open: false,
        }
    }
}

impl Seen {
    /// Joins another type of values, the first of which is at `at`.
    fn join(&mut self, kind: FieldType, at: &dyn Fn() -> String) -> Result<(), TypeFault> {
        let Some(common) = self.kind.common(kind).or_else(|| self.kind.list_with(kind)) else {
            return Err(TypeFault::Differs {
                name: self.name.as_ref().to_owned(),
                one: self.kind,
                one_at: self.at.clone(),
                other: kind,
                other_at: at(),
            });
        };
        if common != self.kind {
            self.kind = common;
            if kind == common {
                self.at = at();
            }
            self.check_exact(&self.at)?;
        }
        Ok(())
    }

    fn check_exact(&self, real_at: &str) -> Result<(), TypeFault> {
        match &self.inexact {
            Some((number, at)) if self.kind == FieldType::Real => Err(TypeFault::Inexact {
                name: self.name.as_ref().to_owned(),
                number: *number,
                at: at.clone(),
                real_at: real_at.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// True if float64 holds this number exactly.
pub fn is_exact(number: i64) -> bool {
    const ALL_EXACT: u64 = 1 << 53;
    number.unsigned_abs() <= ALL_EXACT || (number as f64) as i128 == i128::from(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Learns from samples of one field; `None` is a sample without it.
    fn learnt(values: &[Option<(FieldType, Option<i64>)>]) -> Result<Learner, String> {
        let mut learner = Learner::default();
        for (line, value) in values.iter().enumerate() {
            learner.begin_sample();
            if let Some((kind, number)) = value {
                let at = || format!("line {}", line + 1);
                learner.see("n", *kind, *number, &at).map_err(|fault| fault.to_string())?;
            }
        }
        Ok(learner)
    }

    fn int(number: i64) -> Option<(FieldType, Option<i64>)> {
        Some((FieldType::Int, Some(number)))
    }

    const REAL: Option<(FieldType, Option<i64>)> = Some((FieldType::Real, None));
    const TEXT: Option<(FieldType, Option<i64>)> = Some((FieldType::Text, None));
    const LARGE: i64 = (1 << 53) + 1;

    #[test]
    fn whole_and_broken_numbers_are_float64_whatever_their_order() {
        for values in [[int(1), REAL, int(2)], [REAL, int(1), int(2)], [int(1), int(2), REAL]] {
            let fields = learnt(&values).unwrap().finish(true);
            let expected = DataField { name: "n".into(), kind: FieldType::Real, optional: Some(false) };
            assert_eq!(fields, DataFields::of(vec![expected]));
        }
    }

    #[test]
    fn a_text_beside_a_number_is_a_fault_that_names_both() {
        assert_eq!(
            learnt(&[int(1), TEXT]).unwrap_err(),
            "the field `n` is a single int64 in line 1, and is a text in line 2"
        );
        assert_eq!(
            learnt(&[None, TEXT, REAL]).unwrap_err(),
            "the field `n` is a text in line 2, and is a single float64 in line 3"
        );
    }

    #[test]
    fn a_whole_number_that_float64_does_not_hold_contradicts_broken_ones() {
        let told = |real: &str, whole: &str| {
            format!(
                "the field `n` has broken numbers, such as in {real}, and the whole number 9007199254740993 in {whole}, which float64 \
                 does not hold exactly"
            )
        };
        assert_eq!(learnt(&[int(LARGE), REAL]).unwrap_err(), told("line 2", "line 1"));
        assert_eq!(learnt(&[REAL, int(LARGE)]).unwrap_err(), told("line 1", "line 2"));
        assert!(learnt(&[int(LARGE), int(1)]).is_ok());
        assert!(learnt(&[int(1 << 60), REAL]).is_ok(), "a power of two is exact");
    }

    #[test]
    fn a_single_number_is_a_list_beside_lists_in_one_source_only() {
        let list = FieldType::tensor(Dtype::Int64, 1);
        for values in [[int(1), Some((list, None))], [Some((list, None)), int(1)]] {
            assert_eq!(learnt(&values).unwrap().finish(true).fields[0].kind, list);
        }
        assert!(learnt(&[REAL, Some((list, None))]).is_err());
        let part = |name: &str, kind| {
            let field = DataField { name: "n".into(), kind, optional: Some(false) };
            (Arc::from(name), DataFields::of(vec![field]))
        };
        let (single, several) = (part("a", FieldType::Int), part("b", list));
        assert_eq!(
            DataFields::of_several(&[single.clone(), several.clone()]).unwrap_err().to_string(),
            "the field `n` is a single int64 in the source `a`, and is int64 with 1 dimension in the source `b`"
        );
        assert!(DataFields::of_several(&[several, single]).is_err());
    }

    #[test]
    fn presence_is_certain_only_if_all_samples_were_read() {
        let optional = |values: &[_], is_all| learnt(values).unwrap().finish(is_all).fields[0].optional;
        assert_eq!(optional(&[int(1), None], false), Some(true));
        assert_eq!(optional(&[int(1), int(1)], true), Some(false));
        assert_eq!(optional(&[int(1), int(1)], false), None);
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        use FieldType::*;
        let tensors = [Some(Dtype::Uint8), None]
            .into_iter()
            .flat_map(|dtype| [Some(0), Some(3), None].map(|dimensions| Tensor { dtype, dimensions }));
        for kind in [Bytes, Text, Int, Real].into_iter().chain(tensors) {
            let field = DataField { name: "f".into(), kind, optional: None };
            let text = serde_json::to_string(&field).unwrap();
            assert_eq!(serde_json::from_str::<DataField>(&text).unwrap(), field, "{text}");
        }
        assert!(
            serde_json::from_str::<DataField>(r#"{"name":"f","type":"x","dimensions":0,"optional":null}"#)
                .is_err()
        );
    }

    #[test]
    fn sources_of_a_mixture_share_types() {
        let part = |name: &str, kind, optional| {
            let field = DataField { name: "label".into(), kind, optional };
            (Arc::from(name), DataFields::of(vec![field]))
        };
        let mixed = |parts: &[_]| DataFields::of_several(parts).map(|all| all.fields);
        let (int, real) = (part("a", FieldType::Int, Some(false)), part("b", FieldType::Real, Some(false)));
        assert_eq!(mixed(&[int.clone(), real]).unwrap()[0].kind, FieldType::Real);
        let none = (Arc::from("b"), DataFields::default());
        assert_eq!(mixed(&[int.clone(), none.clone()]).unwrap()[0].optional, Some(true));
        assert_eq!(mixed(&[none, int.clone()]).unwrap()[0].optional, Some(true));
        assert_eq!(
            mixed(&[int, part("b", FieldType::Text, None)]).unwrap_err().to_string(),
            "the field `label` is a single int64 in the source `a`, and is a text in the source `b`"
        );
    }

    proptest! {
        /// Samples are learnt from in parts, of which several are read at a time.
        #[test]
        fn parts_that_are_joined_teach_the_same_as_the_whole(
            values in proptest::collection::vec(prop_oneof![Just(None), Just(REAL), Just(int(3)), Just(int(LARGE)), Just(TEXT)], 0..12), cut in 0_usize..12,
        ) {
            let cut = cut.min(values.len());
            let whole = learnt(&values);
            let joined = match (learnt(&values[..cut]), learnt(&values[cut..])) {
                (Ok(mut first), Ok(second)) => first.join(second).map(|()| first).map_err(|fault| fault.to_string()),
                (Err(fault), _) | (_, Err(fault)) => Err(fault),
            };
            prop_assert_eq!(whole.is_ok(), joined.is_ok());
            if let (Ok(whole), Ok(joined)) = (whole, joined) {
                prop_assert_eq!(whole.finish(true), joined.finish(true));
            }
        }
    }
}
