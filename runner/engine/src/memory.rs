//! Memory for the arrays of collated batches: allocated when a batch is stacked, returned when the last reader drops the batch.
//! The kind of memory is chosen by the code that hands batches on without copying them (to a device, to another process, to a
//! training loop).

use std::any::Any;
use std::fmt;
use std::fs::read_to_string;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use procfs::process::Process;
use procfs::{Current, Meminfo};

use crate::lock::locked;

pub trait BatchMemory: fmt::Debug + Send + Sync {
    /// Returns a block of at least `len` bytes. Returns `None` if the caller should use the heap, because no block is available
    /// or the array is too small for a block.
    fn take(&self, len: usize) -> Option<Box<dyn Block>>;
}

/// A block of memory. Dropped by its last reader, which returns the memory to its pool.
pub trait Block: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send> Block for B {}

/// Memory of a device, which holds the elements of an array. Code that supports the device casts it to its concrete type.
pub trait DeviceMemory: Any + fmt::Debug + Send + Sync {}

pub trait Maker: fmt::Debug + Send + Sync + 'static {
    /// A region of memory. Regions are pooled, because making one is slow.
    type Region: AsRef<[u8]> + AsMut<[u8]> + Send + 'static;

    /// Makes a region of at least `len` bytes; `None` if the system has no more memory.
    fn make(&self, len: usize) -> Option<Self::Region>;

    /// Sizes of pooled arrays in bytes. Smaller arrays use the heap, because they would leave most of a page unused.
    fn sizes(&self) -> RangeInclusive<usize> {
        4096..=usize::MAX
    }

    /// Maximum size of all free regions of a pool, in bytes.
    fn most_free_bytes(&self) -> usize {
        usize::MAX
    }
}

/// Bytes of a cache line. Buffers for large reads start at a multiple of it: the kernel copies at a fifth of the speed where the target lies
/// 1 to 31 bytes behind the source, both modulo 4096 (measured on an AMD EPYC 7003). Large blocks of the heap lie 16 bytes behind a page's start.
pub const ALIGNMENT: usize = 64;

/// The number of bytes to leave out at the start of `bytes`, at most [`ALIGNMENT`].
pub fn unaligned(bytes: &[u8]) -> usize {
    bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT)
}

/// Buffers of [`buffer`].
#[derive(Clone, Copy, Debug)]
struct Buffers;

impl Maker for Buffers {
    type Region = BytesMut;

    /// The region is an eighth larger, so that the next, slightly larger array fits.
    fn make(&self, len: usize) -> Option<BytesMut> {
        let len = len + len / 8;
        let mut bytes = BytesMut::zeroed(len + ALIGNMENT);
        bytes.advance(unaligned(&bytes));
        bytes.truncate(len);
        Some(bytes)
    }

    fn sizes(&self) -> RangeInclusive<usize> {
        64 << 10..=8 << 20
    }

    fn most_free_bytes(&self) -> usize {
        32 << 20
    }
}

/// A buffer of at least `len` bytes for a large read, with any content. The process keeps up to 32 MiB of free buffers: filling a new one takes
/// four times as long, because the kernel clears each of its pages first. Returns `None` if `len` is below 64 KiB or above 8 MiB.
pub fn buffer(len: usize) -> Option<Box<dyn Block>> {
    static BUFFERS: LazyLock<Pool<Buffers>> = LazyLock::new(|| Pool::new(Buffers));
    BUFFERS.take(len)
}

/// Pool of reusable regions. The most recently returned region is reused first, because it is most likely still in CPU caches.
#[derive(Clone)]
pub struct Pool<M: Maker>(Arc<PoolShared<M>>);

struct PoolShared<M: Maker> {
    maker: M,
    free: Mutex<Vec<M::Region>>,
}

struct Lent<M: Maker> {
    /// `None` only while `drop` returns the region to the pool.
    region: Option<M::Region>,
    pool: Arc<PoolShared<M>>,
}

/// Largest accepted ratio of a region's size to the requested size.
const MAX_SIZE_RATIO: usize = 2;

impl<M: Maker> Pool<M> {
    pub fn new(maker: M) -> Self {
        Self(Arc::new(PoolShared { maker, free: Mutex::default() }))
    }

    pub fn maker(&self) -> &M {
        &self.0.maker
    }
}

impl<M: Maker> BatchMemory for Pool<M> {
    fn take(&self, len: usize) -> Option<Box<dyn Block>> {
        if !self.0.maker.sizes().contains(&len) {
            return None;
        }
        let region = self.0.reuse(len).or_else(|| self.0.maker.make(len))?;
        Some(Box::new(Lent { region: Some(region), pool: self.0.clone() }))
    }
}

impl<M: Maker> PoolShared<M> {
    /// Takes a free region that fits. If none fits, the region that has been free longest is freed, so that the number of regions
    /// never exceeds the largest number in use at the same time.
    fn reuse(&self, len: usize) -> Option<M::Region> {
        let mut free = locked(&self.free);
        let fits = |region: &M::Region| {
            let size = region.as_ref().len();
            size >= len && size / MAX_SIZE_RATIO <= len
        };
        match free.iter().rposition(fits) {
            Some(place) => Some(free.remove(place)),
            None if free.is_empty() => None,
            None => {
                let unfit = free.remove(0);
                drop(free);
                drop(unfit);
                None
            }
        }
    }
}

impl<M: Maker> AsRef<[u8]> for Lent<M> {
    fn as_ref(&self) -> &[u8] {
        self.region.as_ref().map_or(&[], |region| region.as_ref())
    }
}

impl<M: Maker> AsMut<[u8]> for Lent<M> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.region.as_mut().map_or(&mut [], |region| region.as_mut())
    }
}

impl<M: Maker> Drop for Lent<M> {
    fn drop(&mut self) {
        let most = self.pool.maker.most_free_bytes();
        let mut free = locked(&self.pool.free);
        free.extend(self.region.take());
        // The regions that were returned last stay.
        let sizes = free.iter().rev().scan(0, |sum: &mut usize, region| {
            *sum = sum.saturating_add(region.as_ref().len());
            Some(*sum)
        });
        let kept = sizes.take_while(|sum| *sum <= most).count();
        let unkept = free.len() - kept;
        let unkept: Vec<_> = free.drain(..unkept).collect();
        drop(free);
        drop(unkept);
    }
}

impl<M: Maker> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("maker", &self.0.maker).finish_non_exhaustive()
    }
}

/// Wraps a block that is no longer written to.
pub fn bytes_of(block: Box<dyn Block>) -> Bytes {
    struct BlockOwner(Box<dyn Block>);

    impl AsRef<[u8]> for BlockOwner {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }

    Bytes::from_owner(BlockOwner(block))
}

/// An array that is written from start to end.
pub(crate) enum Filling {
    Heap(Vec<u8>),
    /// A block, and the number of its bytes that are written.
    Block(Box<dyn Block>, usize),
}

impl Filling {
    /// Allocates `len` bytes from `memory`, or on the heap.
    pub(crate) fn new(memory: Option<&dyn BatchMemory>, len: usize) -> Self {
        let block = memory.and_then(|memory| memory.take(len));
        block.map_or_else(|| Self::Heap(Vec::with_capacity(len)), |block| Self::Block(block, 0))
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        match self {
            Self::Heap(vec) => vec.extend_from_slice(bytes),
            Self::Block(block, written) => {
                let block: &mut [u8] = (**block).as_mut();
                block[*written..*written + bytes.len()].copy_from_slice(bytes);
                *written += bytes.len();
            }
        }
    }

    pub(crate) fn finish(self) -> Bytes {
        match self {
            Self::Heap(vec) => Bytes::from(vec),
            Self::Block(block, written) => bytes_of(block).slice(..written),
        }
    }
}

/// Memory that this process may use, in bytes: the machine's total, or the limit of the process's control groups if this limit is
/// lower; `None` if the system reports neither. Limits of control groups version 1 are ignored.
pub fn process_limit_bytes() -> Option<u64> {
    let machine = Meminfo::current().ok().map(|memory| memory.mem_total);
    machine.into_iter().chain(group_limit_bytes()).min()
}

/// Lowest limit among the control groups of this process and their parents.
fn group_limit_bytes() -> Option<u64> {
    let groups = Process::myself().and_then(|own| own.cgroups()).ok()?;
    // The entry without controllers belongs to control groups version 2.
    let group = groups.0.into_iter().find(|group| group.controllers.iter().all(String::is_empty))?;
    let root = Path::new("/sys/fs/cgroup");
    let folder: PathBuf = root.join(group.pathname.trim_start_matches('/'));
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|folder| read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Counted(Arc<AtomicUsize>);

    struct Region(Vec<u8>, Arc<AtomicUsize>);

    impl Maker for Counted {
        type Region = Region;

        fn make(&self, len: usize) -> Option<Region> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Some(Region(vec![0; len], self.0.clone()))
        }
    }

    impl AsRef<[u8]> for Region {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl AsMut<[u8]> for Region {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn array(pool: &Pool<Counted>, len: usize) -> Bytes {
        let mut filling = Filling::new(Some(pool), len);
        filling.append(&vec![7; len]);
        filling.finish()
    }

    #[test]
    fn a_region_is_reused_once_its_last_reader_is_gone() {
        let alive = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(Counted(alive.clone()));
        let first = array(&pool, 10_000);
        assert_eq!(first, vec![7; 10_000]);
        let place = first.as_ptr();
        let part = first.slice(5..);
        drop(first);
        assert_ne!(array(&pool, 10_000).as_ptr(), place, "a slice of the first array is still in use");
        drop(part);
        assert_eq!(array(&pool, 9_000).as_ptr(), place, "the region returned last is reused first");
        assert_eq!(alive.load(Ordering::Relaxed), 2);
        drop(pool);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn regions_that_fit_no_request_are_freed() {
        let alive = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(Counted(alive.clone()));
        for len in [5_000, 50_000, 5_000, 500_000, 5_000] {
            assert_eq!(array(&pool, len).len(), len);
            assert_eq!(alive.load(Ordering::Relaxed), 1, "{len}");
        }
    }

    #[test]
    fn small_arrays_use_the_heap() {
        let pool = Pool::new(Counted::default());
        assert_eq!(array(&pool, 4095).len(), 4095);
        assert_eq!(pool.maker().0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn few_free_buffers_are_kept() {
        let pool = Pool::new(Buffers);
        let blocks: Vec<_> = (0..10).map(|_| pool.take(4 << 20).unwrap()).collect();
        drop(blocks);
        let kept: usize = pool.0.free.lock().unwrap().iter().map(|region| region.as_ref().len()).sum();
        assert_eq!(kept, 7 * (4 << 20) * 9 / 8);
        assert!(pool.take(9 << 20).is_none() && pool.take(1000).is_none());
    }

    #[test]
    fn buffers_start_at_a_cache_line() {
        // Larger arrays lie in pages of their own, 16 bytes behind the start.
        for len in [64 << 10, 1 << 20, 8 << 20] {
            let block = buffer(len).unwrap();
            assert_eq!(((*block).as_ref().as_ptr() as usize) % ALIGNMENT, 0, "{len}");
        }
    }

    #[test]
    fn memory_outlives_its_pool() {
        let pool = Pool::new(Counted::default());
        let bytes = array(&pool, 5_000);
        drop(pool);
        assert_eq!(bytes, vec![7; 5_000]);
    }

    #[test]
    fn the_process_limit_is_at_most_the_memory_of_the_machine() {
        let bytes = process_limit_bytes().unwrap();
        assert!(bytes > 0 && bytes <= Meminfo::current().unwrap().mem_total, "{bytes}");
    }
}
