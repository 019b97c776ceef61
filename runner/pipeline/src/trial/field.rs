use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use penstock_engine::element::Element;
use penstock_engine::item::{Field, Tensor, Value};
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Maximum length of a text in a report, in bytes.
const MAX_START: usize = 60;
/// Length of a digest in a report, in bytes: enough to see that two values differ.
const DIGEST_BYTES: usize = 6;

/// A field of a module's output.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MadeField {
    /// Name of the field.
    pub name: String,
    /// Type and summary of the value.
    #[serde(flatten)]
    pub value: MadeValue,
    /// Size of the value, in bytes.
    pub bytes: u64,
    /// Start of the SHA-256 digest of type and value, in hex.
    pub digest: String,
}

/// Summary of the value of a field.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum MadeValue {
    /// Bytes without further summary.
    Blob,
    /// Text with its beginning.
    Text {
        /// Length of the text in characters.
        characters: u64,
        /// Beginning of the text, made printable.
        start: String,
    },
    /// A whole number, 64 bits.
    Int {
        /// Value of the number.
        value: i64,
    },
    /// A floating-point number, 64 bits.
    Real {
        /// Value of the number; `null` in JSON unless it is finite.
        value: f64,
    },
    /// A multi-dimensional array.
    Tensor {
        /// Element type, e.g. `float32`.
        dtype: &'static str,
        /// Size of each dimension, slowest first.
        shape: Vec<u32>,
        /// Smallest element; `null` if all elements are NaN or there are none.
        min: Option<f64>,
        /// Largest element; `null` if all elements are NaN or there are none.
        max: Option<f64>,
        /// Mean of the elements that are not NaN.
        mean: Option<f64>,
        /// Number of elements that are NaN.
        nan: u64,
        /// All elements in base64, row-major and little-endian, if the trial requested them and they fit its limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<String>,
    },
}

/// Reports a field. The elements of a tensor are included while they fit into `shown_bytes`, the remaining allowance of the
/// trial.
pub(super) fn made_field(field: &Field, shown_bytes: &mut u64) -> MadeField {
    let value = match &field.value {
        Value::Blob(_) => MadeValue::Blob,
        Value::Text(text) => {
            MadeValue::Text { characters: text.chars().count() as u64, start: printable(text, MAX_START) }
        }
        Value::Int(value) => MadeValue::Int { value: *value },
        Value::Real(value) => MadeValue::Real { value: *value },
        Value::Tensor(tensor) => of_tensor(tensor, shown_bytes),
    };
    let digest = digest(&field.value);
    MadeField { name: field.name.to_string(), value, bytes: field.value.bytes(), digest }
}

fn of_tensor(tensor: &Tensor, shown_bytes: &mut u64) -> MadeValue {
    let (mut min, mut max, mut sum, mut count, mut nan) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0_u64, 0);
    for bytes in tensor.data.chunks_exact(tensor.dtype.size()) {
        let element = Element::read(tensor.dtype, bytes).to_f64();
        if element.is_nan() {
            nan += 1;
        } else {
            (min, max) = (min.min(element), max.max(element));
            sum += element;
            count += 1;
        }
    }
    let left = shown_bytes.checked_sub(tensor.data.len() as u64);
    let data = left.map(|left| {
        *shown_bytes = left;
        STANDARD.encode(&tensor.data)
    });
    let some = |figure: f64| (count > 0).then_some(figure);
    MadeValue::Tensor {
        dtype: tensor.dtype.name(),
        shape: tensor.shape.clone(),
        min: some(min),
        max: some(max),
        mean: some(sum / count as f64),
        nan,
        data,
    }
}

fn digest(value: &Value) -> String {
    let digest = Sha256::new();
    // Values of different types may have the same bytes, so a number that identifies the type is appended.
    let (digest, kind) = match value {
        Value::Blob(bytes) => (digest.chain_update(bytes), 0),
        Value::Text(text) => (digest.chain_update(text), 1),
        Value::Int(number) => (digest.chain_update(number.to_le_bytes()), 2),
        Value::Real(number) => (digest.chain_update(number.to_bits().to_le_bytes()), 3),
        Value::Tensor(Tensor { dtype, shape, data }) => {
            (digest.chain_update(format!("{} {shape:?}", dtype.name())).chain_update(data), 4)
        }
    };
    let mut hex = format!("{:x}", digest.chain_update([kind]).finalize());
    hex.truncate(2 * DIGEST_BYTES);
    hex
}

#[cfg(test)]
mod tests {
    use penstock_engine::item::Dtype;

    use super::*;

    fn field(value: Value) -> MadeField {
        made_field(&Field { name: "x".into(), value }, &mut 4)
    }

    fn tensor(dtype: Dtype, data: Vec<u8>) -> MadeValue {
        let shape = vec![u32::try_from(data.len() / dtype.size()).unwrap()];
        field(Value::Tensor(Tensor { dtype, shape, data: data.into() })).value
    }

    #[test]
    fn nan_elements_are_counted_and_excluded() {
        let data = [1.0_f32, f32::NAN, 3.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let MadeValue::Tensor { min, max, mean, nan, .. } = tensor(Dtype::Float32, data) else { panic!() };
        assert_eq!((min, max, mean, nan), (Some(1.0), Some(3.0), Some(2.0), 1));
        let MadeValue::Tensor { min, mean, .. } = tensor(Dtype::Uint8, Vec::new()) else { panic!() };
        assert_eq!((min, mean), (None, None));
    }

    #[test]
    fn elements_are_shown_while_they_fit() {
        let data = |value| match value {
            MadeValue::Tensor { data, .. } => data,
            _ => None,
        };
        assert_eq!(data(tensor(Dtype::Uint8, vec![1, 2, 3, 4])).unwrap(), "AQIDBA==");
        assert_eq!(data(tensor(Dtype::Uint8, vec![1, 2, 3, 4, 5])), None);
    }

    #[test]
    fn values_of_different_types_have_different_digests() {
        let blob = field(Value::Blob(bytes::Bytes::from_static(b"ab")));
        let text = field(Value::Text("ab".into()));
        assert_eq!((blob.bytes, text.bytes), (2, 2));
        assert!(blob.digest != text.digest && blob.digest.len() == 12);
    }
}
