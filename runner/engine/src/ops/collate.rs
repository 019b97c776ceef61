//! Stacks the fields of a batch's samples.

mod pad;

use std::cell::LazyCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use penstock_types::policy::Ragged;
use penstock_types::run::FailureClass;
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use self::pad::{Padding, largest_shape, shape_name, stacked_shapes, unpaddable};
use crate::item::{Collated, Column, Dtype, Field, Item, Sample, Stacked, Tensor, Value};
use crate::memory::{BatchMemory, Filling};
use crate::ports::{Failed, Fault, Output, StopFlag, ThreadOp, ThreadOpFactory};

/// Stacks every field over the samples of a batch. The fields, types and shapes of the largest group of equal samples apply (of
/// the first such group if several have the same size); a sample that differs fails without failing its batch. The order of a
/// sample's fields does not matter. `ragged` determines the treatment of tensors that differ only in shape.
#[derive(Clone, Debug, Default)]
pub struct Collate {
    ragged: Ragged,
    memory: Option<Arc<dyn BatchMemory>>,
}

impl Collate {
    /// Writes arrays into `memory`, or to the heap if `memory` is `None`.
    pub fn new(ragged: Ragged, memory: Option<Arc<dyn BatchMemory>>) -> Self {
        Self { ragged, memory }
    }

    /// Stacks the samples of a batch; `None` once the run is stopping.
    fn collated(&self, samples: Vec<Sample>, stop: &StopFlag) -> Option<Output> {
        let Kept { alike, failed, fatal } = keep_alike(samples, self.ragged, stop)?;
        let fatal = fatal.or_else(|| unpaddable(&alike).filter(|_| self.ragged == Ragged::Pad));
        if let Some(message) = fatal {
            let fault = Fault::new(FailureClass::Data, format!("not stacked: {message}"));
            let mut output = Output::all_failed(alike, &fault);
            output.failed.extend(failed);
            return Some(Output { fatal: Some(message), ..output });
        }
        let output = if alike.is_empty() {
            Output::default()
        } else {
            Output::one(Item::Collated(stack(alike, self.ragged, self.memory.as_deref(), stop)?))
        };
        Some(Output { failed, ..output })
    }
}

impl ThreadOpFactory for Collate {
    fn build(&self, _: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        Ok(Box::new(self.clone()))
    }
}

impl ThreadOp for Collate {
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output {
        match item {
            // The output is empty after a stop: the engine ignores it and counts the samples as left.
            Item::Batch(samples) => self.collated(samples, stop).unwrap_or_default(),
            Item::Sample(sample) => {
                let message =
                    "`collate` takes batches, but this is a single sample: put an `aggregate` before it";
                Output::all_failed([sample], &Fault::new(FailureClass::Bug, message))
            }
            // A collated batch passes unchanged.
            Item::Collated(_) => Output::one(item),
        }
    }
}

/// Properties of a value that must be equal in all samples of a stacked field.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form<'a> {
    Array(Dtype, &'a [u32]),
    /// A tensor of any shape with this element type and number of dimensions, at least one.
    Ragged(Dtype, usize),
    Text,
    Blob,
}

impl<'a> Form<'a> {
    fn of(value: &'a Value, ragged: Ragged) -> Self {
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

impl fmt::Display for Form<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(dtype, []) => write!(f, "is a single {}", dtype.name()),
            Self::Array(dtype, shape) => write!(f, "is {} {shape:?}", dtype.name()),
            Self::Ragged(dtype, 1) => write!(f, "is {} with 1 dimension", dtype.name()),
            Self::Ragged(dtype, dimensions) => write!(f, "is {} with {dimensions} dimensions", dtype.name()),
            Self::Text => f.write_str("is a text"),
            Self::Blob => f.write_str("is a blob"),
        }
    }
}

/// Samples of a batch, split into those that are stacked and those that fail.
struct Kept {
    /// Samples with the most common fields. The fields of each are in the order of the first sample.
    alike: Vec<Sample>,
    /// Samples with other fields, unchanged; they fail.
    failed: Vec<Failed>,
    /// Reason for failing the run, if the batch as a whole cannot be stacked.
    fatal: Option<String>,
}

/// Difference between a sample and the most common form in its batch.
struct Oddity {
    message: String,
    /// Set if only the shape of the field differs.
    is_shape: bool,
}

/// Splits the samples of a batch into those that can be stacked and those that fail; `None` once the run is stopping.
fn keep_alike(mut samples: Vec<Sample>, ragged: Ragged, stop: &StopFlag) -> Option<Kept> {
    let (mut failed, mut fatal) = (Vec::new(), None);
    if !are_alike(&samples, ragged, stop)? {
        let usual = &samples[most_common(&samples, ragged, stop)?];
        let places = places_of(usual);
        // All differences are computed before any sample is moved, because `usual` borrows from `samples`.
        let oddity = |sample| (!stop.is_set()).then(|| oddity(sample, usual, &places, ragged));
        let oddities: Vec<Option<Oddity>> = samples.iter().map(oddity).collect::<Option<_>>()?;
        let mut alike = Vec::with_capacity(samples.len());
        for (sample, oddity) in samples.into_iter().zip(oddities) {
            let Some(Oddity { message, is_shape }) = oddity else {
                alike.push(sample);
                continue;
            };
            if is_shape && ragged == Ragged::Fail && fatal.is_none() {
                fatal = Some(format!(
                    "sample `{}` does not fit its batch: {message}; make shapes equal in a stage before, or set `ragged` to \
                     `pad`, `list` or `skip`",
                    printable(&sample.key, MAX_SHOWN_KEY)
                ));
            }
            failed.push(Failed { sample, fault: Fault::new(FailureClass::Data, message) });
        }
        samples = alike;
    }
    put_in_order(&mut samples, ragged, stop)?;
    Some(Kept { alike: samples, failed, fatal })
}

/// True if all samples have the same fields with equal forms, in any order. `None` once the run is stopping.
fn are_alike(samples: &[Sample], ragged: Ragged, stop: &StopFlag) -> Option<bool> {
    let Some((first, rest)) = samples.split_first() else { return Some(true) };
    let places = LazyCell::new(|| places_of(first));
    for sample in rest {
        if stop.is_set() {
            return None;
        }
        if !are_in_order(first, sample, ragged) && oddity(sample, first, &places, ragged).is_some() {
            return Some(false);
        }
    }
    Some(true)
}

/// True if both samples have the same fields in the same order, and corresponding values can be stacked.
fn are_in_order(a: &Sample, b: &Sample, ragged: Ragged) -> bool {
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

/// Positions of a sample's fields by name.
type Places = HashMap<Arc<str>, usize>;

fn places_of(sample: &Sample) -> Places {
    sample.fields.iter().enumerate().map(|(place, field)| (field.name.clone(), place)).collect()
}

/// Reorders the fields of all samples into the order of the first sample; the samples have equal fields. `None` once the run is
/// stopping.
fn put_in_order(samples: &mut [Sample], ragged: Ragged, stop: &StopFlag) -> Option<()> {
    let Some((first, rest)) = samples.split_first_mut() else { return Some(()) };
    let places = LazyCell::new(|| places_of(first));
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

/// Position of the first sample of the largest group of equal samples. If several groups have this size, the first of these
/// groups is used. `None` once the run is stopping.
fn most_common(samples: &[Sample], ragged: Ragged, stop: &StopFlag) -> Option<usize> {
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
    largest.map(|(_, place)| place)
}

/// Compares `sample` with `usual`, a sample of the largest group, whose field positions are `places`; `None` if they agree.
fn oddity(sample: &Sample, usual: &Sample, places: &Places, ragged: Ragged) -> Option<Oddity> {
    let other = |message| Some(Oddity { message, is_shape: false });
    if are_in_order(usual, sample, ragged) {
        return None;
    }
    let own = places_of(sample);
    for field in &usual.fields {
        let name = &field.name;
        let wanted = Form::of(&field.value, ragged);
        let Some(value) = own.get(name).map(|place| &sample.fields[*place].value) else {
            return other(format!("field `{name}` is missing, but the rest of the batch has it"));
        };
        match (Form::of(value, ragged), wanted) {
            (found, wanted) if found == wanted => {}
            (Form::Array(found_type, found), Form::Array(wanted_type, wanted))
                if found_type == wanted_type =>
            {
                let message = format!("field `{name}` has shape {found:?}, the batch has {wanted:?}");
                return Some(Oddity { message, is_shape: true });
            }
            (found, wanted) => return other(format!("field `{name}` {found}, in the batch it {wanted}")),
        }
    }
    let extra = sample.fields.iter().find(|field| !places.contains_key(&field.name))?;
    other(format!("field `{}` is not in the rest of the batch", extra.name))
}

/// Stacks at least one sample; all samples have equal fields in the same order. Each value is dropped as soon as it is copied.
/// `None` once the run is stopping.
fn stack(
    mut samples: Vec<Sample>,
    ragged: Ragged,
    memory: Option<&dyn BatchMemory>,
    stop: &StopFlag,
) -> Option<Collated> {
    let names: Vec<Arc<str>> = samples[0].fields.iter().map(|field| field.name.clone()).collect();
    let mut fields = Vec::with_capacity(names.len());
    for (place, name) in names.into_iter().enumerate() {
        let shapes = (ragged == Ragged::Pad).then(|| stacked_shapes(&samples, place)).flatten();
        let shapes = shapes.map(|values| Column { name: shape_name(&name).into(), values });
        fields.push(Column { values: stack_field(&mut samples, place, ragged, memory, stop)?, name });
        fields.extend(shapes);
    }
    let origins = samples.iter().map(|sample| sample.origin).collect();
    Some(Collated { keys: samples.into_iter().map(|sample| sample.key).collect(), origins, fields })
}

/// Takes the values of the field at position `place` out of all samples and stacks them.
fn stack_field(
    samples: &mut [Sample],
    place: usize,
    ragged: Ragged,
    memory: Option<&dyn BatchMemory>,
    stop: &StopFlag,
) -> Option<Stacked> {
    let count = samples.len();
    let array = |dtype: Dtype, shape: &[u32]| {
        let elements: usize = shape.iter().map(|size| *size as usize).product();
        // The conversion is exact: a batch has at most 1,000,000 samples.
        let whole = [&[count as u32], shape].concat();
        Filled::Array(dtype, whole, Filling::new(memory, count * elements * dtype.size()))
    };
    let mut filling = match Form::of(&samples[0].fields[place].value, ragged) {
        Form::Array(dtype, shape) => array(dtype, shape),
        Form::Ragged(dtype, _) if ragged == Ragged::Pad => array(dtype, &largest_shape(samples, place)),
        Form::Ragged(..) => Filled::Tensors(Vec::with_capacity(count)),
        Form::Text => Filled::Texts(Vec::with_capacity(count)),
        Form::Blob => Filled::Blobs(Vec::with_capacity(count)),
    };
    for sample in samples {
        if stop.is_set() {
            return None;
        }
        let value = std::mem::replace(&mut sample.fields[place].value, Value::Int(0));
        match (&mut filling, value) {
            (Filled::Array(dtype, shape, data), Value::Tensor(tensor)) if tensor.shape != shape[1..] => {
                let padding = Padding { element_bytes: dtype.size(), stop };
                padding.append(data, &tensor.data, &tensor.shape, &shape[1..])?;
            }
            (Filled::Array(_, _, data), value) => append(data, &value),
            (Filled::Tensors(tensors), Value::Tensor(tensor)) => tensors.push(tensor),
            (Filled::Texts(texts), Value::Text(text)) => texts.push(text),
            (Filled::Blobs(blobs), Value::Blob(blob)) => blobs.push(blob),
            (Filled::Tensors(_) | Filled::Texts(_) | Filled::Blobs(_), _) => {}
        }
    }
    Some(match filling {
        Filled::Array(dtype, shape, data) => Stacked::Tensor(Tensor { dtype, shape, data: data.finish() }),
        Filled::Tensors(tensors) => Stacked::Tensors(tensors),
        Filled::Texts(texts) => Stacked::Texts(texts),
        Filled::Blobs(blobs) => Stacked::Blobs(blobs),
    })
}

/// A field that is being stacked.
enum Filled {
    Array(Dtype, Vec<u32>, Filling),
    Tensors(Vec<Tensor>),
    Texts(Vec<String>),
    Blobs(Vec<Bytes>),
}

/// Appends the elements of one value, little-endian.
fn append(data: &mut Filling, value: &Value) {
    match value {
        Value::Tensor(tensor) => data.append(&tensor.data),
        Value::Int(number) => data.append(&number.to_le_bytes()),
        Value::Real(number) => data.append(&number.to_le_bytes()),
        Value::Text(_) | Value::Blob(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Field, Origin};
    use crate::ports::Items;

    fn tensor(shape: &[u32], fill: u8) -> Value {
        let len = shape.iter().map(|size| *size as usize).product();
        Value::Tensor(Tensor { dtype: Dtype::Uint8, shape: shape.to_vec(), data: vec![fill; len].into() })
    }

    fn sample(index: u64, fields: &[(&str, Value)]) -> Sample {
        let mut sample = Sample::new(format!("{index}.jpg"), Origin::at(0, index));
        for (name, value) in fields {
            sample.set(*name, value.clone());
        }
        sample
    }

    /// Stacks the samples. Returns the collated batch, and the key and message of each failed sample.
    fn collate(samples: Vec<Sample>) -> (Option<Collated>, Vec<(String, String)>) {
        // `Ragged::Skip` fails only the samples whose shapes differ.
        let output = Collate::new(Ragged::Skip, None).apply(Item::Batch(samples), &StopFlag::default());
        let failed = output.failed.iter().map(|failed| {
            assert_eq!(failed.fault.class, FailureClass::Data);
            (failed.sample.key.to_string(), failed.fault.message.to_string())
        });
        let failed = failed.collect();
        match output.items {
            Items::None => (None, failed),
            Items::One(Item::Collated(batch)) => (Some(batch), failed),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_kind_of_field_is_stacked_over_the_samples() {
        let make = |index: u64| {
            sample(
                index,
                &[
                    ("image", tensor(&[2, 1, 3], index as u8)),
                    ("label", Value::Int(-(index as i64))),
                    ("weight", Value::Real(index as f64 / 2.0)),
                    ("caption", Value::Text(format!("no {index}"))),
                    ("raw", Value::Blob(vec![index as u8; index as usize].into())),
                ],
            )
        };
        let (batch, failed) = collate(vec![make(1), make(2)]);
        let batch = batch.unwrap();
        assert_eq!(failed, []);
        assert_eq!(batch.keys, ["1.jpg".into(), "2.jpg".into()]);
        assert_eq!(batch.origins.iter().map(|origin| origin.index).collect::<Vec<_>>(), [1, 2]);
        let array = |dtype, shape: &[u32], data: Vec<u8>| {
            Stacked::Tensor(Tensor { dtype, shape: shape.to_vec(), data: data.into() })
        };
        let expected = [
            ("image", array(Dtype::Uint8, &[2, 2, 1, 3], vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2])),
            ("label", array(Dtype::Int64, &[2], [(-1_i64).to_le_bytes(), (-2_i64).to_le_bytes()].concat())),
            ("weight", array(Dtype::Float64, &[2], [0.5_f64.to_le_bytes(), 1.0_f64.to_le_bytes()].concat())),
            ("caption", Stacked::Texts(vec!["no 1".to_owned(), "no 2".to_owned()])),
            ("raw", Stacked::Blobs(vec![vec![1].into(), vec![2, 2].into()])),
        ];
        let found: Vec<_> =
            batch.fields.iter().map(|column| (&*column.name, column.values.clone())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_the_sample_that_differs_fails() {
        let image = |index, shape: &[u32]| sample(index, &[("image", tensor(shape, 1))]);
        let (batch, failed) =
            collate(vec![image(0, &[10, 224, 3]), image(1, &[224, 224, 3]), image(2, &[224, 224, 3])]);
        assert_eq!(batch.unwrap().keys, ["1.jpg".into(), "2.jpg".into()]);
        let message = "field `image` has shape [10, 224, 3], the batch has [224, 224, 3]";
        assert_eq!(failed, [("0.jpg".to_owned(), message.to_owned())]);
    }

    fn audio(lengths: &[u32]) -> Vec<Sample> {
        let made =
            (0..).zip(lengths).map(|(index, length)| sample(index, &[("audio", tensor(&[*length, 2], 1))]));
        made.collect()
    }

    #[test]
    fn tensors_of_different_shapes_end_the_run_by_default() {
        let output = Collate::default().apply(Item::Batch(audio(&[3, 3, 1])), &StopFlag::default());
        assert!(matches!(output.items, Items::None), "no partial batch");
        let said = "sample `2.jpg` does not fit its batch: field `audio` has shape [1, 2], the batch has [3, 2]; make shapes equal";
        assert!(output.fatal.is_some_and(|message| message.starts_with(said)));
        let messages: Vec<&str> = output.failed.iter().map(|failed| &*failed.fault.message).collect();
        assert!(
            messages[0] == messages[1] && messages[0].starts_with("not stacked: sample `2.jpg`"),
            "{messages:?}"
        );
        assert_eq!(messages[2], "field `audio` has shape [1, 2], the batch has [3, 2]");
        let mut other = audio(&[3, 3]);
        other[1].set("audio", Value::Int(1));
        let output = Collate::default().apply(Item::Batch(other), &StopFlag::default());
        assert!(output.fatal.is_none() && output.failed.len() == 1, "only shapes are fatal: {output:?}");
    }

    #[test]
    fn padding_fills_with_zeros_and_keeps_the_shapes() {
        let mut samples = audio(&[2, 0, 1]);
        samples[2].set("audio", tensor(&[1, 3], 9));
        let output = Collate::new(Ragged::Pad, None).apply(Item::Batch(samples), &StopFlag::default());
        let Items::One(Item::Collated(batch)) = output.items else { panic!("{output:?}") };
        let [padded, shapes] = batch.fields.as_slice() else { panic!("{:?}", batch.fields) };
        let Stacked::Tensor(padded) = &padded.values else { panic!("{padded:?}") };
        assert_eq!(padded.shape, [3, 2, 3]);
        assert_eq!(*padded.data, [1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 0, 0, 0]);
        assert_eq!(&*shapes.name, "audio.shape");
        let Stacked::Tensor(shapes) = &shapes.values else { panic!("{shapes:?}") };
        let sizes: Vec<u8> = [2_i64, 2, 0, 2, 1, 3].iter().flat_map(|size| size.to_le_bytes()).collect();
        assert_eq!((shapes.shape.as_slice(), &*shapes.data), (&[3, 2][..], &*sizes));
    }

    #[test]
    fn padding_that_multiplies_memory_ends_the_run() {
        let wide = [
            sample(0, &[("x", tensor(&[1, 2_000_000], 0))]),
            sample(1, &[("x", tensor(&[2_000_000, 1], 0))]),
        ];
        let output = Collate::new(Ragged::Pad, None).apply(Item::Batch(wide.into()), &StopFlag::default());
        assert!(output.fatal.is_some_and(|message| message.contains("more than 16 times")));
        // Shapes with a dimension of 0 must cause neither a long loop over their other dimensions nor an overflow of the size.
        for shapes in [[[u32::MAX, 1_000, 1, 0], [1, 1, 2, 0]], [[u32::MAX, 1, 1, 0], [1, u32::MAX, 1, 0]]] {
            let empty = (0..).zip(shapes).map(|(index, shape)| sample(index, &[("x", tensor(&shape, 0))]));
            let output =
                Collate::new(Ragged::Pad, None).apply(Item::Batch(empty.collect()), &StopFlag::default());
            assert!(output.fatal.is_some_and(|message| message.contains("more than 16 times")));
        }
        let named = sample(0, &[("x", tensor(&[1], 0)), ("x.shape", tensor(&[1], 0))]);
        let output = Collate::new(Ragged::Pad, None).apply(Item::Batch(vec![named]), &StopFlag::default());
        assert!(output.fatal.is_some_and(|message| message.contains("a field `x.shape`")));
    }

    #[test]
    fn a_list_keeps_each_tensor_as_it_is() {
        let mut samples = audio(&[2, 1, 1]);
        samples[2].set("audio", tensor(&[1], 9));
        let output = Collate::new(Ragged::List, None).apply(Item::Batch(samples), &StopFlag::default());
        let message = "field `audio` is uint8 with 1 dimension, in the batch it is uint8 with 2 dimensions";
        assert_eq!(output.failed[0].fault.message.as_ref(), message);
        let Items::One(Item::Collated(batch)) = output.items else { panic!("no batch") };
        let Stacked::Tensors(tensors) = &batch.fields[0].values else { panic!("{:?}", batch.fields) };
        assert_eq!(
            tensors.iter().map(|tensor| tensor.shape.as_slice()).collect::<Vec<_>>(),
            [[2, 2], [1, 2]]
        );
    }

    #[test]
    fn of_two_equally_common_forms_the_first_one_wins() {
        let image = |index, size| sample(index, &[("image", tensor(&[size], 1))]);
        let (batch, failed) = collate(vec![image(0, 3), image(1, 4), image(2, 4), image(3, 3)]);
        assert_eq!(batch.unwrap().keys, ["0.jpg".into(), "3.jpg".into()]);
        assert_eq!(failed.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["1.jpg", "2.jpg"]);
    }

    #[test]
    fn the_message_of_a_failed_sample_names_the_difference() {
        let usual = || vec![sample(0, &[("a", Value::Int(1))]), sample(1, &[("a", Value::Int(2))])];
        let message = |fields: &[(&str, Value)]| {
            let mut samples = usual();
            samples.push(sample(2, fields));
            let (_, failed) = collate(samples);
            failed[0].1.clone()
        };
        assert_eq!(message(&[]), "field `a` is missing, but the rest of the batch has it");
        assert_eq!(
            message(&[("a", Value::Int(1)), ("b", Value::Int(1))]),
            "field `b` is not in the rest of the batch"
        );
        assert_eq!(
            message(&[("a", Value::Real(1.0))]),
            "field `a` is a single float64, in the batch it is a single int64"
        );
        assert_eq!(
            message(&[("a", Value::Text("x".into()))]),
            "field `a` is a text, in the batch it is a single int64"
        );
        assert_eq!(
            message(&[("a", tensor(&[2], 0))]),
            "field `a` is uint8 [2], in the batch it is a single int64"
        );
    }

    #[test]
    fn fields_in_another_order_are_accepted_and_stacked_by_name() {
        let (x, y) = (("x", Value::Int(1)), ("y", Value::Text("t".into())));
        let (batch, failed) = collate(vec![sample(0, &[x.clone(), y.clone()]), sample(1, &[y, x])]);
        assert_eq!(failed, []);
        let fields = batch.unwrap().fields;
        assert_eq!(fields[1].values, Stacked::Texts(vec!["t".into(), "t".into()]));
        assert_eq!(fields[0].values.bytes(), 16);
    }

    #[test]
    fn a_wide_batch_is_stacked_in_the_field_order_of_its_first_sample() {
        let (fields, count) = (3_000_usize, 100_usize);
        let names: Vec<Arc<str>> = (0..fields).map(|n| format!("field {n}").into()).collect();
        let value = |index: usize, n: usize| (index * fields + n) as i64;
        let made = |index: usize, turn: usize| {
            let mut sample = Sample::new(format!("{index}.jpg"), Origin::default());
            let places = (0..fields).map(|n| (n + turn) % fields);
            let places: Vec<_> = if turn % 2 == 1 { places.rev().collect() } else { places.collect() };
            let field = |n: usize| Field { name: names[n].clone(), value: Value::Int(value(index, n)) };
            sample.fields = places.into_iter().map(field).collect();
            sample
        };
        let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let times = [0, 7].map(|turns| {
            // The sample that differs comes first, so that its field order must not become the order of the batch.
            let mut samples = vec![sample(0, &[("odd", Value::Int(1))])];
            samples.extend((0..count).map(|index| made(index, index * turns)));
            let begin = cpu();
            let (batch, failed) = collate(samples);
            let time = std::time::Duration::try_from(cpu() - begin).unwrap();
            let batch = batch.unwrap();
            assert_eq!((failed.len(), batch.keys.len(), batch.fields.len()), (1, count, fields));
            for (column, n) in batch.fields.iter().zip(0..) {
                assert_eq!(column.name, names[n]);
                let Stacked::Tensor(tensor) = &column.values else { panic!("not stacked") };
                assert_eq!(
                    tensor.data,
                    (0..count).flat_map(|index| value(index, n).to_le_bytes()).collect::<Vec<_>>()
                );
            }
            time
        });
        // An implementation that compares every field with every other field would take several hundred times as long for the
        // reordered samples.
        assert!(times[1] < 60 * times[0], "{times:?}");
    }

    #[test]
    fn a_stop_ends_collation_in_every_phase() {
        let stop = StopFlag::default();
        stop.set();
        let two = |other: Value| vec![sample(0, &[("a", Value::Int(1))]), sample(1, &[("a", other)])];
        for samples in [two(Value::Int(2)), two(Value::Real(2.0)), two(Value::Int(1)).split_off(1)] {
            let output = Collate::default().apply(Item::Batch(samples), &stop);
            assert!(matches!(output.items, Items::None) && output.failed.is_empty(), "{output:?}");
        }
    }

    #[test]
    fn a_buffer_is_exactly_as_large_as_its_elements() {
        let samples = (0..7).map(|index| sample(index, &[("image", tensor(&[5, 3], 1))])).collect();
        let (batch, _) = collate(samples);
        let Some(Stacked::Tensor(tensor)) = batch.unwrap().fields.pop().map(|column| column.values) else {
            panic!("not stacked")
        };
        assert_eq!(tensor.shape, [7, 5, 3]);
        let buffer = Vec::from(tensor.data);
        assert_eq!((buffer.len(), buffer.capacity()), (7 * 15, 7 * 15));
    }

    #[test]
    fn samples_without_fields_and_empty_batches_pass() {
        let (batch, failed) = collate(vec![sample(0, &[]), sample(1, &[])]);
        assert_eq!((batch.unwrap().keys.len(), failed.len()), (2, 0));
        assert_eq!(collate(Vec::new()), (None, Vec::new()));
    }

    #[test]
    fn a_single_sample_fails_and_a_collated_batch_passes_unchanged() {
        let output = Collate::default().apply(Item::Sample(sample(0, &[])), &StopFlag::default());
        assert_eq!(output.failed[0].fault.class, FailureClass::Bug);
        let (batch, _) = collate(vec![sample(0, &[])]);
        let item = Item::Collated(batch.unwrap());
        let output = Collate::default().apply(item.clone(), &StopFlag::default());
        assert!(matches!(output.items, Items::One(same) if same == item));
    }
}
