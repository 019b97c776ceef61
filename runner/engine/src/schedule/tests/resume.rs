//! Runs that stop at any moment and go on with other numbers of ranks deliver together what one run delivers.

use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_types::ledger::RunBook;
use penstock_types::resume::{
    DataSet, Kept, LEAST_EPOCH_BYTES, LEAST_RANGE_BYTES, Progress, StartPoint, Token, TokenFault,
};
use penstock_types::traversal::{
    Mixture, NextVisits, Part, Pick, Shard, Stop, Traversal, TraversalSettings, Uneven,
};

use super::routes::{Flat, any_parts, routed_samples};
use super::*;

/// Results of a stage for a sample, as a function of its origin.
fn made_of(stage: usize, sample: Sample) -> Result<Vec<Sample>, Sample> {
    let Origin { epoch, index, path, .. } = sample.origin;
    let hash = [u64::from(epoch), index, path].iter().fold(stage as u64 + 7, |hash, part| {
        (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    });
    let child = |number: u64| {
        let mut child = sample.clone();
        child.origin.path = (path ^ (number + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        child
    };
    match hash % 12 {
        0 => Ok(Vec::new()),
        1 => Err(sample),
        2 => Ok((0..3).map(child).collect()),
        _ => Ok(vec![sample]),
    }
}

fn op(stage: usize, item: Item) -> Output {
    outcomes(item, |sample| made_of(stage, sample))
}

/// An op without fan-out.
fn one_to_one(stage: usize, item: Item) -> Output {
    outcomes(item, |sample| match made_of(stage, sample.clone()) {
        Ok(made) if made.len() > 1 => Ok(vec![sample]),
        made => made,
    })
}

fn outcomes(item: Item, made_of: impl Fn(Sample) -> Result<Vec<Sample>, Sample>) -> Output {
    let is_batch = matches!(item, Item::Batch(_));
    let (mut output, mut kept) = (Output::default(), Vec::new());
    for sample in into_samples(item) {
        match made_of(sample) {
            Ok(made) if made.is_empty() => output.dropped += 1,
            Ok(made) => kept.extend(made),
            Err(sample) => {
                output.failed.push(Failed { sample, fault: Fault::new(FailureClass::Data, "odd") })
            }
        }
    }
    output.items = match (is_batch, kept.len()) {
        (_, 0) => Items::None,
        (true, _) => Items::One(Item::Batch(kept)),
        (false, 1) => Items::One(Item::Sample(kept.remove(0))),
        (false, _) => Items::Many(kept.into_iter().map(Item::Sample).collect()),
    };
    output
}

/// What a run without a stop delivers of one entry, with the number of its samples that fail.
fn delivered_of(stages: &[StageShape], sample: Sample) -> (Vec<Sample>, u64) {
    let (mut samples, mut failed) = (vec![sample], 0);
    for (position, stage) in stages.iter().enumerate() {
        if matches!(stage.work, StageRule::Op(PipeRule { .. })) {
            let made = samples.into_iter().map(|sample| made_of(position, sample));
            samples = made
                .flat_map(|made| {
                    made.unwrap_or_else(|_| {
                        failed += 1;
                        Vec::new()
                    })
                })
                .collect();
        }
    }
    (samples, failed)
}

/// An op that packs parts of samples into rows of four, and saves its state.
#[derive(Debug, Default)]
pub(super) struct Packer {
    open: Vec<String>,
    last: Origin,
    held: u64,
    /// Set if `finish` fails.
    fails: bool,
}

impl Packer {
    pub(super) fn load(state: &[u8]) -> Self {
        if state.is_empty() {
            return Self::default();
        }
        let text = str::from_utf8(state).unwrap();
        let mut lines = text.lines();
        let place: Vec<u64> =
            lines.next().unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
        let last = Origin { path: place[2], ..Origin::at(place[0] as u32, place[1]) };
        Self { open: lines.map(str::to_owned).collect(), last, ..Self::default() }
    }

    fn save(&mut self, rows: Vec<Vec<String>>) -> Output {
        let Origin { epoch, index, path, .. } = self.last;
        let saved = match self.open.is_empty() {
            true => Vec::new(),
            false => format!("{epoch} {index} {path}\n{}", self.open.join("\n")).into_bytes(),
        };
        let row = |(row, number): (Vec<String>, u64)| {
            let mut sample = Sample::new(row.join(" "), self.last);
            sample.origin.path = (path ^ (number + 5)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            Item::Sample(sample)
        };
        let items = Items::Many(rows.into_iter().zip(0..).map(row).collect());
        Output {
            items,
            dropped: std::mem::take(&mut self.held),
            saved: Some(saved.into()),
            ..Output::default()
        }
    }

    pub(super) fn apply(&mut self, sample: Sample) -> Output {
        self.last = sample.origin;
        let parts = sample.origin.index % 7;
        if parts == 0 {
            return Output { dropped: 1, held: self.held, ..Output::default() };
        }
        let mut rows = Vec::new();
        for part in 0..parts {
            self.open.push(format!("{}/{part}", sample.key));
            if self.open.len() == 4 {
                rows.push(std::mem::take(&mut self.open));
            }
        }
        if rows.is_empty() {
            self.held += 1;
            return Output { held: self.held, ..Output::default() };
        }
        self.save(rows)
    }

    pub(super) fn finish(&mut self) -> Output {
        if self.fails {
            let fault = Fault::new(FailureClass::Data, "odd");
            let failed = Output::all_failed([Sample::new("finish", self.last)], &fault);
            return Output { saved: Some([].into()), ..failed };
        }
        let rest = std::mem::take(&mut self.open);
        // Several rows, of which some may be handed out before a stop.
        let rows = rest.chunks(2).map(<[String]>::to_vec).collect();
        self.save(rows)
    }
}

/// A source whose samples have numbers.
#[derive(Clone, Debug)]
struct Data {
    settings: TraversalSettings,
    count: u64,
    /// Numbers of samples of its shards; empty for a source without.
    shards: Arc<[u64]>,
    mixture: Option<Mixture>,
}

impl Data {
    fn sample(&self, epoch: u32, index: u64) -> Sample {
        let [mut sample] =
            <[Sample; 1]>::try_from(routed_samples(index..index + 1, epoch)).expect("one index");
        if let Some(mixture) = &self.mixture {
            let draw = mixture.clone().at(index);
            sample.key = format!("{} of {} in pass {}", draw.position, draw.part, draw.pass).into();
        }
        sample
    }

    fn set(&self) -> DataSet {
        DataSet { count: Some(self.count), ..DataSet::default() }
    }

    fn traversal(&self, shard: Option<Shard>) -> Traversal {
        let settings = TraversalSettings { shard, ..self.settings };
        Traversal::in_units(self.count, self.shards.clone(), settings).unwrap()
    }

    fn chunks(&self, mut traversal: Traversal) -> Vec<Produced> {
        let next = || {
            Some(match traversal.next_visits(5)? {
                NextVisits::EpochEnd => Produced::EpochEnd,
                NextVisits::Visits { epoch, indexes } => {
                    Produced::Samples(indexes.into_iter().map(|index| self.sample(epoch, index)).collect())
                }
            })
        };
        std::iter::from_fn(next).collect()
    }
}

fn any_data() -> impl Strategy<Value = Data> {
    let one = (0_u64..60).prop_map(|count| (count, Vec::new(), None));
    let shards =
        prop::collection::vec(0_u64..12, 1..8).prop_map(|shards| (shards.iter().sum(), shards, None));
    let part = (1_u64..20, 1_u32..5).prop_map(|(len, weight)| Part { len, weight });
    let mixture =
        (prop::collection::vec(part, 1..4), any::<bool>(), 0..3).prop_map(|(parts, random, stop)| {
            let pick = if random { Pick::Random } else { Pick::Even };
            let stop = [Stop::First, Stop::All, Stop::Samples(40)][stop as usize];
            let mixture = Mixture::new(&parts, pick, stop, 9).expect("weights of a mixture");
            (mixture.len(), Vec::new(), Some(mixture))
        });
    (prop_oneof![one, shards, mixture], 1_u32..3, any::<bool>(), prop::option::of(1_u32..4)).prop_map(
        |((count, shards, mixture), epochs, shuffle, window)| {
            let window = window.and_then(NonZeroU32::new);
            let epochs = NonZeroU32::new(epochs);
            let settings =
                TraversalSettings { shuffle, window, epochs, seed: 3, ..TraversalSettings::IN_ORDER };
            Data { settings, count, shards: shards.into(), mixture }
        },
    )
}

/// A source that is read in order, twice, and a state in which nothing of it is settled.
fn two_epochs(count: u64) -> (Data, Token) {
    let settings = TraversalSettings { epochs: NonZeroU32::new(2), ..TraversalSettings::IN_ORDER };
    let data = Data { settings, count, shards: [].into(), mixture: None };
    (data, Token::new(BTreeMap::new(), &settings))
}

/// A sample, whatever the way it took.
fn place(sample: &Sample) -> (u32, u64, u64, String) {
    (sample.origin.epoch, sample.origin.index, sample.origin.path, sample.key.to_string())
}

fn is_stateful(stage: &StageShape) -> bool {
    matches!(stage.work, StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }))
}

/// One run of a rank, up to a number of events. Returns its state and the samples handed out.
fn run(
    shape: ChainShape,
    op: fn(usize, Item) -> Output,
    data: &Data,
    (start, shard): (&StartPoint, Option<Shard>),
    choices: &mut impl Iterator<Item = usize>,
    most: usize,
) -> (Token, Vec<Sample>) {
    let later = shape.hands_out_later;
    let kept = shape.kept.map(|_| start.state.kept.clone());
    let shape = ChainShape { known: start.children().collect(), kept, ..shape };
    let mut driver = Driver::new(shape, data.chunks(data.traversal(shard).from(start)), 2);
    driver.op = op;
    let mut handed = 0;
    for step in 0..most {
        if driver.schedule.is_over() {
            break;
        }
        let choice = choices.next().unwrap_or(0) + step;
        driver.step(choice, true);
        if later && (!(choice / 11).is_multiple_of(3) || driver.schedule.is_over()) {
            for item in &driver.delivered[handed..] {
                driver.schedule.hand_out(1, &item.origins().collect::<Vec<_>>());
            }
            handed = driver.delivered.len();
        }
        assert!(step < 100_000, "the run does not end");
    }
    assert!(driver.ledger().balanced);
    if !later {
        handed = driver.delivered.len();
    }
    let token = start.after(&driver.schedule.progress(data.set(), u64::MAX).unwrap());
    // What is given up is certain to be larger.
    assert!(driver.schedule.progress(data.set(), token.to_json().len() as u64).is_some());
    let samples = driver.delivered.into_iter().take(handed).flat_map(into_samples).collect();
    (Token::read(token.to_json().as_bytes()).unwrap(), samples)
}

/// Several runs, each with another number of ranks; each rank but those of the last run stops after a number of events. Returns the state
/// in the end and all samples handed out; `None` if ranks get more than one epoch apart, which short epochs permit.
fn over_worlds(
    new_shape: impl Fn() -> ChainShape,
    data: &Data,
    worlds: &[u32],
    stops: &[usize],
    choices: Vec<usize>,
) -> Option<(Token, Vec<Sample>)> {
    let mut choices = choices.into_iter().cycle();
    let mut delivered = Vec::new();
    let shard = |rank, ranks| {
        let world = NonZeroU32::new(ranks).expect("a rank at least");
        Some(Shard { rank, world, uneven: Uneven::Keep })
    };
    let mut token =
        Token::new(BTreeMap::new(), &TraversalSettings { shard: shard(0, worlds[0]), ..data.settings });
    for (number, ranks) in worlds.iter().enumerate() {
        let is_last = number + 1 == worlds.len();
        let mut states = Vec::new();
        for rank in 0..*ranks {
            let shard = shard(rank, *ranks);
            let start = match StartPoint::new(token.clone(), shard) {
                Ok(start) => start,
                Err(TokenFault::Apart(_)) => return None,
                Err(fault) => panic!("{fault}"),
            };
            let most = if is_last { usize::MAX } else { stops[(rank as usize + number) % stops.len()] };
            let (state, samples) = run(new_shape(), op, data, (&start, shard), &mut choices, most);
            states.push(state);
            delivered.extend(samples);
        }
        token = Token::merge(states).unwrap();
    }
    Some((token, delivered))
}

fn sorted(samples: &[Sample]) -> Vec<(u32, u64, u64, String)> {
    let mut places: Vec<_> = samples.iter().map(place).collect();
    places.sort_unstable();
    places
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn interrupted_runs_deliver_together_what_one_run_delivers(
        stages in any_stages(), data in any_data(), later: bool,
        worlds in prop::collection::vec(1_u32..9, 1..4), stops in prop::collection::vec(0_usize..250, 8),
        choices in prop::collection::vec(any::<usize>(), 200),
    ) {
        let stages: Vec<StageShape> = stages.into_iter().filter(|stage| !is_stateful(stage)).map(|stage| match stage.work {
            StageRule::Moving(Moving::Aggregate(AggregatePlan { size, .. })) => StageShape { work: StageRule::Moving(Moving::Aggregate(AggregatePlan { size, drop_last: false })), ..stage },
            _ => stage,
        }).collect();
        let new_shape = || ChainShape { hands_out_later: later, ..shape(stages.clone(), 2) };
        let Some((token, delivered)) = over_worlds(new_shape, &data, &worlds, &stops, choices) else { return Ok(()) };
        let epochs = data.settings.epochs.map_or(0, NonZeroU32::get);
        let entries = (0..epochs).flat_map(|epoch| (0..data.count).map(move |index| (epoch, index)));
        let expected: Vec<(Vec<Sample>, u64)> =
            entries.map(|(epoch, index)| delivered_of(&stages, data.sample(epoch, index))).collect();
        let failed: u64 = expected.iter().map(|(_, failed)| failed).sum();
        let expected: Vec<Sample> = expected.into_iter().flat_map(|(samples, _)| samples).collect();
        let settled = token.settled();
        prop_assert_eq!((settled.delivered, settled.skipped), (delivered.len() as u64, failed));
        prop_assert!(settled.balances(), "{:?}", settled);
        prop_assert_eq!(sorted(&delivered), sorted(&expected));
    }

    #[test]
    fn interrupted_runs_with_routes_deliver_together_what_one_run_delivers(
        parts in any_parts(), data in any_data(), later: bool,
        worlds in prop::collection::vec(1_u32..9, 2..4), stops in prop::collection::vec(0_usize..250, 8),
        choices in prop::collection::vec(any::<usize>(), 200),
    ) {
        let new_shape = || {
            let mut flat = Flat::default();
            flat.list(&parts, false);
            ChainShape { hands_out_later: later, ..flat.shape(2, u64::MAX) }
        };
        if new_shape().nodes.stages.iter().any(is_stateful) {
            return Ok(());
        }
        let (_, whole) = over_worlds(new_shape, &data, &[1], &stops, choices.clone()).expect("one rank is not apart");
        let Some((token, delivered)) = over_worlds(new_shape, &data, &worlds, &stops, choices) else { return Ok(()) };
        let settled = token.settled();
        prop_assert!(settled.balances() && settled.delivered == delivered.len() as u64, "{:?}", settled);
        prop_assert_eq!(sorted(&delivered), sorted(&whole));
    }

    #[test]
    fn a_stateful_stage_repeats_only_what_it_held(count in 0_u64..40, stop in 0_usize..300, choices in prop::collection::vec(any::<usize>(), 100)) {
        let stages = || vec![
            stage(1, 2, pipe(2, Order::Input, RunsOn::AnyThread)),
            stage(2, 2, pipe(1, Order::Input, RunsOn::OneThread(0))),
            stage(3, 1, pipe(2, Order::Input, RunsOn::Tasks)),
        ];
        let (data, fresh) = two_epochs(count);
        let mut choices = choices.into_iter().cycle();
        let mut go_on = |token: &Token, most| {
            let start = StartPoint::new(token.clone(), None).unwrap();
            run(shape(stages(), 2), one_to_one, &data, (&start, None), &mut choices, most)
        };
        let (_, whole) = go_on(&fresh, usize::MAX);
        let (token, mut parts) = go_on(&fresh, stop);
        parts.extend(go_on(&token, usize::MAX).1);
        let keys = |samples: &[Sample]| samples.iter().map(|sample| (sample.origin.epoch, sample.key.to_string())).collect::<Vec<_>>();
        prop_assert_eq!(keys(&parts), keys(&whole));
    }

    #[test]
    fn a_stage_that_saves_its_state_goes_on_where_it_was(
        count in 0_u64..40, size in 1_usize..5, later: bool, stops in prop::collection::vec(0_usize..200, 3),
        choices in prop::collection::vec(any::<usize>(), 100),
    ) {
        let new_shape = || ChainShape { kept: Some(Kept::default()), hands_out_later: later, ..shape(vec![
            stage(1, 2, pipe(2, Order::Input, RunsOn::AnyThread)),
            stage(2, 2, pipe(1, Order::Input, RunsOn::OneThread(0))),
            stage(3, 1, pipe(2, Order::Input, RunsOn::Tasks)),
            stage(4, 1, StageRule::Moving(Moving::Aggregate(AggregatePlan { size, drop_last: false }))),
        ], 2) };
        let (data, fresh) = two_epochs(count);
        let mut choices = choices.into_iter().cycle();
        let mut go_on = |token: &Token, most| {
            let start = StartPoint::new(token.clone(), None).unwrap();
            run(new_shape(), op, &data, (&start, None), &mut choices, most)
        };
        let (end, whole) = go_on(&fresh, usize::MAX);
        let (mut token, mut parts) = (fresh, Vec::new());
        for stop in stops.into_iter().chain([usize::MAX]) {
            let (state, samples) = go_on(&token, stop);
            token = state;
            parts.extend(samples);
        }
        prop_assert_eq!(parts.iter().map(place).collect::<Vec<_>>(), whole.iter().map(place).collect::<Vec<_>>());
        prop_assert_eq!(&token.ranks[&0].epochs.last(), &end.ranks[&0].epochs.last());
        prop_assert!(token.settled().balances() && token.settled().delivered == whole.len() as u64);
        prop_assert_eq!(&token.ranks[&0].kept, &Kept::default());
    }
}

#[test]
fn a_finish_that_ends_the_run_settles_nothing() {
    let (data, fresh) = two_epochs(6);
    let packs = || {
        let stage = StageShape {
            on_error: OnError::Fail,
            ..stage(1, 2, pipe(1, Order::Input, RunsOn::OneThread(0)))
        };
        ChainShape { kept: Some(Kept::default()), ..shape(vec![stage], 2) }
    };
    let start = StartPoint::new(fresh, None).unwrap();
    let (_, whole) = run(packs(), op, &data, (&start, None), &mut std::iter::empty(), usize::MAX);
    let mut driver = Driver::new(packs(), data.chunks(data.traversal(None)), 1);
    driver.packer = Some(Packer { fails: true, ..Packer::default() });
    for choice in 0..1000 {
        driver.step(choice, true);
    }
    assert!(driver.schedule.error().is_some());
    let start =
        StartPoint::new(start.after(&driver.schedule.progress(data.set(), u64::MAX).unwrap()), None).unwrap();
    assert!(!start.state.kept.state.is_empty());
    let mut parts: Vec<Sample> = driver.delivered.into_iter().flat_map(into_samples).collect();
    parts.extend(run(packs(), op, &data, (&start, None), &mut std::iter::empty(), usize::MAX).1);
    assert_eq!(sorted(&parts), sorted(&whole));
}

#[test]
fn what_a_stage_has_kept_belongs_to_its_rank() {
    let settings = TraversalSettings::IN_ORDER;
    let start = StartPoint::new(Token::new(BTreeMap::new(), &settings), None).unwrap();
    let kept = Some(Kept { state: vec![7], handed: Vec::new() });
    let token = start.after(&Progress { kept, ..Progress::default() });
    let two = Some(Shard { rank: 0, world: NonZeroU32::new(2).unwrap(), uneven: Uneven::Keep });
    assert_eq!(StartPoint::new(token.clone(), two), Err(TokenFault::Kept(0)));
    let forced = token.for_recipe(BTreeMap::new(), &settings);
    assert!(StartPoint::new(forced, two).is_ok());
}

#[test]
fn a_failure_that_ends_the_run_is_tried_again_and_a_cut_batch_is_not_lost() {
    let aggregate = StageRule::Moving(Moving::Aggregate(AggregatePlan { size: 100, drop_last: true }));
    let fails = StageShape { on_error: OnError::Fail, ..stage(1, 2, pipe(1, Order::Input, RunsOn::Tasks)) };
    let settings = TraversalSettings::IN_ORDER;
    let start = StartPoint::new(Token::new(BTreeMap::new(), &settings), None).unwrap();
    let data = Data { settings, count: 8, shards: [].into(), mixture: None };
    let shape = shape(vec![fails, stage(2, 2, aggregate)], 2);
    let mut driver = Driver::new(shape, data.chunks(data.traversal(None)), 1);
    driver.op = |_, item| match item.first() {
        Some((_, origin)) if origin.index == 5 => {
            Output::all_failed(into_samples(item), &Fault::new(FailureClass::Data, "odd"))
        }
        _ => Output::one(item),
    };
    for choice in 0..1000 {
        driver.step(choice, true);
    }
    assert!(driver.schedule.error().is_some());
    assert_eq!(driver.ledger().total.discarded, 5);
    let token = start.after(&driver.schedule.progress(data.set(), u64::MAX).unwrap());
    assert_eq!(token.settled(), RunBook::default());
    let rest = StartPoint::new(token, None).unwrap();
    assert_eq!(data.traversal(None).from(&rest).total(), Some(8));
}

#[test]
fn progress_of_more_than_a_state_holds_is_given_up() {
    let mut settled = Settled::default();
    for number in 0..1_000 {
        let mut origin = Origin::at(0, number);
        settled.make(&mut origin);
        if number % 2 == 1 {
            settled.settle(origin);
        }
    }
    let most = 500 * LEAST_RANGE_BYTES + LEAST_EPOCH_BYTES;
    assert_eq!(settled.progress(most).unwrap()[0].settled.len(), 500);
    assert!(settled.progress(most - 1).is_none());
}

#[test]
fn what_another_rank_lacks_is_discarded_and_settled() {
    let aggregate = StageRule::Moving(Moving::Aggregate(AggregatePlan { size: 2, drop_last: false }));
    let (data, fresh) = two_epochs(9);
    let start = StartPoint::new(fresh, None).unwrap();
    let shape = ChainShape { hands_out_later: true, ..shape(vec![stage(1, 2, aggregate)], 2) };
    let mut driver = Driver::new(shape, data.chunks(data.traversal(None)), 1);
    driver.op = |_, item| Output::one(item);
    let mut taken = Vec::new();
    for choice in 0..1000 {
        driver.step(choice, taken.len() < 3);
        taken.append(&mut driver.delivered);
    }
    // The loop has got two of the three batches that were taken.
    assert_eq!(taken.len(), 3);
    for item in &taken[..2] {
        driver.schedule.hand_out(1, &item.origins().collect::<Vec<_>>());
    }
    driver.schedule.take_back(2);
    driver.schedule.end_together(Some(18));
    let ledger = driver.ledger();
    assert!(ledger.balanced && driver.schedule.error().is_none());
    let total = ledger.total;
    assert_eq!((total.made, total.delivered, total.discarded, total.left), (18, 4, 14, 0));
    let progress = driver.schedule.progress(data.set(), u64::MAX).unwrap();
    assert!(progress.ended_together);
    let state = start.after(&progress).ended(1);
    assert_eq!(state.settled(), total);
    let next = StartPoint::new(state, None).unwrap();
    assert_eq!(next.epoch, 2);
}
