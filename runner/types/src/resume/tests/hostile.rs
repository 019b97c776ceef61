//! States that no run has written, and large ones.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::resume::ranges::Range;
use crate::resume::*;
use crate::traversal::{NextVisits, Traversal};

/// A state of rank 0 of 2 after some of 100 samples.
fn valid() -> Value {
    let book = json!({
        "made": 5, "delivered": 4, "dropped": 1, "skipped": 0, "dead_lettered": 0, "discarded": 0, "left": 0
    });
    json!({
        "version": 1, "recipe": { "source": "1f" }, "count": 100, "selection": 1, "first_epoch": 3, "world": 2, "uneven": "keep",
        "ranks": { "0": {
            "epochs": [
                { "epoch": 4, "frontier": 50, "ended": 50 },
                { "epoch": 5, "frontier": 2, "settled": [[4, 3], [9, 1]], "children": { "7": ["2a"] } }
            ],
            "settled": book, "items": 5
        } },
        "before": { "made": 0, "delivered": 0, "dropped": 0, "skipped": 0, "dead_lettered": 0, "discarded": 0, "left": 0 }
    })
}

fn read(state: &Value) -> Result<Token, TokenFault> {
    Token::read(state.to_string().as_bytes())
}

fn shard(rank: u32, world: u32) -> Option<Shard> {
    Some(Shard { rank, world: NonZeroU32::new(world).unwrap(), uneven: Uneven::Keep })
}

#[test]
fn what_no_run_can_have_written_is_refused_with_what_was_found() {
    assert!(read(&valid()).is_ok());
    let of_rank = "/ranks/0/epochs/1";
    let cases = [
        ("/first_epoch", json!(u32::MAX), "rank 0 has begun epoch 4, and the run began with 4294967295"),
        ("/first_epoch", json!(5), "rank 0 has begun epoch 4, and the run began with 5"),
        (
            "/ranks/0/epochs",
            json!([{ "epoch": u32::MAX, "frontier": 0 }]),
            "rank 0 has begun epoch 4294967295, behind which none can follow",
        ),
        (
            "/ranks/0/epochs/0/ended",
            json!(u64::MAX),
            "rank 0 of 2 has settled 18446744073709551615 positions of epoch 4, and all ranks together get 100",
        ),
        (
            "/ranks/0/epochs/0",
            json!({ "epoch": 4, "frontier": 51, "ended": 51 }),
            "rank 0 of 2 has settled 51 positions of epoch 4, and all ranks together get 100",
        ),
        (
            of_rank,
            json!({ "epoch": 5, "frontier": 51 }),
            "rank 0 of 2 has settled 51 positions of epoch 5, and all ranks together get 100",
        ),
        (
            "/ranks/0/epochs/1/children",
            json!({ "50": ["1"] }),
            "rank 0 of 2 has settled 51 positions of epoch 5, and all ranks together get 100",
        ),
        (
            "/count",
            json!(19),
            "rank 0 of 2 has settled 50 positions of epoch 4, and all ranks together get 19",
        ),
        ("/ranks/0/settled/made", json!(6), "6 samples are not the sum of their outcomes"),
        ("/ranks/0/settled/delivered", json!(u64::MAX), "5 samples are not the sum of their outcomes"),
        (
            "/before",
            json!({
                "made": u64::MAX, "delivered": 0, "dropped": u64::MAX, "skipped": 0, "dead_lettered": 0, "discarded": 0, "left": 0,
            }),
            "18446744073709551615 settled samples are more than any run makes",
        ),
        ("/ranks", json!({ "2": valid()["ranks"]["0"] }), "rank 2 is not below 2"),
    ];
    for (place, value, what) in cases {
        let mut state = valid();
        *state.pointer_mut(place).unwrap() = value;
        assert_eq!(read(&state), Err(TokenFault::Damaged(what.to_owned())), "{place}");
    }
    let mut rest = valid();
    rest["rests"] = json!({ "4": [[0, 1, 20]] });
    assert_eq!(
        read(&rest),
        Err(TokenFault::Damaged(
            "rank 0 of 2 has settled 50 positions of epoch 4, and all ranks together get 20".to_owned()
        )),
        "fewer positions remain than are settled"
    );
}

#[test]
fn positions_beyond_the_data_are_refused_once_the_data_are_counted() {
    let mut state = valid();
    state["count"] = Value::Null;
    let start = StartPoint::new(read(&state).unwrap(), shard(0, 2)).unwrap();
    assert_eq!(start.check_count(99), Ok(()));
    let fault = start.check_count(98).unwrap_err().to_string();
    assert_eq!(
        fault,
        "the state is damaged: position 98 of an epoch is settled, and the source has 98 samples"
    );
    assert_eq!(start.for_other_data().check_count(98), Ok(()));
}

#[test]
fn a_number_beyond_the_data_ends_the_visits_of_an_epoch() {
    let mut state = valid();
    state["count"] = Value::Null;
    state["ranks"]["0"]["epochs"] = json!([{ "epoch": 3, "frontier": 0, "ended": 1_u64 << 40 }]);
    let start = StartPoint::new(read(&state).unwrap(), shard(0, 2)).unwrap();
    let settings = TraversalSettings { shard: shard(0, 2), ..TraversalSettings::IN_ORDER };
    let mut traversal = Traversal::new(100, settings).unwrap().from(&start);
    assert_eq!(traversal.total(), Some(50));
    let mut visits = 0;
    while let Some(next) = traversal.next_visits(7) {
        if let NextVisits::Visits { indexes, .. } = next {
            visits += indexes.len();
            assert!(indexes.iter().all(|index| *index < 100));
        }
    }
    assert_eq!(visits, 50);
}

#[test]
fn a_rank_among_billions_gets_its_own_positions_only() {
    let mut state = valid();
    state["world"] = json!(1);
    let start = StartPoint::new(read(&state).unwrap(), shard(7, u32::MAX)).unwrap();
    let epochs: Vec<u32> = start.epochs.keys().copied().collect();
    assert_eq!(epochs, [5]);
    // Of the 94 positions that are left, the eighth: 2, 3, 7, 8, 10, 11, 12, 13.
    let visits = start.epochs[&5].visits(100);
    assert_eq!((visits.len, visits.at(0)), (1, 13));
}

/// A state of `count` unsettled positions, each between two settled ones, and with settled samples.
fn large(count: u64) -> Value {
    let mut state = valid();
    state["count"] = json!(10 * count);
    let settled: Vec<Range> = (0..count).map(|number| (2 * number + 1, 1)).collect();
    let children: BTreeMap<String, [&str; 1]> =
        (0..count).map(|number| ((2 * number).to_string(), ["1"])).collect();
    state["world"] = json!(1);
    state["ranks"]["0"]["epochs"] =
        json!([{ "epoch": 5, "frontier": 0, "settled": settled, "children": children }]);
    state
}

/// Takes minutes where work grows with the square of the size.
#[test]
fn a_state_of_hundreds_of_thousands_of_ranges_costs_no_more_than_its_size() {
    const COUNT: u64 = 200_000;
    let token = read(&large(COUNT)).unwrap();
    let start = StartPoint::new(token.clone(), None).unwrap();
    assert_eq!(start.children().last(), Some((5, COUNT - 1, vec![1])));
    let share = &start.epochs[&5];
    assert!((0..2 * COUNT).all(|position| share.may_visit(position) == (position % 2 == 0)));
    let mut traversal = Traversal::new(10 * COUNT, TraversalSettings::IN_ORDER).unwrap().from(&start);
    (1..COUNT).for_each(|page| traversal.grow(10 * COUNT + page));
    let settled = (0..COUNT).map(|visit| (3 * visit, 1)).collect();
    let children = (0..COUNT).map(|visit| (3 * visit + 1, vec![7])).collect();
    let progress = EpochProgress { epoch: 5, settled, children, ended: None };
    let after = start.after(&Progress { epochs: vec![progress], ..Progress::default() });
    let state = &after.ranks[&0].epochs[0];
    assert_eq!((state.frontier, state.settled.len() as u64, state.top()), (2, 266_666, 799_999));
    assert_eq!(state.children.len() as u64, 266_666);
    // A third rank gets each third of these.
    let dealt = StartPoint::new(token, shard(2, 3)).unwrap();
    assert_eq!(dealt.children().count() as u64, COUNT / 3);
    let tiny: Vec<Value> = (4..100_004).map(|epoch| json!({ "epoch": epoch, "frontier": 1 })).collect();
    let mut state = valid();
    state["ranks"]["0"]["epochs"] = json!(tiny);
    let start = StartPoint::new(read(&state).unwrap(), shard(0, 2)).unwrap();
    let epochs = (4..100_004).map(|epoch| EpochProgress { epoch, ..EpochProgress::default() }).collect();
    assert_eq!(start.after(&Progress { epochs, ..Progress::default() }).ranks[&0].epochs.len(), 100_000);
}

#[test]
fn ranges_that_no_state_can_hold_are_refused_instead_of_dealt() {
    let token = read(&large(300_000)).unwrap();
    assert_eq!(StartPoint::new(token, shard(0, 2)), Err(TokenFault::TooMany));
}

fn numbers(ranges: &[Range]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|(first, count)| *first..first + count).collect()
}

fn ranges(numbers: &BTreeSet<u64>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => ranges.push((*number, 1)),
        }
    }
    ranges
}

proptest! {
    /// Numbers and visits are lists, which are searched from their beginning each time.
    #[test]
    fn a_state_after_a_run_is_that_of_plain_lists(
        before in prop::collection::btree_set(0_u64..60, 0..40), known in prop::collection::btree_set(0_u64..60, 0..10),
        settled in prop::collection::btree_set(0_u64..60, 0..40), children in prop::collection::btree_set(0_u64..60, 0..20),
        ended: bool,
    ) {
        let mut token = Token { first_epoch: 5, ..Token::new(BTreeMap::new(), &TraversalSettings::IN_ORDER) };
        let frontier = (0..).find(|number| !before.contains(number)).unwrap();
        let known: BTreeMap<u64, Vec<Hash>> =
            known.iter().filter(|number| !before.contains(number)).map(|number| (*number, vec![Hash(1)])).collect();
        let above = ranges(&before.iter().copied().filter(|number| *number > frontier).collect());
        let epoch = EpochState { epoch: 5, frontier, settled: above, ended: None, children: known.clone() };
        token.ranks.insert(0, RankState { epochs: vec![epoch], ..RankState::default() });
        prop_assert_eq!(Token::read(token.to_json().as_bytes()), Ok(token.clone()));
        let start = StartPoint::new(token, None).unwrap();
        let visits: Vec<u64> = (0..200).filter(|number| !before.contains(number)).collect();
        let children: Vec<u64> = children.difference(&settled).copied().collect();
        let progress = EpochProgress {
            epoch: 5,
            settled: ranges(&settled),
            ended: ended.then_some(60),
            children: children.iter().map(|visit| (*visit, vec![2])).collect(),
        };
        let after = start.after(&Progress { epochs: vec![progress], ..Progress::default() });
        let found = &after.ranks[&0].epochs[0];
        let all: BTreeSet<u64> =
            before.iter().copied().chain(settled.iter().map(|visit| visits[*visit as usize])).collect();
        let expected: BTreeSet<u64> = (0..found.frontier).chain(numbers(&found.settled)).collect();
        prop_assert_eq!(expected, all.clone());
        prop_assert!(!all.contains(&found.frontier));
        prop_assert_eq!(&found.settled, &ranges(&all.iter().copied().filter(|number| *number > found.frontier).collect()));
        prop_assert_eq!(found.ended, ended.then(|| visits[59] + 1));
        let mut left = known;
        left.extend(children.iter().map(|visit| (visits[*visit as usize], vec![Hash(2)])));
        left.retain(|number, _| !all.contains(number));
        prop_assert_eq!(&found.children, &left);
    }
}

#[test]
fn a_state_that_is_too_large_is_no_text() {
    let token = Token::new(BTreeMap::new(), &TraversalSettings::IN_ORDER);
    let text = token.to_json();
    assert_eq!(token.to_json_within(text.len() as u64), Ok(text.clone()));
    let most = text.len() as u64 - 1;
    assert_eq!(token.to_json_within(most), Err(StateTooLarge(most)));
}
