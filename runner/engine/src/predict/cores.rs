use std::collections::BTreeMap;

/// Work items that share a machine's cores with work of others: each runs at full speed while there are enough cores; otherwise
/// all are slowed down equally (egalitarian processor sharing).
#[derive(Debug)]
pub(super) struct Cores<T> {
    count: f64,
    /// Work items of others, which never end.
    foreign: f64,
    /// Nanoseconds of core time that a work item would have received if present since the beginning; equal for all present items.
    given: f64,
    /// Time at which `given` was last updated.
    at: u64,
    /// Work items by the value of `given` at which they are done, then by order of arrival.
    work: BTreeMap<(u64, u64), T>,
    begun: u64,
}

impl<T> Cores<T> {
    pub(super) fn new(count: f64, foreign: f64) -> Self {
        let count = count.max(f64::MIN_POSITIVE);
        Self { count, foreign, given: 0.0, at: 0, work: BTreeMap::new(), begun: 0 }
    }

    pub(super) fn begin(&mut self, now: u64, nanos: u64, piece: T) {
        self.advance(now);
        self.begun += 1;
        self.work.insert((self.given as u64 + nanos, self.begun), piece);
    }

    /// Time at which the next work item is done if no other starts before.
    pub(super) fn next_at(&self, now: u64) -> Option<u64> {
        let ((due, _), _) = self.work.first_key_value()?;
        let left = (*due as f64 - self.given).max(0.0);
        Some((self.at + (left / self.speed()).ceil() as u64).max(now))
    }

    pub(super) fn take_done(&mut self, now: u64) -> Option<T> {
        self.advance(now);
        // With half a nanosecond of tolerance, rounding never leaves a finished work item waiting.
        let ((due, _), _) = self.work.first_key_value()?;
        if *due as f64 > self.given + 0.5 {
            return None;
        }
        self.work.pop_first().map(|(_, piece)| piece)
    }

    fn advance(&mut self, now: u64) {
        self.given += now.saturating_sub(self.at) as f64 * self.speed();
        self.at = self.at.max(now);
    }

    /// Nanoseconds of work that each work item receives per nanosecond.
    fn speed(&self) -> f64 {
        (self.count / (self.work.len().max(1) as f64 + self.foreign)).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs all work items to completion; returns the end time of each.
    fn ends(mut cores: Cores<&'static str>, mut now: u64) -> Vec<(&'static str, u64)> {
        let mut ends = Vec::new();
        while let Some(at) = cores.next_at(now) {
            now = at;
            ends.extend(cores.take_done(now).map(|piece| (piece, now)));
        }
        ends
    }

    #[test]
    fn pieces_run_at_full_speed_while_there_are_enough_cores() {
        let mut cores = Cores::new(2.0, 0.0);
        cores.begin(0, 100, "a");
        cores.begin(50, 100, "b");
        assert_eq!(ends(cores, 50), [("a", 100), ("b", 150)]);
    }

    #[test]
    fn more_pieces_than_cores_slow_down_equally() {
        let mut cores = Cores::new(2.0, 0.0);
        for piece in ["a", "b", "c", "d"] {
            cores.begin(0, 100, piece);
        }
        assert_eq!(ends(cores, 0), [("a", 200), ("b", 200), ("c", 200), ("d", 200)]);
        let mut cores = Cores::new(1.0, 0.0);
        cores.begin(0, 100, "long");
        cores.begin(0, 50, "short");
        assert_eq!(ends(cores, 0), [("short", 100), ("long", 150)]);
    }

    #[test]
    fn work_of_others_takes_an_equal_share_of_contended_cores() {
        let mut cores = Cores::new(2.0, 3.0);
        cores.begin(0, 100, "a");
        cores.begin(0, 100, "b");
        assert_eq!(ends(cores, 0), [("a", 250), ("b", 250)]);
        // One core is free.
        let mut cores = Cores::new(4.0, 3.0);
        cores.begin(0, 100, "alone");
        assert_eq!(ends(cores, 0), [("alone", 100)]);
    }

    #[test]
    fn no_piece_is_lost_when_the_clock_is_far_advanced() {
        let mut cores = Cores::new(3.0, 0.0);
        let far = 1_u64 << 50;
        for piece in ["a", "b", "c", "d"] {
            cores.begin(far, 3_000_001, piece);
        }
        let ends = ends(cores, far);
        assert!(ends.len() == 4 && ends.iter().all(|(_, at)| at.abs_diff(far + 4_000_001) < 5), "{ends:?}");
    }
}
