//! Forms of values: what must be equal in all samples of a stacked field.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use penstock_types::data_set::FieldType;
use penstock_types::policy::Ragged;

use crate::item::{Dtype, Field, Sample, Tensor, Value};
use crate::notes::Notes;
use crate::ports::StopFlag;

pub(super) struct Difference {
    pub(super) message: String,
    pub(super) cure: &'static str,
}

/// Remedy for samples that lack a field of their data set.
const ABSENT: &str = "set `missing` of the source, or set `mismatch` to `skip`";

/// Remedy for samples that differ from their data set in the type of a field.
const MISMATCH: &str =
    "make the fields alike, in the source or by the module `std/table`, or set `mismatch` to `skip`";

/// Remedy for tensors of different shapes.
pub(super) const SHAPES: &str =
    "make shapes equal in a stage before, or set `ragged` to `pad`, `list` or `skip`";

/// Properties of a value that must be equal in all samples of a stacked field.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form<'a> {
    Array(Dtype, &'a [u32]),
    /// A tensor of any shape with this element type and number of dimensions, at least one.
    Ragged(Dtype, usize),
    Text,
    Blob,
}

/// Type of a field in all samples of a data set; the shapes of its values may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Array(Dtype, usize),
    Text,
    Blob,
}

/// Fields of the samples of a data set where they are stacked: those that the stages leave as the source makes them, and those of the
/// first sample that is stacked. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Usual {
    notes: Notes,
    /// Fields that the stages may change; `None` if they may change all.
    changed: Option<Arc<BTreeSet<String>>>,
    fields: Arc<OnceLock<Fields>>,
}

#[derive(Debug)]
pub(super) struct Fields {
    kinds: Vec<(Arc<str>, Kind)>,
    places: HashMap<Arc<str>, usize>,
}

impl Usual {
    /// Fields of the source whose notes these are, and of stages that may change the fields `changed`, or all.
    pub fn of(notes: Notes, changed: Option<BTreeSet<String>>) -> Self {
        Self { notes, changed: changed.map(Arc::new), fields: Arc::default() }
    }

    /// The fields. Those that the source does not determine are those of `first`, if this is the first sample.
    pub(super) fn with(&self, first: &Sample) -> &Fields {
        self.fields.get_or_init(|| {
            let mut kinds: Vec<(Arc<str>, Kind)> = Vec::new();
            if let (Some(changed), Some(fields)) = (&self.changed, self.notes.fields()) {
                let kept = fields.fields.iter().filter(|field| !changed.contains(&*field.name));
                kinds.extend(kept.filter_map(|field| Some((field.name.clone(), Kind::of_type(field.kind)?))));
            }
            for Field { name, value } in &first.fields {
                if !kinds.iter().any(|(known, _)| known == name) {
                    kinds.push((name.clone(), Kind::of(value)));
                }
            }
            let places = kinds.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
            Fields { kinds, places }
        })
    }

    /// Warns that the majority of a batch decided on shapes.
    pub(super) fn warn_of_majority(&self, sample: &Sample) {
        let warning = "samples, or more, skipped because their shapes are rarer in their batch (set `shape` of `collate`)";
        self.notes.warn(warning, &sample.key);
    }
}

impl Fields {
    /// Difference of a sample from the data set in presence or type; `None` if there is none.
    pub(super) fn mismatch(&self, sample: &Sample) -> Option<Difference> {
        let mut pairs = self.kinds.iter().zip(&sample.fields);
        let is_same = |((name, kind), field): (&(Arc<str>, Kind), &Field)| {
            (Arc::ptr_eq(name, &field.name) || *name == field.name) && *kind == Kind::of(&field.value)
        };
        if self.kinds.len() == sample.fields.len() && pairs.all(is_same) {
            return None;
        }
        for Field { name, value } in &sample.fields {
            let found = Kind::of(value);
            let (message, cure) = match self.places.get(name).map(|place| self.kinds[*place].1) {
                Some(kind) if kind == found => continue,
                Some(kind) => (format!("field `{name}` {found}, in the data set it {kind}"), MISMATCH),
                None => (format!("field `{name}` {found}, and other samples do not have it"), ABSENT),
            };
            return Some(Difference { message, cure });
        }
        if self.kinds.len() == sample.fields.len() {
            return None;
        }
        let own: BTreeSet<&str> = sample.fields.iter().map(|field| &*field.name).collect();
        let (name, kind) = self.kinds.iter().find(|(name, _)| !own.contains(&**name))?;
        let message = format!("field `{name}` is missing, in the data set it {kind}");
        Some(Difference { message, cure: ABSENT })
    }
}

impl Kind {
    fn of(value: &Value) -> Self {
        match value {
            Value::Blob(_) => Self::Blob,
            Value::Text(_) => Self::Text,
            Value::Int(_) => Self::Array(Dtype::Int64, 0),
            Value::Real(_) => Self::Array(Dtype::Float64, 0),
            Value::Tensor(tensor) => Self::Array(tensor.dtype, tensor.shape.len()),
        }
    }

    /// Kind of a type; `None` if its values may have several.
    fn of_type(kind: FieldType) -> Option<Self> {
        Some(match kind {
            FieldType::Bytes => Self::Blob,
            FieldType::Text => Self::Text,
            FieldType::Int => Self::Array(Dtype::Int64, 0),
            FieldType::Real => Self::Array(Dtype::Float64, 0),
            FieldType::Tensor { dtype, dimensions } => Self::Array(dtype?, dimensions? as usize),
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(dtype, 0) => write!(out, "is a single {}", dtype.name()),
            Self::Array(dtype, 1) => write!(out, "is {} with 1 dimension", dtype.name()),
            Self::Array(dtype, dimensions) => write!(out, "is {} with {dimensions} dimensions", dtype.name()),
            Self::Text => out.write_str("is a text"),
            Self::Blob => out.write_str("is a blob"),
        }
    }
}

impl<'a> Form<'a> {
    pub(super) fn of(value: &'a Value, ragged: Ragged) -> Self {
        match value {
            Value::Blob(_) => Self::Blob,
            Value::Text(_) => Self::Text,
            Value::Int(_) => Self::Array(Dtype::Int64, &[]),
            Value::Real(_) => Self::Array(Dtype::Float64, &[]),
            Value::Tensor(Tensor { dtype, shape, .. }) => match ragged {
                Ragged::Pad | Ragged::List if !shape.is_empty() => Self::Ragged(*dtype, shape.len()),
                _ => Self::Array(*dtype, shape),
            },
        }
    }
}

/// True if both samples have the same fields in the same order, and corresponding values can be stacked.
pub(super) fn are_in_order(a: &Sample, b: &Sample, ragged: Ragged) -> bool {
    let mut pairs = a.fields.iter().zip(&b.fields);
    // Most samples of a source share their names: the text of the names need not be read.
    let has_same_name = |a: &Field, b: &Field| Arc::ptr_eq(&a.name, &b.name) || a.name == b.name;
    a.fields.len() == b.fields.len()
        && pairs.all(|(a, b)| has_same_name(a, b) && have_same_form(&a.value, &b.value, ragged))
}

fn have_same_form(a: &Value, b: &Value, ragged: Ragged) -> bool {
    match (a, b) {
        // Numbers have no shapes. Comparing two empty ones took a tenth of the CPU time of a pipeline with four numbers in each
        // sample.
        (Value::Int(_), Value::Int(_)) | (Value::Real(_), Value::Real(_)) => true,
        _ => Form::of(a, ragged) == Form::of(b, ragged),
    }
}

/// True if a sample has the shapes of the document.
pub(super) fn have_shapes(sample: &Sample, shapes: &BTreeMap<String, Vec<u32>>) -> bool {
    shapes.is_empty() || odd_shape(sample, None, shapes, Ragged::Skip).is_none()
}

/// Difference of a sample from the shapes of the document, or else from those of `reference`, which has the same fields; `None` if there
/// is none, or if shapes may differ.
pub(super) fn odd_shape(
    sample: &Sample,
    reference: Option<&Sample>,
    shapes: &BTreeMap<String, Vec<u32>>,
    ragged: Ragged,
) -> Option<String> {
    if matches!(ragged, Ragged::Pad | Ragged::List) {
        return None;
    }
    for Field { name, value } in &sample.fields {
        let Value::Tensor(Tensor { shape, .. }) = value else { continue };
        let (wanted, whose) = match shapes.get(&**name) {
            Some(wanted) => (wanted, "`shape` has"),
            None => match reference.and_then(|reference| reference.field(name)) {
                Some(Value::Tensor(Tensor { shape, .. })) => (shape, "the batch has"),
                _ => continue,
            },
        };
        if shape != wanted {
            return Some(format!("field `{name}` has shape {shape:?}, {whose} {wanted:?}"));
        }
    }
    None
}

/// Reorders the fields of all samples into the order of the first sample; the samples have equal fields. `None` once the run is
/// stopping.
pub(super) fn put_in_order(samples: &mut [Sample], ragged: Ragged, stop: &StopFlag) -> Option<()> {
    let Some((first, rest)) = samples.split_first_mut() else { return Some(()) };
    let places: LazyCell<HashMap<Arc<str>, usize>, _> = LazyCell::new(|| {
        first.fields.iter().enumerate().map(|(place, field)| (field.name.clone(), place)).collect()
    });
    for sample in rest {
        if stop.is_set() {
            return None;
        }
        if !are_in_order(first, sample, ragged) {
            sample.fields.sort_by_cached_key(|field| places.get(&field.name).copied());
        }
    }
    Some(())
}

/// Position of the first sample of the largest group of equal samples, 0 without samples. If several groups have this size, the first of
/// these groups is used. `None` once the run is stopping.
pub(super) fn most_common(samples: &[Sample], ragged: Ragged, stop: &StopFlag) -> Option<usize> {
    let mut groups: HashMap<Vec<(&str, Form<'_>)>, (usize, usize)> = HashMap::new();
    for (place, sample) in samples.iter().enumerate() {
        if stop.is_set() {
            return None;
        }
        let mut signature: Vec<(&str, Form<'_>)> =
            sample.fields.iter().map(|field| (&*field.name, Form::of(&field.value, ragged))).collect();
        signature.sort_unstable_by_key(|(name, _)| *name);
        groups.entry(signature).or_insert((0, place)).0 += 1;
    }
    let largest = groups.into_values().max_by_key(|(count, place)| (*count, std::cmp::Reverse(*place)));
    Some(largest.map_or(0, |(_, place)| place))
}
