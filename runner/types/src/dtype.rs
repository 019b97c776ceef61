//! Element types of arrays.

/// Element types, named as in NumPy and PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Truth value of one byte.
    Boolean,
    /// Unsigned, one byte.
    Uint8,
    /// Signed, one byte.
    Int8,
    /// Signed, two bytes.
    Int16,
    /// Unsigned, two bytes.
    Uint16,
    /// Signed, four bytes.
    Int32,
    /// Signed, eight bytes.
    Int64,
    /// IEEE half precision, two bytes.
    Float16,
    /// Single precision with a short fraction, two bytes.
    Bfloat16,
    /// IEEE single precision, four bytes.
    Float32,
    /// IEEE double precision, eight bytes.
    Float64,
}

impl Dtype {
    /// Element types with their NumPy names and bytes per element, in the order of the enum's variants.
    const TABLE: [(Self, &str, usize); 11] = [
        (Self::Boolean, "bool", 1),
        (Self::Uint8, "uint8", 1),
        (Self::Int8, "int8", 1),
        (Self::Int16, "int16", 2),
        (Self::Uint16, "uint16", 2),
        (Self::Int32, "int32", 4),
        (Self::Int64, "int64", 8),
        (Self::Float16, "float16", 2),
        (Self::Bfloat16, "bfloat16", 2),
        (Self::Float32, "float32", 4),
        (Self::Float64, "float64", 8),
    ];

    /// All types, in the order of the variants.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::TABLE.iter().map(|(dtype, ..)| *dtype)
    }

    /// The type with this NumPy name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|dtype| dtype.name() == name)
    }

    /// NumPy's name of the type, e.g. `uint8`.
    pub fn name(self) -> &'static str {
        Self::TABLE[self as usize].1
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        Self::TABLE[self as usize].2
    }

    /// Smallest type that holds all values of both exactly; `None` if there is none, or if only one of them has truth values.
    pub fn common(self, other: Self) -> Option<Self> {
        if self == other {
            return Some(self);
        }
        let integer = |dtype| {
            Some(match dtype {
                Self::Uint8 => (false, 8),
                Self::Int8 => (true, 8),
                Self::Uint16 => (false, 16),
                Self::Int16 => (true, 16),
                Self::Int32 => (true, 32),
                Self::Int64 => (true, 64),
                _ => return None,
            })
        };
        // Digits of the fraction that a floating-point type holds.
        let float = |dtype| match dtype {
            Self::Bfloat16 => Some(8),
            Self::Float16 => Some(11),
            Self::Float32 => Some(24),
            Self::Float64 => Some(53),
            _ => None,
        };
        match (integer(self), integer(other), float(self), float(other)) {
            (Some((one_signed, one)), Some((two_signed, two)), ..) => {
                let need =
                    |is_signed: bool, bits: i32| bits + i32::from(!is_signed && (one_signed || two_signed));
                let bits = need(one_signed, one).max(need(two_signed, two));
                Some(match (bits, one_signed || two_signed) {
                    (..=8, true) => Self::Int8,
                    (..=8, false) => Self::Uint8,
                    (..=16, true) => Self::Int16,
                    (..=16, false) => Self::Uint16,
                    (..=32, _) => Self::Int32,
                    (..=64, _) => Self::Int64,
                    _ => return None,
                })
            }
            (.., Some(one), Some(two)) => Some(match one.max(two) {
                // Neither of the two types with two bytes holds all values of the other.
                11 | 24 => Self::Float32,
                _ => Self::Float64,
            }),
            (Some((_, bits)), None, None, Some(digits)) | (None, Some((_, bits)), Some(digits), None) => {
                let float = if self.is_float() { self } else { other };
                Some(if bits <= digits { float } else { Self::Float64 })
            }
            _ => None,
        }
    }

    /// True for a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_type_holds_the_values_of_both() {
        use Dtype::*;
        for (one, other, common) in [
            (Int32, Int64, Some(Int64)),
            (Uint8, Int8, Some(Int16)),
            (Uint8, Uint16, Some(Uint16)),
            (Uint16, Int16, Some(Int32)),
            (Uint16, Int64, Some(Int64)),
            (Float16, Bfloat16, Some(Float32)),
            (Float32, Float64, Some(Float64)),
            (Int8, Float32, Some(Float32)),
            (Int32, Float32, Some(Float64)),
            (Int64, Float16, Some(Float64)),
            (Boolean, Int8, None),
            (Boolean, Boolean, Some(Boolean)),
        ] {
            assert_eq!((one.common(other), other.common(one)), (common, common), "{one:?} {other:?}");
        }
    }
}
