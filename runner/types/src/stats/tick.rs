use std::ops::Sub;
use std::time::Duration;

/// A moment of a run: nanoseconds since its start, by a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u64);

impl Tick {
    /// Start of the run.
    pub const ZERO: Self = Self(0);

    /// Tick `nanos` nanoseconds after the start.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start of the run.
    #[inline]
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start of the run.
    pub fn seconds(self) -> f64 {
        nanos_to_seconds(self.0)
    }

    /// Tick that is `later` after this one.
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Computes the nanoseconds from `earlier` to `self`; 0 when `earlier` is not earlier.
impl Sub for Tick {
    type Output = u64;

    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Converts nanoseconds to seconds.
pub(crate) fn nanos_to_seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}
