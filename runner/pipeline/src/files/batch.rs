//! Converts a collated batch to a safetensors file.
//!
//! | Field of the batch | Tensors in the file |
//! |---|---|
//! | tensor, int, real | one tensor of its name, type and shape, with the samples as first dimension (ints `I64`, reals `F64`) |
//! | list of tensors | `NAME`: the elements of all tensors in sequence; `NAME.offsets` as below, counted in elements; and `NAME.shapes`: the shape of each tensor (`I64`, `[samples, dimensions]`) |
//! | text, blob | `NAME`: the bytes of all values in sequence (`U8`; texts are UTF-8), and `NAME.offsets`: the start of each value, and the end of the last (`I64`; their number is the number of samples plus one) |
//! | `NAME.offsets` beside a blob `NAME`, as sources make of lists of blobs | as above, with the name `NAME.parts` in place of its own, which the blob needs |
//!
//! The header's `__metadata__` has one member, `penstock`, whose text is JSON: `format`; `batch`, the number of the batch; for every
//! sample its key (`keys`), pass over the source (`epochs`) and position in the unshuffled source (`indexes`); `paths`, hashes of
//! fan-outs, only if there were any; `fields`, in the order of the batch, with `tensor`, `tensors`, `text` or `blob` for each; `data`,
//! the SHA-256 of all bytes after the header, so that equal headers mean equal files. There is only one member because the format does
//! not define an order of members, and equal batches must have equal bytes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Collated, Column, Dtype, Origin, Stacked, Tensor};
use penstock_types::text::{MAX_SHOWN_KEY, printable};
use safetensors::tensor::{Dtype as FileDtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

const METADATA: &str = "penstock";

/// End of the name of a tensor with the starts of values.
const OFFSETS: &str = ".offsets";

const RESERVED: &str = "__metadata__";

/// Size of the field that precedes the header and contains its length, in bytes.
pub(super) const LENGTH_BYTES: usize = 8;

/// Maximum size of a header that readers of the format accept, in bytes.
pub(super) const MAX_HEADER_BYTES: usize = 100_000_000;

#[derive(Debug)]
pub(super) struct File {
    /// Length and header: everything before the data.
    head: Bytes,
    parts: Vec<Part>,
    data_bytes: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BatchMetadata {
    format: u32,
    batch: u64,
    pub(super) keys: Vec<Arc<str>>,
    epochs: Vec<u32>,
    indexes: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<u64>>,
    fields: Map<String, Value>,
    /// SHA-256 of the data, in hex.
    pub(super) data: String,
}

#[derive(Debug)]
struct Part {
    name: String,
    dtype: FileDtype,
    shape: Vec<usize>,
    data: PartData,
}

#[derive(Debug)]
enum PartData {
    Whole(Bytes),
    Texts(Vec<String>),
    Blobs(Vec<Bytes>),
}

impl File {
    /// Converts a batch to a file, or returns the reason why that is not possible.
    pub(super) fn of(batch: Collated, number: u64) -> Result<Self, String> {
        let mut description = BatchMetadata::of(&batch, number);
        let mut parts = Vec::with_capacity(batch.fields.len());
        let is_blob = |column: &&Column| matches!(column.values, Stacked::Blobs(_));
        let blobs: BTreeSet<Arc<str>> =
            batch.fields.iter().filter(is_blob).map(|column| column.name.clone()).collect();
        for column in batch.fields {
            let of = column.name.strip_suffix(OFFSETS).filter(|of| blobs.contains(*of));
            let name = of.map(|of| format!("{of}.parts"));
            parts.extend(parts_of(name.as_deref().unwrap_or(&column.name), column.values)?);
        }
        check_names(&parts)?;
        // Same order as in the reference writer of the format: by element size, largest first, for alignment, then by name.
        parts.sort_by(|one, other| other.dtype.cmp(&one.dtype).then_with(|| one.name.cmp(&other.name)));
        let mut data_bytes = 0;
        let infos = parts.iter().map(|part| {
            let begin = data_bytes;
            data_bytes += part.data.bytes();
            let data_offsets = (begin, data_bytes);
            (part.name.clone(), TensorInfo { dtype: part.dtype, shape: part.shape.clone(), data_offsets })
        });
        let infos: Vec<_> = infos.collect();
        description.data = digest(&parts);
        let description = serde_json::to_string(&description).expect("keys and numbers are JSON");
        let metadata = Metadata::new(Some(HashMap::from([(METADATA.to_owned(), description)])), infos)
            .map_err(|error| format!("it does not fit the format: {error}"))?;
        let mut header = serde_json::to_vec(&metadata).expect("a header is JSON");
        header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
        if header.len() > MAX_HEADER_BYTES {
            return Err(format!(
                "its {} keys make a header of {} bytes, but readers accept at most {MAX_HEADER_BYTES} bytes; make smaller batches",
                batch.keys.len(),
                header.len()
            ));
        }
        let mut head = (header.len() as u64).to_le_bytes().to_vec();
        head.append(&mut header);
        Ok(Self { head: head.into(), parts, data_bytes })
    }

    pub(super) fn size(&self) -> u64 {
        (self.head.len() + self.data_bytes) as u64
    }

    pub(super) fn head(&self) -> Bytes {
        self.head.clone()
    }

    pub(super) fn into_bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.head.len() + self.data_bytes);
        bytes.extend_from_slice(&self.head);
        self.parts.iter().for_each(|part| part.data.each(|piece| bytes.extend_from_slice(piece)));
        bytes.into()
    }
}

/// Digest of all data, in the order of the file.
fn digest(parts: &[Part]) -> String {
    let mut digest = Sha256::new();
    parts.iter().for_each(|part| part.data.each(|piece| digest.update(piece)));
    format!("{:x}", digest.finalize())
}

impl BatchMetadata {
    fn of(batch: &Collated, number: u64) -> Self {
        let each = |of: fn(&Origin) -> u64| batch.origins.iter().map(of).collect::<Vec<_>>();
        let paths = each(|origin| origin.path);
        let kind = |values: &Stacked| match values {
            Stacked::Tensor(_) | Stacked::Device(_) => "tensor",
            Stacked::Tensors(_) => "tensors",
            Stacked::Texts(_) => "text",
            Stacked::Blobs(_) => "blob",
        };
        Self {
            format: super::manifest::FORMAT,
            batch: number,
            keys: batch.keys.clone(),
            epochs: batch.origins.iter().map(|origin| origin.epoch).collect(),
            indexes: each(|origin| origin.index),
            paths: paths.iter().any(|path| *path != 0).then_some(paths),
            fields: batch
                .fields
                .iter()
                .map(|column| (column.name.to_string(), kind(&column.values).into()))
                .collect(),
            data: String::new(),
        }
    }

    /// Reads Penstock's metadata from a header without its length; `None` if another program wrote the header.
    pub(super) fn read(header: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Header {
            #[serde(rename = "__metadata__")]
            metadata: HashMap<String, String>,
        }
        let header: Header = serde_json::from_slice(header).ok()?;
        serde_json::from_str(header.metadata.get(METADATA)?).ok()
    }
}

impl PartData {
    fn bytes(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Blobs(blobs) => blobs.iter().map(Bytes::len).sum(),
        }
    }

    /// Passes all bytes to `piece`, in order.
    fn each(&self, mut piece: impl FnMut(&[u8])) {
        match self {
            Self::Whole(bytes) => piece(bytes),
            Self::Texts(texts) => texts.iter().for_each(|text| piece(text.as_bytes())),
            Self::Blobs(blobs) => blobs.iter().for_each(|blob| piece(blob)),
        }
    }
}

fn parts_of(name: &str, values: Stacked) -> Result<Vec<Part>, String> {
    Ok(match values {
        Stacked::Tensor(Tensor { dtype, shape, data }) => vec![Part {
            name: name.to_owned(),
            dtype: file_dtype(dtype),
            shape: shape.iter().map(|size| *size as usize).collect(),
            data: PartData::Whole(data),
        }],
        Stacked::Tensors(tensors) => {
            let Some(dtype) = tensors.first().map(|tensor| tensor.dtype) else { return Ok(Vec::new()) };
            let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.data.len() / dtype.size()).collect();
            let shapes = tensors.iter().flat_map(|tensor| &tensor.shape);
            let shapes: Vec<u8> = shapes.flat_map(|size| i64::from(*size).to_le_bytes()).collect();
            let dimensions = shapes.len() / size_of::<i64>() / tensors.len();
            let shapes = Part {
                name: format!("{name}.shapes"),
                dtype: FileDtype::I64,
                shape: vec![tensors.len(), dimensions],
                data: PartData::Whole(shapes.into()),
            };
            let data = PartData::Blobs(tensors.into_iter().map(|tensor| tensor.data).collect());
            let mut parts = parts_with_offsets(name, file_dtype(dtype), &lengths, data);
            parts.push(shapes);
            parts
        }
        Stacked::Texts(texts) => {
            let lengths: Vec<usize> = texts.iter().map(String::len).collect();
            parts_with_offsets(name, FileDtype::U8, &lengths, PartData::Texts(texts))
        }
        Stacked::Blobs(blobs) => {
            let lengths: Vec<usize> = blobs.iter().map(Bytes::len).collect();
            parts_with_offsets(name, FileDtype::U8, &lengths, PartData::Blobs(blobs))
        }
        Stacked::Device(_) => {
            let name = printable(name, MAX_SHOWN_KEY);
            return Err(format!("the field `{name}` is on a GPU, but files are written from host memory"));
        }
    })
}

/// Creates the tensor of all elements in sequence, and the tensor of offsets at which values start.
fn parts_with_offsets(name: &str, dtype: FileDtype, lengths: &[usize], data: PartData) -> Vec<Part> {
    let mut end = 0;
    let mut offsets = 0_i64.to_le_bytes().to_vec();
    for length in lengths {
        end += *length as i64;
        offsets.extend_from_slice(&end.to_le_bytes());
    }
    let count = offsets.len() / size_of::<i64>();
    let part = |name: String, dtype, size, data| Part { name, dtype, shape: vec![size], data };
    vec![
        part(name.to_owned(), dtype, lengths.iter().sum(), data),
        part(format!("{name}{OFFSETS}"), FileDtype::I64, count, PartData::Whole(offsets.into())),
    ]
}

/// Checks that no two tensors have the same name, since a file contains one tensor per name.
fn check_names(parts: &[Part]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for Part { name, .. } in parts {
        if name == RESERVED {
            return Err(format!("the file format reserves the name `{RESERVED}`; rename the field"));
        }
        if !seen.insert(name) {
            return Err(format!(
                "the field `{}` has the name of a tensor that describes the values of another field; rename one of them",
                printable(name, MAX_SHOWN_KEY)
            ));
        }
    }
    Ok(())
}

fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::Boolean => FileDtype::BOOL,
        Dtype::Uint8 => FileDtype::U8,
        Dtype::Int8 => FileDtype::I8,
        Dtype::Int16 => FileDtype::I16,
        Dtype::Uint16 => FileDtype::U16,
        Dtype::Int32 => FileDtype::I32,
        Dtype::Int64 => FileDtype::I64,
        Dtype::Float16 => FileDtype::F16,
        Dtype::Bfloat16 => FileDtype::BF16,
        Dtype::Float32 => FileDtype::F32,
        Dtype::Float64 => FileDtype::F64,
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn batch(fields: Vec<(&str, Stacked)>) -> Collated {
        let origin = |index| Origin::at(1, index);
        Collated {
            keys: vec!["a".into(), "b\n".into()],
            origins: vec![origin(5), origin(3)],
            fields: fields.into_iter().map(|(name, values)| Column { name: name.into(), values }).collect(),
        }
    }

    fn tensor(dtype: Dtype, shape: &[u32]) -> Stacked {
        let size = shape.iter().product::<u32>() as usize * dtype.size();
        let data = (0..size).map(|byte| byte as u8).collect::<Vec<_>>().into();
        Stacked::Tensor(Tensor { dtype, shape: shape.to_vec(), data })
    }

    fn file(fields: Vec<(&str, Stacked)>) -> Bytes {
        File::of(batch(fields), 7).unwrap().into_bytes()
    }

    #[test]
    fn every_kind_of_field_is_read_back_by_the_formats_own_reader() {
        let mut fields: Vec<(&str, Stacked)> =
            Dtype::all().map(|dtype| (dtype.name(), tensor(dtype, &[2, 3]))).collect();
        fields.push(("none", tensor(Dtype::Float32, &[2, 0])));
        fields.push(("caption", Stacked::Texts(vec!["ä".into(), String::new()])));
        fields.push(("raw", Stacked::Blobs(vec![Bytes::new(), Bytes::from_static(b"\xff\x00")])));
        let clip = |shape: &[u32]| match tensor(Dtype::Int16, shape) {
            Stacked::Tensor(tensor) => tensor,
            other => panic!("{other:?}"),
        };
        fields.push(("clips", Stacked::Tensors(vec![clip(&[3, 1]), clip(&[0, 2])])));
        let bytes = file(fields);
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), 11 + 1 + 4 + 3);
        for dtype in Dtype::all() {
            let view = read.tensor(dtype.name()).unwrap();
            assert_eq!((view.dtype(), view.shape()), (file_dtype(dtype), [2, 3].as_slice()));
            assert_eq!(view.data().len(), 6 * dtype.size());
            assert_eq!(view.data()[5], 5);
        }
        let offsets = |name: &str| -> Vec<i64> {
            let view = read.tensor(name).unwrap();
            view.data().chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        assert_eq!(read.tensor("caption").unwrap().data(), "ä".as_bytes());
        assert_eq!(offsets("caption.offsets"), [0, 2, 2]);
        assert_eq!(read.tensor("raw").unwrap().data(), b"\xff\x00");
        assert_eq!(offsets("raw.offsets"), [0, 0, 2]);
        let clips = read.tensor("clips").unwrap();
        assert_eq!(
            (clips.dtype(), clips.shape(), clips.data()),
            (FileDtype::I16, &[3][..], &[0, 1, 2, 3, 4, 5][..])
        );
        assert_eq!((offsets("clips.offsets"), offsets("clips.shapes")), (vec![0, 3, 3], vec![3, 1, 0, 2]));
        assert_eq!(read.tensor("clips.shapes").unwrap().shape(), [2, 2]);
    }

    #[test]
    fn the_header_contains_the_origin_of_every_sample_and_is_deterministic() {
        let fields =
            || vec![("x", tensor(Dtype::Int64, &[2])), ("a", Stacked::Texts(vec![String::new(); 2]))];
        let bytes = file(fields());
        assert_eq!(file(fields()), bytes);
        let whole = File::of(batch(fields()), 7).unwrap();
        assert_eq!(whole.size(), bytes.len() as u64);
        let head = whole.head();
        assert_eq!(bytes[..head.len()], head);
        assert!(head.len().is_multiple_of(8));
        let description = BatchMetadata::read(&head[LENGTH_BYTES..]).unwrap();
        assert_eq!(
            serde_json::to_string(&description).unwrap(),
            format!(
                r#"{{"format":2,"batch":7,"keys":["a","b\n"],"epochs":[1,1],"indexes":[5,3],"fields":{{"x":"tensor","a":"text"}},"data":"{:x}"}}"#,
                Sha256::digest(&bytes[head.len()..])
            )
        );
    }

    #[test]
    fn lists_of_blobs_keep_the_places_of_their_parts() {
        let places = |places: &[i64]| Tensor {
            dtype: Dtype::Int64,
            shape: vec![places.len() as u32],
            data: places.iter().flat_map(|place| place.to_le_bytes()).collect::<Vec<_>>().into(),
        };
        let photos = Stacked::Blobs(vec![Bytes::from_static(b"abc"), Bytes::new()]);
        let bytes = file(vec![
            ("photos", photos),
            ("photos.offsets", Stacked::Tensors(vec![places(&[0, 1, 3]), places(&[0])])),
        ]);
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let ints = |name: &str| -> Vec<i64> {
            let view = read.tensor(name).unwrap();
            view.data().chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        assert_eq!((read.len(), read.tensor("photos").unwrap().data()), (5, &b"abc"[..]));
        assert_eq!(ints("photos.offsets"), [0, 3, 3]);
        assert_eq!((ints("photos.parts"), ints("photos.parts.offsets")), (vec![0, 1, 3, 0], vec![0, 3, 4]));
        assert_eq!(ints("photos.parts.shapes"), [3, 1]);
    }

    #[test]
    fn clashing_names_are_rejected() {
        let clash =
            vec![("a", Stacked::Texts(vec![String::new(); 2])), ("a.offsets", tensor(Dtype::Int64, &[2]))];
        assert!(File::of(batch(clash), 0).unwrap_err().contains("`a.offsets`"));
        let reserved = vec![(RESERVED, tensor(Dtype::Int64, &[2]))];
        assert!(File::of(batch(reserved), 0).unwrap_err().contains("reserves the name"));
    }
}
