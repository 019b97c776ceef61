//! Predictions, compared with actual runs.

use std::thread;

use penstock_tests::{Call, Folder, RandomPipeline};
use serde_json::Value;

use crate::timed;

const TIME: &str = "--for=4s";

/// Relative error of the predicted rate of a random pipeline, whose verdict names the limit if its margin is large enough. A busy machine wakes sleeping tasks late, which the document does
/// not show. So the prediction uses the delays measured in the run, and the remaining error is that of the queue model.
fn off(pipeline: &RandomPipeline, records: &str, margin: f64) -> f64 {
    let folder = Folder::new();
    let document = folder.write("pipeline.json", pipeline.document.to_string());
    folder.write("records.ndjson", records);
    let out = folder.join("out");
    let run = Call::run(&document).store("here", folder.path()).argument(TIME).out(&out);
    let snapshot = run.finish().exits(0).checked_snapshot();
    assert_ne!(
        pipeline.names_the_limit(&snapshot, margin),
        Some(false),
        "{}: {:#?}",
        pipeline.document,
        snapshot.verdict
    );
    let predict = Call::new(&["predict", TIME]).argument(&document).store("here", folder.path());
    let predict = predict.argument("--from").argument(&out);
    let predicted: Value = serde_json::from_str(&predict.json().finish().exits(0).stdout).unwrap();
    let measured = snapshot.queues.last().unwrap().figures.qps.unwrap();
    predicted["rate"].as_f64().unwrap() / measured - 1.0
}

/// Runs twelve pipelines, two after each other in each of six threads, and checks the errors of their predictions.
fn assert_predicted(off: impl Fn(u64) -> f64 + Sync) {
    timed(|| {
        let errors: Vec<f64> = thread::scope(|scope| {
            let runs: Vec<_> = (0..6)
                .map(|first| {
                    scope.spawn({
                        let off = &off;
                        move || [first, first + 6].map(off)
                    })
                })
                .collect();
            runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
        });
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        assert!(sizes[sizes.len() / 2] < 0.04 && sizes[sizes.len() - 2] < 0.12, "{errors:?}");
    });
}

#[test]
fn random_pipelines_run_as_predicted_and_their_limit_is_reported() {
    assert_predicted(|number| off(&RandomPipeline::new(number), "", 0.25));
}

#[test]
fn random_pipelines_with_mixtures_run_as_predicted_and_their_limit_is_reported() {
    assert_predicted(|number| off(&RandomPipeline::mixed(number), "", 0.25));
}

#[test]
fn random_pipelines_with_routes_run_as_predicted_and_their_limit_is_reported() {
    assert_predicted(|number| {
        let (pipeline, records) = RandomPipeline::routed(number);
        // Unequal paths make bursts, so that the limit has to stand out more than in a pipeline without routes.
        off(&pipeline, &records, 0.5)
    });
}
