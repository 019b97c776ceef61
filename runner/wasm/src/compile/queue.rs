//! Scheduling of compilations: limits concurrent compilations, and compiles a module once for all concurrent requests.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use penstock_engine::lock::locked;

/// Semaphore that blocks threads.
#[derive(Debug)]
pub(crate) struct CompilePermits {
    free: Mutex<usize>,
    freed: Condvar,
}

/// Permit to compile, which is returned on drop.
#[derive(Debug)]
pub(crate) struct CompilePermit<'a>(&'a CompilePermits);

impl CompilePermits {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    pub(crate) fn take(&self) -> CompilePermit<'_> {
        let free = locked(&self.free);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        CompilePermit(self)
    }
}

impl Drop for CompilePermit<'_> {
    fn drop(&mut self) {
        *locked(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}

/// Work in progress, by the digest of its input: concurrent callers with the same input wait and share the result.
#[derive(Debug)]
pub(crate) struct Sharing<T>(Mutex<HashMap<[u8; 32], Arc<OnceLock<T>>>>);

impl<T: Clone> Sharing<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Returns the result of `work`, and true if this call executed it. The result is not kept for later calls.
    pub(crate) fn work(&self, digest: &[u8; 32], work: impl FnOnce() -> T) -> (T, bool) {
        let shared = locked(&self.0).entry(*digest).or_default().clone();
        let mut is_ours = false;
        let given = shared
            .get_or_init(|| {
                is_ours = true;
                work()
            })
            .clone();
        if is_ours {
            locked(&self.0).remove(digest);
        }
        (given, is_ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_number_of_taken_permits_is_limited() {
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
    fn work_is_done_once_for_concurrent_callers_and_again_for_a_later_one() {
        let sharing = Sharing::new();
        let times = AtomicUsize::new(0);
        let started = Barrier::new(2);
        let work = || times.fetch_add(1, Ordering::SeqCst) + 1;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                sharing.work(&[1; 32], || {
                    started.wait();
                    // The other caller waits for the same cell once the cell has three holders: the map, this caller and the
                    // other caller.
                    while Arc::strong_count(&locked(&sharing.0)[&[1; 32]]) < 3 {
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
        assert!(locked(&sharing.0).is_empty());
    }
}
