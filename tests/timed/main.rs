//! Runs whose times are held to figures. A test binary of its own, since cargo runs one after another, and its tests one at a
//! time: nothing of ours takes the processors meanwhile.
#![expect(
    clippy::unwrap_used,
    reason = "what fails here fails its test; `allow-unwrap-in-tests` misses the helpers"
)]

mod seeds;
mod toys;
mod verdict;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this binary runs; none begins as long as what it gives lives.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
