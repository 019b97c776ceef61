//! Padding of tensors of different shapes with zeros to a common shape.

use crate::item::{Dtype, Sample, Stacked, Tensor, Value};
use crate::memory::Filling;
use crate::ports::StopFlag;

/// Maximum ratio of a padded array's bytes to the bytes of its tensors, for arrays that need more than [`FREE_PADDING`]. Without
/// a limit, long dimensions of different samples would multiply.
const MAX_PADDING: usize = 16;

/// Padding that is always permitted, in bytes.
const FREE_PADDING: usize = 1 << 20;

pub(super) struct Padding<'a> {
    pub(super) element_bytes: usize,
    pub(super) stop: &'a StopFlag,
}

impl Padding<'_> {
    /// Appends the elements of a tensor, with zeros after each dimension up to the size in `wanted`. `None` once the run is
    /// stopping.
    pub(super) fn append(
        &self,
        data: &mut Filling,
        elements: &[u8],
        shape: &[u32],
        wanted: &[u32],
    ) -> Option<()> {
        let ([size, shape @ ..], [most, wanted @ ..]) = (shape, wanted) else {
            data.append(elements);
            return Some(());
        };
        let row_bytes = wanted.iter().map(|size| *size as usize).product::<usize>() * self.element_bytes;
        let rows = if elements.is_empty() { 0 } else { *size as usize };
        if shape == wanted {
            data.append(elements);
        } else {
            for row in elements.chunks_exact(elements.len().checked_div(rows).unwrap_or(1).max(1)) {
                if self.stop.is_set() {
                    return None;
                }
                self.append(data, row, shape, wanted)?;
            }
        }
        append_zeros(data, (*most as usize - rows) * row_bytes);
        Some(())
    }
}

fn append_zeros(data: &mut Filling, mut bytes: usize) {
    const ZEROS: [u8; 4096] = [0; 4096];
    while bytes > 0 {
        let now = bytes.min(ZEROS.len());
        data.append(&ZEROS[..now]);
        bytes -= now;
    }
}

/// Tensors of the field at position `place`; empty if the field holds other values.
fn tensors(samples: &[Sample], place: usize) -> impl Iterator<Item = &Tensor> {
    samples.iter().filter_map(move |sample| match &sample.fields[place].value {
        Value::Tensor(tensor) => Some(tensor),
        _ => None,
    })
}

/// Largest size in each dimension of the field's tensors.
pub(super) fn largest_shape(samples: &[Sample], place: usize) -> Vec<u32> {
    let shapes = tensors(samples, place).map(|tensor| tensor.shape.clone());
    let larger = |one: Vec<u32>, other: Vec<u32>| one.into_iter().zip(other).map(|(a, b)| a.max(b)).collect();
    shapes.reduce(larger).unwrap_or_default()
}

/// Shapes of the field's tensors: int64, `[samples, dimensions]`; `None` for values without dimensions.
pub(super) fn stacked_shapes(samples: &[Sample], place: usize) -> Option<Stacked> {
    let dimensions = tensors(samples, place).next()?.shape.len();
    let sizes = tensors(samples, place).flat_map(|tensor| &tensor.shape);
    let data: Vec<u8> = sizes.flat_map(|size| i64::from(*size).to_le_bytes()).collect();
    let shape = vec![samples.len() as u32, dimensions as u32];
    (dimensions > 0).then(|| Stacked::Tensor(Tensor { dtype: Dtype::Int64, shape, data: data.into() }))
}

/// Name of the field that keeps the shapes of the padded field `name`.
pub(super) fn shape_name(name: &str) -> String {
    format!("{name}.shape")
}

/// Reason why the tensors of these samples cannot be padded; the samples have equal fields.
pub(super) fn unpaddable(samples: &[Sample]) -> Option<String> {
    let fields = &samples.first()?.fields;
    fields.iter().enumerate().find_map(|(place, field)| {
        let (name, element) = match &field.value {
            Value::Tensor(tensor) if !tensor.shape.is_empty() => (&*field.name, tensor.dtype.size()),
            _ => return None,
        };
        let taken = shape_name(name);
        if fields.iter().any(|other| *other.name == *taken) {
            return Some(format!("the batch has a field `{taken}`, which padding `{name}` would write: rename it"));
        }
        let largest = largest_shape(samples, place);
        if tensors(samples, place).all(|tensor| tensor.shape == largest) {
            return None;
        }
        // Sizes of 0 count as 1: the padded shape may combine large sizes of different tensors, and must be limited even if it
        // has no elements.
        let sizes = largest.iter().map(|size| (*size as usize).max(1));
        let padded = sizes.fold(samples.len().saturating_mul(element), usize::saturating_mul);
        let bytes: usize = tensors(samples, place).map(|tensor| tensor.data.len()).sum();
        (padded > bytes.saturating_mul(MAX_PADDING).saturating_add(FREE_PADDING)).then(|| {
            format!(
                "padding field `{name}` to {largest:?} makes {bytes} bytes into {padded}, more than {MAX_PADDING} times as \
                 many: put samples of similar shapes together, or set `ragged` to `list`"
            )
        })
    })
}
