//! Disk space shared by several writers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Used bytes of a disk quota. Writers count the bytes that they take and free; measurements correct the count.
#[derive(Debug)]
pub struct DiskRoom {
    used: AtomicU64,
    most: Option<u64>,
}

impl DiskRoom {
    /// Creates a quota of `most` bytes; unlimited if `None`.
    pub fn new(most: Option<u64>) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn most(&self) -> Option<u64> {
        self.most
    }

    /// Takes `bytes` from the quota. Returns false and takes none if fewer are left.
    pub fn take(&self, bytes: u64) -> bool {
        let taken = |used: u64| {
            let used = used.saturating_add(bytes);
            self.most.is_none_or(|most| used <= most).then_some(used)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    pub fn give_back(&self, bytes: u64) {
        self.correct(bytes, 0);
    }

    /// Corrects the number of used bytes for data that was counted as `counted` bytes and measured as `found` bytes.
    pub fn correct(&self, counted: u64, found: u64) {
        let correct = |used: u64| Some(used.saturating_add(found).saturating_sub(counted));
        // The closure always returns a value, so the update cannot fail.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, correct).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_is_never_exceeded_and_a_measurement_keeps_concurrent_takes() {
        let room = DiskRoom::new(Some(100));
        assert!(room.take(60) && !room.take(41) && room.take(40) && !room.take(1));
        room.give_back(50);
        let counted = room.used();
        assert!(room.take(10));
        room.correct(counted, 80);
        assert_eq!((room.used(), room.take(10), room.take(1)), (90, true, false));
        // A correction larger than the number of used bytes results in zero.
        room.correct(100, 20);
        room.give_back(30);
        assert_eq!(room.used(), 0);
        assert!(DiskRoom::new(None).take(u64::MAX));
    }
}
