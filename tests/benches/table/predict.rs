//! Predictions, compared with runs.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use penstock_tests::{Call, Folder, RandomPipeline};
use serde_json::Value;

use crate::{Bound, Row};

const PIPELINES: u64 = 60;
/// Number of concurrent runs: their stages sleep, so they use almost no resources.
const AT_ONCE: usize = 6;
/// Duration of each run.
const TIME: &str = "8s";

pub(crate) fn median_error() -> Row {
    row("error of the rates predicted for 60 random pipelines, median", 3.0, 1.0, 0.5)
}

pub(crate) fn p95_error() -> Row {
    row("error of the rates predicted for 60 random pipelines, p95", 8.0, 4.0, 0.95)
}

fn row(what: &'static str, must: f64, aim: f64, quantile: f64) -> Row {
    let errors = errors();
    let place = ((errors.len() as f64 * quantile).ceil() as usize).clamp(1, errors.len()) - 1;
    let worst = errors.last().unwrap();
    Row {
        what,
        must: Bound::AtMost(must, " %"),
        aim: Bound::AtMost(aim, " %"),
        found: errors[place].0 * 100.0,
        from: format!("the worst is random-{}, off by {:.1} %", worst.1, worst.0 * 100.0),
    }
}

pub(crate) fn wrong_limits() -> Row {
    let told: Vec<_> =
        errors().iter().filter_map(|(_, number, is_right)| Some((number, (*is_right)?))).collect();
    let wrong: Vec<_> = told.iter().filter(|(_, is_right)| !is_right).map(|(number, _)| **number).collect();
    Row {
        what: "random pipelines whose verdict names a wrong limit",
        must: Bound::AtMost(0.0, ""),
        aim: Bound::AtMost(0.0, ""),
        found: wrong.len() as f64,
        from: format!(
            "of {} whose limit exceeds the next one by more than 15 %; wrong: {wrong:?}",
            told.len()
        ),
    }
}

/// Relative error of each pipeline's predicted rate, the pipeline's number, and true if the verdict of its run names the limit;
/// sorted by the error.
fn errors() -> &'static [(f64, u64, Option<bool>)] {
    static ERRORS: OnceLock<Vec<(f64, u64, Option<bool>)>> = OnceLock::new();
    ERRORS.get_or_init(|| {
        let waiting = Mutex::new((0..PIPELINES).collect::<VecDeque<u64>>());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let errors = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Some(number) = next() {
                        let (error, is_right) = error(number);
                        errors.lock().unwrap_or_else(PoisonError::into_inner).push((error, number, is_right));
                    }
                });
            }
        });
        let mut errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
        errors.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
        errors
    })
}

/// Relative error of the predicted rate of pipeline `number`, which is predicted from the document before its run, and true if the
/// verdict of that run names the limit.
fn error(number: u64) -> (f64, Option<bool>) {
    let (folder, pipeline) = (Folder::new(), RandomPipeline::new(number));
    let document = folder.write("pipeline.json", pipeline.document.to_string());
    let call =
        |command: &str| Call::new(&[command, "--for", TIME, "--json"]).argument(&document).finish().exits(0);
    let predicted: Value = serde_json::from_str(&call("predict").stdout).unwrap();
    let snapshot = call("run").snapshot();
    let measured = snapshot.queues.last().unwrap().figures.qps.unwrap();
    let error = (predicted["rate"].as_f64().unwrap() / measured - 1.0).abs();
    (error, pipeline.names_the_limit(&snapshot, 0.15))
}
