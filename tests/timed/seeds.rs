//! Runs of the pipelines in `examples/pipelines/seeds`. Their figures are compared with the expected behaviour, with SPDL's
//! measurements, and with figures derived from the service times of the run itself. On a busy machine, bounds of milliseconds
//! widen with the measured delay of sleeps; and a failed run is repeated.

#[path = "../benches/seeds/closed_form.rs"]
mod closed_form;
#[path = "../benches/seeds/experiment.rs"]
mod experiment;
#[path = "../benches/seeds/oracle.rs"]
mod oracle;

use std::sync::OnceLock;

use penstock_types::run::StageRecord;
use serde_json::{Value, json};

use self::experiment::{Figures, Run};
use self::oracle::Oracle;
use crate::{AGAIN, alone};

/// All pipelines, each with its number of one-second windows: 10 for the pipelines `002-*`, as in SPDL's measurements.
const EXPERIMENTS: [(&str, usize); 12] = [
    ("001-four-stages", 10),
    ("002-single1", 10),
    ("002-single2", 10),
    ("002-multi1", 10),
    ("002-multi2", 10),
    ("002-multi3", 10),
    ("002-multi4", 10),
    ("002-agg1", 10),
    ("002-agg2", 10),
    ("003-concurrency", 6),
    ("003-pool-large-enough", 6),
    ("003-pool-too-small", 6),
];

/// Number of concurrent runs, which mostly sleep.
const AT_ONCE: usize = 6;

/// Violations found in runs.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    /// Violations that `check` finds in runs.
    fn of<const N: usize>(check: impl Fn([&Run; N], &mut Self), runs: [&Run; N]) -> Vec<String> {
        let mut faults = Self::default();
        check(runs, &mut faults);
        faults.0
    }

    fn unless(&mut self, holds: bool, told: impl FnOnce() -> String) {
        if !holds {
            self.0.push(told());
        }
    }
}

/// Checks the named runs, and repeats runs that fail the check. The first call makes the runs of all pipelines together.
#[track_caller]
fn hold<const N: usize>(names: [&'static str; N], check: impl Fn([&Run; N], &mut Faults)) {
    static RUNS: OnceLock<Vec<Run>> = OnceLock::new();
    let runs = RUNS.get_or_init(|| Run::of_all(&EXPERIMENTS, AT_ONCE));
    let place = |name| EXPERIMENTS.iter().position(|(found, _)| *found == name).expect("it is in the list");
    let mut shown = vec![Faults::of(&check, names.map(|name| &runs[place(name)]))];
    for _ in 0..AGAIN {
        let Some(faults) = shown.last().filter(|faults| !faults.is_empty()) else { return };
        #[expect(clippy::print_stderr, reason = "a retry is visible in the test's output")]
        {
            eprintln!("once more, since {names:?} showed {faults:#?}");
        }
        let again = Run::of_all(&names.map(|name| EXPERIMENTS[place(name)]), AT_ONCE);
        shown.push(Faults::of(&check, std::array::from_fn(|place| &again[place])));
    }
    assert!(shown.last().is_some_and(Vec::is_empty), "every time: {shown:#?}");
}

/// True if the queue is full and its writer waits: the writer is faster than the reader.
fn is_fast_to_slow(queue: Figures) -> bool {
    queue.put_ms > 2.0 * queue.get_ms && queue.put_ms > 1.0 && queue.readiness > 0.9
}

/// True if the queue is empty and its reader waits: the reader is faster than the writer.
fn is_slow_to_fast(queue: Figures) -> bool {
    queue.get_ms > 2.0 * queue.put_ms && queue.get_ms > 1.0 && queue.readiness < 0.1
}

/// True if both values are equal within the noise of a busy machine.
fn is_about(one: f64, other: f64) -> bool {
    (one - other).abs() <= 0.08 * one.max(other)
}

/// Checks which side of every queue waits: `>` is fast to slow, `<` is slow to fast, `-` is not checked.
fn flow(run: &Run, sides: &str, faults: &mut Faults) {
    for (place, side) in sides.chars().enumerate() {
        let queue = run.queue(place);
        let holds = match side {
            '>' => is_fast_to_slow(queue),
            '<' => is_slow_to_fast(queue),
            _ => true,
        };
        faults.unless(holds, || format!("{}: queue {place} is not `{side}`: {queue:?}", run.name));
    }
    let is_loading = sides.ends_with('<');
    let answer = if is_loading { "? yes: " } else { "? no: " };
    faults.unless(run.answer.contains(answer), || format!("{}: {}", run.name, run.answer));
}

#[test]
fn one_stage_waits_for_a_slower_consumer_and_lets_a_faster_one_wait() {
    let _alone = alone();
    hold(["002-single1", "002-single2"], |[fast, slow], faults| {
        flow(fast, ">>>", faults);
        flow(slow, "><<", faults);
        faults.unless(fast.sink().qps > slow.sink().qps, || "the faster stage has no higher rate".to_owned());
        let (source, stage) = (fast.queue(0), fast.queue(1));
        faults.unless(source.put_ms > stage.put_ms, || "the source waits less than the stage".to_owned());
    });
}

#[test]
fn the_slowest_stage_limits_the_pipeline_at_any_position() {
    let _alone = alone();
    hold(["002-multi1", "002-multi2"], |[falling, rising], faults| {
        flow(falling, ">>><<", faults);
        flow(rising, "><<<<", faults);
        let rates = [falling.sink().qps, rising.sink().qps];
        faults.unless(is_about(rates[0], rates[1]), || format!("the order changes the rate: {rates:?}"));
        for run in [falling, rising] {
            let rates: Vec<f64> = (0..run.queues().len()).map(|place| run.queue(place).qps).collect();
            faults.unless(rates.iter().all(|&rate| is_about(rate, rates[0])), || {
                format!("{} has different rates at its queues: {rates:?}", run.name)
            });
        }
        let puts = [0, 1, 2, 3].map(|place| falling.queue(place).put_ms);
        faults.unless(puts.is_sorted_by(|one, next| one > next), || {
            format!("put does not fall from stage to stage: {puts:?}")
        });
        let gets = [1, 2, 3].map(|place| rising.queue(place).get_ms);
        faults.unless(gets.is_sorted_by(|one, next| one < next), || {
            format!("get does not rise from stage to stage: {gets:?}")
        });
        for run in [falling, rising] {
            let (before, sink) = (run.queue(3), run.sink());
            faults.unless(before.get_ms > sink.get_ms, || {
                format!("{}: the sink waits less than the consumer", run.name)
            });
        }
    });
}

#[test]
fn a_second_task_removes_the_limit_and_a_third_one_has_no_effect() {
    let _alone = alone();
    hold(["002-multi1", "002-multi3", "002-multi4"], |[one, two, three], faults| {
        flow(two, ">>>>>", faults);
        flow(three, ">>>>>", faults);
        let rates = [one, two, three].map(|run| run.sink().qps);
        faults.unless(rates[1] > 1.2 * rates[0], || format!("the second task gains too little: {rates:?}"));
        faults.unless(is_about(rates[1], rates[2]), || format!("the third task changes the rate: {rates:?}"));
        // With a third task, each put waits longer than with two, by the time of one step of the consumer.
        let more = three.queue(3).put_ms - two.queue(3).put_ms;
        let step = 1e3 / rates[2];
        faults.unless((more - step).abs() < 0.25 * step, || {
            format!("put grew by {more:.1} ms and not by a step of {step:.1} ms")
        });
    });
}

#[test]
fn a_queue_before_an_aggregate_is_never_full() {
    let _alone = alone();
    hold(["002-agg1", "002-agg2"], |[enough, too_large], faults| {
        flow(enough, ">->>", faults);
        flow(too_large, "><<<", faults);
        for (run, size) in [(enough, 4.0), (too_large, 6.0)] {
            let (before, behind) = (run.queue(1).qps, run.queue(2).qps);
            faults.unless(is_about(before, size * behind), || {
                format!("{}: {before:.1}/s become batches of {size}, {behind:.1}/s", run.name)
            });
        }
        let before = enough.queue(1);
        faults.unless((0.4..0.7).contains(&before.readiness), || format!("before the aggregate: {before:?}"));
        faults.unless(enough.queue(2).put_ms < enough.sink().put_ms, || {
            "the aggregate waits as long as the sink".to_owned()
        });
        faults.unless(enough.sink().qps > too_large.sink().qps, || "larger batches are as fast".to_owned());
    });
}

/// The reference pipelines that SPDL has measured.
const REFERENCES: [&str; 8] = [
    "002-single1",
    "002-single2",
    "002-multi1",
    "002-multi2",
    "002-multi3",
    "002-multi4",
    "002-agg1",
    "002-agg2",
];

/// Checks the sleeps in the documents, which the other tests do not: their bounds widen with longer sleeps.
#[test]
fn the_documents_002_are_the_pipelines_that_spdl_has_measured() {
    let oracle = Oracle::read();
    for name in REFERENCES {
        let path = penstock_tests::repository().join(format!("examples/pipelines/seeds/{name}.json"));
        let document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut stages = Vec::new();
        for stage in &oracle.scenario(name).stages {
            let mean_ms = stage.mean_ms as u64;
            let mut sleep = json!({
                "name": format!("{mean_ms}ms"), "mean_ms": mean_ms, "jitter": 0.1, "on": "async", "queue": 2
            });
            if stage.concurrency > 1 {
                sleep["concurrency"] = stage.concurrency.into();
            }
            stages.push(json!({ "sleep": sleep }));
            stages.extend(
                stage.then_aggregate.map(|size| json!({ "aggregate": { "size": size, "queue": 2 } })),
            );
        }
        let expected = json!({
            "name": name,
            "source": { "range": { "count": 1_000_000 } },
            "stages": stages,
            "sink": { "queue": 3 },
            "consumer": { "simulate": { "step_ms": 30 } }
        });
        assert_eq!(document, expected, "{name}");
    }
}

#[test]
fn every_queue_of_the_reference_pipelines_is_between_spdl_and_the_ideal() {
    let _alone = alone();
    let oracle = Oracle::read();
    assert_eq!(
        oracle.scenarios.iter().map(|scenario| format!("002-{}", scenario.name)).collect::<Vec<_>>(),
        REFERENCES
    );
    for name in REFERENCES {
        hold([name], |[run], faults| {
            let (scenario, near) = (oracle.scenario(name), oracle.near(run));
            for (place, id) in run.queues().into_iter().enumerate() {
                let bounds = (scenario.measured(place), scenario.ideal(place));
                for fault in near.outside(run.queue(place), bounds.0, bounds.1, scenario.writers(place)) {
                    let (what, late) = (&scenario.what, near.late_ms());
                    faults.0.push(format!("{name} ({what}), {id}: {fault}; sleeps late by {late:.2} ms"));
                }
            }
        });
    }
}

#[test]
fn every_queue_of_the_reference_pipelines_follows_from_the_times_of_its_run() {
    let _alone = alone();
    let oracle = Oracle::read();
    for name in REFERENCES {
        hold([name], |[run], faults| {
            let (scenario, near) = (oracle.scenario(name), oracle.near(run));
            for (place, stage) in (1..).zip(&scenario.stages) {
                let task_ms = run.task_ms(place);
                faults.unless(task_ms > 0.98 * stage.mean_ms, || format!("{name}: a sleep of {task_ms} ms"));
            }
            let expected = closed_form::queues(scenario, run);
            assert_eq!(expected.len(), run.queues().len());
            for (place, id) in run.queues().into_iter().enumerate() {
                let form = expected[place];
                for fault in near.outside(run.queue(place), form, form, scenario.writers(place)) {
                    faults.0.push(format!("{name}, {id}: {fault}, by the run's own times"));
                }
            }
        });
    }
}

/// Mean time that a task waited for a thread, in milliseconds.
fn thread_wait_ms(run: &Run, stage: usize) -> f64 {
    run.of_stage(stage, |stage| stage.task.ave_thread_wait_s.unwrap_or(0.0)) * 1e3
}

/// Share of the slots' total time that `seconds` selects, e.g. the time spent waiting for a thread.
fn slots(run: &Run, stage: usize, seconds: fn(&StageRecord) -> f64) -> f64 {
    let all = |stage: &StageRecord| {
        let task = &stage.task;
        task.busy_s
            + task.thread_wait_s
            + task.permit_wait_s
            + task.blocked_s
            + task.order_wait_s
            + task.idle_s
    };
    run.of_stage(stage, seconds) / run.of_stage(stage, all)
}

#[test]
fn more_tasks_than_threads_wait_for_a_thread() {
    let _alone = alone();
    hold(["003-pool-large-enough", "003-pool-too-small"], |[enough, too_small], faults| {
        for (run, threads) in [(enough, 3.0), (too_small, 2.0)] {
            let (rate, task_s) = (run.sink().qps, run.task_ms(1) / 1e3);
            faults.unless(is_about(rate, threads / task_s), || {
                format!("{}: {rate:.1}/s, with {threads} threads and tasks of {task_s:.4} s", run.name)
            });
        }
        // Three tasks of length t share two threads: so each task runs once per 3 t / 2, and waits for a thread for t / 2 of that
        // time.
        let (wait, task) = (thread_wait_ms(too_small, 1), too_small.task_ms(1));
        faults.unless((wait - task / 2.0).abs() < 0.1 * task, || {
            format!("tasks of {task:.1} ms waited {wait:.1} ms for a thread")
        });
        let wait = thread_wait_ms(enough, 1);
        faults.unless(wait < 0.1 * enough.task_ms(1), || format!("waited {wait:.1} ms for a thread"));
        let waiting = [enough, too_small].map(|run| slots(run, 1, |stage| stage.task.thread_wait_s));
        faults.unless(waiting[0] < 0.1 && (0.25..0.42).contains(&waiting[1]), || {
            format!("shares of the slots that wait for a thread: {waiting:.3?}")
        });
    });
}

#[test]
fn concurrency_divides_the_time_of_a_task() {
    let _alone = alone();
    hold(["003-concurrency"], |[run], faults| {
        flow(run, ">><<", faults);
        let (rate, task_s) = (run.sink().qps, run.task_ms(2) / 1e3);
        faults.unless(is_about(rate, 2.0 / task_s), || {
            format!("{rate:.1}/s from two tasks at a time of {task_s:.4} s")
        });
        // Four concurrent downloads are faster than the stage after them, so the slots of the downloads wait for room.
        let (wait, task) = (run.queue(1).put_ms, run.task_ms(1));
        let expected = 4e3 / rate - task;
        faults.unless((wait - expected).abs() < 0.1 * (wait + task), || {
            format!("downloads of {task:.1} ms waited {wait:.1} ms for room, not {expected:.1}")
        });
    });
}

#[test]
fn bursts_let_both_sides_of_a_small_queue_wait() {
    let _alone = alone();
    let text = std::fs::read(penstock_tests::repository().join("tests/data/production.json")).unwrap();
    let production: Value = serde_json::from_slice(&text).unwrap();
    let readiness = |place: usize| {
        production["stages"][place]["exit_queue"]["occupancy"]["mean"].as_f64().expect("it was measured")
    };
    hold(["001-four-stages"], |[run], faults| {
        let (step, names) = (1e3 / run.sink().qps, run.queues());
        assert_eq!(names[7], "7:gpu-transfer_queue");
        // The queues up to that of the stage collate are ready, as in production: data arrives faster than the stage transfer
        // takes it.
        for (place, name) in names.iter().enumerate().take(7) {
            let (queue, then) = (run.queue(place), readiness(place));
            faults.unless(queue.readiness > then - 0.15 && queue.put_ms > queue.get_ms, || {
                format!("{name}: {queue:?}; readiness in production {then:.3}")
            });
        }
        // The stage transfer is fast enough on average, but the writer and the reader of its queue both wait.
        let (task, queue) = (run.task_ms(7), run.queue(7));
        faults.unless(task < 0.9 * step, || format!("transfer takes {task:.1} ms of a step of {step:.1}"));
        let waits = [queue.put_ms, queue.get_ms].map(|ms| ms / step);
        let then = readiness(7);
        faults.unless(waits[0] > 0.15 && (waits[1] - (1.0 - then)).abs() < 0.1, || {
            format!("waits around transfer's queue, in steps: {waits:.3?}; readiness in production {then:.3}")
        });
        let ready = [queue, run.sink()].map(|queue| queue.readiness);
        faults.unless((0.4..0.9).contains(&ready[0]) && ready[0] < ready[1] && ready[1] < 0.99, || {
            format!("no drop at transfer and recovery at the sink: {ready:.3?}")
        });
    });
}
