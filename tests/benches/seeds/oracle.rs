//! SPDL's measurements of the eight pipelines `002-*`, and the tolerances for a run.

use std::collections::BTreeMap;
use std::fs;

use penstock_tests::repository;
use serde::Deserialize;

use super::experiment::{Figures, Run};

#[derive(Debug, Deserialize)]
pub(crate) struct Oracle {
    pub(crate) scenarios: Vec<Scenario>,
    suggested_tolerance: Tolerance,
}

/// SPDL's measurements of one of the eight pipelines.
#[derive(Debug, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) stages: Vec<Stage>,
    spdl_measured: Recorded,
    ideal_no_overhead: Recorded,
}

/// A stage that sleeps.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Stage {
    pub(crate) mean_ms: f64,
    pub(crate) concurrency: u32,
    /// Batch size of the aggregate after the stage; `None` without an aggregate.
    pub(crate) then_aggregate: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Recorded {
    #[serde(default)]
    tasks: BTreeMap<String, RecordedTask>,
    /// Queues by id, which begins with the position of the queue.
    queues: BTreeMap<String, RecordedQueue>,
}

#[derive(Debug, Deserialize)]
struct RecordedTask {
    ave_time_ms: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct RecordedQueue {
    qps: f64,
    put_ms: f64,
    get_ms: f64,
    occupancy: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Tolerance {
    qps_rel: f64,
    time_ms_abs: f64,
    time_rel: f64,
    occupancy_full_min: f64,
    occupancy_starved_max: f64,
    occupancy_agg1_6ms_queue: [f64; 2],
}

/// Tolerances of a run, compared with the oracle or other known figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    tolerance: Tolerance,
    /// Additional time per item of a task, or per step of the consumer, compared with SPDL, in milliseconds, without waits for
    /// queues; 0 on an idle machine. A thread that wakes late extends its own wait and the waits of others by that time.
    late_ms: f64,
}

impl Oracle {
    pub(crate) fn read() -> Self {
        let path = repository().join("tests/data/simulation.json");
        let text = fs::read(path).expect("the oracle is in the repository");
        serde_json::from_slice(&text).expect("the oracle has the expected fields")
    }

    /// Scenario of a document, whose name has the prefix `002-`.
    pub(crate) fn scenario(&self, document: &str) -> &Scenario {
        let scenario = self.scenarios.iter().find(|scenario| document == format!("002-{}", scenario.name));
        scenario.expect("the oracle has all pipelines `002-*`")
    }

    /// Tolerances for this run.
    pub(crate) fn near(&self, run: &Run) -> Near {
        let scenario = self.scenario(run.name);
        // SPDL's own sleeps and steps exceed the requested time by 0.4 to 0.9 ms.
        let recorded = scenario.spdl_measured.tasks.values().map(|task| task.ave_time_ms);
        let stages = scenario.stages.iter().zip(recorded).enumerate();
        let late = stages.map(|(place, (stage, recorded))| {
            let (from, to) = (run.queue(place), run.queue(place + 1));
            let round = 1e3 * f64::from(stage.concurrency) / from.qps - from.get_ms - to.put_ms;
            round.max(run.task_ms(place + 1)) - recorded
        });
        let step = run.step_ms() - 30.4;
        Near { tolerance: self.suggested_tolerance, late_ms: late.fold(step.max(0.0), f64::max) }
    }
}

impl Scenario {
    /// SPDL's figures of the queue at this position.
    pub(crate) fn measured(&self, place: usize) -> Figures {
        self.spdl_measured.queue(place)
    }

    /// Ideal figures of the queue at this position, assuming that only the stages take time.
    pub(crate) fn ideal(&self, place: usize) -> Figures {
        self.ideal_no_overhead.queue(place)
    }

    /// Number of tasks whose delays may add to the wait for one item of this queue: the concurrency of the stage that fills it;
    /// for a queue of batches, the number of items in a batch; 1 for the source.
    pub(crate) fn writers(&self, place: usize) -> u32 {
        let stage = |back: usize| place.checked_sub(back).and_then(|stage| self.stages.get(stage));
        let of_batch = stage(2).and_then(|stage| stage.then_aggregate);
        stage(1).map(|stage| stage.concurrency).or(of_batch).unwrap_or(1)
    }
}

impl Recorded {
    fn queue(&self, place: usize) -> Figures {
        let queue = self.queues.values().nth(place).expect("documents and oracle have the same queues");
        Figures { qps: queue.qps, put_ms: queue.put_ms, get_ms: queue.get_ms, readiness: queue.occupancy }
    }
}

impl Near {
    pub(crate) fn late_ms(self) -> f64 {
        self.late_ms
    }

    /// Names and permitted ranges of those figures of `seen` that are neither between `one` and `other` nor close to them.
    pub(crate) fn outside(self, seen: Figures, one: Figures, other: Figures, writers: u32) -> Vec<String> {
        let Tolerance { qps_rel, time_ms_abs, time_rel, .. } = self.tolerance;
        let rate = |qps: f64| qps * (qps_rel + self.late_ms * qps / 1e3);
        // Each of the tasks that share a queue may be late.
        let late_ms = self.late_ms * (1.0 + f64::from(writers));
        let time = |ms: f64| time_ms_abs.max(ms * time_rel) + late_ms;
        let bounds = [
            ("qps", seen.qps, around(one.qps, other.qps, rate)),
            ("put", seen.put_ms, around(one.put_ms, other.put_ms, time)),
            ("get", seen.get_ms, around(one.get_ms, other.get_ms, time)),
            (
                "readiness",
                seen.readiness,
                self.readiness(one.readiness.max(other.readiness), late_ms * seen.qps / 1e3),
            ),
        ];
        let outside = |(name, value, (least, most)): (&str, f64, (f64, f64))| {
            (!(least..=most).contains(&value))
                .then(|| format!("{name} {value:.3}, not {least:.3} to {most:.3}"))
        };
        bounds.into_iter().filter_map(outside).collect()
    }

    /// Range of readiness that counts as equal to `expected`, with a share `late` of the time lost. The tolerances
    /// distinguish three kinds of queues: full, starved, and in front of an aggregate.
    fn readiness(self, expected: f64, late: f64) -> (f64, f64) {
        let Tolerance { occupancy_full_min, occupancy_starved_max, occupancy_agg1_6ms_queue, .. } =
            self.tolerance;
        let [least, most] = match expected {
            full if full >= occupancy_full_min => [occupancy_full_min, 1.0],
            starved if starved <= occupancy_starved_max => [0.0, occupancy_starved_max],
            _ => occupancy_agg1_6ms_queue,
        };
        (least - late, most + late)
    }
}

fn around(one: f64, other: f64, tolerance: impl Fn(f64) -> f64) -> (f64, f64) {
    let (least, most) = (one.min(other), one.max(other));
    (least - tolerance(least), most + tolerance(most))
}
