//! Compares the states of ranks with sets of positions.

mod hostile;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::traversal::{NextVisits, Shard, Traversal, TraversalSettings};

/// A rank of a run, and what it has settled.
struct Rank {
    start: StartPoint,
    /// Visits by epoch.
    visits: BTreeMap<u32, Vec<u64>>,
    /// Epochs that the source has ended.
    ended: BTreeSet<u32>,
    count: u64,
    /// Visits that are settled, by epoch.
    settled: BTreeMap<u32, BTreeSet<usize>>,
}

impl Rank {
    fn begin(token: &Token, shard: Shard, settings: TraversalSettings, count: u64) -> (Self, Traversal) {
        let token = Token::read(token.to_json().as_bytes()).unwrap();
        let start = StartPoint::new(token, Some(shard)).unwrap();
        let settings = TraversalSettings { shard: Some(shard), ..settings };
        let traversal = Traversal::new(count, settings).unwrap().from(&start);
        let (visits, settled) = (BTreeMap::new(), BTreeMap::new());
        (Self { start, visits, ended: BTreeSet::new(), count, settled }, traversal)
    }

    /// Visits at most `most` entries.
    fn visit(&mut self, traversal: &mut Traversal, mut most: usize) {
        let mut epoch = self.start.epoch;
        while most > 0 {
            match traversal.next_visits(most.min(7)) {
                Some(NextVisits::Visits { epoch: of, indexes }) => {
                    epoch = of;
                    most -= indexes.len();
                    self.visits.entry(of).or_default().extend(indexes);
                }
                Some(NextVisits::EpochEnd) => {
                    self.ended.insert(epoch);
                    epoch += 1;
                }
                None => {
                    self.ended.insert(epoch);
                    return;
                }
            }
        }
    }

    fn token(&self) -> Token {
        let epochs = self.visits.iter().map(|(epoch, visits)| {
            let settled = self.settled.get(epoch).cloned().unwrap_or_default();
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for visit in settled {
                let visit = visit as u64;
                match ranges.last_mut() {
                    Some((first, number)) if *first + *number == visit => *number += 1,
                    _ => ranges.push((visit, 1)),
                }
            }
            let ended = self.ended.contains(epoch).then_some(visits.len() as u64);
            EpochProgress { epoch: *epoch, settled: ranges, ended, children: Vec::new() }
        });
        let mut epochs: Vec<EpochProgress> = epochs.collect();
        let is_settled = |epoch: &EpochProgress| {
            epoch
                .ended
                .is_some_and(|visits| visits == epoch.settled.iter().map(|(_, count)| count).sum::<u64>())
        };
        while epochs.len() > 1 && is_settled(&epochs[0]) && is_settled(&epochs[1]) {
            epochs.remove(0);
        }
        self.start.after(&Progress {
            epochs,
            data: DataSet { count: Some(self.count), ..DataSet::default() },
            ..Progress::default()
        })
    }
}

fn world(ranks: u32) -> NonZeroU32 {
    NonZeroU32::new(ranks).unwrap()
}

fn fresh(ranks: u32, uneven: Uneven) -> Token {
    let shard = Some(Shard { rank: 0, world: world(ranks), uneven });
    let recipe = BTreeMap::from([("source".to_owned(), "1f".to_owned())]);
    Token::new(recipe, &TraversalSettings { shard, ..TraversalSettings::IN_ORDER })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Runs stop at random places and go on with other numbers of ranks. In the end each position of each epoch was settled once.
    #[test]
    fn ranks_of_any_number_settle_each_position_once(
        count in 0_u64..200, epochs in 1_u32..4, shuffle: bool, limit in proptest::option::of(0_u64..250),
        worlds in proptest::collection::vec(1_u32..9, 1..5), lock_step: bool, seed: u64,
        uneven in prop_oneof![Just(Uneven::Drop), Just(Uneven::Keep)],
    ) {
        let settings = TraversalSettings { shuffle, limit, epochs: Some(world(epochs)), seed, ..TraversalSettings::IN_ORDER };
        let mut token = Token { limit, ..fresh(worlds[0], uneven) };
        let mut seen: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        let mut random = seed;
        let mut next = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most.max(1)
        };
        for (number, ranks) in worlds.iter().enumerate() {
            let is_last = number + 1 == worlds.len();
            let per_rank = count * u64::from(epochs) / u64::from(*ranks);
            let common = next(per_rank + 2);
            let mut states = Vec::new();
            for rank in 0..*ranks {
                let shard = Shard { rank, world: world(*ranks), uneven };
                let (mut rank, mut traversal) = Rank::begin(&token, shard, settings, count);
                let (total, lens) = (traversal.total(), traversal.lens());
                // Ranks may drift apart by less than an epoch.
                let drift = if lock_step { 0 } else { next(count / u64::from(*ranks) / 2 + 1) };
                rank.visit(&mut traversal, if is_last { usize::MAX } else { (common + drift) as usize });
                if is_last {
                    prop_assert_eq!(total, Some(rank.visits.values().map(|visits| visits.len() as u64).sum()));
                    let each = lens.into_iter().flatten();
                    let mut each: Vec<u64> = each.flat_map(|(len, epochs)| (0..epochs).map(move |_| len)).collect();
                    let mut visited: Vec<u64> = rank.visits.values().map(|visits| visits.len() as u64).collect();
                    for lens in [&mut each, &mut visited] {
                        lens.retain(|len| *len > 0);
                        lens.sort_unstable();
                    }
                    prop_assert_eq!(each, visited);
                }
                let in_flight = if is_last || lock_step { 0 } else { 12 };
                let all: usize = rank.visits.values().map(Vec::len).sum();
                let mut number = 0;
                for (epoch, visits) in &rank.visits {
                    for (visit, index) in visits.iter().enumerate() {
                        number += 1;
                        if number + in_flight > all && next(2) == 0 {
                            continue;
                        }
                        rank.settled.entry(*epoch).or_default().insert(visit);
                        *seen.entry((*epoch, *index)).or_default() += 1;
                    }
                }
                states.push(rank.token());
            }
            let merged = Token::merge(states);
            prop_assert!(merged.is_ok(), "{:?}", merged);
            token = merged.unwrap();
            let next_world = worlds.get(number + 1).copied().unwrap_or(1);
            let shard = Shard { rank: 0, world: world(next_world), uneven };
            // Epochs of a few samples may be more than one apart.
            if let Err(TokenFault::Apart(_)) = StartPoint::new(token.clone(), Some(shard)) {
                return Ok(());
            }
        }
        let entries = limit.map_or(count, |limit| limit.min(count));
        // Each world may cut the last positions of an epoch.
        let cut: u32 = if uneven == Uneven::Drop { worlds.iter().map(|ranks| ranks - 1).sum() } else { 0 };
        let left = entries * u64::from(epochs) - seen.len() as u64;
        prop_assert!(left <= u64::from(cut * epochs), "{} are left", left);
        prop_assert!(seen.values().all(|times| *times == 1), "{:?}", seen);
    }

    #[test]
    fn a_rank_of_the_same_world_continues_its_own_sequence(
        count in 1_u64..300, ranks in 1_u32..6, stop in 0_usize..100, holes in proptest::collection::vec(0_usize..100, 0..9),
        shuffle: bool, uneven in prop_oneof![Just(Uneven::Drop), Just(Uneven::Keep)],
    ) {
        let settings = TraversalSettings { shuffle, epochs: Some(world(2)), seed: 5, ..TraversalSettings::IN_ORDER };
        for rank in 0..ranks {
            let shard = Shard { rank, world: world(ranks), uneven };
            let (mut whole, mut traversal) = Rank::begin(&fresh(ranks, uneven), shard, settings, count);
            whole.visit(&mut traversal, usize::MAX);
            let (mut first, mut traversal) = Rank::begin(&fresh(ranks, uneven), shard, settings, count);
            first.visit(&mut traversal, stop);
            let mut expected: Vec<(u32, u64)> = Vec::new();
            for (epoch, visits) in &whole.visits {
                for (visit, index) in visits.iter().enumerate() {
                    let done = first.visits.get(epoch).is_some_and(|visits| visit < visits.len()) && !holes.contains(&visit);
                    if done {
                        first.settled.entry(*epoch).or_default().insert(visit);
                    } else {
                        expected.push((*epoch, *index));
                    }
                }
            }
            let (mut second, mut traversal) = Rank::begin(&first.token(), shard, settings, count);
            second.visit(&mut traversal, usize::MAX);
            let found: Vec<(u32, u64)> =
                second.visits.iter().flat_map(|(epoch, visits)| visits.iter().map(|index| (*epoch, *index))).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}", number: u64, step in 0_u64..3, count in proptest::option::of(any::<u64>())) {
        prop_assert!(Token::read(text.as_bytes()).is_err());
        let mut token = fresh(2, Uneven::Keep);
        token.rests.insert(0, Rest(vec![Stride(number, step, count), Stride(number, 1, None)]));
        let state = EpochState { frontier: number, settled: vec![(number / 2, number)], ..EpochState::begun(0) };
        token.ranks.insert(0, RankState { epochs: vec![state], ..RankState::default() });
        token.ranks.insert(1, RankState::default());
        if let Ok(token) = Token::read(token.to_json().as_bytes()) {
            for ranks in 1..4 {
                let shard = Shard { rank: 0, world: world(ranks), uneven: Uneven::Keep };
                if let Ok(start) = StartPoint::new(token.clone(), Some(shard)) {
                    let settings = TraversalSettings { shard: Some(shard), ..TraversalSettings::IN_ORDER };
                    let mut traversal = Traversal::new(1 << 40, settings).unwrap().from(&start);
                    let _visits = traversal.next_visits(10);
                }
            }
        }
    }
}

#[test]
fn a_state_with_256_samples_in_flight_has_at_most_16_kib() {
    let shard = Shard { rank: 3, world: world(8), uneven: Uneven::Drop };
    let start = StartPoint::new(fresh(8, Uneven::Drop), Some(shard)).unwrap();
    let settled = std::iter::once((0, 100_000_000)).chain((0..255).map(|hole| (100_000_001 + 2 * hole, 1)));
    let epochs = vec![EpochProgress { settled: settled.collect(), ..EpochProgress::default() }];
    let token = start.after(&Progress { epochs, ..Progress::default() });
    assert!(token.to_json().len() <= 16 << 10, "{} bytes", token.to_json().len());
    assert_eq!(Token::read(token.to_json().as_bytes()), Ok(token));
}

#[test]
fn states_of_other_runs_are_refused_with_what_differs() {
    let token = |rank: u32, digest: &str| {
        let shard = Shard { rank, world: world(2), uneven: Uneven::Drop };
        let recipe = BTreeMap::from([("stage `decode`".to_owned(), digest.to_owned())]);
        StartPoint::new(Token { recipe, ..fresh(2, Uneven::Drop) }, Some(shard))
            .unwrap()
            .after(&Progress::default())
    };
    let refused = |states: Vec<Token>| Token::merge(states).unwrap_err().to_string();
    assert_eq!(
        refused(vec![token(0, "1"), token(1, "2")]),
        "the state belongs to another run: stage `decode` differs"
    );
    assert_eq!(
        refused(vec![token(1, "1"), token(1, "1")]),
        "two of the states belong to rank 1; merge one state of each rank"
    );
    let alone = StartPoint::new(token(1, "1"), None).unwrap_err().to_string();
    assert_eq!(
        alone,
        "the state has only rank 1 of 2; merge the states of all ranks before they are dealt to another number of ranks"
    );
    let version = token(0, "1").to_json().replace("\"version\":1", "\"version\":2");
    assert_eq!(Token::read(version.as_bytes()), Err(TokenFault::Version(2)));
}

#[test]
fn settled_children_go_to_the_rank_that_gets_their_position() {
    let start = StartPoint::new(fresh(1, Uneven::Keep), None).unwrap();
    let epoch = EpochProgress {
        settled: vec![(0, 4), (5, 2)],
        children: vec![(4, vec![17]), (9, vec![u64::MAX])],
        ..EpochProgress::default()
    };
    let token = start.after(&Progress { epochs: vec![epoch], ..Progress::default() });
    assert_eq!(
        StartPoint::new(token.clone(), None).unwrap().children().collect::<Vec<_>>(),
        [(0, 0, vec![17]), (0, 3, vec![u64::MAX])]
    );
    let mut found = BTreeMap::new();
    for rank in 0..3 {
        let shard = Shard { rank, world: world(3), uneven: Uneven::Keep };
        let start = StartPoint::new(token.clone(), Some(shard)).unwrap();
        let visits = start.epochs[&0].visits(100);
        found.extend(start.children().map(|(_, visit, hashes)| (visits.at(visit), hashes)));
    }
    assert_eq!(found, BTreeMap::from([(4, vec![17]), (9, vec![u64::MAX])]));
}
