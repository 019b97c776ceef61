//! Memory that the arrays of collated batches lie in: taken when a batch is stacked, given back when nobody reads it any more.
//! Who hands batches on without copying them (to a device, to another process, to a training loop) decides what memory that is.

use std::any::Any;
use std::fmt;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use procfs::process::Process;
use procfs::{Current, Meminfo};

pub trait BatchMemory: fmt::Debug + Send + Sync {
    /// A block of at least `len` bytes; `None` where the heap will do, because there is no such block or because it is not
    /// worth one.
    fn take(&self, len: usize) -> Option<Box<dyn Block>>;
}

/// A block of memory. Dropped when nobody reads it any more, and then it goes back to where it came from.
pub trait Block: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send> Block for B {}

/// Memory of a device, which holds the elements of an array.
pub trait DeviceMemory: fmt::Debug + Send + Sync {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is, for who knows the device.
    fn as_any(&self) -> &dyn Any;
}

pub trait Maker: fmt::Debug + Send + Sync + 'static {
    /// A region. Making one is slow, which is why there is a pool.
    type Region: AsRef<[u8]> + AsMut<[u8]> + Send + 'static;

    /// A region of at least `len` bytes; `None` when the system gives no more.
    fn make(&self, len: usize) -> Option<Self::Region>;
}

/// Regions that are used again, the last one first: it is the one that caches still hold.
pub struct Pool<M: Maker>(Arc<PoolShared<M>>);

struct PoolShared<M: Maker> {
    maker: M,
    free: Mutex<Vec<M::Region>>,
}

struct Lent<M: Maker> {
    /// Always some, but for the moment in which it goes back.
    region: Option<M::Region>,
    pool: Arc<PoolShared<M>>,
}

/// Arrays below this size lie on the heap: a page would hold little else.
const LEAST_BYTES: usize = 4096;

/// How much larger than what is asked for a region may be.
const MOST_SPARE: usize = 2;

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
        if len < LEAST_BYTES {
            return None;
        }
        let region = self.0.reuse(len).or_else(|| self.0.maker.make(len))?;
        Some(Box::new(Lent { region: Some(region), pool: self.0.clone() }))
    }
}

impl<M: Maker> PoolShared<M> {
    /// A free region that fits. Where none does, the one that has been free for longest is let go: there are never more regions
    /// than were in use at a time.
    fn reuse(&self, len: usize) -> Option<M::Region> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |region: &M::Region| {
            let size = region.as_ref().len();
            size >= len && size / MOST_SPARE <= len
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

impl<M: Maker> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
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
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.region.take());
    }
}

impl<M: Maker> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("maker", &self.0.maker).finish_non_exhaustive()
    }
}

/// The bytes of a block that nobody writes to any more.
pub fn bytes_of(block: Box<dyn Block>) -> Bytes {
    struct BlockOwner(Box<dyn Block>);

    impl AsRef<[u8]> for BlockOwner {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }

    Bytes::from_owner(BlockOwner(block))
}

/// An array that is written from its begin to its end.
pub(crate) struct Filling {
    room: Room,
    written: usize,
}

enum Room {
    Heap(Vec<u8>),
    Block(Box<dyn Block>),
}

impl Filling {
    /// Room for `len` bytes: of `memory`, or on the heap.
    pub(crate) fn new(memory: Option<&dyn BatchMemory>, len: usize) -> Self {
        let block = memory.and_then(|memory| memory.take(len));
        let room = block.map_or_else(|| Room::Heap(Vec::with_capacity(len)), Room::Block);
        Self { room, written: 0 }
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        match &mut self.room {
            Room::Heap(vec) => vec.extend_from_slice(bytes),
            Room::Block(block) => {
                let block: &mut [u8] = (**block).as_mut();
                block[self.written..self.written + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.written += bytes.len();
    }

    pub(crate) fn finish(self) -> Bytes {
        match self.room {
            Room::Heap(vec) => Bytes::from(vec),
            Room::Block(block) => {
                let mut bytes = bytes_of(block);
                bytes.truncate(self.written);
                bytes
            }
        }
    }
}

/// Bytes of memory that this process may use: what the machine has, or what the control groups of the process leave it, if that
/// is less; `None` where the system does not tell. Limits of control groups of version 1 are not looked at.
pub fn process_limit_bytes() -> Option<u64> {
    let machine = Meminfo::current().ok().map(|memory| memory.mem_total);
    machine.into_iter().chain(group_limit_bytes()).min()
}

/// Least limit of the control groups that this process is in.
fn group_limit_bytes() -> Option<u64> {
    let groups = Process::myself().and_then(|own| own.cgroups()).ok()?;
    // The one without controllers of its own is that of version 2.
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
    fn a_region_is_used_again_once_nobody_reads_it() {
        let alive = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(Counted(alive.clone()));
        let first = array(&pool, 10_000);
        assert_eq!(first, vec![7; 10_000]);
        let place = first.as_ptr();
        let part = first.slice(5..);
        drop(first);
        assert_ne!(array(&pool, 10_000).as_ptr(), place, "somebody reads a part of it");
        drop(part);
        assert_eq!(array(&pool, 9_000).as_ptr(), place, "the last one given back comes first");
        assert_eq!(alive.load(Ordering::Relaxed), 2);
        drop(pool);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn regions_that_fit_nothing_any_more_are_let_go() {
        let alive = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(Counted(alive.clone()));
        for len in [5_000, 50_000, 5_000, 500_000, 5_000] {
            assert_eq!(array(&pool, len).len(), len);
            assert_eq!(alive.load(Ordering::Relaxed), 1, "{len}");
        }
    }

    #[test]
    fn what_is_small_lies_on_the_heap() {
        let pool = Pool::new(Counted::default());
        assert_eq!(array(&pool, LEAST_BYTES - 1).len(), LEAST_BYTES - 1);
        assert_eq!(pool.maker().0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_outlives_its_pool() {
        let pool = Pool::new(Counted::default());
        let bytes = array(&pool, 5_000);
        drop(pool);
        assert_eq!(bytes, vec![7; 5_000]);
    }

    #[test]
    fn there_is_no_more_memory_than_the_machine_has() {
        let bytes = process_limit_bytes().unwrap();
        assert!(bytes > 0 && bytes <= Meminfo::current().unwrap().mem_total, "{bytes}");
    }
}
