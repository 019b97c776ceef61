use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::stats::{QueueRow, TaskRow};
use crate::verdict::tests::shape;

/// Length of an interval, in nanoseconds.
const STRETCH: u64 = 250_000_000;
/// Number of items in an interval: enough that a window ends every second.
const ITEMS: u64 = 20;

/// Behaviour of the run in one second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No item is delivered.
    Silent,
    /// The consumer never waits.
    Fed,
    /// The first stage is always busy, and the consumer waits a tenth of the time.
    First,
    /// The second stage is always busy, and the consumer waits half of the time; the first stage has slack.
    LaterStage,
    /// Most samples fail in the first stage, which has slack, and the consumer waits most of the time.
    Failing,
}

fn run() -> Diagnosis {
    Diagnosis::of(shape(json!({
        "source": { "range": { "count": 1000 } },
        "stages": [{ "sleep": { "mean_ms": 1, "name": "a" } }, { "sleep": { "mean_ms": 1, "name": "b" } }],
        "consumer": { "simulate": { "step_ms": 1 } }
    })))
}

/// A run whose consumer has just got its first items; windows last a second from here on.
fn warm() -> Diagnosis {
    let mut diagnosis = run();
    let (stages, queues) = sums(Phase::Fed);
    diagnosis.add(STRETCH, &stages, &queues, &[], false);
    diagnosis
}

fn follow(diagnosis: &mut Diagnosis, seconds: &[Phase], from: u64) -> u64 {
    let mut at = from;
    for second in seconds {
        for _ in 0..4 {
            at += STRETCH;
            let (stages, queues) = sums(*second);
            diagnosis.add(at, &stages, &queues, &[], false);
        }
    }
    at
}

fn sums(second: Phase) -> ([TaskSums; 2], [QueueSums; 4]) {
    let tenths = |share: u64| STRETCH / 10 * share;
    let stage = |busy: u64, failed_samples: u64| {
        let (busy, idle) = (tenths(busy), tenths(10 - busy));
        let row =
            TaskRow { elapsed: STRETCH, tasks: ITEMS, failed_samples, busy, idle, ..TaskRow::default() };
        TaskSums { row, ..TaskSums::default() }
    };
    let queue = |starved: u64, items: u64| {
        let get_wait = tenths(starved);
        let row = QueueRow { elapsed: STRETCH, puts: items, gets: items, get_wait, ..QueueRow::default() };
        QueueSums { row, ..QueueSums::default() }
    };
    let (busy, starved, items) = match second {
        Phase::Silent => ([10, 0], [0, 10, 10, 10], 0),
        Phase::Fed => ([5, 5], [0, 0, 0, 0], ITEMS),
        Phase::First => ([10, 6], [0, 4, 10, 1], ITEMS),
        Phase::LaterStage => ([3, 10], [0, 0, 10, 5], ITEMS),
        Phase::Failing => ([2, 0], [0, 8, 8, 8], 1),
    };
    let failed = if second == Phase::Failing { ITEMS - 1 } else { 0 };
    ([stage(busy[0], failed), stage(busy[1], 0)], starved.map(|starved| queue(starved, items)))
}

fn moves(diagnosis: &Diagnosis) -> Vec<(f64, VerdictKind, Option<String>)> {
    diagnosis.spans().into_iter().map(|span| (span.from_s, span.kind, span.stage)).collect()
}

#[test]
fn a_verdict_changes_when_three_windows_agree_starting_with_the_first_of_them() {
    let mut diagnosis = warm();
    use Phase::{Fed, First};
    follow(&mut diagnosis, &[Fed, Fed, Fed, First, First, Fed, First, First, First], STRETCH);
    let first = (6.25, VerdictKind::Stage, Some("1:a".to_owned()));
    assert_eq!(moves(&diagnosis)[1..], [(0.25, VerdictKind::Consumer, None), first]);
    let spans = diagnosis.spans();
    assert!(spans[1].sentence.contains("0.0 % of the time"), "{}", spans[1].sentence);
    assert!(spans[2].sentence.contains("stage `1:a`"), "{}", spans[2].sentence);
}

#[test]
fn a_verdict_that_holds_for_two_windows_changes_nothing() {
    let mut diagnosis = warm();
    let mut at = follow(&mut diagnosis, &[Phase::Fed; 2], STRETCH);
    for _ in 0..50 {
        at = follow(&mut diagnosis, &[Phase::First, Phase::First, Phase::Fed], at);
    }
    assert_eq!(diagnosis.spans().len(), 2, "warm-up and one verdict");
}

#[test]
fn a_limit_with_slack_is_replaced_at_once_by_one_without() {
    let mut diagnosis = warm();
    follow(&mut diagnosis, &[Phase::First, Phase::First, Phase::LaterStage, Phase::LaterStage], STRETCH);
    let stages: Vec<_> = moves(&diagnosis).into_iter().map(|(from_s, _, stage)| (from_s, stage)).collect();
    let named = |id: &str| Some(id.to_owned());
    assert_eq!(stages, [(0.0, None), (0.25, named("1:a")), (2.25, named("2:b"))]);
}

#[test]
fn failures_show_within_three_seconds_although_little_is_delivered() {
    let mut diagnosis = warm();
    use Phase::{Failing, Fed};
    follow(&mut diagnosis, &[Fed, Fed, Failing, Failing, Failing], STRETCH);
    let failures = (2.25, VerdictKind::Failures, Some("1:a".to_owned()));
    assert_eq!(moves(&diagnosis)[1..], [(0.25, VerdictKind::Consumer, None), failures]);
}

#[test]
fn the_last_windows_of_a_run_confirm_the_verdict_of_the_whole_run() {
    let ended = |seconds: &[Phase]| {
        let mut diagnosis = warm();
        let at = follow(&mut diagnosis, seconds, STRETCH) + STRETCH;
        let (stages, queues) = sums(*seconds.last().unwrap());
        diagnosis.add(at, &stages, &queues, &[], true);
        let whole = diagnosis.whole(&[], None);
        assert_eq!(diagnosis.spans().last().unwrap().to_s, at as f64 / 1e9);
        (moves(&diagnosis)[1..].to_vec(), (whole.kind, whole.stage))
    };
    use Phase::{Failing, Fed, First, LaterStage};
    let failures = (VerdictKind::Failures, Some("1:a".to_owned()));
    let (strip, whole) = ended(&[Fed, Failing]);
    assert_eq!(whole, failures);
    assert_eq!(strip, [(0.25, VerdictKind::Consumer, None), (1.25, failures.0, failures.1)]);
    // The last windows do not agree with the verdict of the whole run, which the only other verdict does not explain either.
    let (strip, whole) = ended(&[Fed, LaterStage, First]);
    assert_eq!(whole, (VerdictKind::Stage, Some("2:b".to_owned())));
    assert_eq!(strip, [(0.25, whole.0, whole.1)]);
}

#[test]
fn warm_up_does_not_count_against_loading() {
    let mut diagnosis = run();
    let at = follow(&mut diagnosis, &[Phase::Silent; 20], 0);
    assert_eq!(diagnosis.whole(&[], None).kind, VerdictKind::TooLittle);
    assert_eq!(diagnosis.current().unwrap().sentence, "Not warmed up yet: nothing has been delivered.");
    follow(&mut diagnosis, &[Phase::Fed; 3], at);
    let whole = diagnosis.whole(&[], None);
    assert_eq!((whole.kind, whole.consumer_wait, whole.from_s), (VerdictKind::Consumer, Some(0.0), 20.25));
    assert_eq!(moves(&diagnosis)[1].0, 20.25);
}

#[test]
fn before_a_verdict_the_items_of_this_moment_are_stated_not_those_of_the_last_sums() {
    let diagnosis = run();
    let sink = QueueRow { elapsed: 41_000_000, puts: 10, gets: 10, ..QueueRow::default() }.figures(3);
    let whole = diagnosis.whole_now(&sink, &[], None);
    assert_eq!((whole.kind, whole.to_s), (VerdictKind::TooLittle, 0.041));
    assert_eq!(whole.sentence, "Not warmed up yet: samples delivered so far: 10, in 41.0 ms.");
    let diagnosis = warm();
    assert_eq!(diagnosis.whole_now(&sink, &[], None), diagnosis.whole(&[], None));
}

#[test]
fn a_run_without_a_complete_window_gets_one_verdict_for_all_of_it() {
    let mut diagnosis = run();
    let (stages, queues) = sums(Phase::First);
    diagnosis.add(STRETCH, &stages, &queues, &[], false);
    diagnosis.add(2 * STRETCH, &stages, &queues, &[], true);
    let whole = diagnosis.whole(&[], None);
    assert_eq!((whole.kind, whole.stage.as_deref()), (VerdictKind::Stage, Some("1:a")));
    let last = diagnosis.spans().pop().unwrap();
    assert_eq!((last.sentence, last.to_s), (whole.sentence, 0.5));
}

proptest! {
    #[test]
    fn spans_follow_each_other_without_gaps(seconds in prop::collection::vec(prop::sample::select(
        [Phase::Silent, Phase::Fed, Phase::First, Phase::LaterStage, Phase::Failing].as_slice()), 1..200)) {
        let mut diagnosis = run();
        let at = follow(&mut diagnosis, &seconds, 0);
        let (stages, queues) = sums(Phase::Fed);
        diagnosis.add(at + STRETCH, &stages, &queues, &[], true);
        let spans = diagnosis.spans();
        prop_assert_eq!(spans[0].from_s, 0.0);
        prop_assert_eq!(spans[spans.len() - 1].to_s, (at + STRETCH) as f64 / 1e9);
        for pair in spans.windows(2) {
            prop_assert_eq!(pair[0].to_s, pair[1].from_s);
            prop_assert!((pair[0].kind, &pair[0].stage) != (pair[1].kind, &pair[1].stage));
        }
    }
}
