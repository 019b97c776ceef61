//! Fields of the samples that are made of records.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Dtype, Sample, Tensor, Value};
use penstock_types::data_set::{DataField, DataFields, FieldType, Learner, TypeFault};
use penstock_types::plan::BYTES_FIELD;

use super::example::{Feature, Reader};
use crate::select::Selection;
use crate::value;

/// Decoding of records.
#[derive(Clone, Debug)]
pub enum RecordFields {
    /// A record is one field, `bytes`.
    Bytes,
    /// A record is a `tf.train.Example`.
    Example {
        /// Features that become fields.
        selection: Selection,
        /// Feature that becomes the key. It is no field then, unless the selection names it.
        key: Option<String>,
        /// Features of bytes that become texts.
        texts: BTreeSet<String>,
        /// Numeric features with one value.
        scalars: BTreeSet<String>,
        /// Numeric features whose values are lists.
        lists: BTreeSet<String>,
    },
}

impl RecordFields {
    /// Adds the fields of a record, which may take `most_bytes`. The error is the end of a sentence about the record.
    pub fn add(&self, sample: &mut Sample, record: &Bytes, most_bytes: u64) -> Result<(), String> {
        let Self::Example { selection, key, texts, scalars, lists } = self else {
            sample.set(Arc::<str>::from(BYTES_FIELD), Value::Blob(record.clone()));
            return Ok(());
        };
        let is_key = |name: &str| key.as_deref() == Some(name);
        let field_of =
            |name: &str| selection.name_of(name).filter(|_| !is_key(name) || selection.is_named(name));
        let reader = Reader::new(record, most_bytes);
        let features = reader.features(|name| is_key(name) || field_of(name).is_some());
        let mut has_key = key.is_none();
        for (name, feature) in features.map_err(|fault| fault.to_string())? {
            let of_feature =
                |reason: String| format!("has the feature `{}`, which {reason}", value::shortened(name));
            let form = match (scalars.contains(name), lists.contains(name)) {
                (true, _) => Numbers::Single,
                (_, true) => Numbers::List,
                _ => Numbers::Either,
            };
            let value = value_of(feature, record, texts.contains(name), form).map_err(of_feature)?;
            let Some(value) = value else { continue };
            if is_key(name) {
                sample.key = value::key(&value).map_err(of_feature)?;
                has_key = true;
            }
            if let Some(field) = field_of(name) {
                sample.set(field, value);
            }
        }
        match (key, has_key) {
            (Some(key), false) => {
                Err(format!("has no feature `{}`, which would be its key", value::shortened(key)))
            }
            _ => Ok(()),
        }
    }
}

impl RecordFields {
    /// Fields of the samples, by the types of the features of all records.
    pub(super) fn types(&self, features: Option<&DataFields>) -> Option<DataFields> {
        let Self::Example { selection, key, texts, scalars, lists } = self else {
            let field = DataField { name: BYTES_FIELD.into(), kind: FieldType::Bytes, optional: Some(false) };
            return Some(DataFields::of(vec![field]));
        };
        let mut fields = DataFields { fields: Vec::new(), ..features?.clone() };
        for DataField { name, kind, optional } in &features?.fields {
            let is_key = key.as_deref() == Some(&**name);
            let Some(field) = selection.name_of(name).filter(|_| !is_key || selection.is_named(name)) else {
                continue;
            };
            let mut optional = *optional;
            let kind = match kind {
                FieldType::Bytes if texts.contains(&**name) => FieldType::Text,
                FieldType::Int if lists.contains(&**name) => FieldType::tensor(Dtype::Int64, 1),
                FieldType::Real if lists.contains(&**name) => FieldType::tensor(Dtype::Float32, 1),
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
            Feature::None | Feature::Bytes(0, _) => continue,
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

/// Form of the numbers of a feature.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Single,
    List,
    /// One number is a single one, several are a list.
    Either,
}

/// Value of a feature: one element is a blob or text, a real or a whole number, several numbers are a tensor. `None` for a feature
/// without a value.
fn value_of(feature: Feature, record: &Bytes, is_text: bool, form: Numbers) -> Result<Option<Value>, String> {
    let elements = match &feature {
        Feature::Floats(floats) => floats.len() / 4,
        Feature::Ints(ints) => ints.len() / 8,
        _ => 1,
    };
    match (form, elements) {
        (Numbers::Single, 0) => return Ok(None),
        (Numbers::Single, 2..) => return Err(format!("has {elements} values, and `scalars` names it")),
        _ => {}
    }
    Ok(Some(match feature {
        Feature::None | Feature::Bytes(0, _) => return Ok(None),
        Feature::Bytes(1, place) if is_text => Value::Text(value::text(&record[place])?),
        Feature::Bytes(1, place) => Value::Blob(value::part(record, place)),
        Feature::Bytes(count, _) => {
            return Err(format!(
                "has {count} elements of bytes, and a field has one: select the others with `fields`"
            ));
        }
        Feature::Floats(floats) => match <[u8; 4]>::try_from(&floats[..]) {
            Ok(one) if form != Numbers::List => Value::Real(f32::from_le_bytes(one).into()),
            _ => tensor(Dtype::Float32, floats)?,
        },
        Feature::Ints(ints) => match <[u8; 8]>::try_from(&ints[..]) {
            Ok(one) if form != Numbers::List => Value::Int(i64::from_le_bytes(one)),
            _ => tensor(Dtype::Int64, ints)?,
        },
    }))
}

fn tensor(dtype: Dtype, data: Vec<u8>) -> Result<Value, String> {
    let length = u32::try_from(data.len() / dtype.size())
        .map_err(|_| "has more than 4 billion elements".to_owned())?;
    Ok(Value::Tensor(Tensor { dtype, shape: vec![length], data: data.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_number_is_optional_if_other_records_have_lists() {
        let fields = RecordFields::Example {
            selection: Selection::default(),
            key: None,
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
