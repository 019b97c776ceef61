//! Who may compile when: a few at a time, and the same module once.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// A semaphore with a few places.
#[derive(Debug)]
pub(crate) struct CompilePermits {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A place, returned on drop.
#[derive(Debug)]
pub(crate) struct CompilePermit<'a>(&'a CompilePermits);

impl CompilePermits {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    pub(crate) fn take(&self) -> CompilePermit<'_> {
        // The count stays sound whatever panicked while holding the lock.
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        CompilePermit(self)
    }
}

impl Drop for CompilePermit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// Work under way, by the digest of its input: concurrent callers with the same input wait and share the result.
#[derive(Debug)]
pub(crate) struct Sharing<T>(Mutex<HashMap<[u8; 32], Arc<OnceLock<T>>>>);

impl<T: Clone> Sharing<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Result of the work, and true if this call did it. Nothing is kept once it is done.
    pub(crate) fn work(&self, digest: &[u8; 32], work: impl FnOnce() -> T) -> (T, bool) {
        let shared = self.map().entry(*digest).or_default().clone();
        let mut is_ours = false;
        let given = shared
            .get_or_init(|| {
                is_ours = true;
                work()
            })
            .clone();
        if is_ours {
            self.map().remove(digest);
        }
        (given, is_ours)
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<OnceLock<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_than_the_places_are_taken_at_a_time() {
        let places = CompilePermits::new(2);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _place = places.take();
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 2);
        assert_eq!(*places.free.lock().unwrap(), 2);
    }

    #[test]
    fn the_same_is_done_once_for_all_who_wait_and_again_for_who_comes_later() {
        let sharing = Sharing::new();
        let times = AtomicUsize::new(0);
        let started = Barrier::new(2);
        let work = || times.fetch_add(1, Ordering::SeqCst) + 1;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                sharing.work(&[1; 32], || {
                    started.wait();
                    // The other has the same cell in hand once there are three holders: the map, this one and it.
                    while Arc::strong_count(&sharing.map()[&[1; 32]]) < 3 {
                        std::thread::yield_now();
                    }
                    work()
                })
            });
            started.wait();
            let second = sharing.work(&[1; 32], work);
            assert_eq!((first.join().unwrap(), second), ((1, true), (1, false)));
        });
        assert_eq!(sharing.work(&[1; 32], work), (2, true));
        assert!(sharing.map().is_empty());
    }
}
