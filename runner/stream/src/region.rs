use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use memmap2::MmapMut;
use penstock_engine::lock::locked;
use penstock_engine::memory::{BatchMemory, Block, Maker, Pool};

use crate::mapping;

/// Regions of memory that can be shared with another process.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedMemory(Arc<Mutex<Regions>>);

#[derive(Debug, Default)]
struct Regions {
    next: u64,
    /// Mapped regions by start address.
    mapped: BTreeMap<usize, Arc<Region>>,
}

/// A region of shared memory, as it is sent to consumers.
#[derive(Debug)]
pub(crate) struct Region {
    /// Number of the region, unique in the run.
    pub(crate) id: u64,
    pub(crate) bytes: usize,
    pub(crate) file: OwnedFd,
}

/// The writable mapping of a region.
#[derive(Debug)]
pub(crate) struct Mapped {
    mapping: MmapMut,
    regions: SharedMemory,
}

/// Memory to which `collate` writes arrays until the stream ends. After that, the server no longer knows which regions consumers
/// still read, so a stage that ends late must not write to any region.
#[derive(Debug)]
pub(crate) struct RevocableMemory(Mutex<Option<Pool<SharedMemory>>>);

/// Regions consist of whole pages.
const PAGE_BYTES: usize = 4096;

impl SharedMemory {
    /// Region that contains `bytes`, and the offset of `bytes` in this region; `None` for bytes in other memory.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(Arc<Region>, usize)> {
        let address = bytes.as_ptr().addr();
        let regions = locked(&self.0);
        let (begin, region) = regions.mapped.range(..=address).next_back()?;
        let offset = address - begin;
        (offset + bytes.len() <= region.bytes).then(|| (region.clone(), offset))
    }
}

impl Maker for SharedMemory {
    type Region = Mapped;

    fn make(&self, len: usize) -> Option<Mapped> {
        let bytes = len.checked_next_multiple_of(PAGE_BYTES)?.max(PAGE_BYTES);
        let (file, mapping) = mapping::make(bytes)
            .inspect_err(|error| tracing::warn!(bytes, %error, "cannot allocate shared memory"))
            .ok()?;
        let mut regions = locked(&self.0);
        let id = regions.next;
        regions.next += 1;
        regions.mapped.insert(mapping.as_ptr().addr(), Arc::new(Region { id, bytes, file }));
        drop(regions);
        Some(Mapped { mapping, regions: self.clone() })
    }
}

impl RevocableMemory {
    pub(crate) fn new(pool: Pool<SharedMemory>) -> Self {
        Self(Mutex::new(Some(pool)))
    }

    /// Provides no more memory from now on.
    pub(crate) fn end(&self) {
        *locked(&self.0) = None;
    }
}

impl BatchMemory for RevocableMemory {
    fn take(&self, len: usize) -> Option<Box<dyn Block>> {
        // The lock is held until the region is taken, so that no region is taken after the end.
        let pool = locked(&self.0);
        pool.as_ref().and_then(|pool| pool.take(len))
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.mapping
    }
}

impl AsMut<[u8]> for Mapped {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.mapping
    }
}

/// Removes the region from the list before its address can be reused for another mapping.
impl Drop for Mapped {
    fn drop(&mut self) {
        locked(&self.regions.0).mapped.remove(&self.mapping.as_ptr().addr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_region_is_available_after_the_end() {
        let pool = Pool::new(SharedMemory::default());
        let memory = RevocableMemory::new(pool.clone());
        drop(memory.take(5_000).unwrap());
        memory.end();
        assert!(memory.take(5_000).is_none() && pool.take(5_000).is_some());
    }

    #[test]
    fn bytes_are_found_in_their_region_while_it_is_mapped() {
        let memory = SharedMemory::default();
        let (first, second) = (memory.make(5_000).unwrap(), memory.make(1).unwrap());
        let find = |bytes: &[u8]| memory.find(bytes).map(|(region, offset)| (region.id, offset));
        assert_eq!(first.as_ref().len(), 8192);
        assert_eq!(find(&first.as_ref()[100..8192]), Some((0, 100)));
        assert_eq!(find(second.as_ref()), Some((1, 0)));
        assert_eq!(find(&[1, 2, 3]), None);
        let id = memory.find(first.as_ref()).unwrap().0;
        drop(first);
        assert_eq!(Arc::strong_count(&id), 1, "the region is removed from the list");
        assert_eq!(memory.make(1).unwrap().regions.0.lock().unwrap().next, 3, "no other one has its number");
    }
}
