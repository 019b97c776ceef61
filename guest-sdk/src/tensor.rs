//! Arrays of little-endian elements in row-major order: the last dimension varies fastest.

use std::borrow::Cow;
use std::fmt;

use bytemuck::Pod;

use crate::error::Result;

#[cfg(target_endian = "big")]
compile_error!(
    "tensors are little-endian and are not converted, so stages cannot run on a big-endian machine"
);

/// Element types, with the names of NumPy and PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the type of that name")]
pub enum Dtype {
    Boolean,
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

/// Rust type of the elements of a tensor.
pub trait Element: Pod + fmt::Debug + PartialEq {
    /// Name of the type in the contract.
    const DTYPE: Dtype;
}

/// An array whose element type is known at run time only; the form that crosses the module's boundary.
#[derive(Clone, Debug, PartialEq)]
pub struct RawTensor {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first; empty for a scalar.
    pub shape: Vec<u32>,
    /// Bytes of the elements: exactly (product of `shape`) x `dtype.size()`.
    pub data: Vec<u8>,
}

/// Typed view of a tensor's elements, without a copy if possible.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorView<'a, T: Element> {
    shape: &'a [u32],
    elements: Cow<'a, [T]>,
}

/// Tensor created by a stage.
#[derive(Clone, Debug)]
pub struct Tensor<T: Element> {
    shape: Vec<u32>,
    elements: Elements<T>,
}

/// A tensor leaves the module as a `Vec<u8>`, and a `Vec<f32>` cannot become one without a copy: it would be freed with another
/// alignment than it was allocated with. So elements are written into a `Vec<u8>` whose address happens to be aligned for
/// `T`.
#[derive(Clone, Debug)]
enum Elements<T> {
    /// Bytes at an address aligned for `T`; their number is (number of elements) x (size of `T`).
    Bytes(Vec<u8>),
    /// Elements passed in by the stage, or allocated as `T` because the bytes were not aligned; copied when the tensor leaves the
    /// module.
    Typed(Vec<T>),
}

impl Dtype {
    /// Each type with its name in NumPy and its element size in bytes, in the order of the variants and of the contract.
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

    /// Type with this number in the contract; called by generated code.
    #[cfg(target_family = "wasm")]
    pub(crate) fn _lift(number: u8) -> Self {
        Self::TABLE[usize::from(number)].0
    }

    /// Name in NumPy, e.g. `uint8`.
    pub fn name(self) -> &'static str {
        Self::TABLE[self as usize].1
    }

    /// Size of one element, in bytes.
    pub fn size(self) -> usize {
        Self::TABLE[self as usize].2
    }
}

impl RawTensor {
    /// Returns the elements as `T`, without a copy if the address is aligned for `T`: always for bytes, and always inside
    /// WebAssembly, whose allocator aligns to 8 bytes. Otherwise the elements are copied.
    ///
    /// Fails if the elements are of another type, or their number does not match the shape.
    pub fn view<T: Element>(&self) -> Result<TensorView<'_, T>> {
        crate::ensure!(
            self.dtype == T::DTYPE,
            "has elements of type {}, not {}",
            self.dtype.name(),
            T::DTYPE.name()
        );
        check_count(&self.shape, self.data.len() / size_of::<T>())?;
        crate::ensure!(
            self.data.len().is_multiple_of(size_of::<T>()),
            "has {} bytes, not a multiple of {}",
            self.data.len(),
            size_of::<T>()
        );
        Ok(TensorView { shape: &self.shape, elements: elements(&self.data) })
    }
}

impl<T: Element> TensorView<'_, T> {
    /// Dimensions, slowest first; empty for a scalar.
    pub fn shape(&self) -> &[u32] {
        self.shape
    }

    /// Number of dimensions of the tensor.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Elements in order, the last dimension fastest.
    pub fn as_slice(&self) -> &[T] {
        &self.elements
    }

    /// Returns the dimensions as sizes; fails if the number of dimensions is not `N`.
    ///
    /// ```
    /// # use penstock_guest::prelude::*;
    /// # fn size(item: &Item) -> Result<usize> {
    /// let image = item.tensor::<u8>("image")?;
    /// let [height, width, channels] = image.dimensions()?;
    /// # Ok(height * width * channels) }
    /// ```
    pub fn dimensions<const N: usize>(&self) -> Result<[usize; N]> {
        let sizes: Vec<usize> = self.shape.iter().map(|&size| size as usize).collect();
        sizes.try_into().map_err(|_| {
            crate::Error::new(format_args!(
                "the tensor has {} dimensions, not {N}: {:?}",
                self.rank(),
                self.shape
            ))
        })
    }
}

impl<T: Element> Tensor<T> {
    /// Creates a tensor of these elements. Fails if their number does not match the shape.
    ///
    /// Bytes are used without a copy. Larger elements are copied once when the tensor leaves the stage; to avoid that, fill
    /// [`Tensor::zeros`] instead.
    pub fn new(shape: impl Into<Vec<u32>>, elements: Vec<T>) -> Result<Self> {
        let shape = shape.into();
        check_count(&shape, elements.len())?;
        let elements = match bytemuck::allocation::try_cast_vec(elements) {
            Ok(bytes) => Elements::Bytes(bytes),
            Err((_, elements)) => Elements::Typed(elements),
        };
        Ok(Self { shape, elements })
    }

    /// Creates a tensor of zeros, to be filled in place; it leaves the stage without a copy.
    ///
    /// # Panics
    /// Panics if the shape has more elements than memory has bytes.
    pub fn zeros(shape: impl Into<Vec<u32>>) -> Self {
        let shape = shape.into();
        let count = count(&shape).expect("a shape fits into memory");
        let bytes = count.checked_mul(size_of::<T>()).expect("a shape fits into memory");
        let mut data = vec![0_u8; bytes];
        let elements = match bytemuck::try_cast_slice_mut::<u8, T>(&mut data) {
            Ok(_) => Elements::Bytes(data),
            Err(_) => Elements::Typed(vec![T::zeroed(); count]),
        };
        Self { shape, elements }
    }

    /// Dimensions, slowest first; empty for a scalar.
    pub fn shape(&self) -> &[u32] {
        &self.shape
    }

    /// Elements in order, the last dimension fastest.
    pub fn as_slice(&self) -> &[T] {
        match &self.elements {
            Elements::Bytes(data) => bytemuck::cast_slice(data),
            Elements::Typed(elements) => elements,
        }
    }

    /// Elements in order, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        match &mut self.elements {
            Elements::Bytes(data) => bytemuck::cast_slice_mut(data),
            Elements::Typed(elements) => elements,
        }
    }

    /// Converts the tensor to the form that crosses the module's boundary.
    pub fn into_raw(self) -> RawTensor {
        let data = match self.elements {
            Elements::Bytes(data) => data,
            Elements::Typed(elements) => bytemuck::cast_slice(&elements).to_vec(),
        };
        RawTensor { dtype: T::DTYPE, shape: self.shape, data }
    }
}

/// Elements in `bytes`, copied only if their address is not aligned for `T`.
fn elements<T: Element>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => Cow::Owned(bytemuck::allocation::pod_collect_to_vec(bytes)),
    }
}

fn check_count(shape: &[u32], elements: usize) -> Result<()> {
    crate::ensure!(
        count(shape) == Some(elements),
        "has {elements} elements, which do not fit the shape {shape:?}"
    );
    Ok(())
}

fn count(shape: &[u32]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size as usize))
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),+) => {
        $(impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        })+
    };
}

elements!(u8 => Uint8, i8 => Int8, i16 => Int16, u16 => Uint16, i32 => Int32, i64 => Int64, f32 => Float32, f64 => Float64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_survives_a_round_trip() {
        let raw = Tensor::new([2, 2], vec![1.0_f32, -2.0, 3.5, 0.0]).unwrap().into_raw();
        assert_eq!((raw.dtype, raw.data.len()), (Dtype::Float32, 16));
        let view = raw.view::<f32>().unwrap();
        assert_eq!(view.shape(), [2, 2]);
        assert_eq!(view.as_slice(), [1.0, -2.0, 3.5, 0.0]);
        assert_eq!(view.dimensions::<2>().unwrap(), [2, 2]);
    }

    #[test]
    fn zeros_are_filled_in_place() {
        let mut tensor = Tensor::<i32>::zeros([3]);
        tensor.as_mut_slice()[1] = -1;
        assert_eq!(tensor.as_slice(), [0, -1, 0]);
        assert_eq!(tensor.into_raw().data, [0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]);
    }

    #[test]
    fn elements_at_an_unaligned_address_are_read_correctly() {
        let aligned: Vec<u8> = [7_u64, 8].iter().flat_map(|value| value.to_le_bytes()).collect();
        // Seven of the eight offsets are misaligned for i64.
        for offset in 0..8 {
            let mut data = vec![0; offset];
            data.extend_from_slice(&aligned);
            assert_eq!(*elements::<i64>(&data[offset..]), [7, 8]);
        }
    }

    #[test]
    fn another_element_type_is_refused_by_name() {
        let raw = Tensor::new([1], vec![1_u8]).unwrap().into_raw();
        assert_eq!(raw.view::<f32>().unwrap_err().message(), "has elements of type uint8, not float32");
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused() {
        let error = Tensor::new([2, 3], vec![0_u8; 5]).unwrap_err();
        assert_eq!(error.message(), "has 5 elements, which do not fit the shape [2, 3]");
        let raw = RawTensor { dtype: Dtype::Int16, shape: vec![1], data: vec![0; 3] };
        assert_eq!(raw.view::<i16>().unwrap_err().message(), "has 3 bytes, not a multiple of 2");
        let huge = RawTensor { dtype: Dtype::Uint8, shape: vec![u32::MAX; 9], data: vec![] };
        assert!(huge.view::<u8>().is_err());
    }

    #[test]
    fn a_scalar_has_one_element_and_an_empty_dimension_none() {
        assert_eq!(Tensor::new([], vec![2.5_f64]).unwrap().into_raw().view::<f64>().unwrap().rank(), 0);
        assert!(Tensor::<u16>::zeros([0, 4]).as_slice().is_empty());
    }
}
