//! Items that move through a pipeline: samples, batches, and the values in them.

use std::sync::Arc;

use bytes::Bytes;
pub use penstock_types::dtype::Dtype;
use penstock_types::plan::LEAST_SAMPLE_BYTES;
use serde::{Deserialize, Serialize};

use crate::memory::DeviceMemory;

/// Content of one queue slot: a sample or a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Sample(Sample),
    /// Samples that travel together, each with separate fields.
    Batch(Vec<Sample>),
    /// Samples whose fields were stacked by `collate`.
    Collated(Collated),
}

/// One sample: a key, its origin, and named fields in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name shown to users: an object's key, a record's key, or an index.
    pub key: Arc<str>,
    /// Position in the source, from which seeds are derived.
    pub origin: Origin,
    /// Fields in the order in which stages made them; names are unique.
    pub fields: Vec<Field>,
}

/// Origin of a sample in the source. Independent of the number of threads and ranks, and of the order in which samples are
/// processed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Number of the pass over the source, from 0.
    pub epoch: u32,
    /// Number of the visit in the run, modulo 2^32, by which the engine recognizes the samples of a position. Set by the engine;
    /// all samples made from one sample have its ticket.
    #[serde(skip)]
    pub ticket: u32,
    /// Position in the unshuffled source, from 0.
    pub index: u64,
    /// Hash of the fan-outs that the sample has passed; 0 before the first fan-out.
    pub path: u64,
}

/// Compares the place in the source, which is the same in every run, unlike the ticket.
impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        (self.epoch, self.index, self.path) == (other.epoch, other.index, other.path)
    }
}

impl Eq for Origin {}

impl Origin {
    /// Origin of the sample at `index` of the source, before any fan-out.
    pub fn at(epoch: u32, index: u64) -> Self {
        Self { epoch, index, ..Self::default() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: Arc<str>,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unparsed bytes, e.g. a JPEG file.
    Blob(Bytes),
    Text(String),
    Int(i64),
    Real(f64),
    Tensor(Tensor),
}

/// An array: little-endian elements, row-major. `data.len()` is the product of `shape` times `dtype.size()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    /// Dimensions, slowest first; empty for a scalar.
    pub shape: Vec<u32>,
    pub data: Bytes,
}

/// A batch after `collate`: every field stacked over the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Collated {
    /// Keys of the samples, in the order of the first dimension.
    pub keys: Vec<Arc<str>>,
    pub origins: Vec<Origin>,
    pub fields: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: Arc<str>,
    pub values: Stacked,
}

/// The values of one field over all samples of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Stacked {
    /// Array of all samples: tensors of shape `s` become one tensor of shape `[samples, s...]`; ints become an int64 tensor of
    /// shape `[samples]`, reals a float64 tensor of shape `[samples]`.
    Tensor(Tensor),
    /// The array of all samples, like `Tensor`, in the memory of a device.
    Device(DeviceTensor),
    /// One tensor per sample, with the same element type and number of dimensions but different shapes.
    Tensors(Vec<Tensor>),
    Texts(Vec<String>),
    Blobs(Vec<Bytes>),
}

/// An array in the memory of a device; the counterpart of [`Tensor`] in host memory.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    pub dtype: Dtype,
    pub shape: Vec<u32>,
    /// Memory whose first bytes are the elements, row-major; it may be longer than the array.
    pub memory: Arc<dyn DeviceMemory>,
}

impl DeviceTensor {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().map(|size| u64::from(*size)).product::<u64>() * self.dtype.size() as u64
    }
}

/// Compares the identity of the memory instead of its content, because the host cannot read device memory here.
impl PartialEq for DeviceTensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && Arc::ptr_eq(&self.memory, &other.memory)
    }
}

impl Sample {
    pub fn new(key: impl Into<Arc<str>>, origin: Origin) -> Self {
        Self { key: key.into(), origin, fields: Vec::new() }
    }

    /// Value of the field `name`, if the sample has it.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|field| &*field.name == name).map(|field| &field.value)
    }

    /// Sets the field `name`: in place if the sample has it, otherwise at the end.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: Value) {
        let name = name.into();
        match self.fields.iter_mut().find(|field| field.name == name) {
            Some(field) => field.value = value,
            None => self.fields.push(Field { name, value }),
        }
    }

    /// Bytes of the values, without overhead.
    pub fn bytes(&self) -> u64 {
        self.fields.iter().map(|field| field.value.bytes()).sum()
    }

    /// Bytes that the sample occupies in memory: values, key and fields. Field names do not count, because many samples share
    /// them.
    pub fn memory_bytes(&self) -> u64 {
        let fields = self.fields.len() * size_of::<Field>();
        (SAMPLE_BYTES + self.key.len() + fields) as u64 + self.bytes()
    }
}

/// Bytes of a sample without its key text and fields: the struct, and the reference counters of the key.
const SAMPLE_BYTES: usize = size_of::<Sample>() + 2 * size_of::<usize>();
const _: () = assert!(
    SAMPLE_BYTES as u64 >= LEAST_SAMPLE_BYTES,
    "a sample must take at least the memory that `check` assumes"
);

impl Value {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Blob(bytes) => bytes.len() as u64,
            Self::Text(text) => text.len() as u64,
            Self::Int(_) | Self::Real(_) => 8,
            Self::Tensor(tensor) => tensor.data.len() as u64,
        }
    }
}

impl Item {
    pub fn samples(&self) -> u64 {
        match self {
            Self::Sample(_) => 1,
            Self::Batch(samples) => samples.len() as u64,
            Self::Collated(batch) => batch.keys.len() as u64,
        }
    }

    /// Bytes that the item takes in memory; a batch takes the sum over its samples.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Sample(sample) => sample.memory_bytes(),
            Self::Batch(samples) => samples.iter().map(Sample::memory_bytes).sum(),
            Self::Collated(batch) => {
                let keys = batch.keys.iter().map(|key| (SAMPLE_BYTES + key.len()) as u64).sum::<u64>();
                keys + self.value_bytes()
            }
        }
    }

    /// Bytes of the values, without overhead.
    pub fn value_bytes(&self) -> u64 {
        match self {
            Self::Sample(sample) => sample.bytes(),
            Self::Batch(samples) => samples.iter().map(Sample::bytes).sum(),
            Self::Collated(batch) => batch.fields.iter().map(|column| column.values.bytes()).sum(),
        }
    }

    /// Key and origin of the first sample; `None` if the item holds none.
    pub fn first(&self) -> Option<(&Arc<str>, Origin)> {
        match self {
            Self::Sample(sample) => Some((&sample.key, sample.origin)),
            Self::Batch(samples) => samples.first().map(|sample| (&sample.key, sample.origin)),
            Self::Collated(batch) => batch.keys.first().zip(batch.origins.first().copied()),
        }
    }

    /// Origins of the samples, in order.
    pub fn origins(&self) -> impl ExactSizeIterator<Item = Origin> + '_ {
        let (samples, origins): (&[Sample], &[Origin]) = match self {
            Self::Sample(sample) => (std::slice::from_ref(sample), &[]),
            Self::Batch(samples) => (samples, &[]),
            Self::Collated(batch) => (&[], &batch.origins),
        };
        let count = samples.len() + origins.len();
        (0..count).map(move |at| samples.get(at).map_or_else(|| origins[at], |sample| sample.origin))
    }

    /// Splits the item into samples; see [`Collated::into_samples`].
    pub fn into_samples(self) -> Vec<Sample> {
        match self {
            Self::Sample(sample) => vec![sample],
            Self::Batch(samples) => samples,
            Self::Collated(batch) => batch.into_samples(),
        }
    }
}

impl Collated {
    /// Splits the batch into samples without fields: stacked values no longer belong to single samples, so only the keys remain.
    pub fn into_samples(self) -> Vec<Sample> {
        self.keys.into_iter().zip(self.origins).map(|(key, origin)| Sample::new(key, origin)).collect()
    }
}

impl Stacked {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Tensor(tensor) => tensor.data.len() as u64,
            Self::Device(tensor) => tensor.bytes(),
            Self::Tensors(tensors) => tensors.iter().map(|tensor| tensor.data.len() as u64).sum(),
            Self::Texts(texts) => texts.iter().map(|text| text.len() as u64).sum(),
            Self::Blobs(blobs) => blobs.iter().map(|blob| blob.len() as u64).sum(),
        }
    }
}
