//! Memory of samples that are read and not passed on yet, which the reads of a source share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::item::Sample;

/// Memory for samples in bytes. Few bytes of a file may make many of a sample, so that a read takes the memory of each of its samples when
/// it knows their sizes, and ends early where there is no room.
#[derive(Debug)]
pub struct Room {
    most: u64,
    used: AtomicU64,
}

/// What one read takes of a [`Room`]. It is free again once all clones are dropped.
#[derive(Clone, Debug)]
pub struct Share {
    taken: Arc<Taken>,
    /// Set if the samples of the read are needed next.
    pub(crate) is_next: bool,
}

#[derive(Debug)]
struct Taken {
    room: Arc<Room>,
    bytes: AtomicU64,
}

impl Room {
    /// Room of `most` bytes, of which a quarter is for reads whose samples are needed next.
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicU64::new(0) })
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The share of a read. If its samples are needed next (`is_next`), there is room for the first of them, whatever its size is.
    pub fn share(self: &Arc<Self>, is_next: bool) -> Share {
        Share { taken: Arc::new(Taken { room: self.clone(), bytes: AtomicU64::new(0) }), is_next }
    }
}

impl Share {
    /// The share of a read that is alone. Its first sample may take more than `most` bytes.
    pub fn alone(most: u64) -> Self {
        Room::new(most).share(true)
    }

    /// Takes memory for the sample at `place` among those of the read. Returns false if there is no room: the read ends before this sample.
    pub fn take(&self, place: usize, bytes: u64) -> bool {
        let Taken { room, bytes: own } = &*self.taken;
        let most = if self.is_next { room.most } else { room.most / 4 * 3 };
        let is_needed = self.is_next && place == 0;
        let with = |used: u64| used.checked_add(bytes).filter(|used| is_needed || *used <= most);
        let is_taken = room.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok();
        if is_taken {
            own.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Takes what the sample at `place` has beyond the `encoded` bytes that were taken for it before it was decoded.
    pub fn take_decoded(&self, place: usize, sample: &Sample, encoded: u64) -> bool {
        self.take(place, sample.memory_bytes().saturating_sub(encoded))
    }

    pub fn taken(&self) -> u64 {
        self.taken.bytes.load(Ordering::Relaxed)
    }

    /// The same for a part of the read that begins with another sample than its first.
    #[must_use]
    pub fn behind_first(&self) -> Self {
        Self { taken: self.taken.clone(), is_next: false }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_share_room_and_the_next_sample_always_has_some() {
        let room = Room::new(100);
        let (next, ahead) = (room.share(true), room.share(false));
        assert!(ahead.take(0, 75) && !ahead.take(1, 1));
        assert!(next.take(0, 1000) && !next.take(1, 1));
        drop(next);
        let next = room.share(true);
        assert!(!next.behind_first().take(0, 1) && next.take(0, 10) && next.take(1, 15) && !next.take(2, 1));
        assert_eq!((room.used(), next.taken()), (100, 25));
        drop((ahead, next));
        assert_eq!(room.used(), 0);
    }
}
