//! Predictions against runs.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use penstock_tests::{Call, Folder, RandomPipeline};
use serde_json::Value;

use crate::{Bound, Row};

const PIPELINES: u64 = 60;
/// Runs at a time: they sleep, and take next to nothing of the machine.
const AT_ONCE: usize = 6;
/// How long each one runs.
const TIME: &str = "8s";

pub(crate) fn median_error() -> Row {
    row("rate of 60 random pipelines, predicted against measured, median", 3.0, 1.0, 0.5)
}

pub(crate) fn p95_error() -> Row {
    row("the same, 95 % of them", 8.0, 4.0, 0.95)
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

/// The error of each pipeline's rate as a share, least first, and its number.
fn errors() -> &'static [(f64, u64)] {
    static ERRORS: OnceLock<Vec<(f64, u64)>> = OnceLock::new();
    ERRORS.get_or_init(|| {
        let waiting = Mutex::new((0..PIPELINES).collect::<VecDeque<u64>>());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let errors = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Some(number) = next() {
                        let error = error(number);
                        errors.lock().unwrap_or_else(PoisonError::into_inner).push((error, number));
                    }
                });
            }
        });
        let mut errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
        errors.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        errors
    })
}

/// Predicted before it runs, from nothing but the document.
fn error(number: u64) -> f64 {
    let folder = Folder::new();
    let document = folder.write("pipeline.json", RandomPipeline::new(number).document.to_string());
    let call =
        |command: &str| Call::new(&[command, "--for", TIME, "--json"]).argument(&document).finish().exits(0);
    let predicted: Value = serde_json::from_str(&call("predict").stdout).unwrap();
    let measured = call("run").snapshot().queues.last().unwrap().figures.qps.unwrap();
    fs::remove_file(&document).unwrap();
    (predicted["rate"].as_f64().unwrap() / measured - 1.0).abs()
}
