//! The ops of a document.

use penstock_guest::Params;

penstock_guest::ops!(Npy, Pick, Remove, Rename, Cast, Scale, OneHot, Stack);

/// Decodes a file of NumPy, `.npy`, to a tensor.
#[derive(Clone, Debug, Params)]
pub struct Npy {
    /// Blob with the file; it is removed.
    #[param(default = "bytes")]
    pub field: String,
    /// Name of the tensor; by default that of the blob.
    pub to: Option<String>,
}

/// Keeps only some fields.
#[derive(Clone, Debug, Params)]
pub struct Pick {
    /// Fields that stay, all of which must exist.
    pub fields: Vec<String>,
}

/// Removes the named fields and keeps all others.
#[derive(Clone, Debug, Params)]
pub struct Remove {
    /// Fields to remove, all of which must exist.
    pub fields: Vec<String>,
}

/// Gives a field another name.
#[derive(Clone, Debug, Params)]
pub struct Rename {
    /// Name of an existing field.
    pub from: String,
    /// New name, which no field has.
    pub to: String,
}

/// Converts a number, a text with a number, or a tensor to another type. Numbers that the type cannot hold fail: a fraction or a
/// number out of range as an integer, or anything but 0 and 1 as `bool`. Floating-point numbers are rounded.
#[derive(Clone, Debug, Params)]
pub struct Cast {
    /// Name of the field.
    pub field: String,
    /// `int` and `real` make a field of one number, the others a tensor, of no dimensions if the field was one number.
    pub dtype: Dtype,
}

/// Shifts and scales numbers: (value - `mean`) / `std`, or (value - `min`) / (`max` - `min`). One number becomes a real, a
/// tensor becomes one of float32.
#[derive(Clone, Debug, Params)]
pub struct Scale {
    /// Name of the field.
    pub field: String,
    /// Number to subtract from each value.
    #[param(default = 0.0)]
    pub mean: f64,
    /// Number to divide by.
    #[param(default = 1.0)]
    pub std: f64,
    /// Number that becomes 0.
    pub min: Option<f64>,
    /// Number that becomes 1.
    pub max: Option<f64>,
}

/// Replaces a class by a vector of float32 that is 1 at the class and 0 elsewhere.
#[derive(Clone, Debug, Params)]
pub struct OneHot {
    /// Name of the field: a text if `classes` is given, otherwise a whole number from 0.
    pub field: String,
    /// Texts of the classes, in order.
    pub classes: Option<Vec<String>>,
    /// Length of the vector: classes are the numbers below it.
    #[param(min = 1, max = 1_000_000)]
    pub num_classes: Option<u32>,
    /// Result for other values.
    #[param(default = "fail")]
    pub unknown: Unknown,
}

/// Joins numbers and tensors to one vector of float32, in the order of the fields, which are removed.
#[derive(Clone, Debug, Params)]
pub struct Stack {
    /// Names of the fields.
    pub fields: Vec<String>,
    /// Name of the vector.
    #[param(default = "features")]
    pub to: String,
}

/// Result of `OneHot` for a value that is not a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Unknown {
    /// The sample fails, with the value and the classes.
    Fail,
    /// A vector of zeros.
    Zeros,
}

/// Type of a field or of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Dtype {
    /// A field of one whole number.
    Int,
    /// A field of one 64-bit floating-point number.
    Real,
    /// One byte, 0 for false and 1 for true.
    Bool,
    Uint8,
    Int8,
    Int16,
    Uint16,
    Int32,
    Int64,
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Scale {
    pub(crate) fn shift(&self) -> f64 {
        self.min.unwrap_or(self.mean)
    }

    pub(crate) fn divisor(&self) -> f64 {
        self.max.zip(self.min).map_or(self.std, |(max, min)| max - min)
    }
}
