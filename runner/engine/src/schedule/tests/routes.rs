//! Compares schedules with routes, nested to any depth, with a sequential reference implementation.

use penstock_types::routes::{RoutePart, RouteSpan};

use super::*;
use crate::route::{Choice, FieldChoice, Route};

/// Fields by which routes choose. Samples have numbers from 0 to 3 in them; the last one is missing in some samples.
const FIELDS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
pub(super) enum Part {
    Pipe {
        concurrency: usize,
        order: Order,
        runs_on: RunsOn,
        capacity: usize,
    },
    Route {
        field: usize,
        paths: Vec<(u8, Vec<Part>)>,
        otherwise: Option<Vec<Part>>,
        order: Order,
        capacity: usize,
    },
}

/// A part with its position among the stages of the schedule.
pub(super) enum Placed {
    Pipe { position: usize, rule: StageRule },
    Route { route: Route, paths: Vec<Vec<Placed>> },
}

/// Stages and routes of a schedule, and the same as a tree.
#[derive(Default)]
pub(super) struct Flat {
    stages: Vec<StageShape>,
    parts: Vec<Option<RoutePart>>,
    routes: Vec<(Choice, Order)>,
}

impl Flat {
    fn add(&mut self, rule: StageRule, capacity: usize, part: Option<RoutePart>) {
        self.stages.push(stage(self.stages.len() + 1, capacity, rule));
        self.parts.push(part);
    }

    pub(super) fn list(&mut self, parts: &[Part], in_order: bool) -> Vec<Placed> {
        parts.iter().map(|part| self.part(part, in_order)).collect()
    }

    fn part(&mut self, part: &Part, in_order: bool) -> Placed {
        match part {
            Part::Pipe { concurrency, order, runs_on, capacity } => {
                let (order, runs_on) = match (in_order, runs_on) {
                    (true, RunsOn::OneThread(_)) => (Order::Input, RunsOn::AnyThread),
                    (true, runs_on) => (Order::Input, *runs_on),
                    (false, runs_on) => (*order, *runs_on),
                };
                let rule = pipe(*concurrency, order, runs_on);
                let position = self.stages.len();
                self.add(rule, *capacity, None);
                Placed::Pipe { position, rule }
            }
            Part::Route { field, paths, otherwise, order, capacity } => {
                let order = if in_order { Order::Input } else { *order };
                let names: Vec<String> = paths.iter().map(|(name, _)| name.to_string()).collect();
                let choice = Choice::Field(FieldChoice::new(
                    FIELDS[*field],
                    names.iter().map(String::as_str),
                    otherwise.as_ref().map(|_| paths.len()),
                ));
                let route = self.routes.len();
                self.routes.push((choice.clone(), order));
                let lists = paths.iter().map(|(_, stages)| stages).chain(otherwise);
                let paths = lists.map(|list| {
                    self.add(
                        StageRule::Moving(Moving::Gate { route }),
                        *capacity,
                        Some(RoutePart::Gate(route)),
                    );
                    self.list(list, order == Order::Input)
                });
                let paths = paths.collect();
                self.add(StageRule::Moving(Moving::Join { route }), *capacity, Some(RoutePart::Join(route)));
                Placed::Route { route: Route { span: RouteSpan::default(), choice, order }, paths }
            }
        }
    }

    pub(super) fn shape(self, sink: usize, buffer_bytes: u64) -> ChainShape {
        let spans = RouteSpan::all(self.parts);
        let routes =
            spans.into_iter().zip(self.routes).map(|(span, (choice, order))| Route { span, choice, order });
        let mut whole = ChainShape { buffer_bytes, ..shape(self.stages, sink) };
        whole.nodes.routes = routes.collect();
        whole
    }
}

/// Output of a list of parts for a whole stream, computed one item after the other.
pub(super) fn expected(parts: &[Placed], mut stream: Vec<Mark>) -> Vec<Mark> {
    for part in parts {
        stream = match part {
            Placed::Pipe { position, rule } => reference(*position, rule, stream),
            Placed::Route { route, paths } => routed(route, paths, stream),
        };
    }
    stream
}

fn routed(route: &Route, paths: &[Vec<Placed>], stream: Vec<Mark>) -> Vec<Mark> {
    let mut out = Vec::new();
    // In a route without order, a path may hold samples until the next one arrives, so that its stream is computed as a whole.
    let mut streams: Vec<Vec<Mark>> = paths.iter().map(|_| Vec::new()).collect();
    for mark in stream {
        match mark {
            Mark::Item(item) => {
                let Item::Sample(sample) = &item else { panic!("a batch in a route") };
                let Ok(path) = route.choice.of(sample) else { continue };
                match route.order {
                    Order::Input => out.extend(expected(&paths[path], vec![Mark::Item(item)])),
                    Order::Completion => streams[path].push(Mark::Item(item)),
                }
            }
            Mark::EpochEnd => {
                out.push(Mark::EpochEnd);
                streams.iter_mut().for_each(|stream| stream.push(Mark::EpochEnd));
            }
        }
    }
    if route.order == Order::Completion {
        out = paths.iter().zip(streams).flat_map(|(path, stream)| expected(path, stream)).collect();
    }
    out
}

fn any_part() -> impl Strategy<Value = Part> {
    let order = || prop_oneof![Just(Order::Completion), Just(Order::Input)];
    let runs_on =
        prop_oneof![3 => Just(RunsOn::Tasks), 3 => Just(RunsOn::AnyThread), 1 => Just(RunsOn::OneThread(1))];
    let capacity = || prop_oneof![3 => Just(1_usize), 1 => 2_usize..4];
    let one =
        (1_usize..4, order(), runs_on, capacity()).prop_map(|(concurrency, order, runs_on, capacity)| {
            let concurrency = if matches!(runs_on, RunsOn::OneThread(_)) { 1 } else { concurrency };
            Part::Pipe { concurrency, order, runs_on, capacity }
        });
    one.prop_recursive(3, 24, 4, move |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3);
        // Names above 3 are those of paths that no sample takes.
        let paths = prop::collection::btree_map(0_u8..6, list(), 1..4);
        let all = (0_usize..3, paths, prop::option::of(list()), order(), capacity());
        all.prop_map(|(field, paths, otherwise, order, capacity)| Part::Route {
            field,
            paths: paths.into_iter().collect(),
            otherwise,
            order,
            capacity,
        })
    })
}

pub(super) fn any_parts() -> impl Strategy<Value = Vec<Part>> {
    prop::collection::vec(any_part(), 1..4).prop_filter("a pipeline with a route of moderate size", |parts| {
        let mut flat = Flat::default();
        flat.list(parts, false);
        !flat.routes.is_empty() && flat.stages.len() <= 40
    })
}

pub(super) fn routed_samples(numbers: std::ops::Range<u64>, epoch: u32) -> Vec<Sample> {
    let mut all = samples(numbers.clone(), epoch);
    for (index, sample) in numbers.zip(&mut all) {
        let hash = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        sample.set("a", Value::Int((hash % 4) as i64));
        sample.set("b", Value::Text((index % 3).to_string()));
        if hash % 5 > 0 {
            sample.set("c", Value::Int((hash / 16 % 2) as i64));
        }
    }
    all
}

/// Chunks of these epochs, and the same as a stream.
pub(super) fn data(epochs: &[u64]) -> (Vec<Produced>, Vec<Mark>) {
    let (mut chunks, mut stream) = (Vec::new(), Vec::new());
    for (epoch, count) in (0..).zip(epochs) {
        if epoch > 0 {
            chunks.push(Produced::EpochEnd);
            stream.push(Mark::EpochEnd);
        }
        let samples = routed_samples(0..*count, epoch);
        stream.extend(samples.iter().cloned().map(|sample| Mark::Item(Item::Sample(sample))));
        chunks.push(produced(samples));
    }
    (chunks, stream)
}

fn is_stateful(rule: &StageRule) -> bool {
    matches!(rule, StageRule::Op(PipeRule { runs_on: RunsOn::OneThread(_), .. }))
}

/// Drives the schedule to the end of the run, far below the number of steps at which a run counts as stuck.
fn run_to_end(driver: &mut Driver, choices: &[usize]) -> Result<(), TestCaseError> {
    let mut steps = 0;
    while !driver.schedule.is_over() {
        driver.step(choices[steps % choices.len()] + steps, true);
        driver.assert_within_limits();
        steps += 1;
        if steps % 7 == 0 {
            let ledger = driver.ledger();
            prop_assert!(ledger.balanced, "{ledger:#?}");
            driver.settle_all_nodes();
            prop_assert_eq!(driver.ledger(), ledger, "an item could have moved but did not");
        }
        prop_assert!(steps < 300_000, "the run does not end: {:#?}", driver.schedule);
    }
    let ledger = driver.ledger();
    prop_assert!(ledger.balanced, "{ledger:#?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn routes_deliver_the_same_as_a_sequential_reference(
        parts in any_parts(),
        epochs in prop::collection::vec(0_u64..30, 1..4),
        sink in 1_usize..3,
        budget in prop_oneof![Just(2 << 10), Just(1 << 20), Just(u64::MAX)],
        choices in prop::collection::vec(any::<usize>(), 400),
    ) {
        let (chunks, stream) = data(&epochs);
        let mut flat = Flat::default();
        let tree = flat.list(&parts, false);
        let expected = keys(expected(&tree, stream).into_iter().filter_map(|mark| match mark {
            Mark::Item(item) => Some(item),
            Mark::EpochEnd => None,
        }).collect()).concat();
        let in_order = tree.iter().all(|part| match part {
            Placed::Pipe { rule: StageRule::Op(PipeRule { concurrency, order, .. }), .. } => *concurrency == 1 || *order == Order::Input,
            Placed::Pipe { .. } => false,
            Placed::Route { route, .. } => route.order == Order::Input,
        });
        let order_matters = flat.stages.iter().any(|stage| is_stateful(&stage.work));
        // What a stateful stage holds has to fit into the budget beside the largest chunk.
        let shape = flat.shape(sink, if order_matters { budget.max(1 << 20) } else { budget });
        let mut driver = Driver::new(shape, chunks, 2);
        run_to_end(&mut driver, &choices)?;
        prop_assert_eq!(driver.schedule.error(), None);
        prop_assert_eq!(driver.ledger().total.left, 0);
        let mut found = keys(std::mem::take(&mut driver.delivered)).concat();
        if in_order {
            prop_assert_eq!(found, expected);
        } else if !order_matters {
            let mut expected = expected;
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
        let now = driver.tick();
        for (sums, rule) in read(&mut driver.schedule, now).stages.iter().zip(&driver.rule) {
            prop_assert_eq!(sums.row.slot_times().iter().sum::<u64>(), rule.op().map_or(1, |rule| rule.concurrency) as u64 * sums.row.elapsed);
        }
    }

    #[test]
    fn a_run_with_routes_ends_after_a_stage_or_a_route_has_failed_it(
        parts in any_parts(),
        failing in any::<usize>(),
        epochs in prop::collection::vec(0_u64..30, 1..3),
        choices in prop::collection::vec(any::<usize>(), 200),
    ) {
        let (chunks, _) = data(&epochs);
        let mut flat = Flat::default();
        flat.list(&parts, false);
        let mut shape = flat.shape(2, 1 << 20);
        let count = shape.nodes.stages.len();
        shape.nodes.stages[failing % count].on_error = OnError::Fail;
        let mut driver = Driver::new(shape, chunks, 2);
        run_to_end(&mut driver, &choices)?;
        // Samples outside of the dead part of the pipeline were delivered.
        let ledger = driver.ledger();
        prop_assert!(driver.schedule.error().is_some() || ledger.total.left == 0, "{ledger:#?}");
    }

    #[test]
    fn the_ledger_of_a_routed_run_balances_at_whatever_point_it_is_stopped(
        parts in any_parts(),
        count in 0_u64..40,
        choices in prop::collection::vec(any::<usize>(), 0..150),
    ) {
        let (chunks, _) = data(&[count]);
        let mut flat = Flat::default();
        flat.list(&parts, false);
        let mut driver = Driver::new(flat.shape(2, u64::MAX), chunks, 2);
        for choice in choices {
            driver.step(choice, true);
            let ledger = driver.ledger();
            prop_assert!(ledger.balanced, "{ledger:#?}");
        }
        driver.schedule.stop();
        prop_assert!(driver.ledger().balanced);
    }
}

/// A route by the field `a` of `two` paths with these stages, all queues of 1.
fn two_paths(order: Order, paths: [Vec<Part>; 2], otherwise: bool) -> ChainShape {
    let [first, second] = paths;
    let otherwise = otherwise.then(Vec::new);
    let route = Part::Route { field: 0, paths: vec![(0, first), (1, second)], otherwise, order, capacity: 1 };
    let mut flat = Flat::default();
    flat.part(&route, false);
    flat.shape(1, u64::MAX)
}

fn tasks(concurrency: usize) -> Part {
    Part::Pipe { concurrency, order: Order::Completion, runs_on: RunsOn::Tasks, capacity: 1 }
}

/// Samples whose field `a` has these values.
fn with_values(values: &[i64]) -> Vec<Sample> {
    let mut all = samples(0..values.len() as u64, 0);
    all.iter_mut().zip(values).for_each(|(sample, value)| sample.set("a", Value::Int(*value)));
    all
}

/// Completes all running tasks of `stage` with an unchanged item, or drops it.
fn finish(schedule: &mut Schedule, running: &mut Vec<(Task, Item)>, stage: usize, drop: bool) {
    running.extend(schedule.take_starts());
    let (done, rest) = std::mem::take(running).into_iter().partition(|(task, _)| task.stage == stage);
    *running = rest;
    let done: Vec<(Task, Item)> = done;
    for (task, item) in done {
        let output = if drop { Output { dropped: 1, ..Output::default() } } else { Output::one(item) };
        schedule.complete(task, Ok(output), OpTime::default(), Tick::ZERO);
    }
    running.extend(schedule.take_starts());
}

fn delivered(schedule: &mut Schedule) -> Vec<String> {
    let items = std::iter::from_fn(|| match schedule.deliver(Tick::ZERO) {
        SinkDelivery::Item(item) => Some(item),
        _ => None,
    });
    keys(items.collect()).concat()
}

#[test]
fn in_order_a_slow_sample_holds_back_a_bounded_number_of_others() {
    // Stages: gate, pipe, gate, pipe, join.
    let shape = two_paths(Order::Input, [vec![tasks(1)], vec![tasks(1)]], false);
    let mut schedule = Schedule::new(shape, Tick::ZERO);
    schedule.offer(Ok(Some(produced(with_values(&[0, 1, 1, 1, 1, 1, 1, 1, 0])))), Tick::ZERO);
    let mut running = Vec::new();
    for _ in 0..9 {
        finish(&mut schedule, &mut running, 3, false);
    }
    // One sample waits in the last queue of the second path, one in the slot of its stage, one in its first queue and one in its gate.
    assert_eq!(schedule.queues.iter().map(|queue| queue.items).collect::<Vec<_>>(), [2, 0, 0, 1, 1, 0, 0]);
    assert_eq!(delivered(&mut schedule), Vec::<String>::new());
    assert!(schedule.ledger().balanced);
    finish(&mut schedule, &mut running, 1, false);
    assert_eq!(delivered(&mut schedule), ["0", "1", "2"]);
}

#[test]
fn in_order_a_dropped_sample_advances_the_join() {
    let shape = two_paths(Order::Input, [vec![tasks(1)], vec![]], false);
    let mut schedule = Schedule::new(shape, Tick::ZERO);
    schedule.offer(Ok(Some(produced(with_values(&[0, 1, 3, 1])))), Tick::ZERO);
    let mut running = Vec::new();
    finish(&mut schedule, &mut running, 9, false);
    assert_eq!(delivered(&mut schedule), Vec::<String>::new());
    finish(&mut schedule, &mut running, 1, true);
    assert_eq!(delivered(&mut schedule), ["1", "3"]);
    let failed: Vec<FailedTask> = schedule.take_failures();
    assert_eq!(
        failed[0].in_words(),
        "stage `4`: sample `2` failed: the field `a` is `3`, which no path has as its name"
    );
}

#[test]
fn a_route_that_keeps_the_order_stays_within_a_bound_when_a_path_drops_all_samples() {
    let shape = two_paths(Order::Input, [vec![tasks(1)], vec![tasks(1)]], false);
    let mut schedule = Schedule::new(shape, Tick::ZERO);
    let values: Vec<i64> = (0..3_000).map(|index| i64::from(index > 0)).collect();
    schedule.offer(Ok(Some(produced(with_values(&values)))), Tick::ZERO);
    let mut running = Vec::new();
    for _ in 0..3_000 {
        finish(&mut schedule, &mut running, 3, true);
    }
    let before = schedule.ledger().stages[2].taken;
    assert_eq!(
        schedule.ledger().stages[3].taken,
        1023,
        "the first sample is the turn, the others are ahead of it"
    );
    finish(&mut schedule, &mut running, 1, false);
    for _ in 0..3_000 {
        finish(&mut schedule, &mut running, 3, true);
    }
    assert_eq!((before, delivered(&mut schedule)), (1, vec!["0".to_owned()]));
    assert!(matches!(schedule.offer(Ok(None), Tick::ZERO), ()));
    assert!(matches!(schedule.deliver(Tick::ZERO), SinkDelivery::Ended), "{schedule:?}");
}

#[test]
fn empty_epochs_in_one_path_do_not_stop_the_others() {
    for order in [Order::Completion, Order::Input] {
        let shape = two_paths(order, [vec![tasks(1)], vec![]], true);
        let mut schedule = Schedule::new(shape, Tick::ZERO);
        for epoch in 0..40 {
            // In turns, all samples of an epoch take one path.
            schedule.offer(Ok(Some(produced(with_values(&[epoch % 3, epoch % 3])))), Tick::ZERO);
            schedule.offer(Ok(Some(Produced::EpochEnd)), Tick::ZERO);
        }
        schedule.offer(Ok(None), Tick::ZERO);
        let (mut running, mut found) = (Vec::new(), 0);
        for _ in 0..200 {
            finish(&mut schedule, &mut running, 1, false);
            found += delivered(&mut schedule).len();
        }
        assert_eq!(found, 80, "{order:?}");
        assert!(schedule.ledger().balanced);
    }
}
