//! Fields of the samples that are made of records.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Dtype, Sample, Value};
use penstock_types::data_set::{DataField, DataFields, FieldType, Learner, TypeFault};
use penstock_types::plan::BYTES_FIELD;
use penstock_types::spec::{RecordDecoding, TfrecordSource};

use super::example::{Feature, Reader};
use crate::lists::{check_name, offsets, offsets_field, offsets_name, tensor};
use crate::reason::Reason;
use crate::select::Selection;
use crate::value;

#[derive(Debug)]
pub struct RecordFields {
    decode: RecordDecoding,
    selection: Selection,
    /// Features of bytes that become texts.
    texts: BTreeSet<String>,
    /// Numeric features with one value.
    scalars: BTreeSet<String>,
    /// Features whose values are lists: of numbers, of blobs, or of texts.
    lists: BTreeSet<String>,
}

impl RecordFields {
    pub fn of(source: &TfrecordSource) -> Self {
        let names = |names: &[String]| names.iter().cloned().collect();
        Self {
            decode: source.decode,
            selection: Selection::new(&source.fields, source.sample_key.clone()),
            texts: names(&source.texts),
            scalars: names(&source.scalars),
            lists: names(&source.lists),
        }
    }

    /// Adds the fields of a record, which may take `most_bytes`. Returns true if it has lists of features, which are not read. The error
    /// is the end of a sentence about the record.
    pub fn add(&self, sample: &mut Sample, record: &Bytes, most_bytes: u64) -> Result<bool, Reason> {
        let Self { decode, selection, texts, scalars, lists } = self;
        if *decode == RecordDecoding::Bytes {
            sample.set(Arc::<str>::from(BYTES_FIELD), Value::Blob(record.clone()));
            return Ok(false);
        }
        let mut reader = Reader::new(record, most_bytes);
        let features = reader.features(|name| selection.is_key(name) || selection.name_of(name).is_some());
        let mut has_key = selection.key.is_none();
        for (name, feature) in features? {
            let of_feature =
                |reason: Reason| format!("has the feature `{}`, which {reason}", value::shortened(name));
            let is_text = texts.contains(name);
            let form = match (scalars.contains(name), lists.contains(name)) {
                (true, _) => Form::Single,
                (_, true) => Form::List,
                _ => Form::Either,
            };
            if let (Feature::Bytes(first, others), Form::List, false) = (&feature, form, is_text) {
                if selection.is_key(name) {
                    return Err(of_feature("is a list, which is no key".into()).into());
                }
                if let Some(field) = selection.name_of(name) {
                    check_name(&field).map_err(of_feature)?;
                    let places = || first.iter().chain(others);
                    let places_field = offsets_name(&field);
                    sample.set(field, Value::Blob(joined(record, places())));
                    sample.set(places_field, offsets(places().map(Range::len)).map_err(of_feature)?);
                }
                continue;
            }
            let value = value_of(feature, record, is_text, form).map_err(of_feature)?;
            let Some(value) = value else { continue };
            if selection.is_key(name) {
                sample.key = value::key(&value).map_err(of_feature)?;
                has_key = true;
            }
            if let Some(field) = selection.name_of(name) {
                sample.set(field, value);
            }
        }
        match (&selection.key, has_key) {
            (Some(key), false) => {
                Err(format!("has no feature `{}`, which would be its key", value::shortened(key)).into())
            }
            _ => Ok(reader.has_sequences),
        }
    }

    /// Fields of the samples, by the types of the features of all records.
    pub(super) fn types(&self, features: Option<&DataFields>) -> Option<DataFields> {
        let Self { decode, selection, texts, scalars, lists } = self;
        if *decode == RecordDecoding::Bytes {
            let field = DataField { name: BYTES_FIELD.into(), kind: FieldType::Bytes, optional: Some(false) };
            return Some(DataFields::of(vec![field]));
        }
        let mut fields = DataFields { fields: Vec::new(), ..features?.clone() };
        for DataField { name, kind, optional } in &features?.fields {
            let Some(field) = selection.name_of(name) else { continue };
            let mut optional = *optional;
            let is_list = lists.contains(&**name);
            if is_list && *kind == FieldType::Bytes && optional == Some(true) {
                // A record with an empty list was counted as one without the feature.
                optional = None;
            }
            if is_list && *kind == FieldType::Bytes && !texts.contains(&**name) {
                let field = DataField { name: field, kind: *kind, optional };
                let places = offsets_field(&field);
                fields.fields.extend([field, places]);
                continue;
            }
            let kind = match kind {
                FieldType::Bytes if texts.contains(&**name) => FieldType::Text,
                FieldType::Int if is_list => FieldType::tensor(Dtype::Int64, 1),
                FieldType::Real if is_list => FieldType::tensor(Dtype::Float32, 1),
                FieldType::Tensor { dtype: Some(dtype), .. } if scalars.contains(&**name) => {
                    // A list without a number is no value.
                    optional = Some(true);
                    if *dtype == Dtype::Int64 { FieldType::Int } else { FieldType::Real }
                }
                kind => *kind,
            };
            fields.fields.push(DataField { name: field, kind, optional });
        }
        Some(fields)
    }
}

/// Learns the types of all features of a record. A record that is no example teaches nothing: it fails where it is read.
pub(super) fn learn(learner: &mut Learner, record: &Bytes, at: &dyn Fn() -> String) -> Result<(), TypeFault> {
    let Ok(features) = Reader::new(record, MAX_LEARNT_BYTES).features(|_| true) else { return Ok(()) };
    learner.begin_sample();
    for (name, feature) in features {
        let kind = match feature {
            Feature::None | Feature::Bytes(None, _) => continue,
            Feature::Bytes(..) => FieldType::Bytes,
            Feature::Floats(floats) if floats.len() == 4 => FieldType::Real,
            Feature::Floats(_) => FieldType::tensor(Dtype::Float32, 1),
            Feature::Ints(ints) if ints.len() == 8 => FieldType::Int,
            Feature::Ints(_) => FieldType::tensor(Dtype::Int64, 1),
        };
        learner.see(name, kind, None, at)?;
    }
    Ok(())
}

/// Maximum size of the numbers of a record whose features are learnt, in bytes.
const MAX_LEARNT_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Single,
    List,
    /// One number is a single one, several are a list. A feature of bytes has one value at most.
    Either,
}

/// Value of a feature: one element is a blob or text, a real or a whole number, several numbers are a tensor, and a list of texts is a text
/// in JSON. `None` for a feature without a value.
fn value_of(feature: Feature, record: &Bytes, is_text: bool, form: Form) -> Result<Option<Value>, Reason> {
    let elements = match &feature {
        Feature::None => 0,
        Feature::Bytes(first, others) => usize::from(first.is_some()) + others.len(),
        Feature::Floats(floats) => floats.len() / 4,
        Feature::Ints(ints) => ints.len() / 8,
    };
    match (form, elements) {
        (Form::Single, 0) => return Ok(None),
        (Form::Single, 2..) => return Err(format!("has {elements} values, and `scalars` names it").into()),
        _ => {}
    }
    Ok(Some(match feature {
        Feature::None => return Ok(None),
        Feature::Bytes(first, others) if is_text && form == Form::List => {
            let texts = first.iter().chain(&others).map(|place| value::text(&record[place.clone()]));
            Value::Text(serde_json::Value::from(texts.collect::<Result<Vec<_>, _>>()?).to_string())
        }
        Feature::Bytes(None, _) => return Ok(None),
        Feature::Bytes(_, others) if !others.is_empty() => {
            return Err(format!(
                "has {elements} elements of bytes: name it in `lists`, or select other features with `fields`"
            )
            .into());
        }
        Feature::Bytes(Some(place), _) if is_text => Value::Text(value::text(&record[place])?),
        Feature::Bytes(Some(place), _) => Value::Blob(value::part(record, place)),
        Feature::Floats(floats) => match <[u8; 4]>::try_from(&floats[..]) {
            Ok(one) if form != Form::List => Value::Real(f32::from_le_bytes(one).into()),
            _ => tensor(Dtype::Float32, floats)?,
        },
        Feature::Ints(ints) => match <[u8; 8]>::try_from(&ints[..]) {
            Ok(one) if form != Form::List => Value::Int(i64::from_le_bytes(one)),
            _ => tensor(Dtype::Int64, ints)?,
        },
    }))
}

fn joined<'a>(record: &Bytes, mut places: impl Iterator<Item = &'a Range<usize>>) -> Bytes {
    match (places.next(), places.next()) {
        (None, _) => Bytes::new(),
        (Some(one), None) => value::part(record, one.clone()),
        (Some(one), Some(other)) => {
            let mut all = [&record[one.clone()], &record[other.clone()]].concat();
            places.for_each(|place| all.extend_from_slice(&record[place.clone()]));
            all.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_number_is_optional_if_other_records_have_lists() {
        let fields = RecordFields {
            decode: RecordDecoding::Example,
            selection: Selection::default(),
            texts: BTreeSet::new(),
            scalars: ["a".to_owned(), "b".to_owned()].into(),
            lists: BTreeSet::new(),
        };
        let field = |name: &str, kind, optional| DataField { name: name.into(), kind, optional };
        let lists = [
            field("a", FieldType::tensor(Dtype::Int64, 1), Some(false)),
            field("b", FieldType::Real, Some(false)),
        ];
        let single = [field("a", FieldType::Int, Some(true)), field("b", FieldType::Real, Some(false))];
        assert_eq!(fields.types(Some(&DataFields::of(lists.into()))).unwrap().fields, single);
    }
}
