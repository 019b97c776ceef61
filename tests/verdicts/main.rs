//! Verdicts on simulated pipelines and on random figures agree with their figures, and their advice never costs anything.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here fails the test; `allow-unwrap-in-tests` does not cover helpers"
)]

mod figures;
mod pipeline;

use std::sync::OnceLock;
use std::time::Duration;

use penstock_pipeline::predict::{Baseline, Machine, PredictError, PredictReport, predict_plan};
use penstock_tests::Figures;
use penstock_types::verdict::Advice;
use serde_json::Value;

use self::pipeline::Pipeline;

const PIPELINES: u64 = 1_000;
/// Number of samples in a simulation; and in one that decides about a loss, since fewer samples leave it to chance.
const SAMPLES: [u64; 2] = [240, 4_000];
/// Share of the rate that predictions do not resolve.
const RESOLUTION: f64 = 0.005;

fn simulated(pipeline: &Pipeline, document: &Value, samples: u64) -> PredictReport {
    let plan = pipeline.plan(document, samples);
    let machine = Machine { threads: plan.threads.unwrap(), cores: pipeline.cores, foreign_cores: Some(0.0) };
    // The rate of the recorded run does not matter.
    let baseline =
        Baseline::new(pipeline.recording(&plan), Err(PredictError::NoPlan(String::new())), pipeline.cores);
    predict_plan(&plan, Some(&baseline), machine, Some(Duration::from_hours(1))).unwrap()
}

fn with(document: &Value, advice: &Advice) -> Value {
    let mut document = document.clone();
    for set in &advice.set {
        penstock_types::spec::set(&mut document, set.pointer.as_str(), set.value.clone()).unwrap();
    }
    document
}

/// Contradictions of the verdict on a pipeline and of the verdict after its first advice, and the loss by this advice.
fn checked(number: u64) -> (Vec<String>, Option<String>) {
    let pipeline = Pipeline::new(number);
    let contradictions = |report: &PredictReport| {
        let figures = Figures {
            stages: &report.stages,
            queues: &report.queues,
            cores: Some(pipeline.cores),
            apart: 0.0,
        };
        let found = figures.contradictions(&report.verdict).into_iter();
        found
            .map(|found| {
                format!("{number}: {} {:?}: {found}", report.verdict.kind.name(), report.verdict.stage)
            })
            .collect::<Vec<_>>()
    };
    let document = &pipeline.document;
    let before = simulated(&pipeline, document, SAMPLES[0]);
    let mut found = contradictions(&before);
    let Some(advice) = before.verdict.advice.iter().find(|advice| !advice.set.is_empty()) else {
        return (found, None);
    };
    let advised = with(document, advice);
    let after = simulated(&pipeline, &advised, SAMPLES[0]);
    found.extend(contradictions(&after));
    let is_lost = |[before, after]: [Option<f64>; 2]| after.unwrap() < before.unwrap() * (1.0 - RESOLUTION);
    let longer = || [document, &advised].map(|document| simulated(&pipeline, document, SAMPLES[1]).rate);
    let loss = is_lost([before.rate, after.rate]).then(longer).filter(|rates| is_lost(*rates));
    (found, loss.map(|rates| format!("{number}: {rates:?}: {advice:?}")))
}

/// Contradictions and losses of all pipelines, which two tests share.
fn searched() -> &'static (Vec<String>, Vec<String>) {
    static FOUND: OnceLock<(Vec<String>, Vec<String>)> = OnceLock::new();
    FOUND.get_or_init(|| {
        let (found, losses): (Vec<_>, Vec<_>) = (0..PIPELINES).map(checked).unzip();
        (found.concat(), losses.into_iter().flatten().collect())
    })
}

#[test]
fn verdicts_on_simulated_pipelines_agree_with_their_figures() {
    assert!(searched().0.is_empty(), "{}", searched().0.join("\n"));
}

#[test]
fn the_first_advice_never_costs_a_simulated_pipeline_anything() {
    assert!(searched().1.is_empty(), "{}", searched().1.join("\n"));
}
