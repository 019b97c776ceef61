use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::codec::{Encoded, EncodedPart, OnDevice, Outside};
use penstock_engine::item::Item;
use penstock_engine::memory::{ALIGNMENT, BatchMemory, Pool, bytes_of};

use crate::protocol::{BatchHead, MAX_BODY_BYTES, MAX_REGIONS, RegionHead};
use crate::region::{Region, SharedMemory};

/// A batch in the form in which it is sent. Parts in shared memory are sent in place; all other parts ("unshared parts") are copied.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) samples: u64,
    /// Frame of the batch, which contains the unshared parts if their total size is small.
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

/// Maximum total size of a batch's unshared parts that are sent over the socket, in bytes. If their total size is larger, they
/// are copied into shared memory.
const MAX_SENT_BYTES: usize = 64 << 10;

impl Parcel {
    /// Creates the parcel of a collated batch. Arrays in shared memory are used in place; other arrays are copied.
    pub(crate) fn of(batch: &Item, memory: &Pool<SharedMemory>) -> Result<Self, ParcelError> {
        let samples = batch.samples();
        if !matches!(batch, Item::Collated(_)) {
            return Err(ParcelError::NotCollated);
        }
        let mut encoded = Encoded::of(batch).map_err(|OnDevice(field)| ParcelError::OnDevice(field))?;
        let mut regions = Vec::new();
        encoded.parts.iter_mut().for_each(|part| part.outside = add_region(&mut regions, memory, part));
        pack(&mut encoded.parts, &mut regions, memory)?;
        let frame = encoded.frame();
        let body: Bytes = frame.concat().into();
        if body.len() > MAX_BODY_BYTES {
            return Err(ParcelError::TooLarge { samples, bytes: frame[0].len() });
        }
        Ok(Self { samples, body, regions })
    }

    /// Bytes of shared memory that cannot be reused while a consumer reads any part of the batch.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.regions.iter().map(|shown| shown.kept.len() as u64).sum()
    }

    pub(crate) fn head(&self, seq: u64, redelivered: bool) -> BatchHead {
        let head = |shown: &Shown| RegionHead { id: shown.region.id, bytes: shown.region.bytes as u64 };
        BatchHead { seq, redelivered, regions: self.regions.iter().map(head).collect() }
    }
}

/// Adds the region of a part that is in shared memory. Returns `None` for other parts, and if only one more region is allowed, which
/// is reserved for the unshared parts.
fn add_region(regions: &mut Vec<Shown>, memory: &Pool<SharedMemory>, part: &EncodedPart) -> Option<Outside> {
    let [piece] = &*part.pieces else { return None };
    let (region, offset) = memory.maker().find(piece).filter(|_| !piece.is_empty())?;
    let known = regions.iter().position(|shown| shown.region.id == region.id);
    let memory = known.unwrap_or(regions.len());
    if memory == MAX_REGIONS - 1 {
        return None;
    }
    if known.is_none() {
        regions.push(Shown { region, kept: piece.clone() });
    }
    Some(Outside { memory, offset })
}

/// Copies the unshared parts into a further region, one after another, if their total size is large.
fn pack(
    parts: &mut [EncodedPart],
    regions: &mut Vec<Shown>,
    memory: &Pool<SharedMemory>,
) -> Result<(), ParcelError> {
    let unshared: Vec<_> = parts.iter_mut().filter(|part| part.outside.is_none()).collect();
    let bytes = unshared.iter().map(|part| part.bytes().next_multiple_of(ALIGNMENT)).sum();
    if bytes <= MAX_SENT_BYTES {
        return Ok(());
    }
    let mut block = memory.take(bytes).ok_or(ParcelError::NoMemory(bytes))?;
    let room: &mut [u8] = (*block).as_mut();
    let mut end = 0;
    for part in unshared {
        part.outside = Some(Outside { memory: regions.len(), offset: end });
        for piece in &part.pieces {
            room[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        end = end.next_multiple_of(ALIGNMENT);
    }
    let kept = bytes_of(block);
    let (region, _) = memory.maker().find(&kept).expect("the pool has regions of this memory only");
    regions.push(Shown { region, kept });
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use penstock_engine::codec::decode;
    use penstock_engine::item::{Collated, Column, Dtype, Origin, Stacked, Tensor};

    use super::*;

    /// A batch with `samples` samples and no fields.
    pub(crate) fn plain(samples: u64) -> Parcel {
        Parcel::of(&batch(samples, Vec::new()), &Pool::new(SharedMemory::default())).unwrap()
    }

    /// A batch of one sample with `bytes` bytes of data in a region.
    pub(crate) fn large(memory: &Pool<SharedMemory>, bytes: usize) -> Parcel {
        Parcel::of(&batch(1, vec![("image", tensor(shared(memory, bytes)))]), memory).unwrap()
    }

    fn batch(samples: u64, fields: Vec<(&str, Stacked)>) -> Item {
        Item::Collated(Collated {
            keys: (0..samples).map(|number| number.to_string().into()).collect(),
            origins: (0..samples).map(|index| Origin { index, ..Origin::default() }).collect(),
            fields: fields.into_iter().map(|(name, values)| Column { name: name.into(), values }).collect(),
        })
    }

    /// The arrays of the batch as its consumer finds them.
    fn arrays(parcel: &Parcel, batch: &Item) -> Vec<Bytes> {
        let regions: Vec<Bytes> = parcel.regions.iter().map(|shown| shown.kept.clone()).collect();
        let decoded = decode(&parcel.body, &regions).unwrap();
        assert_eq!(&decoded, batch);
        let Item::Collated(batch) = decoded else { panic!("{decoded:?}") };
        let array = |column: Column| match column.values {
            Stacked::Tensor(tensor) => Some(tensor.data),
            _ => None,
        };
        batch.fields.into_iter().filter_map(array).collect()
    }

    fn tensor(data: Bytes) -> Stacked {
        Stacked::Tensor(Tensor { dtype: Dtype::Uint8, shape: vec![1, data.len() as u32], data })
    }

    fn shared(memory: &Pool<SharedMemory>, len: usize) -> Bytes {
        let mut block = memory.take(len).unwrap();
        (*block).as_mut().fill(7);
        bytes_of(block).slice(..len)
    }

    #[test]
    fn arrays_in_shared_memory_stay_there_and_small_data_goes_into_the_body() {
        let memory = Pool::new(SharedMemory::default());
        let large = shared(&memory, 20_000);
        let texts = Stacked::Texts(vec!["ä".to_owned()]);
        let small = Bytes::from_static(b"abc");
        let fields =
            vec![("image", tensor(large.clone())), ("caption", texts), ("small", tensor(small.clone()))];
        let batch = batch(1, fields);
        let parcel = Parcel::of(&batch, &memory).unwrap();
        assert_eq!((parcel.regions.len(), parcel.regions[0].kept.as_ptr()), (1, large.as_ptr()));
        assert_eq!(arrays(&parcel, &batch)[0].as_ptr(), large.as_ptr(), "the array is not copied");
        assert!(parcel.body.ends_with(&small) && parcel.body.len() < 500);
        assert_eq!((parcel.body.len() - small.len()) % ALIGNMENT, 0);
        assert!(parcel.body.windows(2).any(|text| text == "ä".as_bytes()));
    }

    #[test]
    fn large_arrays_outside_shared_memory_are_copied_into_one_region() {
        let memory = Pool::new(SharedMemory::default());
        let heap = |value, len| tensor(vec![value; len].into());
        let batch = batch(1, vec![("a", heap(1, 70_000)), ("b", heap(2, 10)), ("c", heap(3, 70_000))]);
        let parcel = Parcel::of(&batch, &memory).unwrap();
        assert!(parcel.regions.len() == 1 && parcel.body.len() < 500);
        for array in arrays(&parcel, &batch) {
            let offset = array.as_ptr().addr() - parcel.regions[0].kept.as_ptr().addr();
            assert!(offset.is_multiple_of(ALIGNMENT) && offset < parcel.regions[0].kept.len());
        }
    }

    #[test]
    fn a_batch_of_too_many_regions_has_some_copied_into_one() {
        let memory = Pool::new(SharedMemory::default());
        let batch = batch(1, (0..12).map(|_| ("x", tensor(shared(&memory, 70_000)))).collect());
        let parcel = Parcel::of(&batch, &memory).unwrap();
        assert_eq!(parcel.regions.len(), MAX_REGIONS);
        let last = parcel.regions[MAX_REGIONS - 1].kept.as_ptr_range();
        let in_last = arrays(&parcel, &batch).into_iter().filter(|array| last.contains(&array.as_ptr()));
        assert_eq!(in_last.count(), 4);
    }

    #[test]
    fn a_region_is_free_again_after_its_batch_is_dropped() {
        let memory = Pool::new(SharedMemory::default());
        let array = shared(&memory, 9_000);
        let place = array.as_ptr();
        let parcel = Parcel::of(&batch(1, vec![("x", tensor(array))]), &memory).unwrap();
        assert_ne!(shared(&memory, 9_000).as_ptr(), place);
        let kept = parcel.regions[0].kept.clone();
        drop(parcel);
        assert_ne!(shared(&memory, 9_000).as_ptr(), place, "a consumer still reads the region");
        drop(kept);
        assert_eq!(shared(&memory, 9_000).as_ptr(), place);
    }
}
