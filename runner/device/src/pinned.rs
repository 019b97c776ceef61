use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_engine::machine;
use penstock_engine::memory::Maker;

use crate::driver::{Context, HostRegion};
use crate::gpu::Gpu;

/// Memory of this process that the GPU reads by itself, while nobody waits. The system cannot put it aside, so there is a cap,
/// which all that the process pins here counts towards. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct PinnedMemory(Arc<Shared>);

/// Pinned memory.
pub struct PinnedRegion {
    // Dropped in this order: what the driver has not let go of counts.
    region: HostRegion,
    _counted: Counted,
    of: PinnedMemory,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    cap_bytes: usize,
    /// Begins and lengths of what there is.
    places: Mutex<BTreeMap<usize, usize>>,
}

/// Bytes that count as pinned until this is dropped.
struct Counted(usize);

/// Bytes that the process has pinned, or is about to: the machine's memory is one, however many runs and GPUs share it.
static PINNED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Pinned memory comes in pages.
const PAGE: usize = 4096;

/// One part in so many of the memory that this process may use can be pinned.
const SHARE: u64 = 4;

impl PinnedMemory {
    /// Memory that this GPU reads. There is no more of it once the process has pinned `cap_bytes`.
    pub fn new(gpu: &Gpu, cap_bytes: usize) -> Self {
        Self(Arc::new(Shared { context: gpu.context().clone(), cap_bytes, places: Mutex::default() }))
    }

    /// Whether all these bytes lie in it.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let begin = bytes.as_ptr() as usize;
        let places = self.places();
        let before = places.range(..=begin).next_back();
        before.is_some_and(|(place, len)| begin + bytes.len() <= place + len)
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// Counts bytes that are about to be pinned; `None` when the process would then have more than `cap_bytes`.
    fn within(cap_bytes: usize, len: usize) -> Option<Self> {
        let more = |bytes: usize| bytes.checked_add(len).filter(|bytes| *bytes <= cap_bytes);
        PINNED_BYTES.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok().map(|_| Self(len))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        PINNED_BYTES.fetch_sub(self.0, Ordering::Release);
    }
}

impl Maker for PinnedMemory {
    type Region = PinnedRegion;

    fn make(&self, len: usize) -> Option<PinnedRegion> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let counted = Counted::within(self.0.cap_bytes, len)?;
        let region = HostRegion::new(&self.0.context, len)
            .inspect_err(|error| tracing::debug!(len, %error, "no pinned memory for a batch"))
            .ok()?;
        self.places().insert(region.as_ref().as_ptr() as usize, len);
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
    /// Before the driver lets go of it: another region may begin there as soon as it has.
    fn drop(&mut self) {
        self.of.places().remove(&(self.region.as_ref().as_ptr() as usize));
    }
}

/// How much may be pinned where nobody says: a quarter of the memory that this process may use.
pub fn pinned_share() -> usize {
    usize::try_from(machine::memory_bytes().unwrap_or(0) / SHARE).unwrap_or(usize::MAX)
}
