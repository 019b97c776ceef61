//! How many reads are in flight, over time: counted apart from the reads' own records, so that each checks the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_engine::clock::Clock;
use penstock_types::stats::Tick;

/// Counts reads in flight.
#[derive(Debug)]
pub(crate) struct Gauge {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// What a gauge has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauged {
    /// Reads in flight times nanoseconds.
    pub read_ns: u128,
    /// Most at a time.
    pub most: u32,
    /// Reads that began.
    pub begun: u64,
    /// Reads that ended, well or not.
    pub ended: u64,
}

/// A read in flight; it ends when this is dropped, given up or not.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a Gauge);

#[derive(Debug, Default)]
struct State {
    now: u32,
    since: Tick,
    counted: Gauged,
}

impl Gauge {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// A read begins.
    pub(crate) fn begin(&self) -> InFlight<'_> {
        let mut state = self.moved();
        state.now += 1;
        state.counted.begun += 1;
        state.counted.most = state.counted.most.max(state.now);
        InFlight(self)
    }

    pub(crate) fn read(&self) -> Gauged {
        self.moved().counted
    }

    /// The state, with the time until now added.
    fn moved(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: the sum needs moments in order.
        let now = self.clock.now();
        state.counted.read_ns += u128::from(state.now) * u128::from(now - state.since);
        state.since = now;
        state
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.moved();
        state.now -= 1;
        state.counted.ended += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_engine::clock::ManualClock;

    use super::*;

    #[test]
    fn reads_in_flight_are_summed_over_time() {
        let clock = Arc::new(ManualClock::default());
        let gauge = Gauge::new(clock.clone());
        let one = gauge.begin();
        clock.advance(Duration::from_nanos(3));
        let other = gauge.begin();
        clock.advance(Duration::from_nanos(4));
        drop(one);
        clock.advance(Duration::from_nanos(5));
        drop(other);
        clock.advance(Duration::from_nanos(6));
        assert_eq!(gauge.read(), Gauged { read_ns: 3 + 8 + 5, most: 2, begun: 2, ended: 2 });
    }
}
