//! Room on a disk that several writers share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes on a disk, up to a bound. They are counted as they are taken and given back; measurements set the count right.
#[derive(Debug)]
pub struct DiskRoom {
    used: AtomicU64,
    most: Option<u64>,
}

impl DiskRoom {
    /// A room of so many bytes, or without a bound.
    pub fn new(most: Option<u64>) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn most(&self) -> Option<u64> {
        self.most
    }

    /// Takes bytes. Returns false, and takes none, where so many are not left.
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

    /// Sets the count right: so many bytes were counted of something, and so many were found.
    pub fn correct(&self, counted: u64, found: u64) {
        let correct = |used: u64| Some(used.saturating_add(found).saturating_sub(counted));
        // It cannot fail.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, correct).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_is_taken_and_what_is_taken_meanwhile_outlives_a_measurement() {
        let room = DiskRoom::new(Some(100));
        assert!(room.take(60) && !room.take(41) && room.take(40) && !room.take(1));
        room.give_back(50);
        let counted = room.used();
        assert!(room.take(10));
        room.correct(counted, 80);
        assert_eq!((room.used(), room.take(10), room.take(1)), (90, true, false));
        // More was found missing than is counted.
        room.correct(100, 20);
        room.give_back(30);
        assert_eq!(room.used(), 0);
        assert!(DiskRoom::new(None).take(u64::MAX));
    }
}
