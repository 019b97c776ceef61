//! Lists of blobs: one field has all bytes in sequence, and another one the place of each blob in them.

use std::sync::Arc;

use penstock_engine::item::{Dtype, Tensor, Value};
use penstock_types::data_set::{DataField, FieldType};
use penstock_types::plan::BYTES_FIELD;

use crate::reason::Reason;

/// Field with the places of the blobs in the field `name`.
pub(crate) fn offsets_name(name: &str) -> Arc<str> {
    format!("{name}.offsets").into()
}

/// Field of the samples with the places of the blobs in `field`.
pub(crate) fn offsets_field(field: &DataField) -> DataField {
    let kind = FieldType::tensor(Dtype::Int64, 1);
    DataField { name: offsets_name(&field.name), kind, optional: field.optional }
}

/// Refuses a list of blobs as the field that stages read as one file: a decoder would take the first, and ignore the others. The error is
/// the end of a sentence.
pub(crate) fn check_name(field: &str) -> Result<(), Reason> {
    if field != BYTES_FIELD {
        return Ok(());
    }
    let remedy = "give it another name in `fields`";
    Err(format!("has lists of blobs, and the field `{BYTES_FIELD}` is one file: {remedy}").into())
}

/// Start of each blob of these lengths, and the end of the last one: one number more than there are blobs.
pub(crate) fn offsets(lengths: impl Iterator<Item = usize>) -> Result<Value, Reason> {
    let (mut end, mut data) = (0, Vec::with_capacity(8 * (lengths.size_hint().0 + 1)));
    data.extend_from_slice(&0_i64.to_le_bytes());
    for length in lengths {
        end += length as i64;
        data.extend_from_slice(&end.to_le_bytes());
    }
    tensor(Dtype::Int64, data)
}

/// List of the elements in `data`, little-endian.
pub(crate) fn tensor(dtype: Dtype, data: Vec<u8>) -> Result<Value, Reason> {
    let length = u32::try_from(data.len() / dtype.size()).map_err(|_| "has more than 4 billion elements")?;
    Ok(Value::Tensor(Tensor { dtype, shape: vec![length], data: data.into() }))
}
