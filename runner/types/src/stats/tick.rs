use std::ops::Sub;
use std::time::Duration;

/// A moment of a run: nanoseconds since its start, by a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u64);

impl Tick {
    /// The run's start.
    pub const ZERO: Self = Self(0);

    /// The moment `nanos` nanoseconds after the start.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    #[inline]
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start.
    pub fn seconds(self) -> f64 {
        nanos_to_seconds(self.0)
    }

    /// The moment `later` after this one.
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Nanoseconds from `earlier` to `self`; 0 when `earlier` is not earlier.
impl Sub for Tick {
    type Output = u64;

    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The same length in seconds.
pub(crate) fn nanos_to_seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}
