//! Limits the repetitions of a store's requests, so that a storm of failures does not multiply the load.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use penstock_engine::lock::locked;

/// Number of repetitions that may begin at once.
const BURST: f64 = 100.0;

/// Number of repetitions that become available per second, even if all requests fail.
const PER_SECOND: f64 = 10.0;

/// Number of repetitions that become available with each request that succeeds.
const PER_SUCCESS: f64 = 0.1;

/// Repetitions available to all requests of a store.
///
/// The SDK has a similar throttle, but a store repeats requests itself, together with the reading of their responses. Requests wait
/// for their turn instead of failing, as long as their time allows.
#[derive(Debug)]
pub(crate) struct Throttle(Mutex<Available>);

#[derive(Debug)]
struct Available {
    /// Maximum of `count`, which is its value at first.
    most: f64,
    /// Number that becomes available per second.
    per_second: f64,
    /// Negative if repetitions are reserved that begin later.
    count: f64,
    /// Time of the last reservation.
    at: Option<Instant>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new(BURST, PER_SECOND)
    }
}

impl Throttle {
    /// Throttle of something that may begin `most` times at once, and `per_second` times per second after that.
    pub(crate) fn new(most: f64, per_second: f64) -> Self {
        Self(Mutex::new(Available { most, per_second, count: most, at: None }))
    }

    pub(crate) fn on_success(&self) {
        let mut available = locked(&self.0);
        available.count = available.most.min(available.count + PER_SUCCESS);
    }

    /// Reserves a repetition that may begin within `most`; returns the wait until then. Reserves nothing if the wait is longer.
    pub(crate) fn reserve(&self, now: Instant, most: Duration) -> Option<Duration> {
        let mut available = locked(&self.0);
        let passed = available.at.replace(now).map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let more = passed.as_secs_f64() * available.per_second;
        available.count = available.most.min(available.count + more);
        let wait = Duration::from_secs_f64(((1.0 - available.count) / available.per_second).max(0.0));
        (wait <= most).then(|| {
            available.count -= 1.0;
            wait
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::now;

    const HOUR: Duration = Duration::from_secs(3600);

    fn available(count: f64) -> Throttle {
        Throttle(Mutex::new(Available { most: BURST, per_second: PER_SECOND, count, at: None }))
    }

    #[test]
    fn after_a_burst_repetitions_begin_at_a_constant_rate() {
        let (available, zero) = (available(BURST), now());
        for _ in 0..100 {
            assert_eq!(available.reserve(zero, Duration::ZERO), Some(Duration::ZERO));
        }
        for tenths in 1..=3 {
            assert_eq!(available.reserve(zero, HOUR), Some(Duration::from_millis(100 * tenths)));
        }
        let later = zero + Duration::from_secs(1);
        assert_eq!(
            available.reserve(later, Duration::ZERO),
            Some(Duration::ZERO),
            "10 more, of which 3 are reserved"
        );
    }

    #[test]
    fn a_wait_that_is_too_long_reserves_nothing() {
        let (available, zero) = (available(0.0), now());
        for _ in 0..1000 {
            assert_eq!(available.reserve(zero, Duration::from_millis(50)), None);
        }
        assert_eq!(available.reserve(zero, HOUR), Some(Duration::from_millis(100)));
    }

    #[test]
    fn ten_successes_allow_one_repetition() {
        let (available, zero) = (available(-0.5), now());
        for _ in 0..15 {
            assert!(available.reserve(zero, Duration::from_micros(1)).is_none());
            available.on_success();
        }
        assert!(available.reserve(zero, Duration::from_micros(1)).is_some());
        for _ in 0..10_000 {
            available.on_success();
        }
        assert!(locked(&available.0).count <= BURST);
    }
}
