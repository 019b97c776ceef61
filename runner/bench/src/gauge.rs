//! Number of reads in flight over time. It is counted independently of the records of the reads, so that the two can be checked
//! against each other.

use std::sync::Mutex;

use penstock_engine::lock::locked;
use penstock_types::stats::Tick;

#[derive(Debug, Default)]
pub(crate) struct Gauge(Mutex<GaugeState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauged {
    /// Sum of the durations of all reads that ended, in nanoseconds: the number of reads in flight, integrated over time.
    pub read_ns: i128,
    pub most: u32,
    pub begun: u64,
    pub ended: u64,
}

#[derive(Debug, Default)]
struct GaugeState {
    now: u32,
    /// Start of the current period without a read in flight.
    idle_since: Tick,
    idle_ns: u64,
    counted: Gauged,
}

impl Gauge {
    /// Creates a gauge that counts idle time from `start`.
    pub(crate) fn starting_at(start: Tick) -> Self {
        Self(Mutex::new(GaugeState { idle_since: start, ..GaugeState::default() }))
    }

    /// Counts the start of a read. If idle time is queried later, calls must be made in the order of `at`.
    pub(crate) fn begin(&self, at: Tick) {
        let mut state = locked(&self.0);
        if state.now == 0 {
            state.idle_ns += at - state.idle_since;
        }
        state.now += 1;
        state.counted.begun += 1;
        state.counted.most = state.counted.most.max(state.now);
        state.counted.read_ns -= i128::from(at.nanos());
    }

    pub(crate) fn end(&self, at: Tick) {
        let mut state = locked(&self.0);
        state.now -= 1;
        state.idle_since = at;
        state.counted.ended += 1;
        state.counted.read_ns += i128::from(at.nanos());
    }

    pub(crate) fn read(&self) -> Gauged {
        locked(&self.0).counted
    }

    /// Total time until `at` without a read in flight, in nanoseconds. No read may be in flight at `at`.
    pub(crate) fn idle_until(&self, at: Tick) -> u64 {
        let state = locked(&self.0);
        state.idle_ns + (at - state.idle_since)
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
        // One read is in flight for 3 ns, then two reads for 4 ns, then one for 5 ns.
        assert_eq!(gauge.read(), Gauged { read_ns: 3 + 8 + 5, most: 2, begun: 2, ended: 2 });
    }

    #[test]
    fn the_time_between_reads_is_summed() {
        let at = Tick::from_nanos;
        let between = Gauge::starting_at(at(10));
        between.begin(at(13));
        between.begin(at(15));
        between.end(at(20));
        between.end(at(21));
        between.begin(at(26));
        between.end(at(30));
        assert_eq!(between.idle_until(at(37)), 3 + 5 + 7);
    }
}
