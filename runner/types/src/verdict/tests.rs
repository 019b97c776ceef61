//! Checks the rules against recorded runs: means over the windows of the steady state, from `docs/source/_static/data` of
//! facebookresearch/spdl (BSD-2-Clause). The documents `001-*.json` and `002-*.json` in `examples/pipelines/seeds` describe
//! these runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::fault::Pointer;
use crate::kinds::Work;
use crate::plan::{Fields, Known, Plan};
use crate::spec::read_value;
use crate::stats::{QueueFigures, TaskFigures};
use crate::tune::{SettingChange, last_change};

/// Measurements of a stage and of the queue behind it: mean task time in ms; then items taken per second, mean put and get in ms,
/// readiness.
type Stage = (f64, [f64; 4]);

pub(super) fn shape(document: Value) -> PipelineShape {
    let spec = read_value(document).unwrap();
    let known = Known { modules: &BTreeMap::new(), names: &[], fields: Some(Fields::UNKNOWN), stores: None };
    let plan = Plan::check(&spec, known).unwrap();
    PipelineShape::of(&plan, 12, None)
}

/// A pipeline of sleeps and rebatching stages, in front of a training step of 30 ms.
fn pipeline(stages: Value) -> PipelineShape {
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
        cpu_s: None,
        tasks_per_s: None,
        shares: None,
        busy_s: busy * elapsed_s,
        thread_wait_s: 0.0,
        permit_wait_s: 0.0,
        blocked_s: blocked * elapsed_s,
        order_wait_s: 0.0,
        idle_s: (slots - busy - blocked) * elapsed_s,
        instances: 0,
    }
}

/// Figures of a run: the source's queue, the stages, and the sink's queue.
fn figures(
    shape: &PipelineShape,
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

/// Figures of a machine of which only the use of the cores is known.
fn figures_of(cores: u32, process_cores: f64, busy_cores: f64) -> MachineFigures {
    MachineFigures { cores, process_cores, busy_cores: Some(busy_cores), ..MachineFigures::default() }
}

fn judged(shape: &PipelineShape, figures: &(Vec<TaskFigures>, Vec<QueueFigures>)) -> Verdict {
    judged_on(shape, figures, None)
}

fn judged_on(
    shape: &PipelineShape,
    (stages, queues): &(Vec<TaskFigures>, Vec<QueueFigures>),
    machine: Option<&MachineFigures>,
) -> Verdict {
    Verdict::of(
        shape,
        Measured {
            from_s: 2.0,
            to_s: 9.0,
            stages: stages.clone(),
            queues: queues.clone(),
            samples: None,
            is_warm: true,
            is_over: true,
            failures: &[],
            machine,
        },
    )
}

/// Verdict of a recorded run of a document `002-*.json`, with a consumer that takes 30 ms per item.
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

/// Verdict of the recorded run of the document `001-four-stages.json`, with queues of one item.
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
fn recorded_runs_get_the_verdicts_of_their_description() {
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

/// A run of these stages for ten seconds in which no part waits and every slot is idle.
fn at_rest(shape: &PipelineShape, rate: f64) -> (Vec<TaskFigures>, Vec<QueueFigures>) {
    let stages = shape.stages.iter().map(|stage| tasks(stage.concurrency, 0.0, rate, 0.0, 10.0)).collect();
    let queues = (0..shape.stages.len() + 2).map(|_| queue(2, [rate, 0.0, 0.0, 1.0], 10.0)).collect();
    (stages, queues)
}

/// Sets the share of time in which each queue's reader waits, first to last.
fn starve<const N: usize>(queues: &mut [QueueFigures], shares: [f64; N]) {
    for (queue, share) in queues.iter_mut().zip(shares) {
        queue.starved = Some(share);
        queue.ave_get_time_s = queue.qps.filter(|qps| *qps > 0.0).map(|qps| share / qps);
    }
}

/// Sets the shares of the slots' time: busy, waiting for a thread, waiting for earlier results, blocked.
fn occupy(task: &mut TaskFigures, concurrency: u32, [busy, thread_wait, order_wait, blocked]: [f64; 4]) {
    let slots_s = f64::from(concurrency) * task.elapsed_s;
    task.busy_s = busy * slots_s;
    task.thread_wait_s = thread_wait * slots_s;
    task.order_wait_s = order_wait * slots_s;
    task.blocked_s = blocked * slots_s;
    task.idle_s = (1.0 - busy - thread_wait - order_wait - blocked) * slots_s;
    task.ave_time_s = Some(0.02);
}

fn found(verdict: &Verdict) -> (VerdictKind, Option<&str>) {
    (verdict.kind, verdict.stage.as_deref())
}

#[test]
fn a_random_wait_in_front_of_the_slowest_stage_does_not_blame_the_stage_before_it() {
    let shape = pipeline(json!([sleep("fast", 1), sleep("slow", 1)]));
    let mut run = at_rest(&shape, 20.0);
    // With random times and short queues, even the slow stage waits, but the fast stage is blocked for longer.
    occupy(&mut run.0[0], 1, [0.70, 0.0, 0.0, 0.25]);
    occupy(&mut run.0[1], 1, [0.88, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.12, 0.9, 0.4]);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Stage, Some("2:slow")));
}

#[test]
fn a_stage_that_only_moves_samples_is_never_the_limit() {
    let shape = pipeline(json!([sleep("slow", 1), { "aggregate": { "size": 4 } }, { "disaggregate": {} }]));
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[0], 1, [1.0, 0.0, 0.0, 0.0]);
    // Bursts fill the queue behind the aggregate for a moment.
    starve(&mut run.1, [0.0, 0.97, 0.03, 0.6, 0.3]);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Stage, Some("1:slow")));
    let shape = pipeline(json!([{ "aggregate": { "size": 4 } }]));
    let mut run = at_rest(&shape, 20.0);
    starve(&mut run.1, [1.0, 1.0, 0.3]);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Source, Some("0:src")));
}

#[test]
fn an_index_is_advised_for_listed_keys_alone() {
    let stages = json!([{ "fetch": { "store": "data" } }]);
    let of = |source: Value| shape(json!({ "source": source, "stages": stages })).source.store;
    assert_eq!(of(json!({ "list": { "store": "data" } })).as_deref(), Some("data"));
    assert_eq!(
        of(json!({ "mix": { "sources": { "a": { "source": { "list": { "store": "data" } } } } } }))
            .as_deref(),
        Some("data")
    );
    assert_eq!(of(json!({ "mds": { "store": "data" } })), None);
    assert_eq!(of(json!({ "tar": { "store": "data", "index": "index" } })), None);
    assert_eq!(of(json!({ "range": { "count": 1 } })), None);
}

#[test]
fn results_that_wait_for_the_order_hold_slots_but_not_behind_a_full_queue() {
    let ordered = json!({ "sleep": { "mean_ms": 20, "name": "decode", "concurrency": 4, "order": "input" } });
    let shape = pipeline(json!([ordered, sleep("slow", 1)]));
    let mut run = at_rest(&shape, 20.0);
    // Of four results, the first waits for room, and the others wait for the first.
    occupy(&mut run.0[0], 4, [0.1, 0.0, 0.65, 0.25]);
    occupy(&mut run.0[1], 1, [0.95, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.0, 0.9, 0.4]);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Stage, Some("2:slow")));
    // No result waits for room: a slow task in front delays the others.
    occupy(&mut run.0[0], 4, [0.5, 0.0, 0.48, 0.0]);
    occupy(&mut run.0[1], 1, [0.5, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.5, 0.9, 0.4]);
    let verdict = judged(&shape, &run);
    assert_eq!(found(&verdict), (VerdictKind::Stage, Some("1:decode")));
    let order = Setting { pointer: shape.stages[0].place.key("order"), value: json!("completion") };
    assert_eq!(verdict.advice[0].set, [order]);
    // A document that is to give the same batches in each run keeps the order.
    let fixed = judged(&PipelineShape { deterministic: true, ..shape }, &run);
    assert!(!fixed.advice.iter().flat_map(|advice| &advice.set).any(|set| set.value == json!("completion")));
}

#[test]
fn tasks_that_wait_for_threads_make_the_threads_the_limit() {
    let stage =
        |name: &str| json!({ "sleep": { "mean_ms": 20, "name": name, "concurrency": 8, "on": "thread" } });
    let shape = PipelineShape { threads: 4, ..pipeline(json!([stage("a"), stage("b")])) };
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[0], 8, [0.3, 0.7, 0.0, 0.0]);
    occupy(&mut run.0[1], 8, [0.2, 0.5, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.3, 1.0, 0.5]);
    let verdict = judged(&shape, &run);
    assert_eq!(found(&verdict), (VerdictKind::Threads, Some("1:a")));
    let block = verdict.to_string();
    assert!(block.starts_with(&format!("{}\n  {}\n", verdict.sentence, verdict.evidence[0])), "{block}");
    let advised = format!("\nWhat would help:\n  {} --set /threads=10", verdict.advice[0].text);
    assert!(block.contains(&advised), "{block}");
    let threads = verdict.threads.unwrap();
    assert_eq!((threads.threads, threads.busy, threads.least), (4, 4.0, 4));
    // Twice the rate keeps 8 threads busy; with a reserve of half the square root of 8, rounded up, 10 threads are advised.
    assert_eq!(
        serde_json::to_value(&verdict.advice[0].set).unwrap(),
        json!([{ "pointer": "/threads", "value": 10 }])
    );
    // The same waits with half of the threads free: another cause keeps tasks from starting.
    let shape = PipelineShape { threads: 8, ..shape };
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Stage, Some("1:a")));
}

#[test]
fn tasks_that_wait_for_permits_make_the_permits_the_limit_and_no_concurrency_is_advised() {
    let document = |stages: Value| {
        json!({
            "source": { "list": { "store": "photos" } },
            "stages": stages,
            "consumer": { "simulate": { "step_ms": 30 } }
        })
    };
    let fetch = json!({ "fetch": { "concurrency": 8 } });
    let unknown = shape(document(json!([fetch.clone(), sleep("load", 1)])));
    let shape_of =
        |stages: Value| shape(document(stages)).with_reads(|store| (store == "photos").then_some(64));
    let known = shape_of(json!([fetch, sleep("load", 1)]));
    let mut run = at_rest(&known, 20.0);
    occupy(&mut run.0[0], 8, [0.25, 0.0, 0.0, 0.0]);
    run.0[0].permit_wait_s = 0.75 * 80.0;
    run.0[0].idle_s = 0.0;
    occupy(&mut run.0[1], 1, [0.4, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.6, 0.6, 0.5]);
    let verdict = judged(&known, &run);
    assert_eq!((found(&verdict), verdict.answer), ((VerdictKind::Permits, Some("1:fetch")), Answer::Yes));
    insta::assert_json_snapshot!((&verdict.sentence, &verdict.evidence, &verdict.advice));
    let slots = &verdict.slots[0];
    assert_eq!((slots.permit_wait, slots.busy, slots.least), (6.0, 2.0, 3));
    let advice = judged(&unknown, &run).advice;
    assert!(
        advice[0].text.starts_with("Raise `reads` of store `photos` in the configuration, or let"),
        "{advice:?}"
    );
    // The stage is as busy as before, but its tasks rarely wait for permits: more tasks help, together with more permits if
    // these would not suffice.
    occupy(&mut run.0[0], 8, [0.8, 0.0, 0.0, 0.0]);
    run.0[0].permit_wait_s = 0.1 * 80.0;
    let verdict = judged(&known, &run);
    assert_eq!(found(&verdict), (VerdictKind::Storage, Some("1:fetch")));
    let [concurrency, ..] = verdict.advice.as_slice() else { panic!("{verdict:?}") };
    assert_eq!(
        concurrency.text,
        "Raise the concurrency of `1:fetch` from 8 to 15, for the 40.00/s that the consumer could take."
    );
    // Batches whose tasks always have a permit for one read count as busy, but request more permits than there are.
    let batches = shape_of(json!([{ "aggregate": { "size": 100 } }, { "fetch": {} }]));
    let mut run = at_rest(&batches, 20.0);
    occupy(&mut run.0[1], 1, [1.0, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.0, 1.0, 0.5]);
    let verdict = judged(&batches, &run);
    assert_eq!(found(&verdict), (VerdictKind::Permits, Some("2:fetch")));
    assert!(
        verdict.evidence.iter().any(|line| line.contains("request up to 100 permits")),
        "{:?}",
        verdict.evidence
    );
    // The store has as many permits as the stage has reads, so more tasks need more permits, too.
    let all = shape_of(json!([{ "aggregate": { "size": 64 } }, { "fetch": {} }]));
    let text = &judged(&all, &run).advice[0].text;
    let both = "Raise the concurrency of `2:fetch` from 1 to 3 and `reads` of store `photos` in the configuration from 64 to 192";
    assert!(text.starts_with(both), "{text}");
}

#[test]
fn no_more_threads_are_advised_than_the_machine_has_cores() {
    let document = json!({
        "source": { "range": { "count": 10 } },
        "stages": [{ "aggregate": { "size": 2 } }, { "collate": { "concurrency": 4 } }],
    });
    let shape = PipelineShape { threads: 4, cores: Some(4), ..shape(document) };
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[1], 4, [1.0, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.0, 1.0, 1.0]);
    let verdict = judged(&shape, &run);
    assert_eq!(found(&verdict), (VerdictKind::Stage, Some("2:collate")));
    assert!(verdict.advice.iter().all(|advice| advice.set.is_empty()), "{:?}", verdict.advice);
    let half = PipelineShape { threads: 2, ..shape };
    occupy(&mut run.0[1], 4, [0.5, 0.5, 0.0, 0.0]);
    let verdict = judged(&half, &run);
    assert_eq!(found(&verdict), (VerdictKind::Threads, Some("2:collate")));
    assert_eq!(
        serde_json::to_value(&verdict.advice[0].set).unwrap(),
        json!([{ "pointer": "/threads", "value": 4 }])
    );
}

/// Two computing stages on two threads: `preprocess` in both of its slots, and `collate` in little of its only one.
fn crowded(cores: u32, threads: u32) -> (PipelineShape, (Vec<TaskFigures>, Vec<QueueFigures>)) {
    let mut shape = pipeline(json!([sleep("preprocess", 2), sleep("collate", 1)]));
    (shape.threads, shape.cores) = (threads, Some(cores));
    for stage in &mut shape.stages {
        stage.work = Work::Computing;
    }
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[0], 2, [0.96, 0.03, 0.0, 0.0]);
    occupy(&mut run.0[1], 1, [0.07, 0.3, 0.0, 0.0]);
    for task in &mut run.0 {
        task.cpu_s = Some(task.busy_s);
    }
    starve(&mut run.1, [0.0, 0.6, 0.9, 0.9]);
    (shape, run)
}

#[test]
fn no_concurrency_is_advised_while_no_thread_or_core_is_free() {
    let raised = |verdict: &Verdict| {
        let settings = verdict.advice.iter().flat_map(|advice| &advice.set);
        settings.map(|setting| setting.pointer.as_str().to_owned()).collect::<Vec<_>>()
    };
    let (shape, run) = crowded(2, 2);
    let verdict = judged(&shape, &run);
    assert_eq!(found(&verdict), (VerdictKind::Stage, Some("1:preprocess")));
    assert_eq!(raised(&verdict), [""; 0]);
    assert_eq!(
        verdict.advice[0].text,
        "No core is free for more work. Of the 2 cores, the ops of this run use 2.0: make the ops cheaper, or use more cores."
    );
    // Sixteen cores have room for more threads.
    let (shape, run) = crowded(16, 2);
    assert!(raised(&judged(&shape, &run)).contains(&"/threads".to_owned()));

    // Other processes use all but the cores of this one, whose ops had a core for 40 % of their time.
    let (shape, mut run) = crowded(2, 2);
    for task in &mut run.0 {
        task.cpu_s = Some(0.4 * task.busy_s);
    }
    for (process_cores, users) in [
        (0.8, "0.8, other processes 1.2"),
        (1.1, "0.8, the rest of this process, such as other runs, 0.3, other processes 0.9"),
    ] {
        let machine = figures_of(2, process_cores, 2.0);
        let verdict = judged_on(&shape, &run, Some(&machine));
        assert_eq!(raised(&verdict), [""; 0]);
        let text = format!(
            "No core is free for more work. Of the 2 cores, the ops of this run use {users}: end what else runs on the machine, for up to 2.5 \
             times the rate, make the ops cheaper, or use more cores."
        );
        assert_eq!(verdict.advice[0].text, text);
    }
    let machine = figures_of(2, 0.85, 2.0);
    // Half a core is free, so that the rate can grow by 40 %.
    let half_free = MachineFigures { cores: 4, process_cores: 1.25, busy_cores: Some(3.5), ..machine };
    let shape = PipelineShape { cores: Some(4), ..shape };
    let verdict = judged_on(&shape, &run, Some(&half_free));
    assert!(
        verdict.advice[0]
            .text
            .ends_with("to get up to 1.4 times the rate, for which threads and cores have room."),
        "{:?}",
        verdict.advice
    );
}

#[test]
fn more_reads_are_advised_while_no_core_is_free() {
    let (mut shape, mut run) = crowded(2, 2);
    shape.stages[0].work = Work::Storage;
    run.0[0].cpu_s = None;
    let machine = figures_of(2, 0.1, 2.0);
    let verdict = judged_on(&shape, &run, Some(&machine));
    assert_eq!(found(&verdict), (VerdictKind::Storage, Some("1:preprocess")));
    let set: Vec<_> =
        verdict.advice.iter().flat_map(|advice| &advice.set).map(|set| set.pointer.as_str()).collect();
    assert_eq!(set, ["/stages/0/sleep/concurrency"]);
}

#[test]
fn a_stage_that_never_waits_for_room_delivers_no_bursts() {
    let shape = pipeline(json!([sleep("fetch", 1), sleep("image", 2), { "aggregate": { "size": 4 } }]));
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[0], 1, [0.3, 0.0, 0.0, 0.6]);
    occupy(&mut run.0[1], 2, [0.6, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.1, 0.986, 0.9, 0.3]);
    run.1[1].ave_put_time_s = Some(0.03);
    run.1[2].readiness = Some(0.0);
    let verdict = judged(&shape, &run);
    assert_eq!((found(&verdict), verdict.answer), ((VerdictKind::Stage, Some("2:image")), Answer::Yes));
    // More slots are advised for the limit, although the use of its slots alone does not ask for them.
    let place = Pointer::parse("/stages/1/sleep/concurrency").unwrap();
    assert_eq!(verdict.advice[0].set, [Setting { pointer: place, value: json!(3) }]);
    // With a queue that is full at times, it is bursts.
    run.1[2].ave_put_time_s = Some(0.01);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Variance, Some("2:image")));
}

#[test]
fn a_part_that_ended_early_is_not_the_limit() {
    let shape = pipeline(json!([sleep("fetch", 1), sleep("image", 1)]));
    let mut run = at_rest(&shape, 20.0);
    // In its 0.2 of 10 s, `fetch` was always busy, and its reader always waited.
    (run.0[0].elapsed_s, run.1[1].elapsed_s) = (0.2, 0.2);
    occupy(&mut run.0[0], 1, [1.0, 0.0, 0.0, 0.0]);
    occupy(&mut run.0[1], 1, [0.9, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 1.0, 0.9, 0.4]);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Stage, Some("2:image")));
}

#[test]
fn no_slots_are_advised_for_other_stages_if_the_limit_cannot_have_more() {
    let mut shape = pipeline(json!([sleep("fetch", 2), sleep("image", 1)]));
    shape.stages[1].may_grow = false;
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[0], 2, [0.95, 0.0, 0.0, 0.0]);
    occupy(&mut run.0[1], 1, [1.0, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.0, 0.9, 0.5]);
    let verdict = judged(&shape, &run);
    assert_eq!(found(&verdict), (VerdictKind::Stage, Some("2:image")));
    assert!(verdict.advice.iter().all(|advice| advice.set.is_empty()), "{:?}", verdict.advice);
}

#[test]
fn failing_samples_are_the_limit_when_they_would_have_sufficed() {
    let shape = pipeline(json!([{ "aggregate": { "size": 4 } }, sleep("decode", 1)]));
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[1], 1, [1.0, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.0, 1.0, 0.2]);
    let mut with_failures = |samples| {
        run.0[1].failed_samples = samples;
        judged(&shape, &run)
    };
    // 200 tasks of 4 samples each.
    assert_eq!(found(&with_failures(400)), (VerdictKind::Failures, Some("2:decode")));
    assert_eq!(found(&with_failures(200)), (VerdictKind::Failures, Some("2:decode")));
    let few = with_failures(80);
    assert_eq!(found(&few), (VerdictKind::Stage, Some("2:decode")));
    assert!(few.evidence.iter().any(|line| line.contains("10.0 % fail")), "{:?}", few.evidence);
    let mut nothing = at_rest(&shape, 20.0);
    nothing.0[1].failed_samples = 800;
    nothing.1[3] = QueueFigures { num_items: 0, qps: Some(0.0), ..nothing.1[3].clone() };
    let cold = Measured {
        from_s: 0.0,
        to_s: 10.0,
        stages: nothing.0,
        queues: nothing.1,
        samples: None,
        is_warm: false,
        is_over: true,
        failures: &[],
        machine: None,
    };
    assert_eq!(found(&Verdict::of(&shape, cold)), (VerdictKind::Failures, Some("2:decode")));
}

/// A pipeline with a stage in each of two paths of a route: source, gate, `slow`, gate, `fast`, join, sink.
fn routed() -> PipelineShape {
    shape(json!({
        "source": { "records": { "store": "s", "key": "k" } },
        "stages": [{ "route": { "by": { "field": "kind" }, "paths": { "a": [sleep("slow", 1)], "b": [sleep("fast", 1)] } } }],
        "consumer": { "simulate": { "step_ms": 30 } }
    }))
}

#[test]
fn the_stage_of_the_slow_path_of_a_route_is_the_limit() {
    let shape = routed();
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[1], 1, [1.0, 0.0, 0.0, 0.0]);
    occupy(&mut run.0[3], 1, [0.1, 0.0, 0.0, 0.0]);
    // The slow path is full, so that the router does not reach the samples of the fast path.
    starve(&mut run.1, [0.0, 0.0, 0.9, 0.9, 0.9, 0.6, 0.4]);
    let verdict = judged(&shape, &run);
    assert_eq!(found(&verdict), (VerdictKind::Stage, Some("1:route/a/1:slow")));
    let place = Pointer::parse("/stages/0/route/paths/a/0/sleep/concurrency").unwrap();
    assert!(verdict.advice[0].set.iter().any(|set| set.pointer == place), "{:?}", verdict.advice);
    // With a source that is slower than both, the paths starve as well.
    occupy(&mut run.0[1], 1, [0.5, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.9, 0.5, 0.9, 0.9, 0.9, 0.6, 0.6]);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Source, Some("0:src")));
}

#[test]
fn failures_in_a_path_count_with_the_share_of_the_samples_in_it() {
    let shape = routed();
    let mut run = at_rest(&shape, 20.0);
    occupy(&mut run.0[1], 1, [1.0, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 0.0, 1.0, 1.0, 1.0, 0.6, 0.2]);
    // Of 200 samples, 20 take the path `a`, in which all fail.
    (run.0[0].num_tasks, run.0[1].num_tasks, run.0[1].failed_samples) = (20, 20, 20);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Stage, Some("1:route/a/1:slow")));
    (run.0[0].num_tasks, run.0[1].num_tasks, run.0[1].failed_samples) = (120, 120, 120);
    assert_eq!(found(&judged(&shape, &run)), (VerdictKind::Failures, Some("1:route/a/1:slow")));
}

#[test]
fn little_or_nothing_delivered_is_not_judged() {
    let shape = pipeline(json!([sleep("slow", 1)]));
    let mut run = at_rest(&shape, 20.0);
    let mut told = |items, elapsed_s, is_over| {
        let sink = run.1.last_mut().unwrap();
        (sink.num_items, sink.elapsed_s) = (items, elapsed_s);
        let is_warm = false;
        let measured = Measured {
            from_s: 0.0,
            to_s: elapsed_s,
            stages: run.0.clone(),
            queues: run.1.clone(),
            samples: None,
            is_warm,
            is_over,
            failures: &[],
            machine: None,
        };
        Verdict::of(&shape, measured).sentence
    };
    assert_eq!(told(0, 30.0, false), "Not warmed up yet: nothing has been delivered.");
    assert_eq!(told(0, 30.0, true), "Nothing was delivered.");
    assert_eq!(told(3, 2.0, false), "Not warmed up yet: samples delivered so far: 3, in 2.0 sec.");
    assert_eq!(told(3, 2.0, true), "Too few samples were delivered for a verdict: 3.");
    assert!(told(8, 2.0, true).starts_with("The consumer is the limit"));
    assert!(told(3, 12.0, true).starts_with("The consumer is the limit"), "few items, but enough time");
}

#[test]
fn without_a_working_consumer_the_slowest_stage_is_named_however_fast_it_is() {
    let document = json!({ "source": { "range": { "count": 10 } }, "stages": [sleep("decode", 4)] });
    let shape = shape(document);
    let mut run = at_rest(&shape, 5000.0);
    occupy(&mut run.0[0], 4, [0.98, 0.0, 0.0, 0.0]);
    starve(&mut run.1, [0.0, 1.0, 1.0]);
    let verdict = judged(&shape, &run);
    assert_eq!((found(&verdict), verdict.demand), ((VerdictKind::Stage, Some("1:decode")), None));
    occupy(&mut run.0[0], 4, [0.2, 0.0, 0.0, 0.0]);
    assert_eq!(judged(&shape, &run).answer, Answer::NothingWaits);
}

#[test]
fn slots_add_up_to_the_concurrency() {
    let verdict = production();
    for slots in &verdict.slots {
        let sum = slots.busy
            + slots.thread_wait
            + slots.permit_wait
            + slots.order_wait
            + slots.blocked
            + slots.idle;
        assert!((sum - f64::from(slots.concurrency)).abs() < 1e-9, "{slots:?}");
    }
    let least: Vec<(&str, u32)> =
        verdict.slots.iter().map(|slots| (slots.stage.as_str(), slots.least)).collect();
    assert_eq!(least, [("2:download", 3), ("4:preprocess", 6), ("6:collate", 1), ("7:gpu_transfer", 1)]);
}

#[test]
fn sentence_and_answer_agree() {
    for consumer in [json!({ "discard": {} }), json!({ "simulate": { "step_ms": 1 } })] {
        let shape = shape(json!({
            "source": { "range": { "count": 1000 } }, "stages": [sleep("decode", 1)], "consumer": consumer
        }));
        for wait in [0.1, 0.3, 0.49, 0.51, 0.7, 1.0] {
            for busy in [0.05, 0.4, 1.0] {
                let mut run = at_rest(&shape, 20.0);
                occupy(&mut run.0[0], 1, [busy, 0.0, 0.0, 1.0 - busy]);
                starve(&mut run.1, [0.0, wait, wait]);
                let verdict = judged(&shape, &run);
                let begins = match verdict.answer {
                    Answer::Yes if shape.discards => "Data loading is all that is measured",
                    Answer::Yes => "Data loading is the bottleneck",
                    Answer::No => "The consumer is the limit",
                    Answer::NothingWaits => "Nothing is the limit",
                    Answer::Unknown => "Too little",
                };
                assert!(verdict.sentence.starts_with(begins), "{:?}: {}", verdict.answer, verdict.sentence);
            }
        }
    }
}

#[test]
fn a_shape_has_the_settings_that_held_at_a_time() {
    let before = pipeline(json!([sleep("load", 2)]));
    let change = |pointer: &str, at_s: f64, to: u32, outcome: &str| -> SettingChange {
        serde_json::from_value(json!({
            "at_s": at_s, "until_s": at_s + 5.0, "pointer": pointer, "from": 2, "to": to, "evidence": "", "before": null,
            "predicted": null, "measured": null, "outcome": outcome,
        }))
        .unwrap()
    };
    let changes = [
        change("/stages/0/sleep/concurrency", 10.0, 8, "undone"),
        change("/stages/0/sleep/queue", 10.0, 9, "set"),
        change("/sink/queue", 11.0, 7, "kept"),
        change("/threads", 11.0, 3, "suggested"),
    ];
    let at = |at_s| {
        let shape = before.at(&changes, at_s);
        (shape.stages[0].concurrency, shape.stages[0].queue, shape.sink_queue, shape.threads)
    };
    let (queue, sink) = (before.stages[0].queue, before.sink_queue);
    assert_eq!(at(9.0), (2, queue, sink, 12));
    assert_eq!(at(12.0), (8, 9, 7, 12));
    assert_eq!(at(20.0), (2, 9, 7, 12));
    assert_eq!(
        [(0.0, 30.0), (10.5, 14.0), (11.0, 15.0)].map(|(from, to)| last_change(&changes, from, to)),
        [Some(15.0), Some(11.0), None]
    );
}

#[test]
fn the_queue_of_a_route_is_that_of_its_gates() {
    let sleep = json!({ "sleep": { "mean_ms": 1 } });
    let route = json!({ "by": { "field": "kind" }, "paths": { "a": [sleep] }, "else": [], "queue": 5 });
    let shape = shape(json!({ "source": { "range": { "count": 9 } }, "stages": [{ "route": route }] }));
    let change: SettingChange = serde_json::from_value(json!({
        "at_s": 1.0, "until_s": null, "pointer": "/stages/0/route/queue", "from": 5, "to": 8, "evidence": "", "before": null,
        "predicted": null, "measured": null, "outcome": "set",
    }))
    .unwrap();
    let queues = |at_s| {
        shape
            .at(std::slice::from_ref(&change), at_s)
            .capacities()
            .filter(|capacity| [5, 8].contains(capacity))
            .collect::<Vec<_>>()
    };
    assert_eq!([queues(0.0), queues(2.0)], [[5, 5, 5], [8, 8, 8]]);
}
