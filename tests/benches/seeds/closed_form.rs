//! Figures of the queues of sleeping stages, assuming that only the stages take time.

use super::experiment::{Figures, Run};
use super::oracle::Scenario;

/// Capacity of every queue of the pipelines `002-*`, except the sink's.
const ROOM: f64 = 2.0;

/// A stage of a run, with its measured times.
#[derive(Clone, Copy, Debug)]
struct Timed {
    task_ms: f64,
    concurrency: f64,
    /// Number of items that the stage makes for each item of the sink.
    items: f64,
}

/// Figures of all queues, first to last, computed from the measured times of the run's tasks and its consumer.
pub(crate) fn queues(scenario: &Scenario, run: &Run) -> Vec<Figures> {
    let batch = scenario.stages.last().and_then(|stage| stage.then_aggregate).map(f64::from);
    let timed: Vec<Timed> = (1..)
        .zip(&scenario.stages)
        .map(|(place, stage)| Timed {
            task_ms: run.task_ms(place),
            concurrency: f64::from(stage.concurrency),
            items: batch.unwrap_or(1.0),
        })
        .collect();
    let step_ms = run.step_ms();
    let needs = |stage: &Timed| stage.task_ms * stage.items / stage.concurrency;
    let cycle_ms = timed.iter().map(needs).fold(step_ms, f64::max);
    // Position of the first queue that starves, as all queues after it do; beyond the last queue if no stage is the limit.
    let limit = timed.iter().position(|stage| needs(stage) >= cycle_ms).map_or(usize::MAX, |place| place + 1);

    let items = timed[0].items;
    let mut queues = vec![figures(items / cycle_ms, cycle_ms / items, 0.0, 1.0)];
    for (place, stage) in (1..).zip(&timed) {
        let own_ms = cycle_ms / stage.items;
        let reader_ms = timed.get(place).map_or(0.0, |reader| reader.task_ms / reader.concurrency);
        queues.push(if limit <= place {
            figures(1.0 / own_ms, 0.0, own_ms - reader_ms, 0.0)
        } else {
            figures(1.0 / own_ms, stage.concurrency * own_ms - stage.task_ms, 0.0, 1.0)
        });
    }
    let last = timed[timed.len() - 1];
    if let Some(batch) = batch {
        let mut behind = figures(1.0 / cycle_ms, 0.0, cycle_ms, 0.0);
        if limit > timed.len() {
            // While a batch waits for room, this many items of the next batch become ready: those in the queue, and one in the
            // last stage.
            let ready = ROOM + 1.0;
            let missing_ms = (batch - ready) * last.task_ms;
            behind = figures(1.0 / cycle_ms, cycle_ms - missing_ms, 0.0, 1.0);
            let before = &mut queues[timed.len()];
            before.get_ms = missing_ms / batch;
            before.readiness = 1.0 - (missing_ms + last.task_ms) / cycle_ms;
        }
        queues.push(behind);
    }
    queues.push(if limit == usize::MAX {
        figures(1.0 / cycle_ms, cycle_ms, 0.0, 1.0)
    } else {
        figures(1.0 / cycle_ms, 0.0, cycle_ms - step_ms, 0.0)
    });
    queues
}

/// Figures for `per_ms` items per millisecond.
fn figures(per_ms: f64, put_ms: f64, get_ms: f64, readiness: f64) -> Figures {
    Figures { qps: per_ms * 1e3, put_ms, get_ms, readiness }
}
