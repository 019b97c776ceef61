//! Encodings of the columns of MDS shards.

use bytes::{Buf, Bytes};
use penstock_engine::item::{Dtype, Tensor, Value};
use penstock_types::data_set::FieldType;

use crate::reason::Reason;
use crate::value::{little_endian, shortened, text};

const MAX_RANK: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Blob,
    Text,
    Json,
    /// Whole number of one, two, four or eight bytes.
    Int {
        is_signed: bool,
        size: usize,
    },
    /// Floating-point number of two, four or eight bytes.
    Real {
        size: usize,
    },
    IntText,
    RealText,
    /// Array, whose element type and shape are here or in each sample.
    Array {
        dtype: Option<Dtype>,
        shape: Option<Vec<u32>>,
    },
    /// Images in sequence, behind their number and their sizes, four bytes each. `unused` bytes stand before these.
    Images {
        unused: usize,
    },
}

impl Encoding {
    /// The encoding of this name. The error is the end of a sentence about the encoding.
    pub(super) fn named(name: &str) -> Result<Self, Reason> {
        Ok(match name {
            "bytes" | "jpeg" | "png" => Self::Blob,
            "str" | "str_decimal" => Self::Text,
            "json" => Self::Json,
            "int" | "int64" => Self::Int { is_signed: true, size: 8 },
            "int8" => Self::Int { is_signed: true, size: 1 },
            "int16" => Self::Int { is_signed: true, size: 2 },
            "int32" => Self::Int { is_signed: true, size: 4 },
            "uint8" => Self::Int { is_signed: false, size: 1 },
            "uint16" => Self::Int { is_signed: false, size: 2 },
            "uint32" => Self::Int { is_signed: false, size: 4 },
            "uint64" => Self::Int { is_signed: false, size: 8 },
            "float16" => Self::Real { size: 2 },
            "float32" => Self::Real { size: 4 },
            "float64" => Self::Real { size: 8 },
            "str_int" => Self::IntText,
            "str_float" => Self::RealText,
            "pkl" => return Err("is not read, since it runs code that the data contain".into()),
            "pil" => return Err("is not read: write images as `jpeg` or `png`".into()),
            "list[pil]" => return Err("is not read: write images as `list[jpeg]` or `list[png]`".into()),
            "jpeg_array" | "jpegarray" => Self::Images { unused: 0 },
            "list[jpeg]" | "list[png]" => Self::Images { unused: 4 },
            array => match array.strip_prefix("ndarray") {
                Some("") => Self::Array { dtype: None, shape: None },
                Some(rest) => Self::array(rest.strip_prefix(':').ok_or("is unknown")?)?,
                None => return Err("is unknown".into()),
            },
        })
    }

    /// An array `DTYPE` or `DTYPE:SIZE,SIZE`.
    fn array(text: &str) -> Result<Self, Reason> {
        let (dtype, shape) = text.split_once(':').map_or((text, None), |(dtype, shape)| (dtype, Some(shape)));
        let dtype = match dtype {
            "" => None,
            name => Some(element(name)?),
        };
        let shape = shape
            .map(|shape| shape.split(',').map(|size| size.trim().parse()).collect::<Result<Vec<u32>, _>>());
        let shape = shape.transpose().map_err(|_| "has a shape that is no list of sizes")?;
        match shape.as_ref().is_some_and(|shape| shape.len() > MAX_RANK) {
            true => Err(format!("has more than {MAX_RANK} dimensions").into()),
            false => Ok(Self::Array { dtype, shape }),
        }
    }

    pub(super) fn kind(&self) -> FieldType {
        match self {
            Self::Blob | Self::Images { .. } => FieldType::Bytes,
            Self::Text | Self::Json => FieldType::Text,
            Self::Int { .. } | Self::IntText => FieldType::Int,
            Self::Real { .. } | Self::RealText => FieldType::Real,
            Self::Array { dtype, shape } => {
                let dimensions = shape.as_ref().and_then(|shape| u32::try_from(shape.len()).ok());
                FieldType::Tensor { dtype: *dtype, dimensions }
            }
        }
    }

    /// Meaning of texts and blobs, which their type alone does not state: the predicate of a sentence. `None` for other values.
    pub(super) fn meaning(&self) -> Option<&'static str> {
        match self {
            Self::Text => Some("is a text"),
            Self::Json => Some("is JSON"),
            Self::Blob => Some("is a blob"),
            Self::Images { .. } => Some("is a list of images"),
            _ => None,
        }
    }

    /// Value of a column, but not of several images. The error is the end of a sentence about the column.
    pub(super) fn value(&self, content: Bytes) -> Result<Value, Reason> {
        Ok(match self {
            Self::Blob => Value::Blob(content),
            Self::Images { .. } => return Err("is a list of images, which is no value".into()),
            Self::Text | Self::Json => Value::Text(text(&content)?),
            Self::Int { is_signed, size } => {
                let bits = number(&content, *size)?;
                let above = 64 - 8 * *size as u32;
                match is_signed {
                    true => Value::Int(((bits << above) as i64) >> above),
                    false => Value::Int(
                        i64::try_from(bits).map_err(|_| format!("is {bits}, more than {}", i64::MAX))?,
                    ),
                }
            }
            Self::Real { size } => {
                let bits = number(&content, *size)?;
                Value::Real(match size {
                    2 => half::f16::from_bits(bits as u16).to_f64(),
                    4 => f32::from_bits(bits as u32).into(),
                    _ => f64::from_bits(bits),
                })
            }
            Self::IntText => {
                let text = text(&content)?;
                let number = text.parse();
                Value::Int(
                    number.map_err(|_| format!("is no whole number of 64 bits: `{}`", shortened(&text)))?,
                )
            }
            Self::RealText => {
                let text = text(&content)?;
                Value::Real(text.parse().map_err(|_| format!("is no number: `{}`", shortened(&text)))?)
            }
            Self::Array { dtype, shape } => tensor(*dtype, shape.as_deref(), content)?,
        })
    }
}

/// Sizes of images, four bytes each, and the images in sequence.
pub(super) fn images(mut content: Bytes, unused: usize) -> Result<(Bytes, Bytes), Reason> {
    const TRUNCATED: &str = "ends before the sizes of its images";
    if content.len() < unused {
        return Err(TRUNCATED.into());
    }
    content.advance(unused);
    let count = content.try_get_u32_le().map_err(|_| TRUNCATED)?;
    let head = u64::from(count) * 4;
    if head > content.len() as u64 {
        return Err(TRUNCATED.into());
    }
    let sizes = content.split_to(head as usize);
    let bytes = sizes.chunks_exact(4).map(little_endian).sum::<u64>();
    match bytes == content.len() as u64 {
        true => Ok((sizes, content)),
        false => Err(format!(
            "states {bytes} bytes for its {count} images, but has {} bytes of images",
            content.len()
        )
        .into()),
    }
}

/// Array element type of this name.
fn element(name: &str) -> Result<Dtype, Reason> {
    let known = ["uint8", "int8", "uint16", "int16", "float16", "int32", "float32", "int64", "float64"];
    let dtype = known.contains(&name).then(|| Dtype::named(name)).flatten();
    Ok(dtype.ok_or_else(|| format!("has elements of the type `{}`, which no field has", shortened(name)))?)
}

/// An array: the number of its element type unless `dtype` is given, its shape unless that is given, and its elements.
fn tensor(dtype: Option<Dtype>, shape: Option<&[u32]>, mut content: Bytes) -> Result<Value, Reason> {
    const TRUNCATED: &str = "ends before its shape";
    let dtype = match dtype {
        Some(dtype) => dtype,
        None => element(match content.try_get_u8().map_err(|_| TRUNCATED)? {
            8 => "uint8",
            9 => "int8",
            16 => "uint16",
            17 => "int16",
            18 => "float16",
            32 => "uint32",
            33 => "int32",
            34 => "float32",
            64 => "uint64",
            65 => "int64",
            66 => "float64",
            other => return Err(format!("has elements of the unknown type {other}").into()),
        })?,
    };
    let shape = match shape {
        Some(shape) => shape.to_vec(),
        None => {
            let head = content.try_get_u8().map_err(|_| TRUNCATED)?;
            let (rank, width) = (usize::from(head >> 2), 1 << (head & 3));
            if rank > MAX_RANK {
                return Err(format!("has {rank} dimensions, more than {MAX_RANK}").into());
            }
            if content.len() < rank * width {
                return Err(TRUNCATED.into());
            }
            let sizes = content.split_to(rank * width);
            let size = |bytes: &[u8]| {
                u32::try_from(little_endian(bytes)).map_err(|_| "has more than 4 billion rows")
            };
            sizes.chunks_exact(width).map(size).collect::<Result<_, _>>()?
        }
    };
    let bytes = shape.iter().try_fold(dtype.size() as u64, |bytes, size| bytes.checked_mul((*size).into()));
    if bytes != Some(content.len() as u64) {
        let (found, dtype) = (content.len(), dtype.name());
        return Err(format!("has {found} bytes, which are no array of {dtype} of the shape {shape:?}").into());
    }
    Ok(Value::Tensor(Tensor { dtype, shape, data: content }))
}

fn number(content: &[u8], size: usize) -> Result<u64, Reason> {
    match content.len() == size {
        true => Ok(little_endian(content)),
        false => Err(format!("has {} bytes instead of {size}", content.len()).into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(name: &str, content: &[u8]) -> Result<Value, String> {
        Ok(Encoding::named(name)?.value(Bytes::copy_from_slice(content))?)
    }

    #[test]
    fn numbers_keep_their_signs_and_sizes() {
        assert_eq!(value("int8", &[0xff]), Ok(Value::Int(-1)));
        assert_eq!(value("uint8", &[0xff]), Ok(Value::Int(255)));
        assert_eq!(value("int", &(-7_i64).to_le_bytes()), Ok(Value::Int(-7)));
        assert_eq!(
            value("uint64", &[0xff; 8]),
            Err("is 18446744073709551615, more than 9223372036854775807".to_owned())
        );
        assert_eq!(value("int16", &[1]), Err("has 1 bytes instead of 2".to_owned()));
    }

    #[test]
    fn half_precision_is_exact() {
        let reals = [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_477_539_063e-8),
        ];
        let half = |bits: u16| value("float16", &bits.to_le_bytes());
        for (bits, expected) in reals {
            assert_eq!(half(bits), Ok(Value::Real(expected)), "{bits:#x}");
        }
        assert_eq!(half(0xfc00), Ok(Value::Real(f64::NEG_INFINITY)));
        assert!(matches!(half(0x7e00), Ok(Value::Real(number)) if number.is_nan()));
    }

    #[test]
    fn encodings_that_are_not_read_state_the_reason() {
        let refused = |name: &str| Encoding::named(name).unwrap_err().to_string();
        assert_eq!(refused("pkl"), "is not read, since it runs code that the data contain");
        assert_eq!(refused("ndarray:uint32"), "has elements of the type `uint32`, which no field has");
        assert_eq!(refused("ndarray:uint8:3,x"), "has a shape that is no list of sizes");
        assert_eq!(refused("ndarrays"), "is unknown");
        assert_eq!(refused("ndarray:bool"), "has elements of the type `bool`, which no field has");
    }

    #[test]
    fn images_are_as_many_as_their_number_says() {
        let list = |name: &str, content: &[u8]| match Encoding::named(name)? {
            Encoding::Images { unused } => {
                images(Bytes::copy_from_slice(content), unused).map(|(_, bytes)| bytes)
            }
            other => panic!("{other:?}"),
        };
        let blob = |bytes: &'static [u8]| Ok(Bytes::from_static(bytes));
        assert_eq!(list("jpeg_array", &[2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 7, 8, 9]), blob(&[7, 8, 9]));
        assert_eq!(list("jpegarray", &[0, 0, 0, 0]), blob(&[]));
        assert_eq!(list("list[png]", &[0, 0, 0, 0, 0, 0, 0, 0]), blob(&[]));
        assert_eq!(list("list[jpeg]", &[9, 9, 9, 9, 1, 0, 0, 0, 0, 0, 0, 0]), blob(&[]));
        let refused = |name: &str, content: &[u8]| list(name, content).unwrap_err().to_string();
        assert_eq!(
            refused("jpeg_array", &[1, 0, 0, 0, 3, 0, 0, 0, 7]),
            "states 3 bytes for its 1 images, but has 1 bytes of images"
        );
        for content in [&[][..], &[0; 3], &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]] {
            assert_eq!(refused("jpeg_array", content), "ends before the sizes of its images");
        }
        assert_eq!(refused("list[jpeg]", &[0; 7]), "ends before the sizes of its images");
    }

    proptest! {
        #[test]
        fn damaged_values_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), name in 0_usize..11) {
            let names = ["list[jpeg]", "jpeg_array", "ndarray", "ndarray:int16", "ndarray:float32:2,3", "str", "str_int", "str_float", "float16", "json", "uint32"];
            drop(value(names[name], &bytes));
        }
    }
}
