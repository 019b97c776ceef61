//! Elements of arrays: their numbers, and the types that hold these.

use half::{bf16, f16};
use penstock_types::data_set::is_exact;

use crate::item::{Dtype, Tensor};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Element {
    /// Of a type of whole numbers; truth values are 0 and 1.
    Whole(i64),
    Real(f64),
}

impl Element {
    /// Reads the little-endian `bytes` of an element.
    pub fn read(dtype: Dtype, bytes: &[u8]) -> Self {
        let bits = bytes.iter().rev().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        match dtype {
            Dtype::Boolean | Dtype::Uint8 | Dtype::Uint16 | Dtype::Int64 => Self::Whole(bits as i64),
            Dtype::Int8 => Self::Whole((bits as i8).into()),
            Dtype::Int16 => Self::Whole((bits as i16).into()),
            Dtype::Int32 => Self::Whole((bits as i32).into()),
            Dtype::Float16 => Self::Real(f16::from_bits(bits as u16).into()),
            Dtype::Bfloat16 => Self::Real(bf16::from_bits(bits as u16).into()),
            Dtype::Float32 => Self::Real(f32::from_bits(bits as u32).into()),
            Dtype::Float64 => Self::Real(f64::from_bits(bits)),
        }
    }

    /// The number as a float64, the nearest one for a whole number beyond 2^53.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }
}

/// The array with elements of a type that holds them all; `None` for a whole number that a floating-point type does not hold exactly.
pub(crate) fn cast(tensor: &Tensor, dtype: Dtype) -> Option<Tensor> {
    let size = tensor.dtype.size();
    let mut data = Vec::with_capacity(tensor.data.len() / size * dtype.size());
    for bytes in tensor.data.chunks_exact(size) {
        let is_put = match Element::read(tensor.dtype, bytes) {
            Element::Whole(number) if !dtype.is_float() => {
                data.extend_from_slice(&number.to_le_bytes()[..dtype.size()]);
                true
            }
            Element::Whole(number) => is_exact(number) && put(&mut data, dtype, number as f64),
            Element::Real(number) => put(&mut data, dtype, number),
        };
        if !is_put {
            return None;
        }
    }
    Some(Tensor { dtype, shape: tensor.shape.clone(), data: data.into() })
}

/// Appends a number as an element; false if the type does not hold it.
pub(crate) fn put(data: &mut Vec<u8>, dtype: Dtype, number: f64) -> bool {
    match dtype {
        Dtype::Float64 => data.extend_from_slice(&number.to_le_bytes()),
        Dtype::Float32 => data.extend_from_slice(&(number as f32).to_le_bytes()),
        Dtype::Float16 => data.extend_from_slice(&f16::from_f64(number).to_le_bytes()),
        Dtype::Bfloat16 => data.extend_from_slice(&bf16::from_f64(number).to_le_bytes()),
        _ => {
            let whole = number as i64;
            let bytes = &whole.to_le_bytes()[..dtype.size()];
            let is_held = Element::read(dtype, bytes) == Element::Whole(whole);
            let is_truth = dtype != Dtype::Boolean || matches!(whole, 0 | 1);
            if whole as f64 != number || !is_held || !is_truth {
                return false;
            }
            data.extend_from_slice(bytes);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_every_type_are_read() {
        for (dtype, bytes, expected) in [
            (Dtype::Boolean, vec![1], 1.0),
            (Dtype::Uint8, vec![255], 255.0),
            (Dtype::Int8, vec![255], -1.0),
            (Dtype::Int16, vec![0xfe, 0xff], -2.0),
            (Dtype::Uint16, vec![0xfe, 0xff], 65534.0),
            (Dtype::Int32, (-3_i32).to_le_bytes().to_vec(), -3.0),
            (Dtype::Int64, (-4_i64).to_le_bytes().to_vec(), -4.0),
            (Dtype::Float16, vec![0x00, 0xc1], -2.5),
            (Dtype::Float16, vec![0x01, 0x00], 2_f64.powi(-24)),
            (Dtype::Bfloat16, vec![0x20, 0xc0], -2.5),
            (Dtype::Float32, 1.25_f32.to_le_bytes().to_vec(), 1.25),
            (Dtype::Float64, 0.1_f64.to_le_bytes().to_vec(), 0.1),
        ] {
            assert_eq!(Element::read(dtype, &bytes).to_f64(), expected, "{dtype:?}");
        }
        assert!(Element::read(Dtype::Float16, &[0x01, 0x7c]).to_f64().is_nan());
        assert_eq!(Element::read(Dtype::Float16, &[0x00, 0xfc]).to_f64(), f64::NEG_INFINITY);
    }
}
