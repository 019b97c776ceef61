//! Tests of the command `penstock bench storage`.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use penstock_s3_server::{Server, Settings};
use penstock_tests::{Call, Folder, lines, photos, shown};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::formats::fixtures;

fn storage() -> Call {
    Call::new(&["bench", "storage"])
}

/// A call that benchmarks the photos with two small loads.
fn small() -> Call {
    storage()
        .store("photos", photos())
        .argument("--workers=2")
        .argument("--repeats=2")
        .argument("--batch-size=8")
}

fn report(stdout: &str) -> Value {
    serde_json::from_str(stdout).unwrap()
}

fn cells(report: &Value) -> Vec<Value> {
    let grids =
        report["actions"].as_array().unwrap().iter().filter_map(|action| action["whole_set"].as_array());
    grids.flatten().cloned().collect()
}

#[test]
fn a_folder_is_measured_without_a_document() {
    let folder = Folder::new();
    let out = folder.join("out");
    let finished = small().out(&out).finish().exits(0);
    for said in [
        "The fastest load is `",
        " as fast as one after another",
        "getitem",
        "worker_loop",
        "Get item ",
        "balance",
    ] {
        assert!(finished.stdout.contains(said), "{said}: {}", finished.stdout);
    }
    assert!(finished.stderr.contains("1 of 2: sync 2") && finished.stderr.contains("2 of 2: async 2x8"));

    let kept = report(&fs::read_to_string(out.join("report.json")).unwrap());
    let reads: Vec<Value> = lines(&out.join("reads.ndjson"));
    let count = kept["objects"]["count"].as_u64().unwrap();
    assert_eq!(reads.len() as u64, count * 2 * 2);
    let bytes: u64 = reads.iter().map(|read| read["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, kept["objects"]["bytes"].as_u64().unwrap() * 2 * 2);
    assert_eq!(cells(&kept).len(), 2);

    let again = small().out(&out).finish().exits(2);
    assert!(again.stderr.contains("already holds a report; choose another folder"), "{}", again.stderr);
}

#[test]
fn all_faults_of_a_benchmark_document_are_reported_at_once() {
    let folder = Folder::new();
    let document = folder.write(
        "bench.json",
        json!({
            "source": { "list": { "store": "photos", "epochs": 3 } },
            "stages": [{ "sleep": { "mean_ms": 1 } }, { "aggregate": { "size": 7 } }],
            "cache": "hot",
            "actions": [
                { "whole_set": { "workers": [2, 0], "in_flight": 0, "modes": [], "batch_size": 8 } },
                { "random_to_device": { "device": "cuda:0" } }
            ],
            "accelerator": { "preset": "resnet50/h200" }
        })
        .to_string(),
    );
    let finished =
        Call::new(&["bench", "storage"]).argument(&document).store("photos", photos()).finish().exits(2);
    shown()
        .bind(|| insta::assert_snapshot!(finished.stderr.replace(folder.path().to_str().unwrap(), "FOLDER")));
    let nothing = storage().finish().exits(2);
    assert!(nothing.stderr.contains("give a document or a single `--store"), "{}", nothing.stderr);
    let missing = storage().store("photos", photos()).argument("--suffix=.png").finish().exits(1);
    assert!(missing.stderr.contains("ends with `.png`"), "{}", missing.stderr);
    let step = storage().store("photos", photos()).argument("--accelerator=h100").finish().exits(2);
    assert!(step.stderr.contains("neither the length of a step"), "{}", step.stderr);
}

#[test]
fn faults_of_stages_have_the_pointers_of_the_document() {
    let folder = Folder::new();
    let document = folder.write(
        "bench.json",
        json!({ "source": { "list": { "store": "photos" } }, "stages": [{ "wasm": { "module": "missing" } }] }).to_string(),
    );
    let finished =
        Call::new(&["bench", "storage"]).argument(&document).store("photos", photos()).finish().exits(2);
    assert!(finished.stderr.contains("/stages/0/wasm/module: "), "{}", finished.stderr);
}

#[test]
fn a_bucket_is_read_by_its_index_and_no_secret_is_printed() {
    const CANARY: &str = "canary-6fq1Zsecret";
    let settings = Settings { secret_access_key: CANARY.to_owned(), ..Settings::default() };
    let server = Server::start(settings).unwrap();
    let keys: Vec<String> = (0..60).map(|number| format!("scratch/{number:03}.JPEG")).collect();
    keys.iter().for_each(|key| server.put(key, key.repeat(20)));
    server.put("index-s3-val.json", serde_json::to_vec(&keys).unwrap());
    let folder = Folder::new();
    let dataset = json!({
        "aws_access_key_id": "penstock-test", "aws_secret_access_key": CANARY, "bucket_name": "data",
        "index_file_download_url": "s3://data/index-s3-val.json", "endpoint_url": server.endpoint()
    });
    let dataset = folder.write("s3_dataset_configuration.json", dataset.to_string());
    let document = folder.write(
        "bench.json",
        json!({
            "source": { "index": { "store": "val" } }, "on_error": "skip",
            "actions": [{ "whole_set": { "workers": [2], "batch_size": 10, "repeats": 2 } }]
        })
        .to_string(),
    );
    let call = |out: &Path| {
        Call::new(&["bench", "storage"])
            .argument(&document)
            .argument("--store")
            .argument(format!("val={}", dataset.display()))
            .out(out)
    };
    let good = call(&folder.join("good")).finish().exits(0);
    // The second server rejects all requests; the report contains its response.
    let wrong = fs::read_to_string(&dataset).unwrap().replace(CANARY, &format!("{CANARY}-not"));
    fs::write(&dataset, wrong).unwrap();
    let bad = call(&folder.join("bad")).finish();
    assert_ne!(bad.code, Some(0));
    let mut told = vec![good.stdout, good.stderr, bad.stdout, bad.stderr];
    for name in ["good/report.json", "good/reads.ndjson", "good/report.html"] {
        told.extend(fs::read_to_string(folder.join(name)));
    }
    assert!(told.iter().all(|text| !text.contains(CANARY) && !text.contains("penstock-test")));
    let kept = report(&told[4]);
    assert_eq!(
        cells(&kept)[1]["counts"],
        json!({ "getitem": 120, "fetch": 12, "worker_loop": 4, "load_all": 2, "benchmark": 1 })
    );
    assert_eq!(cells(&kept)[0]["ceiling"]["against"], "s3");
}

/// A folder with the fixtures of all formats.
fn shards() -> Folder {
    let folder = Folder::new();
    for (key, bytes) in fixtures() {
        folder.write(&key, bytes);
    }
    folder.write("lines/0.ndjson", "{\"key\": \"a\", \"n\": 1}\n{\"key\": \"b\", \"n\": 2}\n");
    folder
}

#[test]
fn samples_of_each_format_are_measured_in_order_and_at_random() {
    let folder = shards();
    let call = |format: &str, prefix: &str| {
        let call = storage().store("shards", folder.path()).set("/ceiling=false");
        let call = call.argument(format!("--format={format}")).argument(format!("--prefix={prefix}"));
        call.argument("--workers=2").argument("--repeats=2").argument("--batch-size=2")
    };
    for (format, prefix) in [
        ("tar", "shard-"),
        ("parquet", "parquet/rows"),
        ("tfrecord", "tfrecord/train"),
        ("mds", "mds/zstd"),
        ("csv", "rows/"),
        ("records", "lines/"),
    ] {
        let told = report(&call(format, prefix).json().finish().exits(0).stdout);
        let count = told["objects"]["count"].as_u64().unwrap();
        assert!(count > 1 && told["balanced"] == true, "{format}: {told}");
        assert_eq!(cells(&told).len(), 2);
        for cell in cells(&told) {
            assert_eq!(
                (cell["items"].as_u64(), &cell["items_per_read"]),
                (Some(2 * count), &json!(2)),
                "{format}"
            );
        }
        let random = &told["actions"][1]["calls"];
        assert_eq!((&random["action"], &random["time"]["n"]), (&json!("random"), &json!(200)), "{format}");
        assert!(random["bytes"].as_u64().unwrap() > 0, "{format}");
    }
    let told = call("tar", "shard-").finish().exits(0);
    for said in ["12 samples (`tar`) of store `shards` (folder), about ", "; opened in ", "\n random "] {
        assert!(told.stdout.contains(said), "{said}: {}", told.stdout);
    }
}

#[test]
fn shards_of_a_bucket_feed_stages_with_their_own_fields() {
    let server = Server::start(Settings::default()).unwrap();
    for (key, bytes) in fixtures() {
        server.put(&key, bytes);
    }
    let folder = Folder::new();
    let dataset = json!({
        "aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "data", "endpoint_url": server.endpoint()
    });
    let dataset = folder.write("dataset.json", dataset.to_string());
    let mut document = json!({
        "source": { "tar": { "store": "shards", "shards": "shard-{00..02}.tar" } },
        "stages": [{ "aggregate": { "size": 4 } }, { "collate": {} }], "ceiling": false, "counterfactuals": true,
        "actions": [
            { "whole_set": { "workers": [2], "batch_size": 4, "repeats": 2, "modes": ["async"] } },
            { "index": { "repeat": 2 } }
        ]
    });
    let call = |document: &Value| {
        let document = folder.write("bench.json", document.to_string());
        storage().argument(&document).store("shards", &dataset).json().finish()
    };
    let told = report(&call(&document).exits(0).stdout);
    let cell = &cells(&told)[0];
    // A batch has the samples of a shard, which are one request.
    assert_eq!(
        (&cell["items"], &cell["refused"], &cell["requests"]["made"]),
        (&json!(24), &json!(0), &json!(6))
    );
    assert_eq!(told["objects"]["kind"], "s3");
    assert_eq!(told["counterfactuals"].as_array().unwrap().len(), 3);
    assert_eq!(told["actions"][1]["calls"]["time"]["n"], 2);

    document["stages"] = json!([{ "wasm": { "module": "missing" } }]);
    let told = call(&document).exits(2).stderr;
    assert!(told.contains("/stages/0/wasm/module: "), "{told}");
}

#[test]
fn sources_that_a_benchmark_cannot_read_are_refused() {
    let folder = shards();
    let call = |source: Value| {
        let document = folder.write("bench.json", json!({ "source": source }).to_string());
        storage().argument(&document).store("shards", folder.path()).finish()
    };
    let shard = json!({ "tar": { "store": "shards", "prefix": "shard-", "shuffle": true } });
    let mix = json!({ "mix": { "sources": { "one": { "source": shard.clone() } } } });
    let told = call(mix).exits(2).stderr;
    assert!(told.contains("/source/mix: ") && told.contains("`tar`"), "{told}");
    let told = call(shard).exits(2).stderr;
    assert!(told.contains("/source/tar/shuffle: ") && told.contains("index"), "{told}");
    let told = call(json!({ "tar": { "store": "shards", "index": "none.index" } })).exits(1).stderr;
    assert!(told.contains("cannot open the samples") && told.contains("`none.index`"), "{told}");
    let call = storage().store("shards", folder.path()).argument("--format=tar").argument("--suffix=.jpg");
    let told = call.finish().exits(2).stderr;
    assert!(told.contains("suffix"), "{told}");
}

/// Interrupts a benchmark once the reads of its first load are written; returns the loads in its report.
fn stopped(document: &Value) -> Vec<Value> {
    let folder = Folder::new();
    let document = folder.write("bench.json", document.to_string());
    let call = Call::new(&["bench", "storage"]).argument(&document).out(&folder.join("out")).json();
    let mut child = call.start();
    while fs::metadata(folder.join("out/reads.ndjson")).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the benchmark ended before its first load");
        sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let told = report(&call.finished(child).exits(130).stdout);
    assert_eq!(told["state"], "stopped");
    assert!(told["findings"][0].as_str().unwrap().starts_with("The benchmark was stopped"));
    cells(&told)
}

#[test]
fn ctrl_c_ends_a_benchmark_and_prints_the_loads_so_far() {
    let mut document = json!({
        "source": { "memory": { "count": 5000, "bytes": 100, "latency_ms": 20 } }, "ceiling": false,
        "actions": [{ "whole_set": { "workers": [200], "repeats": 1 } }, { "whole_set": { "workers": [1], "repeats": 5 } }]
    });
    assert!(!stopped(&document).is_empty());
    // A load is reported even if the interrupt comes before its ceiling is measured.
    document["ceiling"] = json!(true);
    assert!(!stopped(&document).is_empty());
}

#[test]
fn missing_loads_fail_a_comparison_and_other_differences_are_reported() {
    let folder = Folder::new();
    let document = json!({
        "source": { "memory": { "count": 60, "bytes": 100 } }, "ceiling": false,
        "actions": [{ "whole_set": { "workers": [1, 2], "batch_size": 10, "repeats": 2 } }]
    });
    let document = folder.write("bench.json", document.to_string());
    let before = folder.join("before");
    Call::new(&["bench", "storage", "-q"]).argument(&document).out(&before).finish().exits(0);
    let compare = |after: &Value| {
        let after = folder.write("after.json", after.to_string());
        let call = Call::new(&["bench", "compare"]).argument(&before).argument(after);
        call.argument("--fail-if-slower=50").finish()
    };
    let mut after = report(&fs::read_to_string(before.join("report.json")).unwrap());
    compare(&after).exits(0);
    after["document"]["source"]["memory"]["shuffle"] = json!(true);
    after["document"]["stages"] = json!([{ "collate": {} }]);
    after["document"]["on_error"] = json!("skip");
    let told = compare(&after).exits(0).stdout;
    assert!(told.contains("The two reports also differ in: source, stages, `on_error`."), "{told}");
    after["actions"][0]["whole_set"].as_array_mut().unwrap().pop();
    let told = compare(&after).exits(1).stderr;
    assert!(told.starts_with("error: some loads could not be compared"), "{told}");
}

#[test]
fn the_schema_of_the_document_lists_all_actions() {
    let schema = Call::new(&["bench", "schema"]).finish().exits(0).stdout;
    for action in ["whole_set", "random", "single", "random_to_device", "index"] {
        assert!(schema.contains(&format!("\"{action}\"")), "{action}");
    }
}
