//! Table of runs of the eight pipelines `examples/pipelines/seeds/002-*`: the expected figures, SPDL's measurements, ideal
//! figures, Penstock's measurements, and its predictions. Printed by `make seeds`; the exit code is 1 if a figure is outside
//! the tolerance of the oracle.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints a table")]

mod closed_form;
mod experiment;
mod oracle;
mod words;

use std::process::ExitCode;

use penstock_tests::{Call, repository};
use serde::Deserialize;

use crate::experiment::{Figures, Run};
use crate::oracle::Oracle;

/// Number of windows, the same as SPDL's.
const WINDOWS: usize = 10;

/// Number of concurrent runs: with more, threads would wake up late on a small machine.
const AT_ONCE: usize = 4;

/// Fields of the output of `penstock predict --json` that the table shows.
#[derive(Debug, Deserialize)]
struct Prediction {
    queues: Vec<PredictedQueue>,
}

#[derive(Debug, Deserialize)]
struct PredictedQueue {
    id: String,
    qps: Option<f64>,
    ave_put_time_s: Option<f64>,
    ave_get_time_s: Option<f64>,
    readiness: Option<f64>,
}

fn main() -> ExitCode {
    let oracle = Oracle::read();
    let documents = [
        "002-single1",
        "002-single2",
        "002-multi1",
        "002-multi2",
        "002-multi3",
        "002-multi4",
        "002-agg1",
        "002-agg2",
    ];
    let runs = Run::of_all(&documents.map(|name| (name, WINDOWS)), AT_ONCE);
    println!(
        "Queues of the pipelines 002-*: items per second / put ms / get ms / readiness, means of the steady windows.\n"
    );
    let mut outside = Vec::new();
    for run in &runs {
        let prediction = prediction(run.name);
        outside.extend(print(&oracle, run, prediction.as_ref().ok()));
        outside.extend(prediction.err().map(|message| format!("{}: {message}", run.name)));
    }
    for line in &outside {
        eprintln!("outside: {line}");
    }
    if outside.is_empty() {
        println!(
            "All within tolerance: 4 % of a rate, 1 ms or 6 % of a time, readiness equally full or starved."
        );
        return ExitCode::SUCCESS;
    }
    eprintln!("on a busy machine, repeat the measurement before drawing conclusions");
    ExitCode::FAILURE
}

/// Prints one run; returns the figures outside the tolerance.
fn print(oracle: &Oracle, run: &Run, prediction: Option<&Prediction>) -> Vec<String> {
    let scenario = oracle.scenario(run.name);
    let near = oracle.near(run);
    let times: Vec<String> = (1..)
        .zip(&scenario.stages)
        .map(|(place, stage)| format!("{:.2} of {}", run.task_ms(place), stage.mean_ms))
        .collect();
    println!("{}: {}; tasks took {} ms", scenario.name, scenario.what, times.join(", "));
    print_line("queue", "expected", ["SPDL measured", "ideal", "measured", "predicted"].map(str::to_owned));
    let mut outside = Vec::new();
    let forms = closed_form::queues(scenario, run);
    for (place, (id, words)) in run.queues().into_iter().zip(words::words(&scenario.name)).enumerate() {
        let predicted = prediction.and_then(|prediction| predicted(prediction, id));
        let (measured, ideal, own) = (scenario.measured(place), scenario.ideal(place), run.queue(place));
        print_line(id, words, [Some(measured), Some(ideal), Some(own), predicted].map(shown));
        let mut check = |what: &str, seen: Figures, one: Figures, other: Figures| {
            let faults = near.outside(seen, one, other, scenario.writers(place));
            outside
                .extend(faults.into_iter().map(|fault| format!("{} {id}, {what}: {fault}", scenario.name)));
        };
        check("measured", own, measured, ideal);
        check("by the times of its tasks", own, forms[place], forms[place]);
        if let Some(predicted) = predicted {
            check("predicted", predicted, measured, ideal);
        }
    }
    println!("  {}", run.answer);
    if near.late_ms() > 0.0 {
        println!(
            "  Sleeps ended {:.2} ms later than SPDL's; the tolerance is widened by that time.",
            near.late_ms()
        );
    }
    println!();
    outside
}

fn print_line(queue: &str, words: &str, [measured, ideal, own, predicted]: [String; 4]) {
    println!("  {queue:<17} {words:<24} {measured:<28}{ideal:<28}{own:<28}{predicted}");
}

fn shown(figures: Option<Figures>) -> String {
    let Some(Figures { qps, put_ms, get_ms, readiness }) = figures else { return "-".to_owned() };
    format!("{qps:6.2} {put_ms:6.2} {get_ms:6.2} {readiness:5.3}")
}

/// Prediction of Penstock for a document.
fn prediction(document: &str) -> Result<Prediction, String> {
    let path = repository().join(format!("examples/pipelines/seeds/{document}.json"));
    let finished = Call::new(&["predict"]).argument(path).json().finish();
    match finished.code {
        Some(0) => serde_json::from_str(&finished.stdout)
            .map_err(|error| format!("the prediction cannot be read: {error}")),
        code => Err(format!("`penstock predict` ended with {code:?}: {}", finished.stderr)),
    }
}

/// Predicted figures of one queue; a wait without a prediction counts as 0.
fn predicted(prediction: &Prediction, id: &str) -> Option<Figures> {
    let queue = prediction.queues.iter().find(|queue| queue.id == id)?;
    let ms = |seconds: Option<f64>| seconds.unwrap_or(0.0) * 1e3;
    Some(Figures {
        qps: queue.qps?,
        put_ms: ms(queue.ave_put_time_s),
        get_ms: ms(queue.ave_get_time_s),
        readiness: queue.readiness?,
    })
}
