use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::item::{Collated, Column, Dtype, Stacked, Tensor};
use penstock_engine::memory::{BatchMemory, Pool, bytes_of};

use crate::protocol::{
    BatchHead, Contents, FieldHead, MAX_BODY_BYTES, MAX_REGIONS, RegionHead, Spot, ValuesHead,
};
use crate::region::{Region, SharedMemory};

/// A batch in the form in which it is sent: its description, and the memory of its arrays. Pieces (the data of
/// single fields) in shared memory are sent in place; all other pieces ("unshared pieces") are copied.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) samples: u64,
    contents_bytes: u32,
    /// [`Contents`] as JSON, followed by the unshared pieces if their total size is small.
    pub(crate) body: Bytes,
    /// Shared memory that contains all other values of the batch.
    pub(crate) regions: Vec<Shown>,
}

/// Reason why a batch cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParcelError {
    #[error("it is not collated; add a `collate` stage")]
    NotCollated,
    #[error(
        "its field `{0}` is in the memory of a device, which another process cannot read; omit the `transfer` stage"
    )]
    OnDevice(Arc<str>),
    #[error(
        "the keys and shapes of its {samples} samples take {bytes} bytes, but the limit is {MAX_BODY_BYTES}; make batches smaller"
    )]
    TooLarge { samples: u64, bytes: usize },
    #[error("the system cannot allocate {0} bytes of shared memory")]
    NoMemory(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) region: Arc<Region>,
    /// Keeps the region from being reused.
    pub(crate) kept: Bytes,
}

/// Maximum total size of a batch's unshared pieces that are sent over the socket, in bytes. If their total size is larger, they
/// are copied into shared memory.
const MAX_SENT_BYTES: usize = 64 << 10;

/// Alignment of packed arrays in bytes, for the widest vector registers.
const ALIGNMENT: usize = 64;

impl Parcel {
    /// Creates the parcel of a batch. Arrays in shared memory are used in place; other arrays are copied.
    pub(crate) fn of(batch: Collated, memory: &Pool<SharedMemory>) -> Result<Self, ParcelError> {
        let samples = batch.keys.len() as u64;
        let mut load = Load { memory, regions: Vec::new(), unshared: Vec::new(), unshared_bytes: 0 };
        let mut fields: Vec<FieldHead> =
            batch.fields.into_iter().map(|column| load.add(column)).collect::<Result<_, _>>()?;
        let (regions, sent) = load.pack(&mut fields)?;
        let paths: Vec<u64> = batch.origins.iter().map(|origin| origin.path).collect();
        let head = |shown: &Shown| RegionHead { id: shown.region.id, bytes: shown.region.bytes as u64 };
        let contents = Contents {
            keys: batch.keys,
            epochs: batch.origins.iter().map(|origin| origin.epoch).collect(),
            indexes: batch.origins.iter().map(|origin| origin.index).collect(),
            paths: paths.iter().any(|path| *path != 0).then_some(paths),
            regions: regions.iter().map(head).collect(),
            fields,
        };
        let mut body = serde_json::to_vec(&contents).expect("keys and numbers are JSON");
        let contents_bytes = body.len();
        body.extend_from_slice(&sent);
        if body.len() > MAX_BODY_BYTES {
            return Err(ParcelError::TooLarge { samples, bytes: contents_bytes });
        }
        Ok(Self {
            samples,
            // Cannot overflow, because the length was checked above.
            contents_bytes: contents_bytes as u32,
            body: body.into(),
            regions,
        })
    }

    /// Bytes of shared memory that cannot be reused while a consumer reads any part of the batch.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.regions.iter().map(|shown| shown.kept.len() as u64).sum()
    }

    pub(crate) fn head(&self, seq: u64, redelivered: bool) -> BatchHead {
        BatchHead { seq, redelivered, contents_bytes: self.contents_bytes }
    }
}

/// Data of a batch: regions of shared memory, and unshared pieces, which are packed together.
struct Load<'a> {
    memory: &'a Pool<SharedMemory>,
    regions: Vec<Shown>,
    /// Unshared pieces with their offsets in the packed data, whose total length is `unshared_bytes`.
    unshared: Vec<(usize, Bytes)>,
    unshared_bytes: usize,
}

impl Load<'_> {
    fn add(&mut self, Column { name, values }: Column) -> Result<FieldHead, ParcelError> {
        let values = match values {
            Stacked::Tensor(Tensor { dtype, shape, data }) => {
                ValuesHead::Tensor { dtype: dtype.name().to_owned(), shape, data: self.add_piece(data) }
            }
            Stacked::Tensors(tensors) => {
                let [data, offsets] = self.add_list(tensors.iter().map(|tensor| &*tensor.data));
                let dtype = tensors.first().map_or(Dtype::Uint8, |tensor| tensor.dtype).name().to_owned();
                let shapes = tensors.into_iter().map(|tensor| tensor.shape).collect();
                ValuesHead::Tensors { dtype, shapes, data, offsets }
            }
            Stacked::Texts(texts) => {
                let [data, offsets] = self.add_list(texts.iter().map(String::as_bytes));
                ValuesHead::Texts { data, offsets }
            }
            Stacked::Blobs(blobs) => {
                let [data, offsets] = self.add_list(blobs.iter().map(|blob| &**blob));
                ValuesHead::Blobs { data, offsets }
            }
            Stacked::Device(_) => return Err(ParcelError::OnDevice(name)),
        };
        Ok(FieldHead { name, values })
    }

    fn add_list<'a>(&mut self, items: impl Iterator<Item = &'a [u8]>) -> [Spot; 2] {
        let mut data = Vec::new();
        let mut offsets = 0_u64.to_le_bytes().to_vec();
        for item in items {
            data.extend_from_slice(item);
            offsets.extend_from_slice(&(data.len() as u64).to_le_bytes());
        }
        [data, offsets].map(|piece| self.add_piece(piece.into()))
    }

    fn add_piece(&mut self, piece: Bytes) -> Spot {
        let bytes = piece.len() as u64;
        if let Some((place, offset)) = self.add_region(&piece) {
            return Spot::Region { place, offset: offset as u64, bytes };
        }
        let offset = self.unshared_bytes;
        self.unshared_bytes = (offset + piece.len()).next_multiple_of(ALIGNMENT);
        self.unshared.push((offset, piece));
        Spot::Body { offset: offset as u64, bytes }
    }

    /// Adds the region of a piece that is in shared memory. Returns `None` for other pieces, and if only one more region is
    /// allowed, which is reserved for the unshared pieces.
    fn add_region(&mut self, piece: &Bytes) -> Option<(usize, usize)> {
        let (region, offset) = self.memory.maker().find(piece).filter(|_| !piece.is_empty())?;
        let known = self.regions.iter().position(|shown| shown.region.id == region.id);
        let place = known.unwrap_or(self.regions.len());
        if place == MAX_REGIONS - 1 {
            return None;
        }
        if known.is_none() {
            self.regions.push(Shown { region, kept: piece.clone() });
        }
        Some((place, offset))
    }

    /// Copies the unshared pieces one after another: to the end of the body, or into a further region if their total size is
    /// large.
    fn pack(mut self, fields: &mut [FieldHead]) -> Result<(Vec<Shown>, Vec<u8>), ParcelError> {
        let (bytes, is_large) = (self.unshared_bytes, self.unshared_bytes > MAX_SENT_BYTES);
        let mut sent = if is_large { Vec::new() } else { vec![0; bytes] };
        let mut packed =
            is_large.then(|| self.memory.take(bytes).ok_or(ParcelError::NoMemory(bytes))).transpose()?;
        let room = packed.as_mut().map_or(&mut *sent, |block| (**block).as_mut());
        for (offset, piece) in self.unshared {
            room[offset..offset + piece.len()].copy_from_slice(&piece);
        }
        if let Some(block) = packed {
            let kept = bytes_of(block);
            let (region, _) =
                self.memory.maker().find(&kept).expect("the pool has regions of this memory only");
            let place = self.regions.len();
            self.regions.push(Shown { region, kept });
            for spot in fields.iter_mut().flat_map(|field| spots(&mut field.values)) {
                if let Spot::Body { offset, bytes } = *spot {
                    *spot = Spot::Region { place, offset, bytes };
                }
            }
        }
        Ok((self.regions, sent))
    }
}

fn spots(values: &mut ValuesHead) -> Vec<&mut Spot> {
    match values {
        ValuesHead::Tensor { data, .. } => vec![data],
        ValuesHead::Tensors { data, offsets, .. }
        | ValuesHead::Texts { data, offsets }
        | ValuesHead::Blobs { data, offsets } => vec![data, offsets],
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use penstock_engine::item::Origin;

    use super::*;

    /// A batch with `samples` samples and no fields.
    pub(crate) fn plain(samples: u64) -> Parcel {
        Parcel::of(batch(samples, Vec::new()), &Pool::new(SharedMemory::default())).unwrap()
    }

    /// A batch of one sample with `bytes` bytes of data in a region.
    pub(crate) fn large(memory: &Pool<SharedMemory>, bytes: usize) -> Parcel {
        Parcel::of(batch(1, vec![("image", tensor(shared(memory, bytes)))]), memory).unwrap()
    }

    fn batch(samples: u64, fields: Vec<(&str, Stacked)>) -> Collated {
        Collated {
            keys: (0..samples).map(|number| number.to_string().into()).collect(),
            origins: (0..samples).map(|index| Origin { index, ..Origin::default() }).collect(),
            fields: fields.into_iter().map(|(name, values)| Column { name: name.into(), values }).collect(),
        }
    }

    fn contents(parcel: &Parcel) -> Contents {
        serde_json::from_slice(&parcel.body[..parcel.contents_bytes as usize]).unwrap()
    }

    fn tensor(data: Bytes) -> Stacked {
        Stacked::Tensor(Tensor { dtype: Dtype::Uint8, shape: vec![1, data.len() as u32], data })
    }

    fn shared(memory: &Pool<SharedMemory>, len: usize) -> Bytes {
        let mut block = memory.take(len).unwrap();
        (*block).as_mut().fill(7);
        bytes_of(block).slice(..len)
    }

    fn spot(contents: &Contents, place: usize) -> Spot {
        match &contents.fields[place].values {
            ValuesHead::Tensor { data, .. }
            | ValuesHead::Tensors { data, .. }
            | ValuesHead::Texts { data, .. }
            | ValuesHead::Blobs { data, .. } => *data,
        }
    }

    #[test]
    fn arrays_in_shared_memory_stay_there_and_small_data_goes_into_the_body() {
        let memory = Pool::new(SharedMemory::default());
        let large = shared(&memory, 20_000);
        let texts = Stacked::Texts(vec!["ä".to_owned()]);
        let fields =
            vec![("image", tensor(large.clone())), ("caption", texts), ("none", tensor(Bytes::new()))];
        let parcel = Parcel::of(batch(1, fields), &memory).unwrap();
        let found = contents(&parcel);
        assert_eq!(spot(&found, 0), Spot::Region { place: 0, offset: 0, bytes: 20_000 });
        assert_eq!(parcel.regions[0].kept.as_ptr(), large.as_ptr(), "the array is not copied");
        let sent = &parcel.body[parcel.contents_bytes as usize..];
        assert_eq!(spot(&found, 1), Spot::Body { offset: 0, bytes: 2 });
        assert_eq!(&sent[..2], "ä".as_bytes());
        let ValuesHead::Texts { offsets, .. } = found.fields[1].values else { panic!("{found:?}") };
        assert_eq!(offsets, Spot::Body { offset: 64, bytes: 16 });
        assert_eq!(sent[64..80], [0_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat());
        assert_eq!(found.paths, None);
    }

    #[test]
    fn large_arrays_outside_shared_memory_are_copied_into_one_region() {
        let memory = Pool::new(SharedMemory::default());
        let heap = |value, len| tensor(vec![value; len].into());
        let fields = vec![("a", heap(1, 70_000)), ("b", heap(2, 10)), ("c", heap(3, 70_000))];
        let parcel = Parcel::of(batch(1, fields), &memory).unwrap();
        let found = contents(&parcel);
        assert_eq!((parcel.regions.len(), parcel.body.len()), (1, parcel.contents_bytes as usize));
        for (place, (value, len)) in [(1, 70_000), (2, 10), (3, 70_000)].into_iter().enumerate() {
            let Spot::Region { place: 0, offset, bytes } = spot(&found, place) else { panic!("{found:?}") };
            assert!((offset as usize).is_multiple_of(ALIGNMENT) && bytes as usize == len);
            let stored = &parcel.regions[0].kept[offset as usize..][..len];
            assert!(stored.iter().all(|byte| *byte == value));
        }
    }

    #[test]
    fn a_batch_of_too_many_regions_has_some_copied_into_one() {
        let memory = Pool::new(SharedMemory::default());
        let fields = (0..12).map(|_| ("x", tensor(shared(&memory, 70_000)))).collect();
        let parcel = Parcel::of(batch(1, fields), &memory).unwrap();
        assert_eq!(parcel.regions.len(), MAX_REGIONS);
        let found = contents(&parcel);
        let last: Vec<bool> = (0..12)
            .map(
                |place| matches!(spot(&found, place), Spot::Region { place, .. } if place == MAX_REGIONS - 1),
            )
            .collect();
        assert_eq!(last.iter().filter(|is_last| **is_last).count(), 4, "{found:?}");
    }

    #[test]
    fn a_region_is_free_again_after_its_batch_is_dropped() {
        let memory = Pool::new(SharedMemory::default());
        let array = shared(&memory, 9_000);
        let place = array.as_ptr();
        let parcel = Parcel::of(batch(1, vec![("x", tensor(array))]), &memory).unwrap();
        assert_ne!(shared(&memory, 9_000).as_ptr(), place);
        let kept = parcel.regions[0].kept.clone();
        drop(parcel);
        assert_ne!(shared(&memory, 9_000).as_ptr(), place, "a consumer still reads the region");
        drop(kept);
        assert_eq!(shared(&memory, 9_000).as_ptr(), place);
    }
}
