//! Predictions, compared with actual runs.

use std::thread;

use penstock_tests::{Call, Folder, RandomPipeline};
use serde_json::Value;

use crate::timed;

const TIME: &str = "--for=4s";

/// Relative error of the predicted rate of a random pipeline. A busy machine wakes sleeping tasks late, which the document does
/// not show. So the prediction uses the delays measured in the run, and the remaining error is that of the queue model.
fn off(number: u64) -> f64 {
    let (folder, pipeline) = (Folder::new(), RandomPipeline::new(number));
    let document = folder.write("pipeline.json", pipeline.document.to_string());
    let out = folder.join("out");
    let snapshot = Call::run(&document).argument(TIME).out(&out).finish().exits(0).snapshot();
    assert_ne!(pipeline.names_the_limit(&snapshot, 0.25), Some(false), "random-{number}");
    let predict = Call::new(&["predict", TIME]).argument(&document).argument("--from").argument(&out);
    let predicted: Value = serde_json::from_str(&predict.json().finish().exits(0).stdout).unwrap();
    let measured = snapshot.queues.last().unwrap().figures.qps.unwrap();
    predicted["rate"].as_f64().unwrap() / measured - 1.0
}

#[test]
fn random_pipelines_run_as_predicted_and_their_limit_is_reported() {
    timed(|| {
        let errors: Vec<f64> = thread::scope(|scope| {
            let runs: Vec<_> = (0..6).map(|first| scope.spawn(move || [first, first + 6].map(off))).collect();
            runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
        });
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        assert!(sizes[sizes.len() / 2] < 0.04 && sizes[sizes.len() - 2] < 0.12, "{errors:?}");
    });
}
