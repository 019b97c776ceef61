//! The form in which items leave the process: for another process, a file, or another machine.
//!
//! A frame is a preamble of [`PREAMBLE_BYTES`], a head, and the parts: the bytes of the values, each part at a multiple of
//! [`ALIGNMENT`] from the start of the frame. The head describes the item and says where its parts are, some of which may be in
//! other memory that both sides have. A checksum covers the frame, but no part outside it. Values other than texts are not copied:
//! those of a decoded item are slices of the frame, which may be the mapping of a file.
//!
//! The ticket of an [`Origin`] belongs to one run, and is not part of the form.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

use crate::item::{Collated, Column, Dtype, Field, Item, Origin, Sample, Stacked, Tensor, Value};
use crate::memory::ALIGNMENT;

/// Version of the form.
const VERSION: u32 = 1;

const MAGIC: [u8; 4] = *b"PNSK";

/// Magic bytes, version and checksum, each of 4 bytes, and lengths of the head and the frame, each of 8 bytes; little-endian.
const PREAMBLE_BYTES: usize = 28;

/// Place of the checksum, which covers all that follows it.
const CHECKSUM: Range<usize> = 8..12;

/// Description of an item, with its parts in the order in which the description mentions them.
#[derive(Debug)]
pub struct Encoded<'a> {
    item: ItemHead<'a>,
    pub parts: Vec<EncodedPart>,
}

/// The bytes of one value, or of all values of a list.
#[derive(Debug)]
pub struct EncodedPart {
    /// Bytes of the part, one piece after another.
    pub pieces: Vec<Bytes>,
    /// Place of the part, if the frame does not contain it.
    pub outside: Option<Outside>,
}

/// A place in memory that is passed to [`decode`] together with the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Index of the memory, from 0.
    pub memory: usize,
    pub offset: usize,
}

/// Error for an item with a field in the memory of a device, which has no form outside its process.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field `{0}` is in the memory of a device")]
pub struct OnDevice(pub Arc<str>);

/// Reason why bytes cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFault {
    #[error("it is no frame of samples")]
    NotAFrame,
    #[error("it has version {0} of the form of samples, but this release reads version {VERSION}")]
    Version(u32),
    #[error("it is damaged: its checksum or its length does not match")]
    Damaged,
    #[error("its description is invalid")]
    Head(#[source] postcard::Error),
    #[error("its data does not match its fields")]
    Mismatch,
}

#[derive(Debug, Serialize, Deserialize)]
enum ItemHead<'a> {
    #[serde(borrow)]
    Sample(SampleHead<'a>),
    Batch(Vec<SampleHead<'a>>),
    Collated {
        samples: Vec<(&'a str, Origin)>,
        columns: Vec<(&'a str, StackedHead<'a>)>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct SampleHead<'a> {
    key: &'a str,
    origin: Origin,
    #[serde(borrow)]
    fields: Vec<(&'a str, ValueHead<'a>)>,
}

#[derive(Debug, Serialize, Deserialize)]
enum ValueHead<'a> {
    Blob,
    Text(&'a str),
    Int(i64),
    Real(f64),
    Tensor(#[serde(borrow)] ArrayHead<'a>),
}

/// Description of an array: the name of its element type, and its shape.
type ArrayHead<'a> = (&'a str, Cow<'a, [u32]>);

/// Lists say how long each of their values is, in bytes.
#[derive(Debug, Serialize, Deserialize)]
enum StackedHead<'a> {
    Tensor(#[serde(borrow)] ArrayHead<'a>),
    Tensors(Vec<ArrayHead<'a>>),
    Texts(Vec<usize>),
    Blobs(Vec<usize>),
}

/// Place of a part: in the frame, counted from its first part, if `memory` is 0, or in the memory outside with the index
/// `memory - 1`.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    memory: usize,
    offset: usize,
    bytes: usize,
}

impl<'a> Encoded<'a> {
    pub fn of(item: &'a Item) -> Result<Self, OnDevice> {
        let mut parts = PartList(Vec::new());
        let item = match item {
            Item::Sample(sample) => ItemHead::Sample(parts.sample(sample)),
            Item::Batch(samples) => {
                ItemHead::Batch(samples.iter().map(|sample| parts.sample(sample)).collect())
            }
            Item::Collated(batch) => ItemHead::Collated {
                samples: batch.keys.iter().map(|key| &**key).zip(batch.origins.iter().copied()).collect(),
                columns: batch.fields.iter().map(|column| parts.column(column)).collect::<Result<_, _>>()?,
            },
        };
        Ok(Self { item, parts: parts.0 })
    }

    /// The frame, in pieces that follow each other. The first one is the preamble with the head.
    pub fn frame(&self) -> Vec<Bytes> {
        let (mut places, mut end) = (Vec::with_capacity(self.parts.len()), 0);
        let mut pieces = vec![Bytes::new()];
        for part in &self.parts {
            let bytes = part.bytes();
            places.push(match part.outside {
                Some(Outside { memory, offset }) => Place { memory: memory + 1, offset, bytes },
                None => {
                    let offset = usize::next_multiple_of(end, ALIGNMENT);
                    pieces.push(Bytes::from_static(&[0; ALIGNMENT]).slice(..offset - end));
                    pieces.extend_from_slice(&part.pieces);
                    end = offset + bytes;
                    Place { memory: 0, offset, bytes }
                }
            });
        }
        let head = postcard::to_allocvec(&(&self.item, places)).expect("texts and numbers are plain data");
        let first_bytes = (PREAMBLE_BYTES + head.len()).next_multiple_of(ALIGNMENT);
        let lengths = [head.len(), first_bytes + end].map(|bytes| (bytes as u64).to_le_bytes()).concat();
        let mut first = [&MAGIC, &VERSION.to_le_bytes(), &[0; 4], &*lengths, &*head].concat();
        first.resize(first_bytes, 0);
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&first[CHECKSUM.end..]);
        pieces.iter().for_each(|piece| checksum.update(piece));
        first[CHECKSUM].copy_from_slice(&checksum.finalize().to_le_bytes());
        pieces[0] = first.into();
        pieces
    }
}

/// Decodes a frame whose parts are in the frame itself or in the memory `outside`.
pub fn decode(frame: &Bytes, outside: &[Bytes]) -> Result<Item, DecodeFault> {
    let mut preamble = frame.get(..PREAMBLE_BYTES).ok_or(DecodeFault::NotAFrame)?;
    if preamble.get_u32_le() != u32::from_le_bytes(MAGIC) {
        return Err(DecodeFault::NotAFrame);
    }
    let version = preamble.get_u32_le();
    if version != VERSION {
        return Err(DecodeFault::Version(version));
    }
    let (checksum, head, bytes) = (preamble.get_u32_le(), preamble.get_u64_le(), preamble.get_u64_le());
    if bytes != frame.len() as u64 || checksum != crc32fast::hash(&frame[CHECKSUM.end..]) {
        return Err(DecodeFault::Damaged);
    }
    let rest = &frame[PREAMBLE_BYTES..];
    let head = usize::try_from(head).ok().and_then(|bytes| rest.get(..bytes)).ok_or(DecodeFault::Damaged)?;
    let (item, places): (ItemHead<'_>, Vec<Place>) = postcard::from_bytes(head).map_err(DecodeFault::Head)?;
    let first_bytes = (PREAMBLE_BYTES + head.len()).next_multiple_of(ALIGNMENT);
    let inside = frame.slice(first_bytes.min(frame.len())..);
    let mut values = Values { places: places.into_iter(), inside, outside };
    let item = values.item(item).ok_or(DecodeFault::Mismatch)?;
    values.places.next().map_or(Ok(item), |_| Err(DecodeFault::Mismatch))
}

impl EncodedPart {
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// Parts of an item that is being described.
struct PartList(Vec<EncodedPart>);

impl PartList {
    fn add(&mut self, pieces: Vec<Bytes>) {
        self.0.push(EncodedPart { pieces, outside: None });
    }

    fn sample<'a>(&mut self, sample: &'a Sample) -> SampleHead<'a> {
        let field = |Field { name, value }: &'a Field| (&**name, self.value(value));
        let fields = sample.fields.iter().map(field).collect();
        SampleHead { key: &sample.key, origin: sample.origin, fields }
    }

    fn value<'a>(&mut self, value: &'a Value) -> ValueHead<'a> {
        match value {
            Value::Blob(blob) => {
                self.add(vec![blob.clone()]);
                ValueHead::Blob
            }
            Value::Text(text) => ValueHead::Text(text),
            Value::Int(int) => ValueHead::Int(*int),
            Value::Real(real) => ValueHead::Real(*real),
            Value::Tensor(tensor) => ValueHead::Tensor(self.tensor(tensor)),
        }
    }

    fn tensor<'a>(&mut self, tensor: &'a Tensor) -> ArrayHead<'a> {
        self.add(vec![tensor.data.clone()]);
        array(tensor)
    }

    fn column<'a>(
        &mut self,
        Column { name, values }: &'a Column,
    ) -> Result<(&'a str, StackedHead<'a>), OnDevice> {
        let head = match values {
            Stacked::Tensor(tensor) => StackedHead::Tensor(self.tensor(tensor)),
            Stacked::Tensors(tensors) => {
                self.add(tensors.iter().map(|tensor| tensor.data.clone()).collect());
                StackedHead::Tensors(tensors.iter().map(array).collect())
            }
            Stacked::Texts(texts) => {
                self.add(vec![texts.concat().into()]);
                StackedHead::Texts(texts.iter().map(String::len).collect())
            }
            Stacked::Blobs(blobs) => {
                self.add(blobs.clone());
                StackedHead::Blobs(blobs.iter().map(Bytes::len).collect())
            }
            Stacked::Device(_) => return Err(OnDevice(name.clone())),
        };
        Ok((name, head))
    }
}

fn array(tensor: &Tensor) -> ArrayHead<'_> {
    (tensor.dtype.name(), Cow::Borrowed(&tensor.shape))
}

/// Parts of a frame that is being decoded. Methods return `None` if a part is missing or does not match its description.
struct Values<'a> {
    places: std::vec::IntoIter<Place>,
    inside: Bytes,
    outside: &'a [Bytes],
}

impl Values<'_> {
    fn item(&mut self, head: ItemHead<'_>) -> Option<Item> {
        let mut names = Vec::new();
        Some(match head {
            ItemHead::Sample(head) => Item::Sample(self.sample(head, &mut names)?),
            ItemHead::Batch(heads) => {
                let samples = heads.into_iter().map(|head| self.sample(head, &mut names));
                Item::Batch(samples.collect::<Option<_>>()?)
            }
            ItemHead::Collated { samples, columns } => {
                let count = samples.len();
                let column = |(name, head): (&str, StackedHead<'_>)| {
                    Some(Column { name: name.into(), values: self.stacked(head, count)? })
                };
                let fields = columns.into_iter().map(column).collect::<Option<_>>()?;
                let (keys, origins) =
                    samples.into_iter().map(|(key, origin)| (Arc::from(key), origin)).unzip();
                Item::Collated(Collated { keys, origins, fields })
            }
        })
    }

    /// Samples share the names of their fields, which are in `names`.
    fn sample(&mut self, head: SampleHead<'_>, names: &mut Vec<Arc<str>>) -> Option<Sample> {
        let mut sample = Sample::new(head.key, head.origin);
        sample.fields.reserve_exact(head.fields.len());
        for (place, (name, value)) in head.fields.into_iter().enumerate() {
            if names.get(place).is_none_or(|known| **known != *name) {
                names.truncate(place);
                names.push(name.into());
            }
            sample.fields.push(Field { name: names[place].clone(), value: self.value(value)? });
        }
        Some(sample)
    }

    fn value(&mut self, head: ValueHead<'_>) -> Option<Value> {
        Some(match head {
            ValueHead::Blob => Value::Blob(self.next()?),
            ValueHead::Text(text) => Value::Text(text.to_owned()),
            ValueHead::Int(int) => Value::Int(int),
            ValueHead::Real(real) => Value::Real(real),
            ValueHead::Tensor(head) => Value::Tensor(self.tensor(head)?),
        })
    }

    fn tensor(&mut self, (dtype, shape): ArrayHead<'_>) -> Option<Tensor> {
        let (dtype, data) = (Dtype::named(dtype)?, self.next()?);
        (array_bytes(dtype, &shape)? == data.len()).then(|| Tensor { dtype, shape: shape.into_owned(), data })
    }

    /// A column of a batch with this number of samples.
    fn stacked(&mut self, head: StackedHead<'_>, samples: usize) -> Option<Stacked> {
        Some(match head {
            StackedHead::Tensor(head) => {
                let tensor = self.tensor(head)?;
                let is_stacked = tensor.shape.first().is_some_and(|first| *first as usize == samples);
                Stacked::Tensor(is_stacked.then_some(tensor)?)
            }
            StackedHead::Tensors(heads) => {
                let dtypes =
                    heads.iter().map(|(dtype, _)| Dtype::named(dtype)).collect::<Option<Vec<_>>>()?;
                let lengths = dtypes.iter().zip(&heads).map(|(dtype, (_, shape))| array_bytes(*dtype, shape));
                let list = self.list(lengths, samples)?.into_iter().zip(dtypes).zip(heads);
                let tensor = |((data, dtype), (_, shape)): (_, ArrayHead<'_>)| Tensor {
                    dtype,
                    shape: shape.into_owned(),
                    data,
                };
                Stacked::Tensors(list.map(tensor).collect())
            }
            StackedHead::Texts(lengths) => {
                let data = self.next()?;
                let mut rest = str::from_utf8(&data).ok()?;
                let text = |length| {
                    let (text, after) = rest.split_at_checked(length)?;
                    rest = after;
                    Some(text.to_owned())
                };
                let texts: Vec<String> = lengths.into_iter().map(text).collect::<Option<_>>()?;
                Stacked::Texts((rest.is_empty() && texts.len() == samples).then_some(texts)?)
            }
            StackedHead::Blobs(lengths) => Stacked::Blobs(self.list(lengths.into_iter().map(Some), samples)?),
        })
    }

    /// Values of these lengths, one for each sample, which fill the next part.
    fn list(&mut self, lengths: impl Iterator<Item = Option<usize>>, samples: usize) -> Option<Vec<Bytes>> {
        let mut rest = self.next()?;
        let value = |length: Option<usize>| {
            length.filter(|length| *length <= rest.len()).map(|length| rest.split_to(length))
        };
        let list: Vec<Bytes> = lengths.map(value).collect::<Option<_>>()?;
        (rest.is_empty() && list.len() == samples).then_some(list)
    }

    fn next(&mut self) -> Option<Bytes> {
        let Place { memory, offset, bytes } = self.places.next()?;
        let memory = memory.checked_sub(1).map_or(Some(&self.inside), |outside| self.outside.get(outside))?;
        let end = offset.checked_add(bytes).filter(|end| *end <= memory.len())?;
        Some(memory.slice(offset..end))
    }
}

/// Bytes of an array; `None` if they cannot be counted.
fn array_bytes(dtype: Dtype, shape: &[u32]) -> Option<usize> {
    // Sizes of 0 count as 1 here, so that products of a subset of the dimensions cannot overflow later.
    let sizes = shape.iter().map(|size| (*size as usize).max(1));
    let most = sizes.clone().try_fold(dtype.size(), usize::checked_mul)?;
    Some(if shape.contains(&0) { 0 } else { most })
}

#[cfg(test)]
mod tests;
