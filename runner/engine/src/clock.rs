//! Source of the current time. All other code receives times as a [`Tick`].

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_types::stats::Tick;

pub trait Clock: Send + Sync + Debug {
    /// Time since the start of the run.
    fn now(&self) -> Tick;
}

#[derive(Debug)]
pub struct MonotonicClock(Instant);

/// A clock that only advances when [`ManualClock::advance`] is called; for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl MonotonicClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Tick {
        Tick::ZERO.after(self.0.elapsed())
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
