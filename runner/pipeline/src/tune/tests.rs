//! Tunes random pipelines in simulated time: the same schedule as in a run, with a clock that jumps from event to event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_engine::predict::{Rehearsal, Scenario};
use penstock_engine::running::Resize;
use penstock_types::machine::MachineFigures;
use penstock_types::plan::{Fields, Known, LiveSetting, Plan};
use penstock_types::spec::Spec;
use penstock_types::stats::{BookRow, Histogram};
use penstock_types::tune::{ChangeOutcome, SettingChange, Tune};
use penstock_types::verdict::PipelineShape;
use serde_json::{Value, json};

use super::live::is_ordered_by_one;
use super::propose::Proposed;
use super::{Question, Step, TuneLimits, Tuner};
use crate::predict::{IntervalSums, Times};

/// Time between two readings of a run's sums.
const PULSE: Duration = Duration::from_millis(250);
/// Longest tuned time.
const LONGEST: Duration = Duration::from_secs(240);
/// Time without a change after which the settings count as final.
const QUIET: Duration = Duration::from_secs(40);
const THREADS: u32 = 4;
const CORES: f64 = 4.0;

const LIMITS: TuneLimits = TuneLimits {
    threads: THREADS,
    cores: CORES,
    concurrency: 64,
    tasks: 4096,
    queue: 64,
    memory_mib: 1 << 20,
};

/// Numbers that look random, the same for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    /// A stage that takes 2 to 60 ms.
    fn sleep(&mut self) -> Value {
        let shape = self.one_of(&["uniform", "exponential"]);
        let order = self.one_of(&["completion", "input"]);
        let on = self.one_of(&["async", "async", "thread"]);
        json!({ "sleep": { "mean_ms": 2 + self.below(59), "shape": shape, "on": on, "order": order } })
    }

    /// A pipeline with a concurrency of 1 everywhere.
    fn document(&mut self) -> Value {
        let source = match self.below(4) {
            0 => json!({ "mix": { "sources": {
                "a": { "source": { "range": { "count": 1_000_000_000 } }, "weight": 3 },
                "b": { "source": { "range": { "count": 1_000_000_000 } }, "weight": 1 },
            } } }),
            _ => json!({ "range": { "count": 1_000_000_000 } }),
        };
        let mut stages: Vec<Value> = (0..=self.below(3)).map(|_| self.sleep()).collect();
        if self.below(4) == 0 {
            let path = |dice: &mut Self| (0..=dice.below(2)).map(|_| dice.sleep()).collect::<Vec<_>>();
            let paths = json!({ "a": path(self), "b": path(self) });
            let order = self.one_of(&["completion", "input"]);
            let route = json!({ "route": { "by": { "field": "kind" }, "paths": paths, "order": order } });
            stages.insert(self.below(stages.len() as u64 + 1) as usize, route);
        }
        if self.below(3) == 0 {
            stages.push(json!({ "aggregate": { "size": self.one_of(&[4, 16, 32]) } }));
            if self.below(2) == 0 {
                stages.push(self.sleep());
            }
        }
        let consumer = match self.below(3) {
            0 => json!({ "discard": {} }),
            _ => {
                json!({ "simulate": { "step_ms": 1 + self.below(80), "jitter": self.one_of(&[0.0, 0.1, 0.5]) } })
            }
        };
        json!({ "seed": self.below(1000), "threads": THREADS, "source": source, "stages": stages, "consumer": consumer })
    }
}

fn plan_of(document: &Value) -> Plan {
    let spec = Spec::from_value(document.clone()).unwrap();
    let known = Known { modules: &BTreeMap::new(), names: &[], fields: Some(Fields::UNKNOWN), stores: None };
    Plan::check(&spec, known).unwrap()
}

/// Facts that no document states: how many samples take each path of a route.
fn truth(plan: &Plan, document: &Value) -> Times {
    let books = plan
        .nodes()
        .enumerate()
        .map(|(node, _)| BookRow { taken: 1 + node as u64 % 3, ..BookRow::default() });
    let sums = IntervalSums { books: books.collect(), ..IntervalSums::filled(plan) };
    Times::of_interval(plan, document, (THREADS, CORES), &sums, None)
}

struct Tuned {
    plan: Plan,
    changes: Vec<SettingChange>,
    seconds: f64,
    /// Limit of the run at the end, in words.
    limit: String,
}

/// Tunes a pipeline in simulated time. `answer` predicts rates.
fn tuned(document: &Value, mut answer: impl FnMut(&Question, &Plan) -> Option<f64>) -> Tuned {
    let plan = plan_of(document);
    let times = truth(&plan, document);
    let mut run = Rehearsal::new(times.scenario(&plan).unwrap());
    let shape = PipelineShape::of(&plan, THREADS, None);
    let mut tuner = Tuner::new(Tune::Apply, plan.clone(), shape);
    let (mut passed, mut changed) = (Duration::ZERO, Duration::ZERO);
    while passed < LONGEST && passed - changed < QUIET {
        let sums = run.advance(PULSE);
        passed += PULSE;
        if !tuner.add(&sums) {
            continue;
        }
        let changes = match tuner.decide(None) {
            Step::Change(changes) => changes,
            Step::Search(question) => {
                let found = question.search(&LIMITS, &mut |plan| answer(&question, plan));
                tuner.answer(*question, found, sums.t1.nanos())
            }
        };
        for (setting, value) in changes {
            changed = passed;
            assert!(is_within(&plan, setting, value), "{setting:?} {value} {document}");
            apply(&mut run, &plan, setting, value);
        }
    }
    let limit = tuner.latest().map_or_else(String::new, |latest| latest.verdict.sentence.clone());
    Tuned {
        limit,
        plan: tuner.plan().clone(),
        changes: tuner.changes().to_vec(),
        seconds: passed.as_secs_f64(),
    }
}

fn is_within(plan: &Plan, setting: LiveSetting, value: u32) -> bool {
    let most = match setting {
        LiveSetting::Concurrency(place) => {
            LIMITS.most_tasks(plan.stages[place].kind.rules().work().is_on_thread())
        }
        LiveSetting::Queue(_) => LIMITS.queue,
        LiveSetting::Threads => 0,
    };
    (1..=most).contains(&value)
}

fn apply(run: &mut Rehearsal, plan: &Plan, setting: LiveSetting, value: u32) {
    super::resizes(plan, setting, value, |change: Resize<'_>| run.resize(change)).unwrap();
}

/// The answer of the predictor.
fn predicted(document: &Value) -> impl FnMut(&Question, &Plan) -> Option<f64> {
    let document = document.clone();
    move |question, plan| question.times(&document, &LIMITS, None).rate(plan, question.node)
}

fn rate(plan: &Plan, times: &Times) -> f64 {
    times.rate_within(plan, plan.stages.len() + 1, 40_000).unwrap()
}

/// Number of random pipelines.
fn pipelines() -> u64 {
    std::env::var("PENSTOCK_PIPELINES").ok().and_then(|number| number.parse().ok()).unwrap_or(3)
}

#[test]
fn random_pipelines_come_near_the_best_settings() {
    let (mut near, mut worst) = (0, Vec::new());
    for seed in 0..pipelines() {
        let document = Dice(seed).document();
        let tuned = tuned(&document, predicted(&document));
        let start = plan_of(&document);
        let times = truth(&start, &document);
        let best = times.best_rate(&start, LIMITS.memory_mib, (LIMITS.concurrency, LIMITS.queue)).unwrap();
        let share = rate(&tuned.plan, &times) / best;
        near += u64::from(share >= 0.95);
        if share < 0.95 {
            let lines: Vec<String> = tuned.changes.iter().map(ToString::to_string).collect();
            let (after, lines) = (tuned.seconds, lines.join("\n  "));
            worst.push(format!(
                "seed {seed}: {share:.3} after {after} s: {document}\n  {lines}\n  {}",
                tuned.limit
            ));
        }
        reversals_rest(&tuned.changes, seed);
    }
    assert!(near as f64 >= 0.95 * pipelines() as f64, "{near} of {}: {}", pipelines(), worst.join("\n"));
}

/// A setting that was undone is not tried again before its rest is over: a rest has two windows at least, of two seconds each.
fn reversals_rest(changes: &[SettingChange], seed: u64) {
    let mut undone: BTreeMap<String, f64> = BTreeMap::new();
    for change in changes {
        let key = change.pointer.to_string();
        if let Some(at) = undone.get(&key) {
            assert!(change.at_s - at >= 4.0, "seed {seed}: {change}");
        }
        if change.outcome == ChangeOutcome::Undone {
            let end = change.until_s.expect("an undone change tells when it was undone");
            undone.insert(key, end);
        }
    }
}

#[test]
fn false_predictions_do_no_harm_beyond_a_window() {
    for seed in 0..pipelines() {
        let document = Dice(seed).document();
        let mut dice = Dice(seed);
        let lies = |_: &Question, _: &Plan| Some(1.0 + dice.below(1000) as f64);
        let tuned = tuned(&document, lies);
        let start = plan_of(&document);
        let times = truth(&start, &document);
        let (before, after) = (rate(&start, &times), rate(&tuned.plan, &times));
        assert!(after >= 0.93 * before, "seed {seed}: {before} -> {after} {document}");
    }
}

#[test]
fn a_run_whose_consumer_is_the_limit_stays_as_it_is() {
    let mut found = BTreeSet::new();
    for step_ms in [20, 100] {
        let document = json!({
            "threads": THREADS,
            "source": { "range": { "count": 1_000_000_000 } },
            "stages": [{ "sleep": { "mean_ms": 10 } }, { "sleep": { "mean_ms": 15 } }],
            "consumer": { "simulate": { "step_ms": step_ms } },
        });
        let tuned = tuned(&document, |_, _| panic!("nothing is predicted"));
        found.insert(tuned.changes.len());
    }
    assert_eq!(found, BTreeSet::from([0]));
}

/// A stage with an op that computes, which is the limit, and a tuner.
fn computing() -> (Plan, Rehearsal, Tuner) {
    let document = json!({
        "threads": THREADS,
        "source": { "range": { "count": 1_000_000_000 } },
        "stages": [{ "aggregate": { "size": 2 } }, { "collate": {} }, { "sleep": { "mean_ms": 30 } }],
    });
    let plan = plan_of(&document);
    let run = Rehearsal::new(scenario_of(&plan, &document));
    let tuner = Tuner::new(Tune::Apply, plan.clone(), PipelineShape::of(&plan, THREADS, Some(4)));
    (plan, run, tuner)
}

/// The next question of a tuner in the next windows, beside programs that make the cores busy.
fn question_beside(run: &mut Rehearsal, tuner: &mut Tuner, busy_cores: f64) -> Option<Question> {
    let machine = MachineFigures {
        cores: 4,
        process_cores: 1.0,
        busy_cores: Some(busy_cores),
        ..MachineFigures::default()
    };
    (0..400).find_map(|_| match tuner.add(&run.advance(PULSE)).then(|| tuner.decide(Some(machine))) {
        Some(Step::Search(question)) => Some(*question),
        Some(Step::Change(_)) | None => None,
    })
}

fn scenario_of(plan: &Plan, document: &Value) -> Scenario {
    let mut ran = Histogram::default();
    ran.record(2_000_000);
    let mut sums = IntervalSums { t1: 1, ..IntervalSums::filled(plan) };
    sums.stages.iter_mut().for_each(|stage| {
        stage.op_times = ran.clone();
        (stage.row.tasks, stage.row.busy) = (1, 2_000_000);
    });
    Times::of_interval(plan, document, (THREADS, CORES), &sums, None).scenario(plan).unwrap()
}

#[test]
fn a_neighbour_that_takes_the_cores_is_not_answered_with_more_ops_until_it_leaves() {
    let (_, mut run, mut tuner) = computing();
    let beside = question_beside(&mut run, &mut tuner, 4.0).unwrap();
    assert_eq!(beside.resting, BTreeSet::from([LiveSetting::Concurrency(1)]));
    tuner.answer(beside, None, 0);
    assert!(question_beside(&mut run, &mut tuner, 4.0).is_none(), "nothing has changed");
    let alone = question_beside(&mut run, &mut tuner, 1.0)
        .expect("the limit and the rate are the same, but there are cores");
    assert_eq!(alone.resting, BTreeSet::new());
}

/// A tuner that tries more ops of the stage that sleeps, and the time at that moment.
fn trying() -> (Plan, Rehearsal, Tuner, u64) {
    let (plan, mut run, mut tuner) = computing();
    let question = question_beside(&mut run, &mut tuner, 1.0).unwrap();
    let proposed = Proposed { changes: vec![(LiveSetting::Concurrency(2), 4)], gains: vec![4.0] };
    let at = run.advance(PULSE).t1.nanos();
    for (setting, value) in tuner.answer(question, Some(proposed), at) {
        apply(&mut run, &plan, setting, value);
    }
    (plan, run, tuner, at)
}

#[test]
fn a_change_by_a_user_undoes_what_is_tried() {
    let (plan, _, mut tuner, at) = trying();
    assert_eq!(tuner.plan().stages[2].concurrency.get(), 4);
    assert_eq!(tuner.end_trial(at), [(LiveSetting::Concurrency(2), 1)]);
    tuner.on_set(LiveSetting::Queue(1), 9, "a test", at);
    let outcomes: Vec<_> = tuner.changes().iter().map(|change| (change.outcome, change.measured)).collect();
    assert_eq!(outcomes, [(ChangeOutcome::Undone, None), (ChangeOutcome::Set, None)]);
    assert_eq!(tuner.plan().stages[2].concurrency, plan.stages[2].concurrency);
}

#[test]
fn the_last_measurement_is_that_of_the_settings_that_were_kept() {
    let (_, mut run, mut tuner, _) = trying();
    while tuner.is_trying() {
        if tuner.add(&run.advance(PULSE)) {
            tuner.decide(None);
        }
    }
    let kept = tuner.changes().last().unwrap();
    assert_eq!(kept.outcome, ChangeOutcome::Kept);
    assert_eq!(tuner.latest().map(|latest| latest.rate), kept.measured);
}

#[test]
fn files_hold_a_stage_at_one_task_only_where_their_order_follows_from_it() {
    let is_held = |sleep: Value, tune: &str, consumer: Value| {
        let plan = plan_of(&json!({
            "tune": tune, "source": { "range": { "count": 9 } }, "consumer": consumer,
            "stages": [{ "sleep": sleep }, { "aggregate": { "size": 2 } }, { "collate": {} }],
        }));
        is_ordered_by_one(&plan, LiveSetting::Concurrency(0))
    };
    let (files, one) = (json!({ "files": { "store": "out" } }), json!({ "mean_ms": 1 }));
    assert!(is_held(one.clone(), "off", files.clone()));
    assert!(!is_held(one.clone(), "apply", files.clone()), "the recipe says that a tuner may start more");
    assert!(!is_held(one, "off", json!({ "discard": {} })));
    for free in [json!({ "mean_ms": 1, "order": "input" }), json!({ "mean_ms": 1, "concurrency": 2 })] {
        assert!(!is_held(free, "off", files.clone()));
    }
}

#[test]
fn limits_follow_the_settings_of_users() {
    let document = |tune: &str, fetches: u32| {
        plan_of(&json!({
            "threads": 4, "tune": tune,
            "source": { "list": { "store": "here" } },
            "stages": [{ "fetch": { "concurrency": fetches } }, { "sleep": { "mean_ms": 1 } }],
        }))
    };
    for tune in ["suggest", "apply"] {
        let limits = TuneLimits::of(&document(tune, 1), 4, CORES, 4096);
        assert!(limits.allow(&document(tune, 200)) && !limits.allow(&document(tune, 400)));
        // Memory for these was given to the run when a user set them.
        let set = document(tune, 400);
        let mut more = set.clone();
        LiveSetting::Concurrency(1).set(&mut more, 8);
        assert!(limits.beside(&set).allow(&more));
        LiveSetting::Threads.set(&mut more, 2);
        assert_eq!(limits.beside(&more).threads, 2);
    }
}
