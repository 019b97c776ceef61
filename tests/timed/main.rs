//! Tests of the times of runs. They are a separate test binary because cargo runs test binaries one after another, and they run
//! one at a time, so that no other test uses the processors meanwhile.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here fails the test; `allow-unwrap-in-tests` does not cover helpers"
)]

mod bench;
mod compare;
mod headspace;
mod predict;
mod seeds;
mod toys;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of retries after a failure: a stalled machine fails a test once, a defect every time.
const AGAIN: usize = 3;

/// Waits until no other test of this binary runs; none starts while the guard is alive.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `attempt` while no other test of this binary runs, and again if it fails.
fn timed(attempt: impl Fn()) {
    let _alone = alone();
    for _ in 0..AGAIN {
        if catch_unwind(AssertUnwindSafe(&attempt)).is_ok() {
            return;
        }
        #[expect(clippy::print_stderr, reason = "a retry is visible in the test's output")]
        {
            eprintln!("once more");
        }
    }
    attempt();
}
