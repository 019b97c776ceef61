//! Locks of state that stays valid if a thread panics while it holds the lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the lock. A panic of another holder is ignored here: it is reported when that thread is joined.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
