//! The rules against the recorded runs of seeds 001 and 002: `docs/source/_static/data` of facebookresearch/spdl (BSD-2-Clause),
//! means over the windows of their steady state.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::plan::{Known, Plan};
use crate::spec::read_value;
use crate::stats::{QueueFigures, TaskFigures};

/// What was measured at a stage and the queue at its exit: mean task time in ms, then items taken per second, mean put and get
/// in ms, readiness.
type Stage = (f64, [f64; 4]);

fn shape(document: Value) -> Shape {
    let spec = read_value(document).unwrap();
    let plan = Plan::check(&spec, Known { modules: &BTreeMap::new(), stores: None }).unwrap();
    Shape::of(&plan, 12, None)
}

/// A pipeline of sleeps and of what rebatches, in front of a training step of 30 ms.
fn pipeline(stages: Value) -> Shape {
    shape(json!({
        "source": { "range": { "count": 1000 } },
        "stages": stages,
        "consumer": { "simulate": { "step_ms": 30 } }
    }))
}

fn sleep(name: &str, concurrency: u32) -> Value {
    json!({ "sleep": { "mean_ms": 1, "name": name, "concurrency": concurrency, "on": "async" } })
}

fn queue(capacity: usize, [qps, put_ms, get_ms, readiness]: [f64; 4], elapsed_s: f64) -> QueueFigures {
    QueueFigures {
        capacity,
        num_items: (qps * elapsed_s).round() as u64,
        elapsed_s,
        qps: Some(qps),
        ave_put_time_s: Some(put_ms / 1e3),
        ave_get_time_s: Some(get_ms / 1e3),
        p90_put_time_s: None,
        p99_put_time_s: None,
        p90_get_time_s: None,
        p99_get_time_s: None,
        readiness: Some(readiness),
        starved: Some((qps * get_ms / 1e3).min(1.0)),
    }
}

fn tasks(concurrency: u32, ave_ms: f64, taken_per_s: f64, blocked_slots: f64, elapsed_s: f64) -> TaskFigures {
    let slots = f64::from(concurrency);
    let busy = (taken_per_s * ave_ms / 1e3).min(slots);
    let blocked = blocked_slots.min(slots - busy);
    TaskFigures {
        num_tasks: (taken_per_s * elapsed_s) as u64,
        num_failures: 0,
        failed_samples: 0,
        elapsed_s,
        ave_time_s: Some(ave_ms / 1e3),
        p50_time_s: None,
        p90_time_s: None,
        p99_time_s: None,
        max_time_s: None,
        ave_thread_wait_s: None,
        busy_s: busy * elapsed_s,
        thread_wait_s: 0.0,
        blocked_s: blocked * elapsed_s,
        order_wait_s: 0.0,
        idle_s: (slots - busy - blocked) * elapsed_s,
        instances: 0,
    }
}

/// Figures of a run: of the source's queue, of the stages, and of the sink's queue.
fn figures(
    shape: &Shape,
    source: [f64; 4],
    stages: &[Stage],
    sink: [f64; 4],
) -> (Vec<TaskFigures>, Vec<QueueFigures>) {
    const ELAPSED_S: f64 = 7.0;
    let mut queues = vec![queue(2, source, ELAPSED_S)];
    let mut done = Vec::new();
    for (shape, (ave_ms, behind)) in shape.stages.iter().zip(stages) {
        let taken = queues.last().unwrap().qps.unwrap();
        done.push(tasks(shape.concurrency, *ave_ms, taken, behind[0] * behind[1] / 1e3, ELAPSED_S));
        queues.push(queue(2, *behind, ELAPSED_S));
    }
    queues.push(queue(3, sink, ELAPSED_S));
    (done, queues)
}

fn judged(shape: &Shape, (stages, queues): &(Vec<TaskFigures>, Vec<QueueFigures>)) -> Verdict {
    Verdict::of(
        shape,
        Measured { from_s: 2.0, to_s: 9.0, stages, queues, is_warm: true, is_over: true, failures: &[] },
    )
}

/// A run of seed 002 behind a consumer of 30 ms.
fn seed_002(stages: Value, source: [f64; 4], done: &[Stage], sink: [f64; 4]) -> Verdict {
    let shape = pipeline(stages);
    judged(&shape, &figures(&shape, source, done, sink))
}

fn multi(concurrency: u32, done: [Stage; 3], source: [f64; 4], sink: [f64; 4]) -> Verdict {
    seed_002(json!([sleep("10ms", 1), sleep("25ms", 1), sleep("40ms", concurrency)]), source, &done, sink)
}

fn multi1() -> Verdict {
    let stages = [
        (10.70, [24.55, 30.00, 0.00, 1.0]),
        (25.83, [24.55, 14.87, 0.00, 1.0]),
        (40.68, [24.55, 0.01, 40.81, 0.008]),
    ];
    multi(1, stages, [24.55, 40.63, 0.00, 1.0], [24.55, 0.00, 10.34, 0.008])
}

fn multi4() -> Verdict {
    let stages = [
        (10.60, [32.84, 19.73, 0.00, 1.0]),
        (25.87, [32.84, 4.46, 0.00, 1.0]),
        (40.74, [32.84, 50.45, 0.00, 1.0]),
    ];
    multi(3, stages, [32.84, 30.27, 0.00, 1.0], [32.84, 30.41, 0.00, 1.0])
}

/// Seed 001, with the buffers of one item that it had.
fn production() -> Verdict {
    let shape = shape(json!({
        "source": { "range": { "count": 1000 } },
        "stages": [
            { "aggregate": { "size": 8 } },
            sleep("download", 12),
            { "disaggregate": {} },
            { "sleep": { "mean_ms": 1, "name": "preprocess", "concurrency": 12, "on": "thread" } },
            { "aggregate": { "size": 4 } },
            sleep("collate", 12),
            sleep("gpu_transfer", 1)
        ],
        "consumer": { "simulate": { "step_ms": 82.6 } }
    }));
    let stages = [
        (4.0, [6.09, 130.0, 0.7, 0.996]),
        (253.0, [6.07, 1737.0, 1.0, 0.994]),
        (5.7, [48.57, 14.9, 0.2, 0.963]),
        (86.3, [48.56, 162.0, 0.3, 0.985]),
        (5.7, [12.14, 58.4, 1.1, 0.985]),
        (16.1, [12.12, 979.0, 0.5, 0.994]),
        (20.7, [12.12, 61.1, 13.7, 0.833]),
    ];
    judged(&shape, &figures(&shape, [48.73, 16.7, 0.1, 0.996], &stages, [12.11, 69.9, 13.0, 0.842]))
}

#[test]
fn the_recorded_runs_are_told_as_the_seeds_explain_them() {
    let single1 = seed_002(
        json!([sleep("25ms", 1)]),
        [32.84, 30.19, 0.00, 1.0],
        &[(25.80, [32.84, 4.48, 0.00, 1.0])],
        [32.84, 30.38, 0.01, 1.0],
    );
    let single2 = seed_002(
        json!([sleep("35ms", 1)]),
        [27.83, 35.71, 0.00, 1.0],
        &[(35.77, [27.83, 0.01, 35.91, 0.004])],
        [27.83, 0.00, 5.54, 0.004],
    );
    let multi2 = seed_002(
        json!([sleep("40ms", 1), sleep("25ms", 1), sleep("10ms", 1)]),
        [24.41, 40.93, 0.00, 1.0],
        &[
            (40.94, [24.41, 0.00, 15.42, 0.007]),
            (25.53, [24.41, 0.00, 30.25, 0.007]),
            (10.75, [24.41, 0.00, 41.08, 0.006]),
        ],
        [24.41, 0.00, 10.83, 0.006],
    );
    let multi3 = multi(
        2,
        [
            (10.64, [32.83, 19.76, 0.00, 1.0]),
            (25.89, [32.83, 4.50, 0.00, 1.0]),
            (40.93, [32.83, 19.97, 0.00, 1.0]),
        ],
        [32.83, 30.32, 0.00, 1.0],
        [32.83, 30.49, 0.01, 1.0],
    );
    let agg1 = seed_002(
        json!([sleep("6ms", 1), { "aggregate": { "size": 4 } }]),
        [131.52, 7.47, 0.00, 1.0],
        &[(6.61, [131.52, 0.91, 1.57, 0.571]), (0.14, [32.84, 23.43, 0.00, 1.0])],
        [32.84, 30.43, 0.00, 1.0],
    );
    let agg2 = seed_002(
        json!([sleep("6ms", 1), { "aggregate": { "size": 6 } }]),
        [148.50, 6.61, 0.00, 1.0],
        &[(6.62, [148.50, 0.00, 6.52, 0.002]), (0.16, [24.70, 0.00, 40.43, 0.009])],
        [24.70, 0.00, 10.20, 0.009],
    );
    let runs = [single1, single2, multi1(), multi2, multi3, multi4(), agg1, agg2, production()];
    let found = runs.each_ref().map(|verdict| (verdict.kind, verdict.stage.as_deref(), verdict.answer));
    assert_eq!(
        found,
        [
            (VerdictKind::Consumer, None, Answer::No),
            (VerdictKind::Stage, Some("1:35ms"), Answer::Yes),
            (VerdictKind::Stage, Some("3:40ms"), Answer::Yes),
            (VerdictKind::Stage, Some("1:40ms"), Answer::Yes),
            (VerdictKind::Consumer, None, Answer::No),
            (VerdictKind::Consumer, None, Answer::No),
            (VerdictKind::Consumer, None, Answer::No),
            (VerdictKind::Stage, Some("1:6ms"), Answer::Yes),
            (VerdictKind::Variance, Some("7:gpu_transfer"), Answer::No),
        ]
    );
    let told = runs.map(|verdict| serde_json::to_value(verdict).unwrap()).map(|mut verdict| {
        for member in ["slots", "threads", "from_s", "to_s", "rate", "demand", "consumer_wait"] {
            verdict.as_object_mut().unwrap().remove(member);
        }
        verdict
    });
    insta::assert_json_snapshot!(told);
}
