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

/// Counts the time of one batch in which none of its reads is in flight.
#[derive(Debug)]
pub(crate) struct Between(Mutex<Alone>);

#[derive(Debug)]
struct Alone {
    in_flight: u32,
    /// Since when none is in flight.
    since: Tick,
    counted_ns: u64,
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

impl Between {
    /// From the beginning of a batch on.
    pub(crate) fn new(start: Tick) -> Self {
        Self(Mutex::new(Alone { in_flight: 0, since: start, counted_ns: 0 }))
    }

    /// A read begins, no earlier than anything before it.
    pub(crate) fn begin(&self, at: Tick) {
        let mut state = self.state();
        if state.in_flight == 0 {
            state.counted_ns += at - state.since;
        }
        state.in_flight += 1;
    }

    /// A read ends.
    pub(crate) fn end(&self, at: Tick) {
        let mut state = self.state();
        state.in_flight -= 1;
        state.since = at;
    }

    /// Nanoseconds in all, for a batch that ends then.
    pub(crate) fn until(&self, at: Tick) -> u64 {
        let state = self.state();
        state.counted_ns + (at - state.since)
    }

    fn state(&self) -> MutexGuard<'_, Alone> {
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

    #[test]
    fn what_lies_between_reads_is_summed() {
        let at = Tick::from_nanos;
        let between = Between::new(at(10));
        between.begin(at(13));
        between.begin(at(15));
        between.end(at(20));
        between.end(at(21));
        between.begin(at(26));
        between.end(at(30));
        assert_eq!(between.until(at(37)), 3 + 5 + 7);
    }
}
