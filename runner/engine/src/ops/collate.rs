//! Stacks the fields of a batch's samples.

mod forms;
mod pad;

use std::sync::Arc;

use bytes::Bytes;
use penstock_types::plan::CollatePlan;
use penstock_types::policy::{Mismatch, Ragged};
use penstock_types::run::FailureClass;
use penstock_types::text::{MAX_SHOWN_KEY, printable};

pub use self::forms::Usual;
use self::forms::{Form, are_in_order, have_shapes, most_common, put_in_order};
use self::pad::{Padding, largest_shape, shape_name, stacked_shapes, unpaddable};
use crate::item::{Collated, Column, Dtype, Item, Sample, Stacked, Tensor, Value};
use crate::memory::{BatchMemory, Filling};
use crate::ports::{Failed, Fault, Output, StopFlag, ThreadOp, ThreadOpFactory};

/// Stacks every field over the samples of a batch. The samples have the fields of their data set with their types: a sample that differs
/// ends the run, or fails alone, by `mismatch`. The order of a sample's fields does not matter. `ragged` determines the treatment of
/// tensors that differ only in shape.
#[derive(Clone, Debug, Default)]
pub struct Collate {
    settings: CollatePlan,
    usual: Usual,
    memory: Option<Arc<dyn BatchMemory>>,
}

impl Collate {
    /// Writes arrays into `memory`, or to the heap if `memory` is `None`.
    pub fn new(settings: CollatePlan, usual: Usual, memory: Option<Arc<dyn BatchMemory>>) -> Self {
        Self { settings, usual, memory }
    }

    /// Stacks the samples of a batch; `None` once the run is stopping.
    fn collated(&self, samples: Vec<Sample>, stop: &StopFlag) -> Option<Output> {
        let ragged = self.settings.ragged;
        let Kept { alike, failed, fatal } = self.keep_alike(samples, stop)?;
        let fatal = fatal.or_else(|| unpaddable(&alike).filter(|_| ragged == Ragged::Pad));
        if let Some(message) = fatal {
            // One message for all batches; that of the run states the difference.
            let fault = Fault::new(FailureClass::Data, "not stacked: its batch ends the run");
            let mut output = Output::all_failed(alike, &fault);
            output.failed.extend(failed);
            return Some(Output { fatal: Some(message), ..output });
        }
        let output = if alike.is_empty() {
            Output::default()
        } else {
            Output::one(Item::Collated(stack(alike, ragged, self.memory.as_deref(), stop)?))
        };
        Some(Output { failed, ..output })
    }

    /// Splits the samples of a batch into those that can be stacked and those that fail; `None` once the run is stopping.
    fn keep_alike(&self, samples: Vec<Sample>, stop: &StopFlag) -> Option<Kept> {
        let Some(first) = samples.first() else { return Some(Kept::default()) };
        let (ragged, shapes) = (self.settings.ragged, &self.settings.shapes);
        let usual = self.usual.with(first);
        // Most batches are alike: one comparison for each sample.
        let has_fields = usual.mismatch(first).is_none();
        let mut rest = samples[1..].iter();
        if has_fields && have_shapes(first, shapes) && rest.all(|sample| are_in_order(first, sample, ragged))
        {
            return (!stop.is_set()).then_some(Kept { alike: samples, ..Kept::default() });
        }
        let (mut alike, mut failed, mut fatal) = (Vec::with_capacity(samples.len()), Vec::new(), None);
        let mut cure = None;
        for sample in samples {
            if stop.is_set() {
                return None;
            }
            match usual.mismatch(&sample) {
                None => alike.push(sample),
                Some(difference) => {
                    cure.get_or_insert(difference.cure);
                    failed.push(fail(sample, difference.message));
                }
            }
        }
        if self.settings.mismatch == Mismatch::Fail
            && let Some((first, cure)) = failed.first().zip(cure)
        {
            fatal = Some(does_not_fit(&failed, first, "its data set", cure));
        }
        // Shapes are compared with those of the document, of the most frequent form, or of the first sample.
        let reference = match ragged {
            Ragged::Skip if shapes.is_empty() => most_common(&alike, ragged, stop)?,
            _ => 0,
        };
        let reference = alike.get(reference).cloned();
        let (mut kept, mut odd) = (Vec::with_capacity(alike.len()), Vec::new());
        for sample in alike {
            if stop.is_set() {
                return None;
            }
            match forms::odd_shape(&sample, reference.as_ref(), shapes, ragged) {
                None => kept.push(sample),
                Some(message) => odd.push(fail(sample, message)),
            }
        }
        if let Some(first) = odd.first() {
            match ragged {
                Ragged::Fail => {
                    fatal = fatal.or_else(|| Some(does_not_fit(&odd, first, "its batch", forms::SHAPES)));
                }
                _ if shapes.is_empty() => self.usual.warn_of_majority(&first.sample),
                _ => {}
            }
        }
        failed.append(&mut odd);
        put_in_order(&mut kept, ragged, stop)?;
        Some(Kept { alike: kept, failed, fatal })
    }
}

fn fail(sample: Sample, message: String) -> Failed {
    Failed { sample, fault: Fault::new(FailureClass::Data, message) }
}

/// Message of a run that ends because samples differ, `first` among them.
fn does_not_fit(failed: &[Failed], first: &Failed, whole: &str, cure: &str) -> String {
    let key = printable(&first.sample.key, MAX_SHOWN_KEY);
    let others = match failed.len() - 1 {
        0 => String::new(),
        1 => " (and another one of its batch)".to_owned(),
        others => format!(" (and {others} others of its batch)"),
    };
    format!("sample `{key}`{others} does not fit {whole}: {}; {cure}", first.fault.message)
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

/// Samples of a batch, split into those that are stacked and those that fail.
#[derive(Default)]
struct Kept {
    /// Samples with equal fields. The fields of each are in the order of the first sample.
    alike: Vec<Sample>,
    /// Samples with other fields or shapes, unchanged; they fail.
    failed: Vec<Failed>,
    fatal: Option<String>,
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
    use penstock_types::data_set::{DataField, DataFields, FieldType};

    use super::*;
    use crate::item::{Field, Origin};
    use crate::notes::Notes;
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

    fn op(ragged: Ragged, mismatch: Mismatch) -> Collate {
        Collate::new(CollatePlan { ragged, mismatch, ..CollatePlan::default() }, Usual::default(), None)
    }

    /// Stacks the samples. Returns the collated batch, and the key and message of each failed sample.
    fn collate(samples: Vec<Sample>) -> (Option<Collated>, Vec<(String, String)>) {
        // Only the samples that differ fail.
        let output = op(Ragged::Skip, Mismatch::Skip).apply(Item::Batch(samples), &StopFlag::default());
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
            messages[..2].iter().all(|message| *message == "not stacked: its batch ends the run"),
            "{messages:?}"
        );
        assert_eq!(messages[2], "field `audio` has shape [1, 2], the batch has [3, 2]");
        let mut other = audio(&[3, 3]);
        other[1].set("audio", Value::Int(1));
        let output = Collate::default().apply(Item::Batch(other), &StopFlag::default());
        let said = "sample `1.jpg` does not fit its data set: field `audio` is a single int64, in the data set it is uint8 with 2 \
                    dimensions; make the fields alike, in the source";
        assert!(output.fatal.is_some_and(|message| message.starts_with(said)));
    }

    #[test]
    fn padding_fills_with_zeros_and_keeps_the_shapes() {
        let mut samples = audio(&[2, 0, 1]);
        samples[2].set("audio", tensor(&[1, 3], 9));
        let output = op(Ragged::Pad, Mismatch::Skip).apply(Item::Batch(samples), &StopFlag::default());
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
        let output = op(Ragged::Pad, Mismatch::Skip).apply(Item::Batch(wide.into()), &StopFlag::default());
        assert!(output.fatal.is_some_and(|message| message.contains("more than 16 times")));
        // Shapes with a dimension of 0 must cause neither a long loop over their other dimensions nor an overflow of the size.
        for shapes in [[[u32::MAX, 1_000, 1, 0], [1, 1, 2, 0]], [[u32::MAX, 1, 1, 0], [1, u32::MAX, 1, 0]]] {
            let empty = (0..).zip(shapes).map(|(index, shape)| sample(index, &[("x", tensor(&shape, 0))]));
            let output =
                op(Ragged::Pad, Mismatch::Skip).apply(Item::Batch(empty.collect()), &StopFlag::default());
            assert!(output.fatal.is_some_and(|message| message.contains("more than 16 times")));
        }
        let named = sample(0, &[("x", tensor(&[1], 0)), ("x.shape", tensor(&[1], 0))]);
        let output = op(Ragged::Pad, Mismatch::Skip).apply(Item::Batch(vec![named]), &StopFlag::default());
        assert!(output.fatal.is_some_and(|message| message.contains("a field `x.shape`")));
    }

    #[test]
    fn a_list_keeps_each_tensor_as_it_is() {
        let mut samples = audio(&[2, 1, 1]);
        samples[2].set("audio", tensor(&[1], 9));
        let output = op(Ragged::List, Mismatch::Skip).apply(Item::Batch(samples), &StopFlag::default());
        let message =
            "field `audio` is uint8 with 1 dimension, in the data set it is uint8 with 2 dimensions";
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
        assert_eq!(message(&[]), "field `a` is missing, in the data set it is a single int64");
        assert_eq!(
            message(&[("a", Value::Int(1)), ("b", Value::Int(1))]),
            "field `b` is a single int64, and other samples do not have it"
        );
        assert_eq!(
            message(&[("a", Value::Real(1.0))]),
            "field `a` is a single float64, in the data set it is a single int64"
        );
        assert_eq!(
            message(&[("a", Value::Text("x".into()))]),
            "field `a` is a text, in the data set it is a single int64"
        );
        assert_eq!(
            message(&[("a", tensor(&[2], 0))]),
            "field `a` is uint8 with 1 dimension, in the data set it is a single int64"
        );
    }

    #[test]
    fn a_later_batch_has_the_fields_of_the_data_set() {
        let label = |index, value: Option<Value>| {
            sample(index, &value.map(|value| ("label", value)).into_iter().collect::<Vec<_>>())
        };
        let fatal = |later: Option<Value>| {
            let mut op = op(Ragged::Fail, Mismatch::Fail);
            let first = op.apply(Item::Batch(vec![label(0, Some(Value::Int(1)))]), &StopFlag::default());
            assert!(first.fatal.is_none());
            op.clone().apply(Item::Batch(vec![label(1, later)]), &StopFlag::default()).fatal
        };
        assert!(fatal(Some(Value::Int(2))).is_none());
        assert!(
            fatal(None).unwrap().contains("field `label` is missing, in the data set it is a single int64")
        );
        assert!(fatal(Some(Value::Real(2.0))).unwrap().contains("field `label` is a single float64"));
    }

    #[test]
    fn the_source_states_what_its_stages_do_not_change() {
        let field = |name: &str, kind| DataField { name: name.into(), kind, optional: Some(true) };
        let fields =
            Arc::new(DataFields::of(vec![field("label", FieldType::Int), field("text", FieldType::Text)]));
        let notes = Notes::default();
        notes.set_fields(fields.clone(), fields);
        let usual = Usual::of(notes, Some(["text".to_owned()].into()));
        let settings = CollatePlan { mismatch: Mismatch::Skip, ..CollatePlan::default() };
        let mut op = Collate::new(settings, usual, None);
        // The first sample lacks the label, and has the tokens that a stage has made of the text.
        let batch = vec![
            sample(0, &[("tokens", tensor(&[2], 1))]),
            sample(1, &[("label", Value::Int(3)), ("tokens", tensor(&[2], 1))]),
        ];
        let output = op.apply(Item::Batch(batch), &StopFlag::default());
        assert_eq!(output.failed.iter().map(|failed| &*failed.sample.key).collect::<Vec<_>>(), ["0.jpg"]);
        let Items::One(Item::Collated(batch)) = output.items else { panic!("no batch") };
        assert_eq!(batch.keys, ["1.jpg".into()]);
    }

    #[test]
    fn shapes_of_the_document_decide_instead_of_the_majority() {
        let shapes = [("image".to_owned(), vec![2])].into();
        let settings = CollatePlan { ragged: Ragged::Skip, shapes, ..CollatePlan::default() };
        let notes = Notes::default();
        let image = |index, size| sample(index, &[("image", tensor(&[size], 1))]);
        let batch = || vec![image(0, 3), image(1, 3), image(2, 2)];
        let mut op = Collate::new(settings, Usual::of(notes.clone(), None), None);
        let output = op.apply(Item::Batch(batch()), &StopFlag::default());
        assert_eq!(&*output.failed[0].fault.message, "field `image` has shape [3], `shape` has [2]");
        assert_eq!((output.failed.len(), output.fatal, notes.warnings("s").len()), (2, None, 0));
        let settings = CollatePlan { ragged: Ragged::Skip, ..CollatePlan::default() };
        let mut op = Collate::new(settings, Usual::of(notes.clone(), None), None);
        let output = op.apply(Item::Batch(batch()), &StopFlag::default());
        assert_eq!(
            (output.failed.len(), notes.warnings("s").len()),
            (1, 1),
            "the majority decides, with a warning"
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
            let mut samples: Vec<Sample> = (0..count).map(|index| made(index, index * turns)).collect();
            samples.push(sample(0, &[("odd", Value::Int(1))]));
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
