//! Compares predictions with closed-form results for queues without overhead, for eight pipelines; times are in milliseconds.

use penstock_types::plan::{AggregatePlan, Moving, SleepPlan};
use penstock_types::policy::{Capacity, StageKindName};
use penstock_types::routes::RouteSpan;
use penstock_types::spec::{self, Millis, Share, SleepOn, SleepShape};
use penstock_types::traversal::{Traversal, TraversalSettings};

use super::*;
use crate::consumers::Simulate;
use crate::graph::{GraphNode, StageNode};
use crate::ops::SleepTimes;
use crate::range::RangeSource;
use crate::route::{Choice, PathShares, Route};

type ScenarioStage = StageNode<ScenarioOp>;

const MS: Duration = Duration::from_millis(1);

fn node(name: &str, capacity: u32) -> GraphNode {
    GraphNode {
        id: name.to_owned(),
        name: name.to_owned(),
        queue_id: format!("{name}_queue"),
        capacity: Capacity::new(capacity).unwrap(),
    }
}

/// A stage that takes `ms` milliseconds +- 10 % (uniform) on `place`.
fn op(ms: u32, concurrency: u32, place: OpPlace) -> ScenarioStage {
    let plan = SleepPlan {
        mean: MS * ms,
        jitter: 0.1,
        shape: SleepShape::Uniform,
        on: SleepOn::Async,
        fail_rate: 0.0,
    };
    let name = format!("{ms}ms");
    let work = StageWork::Op(ScenarioOp {
        times: OpTimes::Sleep { times: SleepTimes::new(plan, 7, &name), late: Duration::ZERO },
        place,
        concurrency: Concurrency::new(concurrency).unwrap(),
        order: Order::Completion,
        yields: 1.0,
        contention: Contention::default(),
    });
    stage(&name, StageKindName::Sleep, work)
}

fn stage(name: &str, kind: StageKindName, work: StageWork<ScenarioOp>) -> ScenarioStage {
    ScenarioStage {
        node: node(name, 2),
        kind,
        on_error: OnError::Skip,
        max_failures: None,
        keeps_size: true,
        work,
    }
}

fn aggregate(size: usize) -> ScenarioStage {
    let work = StageWork::Moving(Moving::Aggregate(AggregatePlan { size, drop_last: false }));
    stage("aggregate", StageKindName::Aggregate, work)
}

/// An endless source, `stages`, and a consumer that takes 30 ms per item.
fn scenario(stages: Vec<ScenarioStage>) -> Scenario {
    samples(u64::MAX >> 2, stages)
}

fn samples(count: u64, stages: Vec<ScenarioStage>) -> Scenario {
    let traversal = Traversal::new(count, TraversalSettings::IN_ORDER).unwrap();
    let step = spec::Simulate { step_ms: Millis::new(30.0).unwrap(), jitter: Share::default() };
    Scenario {
        source: Box::new(RangeSource::new(traversal)),
        source_time: Duration::ZERO,
        chain: Chain { source: node("src", 2), stages, routes: Vec::new(), sink: node("sink", 3) },
        consumer: StepTimes::Simulate { steps: Simulate::new(&step, 7), late: Duration::ZERO },
        threads: 4,
        cores: 2.0,
        foreign_cores: 0.0,
    }
}

/// Figures of each queue: items per second, mean waits of put and get in milliseconds, and readiness.
fn figures(prediction: &Prediction) -> Vec<[f64; 4]> {
    let queues = prediction.window.queues.iter().map(|queue| {
        let figures = &queue.figures;
        let ms = |time: Option<f64>| time.unwrap() * 1e3;
        [
            figures.qps.unwrap(),
            ms(figures.ave_put_time_s),
            ms(figures.ave_get_time_s),
            figures.readiness.unwrap(),
        ]
    });
    queues.collect()
}

#[track_caller]
fn assert_near(found: &[[f64; 4]], expected: &[[f64; 4]]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let [qps, put, get, readiness] =
            std::array::from_fn(|figure| (found[figure] - expected[figure]).abs());
        assert!(qps <= expected[0] * 0.01, "{found:?} for {expected:?}");
        assert!(put <= 0.3 && get <= 0.3, "{found:?} for {expected:?}");
        assert!(readiness <= 0.015, "{found:?} for {expected:?}");
    }
}

#[test]
fn a_single_stage_is_predicted_faster_and_slower_than_the_consumer() {
    let predicted = |ms| figures(&predict(scenario(vec![op(ms, 1, OpPlace::Task)]), Extent::Events(20_000)));
    assert_near(&predicted(25), &[[33.33, 30.0, 0.0, 1.0], [33.33, 5.0, 0.0, 1.0], [33.33, 30.0, 0.0, 1.0]]);
    assert_near(&predicted(35), &[[28.57, 35.0, 0.0, 1.0], [28.57, 0.0, 35.0, 0.0], [28.57, 0.0, 5.0, 0.0]]);
}

#[test]
fn the_slowest_of_three_stages_limits_until_it_has_more_slots() {
    let predicted = |stages: [(u32, u32); 3]| {
        let stages = stages.map(|(ms, concurrency)| op(ms, concurrency, OpPlace::Task));
        figures(&predict(scenario(stages.into()), Extent::Events(40_000)))
    };
    let full = |put| [33.33, put, 0.0, 1.0];
    assert_near(
        &predicted([(10, 1), (25, 1), (40, 1)]),
        &[
            [25.0, 40.0, 0.0, 1.0],
            [25.0, 30.0, 0.0, 1.0],
            [25.0, 15.0, 0.0, 1.0],
            [25.0, 0.0, 40.0, 0.0],
            [25.0, 0.0, 10.0, 0.0],
        ],
    );
    assert_near(
        &predicted([(40, 1), (25, 1), (10, 1)]),
        &[
            [25.0, 40.0, 0.0, 1.0],
            [25.0, 0.0, 15.0, 0.0],
            [25.0, 0.0, 30.0, 0.0],
            [25.0, 0.0, 40.0, 0.0],
            [25.0, 0.0, 10.0, 0.0],
        ],
    );
    assert_near(
        &predicted([(10, 1), (25, 1), (40, 2)]),
        &[full(30.0), full(20.0), full(5.0), full(20.0), full(30.0)],
    );
    assert_near(
        &predicted([(10, 1), (25, 1), (40, 3)]),
        &[full(30.0), full(20.0), full(5.0), full(50.0), full(30.0)],
    );
}

#[test]
fn the_queue_before_an_aggregate_is_sometimes_empty_even_when_the_consumer_limits() {
    let predicted = |size| {
        figures(&predict(scenario(vec![op(6, 1, OpPlace::Task), aggregate(size)]), Extent::Events(40_000)))
    };
    assert_near(
        &predicted(4),
        &[[133.3, 7.5, 0.0, 1.0], [133.3, 1.5, 1.5, 0.6], [33.33, 24.0, 0.0, 1.0], [33.33, 30.0, 0.0, 1.0]],
    );
    assert_near(
        &predicted(6),
        &[[166.7, 6.0, 0.0, 1.0], [166.7, 0.0, 6.0, 0.0], [27.78, 0.0, 36.0, 0.0], [27.78, 0.0, 6.0, 0.0]],
    );
}

#[test]
fn threads_and_cores_limit_the_rate_below_the_concurrency() {
    let rate = |threads, cores, computing| {
        let place = OpPlace::Thread { computing, stateful: false };
        let scenario = Scenario { threads, cores, ..scenario(vec![op(100, 8, place)]) };
        figures(&predict(scenario, Extent::Events(5_000)))[1][0]
    };
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.02, "{found} for {expected}");
    // In this order: eight tasks with three threads; eight threads with two cores; ops that need no core; ops that need a core
    // half of the time.
    near(rate(3, 8.0, 1.0), 30.0);
    near(rate(8, 2.0, 1.0), 20.0);
    near(rate(8, 2.0, 0.0), 33.33);
    near(rate(8, 1.0, 0.5), 20.0);
}

#[test]
fn source_time_and_stage_yield_determine_the_rates() {
    let with = |source_ms, yields| {
        let mut stage = op(1, 1, OpPlace::Task);
        let StageWork::Op(op) = &mut stage.work else { unreachable!() };
        op.yields = yields;
        let scenario = Scenario {
            source_time: MS * source_ms,
            consumer: StepTimes::Every(Duration::ZERO),
            ..scenario(vec![stage])
        };
        let figures = figures(&predict(scenario, Extent::Events(10_000)));
        (figures[0][0], figures[1][0])
    };
    let near = |(source, stage): (f64, f64), expected: (f64, f64)| {
        assert!((source / expected.0 - 1.0).abs() < 0.01, "{source} for {}", expected.0);
        assert!((stage / expected.1 - 1.0).abs() < 0.01, "{stage} for {}", expected.1);
    };
    near(with(10, 1.0), (100.0, 100.0));
    near(with(10, 0.25), (100.0, 25.0));
    near(with(10, 2.5), (100.0, 250.0));
}

#[test]
fn a_run_is_predicted_from_its_start_to_its_end_or_for_a_time() {
    let stages = || vec![op(25, 1, OpPlace::Task), aggregate(4)];
    let whole = predict(samples(10, stages()), Extent::Events(1_000_000));
    assert_eq!((whole.items, whole.samples), (3, 10));
    assert!(whole.window.t0_s == 0.0 && (0.2..0.5).contains(&whole.window.t1_s), "{:?}", whole.window.t1_s);
    let cut = predict(scenario(stages()), Extent::For(Duration::from_secs(2)));
    assert!((cut.window.t1_s - 2.0).abs() < 1e-9);
    assert!((17..=20).contains(&cut.items), "{}", cut.items);
    // A second prediction gives the same result.
    let again = predict(scenario(stages()), Extent::For(Duration::from_secs(2)));
    assert_eq!(format!("{:?}", again.window), format!("{:?}", cut.window));
}

#[test]
fn pipelines_that_take_no_time_or_deliver_no_item_are_predicted_in_bounded_time() {
    let at_once = |stages| Scenario { consumer: StepTimes::Every(Duration::ZERO), ..scenario(stages) };
    let cut = predict(at_once(vec![op(0, 1, OpPlace::Task)]), Extent::For(Duration::from_secs(10)));
    assert!(cut.items > 0 && cut.window.t1_s < 1e-9, "{:?}", cut.window.t1_s);
    // Every epoch has only three samples, so no batch is ever filled.
    let endless = TraversalSettings { epochs: None, ..TraversalSettings::IN_ORDER };
    let work = StageWork::Moving(Moving::Aggregate(AggregatePlan { size: 4, drop_last: true }));
    let drops = stage("aggregate", StageKindName::Aggregate, work);
    let nothing = Scenario {
        source: Box::new(RangeSource::new(Traversal::new(3, endless).unwrap())),
        ..at_once(vec![drops])
    };
    assert_eq!(predict(nothing, Extent::Events(10_000)).items, 0);
}

/// A route with an op of 10 ms and one of 80 ms in its paths, which half of the samples take each.
fn routed(order: Order) -> Scenario {
    let gate = |name: &str| stage(name, StageKindName::Path, StageWork::Moving(Moving::Gate { route: 0 }));
    let (mut fast, mut slow) = (op(10, 1, OpPlace::Task), op(80, 1, OpPlace::Task));
    for stage in [&mut fast, &mut slow] {
        if let StageWork::Op(op) = &mut stage.work {
            op.order = order;
        }
    }
    let join = stage("route", StageKindName::Route, StageWork::Moving(Moving::Join { route: 0 }));
    let span = RouteSpan { gates: vec![1, 3], join: 5 };
    let shares = PathShares::new(&[1, 1, 0], 7, "route").unwrap();
    let mut scenario = scenario(vec![gate("fast"), fast, gate("slow"), slow, join]);
    scenario.chain.routes.push(Route { span, choice: Choice::Shares(shares), order });
    scenario
}

#[test]
fn the_slow_path_of_a_route_limits_the_samples_of_all_paths() {
    for order in [Order::Completion, Order::Input] {
        let prediction = predict(routed(order), Extent::Events(60_000));
        let found = figures(&prediction);
        // The slow op is always busy, and each of its samples comes with one of the other path.
        let rates: Vec<f64> = found.iter().map(|[qps, ..]| *qps).collect();
        for (rate, expected) in rates.iter().zip([25.0, 12.5, 12.5, 12.5, 12.5, 25.0, 25.0]) {
            assert!((rate / expected - 1.0).abs() < 0.04, "{order:?}: {rates:?}");
        }
        let busy = prediction.window.stages[3].task.shares.as_ref().unwrap().busy;
        assert!(busy > 0.97, "{order:?}: {busy}");
    }
}
