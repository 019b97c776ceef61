//! Memory of this process in which batches are stacked, so that they are passed on without a copy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use memmap2::MmapMut;
use penstock_engine::lock::locked;
use penstock_engine::memory::{Maker, process_limit_bytes};

use crate::driver::{CudaContext, HostRegion};
use crate::gpu::Gpu;

/// Pinned memory, which the GPU reads directly and asynchronously. The system cannot swap it out, so its size is capped; the cap
/// applies to all pinned memory of the process together. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct PinnedMemory(Arc<PinnedShared>);

pub struct PinnedRegion {
    // Dropped before `_counted`: the region counts as pinned until the driver has freed it.
    region: HostRegion,
    _counted: PinnedBytes,
    of: PinnedMemory,
}

#[derive(Debug)]
struct PinnedShared {
    context: Arc<CudaContext>,
    cap_bytes: usize,
    /// Start addresses and lengths of the regions.
    places: Mutex<BTreeMap<usize, usize>>,
}

/// Bytes that count as pinned until this value is dropped.
struct PinnedBytes(usize);

/// Bytes that the process has pinned or is about to pin. Global, because all runs and GPUs share the machine's memory.
static PINNED_BYTES: AtomicUsize = AtomicUsize::new(0);

const PAGE: usize = 4096;

/// Divisor that turns the process's memory limit into the default cap of pinned memory.
const SHARE: u64 = 4;

impl PinnedMemory {
    /// Creates memory that this GPU can read. No further memory is allocated once the process has pinned `cap_bytes`.
    pub fn new(gpu: &Gpu, cap_bytes: usize) -> Self {
        Self(Arc::new(PinnedShared { context: gpu.context().clone(), cap_bytes, places: Mutex::default() }))
    }

    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let begin = bytes.as_ptr() as usize;
        let places = locked(&self.0.places);
        let before = places.range(..=begin).next_back();
        before.is_some_and(|(place, len)| begin + bytes.len() <= place + len)
    }
}

impl PinnedBytes {
    /// Counts bytes that are about to be pinned; `None` if the process would then exceed `cap_bytes`.
    fn within(cap_bytes: usize, len: usize) -> Option<Self> {
        let more = |bytes: usize| bytes.checked_add(len).filter(|bytes| *bytes <= cap_bytes);
        PINNED_BYTES.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok().map(|_| Self(len))
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        PINNED_BYTES.fetch_sub(self.0, Ordering::Release);
    }
}

impl Maker for PinnedMemory {
    type Region = PinnedRegion;

    fn make(&self, len: usize) -> Option<PinnedRegion> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let counted = PinnedBytes::within(self.0.cap_bytes, len)?;
        let region = HostRegion::new(&self.0.context, len)
            .inspect_err(|error| tracing::debug!(len, %error, "cannot allocate pinned memory for a batch"))
            .ok()?;
        locked(&self.0.places).insert(region.as_ref().as_ptr() as usize, len);
        Some(PinnedRegion { region, _counted: counted, of: self.clone() })
    }
}

impl AsRef<[u8]> for PinnedRegion {
    fn as_ref(&self) -> &[u8] {
        self.region.as_ref()
    }
}

impl AsMut<[u8]> for PinnedRegion {
    fn as_mut(&mut self) -> &mut [u8] {
        self.region.as_mut()
    }
}

impl Drop for PinnedRegion {
    /// Removes the region's entry before the driver frees the region: afterwards another region may get the same address.
    fn drop(&mut self) {
        locked(&self.of.0.places).remove(&(self.region.as_ref().as_ptr() as usize));
    }
}

/// Default cap of pinned memory, in bytes: a quarter of the memory that this process may use.
pub fn pinned_share() -> usize {
    usize::try_from(process_limit_bytes().unwrap_or(0) / SHARE).unwrap_or(usize::MAX)
}

/// Memory of this process in whole pages, for consumers that receive batches without a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

impl Maker for HostMemory {
    type Region = MmapMut;

    fn make(&self, len: usize) -> Option<MmapMut> {
        let made = MmapMut::map_anon(len);
        made.inspect_err(|error| tracing::debug!(len, %error, "cannot allocate memory for a batch")).ok()
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::memory::{BatchMemory, Pool};

    use super::*;

    #[test]
    fn arrays_begin_at_a_page_and_can_be_written() {
        let memory = Pool::new(HostMemory);
        let mut block = memory.take(10_000).unwrap();
        let bytes: &mut [u8] = (*block).as_mut();
        assert_eq!((bytes.as_ptr() as usize % 4096, bytes.len()), (0, 10_000));
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
    }

    #[test]
    fn a_request_beyond_the_memory_of_the_system_returns_none() {
        assert!(HostMemory.make(usize::MAX / 2).is_none());
    }
}
