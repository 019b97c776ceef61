use penstock_engine::graph::StageOp;
use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::json;
use tokio::runtime::Runtime;

use super::*;
use crate::modules::Modules;
use crate::prepare::Outlets;
use crate::runner::Runner;
use crate::stores::Stores;

fn prepared(runtime: &Runtime, stages: serde_json::Value) -> Prepared {
    let document = json!({ "threads": 2, "max_failures": null, "source": { "range": { "count": 100_000, "epochs": 1 } }, "stages": stages });
    let modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    let runner = Runner::new(runtime.handle().clone(), Stores::default(), modules);
    runner.prepare(&Spec::from_value(document).unwrap(), Outlets::ALL).unwrap()
}

fn settings(stages: &[&str]) -> ProfileSettings {
    ProfileSettings {
        stages: stages.iter().map(|stage| (*stage).to_owned()).collect(),
        at_a_time: vec![2, 1],
        most_threads: 2,
        most_waiting: ProfileSettings::MOST_WAITING,
        record: Duration::from_millis(300),
        span: Duration::from_millis(30),
        memory_bytes: 4000,
    }
}

fn measured(stages: serde_json::Value, wanted: &[&str]) -> Result<(Profile, Vec<String>), ProfileError> {
    let runtime = Runtime::new().unwrap();
    let mut steps = Vec::new();
    let mut on_start = |step: ProfileStep<'_>, _: &Run| steps.push(format!("{step:?}"));
    let profile = profile(&prepared(&runtime, stages), runtime.handle(), &settings(wanted), &mut on_start)?;
    Ok((profile, steps))
}

#[test]
fn each_stage_with_an_op_is_measured_alone_on_its_own_inputs() {
    let stages = json!([
        { "sleep": { "mean_ms": 0.1, "on": "thread", "name": "one" } },
        { "aggregate": { "size": 5 } },
        { "sleep": { "mean_ms": 0.1, "on": "async", "name": "many", "fail_rate": 1 } },
        { "sleep": { "mean_ms": 0.1, "on": "async", "name": "never" } },
    ]);
    let (profile, steps) = measured(stages, &[]).unwrap();
    let [one, many] = &profile.stages[..] else { panic!("{profile:?}") };
    assert_eq!((one.id.as_str(), many.id.as_str()), ("1:one", "3:many"));
    assert_eq!((&profile.without_inputs[..], profile.threads), (&["4:never".to_owned()][..], 2));
    assert_eq!((one.computes, many.computes), (true, false));
    let at = |stage: &StageProfile| stage.points.iter().map(|point| point.at_a_time).collect::<Vec<_>>();
    assert_eq!((at(one), &at(many)[..2]), (vec![1, 2], &[1, 2][..]));
    // A third of 4,000 bytes for each stage.
    assert!(
        one.inputs.is_full && one.inputs.items == one.inputs.samples && one.inputs.bytes <= 1333,
        "{one:?}"
    );
    assert_eq!(many.inputs.samples, 5 * many.inputs.items);
    for stage in [one, many] {
        let points = &stage.points;
        assert!(points.iter().all(|point| point.ops >= 6 && point.op_s >= 1e-4), "{points:?}");
        assert!((points[0].slowdown - 1.0).abs() < 1e-9, "{points:?}");
    }
    assert!(one.points.iter().all(|point| point.cpu_s.is_some() && point.failed_samples == 0), "{one:?}");
    assert!(many.points.iter().all(|point| point.cpu_s.is_none()), "{many:?}");
    assert_eq!(many.points[0].failed_samples, 5 * many.points[0].ops);
    assert_eq!((one.memory_bytes, many.cpu_s_per_1000), (None, None));
    assert!(one.company.is_some_and(|company| company.at_a_time > 0.0), "{one:?}");
    let first = "Alone { stage: \"1:one\", at_a_time: 1, round: 1 }";
    assert_eq!((steps[0].as_str(), steps[1].as_str()), ("Recording", first));
}

/// An op of 140 ms ends once in 200 ms, but does not take 200 ms.
#[test]
fn a_measurement_lasts_until_an_op_ends() {
    let runtime = Runtime::new().unwrap();
    let prepared = prepared(&runtime, json!([{ "sleep": { "mean_ms": 140, "on": "thread" } }]));
    let span = Duration::from_millis(200 * ROUNDS as u64);
    let settings = ProfileSettings { at_a_time: vec![1], record: span, span, ..settings(&[]) };
    let profile = profile(&prepared, runtime.handle(), &settings, &mut |_, _| ()).unwrap();
    let point = profile.stages[0].points[0];
    assert!(point.op_s < 0.18 && point.samples_per_s > 1.0 / 0.18, "{point:?}");
}

#[test]
fn only_the_wanted_stages_are_measured() {
    let stages =
        json!([{ "sleep": { "mean_ms": 0.1, "name": "a" } }, { "sleep": { "mean_ms": 0.1, "name": "b" } }]);
    let (profile, _) = measured(stages.clone(), &["2:b"]).unwrap();
    assert_eq!(profile.stages.iter().map(|stage| stage.id.as_str()).collect::<Vec<_>>(), ["2:b"]);
    let unknown = measured(stages, &["b", "c"]).unwrap_err().to_string();
    assert_eq!(unknown, "there is no stage `c` with an op; those are `1:a`, `2:b`");
    assert!(matches!(measured(json!([{ "aggregate": { "size": 2 } }]), &[]), Err(ProfileError::NoOp)));
}

#[test]
fn ops_at_a_time_go_up_to_the_cores() {
    assert_eq!(numbers(&[], 1), [1]);
    assert_eq!(numbers(&[], 2), [1, 2]);
    assert_eq!(numbers(&[], 6), [1, 2, 4, 6]);
    assert_eq!(numbers(&[8, 2, 8], 2), [1, 2, 8]);
}

/// Keeps the keys of its inputs.
struct Keys(Arc<std::sync::Mutex<Vec<String>>>);

impl ThreadOp for Keys {
    fn apply(&mut self, item: Item, _stop: &StopFlag) -> Output {
        let (key, _) = item.first().unwrap();
        self.0.lock().unwrap().push(key.to_string());
        Output::one(item)
    }
}

impl ThreadOpFactory for Keys {
    fn build(&self, _stop: &StopFlag) -> Result<Box<dyn ThreadOp>, penstock_engine::ports::Fault> {
        Ok(Box::new(Self(self.0.clone())))
    }
}

#[test]
fn recorded_inputs_are_given_in_turn_in_place_of_those_that_come() {
    let sample = |key: &str, bytes: usize| {
        let mut sample = Sample::new(key, Origin::default());
        sample.set("bytes", Value::Blob(vec![0; bytes].into()));
        Item::Sample(sample)
    };
    let seen = Arc::default();
    let through = |tap: &Arc<Tap>, keys: &[&str]| {
        let factory = Arc::new(Keys(Arc::clone(&seen)));
        let op = StageOp::Threads {
            factory,
            concurrency: Concurrency::default(),
            order: Order::Completion,
            stateful: false,
        };
        let StageOp::Threads { factory, .. } = tap.clone().on(op) else {
            panic!("an op on threads stays one")
        };
        let mut op = factory.build(&StopFlag::default()).unwrap();
        keys.iter().for_each(|key| drop(op.apply(sample(key, 1000), &StopFlag::default())));
        std::mem::take(&mut *seen.lock().unwrap())
    };
    let recording = Arc::new(Tap::recording(2500));
    assert_eq!(through(&recording, &["a", "b", "c"]), ["a", "b", "c"]);
    let recorded = recording.recorded();
    assert_eq!((recorded.inputs.items, recorded.inputs.is_full, recorded.items.len()), (2, true, 2));
    let giving = Arc::new(Tap::giving(Arc::new(recorded.items)));
    assert_eq!(through(&giving, &["x", "y", "z"]), ["a", "b", "a"]);
    assert!((giving.bytes_out() - 1000.0).abs() < 1e-9);
}

#[test]
fn no_more_ops_wait_at_a_time_than_are_allowed() {
    let runtime = Runtime::new().unwrap();
    let prepared = prepared(&runtime, json!([{ "sleep": { "mean_ms": 0.5 } }]));
    let settings = ProfileSettings { most_waiting: 2, ..settings(&[]) };
    let measured = profile(&prepared, runtime.handle(), &settings, &mut |_, _| {}).unwrap();
    let at_a_time: Vec<u32> = measured.stages[0].points.iter().map(|point| point.at_a_time).collect();
    assert_eq!(at_a_time, [1, 2]);
    let plans: Vec<_> = widest(&prepared.plan, 3, 2)
        .map(|plan| (plan.stages[0].concurrency.get(), plan.buffer_bytes))
        .collect();
    assert_eq!(plans, [(2, prepared.plan.buffer_bytes)], "an op that waits, in the memory of the document");
}
