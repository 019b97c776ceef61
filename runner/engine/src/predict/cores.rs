use std::collections::BTreeMap;

use penstock_types::profile::Contention;

/// Work items that share a machine's cores with work of others: each has a core to itself while there are enough; otherwise all get
/// an equal share of them (egalitarian processor sharing). On its share, an item is slowed down by what else uses cores, as the
/// [`Contention`] of its stage says.
#[derive(Debug)]
pub(super) struct Cores<T> {
    count: f64,
    /// Work items of others, which never end.
    foreign: f64,
    /// Work items by stage.
    stages: Vec<Working<T>>,
    /// Number of work items of all stages.
    present: usize,
    /// Nanoseconds on a core that an item would have had if present since the beginning; equal for all present items.
    given: f64,
    /// Time at which the stages were last updated.
    at: u64,
    begun: u64,
}

/// Work items of one stage, all of which advance at one speed.
#[derive(Debug)]
struct Working<T> {
    contention: Contention,
    /// Nanoseconds of work that an item would have done if present since the beginning.
    done: f64,
    /// Nanoseconds on a core that all items have had, and the work that they have done with them.
    had: f64,
    worked: f64,
    /// Work items by the value of `done` at which they end, then by order of arrival; each with the value of `given` at its begin.
    items: BTreeMap<(u64, u64), (f64, T)>,
}

impl<T> Cores<T> {
    pub(super) fn new(count: f64, foreign: f64, stages: impl IntoIterator<Item = Contention>) -> Self {
        let count = count.max(f64::MIN_POSITIVE);
        let working =
            |contention| Working { contention, done: 0.0, had: 0.0, worked: 0.0, items: BTreeMap::new() };
        Self {
            count,
            foreign,
            stages: stages.into_iter().map(working).collect(),
            present: 0,
            given: 0.0,
            at: 0,
            begun: 0,
        }
    }

    pub(super) fn begin(&mut self, now: u64, stage: usize, nanos: u64, piece: T) {
        self.advance(now);
        self.begun += 1;
        self.present += 1;
        let working = &mut self.stages[stage];
        working.items.insert((working.done as u64 + nanos, self.begun), (self.given, piece));
    }

    /// Time at which the next work item is done if no other starts before.
    pub(super) fn next_at(&self, now: u64) -> Option<u64> {
        let (share, in_use) = self.share();
        let left = self.stages.iter().filter_map(|stage| {
            let ((due, _), _) = stage.items.first_key_value()?;
            Some((*due as f64 - stage.done).max(0.0) / stage.speed(share, in_use))
        });
        let soonest = left.min_by(f64::total_cmp)?;
        Some((self.at + soonest.ceil() as u64).max(now))
    }

    /// A work item that is done, with the nanoseconds that it has had on a core.
    pub(super) fn take_done(&mut self, now: u64) -> Option<(T, u64)> {
        self.advance(now);
        // With half a nanosecond of tolerance, rounding never leaves a finished work item waiting.
        let is_done = |stage: &Working<T>| {
            stage.items.first_key_value().is_some_and(|((due, _), _)| *due as f64 <= stage.done + 0.5)
        };
        let stage = self.stages.iter_mut().find(|stage| is_done(stage))?;
        self.present -= 1;
        let (_, (from, piece)) = stage.items.pop_first()?;
        Some((piece, (self.given - from).round() as u64))
    }

    /// Mean factor by which the work of each stage was slowed down, without waits for a core.
    pub(super) fn slowdowns(&self) -> Vec<f64> {
        let slowdown = |stage: &Working<T>| if stage.worked > 0.0 { stage.had / stage.worked } else { 1.0 };
        self.stages.iter().map(slowdown).collect()
    }

    fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at) as f64;
        let (share, in_use) = self.share();
        self.given += passed * share;
        for stage in &mut self.stages {
            let (items, done) = (stage.items.len() as f64, passed * stage.speed(share, in_use));
            stage.done += done;
            stage.had += items * passed * share;
            stage.worked += items * done;
        }
        self.at = self.at.max(now);
    }

    /// Share of a core that each work item has, and the number of cores in use.
    fn share(&self) -> (f64, f64) {
        let wanted = self.present.max(1) as f64 + self.foreign;
        ((self.count / wanted).min(1.0), wanted.min(self.count))
    }
}

impl<T> Working<T> {
    /// Nanoseconds of work that each work item does per nanosecond.
    fn speed(&self, share: f64, in_use: f64) -> f64 {
        share / self.contention.at(in_use)
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
            ends.extend(cores.take_done(now).map(|(piece, _)| (piece, now)));
        }
        ends
    }

    fn of_one_stage(count: f64, foreign: f64) -> Cores<&'static str> {
        Cores::new(count, foreign, [Contention::default()])
    }

    #[test]
    fn pieces_run_at_full_speed_while_there_are_enough_cores() {
        let mut cores = of_one_stage(2.0, 0.0);
        cores.begin(0, 0, 100, "a");
        cores.begin(50, 0, 100, "b");
        assert_eq!(ends(cores, 50), [("a", 100), ("b", 150)]);
    }

    #[test]
    fn more_pieces_than_cores_slow_down_equally() {
        let mut cores = of_one_stage(2.0, 0.0);
        for piece in ["a", "b", "c", "d"] {
            cores.begin(0, 0, 100, piece);
        }
        assert_eq!(ends(cores, 0), [("a", 200), ("b", 200), ("c", 200), ("d", 200)]);
        let mut cores = of_one_stage(1.0, 0.0);
        cores.begin(0, 0, 100, "long");
        cores.begin(0, 0, 50, "short");
        assert_eq!(ends(cores, 0), [("short", 100), ("long", 150)]);
    }

    #[test]
    fn work_of_others_takes_an_equal_share_of_contended_cores() {
        let mut cores = of_one_stage(2.0, 3.0);
        cores.begin(0, 0, 100, "a");
        cores.begin(0, 0, 100, "b");
        assert_eq!(ends(cores, 0), [("a", 250), ("b", 250)]);
        // One core is free.
        let mut cores = of_one_stage(4.0, 3.0);
        cores.begin(0, 0, 100, "alone");
        assert_eq!(ends(cores, 0), [("alone", 100)]);
    }

    #[test]
    fn no_piece_is_lost_when_the_clock_is_far_advanced() {
        let mut cores = of_one_stage(3.0, 0.0);
        let far = 1_u64 << 50;
        for piece in ["a", "b", "c", "d"] {
            cores.begin(far, 0, 3_000_001, piece);
        }
        let ends = ends(cores, far);
        assert!(ends.len() == 4 && ends.iter().all(|(_, at)| at.abs_diff(far + 4_000_001) < 5), "{ends:?}");
    }

    #[test]
    fn an_item_is_slowed_down_by_the_cores_in_use_as_its_stage_is() {
        let contention = Contention::new([(1.0, 1.0), (2.0, 1.5)]);
        let mut cores = Cores::new(2.0, 0.0, [contention.clone(), Contention::default()]);
        cores.begin(0, 0, 100, "slow");
        cores.begin(0, 1, 90, "even");
        // Beside the other, the first does 60 of its 100; then it is alone.
        assert_eq!(ends(cores, 0), [("even", 90), ("slow", 130)]);
        // Others that use half a core slow it down by half as much, all on a core of its own.
        let mut cores = Cores::new(2.0, 0.5, [contention]);
        cores.begin(0, 0, 100, "slow");
        assert_eq!((cores.next_at(0), cores.take_done(125)), (Some(125), Some(("slow", 125))));
    }
}
