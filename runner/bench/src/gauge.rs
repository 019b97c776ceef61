//! How many reads are in flight, over time: counted apart from the reads' own records, so that each checks the other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_types::stats::Tick;

/// Counts reads in flight.
#[derive(Debug, Default)]
pub(crate) struct Gauge(Mutex<State>);

/// What a gauge has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauged {
    /// Reads in flight times nanoseconds, of the reads that ended.
    pub read_ns: i128,
    /// Most at a time.
    pub most: u32,
    /// Reads that began.
    pub begun: u64,
    /// Reads that ended, well or not.
    pub ended: u64,
}

#[derive(Debug, Default)]
struct State {
    now: u32,
    counted: Gauged,
}

impl Gauge {
    /// A read begins. Moments may come in any order: their sum is the same.
    pub(crate) fn begin(&self, at: Tick) {
        let mut state = self.state();
        state.now += 1;
        state.counted.begun += 1;
        state.counted.most = state.counted.most.max(state.now);
        state.counted.read_ns -= i128::from(at.nanos());
    }

    /// One of those that began ends.
    pub(crate) fn end(&self, at: Tick) {
        let mut state = self.state();
        state.now -= 1;
        state.counted.ended += 1;
        state.counted.read_ns += i128::from(at.nanos());
    }

    pub(crate) fn read(&self) -> Gauged {
        self.state().counted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_flight_are_summed_over_time() {
        let gauge = Gauge::default();
        let at = Tick::from_nanos;
        gauge.begin(at(10));
        gauge.begin(at(13));
        gauge.end(at(17));
        gauge.end(at(22));
        // One alone for 3, two for 4, one for 5.
        assert_eq!(gauge.read(), Gauged { read_ns: 3 + 8 + 5, most: 2, begun: 2, ended: 2 });
    }
}
