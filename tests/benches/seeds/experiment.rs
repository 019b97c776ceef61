//! A run of a document in `examples/pipelines/seeds` by the real binary, and the figures of its steady state.

use std::sync::Mutex;

use penstock_tests::{Call, Folder, lines, repository};
use penstock_types::run::{QueueRecord, StageRecord, Window};

/// Number of windows at the start in which queues still fill.
const WARM_UP: usize = 2;

/// Measurements of a run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Name of the document in `examples/pipelines/seeds`.
    pub(crate) name: &'static str,
    /// Last line of the report: whether data loading is the bottleneck.
    pub(crate) answer: String,
    /// Windows between warm-up and end.
    steady: Vec<Window>,
}

/// Figures of one queue in the steady state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Items taken per second.
    pub(crate) qps: f64,
    /// Mean wait of a put, in milliseconds.
    pub(crate) put_ms: f64,
    /// Mean wait of a get, in milliseconds.
    pub(crate) get_ms: f64,
    /// Share of time with an item in the queue.
    pub(crate) readiness: f64,
}

impl Run {
    /// Runs one document for `windows` windows of a second.
    pub(crate) fn of(name: &'static str, windows: usize) -> Self {
        let folder = Folder::new();
        let document = repository().join(format!("examples/pipelines/seeds/{name}.json"));
        let call = Call::run(&document).out(&folder.join("out")).argument(format!("--for={windows}s"));
        let finished = call.finish().exits(0);
        assert_eq!(finished.snapshot().name, name);
        let answer = finished.stdout.lines().last().expect("the report ends with the answer").to_owned();
        // The time limit expires slightly after the window, so there may be an additional window of a millisecond.
        let mut steady: Vec<Window> = lines(&folder.join("out/windows.ndjson"));
        steady.truncate(windows - 1);
        steady.drain(..WARM_UP);
        Self { name, answer, steady }
    }

    /// Runs many documents, `at_once` of them at a time: they mostly sleep.
    pub(crate) fn of_all(experiments: &[(&'static str, usize)], at_once: usize) -> Vec<Self> {
        let waiting = Mutex::new(experiments.iter().enumerate());
        let mut runs: Vec<(usize, Self)> = std::thread::scope(|scope| {
            let work = || {
                let mut done = Vec::new();
                loop {
                    let next = waiting.lock().expect("no run panics while it takes the next").next();
                    let Some((place, &(name, windows))) = next else { return done };
                    done.push((place, Self::of(name, windows)));
                }
            };
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("every run can be read")).collect()
        });
        runs.sort_by_key(|(place, _)| *place);
        runs.into_iter().map(|(_, run)| run).collect()
    }

    /// Ids of the run's queues, first to last.
    pub(crate) fn queues(&self) -> Vec<&str> {
        self.steady[0].queues.iter().map(|queue| queue.id.as_str()).collect()
    }

    /// Figures of the queue at `place`; 0 is the source's queue.
    pub(crate) fn queue(&self, place: usize) -> Figures {
        let of = |figure: fn(&QueueRecord) -> (f64, f64)| {
            mean(self.steady.iter().map(|window| figure(&window.queues[place])))
        };
        // Windows do not contain the number of puts; in the steady state it equals the number of gets.
        let items = |queue: &QueueRecord| queue.figures.num_items as f64;
        let (taken, elapsed) = self.steady.iter().fold((0.0, 0.0), |(taken, elapsed), window| {
            let queue = &window.queues[place];
            (taken + items(queue), elapsed + queue.figures.elapsed_s)
        });
        Figures {
            qps: taken / elapsed,
            put_ms: of(|queue| (queue.figures.ave_put_time_s.unwrap_or(0.0), queue.figures.num_items as f64))
                * 1e3,
            get_ms: of(|queue| (queue.figures.ave_get_time_s.unwrap_or(0.0), queue.figures.num_items as f64))
                * 1e3,
            readiness: of(|queue| (queue.figures.readiness.unwrap_or(0.0), queue.figures.elapsed_s)),
        }
    }

    /// Figures of the last queue, from which the consumer reads.
    pub(crate) fn sink(&self) -> Figures {
        self.queue(self.queues().len() - 1)
    }

    /// Mean time of the ops of stage number `stage`, counted from 1, in milliseconds; 0 for stages that only regroup items.
    pub(crate) fn task_ms(&self, stage: usize) -> f64 {
        self.of_stage(stage, |stage| stage.task.ave_time_s.unwrap_or(0.0)) * 1e3
    }

    /// Mean of a figure of one stage, weighted by its tasks.
    pub(crate) fn of_stage(&self, stage: usize, figure: fn(&StageRecord) -> f64) -> f64 {
        mean(self.steady.iter().map(|window| {
            let stage = &window.stages[stage - 1];
            (figure(stage), stage.task.num_tasks as f64)
        }))
    }

    /// Mean time that the consumer spends on an item, in milliseconds.
    pub(crate) fn step_ms(&self) -> f64 {
        let sink = self.sink();
        1e3 / sink.qps - sink.get_ms
    }
}

/// Weighted mean of values; 0 without values.
fn mean(weighted: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) =
        weighted.fold((0.0, 0.0), |(sum, weights), (value, weight)| (sum + value * weight, weights + weight));
    if weights > 0.0 { sum / weights } else { 0.0 }
}
