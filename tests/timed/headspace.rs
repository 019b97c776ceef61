//! Measurement of the gain that faster loading could bring.

use penstock_tests::{Call, Folder, repository};
use serde_json::{Value, json};

use crate::timed;

fn headspace(folder: &Folder, document: &Value) -> Call {
    Call::new(&["headspace", "--for=2s"]).argument(folder.write("pipeline.json", document.to_string()))
}

fn document(load_ms: u32, consumer: Value) -> Value {
    json!({
        "name": "headspace", "threads": 1, "source": { "range": { "count": 40 } },
        "stages": [{ "sleep": { "name": "load", "mean_ms": load_ms } }], "consumer": consumer
    })
}

#[test]
fn slow_loading_has_headspace_and_fast_loading_has_none() {
    timed(|| {
        let folder = Folder::new();
        let measured = |load_ms| -> Value {
            let call = headspace(&folder, &document(load_ms, json!({ "simulate": { "step_ms": 30 } })))
                .argument("--json");
            let finished = call.finish().exits(0);
            assert_eq!(finished.stderr.lines().count(), 3, "{}", finished.stderr);
            serde_json::from_str(&finished.stdout).unwrap()
        };
        let number = |report: &Value, name: &str| report[name].as_f64().unwrap();
        let slow = measured(60);
        // The rate would rise from 16.7/s to 33.3/s; a busy machine lowers both.
        assert!((0.6..1.2).contains(&number(&slow, "to_gain")), "{slow:#}");
        assert!((0.4..0.6).contains(&number(&slow, "feeds")), "{slow:#}");
        assert_eq!(slow["is_enough"], false);
        let fast = measured(10);
        assert!(number(&fast, "to_gain") < 0.1 && number(&fast, "feeds") > 1.8, "{fast:#}");
        assert!(number(&fast, "consumer_rate") > 25.0, "{fast:#}");
    });
}

#[test]
fn without_a_consumer_only_loading_is_measured() {
    let folder = Folder::new();
    let finished =
        headspace(&folder, &document(20, json!({ "discard": {} }))).argument("-q").finish().exits(0);
    assert!(finished.stdout.starts_with("The consumer takes no time"), "{}", finished.stdout);
    assert_eq!(finished.stderr, "");
}

#[test]
fn pipelines_that_cannot_be_measured_are_refused() {
    let files = json!({ "files": { "store": "out", "prefix": "train" } });
    let folder = Folder::new();
    let mut document = document(1, files);
    document["stages"] =
        json!([{ "fetch": { "store": "out" } }, { "aggregate": { "size": 2 } }, { "collate": {} }]);
    let told = headspace(&folder, &document).store("out", &folder.join("")).finish().exits(2).stderr;
    assert!(told.contains("would write the same batch again and again"), "{told}");
    let none = json!({ "source": { "range": { "count": 0 } } });
    let told = headspace(&folder, &none).argument("-q").finish().exits(1).stderr;
    assert!(told.contains("no item reached the consumer"), "{told}");
    let document = repository().join("examples/pipelines/seeds/002-multi1.json");
    let call = Call::new(&["headspace", "--for=soon"]).argument(&document);
    call.finish().exits(2);
}
