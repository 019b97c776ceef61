//! Numbers of fields and tensors, and their conversion.

use half::{bf16, f16};
use penstock_guest::prelude::*;
use penstock_guest::{Dtype as Stored, RawTensor};

use crate::ops::Dtype;

/// Numbers without loss: whole numbers stay whole.
pub(crate) enum Numbers {
    Ints(Vec<i64>),
    Reals(Vec<f64>),
}

/// Numbers of a field.
pub(crate) struct Numeric {
    pub(crate) numbers: Numbers,
    /// Dimensions of a tensor; `None` for a field of one number.
    pub(crate) shape: Option<Vec<u32>>,
}

impl Numeric {
    /// Numbers of the field `name`: of an int, a real, a text that is a number, or a tensor.
    pub(crate) fn of(item: &Item, name: &str) -> Result<Self> {
        let one = |numbers| Self { numbers, shape: None };
        Ok(match item.get(name) {
            Some(Value::Int(number)) => one(Numbers::Ints(vec![*number])),
            Some(Value::Text(text)) => {
                let text = text.trim();
                match (text.parse::<i64>(), text.parse::<f64>()) {
                    (Ok(whole), _) => one(Numbers::Ints(vec![whole])),
                    (_, Ok(real)) => one(Numbers::Reals(vec![real])),
                    _ => {
                        let start: String = text.chars().take(40).collect();
                        bail!("`{name}` is the text `{start}`, which is not a number")
                    }
                }
            }
            Some(Value::Tensor(tensor)) => {
                let numbers = of_tensor(tensor).context(format_args!("field `{name}`"))?;
                Self { numbers, shape: Some(tensor.shape.clone()) }
            }
            // Other types and missing fields have their error.
            _ => one(Numbers::Reals(vec![item.real(name)?])),
        })
    }
}

impl Numbers {
    pub(crate) fn reals(self) -> Vec<f64> {
        match self {
            Self::Ints(numbers) => numbers.into_iter().map(|number| number as f64).collect(),
            Self::Reals(numbers) => numbers,
        }
    }

    /// Each number as a whole number from `least` to `most`; the error names the first that is none.
    fn whole<T: TryFrom<i64>>(&self, name: &str) -> Result<Vec<T>> {
        let refused =
            |number: &dyn std::fmt::Display| Error::new(format_args!("{number} does not fit into {name}"));
        match self {
            Self::Ints(numbers) => {
                numbers.iter().map(|&number| T::try_from(number).map_err(|_| refused(&number))).collect()
            }
            Self::Reals(numbers) => numbers
                .iter()
                .map(|&number| {
                    // The conversion saturates, so that numbers out of range differ from their integer.
                    let whole = number as i64;
                    let is_same = whole as f64 == number && whole != i64::MAX;
                    T::try_from(whole).ok().filter(|_| is_same).ok_or_else(|| refused(&number))
                })
                .collect(),
        }
    }

    fn map<T>(self, of: fn(f64) -> T) -> Vec<T> {
        self.reals().into_iter().map(of).collect()
    }
}

fn of_tensor(tensor: &RawTensor) -> Result<Numbers> {
    fn ints<T: penstock_guest::Element + Into<i64>>(tensor: &RawTensor) -> Result<Numbers> {
        Ok(Numbers::Ints(tensor.view::<T>()?.as_slice().iter().map(|&number| number.into()).collect()))
    }
    let bits = || tensor.data.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    Ok(match tensor.dtype {
        Stored::Boolean => Numbers::Ints(tensor.data.iter().map(|&byte| i64::from(byte != 0)).collect()),
        Stored::Uint8 => ints::<u8>(tensor)?,
        Stored::Int8 => ints::<i8>(tensor)?,
        Stored::Int16 => ints::<i16>(tensor)?,
        Stored::Uint16 => ints::<u16>(tensor)?,
        Stored::Int32 => ints::<i32>(tensor)?,
        Stored::Int64 => ints::<i64>(tensor)?,
        Stored::Float16 => Numbers::Reals(bits().map(|bits| f16::from_bits(bits).to_f64()).collect()),
        Stored::Bfloat16 => Numbers::Reals(bits().map(|bits| bf16::from_bits(bits).to_f64()).collect()),
        Stored::Float32 => {
            Numbers::Reals(tensor.view::<f32>()?.as_slice().iter().map(|&number| number.into()).collect())
        }
        Stored::Float64 => Numbers::Reals(tensor.view::<f64>()?.as_slice().to_vec()),
    })
}

/// Converts numbers to `dtype`.
pub(crate) fn convert(numeric: Numeric, dtype: Dtype) -> Result<Value> {
    let Numeric { numbers, shape } = numeric;
    let shape = match dtype {
        Dtype::Int | Dtype::Real => {
            let count = match &numbers {
                Numbers::Ints(numbers) => numbers.len(),
                Numbers::Reals(numbers) => numbers.len(),
            };
            ensure!(count == 1, "has {count} numbers, so that it cannot become one; use a type of tensors");
            Vec::new()
        }
        _ => shape.unwrap_or_default(),
    };
    let of_bytes = |dtype, data| Value::Tensor(RawTensor { dtype, shape: shape.clone(), data });
    let of_halves =
        |dtype, bits: Vec<u16>| of_bytes(dtype, bits.into_iter().flat_map(u16::to_le_bytes).collect());
    Ok(match dtype {
        Dtype::Int => numbers.whole::<i64>("an int")?[0].into(),
        Dtype::Real => numbers.reals()[0].into(),
        Dtype::Bool => {
            let bytes = numbers.whole::<u8>("bool")?;
            if let Some(other) = bytes.iter().find(|&&byte| byte > 1) {
                bail!("{other} does not fit into bool, which has 0 and 1")
            }
            of_bytes(Stored::Boolean, bytes)
        }
        Dtype::Uint8 => Tensor::new(shape, numbers.whole::<u8>("uint8")?)?.into(),
        Dtype::Int8 => Tensor::new(shape, numbers.whole::<i8>("int8")?)?.into(),
        Dtype::Int16 => Tensor::new(shape, numbers.whole::<i16>("int16")?)?.into(),
        Dtype::Uint16 => Tensor::new(shape, numbers.whole::<u16>("uint16")?)?.into(),
        Dtype::Int32 => Tensor::new(shape, numbers.whole::<i32>("int32")?)?.into(),
        Dtype::Int64 => Tensor::new(shape, numbers.whole::<i64>("int64")?)?.into(),
        Dtype::Float16 => of_halves(Stored::Float16, numbers.map(|number| f16::from_f64(number).to_bits())),
        Dtype::Bfloat16 => {
            of_halves(Stored::Bfloat16, numbers.map(|number| bf16::from_f64(number).to_bits()))
        }
        Dtype::Float32 => Tensor::new(shape, numbers.map(|number| number as f32))?.into(),
        Dtype::Float64 => Tensor::new(shape, numbers.reals())?.into(),
    })
}
