//! Runs whose times are held to figures. A test binary of its own, since cargo runs one after another, and its tests one at a
//! time: nothing of ours takes the processors meanwhile.
#![expect(
    clippy::unwrap_used,
    reason = "what fails here fails its test; `allow-unwrap-in-tests` misses the helpers"
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

/// How often what disappoints is done once more: a machine may stand still for a while, a defect stays.
const AGAIN: usize = 3;

/// Waits until no other test of this binary runs; none begins as long as what it gives lives.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does this while no other test of this binary runs, and once more when it fails.
fn timed(attempt: impl Fn()) {
    let _alone = alone();
    for _ in 0..AGAIN {
        if catch_unwind(AssertUnwindSafe(&attempt)).is_ok() {
            return;
        }
        #[expect(clippy::print_stderr, reason = "who reads the test's output should know that it ran again")]
        {
            eprintln!("once more");
        }
    }
    attempt();
}
