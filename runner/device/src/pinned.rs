use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_engine::memory::Maker;
use procfs::process::Process;
use procfs::{Current, Meminfo};

use crate::driver::{Context, HostRegion};
use crate::gpu::Gpu;

/// Memory of this process that the GPU reads by itself, while nobody waits. The system cannot put it aside, so there is never
/// more of it than a cap. Clones share both.
#[derive(Clone, Debug)]
pub struct PinnedMemory(Arc<Shared>);

/// Pinned memory.
pub struct PinnedRegion {
    region: HostRegion,
    of: PinnedMemory,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    cap_bytes: usize,
    regions: Mutex<Regions>,
}

/// What there is.
#[derive(Debug, Default)]
struct Regions {
    bytes: usize,
    /// Begins and lengths.
    places: BTreeMap<usize, usize>,
}

/// Pinned memory comes in pages.
const PAGE: usize = 4096;

/// One part in so many of the memory that this process may use can be pinned.
const SHARE: u64 = 4;

impl PinnedMemory {
    /// Memory that this GPU reads, at most `cap_bytes` of it.
    pub fn new(gpu: &Gpu, cap_bytes: usize) -> Self {
        Self(Arc::new(Shared { context: gpu.context().clone(), cap_bytes, regions: Mutex::default() }))
    }

    /// Bytes of it that there are now.
    pub fn held_bytes(&self) -> usize {
        self.regions().bytes
    }

    /// Whether all these bytes lie in it.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let begin = bytes.as_ptr() as usize;
        let regions = self.regions();
        let before = regions.places.range(..=begin).next_back();
        before.is_some_and(|(place, len)| begin + bytes.len() <= place + len)
    }

    fn regions(&self) -> MutexGuard<'_, Regions> {
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes that are about to be taken; `false` when they would be too many.
    fn reserve(&self, len: usize) -> bool {
        let mut regions = self.regions();
        let has_room = len <= self.0.cap_bytes.saturating_sub(regions.bytes);
        if has_room {
            regions.bytes += len;
        }
        has_room
    }
}

impl Maker for PinnedMemory {
    type Region = PinnedRegion;

    fn make(&self, len: usize) -> Option<PinnedRegion> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        if !self.reserve(len) {
            return None;
        }
        match HostRegion::new(&self.0.context, len) {
            Ok(region) => {
                self.regions().places.insert(region.as_ref().as_ptr() as usize, len);
                Some(PinnedRegion { region, of: self.clone() })
            }
            Err(error) => {
                self.regions().bytes -= len;
                tracing::debug!(len, %error, "no pinned memory for a batch");
                None
            }
        }
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
    fn drop(&mut self) {
        let mut regions = self.of.regions();
        let len = regions.places.remove(&(self.region.as_ref().as_ptr() as usize));
        regions.bytes -= len.unwrap_or(0);
    }
}

/// How much may be pinned where nobody says: a quarter of the machine's memory, or of what the control group of this process
/// may use.
pub fn pinned_share() -> usize {
    let machine = Meminfo::current().ok().map(|memory| memory.mem_total);
    let least = machine.into_iter().chain(group_limit()).min().unwrap_or(0);
    usize::try_from(least / SHARE).unwrap_or(usize::MAX)
}

/// The least limit of the control groups that this process is in.
fn group_limit() -> Option<u64> {
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
    use super::*;

    #[test]
    fn a_share_of_the_memory_that_there_is_may_be_pinned() {
        let share = pinned_share() as u64;
        assert!(share > 0 && share <= Meminfo::current().unwrap().mem_total / SHARE, "{share}");
    }
}
