use penstock_tests::{Chance, Figures};
use penstock_types::kinds::Work;
use penstock_types::plan::Plan;
use penstock_types::policy::Order;
use penstock_types::run::{QueueRecord, StageRecord};
use penstock_types::stats::{QueueFigures, TaskFigures, per_second};
use penstock_types::verdict::{Answer, Measured, PipelineShape, Verdict, VerdictKind};

use serde_json::json;

use super::pipeline::Pipeline;

const CASES: u64 = 5_000;
/// Length of the measured interval, in seconds.
const LENGTH_S: f64 = 10.0;

/// Random figures that agree with each other: a slot without a task has found its queue empty, a stage that only moves samples
/// always waits at one of its queues, and parts that ended early measured less.
struct Made {
    stages: Vec<StageRecord>,
    queues: Vec<QueueRecord>,
    threads: u32,
    cores: u32,
}

impl Made {
    fn new(chance: &mut Chance, plan: &Plan) -> Self {
        let nodes = plan.stages.len() + 2;
        let ended = if chance.once_in(3) { chance.below(nodes as u64 - 1) as usize } else { 0 };
        let early_s = LENGTH_S * chance.pick(&[0.0, 0.001, 0.02, 0.3, 0.7]);
        let elapsed_s = |node: usize| if node < ended { early_s } else { LENGTH_S };
        let rate = chance.from(2, 2_000) as f64 / 10.0;

        let (mut starved, mut blocked) = (Vec::new(), Vec::<f64>::new());
        for node in 0..nodes {
            let before = node.checked_sub(1).map(|queue| starved[queue]);
            let moves = node > 0
                && plan.stages.get(node - 1).is_none_or(|stage| stage.kind.rules().work() == Work::Moving);
            let free = 1.0 - before.unwrap_or(0.0);
            let waits = chance.pick(&[0.0, 0.0, 0.02, 0.1, 1.0]) * share(chance);
            blocked.push(if moves { free } else { free * waits });
            let most = if moves { before.unwrap_or(0.0) } else { 1.0 - blocked[node] };
            starved.push(most * chance.pick(&[0.0, 0.04, 0.2, 1.0, 1.0]) * share(chance));
        }
        let items = |queue: usize| {
            let samples = plan.flow_into(queue.min(plan.stages.len())).samples as f64;
            ((rate * plan.flow().samples as f64 / samples * elapsed_s(queue)) as u64)
                .max(u64::from(elapsed_s(queue) > 0.0))
        };
        let is_crowded = chance.once_in(3);
        let stages: Vec<StageRecord> = plan
            .stages
            .iter()
            .enumerate()
            .map(|(place, stage)| {
                let slots = f64::from(stage.concurrency.get());
                // Of several slots, at least one waits whenever the reader or the queue behind it does.
                let mut per_slot = |waits: f64| waits * (1.0 + (slots - 1.0) * share(chance)) / slots;
                let (idle, blocked) = (per_slot(starved[place]), per_slot(blocked[place + 1]));
                let mut rest = 1.0 - idle - blocked;
                let mut part = |is_possible: bool| {
                    let part = if is_possible && chance.once_in(2) { rest * share(chance) } else { 0.0 };
                    rest -= part;
                    part
                };
                let order_wait = part(stage.order == Order::Input && slots > 1.0);
                let thread_wait = part(is_crowded && stage.kind.rules().work().is_on_thread());
                let permit_wait = part(stage.kind.rules().work() == Work::Storage);
                let slots_s = slots * elapsed_s(place + 1);
                let tasks = items(place);
                let failed = if stage.kind.rules().work() != Work::Moving && chance.once_in(6) {
                    share(chance)
                } else {
                    0.0
                };
                let task = TaskFigures {
                    num_tasks: tasks,
                    failed_samples: (failed * (tasks * plan.flow_into(place).samples) as f64) as u64,
                    elapsed_s: elapsed_s(place + 1),
                    ave_time_s: (tasks > 0).then(|| rest * slots_s / tasks as f64),
                    cpu_s: stage.kind.rules().work().is_on_thread().then(|| rest * slots_s * share(chance)),
                    busy_s: rest * slots_s,
                    thread_wait_s: thread_wait * slots_s,
                    permit_wait_s: permit_wait * slots_s,
                    order_wait_s: order_wait * slots_s,
                    blocked_s: blocked * slots_s,
                    idle_s: idle * slots_s,
                    ..TaskFigures::default()
                };
                let (id, name, label) = (stage.id.to_string(), stage.id.name().to_owned(), String::new());
                StageRecord {
                    id,
                    name,
                    kind: stage.kind.name(),
                    label,
                    concurrency: stage.concurrency.get(),
                    task,
                }
            })
            .collect();
        let queues = (0..nodes)
            .map(|node| {
                let (elapsed_s, num_items) = (elapsed_s(node), items(node));
                let is_measured = elapsed_s > 0.0;
                let [get, put] = [&starved, &blocked].map(|waits| waits[node]);
                let ready = put + (1.0 - get - put).max(0.0) * share(chance);
                let figures = QueueFigures {
                    num_items,
                    elapsed_s,
                    qps: per_second(num_items, elapsed_s),
                    ave_put_time_s: is_measured.then(|| put * elapsed_s / num_items as f64),
                    ave_get_time_s: is_measured.then(|| get * elapsed_s / num_items as f64),
                    readiness: is_measured.then_some(ready),
                    starved: is_measured.then_some(get),
                    ..QueueFigures::default()
                };
                QueueRecord { id: format!("{node}_queue"), label: String::new(), figures }
            })
            .collect();
        let sum = |of: fn(&TaskFigures) -> Option<f64>| -> u32 {
            let used =
                stages.iter().filter_map(|stage| Some(of(&stage.task)? / stage.task.elapsed_s.max(1e-9)));
            (used.sum::<f64>() - 1e-9).ceil().max(1.0) as u32
        };
        let threads =
            sum(|task| task.cpu_s.map(|_| task.busy_s)) + if is_crowded { 0 } else { chance.below(3) as u32 };
        let cores = sum(|task| task.cpu_s) + chance.below(3) as u32;
        Self { stages, queues, threads, cores }
    }
}

fn share(chance: &mut Chance) -> f64 {
    chance.below(1_001) as f64 / 1e3
}

impl Made {
    fn verdict(&self, plan: &Plan) -> Verdict {
        let measured = Measured {
            from_s: 0.0,
            to_s: LENGTH_S,
            stages: self.stages.iter().map(|stage| stage.task.clone()).collect(),
            queues: self.queues.iter().map(|queue| queue.figures.clone()).collect(),
            samples: None,
            is_warm: true,
            is_over: true,
            failures: &[],
            machine: None,
        };
        Verdict::of(&PipelineShape::of(plan, self.threads, Some(self.cores)), measured)
    }

    fn contradictions(&self, verdict: &Verdict) -> Vec<String> {
        let cores = Some(f64::from(self.cores));
        let figures = Figures { stages: &self.stages, queues: &self.queues, cores, apart: 0.0 };
        figures.contradictions(verdict)
    }
}

#[test]
fn verdicts_on_random_figures_agree_with_them() {
    let mut found = Vec::new();
    for number in 0..CASES {
        let mut chance = Chance::new(number.wrapping_add(20_000));
        let mut pipeline = Pipeline::new(number);
        // A consumer that discards items always waits, which these figures do not.
        pipeline.document["consumer"] = json!({ "simulate": { "step_ms": 1 } });
        let plan = pipeline.plan(&pipeline.document, 240);
        let made = Made::new(&mut chance, &plan);
        let verdict = made.verdict(&plan);
        let (kind, stage) = (verdict.kind.name(), &verdict.stage);
        let contradictions = made.contradictions(&verdict).into_iter();
        found.extend(contradictions.map(|found| format!("{number}: {kind} {stage:?}: {found}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn bursts_are_not_those_of_a_stage_before_one_whose_queue_is_never_ready() {
    let document = json!({
        "source": { "list": { "store": "s" } },
        "stages": [{ "fetch": {} }, { "wasm": { "name": "image", "module": "m", "concurrency": 2 } }, { "aggregate": { "size": 4 } }],
        "consumer": { "simulate": { "step_ms": 1 } }
    });
    let plan = Pipeline::new(0).plan(&document, 240);
    let mut made = Made::new(&mut Chance::new(0), &plan);
    for (stage, [busy, blocked]) in made.stages.iter_mut().zip([[0.3, 0.6], [0.6, 0.0], [0.0, 0.1]]) {
        let slots_s = f64::from(stage.concurrency) * LENGTH_S;
        stage.task = TaskFigures {
            num_tasks: 200,
            elapsed_s: LENGTH_S,
            ave_time_s: Some(busy * slots_s / 200.0),
            cpu_s: stage.task.cpu_s.map(|_| 0.3 * slots_s),
            busy_s: busy * slots_s,
            blocked_s: blocked * slots_s,
            idle_s: (1.0 - busy - blocked) * slots_s,
            ..TaskFigures::default()
        };
    }
    let waits = [[0.0, 0.1], [0.1, 0.6], [0.986, 0.0], [0.5, 0.1], [0.3, 0.2]];
    for (queue, [starved, full]) in made.queues.iter_mut().zip(waits) {
        queue.figures = QueueFigures {
            num_items: 200,
            elapsed_s: LENGTH_S,
            qps: Some(200.0 / LENGTH_S),
            ave_put_time_s: Some(full * LENGTH_S / 200.0),
            ave_get_time_s: Some(starved * LENGTH_S / 200.0),
            readiness: Some(if starved > 0.9 { 0.0 } else { 1.0 - starved }),
            starved: Some(starved),
            ..QueueFigures::default()
        };
    }
    (made.threads, made.cores) = (4, 4);
    let verdict = made.verdict(&plan);
    assert_eq!(made.contradictions(&verdict), [""; 0]);
    let seen = Verdict {
        kind: VerdictKind::Variance,
        stage: Some("1:fetch".to_owned()),
        answer: Answer::No,
        ..verdict
    };
    assert!(!made.contradictions(&seen).is_empty());
}
