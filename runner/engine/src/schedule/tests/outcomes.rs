//! Limits of failures at the end of an epoch, samples that their source does not pass on, and errors that end a run.

use std::num::NonZeroU32;

use penstock_types::resume::{DataSet, EpochState, RankState, StartPoint, Token};
use penstock_types::run::Disposition;
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};

use super::*;
use crate::chunk::{Chunk, Outcome};

/// Settings of a source that is read in order.
fn in_order(epochs: u32) -> TraversalSettings {
    TraversalSettings { epochs: NonZeroU32::new(epochs), ..TraversalSettings::IN_ORDER }
}

/// One stage that keeps the order, and limits as in a run of a document without `max_failures`.
fn usual() -> ChainShape {
    let stages = vec![stage(1, 2, pipe(2, Order::Input, RunsOn::AnyThread))];
    ChainShape { max_failures: Some(FailureLimit::Usual), all_may_fail_before: 0, ..shape(stages, 3) }
}

/// Performs all events until the run is over.
fn finished(shape: ChainShape, op: fn(usize, Item) -> Output, chunks: Vec<Produced>) -> Driver {
    let mut driver = Driver::new(shape, chunks, 2);
    driver.op = op;
    for step in 0.. {
        assert!(step < 100_000, "the run does not end");
        if driver.schedule.is_over() {
            break;
        }
        driver.step(step, true);
    }
    assert!(driver.ledger().balanced, "{:#?}", driver.ledger());
    driver
}

fn damaged() -> Fault {
    Fault::new(FailureClass::Data, "damaged")
}

/// An op that fails the samples that `is_failing` selects.
fn failing(item: Item, is_failing: fn(&Sample) -> bool) -> Output {
    let (failed, kept): (Vec<Sample>, Vec<Sample>) = into_samples(item).into_iter().partition(is_failing);
    let items = Items::Many(kept.into_iter().map(Item::Sample).collect());
    Output { items, ..Output::all_failed(failed, &damaged()) }
}

fn ten_fail(_: usize, item: Item) -> Output {
    failing(item, |sample| sample.origin.index < 10)
}

fn nine_fail(_: usize, item: Item) -> Output {
    failing(item, |sample| sample.origin.index < 9)
}

fn ten_fail_later(_: usize, item: Item) -> Output {
    failing(item, |sample| sample.origin.index < 10 && sample.origin.epoch == 1)
}

fn none_fail(_: usize, item: Item) -> Output {
    failing(item, |_| false)
}

fn epochs(count: u64, epochs: u32) -> Vec<Produced> {
    let chunks = (0..epochs).map(|epoch| produced(samples(0..count, epoch)));
    chunks.flat_map(|chunk| [chunk, Produced::EpochEnd]).collect()
}

#[test]
fn ten_failed_samples_of_a_hundred_end_the_run_behind_their_epoch() {
    let said = "10 of 100 samples failed, which is more than 5 %; to permit it, set `max_failures`, such as `{\"rate\": 0.2}` or `null`";
    let run = finished(usual(), ten_fail, epochs(100, 1));
    assert!(run.schedule.error().is_some_and(|error| error.ends_with(said)), "{:?}", run.schedule.error());
    assert_eq!(run.delivered.len(), 90, "what is made is delivered");

    let run = finished(usual(), ten_fail, epochs(100, 50));
    assert_eq!(run.schedule.error(), Some(format!("epoch 0: {said}").as_str()));
    assert!(run.delivered.len() < 300, "the run does not go on for all epochs");

    let run = finished(usual(), ten_fail_later, epochs(100, 50));
    assert_eq!(run.schedule.error(), Some(format!("epoch 1: {said}").as_str()));
}

#[test]
fn fewer_than_ten_failed_samples_and_shares_of_five_percent_do_not_end_a_run() {
    for (op, count) in [(nine_fail as fn(usize, Item) -> Output, 100), (nine_fail, 12), (ten_fail, 200)] {
        let run = finished(usual(), op, epochs(count, 1));
        assert_eq!(run.schedule.error(), None, "of {count}");
    }
    let unlimited = ChainShape { max_failures: None, ..usual() };
    assert_eq!(finished(unlimited, ten_fail, epochs(100, 2)).schedule.error(), None);
    // Epochs that an earlier run has begun lack the samples that it has delivered.
    let resumed = ChainShape { all_may_fail_before: 1, ..usual() };
    let run = finished(resumed, ten_fail, epochs(100, 1));
    assert!(
        run.schedule.error().is_some_and(|error| error.starts_with("run: ")),
        "the run itself has a limit"
    );
}

/// Outcomes of a source's samples by number: every fourth is damaged, every fourth is dropped.
fn outcome(index: u64) -> Option<Outcome> {
    match index % 4 {
        1 => Some(Outcome::Failed(damaged())),
        2 => Some(Outcome::Dropped),
        _ => None,
    }
}

/// Chunks of a source from a place on.
fn chunks(
    count: u64,
    settings: TraversalSettings,
    start: &StartPoint,
    outcome: impl Fn(u64) -> Option<Outcome>,
) -> Vec<Produced> {
    let mut traversal = Traversal::new(count, settings).unwrap().from(start);
    let next = || {
        Some(match traversal.next_visits(5)? {
            NextVisits::EpochEnd => Produced::EpochEnd,
            NextVisits::Visits { epoch, indexes } => {
                let sample = |index: u64| {
                    let [sample] = <[Sample; 1]>::try_from(samples(index..index + 1, epoch)).unwrap();
                    (sample, outcome(index))
                };
                Produced::Samples(indexes.into_iter().map(sample).collect::<Chunk>())
            }
        })
    };
    std::iter::from_fn(next).collect()
}

fn fresh(settings: &TraversalSettings) -> StartPoint {
    StartPoint::new(Token::new(BTreeMap::new(), settings), None).unwrap()
}

fn state(driver: &mut Driver, start: &StartPoint, count: u64) -> RankState {
    let data = DataSet { count: Some(count), ..DataSet::default() };
    let mut token = start.after(&driver.schedule.progress(data, u64::MAX).unwrap());
    token.ranks.remove(&0).unwrap()
}

#[test]
fn samples_that_a_source_does_not_pass_on_are_counted_and_settled() {
    for (source_on_error, [skipped, dead_lettered]) in
        [(OnError::Skip, [3, 0]), (OnError::DeadLetter, [0, 3])]
    {
        let settings = in_order(1);
        let start = fresh(&settings);
        let whole = ChainShape { source_on_error, ..usual() };
        let mut run = finished(whole, none_fail, chunks(12, settings, &start, outcome));
        assert_eq!(run.schedule.error(), None);
        assert_eq!(keys(std::mem::take(&mut run.delivered)).concat(), ["0", "3", "4", "7", "8", "11"]);
        let ledger = run.ledger();
        let source = &ledger.stages[0];
        assert_eq!((source.made, source.out, source.dropped), (12, 6, 3));
        assert_eq!([source.skipped, source.dead_lettered], [skipped, dead_lettered]);

        let disposition = if skipped > 0 { Disposition::Skipped } else { Disposition::DeadLettered };
        let failed = &run.schedule.failures.tasks;
        assert!(failed.iter().all(|task| task.disposition == disposition && task.samples() == 1));
        assert_eq!(
            failed.iter().flat_map(FailedTask::origins).map(|origin| origin.index).collect::<Vec<_>>(),
            [1, 5, 9]
        );
        assert_eq!(failed[0].in_words(), "stage `0`: sample `1` failed: damaged");

        let settled = state(&mut run, &start, 12);
        let done = EpochState { epoch: 0, frontier: 12, ended: Some(12), ..EpochState::default() };
        assert_eq!(settled.epochs, [done]);
        let book = &settled.settled;
        assert_eq!(
            (book.delivered, book.dropped, book.skipped, book.dead_lettered),
            (6, 3, skipped, dead_lettered)
        );
    }
}

#[test]
fn damaged_samples_of_a_source_count_for_the_limits_of_the_run() {
    let settings = in_order(1);
    let run = |max_failures, count, outcome: fn(u64) -> Option<Outcome>| {
        let whole = ChainShape { max_failures, ..usual() };
        let run = finished(whole, none_fail, chunks(count, settings, &fresh(&settings), outcome));
        run.schedule.error().map(str::to_owned)
    };
    assert_eq!(run(Some(FailureLimit::Count(3)), 12, outcome), None);
    let error = run(Some(FailureLimit::Count(2)), 12, outcome).unwrap();
    assert_eq!(error, "run: 3 failed samples, `max_failures` allows 2");
    let error = run(Some(FailureLimit::Usual), 40, outcome).unwrap();
    assert!(error.contains("10 of 40 samples failed, which is more than 5 %"), "{error}");
    assert_eq!(run(Some(FailureLimit::Usual), 36, outcome), None, "9 samples are damaged");
    let error = run(None, 4, |_| Some(Outcome::Failed(damaged()))).unwrap();
    assert_eq!(error, "all 4 samples of epoch 0 failed, the first in stage `0`: sample `0` failed: damaged");
    assert_eq!(run(None, 4, |_| Some(Outcome::Dropped)), None, "samples may all be dropped");
}

/// An op for which the fourth sample reveals an error that concerns all samples.
fn fatal(_: usize, item: Item) -> Output {
    let output = failing(item, |sample| sample.origin.index == 3);
    let fatal = (!output.failed.is_empty()).then(|| "the token has expired".to_owned());
    Output { fatal, ..output }
}

#[test]
fn a_sample_whose_failure_ends_the_run_is_tried_again_by_a_resumed_run() {
    for on_error in [OnError::Skip, OnError::DeadLetter, OnError::Fail] {
        let settings = in_order(1);
        let start = fresh(&settings);
        let mut whole = usual();
        whole.nodes.stages[0].on_error = on_error;
        let mut run = finished(whole, fatal, chunks(4, settings, &start, |_| None));
        assert_eq!(run.schedule.error(), Some("stage `1`: the token has expired"));
        let settled = state(&mut run, &start, 4);
        assert_eq!((settled.epochs[0].frontier, settled.settled.delivered), (3, 3), "{on_error:?}");
        assert_eq!((settled.settled.skipped, settled.settled.dead_lettered), (0, 0), "{on_error:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_stopped_run_and_the_next_one_account_for_each_sample_of_a_source_once(
        outcomes in prop::collection::vec(0_u8..4, 1..40), epochs in 1_u32..3, stop in 0_usize..150,
        choices in prop::collection::vec(any::<usize>(), 100),
    ) {
        let settings = in_order(epochs);
        let count = outcomes.len() as u64;
        let of = |index: u64| match outcomes[index as usize] {
            0 => Some(Outcome::Failed(damaged())),
            1 => Some(Outcome::Dropped),
            _ => None,
        };
        let unlimited = || ChainShape { max_failures: None, all_may_fail_before: u32::MAX, ..usual() };
        let (mut choices, mut delivered, mut start) = (choices.into_iter().cycle(), Vec::new(), fresh(&settings));
        let (mut failed, mut dropped) = (0, 0);
        for most in [stop, usize::MAX] {
            let mut driver = Driver::new(unlimited(), chunks(count, settings, &start, of), 2);
            driver.op = none_fail;
            for step in 0..most {
                if driver.schedule.is_over() {
                    break;
                }
                driver.step(choices.next().unwrap_or(0) + step, true);
                prop_assert!(step < 100_000, "the run does not end");
            }
            prop_assert!(driver.ledger().balanced);
            let token = start.after(&driver.schedule.progress(DataSet { count: Some(count), ..DataSet::default() }, u64::MAX).unwrap());
            let total = driver.ledger().total;
            failed += total.skipped;
            dropped += total.dropped;
            prop_assert_eq!(token.ranks[&0].settled.skipped, failed, "earlier runs are included");
            delivered.extend(driver.delivered.into_iter().flat_map(into_samples).map(|sample| (sample.origin.epoch, sample.origin.index)));
            start = StartPoint::new(token, None).unwrap();
        }
        delivered.sort_unstable();
        let all = (0..epochs).flat_map(|epoch| (0..count).map(move |index| (epoch, index)));
        prop_assert_eq!(delivered, all.filter(|(_, index)| of(*index).is_none()).collect::<Vec<_>>());
        let number = |outcome: u8| outcomes.iter().filter(|other| **other == outcome).count() as u64 * u64::from(epochs);
        prop_assert_eq!((failed, dropped), (number(0), number(1)));
    }
}
