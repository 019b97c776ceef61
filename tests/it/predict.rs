//! What is predicted, against what runs then do.

use std::path::{Path, PathBuf};
use std::thread;

use penstock_tests::{Call, Folder, RandomPipeline, photos, repository, shown};
use serde_json::{Value, json};

fn predicted(call: Call) -> Value {
    serde_json::from_str(&call.json().finish().exits(0).stdout).unwrap()
}

fn predict(document: &Path) -> Call {
    Call::new(&["predict"]).argument(document)
}

fn seed(name: &str) -> PathBuf {
    repository().join("examples/pipelines/seeds").join(name)
}

#[test]
fn random_pipelines_run_as_predicted_and_are_told_their_limit() {
    // A busy machine wakes sleepers late, which no document tells: with what the run itself tells of that, the rest is what
    // the queues do.
    let numbers: Vec<u64> = (0..12).collect();
    let off = thread::scope(|scope| {
        let runs: Vec<_> = numbers
            .chunks(2)
            .map(|numbers| {
                scope.spawn(|| {
                    let off = |number: &u64| {
                        let (folder, pipeline) = (Folder::new(), RandomPipeline::new(*number));
                        let document = folder.write("pipeline.json", pipeline.document.to_string());
                        let out = folder.join("out");
                        let time = "--for=4s";
                        let run = Call::run(&document).argument(time).out(&out).finish().exits(0);
                        let snapshot = run.snapshot();
                        let measured = snapshot.queues.last().unwrap().figures.qps.unwrap();
                        assert_ne!(pipeline.is_told_right(&snapshot, 0.25), Some(false), "random-{number}");
                        let report =
                            predicted(predict(&document).argument(time).argument("--from").argument(&out));
                        (*number, report["rate"].as_f64().unwrap() / measured - 1.0)
                    };
                    numbers.iter().map(off).collect::<Vec<_>>()
                })
            })
            .collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect::<Vec<_>>()
    });
    let mut errors: Vec<f64> = off.iter().map(|(_, off)| off.abs()).collect();
    errors.sort_by(f64::total_cmp);
    assert!(errors[errors.len() / 2] < 0.04 && errors[errors.len() - 2] < 0.12, "{off:?}");
}

#[test]
fn the_best_change_is_named_with_its_place_in_the_document() {
    let report = predicted(predict(&seed("002-multi1.json")).argument("--sweep"));
    let rate = report["rate"].as_f64().unwrap();
    assert!((rate - 25.0).abs() < 0.3, "{rate}");
    let best = report["proposals"].as_array().unwrap().last().unwrap();
    assert_eq!(best["changes"], json!([{ "pointer": "/stages/2/sleep/concurrency", "from": 1, "to": 2 }]));
    assert!((best["rate"].as_f64().unwrap() - 33.3).abs() < 0.4, "{best}");
    // There the consumer is the limit: nothing helps.
    let report = predicted(predict(&seed("002-multi3.json")).argument("--sweep"));
    assert_eq!(report["proposals"], json!([]));
}

#[test]
fn threads_are_proposed_where_they_are_the_limit() {
    let document = seed("003-pool-too-small.json");
    let report = predicted(predict(&document).argument("--sweep").argument("--max-threads=8"));
    let proposals = report["proposals"].as_array().unwrap();
    let threads = |proposal: &Value| {
        let changes = proposal["changes"].as_array().unwrap();
        changes.iter().any(|change| change["pointer"] == "/threads")
    };
    assert!(proposals.iter().any(threads), "{report:#}");
    let least = predicted(predict(&document).argument("--sweep").argument("--max-threads=1"));
    assert!(!least["proposals"].as_array().unwrap().iter().any(threads), "{least:#}");
}

#[test]
fn what_nobody_knows_is_said_and_learned_from_a_run() {
    let document = repository().join("examples/pipelines/photos.json");
    let with_photos = |call: Call| call.store("photos", photos()).module("decode-resize", "decode-resize");
    let told = with_photos(predict(&document)).finish().exits(2).stderr;
    shown().bind(|| insta::assert_snapshot!(told));
    let told = with_photos(predict(&document)).argument("--from=/nowhere").finish().exits(2).stderr;
    assert!(told.contains("holds no run that is over"), "{told}");

    let folder = Folder::new();
    let out = folder.join("out");
    with_photos(Call::run(&document)).threads(2).out(&out).finish().exits(0);
    let from = |call: Call| with_photos(call).threads(2).argument("--from").argument(&out);
    let report = predicted(from(predict(&document)));
    assert_eq!(report["stages"].as_array().unwrap().len(), 7);
    assert!(report["rate"].as_f64().unwrap() > 0.0);
    let words = from(predict(&document)).finish().exits(0).stdout;
    assert!(words.starts_with("Predicted: ") && words.contains("the recorded run: "), "{words}");
    // A slower consumer takes less.
    let slower = predicted(from(predict(&document)).set("/consumer/simulate/step_ms=500"));
    let rate = slower["rate"].as_f64().unwrap();
    assert!((1.9..=2.01).contains(&rate), "{rate}");
}
