//! Events on the time axis of a run. Changes of its limit are no events: the spans of its verdict contain them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::Row;

/// Maximum number of events of one kind; the events with the lowest counts are left out.
const MAX_EVENTS: usize = 100;
/// Minimum number of failed tasks in a bucket of a failure burst.
const BURST_LEAST: f64 = 5.0;
/// Minimum ratio of failed tasks in a bucket of a failure burst to the number expected from the rate before.
const BURST_FACTOR: f64 = 3.0;
/// Minimum number of standard deviations by which the failed tasks of a burst's first bucket exceed the expected number; half of
/// it suffices for the following buckets.
const BURST_DEVIATIONS: f64 = 4.0;
/// Number of buckets with tasks that are needed to know the usual failure rate, before which no burst is reported.
const BUCKETS_BEFORE: u32 = 4;

/// Events of a run, ordered by their start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Events of the run, earliest first.
    pub items: Vec<TimelineEvent>,
    /// Number of events that are not listed: the ones with the lowest counts.
    pub left_out: usize,
}

/// Event in a run, with the interval in which it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimelineEvent {
    /// Start of the event, in seconds since the run's start, rounded down to the start of a measured interval.
    pub from_s: f64,
    /// End of the event, in seconds since the run's start, rounded up to the end of a measured interval.
    pub to_s: f64,
    /// Kind of the event.
    pub kind: TimelineEventKind,
    /// Id of the stage that the event concerns.
    pub stage: String,
    /// Number of replaced instances or of failed tasks, depending on the kind.
    pub count: u64,
    /// Description of the event in one sentence.
    pub text: String,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimelineEventKind {
    /// Instances of a module broke and were replaced.
    InstanceReplaced,
    /// Tasks of a stage failed at a much higher rate than before.
    FailureBurst,
}

impl Timeline {
    /// Finds the events of a run in `rows`, its rows merged into buckets of equal length. `stages` contains the id and name of
    /// each stage.
    pub fn of(stages: &[(&str, &str)], rows: &[Option<Row>]) -> Self {
        let mut all = Self::default();
        let (mut replaced, mut bursts) = (Vec::new(), Vec::new());
        for (stage, (id, name)) in stages.iter().enumerate() {
            let event = |kind: TimelineEventKind, stretch: Stretch, text: String| TimelineEvent {
                from_s: stretch.t0 as f64 / 1e9,
                to_s: stretch.t1 as f64 / 1e9,
                kind,
                stage: (*id).to_owned(),
                count: stretch.count,
                text,
            };
            replaced.extend(replacements(rows, stage).into_iter().map(|stretch| {
                let text = match stretch.count {
                    1 => format!("Module instance of {name} replaced"),
                    count => format!("{count} module instances of {name} replaced"),
                };
                event(TimelineEventKind::InstanceReplaced, stretch, text)
            }));
            bursts.extend(failure_bursts(rows, stage).into_iter().map(|stretch| {
                let text = format!("Failure burst: {} tasks of {name} failed", stretch.count);
                event(TimelineEventKind::FailureBurst, stretch, text)
            }));
        }
        for mut events in [replaced, bursts] {
            events.sort_by_key(|event| std::cmp::Reverse(event.count));
            all.left_out += events.len().saturating_sub(MAX_EVENTS);
            events.truncate(MAX_EVENTS);
            all.items.append(&mut events);
        }
        all.items.sort_by(|one, next| one.from_s.total_cmp(&next.from_s).then(one.kind.cmp(&next.kind)));
        all
    }
}

/// Adjacent buckets that form one event. Times are in nanoseconds since the run's start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    t0: u64,
    t1: u64,
    count: u64,
}

impl Stretch {
    /// Adds the bucket of `row` to the last stretch if `goes_on` is set; otherwise adds a new stretch.
    fn add(all: &mut Vec<Self>, row: &Row, count: u64, goes_on: bool) {
        match all.last_mut().filter(|_| goes_on) {
            Some(last) => (last.t1, last.count) = (row.t1, last.count + count),
            None => all.push(Self { t0: row.t0, t1: row.t1, count }),
        }
    }
}

fn replacements(rows: &[Option<Row>], stage: usize) -> Vec<Stretch> {
    let mut found = Vec::new();
    let mut goes_on = false;
    for row in rows.iter().flatten() {
        let replaced = row.stages.get(stage).map_or(0, |sums| sums.replaced);
        if replaced > 0 {
            Stretch::add(&mut found, row, replaced, goes_on);
        }
        goes_on = replaced > 0;
    }
    found
}

/// Stretches in which failures per second far exceed their mean rate before.
fn failure_bursts(rows: &[Option<Row>], stage: usize) -> Vec<Stretch> {
    let mut found = Vec::new();
    // Failed tasks, measured time and number of the buckets so far, without the buckets of bursts.
    let (mut failed, mut time, mut buckets) = (0_u64, 0_u64, 0);
    let mut goes_on = false;
    for row in rows.iter().flatten() {
        let Some(sums) = row.stages.get(stage).filter(|sums| sums.tasks > 0) else { continue };
        let expected = if time == 0 { 0.0 } else { failed as f64 * sums.elapsed as f64 / time as f64 };
        let deviations = if goes_on { BURST_DEVIATIONS / 2.0 } else { BURST_DEVIATIONS };
        let least = (expected + deviations * expected.sqrt()).max(BURST_FACTOR * expected).max(BURST_LEAST);
        goes_on = buckets >= BUCKETS_BEFORE && sums.failures as f64 >= least;
        if goes_on {
            let is_next = found.last().is_some_and(|last: &Stretch| last.t1 == row.t0);
            Stretch::add(&mut found, row, sums.failures, is_next);
        } else {
            (failed, time, buckets) = (failed + sums.failures, time + sums.elapsed, buckets + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::TaskRow;

    const SECOND: u64 = 1_000_000_000;

    /// Rows of one second with a hundred tasks each; each pair in `of` is the number of failed tasks and of replaced instances.
    fn rows(of: &[(u64, u64)]) -> Vec<Option<Row>> {
        let row = |(number, (failures, replaced)): (u64, &(u64, u64))| {
            let mut row = Row::empty(number, number * SECOND, 1, 2);
            row.t1 = row.t0 + SECOND;
            row.stages[0] = TaskRow {
                elapsed: SECOND,
                tasks: 100,
                failures: *failures,
                replaced: *replaced,
                ..TaskRow::default()
            };
            Some(row)
        };
        (0..).zip(of).map(row).collect()
    }

    fn bursts(failures: &[u64]) -> Vec<(u64, u64, u64)> {
        let rows = rows(&failures.iter().map(|failures| (*failures, 0)).collect::<Vec<_>>());
        let found = failure_bursts(&rows, 0);
        found.iter().map(|stretch| (stretch.t0 / SECOND, stretch.t1 / SECOND, stretch.count)).collect()
    }

    #[test]
    fn a_jump_of_failures_is_a_burst() {
        assert_eq!(bursts(&[0, 0, 0, 0, 0, 40, 30, 0, 0]), [(5, 7, 70)]);
        assert_eq!(bursts(&[2, 1, 3, 2, 2, 1, 50, 2, 1, 44, 2]), [(6, 7, 50), (9, 10, 44)]);
    }

    #[test]
    fn a_usual_rate_of_failures_is_no_burst() {
        assert_eq!(bursts(&[20, 25, 18, 22, 30, 16, 24, 21]), []);
        assert_eq!(bursts(&[90, 80, 0, 0, 0, 0]), [], "there is no time before");
        assert_eq!(bursts(&[0, 0, 0, 0, 0, 4, 0]), [], "four of a hundred are few");
        // Buckets without tasks do not count towards the usual rate.
        let mut with_gaps = rows(&[(9, 0), (0, 0), (0, 0), (0, 0), (0, 0), (9, 0)]);
        for row in with_gaps[1..5].iter_mut().flatten() {
            row.stages[0].tasks = 0;
        }
        assert_eq!(failure_bursts(&with_gaps, 0), []);
    }

    #[test]
    fn events_of_all_kinds_come_in_order_and_in_words() {
        let rows = rows(&[(0, 0), (0, 1), (0, 0), (0, 0), (0, 0), (60, 2), (0, 4), (0, 0)]);
        let found = Timeline::of(&[("1:decode", "decode")], &rows);
        let told: Vec<_> =
            found.items.iter().map(|event| (event.from_s, event.to_s, event.text.as_str())).collect();
        assert_eq!(
            told,
            [
                (1.0, 2.0, "Module instance of decode replaced"),
                (5.0, 7.0, "6 module instances of decode replaced"),
                (5.0, 6.0, "Failure burst: 60 tasks of decode failed"),
            ]
        );
        assert_eq!(found.left_out, 0);
    }

    #[test]
    fn the_largest_events_are_kept() {
        let one_in_two: Vec<(u64, u64)> =
            (0..600).map(|number| (0, if number % 2 == 0 { number } else { 0 })).collect();
        let found = Timeline::of(&[("1:a", "a")], &rows(&one_in_two));
        assert_eq!((found.items.len(), found.left_out), (MAX_EVENTS, 299 - MAX_EVENTS));
        assert!(found.items.is_sorted_by(|one, next| one.from_s < next.from_s));
        assert_eq!(found.items.iter().map(|event| event.count).min(), Some(400));
    }
}
