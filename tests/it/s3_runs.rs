//! Runs over buckets: the same samples and bytes as over the folder from which they were copied.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_pipeline::Stores;
use penstock_s3_server::{Fault, Latency, Mode, Order, Rclone, Server, Settings, Trouble};
use penstock_tests::{Call, Folder, lines, photos};
use penstock_types::config::DatasetConfig;
use penstock_types::run::{FailureRecord, RunSnapshot};
use penstock_types::verdict::VerdictKind;
use serde_json::{Value, json};

use crate::photos::{batches_of, in_input_order};

/// The photos in a bucket, below `scratch/photos/`, with an index of them.
fn bucket() -> Server {
    bucket_that_answers_after(Duration::ZERO)
}

fn bucket_that_answers_after(usual: Duration) -> Server {
    bucket_with(Settings { latency: Latency { usual, ..Latency::default() }, ..Settings::default() })
}

fn bucket_with(settings: Settings) -> Server {
    let server = Server::start(Settings { bucket: "playground".to_owned(), ..settings }).unwrap();
    let mut keys = Vec::new();
    for (key, bytes) in files(photos(), "") {
        keys.push(format!("scratch/photos/{key}"));
        server.put(&format!("scratch/photos/{key}"), bytes);
    }
    keys.sort();
    server.put("scratch/index-s3-val.json", serde_json::to_vec_pretty(&keys).unwrap());
    server
}

/// All files below a folder, by their keys.
fn files(folder: &Path, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let key = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        match path.is_dir() {
            true => found.extend(files(&path, &format!("{key}/"))),
            false => found.push((key, fs::read(&path).unwrap())),
        }
    }
    found
}

/// Configuration of a data set on a test server.
fn dataset(server: &Server) -> Value {
    json!({
        "aws_access_key_id": "penstock-test",
        "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "playground",
        "index_file_download_url": "s3://playground/scratch/index-s3-val.json",
        "endpoint_url": server.endpoint()
    })
}

fn stores(dataset: &Value) -> Stores {
    let mut stores = Stores::default();
    let dataset = DatasetConfig::read(dataset.to_string().as_bytes()).unwrap();
    stores.add_dataset("photos", &dataset).unwrap();
    stores
}

#[test]
fn photos_are_the_same_batches_from_a_folder_and_from_a_bucket() {
    let server = bucket();
    let mut folder = Stores::default();
    folder.add_folder("photos", photos()).unwrap();
    let expected = batches_of(folder, in_input_order(7, 2));
    assert_eq!(expected.len(), 25);

    let mut below = dataset(&server);
    below["prefix"] = json!("scratch/photos");
    assert_eq!(batches_of(stores(&below), in_input_order(7, 2)), expected);

    // The index of the data set has the keys of the bucket, so the batches differ only in their keys.
    let mut document = in_input_order(7, 2);
    document["source"] = json!({ "index": { "store": "photos", "shuffle": true } });
    let by_index = batches_of(stores(&dataset(&server)), document);
    let mut document = in_input_order(7, 2);
    document["source"]["list"]["prefix"] = json!("scratch/photos/");
    assert_eq!(by_index, batches_of(stores(&dataset(&server)), document));
}

#[test]
fn photos_are_the_same_batches_from_rclone() {
    let root = Folder::new();
    let bucket = root.join("playground");
    for (key, bytes) in files(photos(), "") {
        let file = bucket.join(key);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }
    let rclone = Rclone::serve(root.path(), "penstock-test", "penstock-test-secret");
    let dataset = json!({
        "aws_access_key_id": "penstock-test",
        "aws_secret_access_key": "penstock-test-secret",
        "bucket_name": "playground",
        "endpoint_url": rclone.endpoint()
    });
    let mut folder = Stores::default();
    folder.add_folder("photos", photos()).unwrap();
    let expected = batches_of(folder, in_input_order(7, 2));
    assert_eq!(batches_of(stores(&dataset), in_input_order(7, 2)), expected);
}

#[test]
fn failures_of_a_bucket_are_retried_or_reported_with_their_samples() {
    let server = bucket();
    let passing = [
        ("000000.jpg", Trouble::Status(500, "InternalError")),
        ("000001.jpg", Trouble::SlowDown { after_s: 0 }),
        ("000002.jpg", Trouble::Page(502)),
        ("000003.jpg", Trouble::Reset),
        ("000004.jpg", Trouble::ResetInBody(1_000)),
        ("000005.jpg", Trouble::Truncated(1_000)),
        ("000006.jpg", Trouble::OverLong(9)),
        ("000007.jpg", Trouble::FlippedBit),
        ("000008.jpg", Trouble::Slow(Duration::from_millis(50))),
        ("000009.jpg", Trouble::Trickle(4_000, Duration::from_millis(1))),
        ("000010.jpg", Trouble::Status(403, "RequestTimeTooSkewed")),
    ];
    for (key, trouble) in passing {
        server.inject(Fault::on(key, trouble).times(2));
    }
    let lasting = [
        ("000021.jpg", Trouble::Status(404, "NoSuchKey"), "has no object"),
        ("000022.jpg", Trouble::FlippedBit, "body checksum mismatch"),
        ("000023.jpg", Trouble::Reset, "the connection failed"),
    ];
    for (key, trouble, _) in &lasting {
        server.inject(Fault::on(*key, trouble.clone()));
    }
    let folder = Folder::new();
    let file = folder.write("dataset.json", dataset(&server).to_string());
    let document = folder.document(&json!({
        "source": { "index": { "store": "photos" } },
        "stages": [{ "fetch": { "concurrency": 16 } }, { "aggregate": { "size": 8 } }],
    }));
    let out = folder.join("out");
    let finished = Call::run(&document).store("photos", &file).out(&out).json().finish().exits(0);
    let snapshot = finished.snapshot();
    assert!(snapshot.ledger.balanced);
    assert_eq!((snapshot.ledger.total.delivered, snapshot.ledger.total.skipped), (97, 3));
    let mut errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    errors.sort_by(|one, other| one.key.cmp(&other.key));
    assert_eq!(errors.len(), lasting.len());
    for (error, (key, _, said)) in errors.iter().zip(&lasting) {
        assert!(error.key.ends_with(key) && error.message.contains(said), "{error:?}");
    }
    let troubled = server.seen().into_iter().filter(|seen| seen.trouble.is_some()).count();
    // Requests with faults: two for each of nine transient faults, one for each of two slow responses, one for an error that is not
    // retried (404), and five attempts for each of two lasting faults that are retried.
    assert_eq!(troubled, 9 * 2 + 2 + 1 + 2 * 5);
}

#[test]
fn credentials_that_expire_end_the_run_and_a_resumed_one_reads_the_rest() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "index": { "store": "photos", "limit": 40 } }, "stages": [{ "fetch": { "concurrency": 4 } }],
        "max_failures": null,
    }));
    let state = folder.join("state.json");
    let call = |server: &Server, argument: &str| {
        let file = folder.write("dataset.json", dataset(server).to_string());
        Call::run(&document).store("photos", &file).json().argument(argument).argument(&state).finish()
    };
    for (code, status) in [("ExpiredToken", 400), ("AccessDenied", 403)] {
        let server = bucket();
        server.inject(Fault::on(".jpg", Trouble::Status(status, code)).after(18));
        let finished = call(&server, "--state").exits(1);
        let total = finished.snapshot().ledger.total;
        // Four reads are in flight at most.
        assert!((15..=18).contains(&total.delivered) && total.skipped <= 4, "{total:?}");
        let said = "stage `1:fetch`: store `photos` denies reading `";
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
        let remedy = format!("; check its credentials and permissions: {code}: ");
        assert!(finished.stderr.contains(&remedy), "{}", finished.stderr);
        let rest = call(&bucket(), "--resume").exits(0).snapshot().ledger.total;
        assert_eq!((total.delivered + rest.delivered, rest.skipped), (40, 0));
    }
}

#[test]
fn credentials_that_are_replaced_meanwhile_lose_no_sample() {
    let folder = Folder::new();
    let modes = vec![Mode::Token { requests: 30, file: folder.join("keys") }];
    let server = bucket_with(Settings { modes, ..Settings::default() });
    let config = json!({ "stores": { "photos": { "s3": {
        "bucket": "playground", "endpoint": server.endpoint(), "region": "us-east-1", "credentials_file": "keys"
    } } } });
    let config = folder.write("penstock.json", config.to_string());
    let document = folder.document(&json!({
        "source": { "list": { "store": "photos", "prefix": "scratch/photos/", "epochs": 2 } },
        "stages": [{ "fetch": { "concurrency": 4 } }]
    }));
    let call = Call::run(&document).argument("--config").argument(config).json();
    let total = call.finish().exits(0).snapshot().ledger.total;
    assert_eq!((total.delivered, total.skipped), (200, 0));
}

/// A bucket with objects `train/000.txt` to `train/039.txt` and these ones, and the configuration of a store for it.
fn texts(modes: Vec<Mode>, more: &[&str], settings: &Value) -> (Server, Folder, PathBuf) {
    let folder = Folder::new();
    let server = bucket_with(Settings { modes, page: 7, ..Settings::default() });
    let names = (0..40).map(|number| format!("train/{number:03}.txt"));
    names.chain(more.iter().map(|key| (*key).to_owned())).for_each(|key| server.put(&key, key.clone()));
    folder.write(
        "keys",
        "[default]\naws_access_key_id = penstock-test\naws_secret_access_key = penstock-test-secret\n",
    );
    let mut bucket = json!({
        "bucket": "playground", "endpoint": server.endpoint(), "region": "us-east-1", "credentials_file": "keys"
    });
    bucket.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let config = json!({ "stores": { "texts": { "s3": bucket } } });
    let config = folder.write("penstock.json", config.to_string());
    (server, folder, config)
}

#[test]
fn buckets_as_they_are_give_all_samples_in_byte_order() {
    let odd = ["train//a.txt", "train/x//b.txt", "/train/c.txt", "train/../d.txt", "train/e/"];
    for (modes, more, settings, left_out) in [
        (vec![Mode::Region("eu-west-1".to_owned(), 301)], &[][..], json!({}), 0),
        (vec![Mode::Region("eu-west-1".to_owned(), 400)], &[], json!({}), 0),
        (vec![Mode::Payer], &[], json!({ "requester_pays": true }), 0),
        (vec![], &odd, json!({}), 1),
        (vec![Mode::Listing(Order::Reversed)], &odd, json!({}), 1),
        (vec![Mode::Listing(Order::Shuffled)], &odd, json!({}), 1),
        (vec![Mode::Listing(Order::PagesReversed)], &[], json!({ "sorted": false }), 0),
        (vec![Mode::Listing(Order::Repeated)], &[], json!({}), 0),
        (vec![Mode::Listing(Order::CaseIgnored)], &["train/A/1", "train/b.txt", "train/C/1"], json!({}), 0),
        (vec![Mode::Without("etag".to_owned())], &[], json!({}), 0),
        (vec![Mode::Clock(7200)], &[], json!({}), 0),
    ] {
        let (server, folder, config) = texts(modes.clone(), more, &settings);
        let mut expected: Vec<String> = server.keys();
        expected.retain(|key| key.starts_with("train/") && !key.contains(".."));
        let document = folder.document(&json!({
            "source": { "list": { "store": "texts", "prefix": "train/" } },
            "stages": [{ "fetch": { "concurrency": 4 } }]
        }));
        let run = || Call::run(&document).argument("--config").argument(&config);
        let snapshot = run().json().finish().exits(0).snapshot();
        assert_eq!(snapshot.ledger.total.delivered, expected.len() as u64, "{modes:?}");
        let counted: u64 = snapshot.left_out.values().flatten().map(|left_out| left_out.count).sum();
        assert_eq!(counted, left_out, "{modes:?} {:?}", snapshot.left_out);
        let index = folder.join("index.json");
        let create = Call::new(&["index", "create", "--prefix", "train/", "--config"]).argument(&config);
        create.argument("--output").argument(&index).finish().exits(0);
        let keys: Vec<String> = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        assert_eq!(keys, expected, "{modes:?}");
    }
    let (_server, folder, config) = texts(vec![Mode::Payer], &[], &json!({}));
    let document = folder.document(&json!({ "source": { "list": { "store": "texts" } }, "stages": [] }));
    let told = Call::run(&document).argument("--config").argument(&config).finish().exits(1).stderr;
    assert!(
        told.contains("a bucket whose requesters pay needs `\"requester_pays\": true` of the store"),
        "{told}"
    );
    // A prefix may have empty segments, too.
    let (_server, folder, config) = texts(vec![], &odd, &json!({}));
    let document = folder.document(
        &json!({ "source": { "list": { "store": "texts", "prefix": "train/x//" } }, "stages": [] }),
    );
    let call = Call::run(&document).argument("--config").argument(&config).json();
    assert_eq!(call.finish().exits(0).snapshot().ledger.total.delivered, 1);
}

#[test]
fn a_cut_listing_costs_a_request_or_ends_the_run_and_never_loses_a_sample() {
    let (server, folder, config) = texts(vec![], &[], &json!({}));
    let document = folder.document(&json!({
        "source": { "list": { "store": "texts", "prefix": "train/" } }, "stages": [{ "fetch": {} }]
    }));
    let run = || Call::run(&document).argument("--config").argument(&config).json().finish();
    server.inject(Fault::on("", Trouble::Cut("train/01")).after(2).times(2));
    assert_eq!(run().exits(0).snapshot().ledger.total.delivered, 40);
    server.inject(Fault::on("", Trouble::Cut("</Contents>")));
    let told = run().exits(1).stderr;
    assert!(told.contains("the last: the listing ended early: its last element has no end"), "{told}");
    let create = Call::new(&["index", "create", "--prefix", "train/", "--config"]).argument(&config);
    let told = create.argument("--output").argument(folder.join("index.json")).finish().exits(1).stderr;
    assert!(told.contains("the listing ended early") && !folder.join("index.json").exists(), "{told}");
}

#[test]
fn control_characters_in_variables_are_refused_by_their_part_and_not_shown() {
    let server = bucket();
    let folder = Folder::new();
    let config = json!({ "stores": { "photos": { "s3": { "bucket": "playground", "endpoint": server.endpoint() } } } });
    let config = folder.write("penstock.json", config.to_string());
    let document = folder.document(&json!({ "source": { "list": { "store": "photos" } }, "stages": [] }));
    let run = |name: &str, value: &str| {
        let call =
            Call::run(&document).argument("--config").argument(&config).variable("HOME", folder.path());
        let usual =
            [("AWS_ACCESS_KEY_ID", "penstock-test"), ("AWS_SECRET_ACCESS_KEY", "penstock-test-secret")];
        let call = usual.into_iter().fold(call, |call, (name, value)| call.variable(name, value));
        call.variable(name, value).finish()
    };
    run("AWS_REGION", "us-east-1").exits(0);
    for (name, part) in [
        ("AWS_ACCESS_KEY_ID", "access key id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "session token"),
        ("AWS_REGION", "region"),
    ] {
        let told = run(name, "canary\nx").exits(1).stderr;
        let reason =
            format!("the {part} of the environment contains a control character, such as the end of a line");
        assert!(told.contains(&reason) && !told.contains("canary") && !told.contains("panicked"), "{told}");
    }
}

#[test]
fn the_endpoint_of_the_profile_is_used_unless_another_one_is_set() {
    let server = bucket();
    let folder = Folder::new();
    let document = folder.document(&json!({ "source": { "list": { "store": "photos" } }, "stages": [] }));
    let run = |endpoint: &str| {
        let keys = "aws_access_key_id = penstock-test\naws_secret_access_key = penstock-test-secret";
        let profile = format!("[default]\n{keys}\nregion = us-east-1\nendpoint_url = {endpoint}\n");
        let profile = folder.write("profile", profile);
        let call = Call::run(&document).argument("--store").argument("photos=s3://playground/scratch/photos");
        call.variable("AWS_CONFIG_FILE", profile).variable("HOME", folder.path()).json()
    };
    let delivered = |call: Call| call.finish().exits(0).snapshot().ledger.total.delivered;
    assert_eq!(delivered(run(&server.endpoint())), 100);
    let elsewhere = "http://127.0.0.1:1";
    assert_eq!(delivered(run(elsewhere).variable("AWS_ENDPOINT_URL", server.endpoint())), 100);
    let told = run("http://canary:canary@127.0.0.1").finish().exits(1).stderr;
    assert!(told.contains("`endpoint_url` of the profile contains a user name or a password"), "{told}");
    assert!(!told.contains("canary"), "{told}");
}

#[test]
fn checksums_are_omitted_for_a_service_that_refuses_them() {
    let (server, folder, config) = texts(vec![Mode::NoChecksums], &[], &json!({ "writable": true }));
    folder.records((0..8).map(|number| ["a", "b", "c", "d", "e", "f", "g", "h"][number]));
    let document = folder.document(&json!({
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "aggregate": { "size": 4 } }, { "collate": {} }],
        "consumer": { "files": { "store": "texts", "prefix": "out" } }
    }));
    let call = || Call::run(&document).store("here", folder.path()).argument("--config").argument(&config);
    let told = call().finish().exits(1).stderr;
    assert!(told.contains("AWS_REQUEST_CHECKSUM_CALCULATION=when_required omits them"), "{told}");
    let (requests, responses) = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION");
    let told = call().variable(requests, "required").finish().exits(2).stderr;
    assert!(
        told.contains("AWS_REQUEST_CHECKSUM_CALCULATION is `required`; expected `when_supported` or"),
        "{told}"
    );
    let before = server.seen().len();
    call().variable(requests, "when_required").variable(responses, "when_required").finish().exits(0);
    let seen = server.seen().split_off(before);
    let puts = seen.iter().filter(|seen| seen.method == "PUT");
    assert!(puts.clone().count() >= 3, "{seen:?}");
    let with_checksum = |name: &String| name.contains("checksum") || name == "x-amz-trailer";
    assert!(seen.iter().all(|seen| !seen.headers.keys().any(with_checksum)), "{seen:?}");
    // The profile has the same settings.
    let profile = folder.write(
        "profile",
        "[default]\nrequest_checksum_calculation = when_required\nresponse_checksum_validation = when_required\n",
    );
    let other = call().set("/consumer/files/prefix=other").variable("AWS_CONFIG_FILE", profile);
    other.finish().exits(0);
}

#[test]
fn a_check_of_stores_finds_a_bucket_that_does_not_exist_and_rights_that_are_missing() {
    let server = bucket();
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "list": { "store": "photos", "prefix": "scratch/photos/" } }, "stages": [{ "fetch": {} }]
    }));
    let checked = |dataset: &Value| {
        let file = folder.write("dataset.json", dataset.to_string());
        Call::check(&document).store("photos", &file).argument("--stores").finish()
    };
    assert_eq!(checked(&dataset(&server)).exits(0).stderr, "");
    let mut other = dataset(&server);
    other["bucket_name"] = json!("playgrounds");
    let told = checked(&other).exits(2).stderr;
    assert!(told.contains("  /source/list: ") && told.contains("NoSuchBucket"), "{told}");
    // The objects of a stage may lie in another store than the keys.
    let (keys, objects) = (
        folder.write("keys.json", dataset(&server).to_string()),
        folder.write("other.json", other.to_string()),
    );
    let call = Call::check(&document).set("/stages/0/fetch/store=objects").store("photos", &keys);
    let call = call.store("objects", &objects).argument("--stores");
    let told = call.finish().exits(2).stderr;
    assert!(told.contains("  /stages/0/fetch: ") && told.contains("NoSuchBucket"), "{told}");
    server.inject(Fault::on(".jpg", Trouble::Status(403, "AccessDenied")));
    let told = checked(&dataset(&server)).exits(2).stderr;
    assert!(told.contains("  /stages/0/fetch: store `photos` denies reading `"), "{told}");
    server.inject(Fault::on("", Trouble::OtherRegion("eu-west-1")));
    let told = checked(&dataset(&server)).exits(2).stderr;
    assert!(
        told.contains("  /source/list: ")
            && told.contains("region `eu-west-1`, which was tried: set `region`"),
        "{told}"
    );
}

#[test]
fn a_bucket_without_any_credentials_says_so() {
    let server = bucket();
    let (metadata, _) = metadata_service();
    let folder = Folder::new();
    let config = json!({ "stores": { "photos": { "s3": {
        "bucket": "playground", "endpoint": server.endpoint(), "region": "us-east-1"
    } } } });
    let config = folder.write("penstock.json", config.to_string());
    let document = folder.document(&json!({ "source": { "list": { "store": "photos" } }, "stages": [] }));
    let call = Call::run(&document).argument("--config").argument(config);
    let call = call.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata).variable("HOME", folder.path());
    let told = call.finish().exits(1).stderr;
    assert!(told.contains("no credentials were found in the environment, the profile, "), "{told}");
    assert!(told.contains("; a public bucket needs `\"anonymous\": true`"), "{told}");
}

#[test]
fn a_data_set_configuration_is_accepted_as_a_store_on_the_command_line() {
    let server = bucket();
    let folder = Folder::new();
    let file = folder.write("s3_dataset_configuration.json", dataset(&server).to_string());
    let document = folder.document(&json!({
        "source": { "index": { "store": "photos", "limit": 30 } }, "stages": [{ "fetch": { "concurrency": 8 } }]
    }));
    let snapshot = Call::run(&document).store("photos", &file).json().finish().exits(0).snapshot();
    assert_eq!((snapshot.expected, snapshot.ledger.total.delivered), (Some(30), 30));
}

#[test]
fn a_configuration_with_a_credentials_file_runs_and_an_index_is_written_to_the_bucket() {
    let server = bucket();
    let folder = Folder::new();
    folder.write(
        "keys",
        "[default]\naws_access_key_id = penstock-test\naws_secret_access_key = penstock-test-secret\n",
    );
    let config = folder.write(
        "penstock.json",
        json!({ "stores": { "photos": { "s3": {
            "bucket": "playground", "prefix": "scratch/photos/", "endpoint": server.endpoint(), "credentials_file": "keys",
            "index": "index.json", "reads": 4
        } } } })
        .to_string(),
    );
    for _again in 0..2 {
        let create = Call::new(&["index", "create", "--upload=index.json", "--config"]).argument(&config);
        let told = create.finish().exits(0).stderr;
        assert_eq!(told, "100 keys of store `photos` were written to its object `index.json`\n");
    }
    assert!(server.keys().contains(&"scratch/photos/index.json".to_owned()));
    let document = folder
        .document(&json!({ "source": { "index": { "store": "photos" } }, "stages": [{ "fetch": {} }] }));
    let call = Call::run(&document).argument("--config").argument(&config).json();
    assert_eq!(call.finish().exits(0).snapshot().ledger.total.delivered, 100);
}

#[test]
fn tasks_that_wait_for_permits_are_reported_and_the_advice_is_more_reads() {
    let server = bucket_that_answers_after(Duration::from_millis(20));
    let folder = Folder::new();
    folder.write(
        "keys",
        "[default]\naws_access_key_id = penstock-test\naws_secret_access_key = penstock-test-secret\n",
    );
    let config = folder.write(
        "penstock.json",
        json!({ "stores": { "photos": { "s3": {
            "bucket": "playground", "prefix": "scratch/photos/", "endpoint": server.endpoint(), "credentials_file": "keys",
            "reads": 2
        } } } })
        .to_string(),
    );
    let document = folder.document(&json!({
        "source": { "list": { "store": "photos" } },
        "stages": [{ "fetch": { "concurrency": 12 } }],
        "consumer": { "simulate": { "step_ms": 1 } }
    }));
    let finished = Call::run(&document).argument("--config").argument(&config).json().finish().exits(0);
    let snapshot = finished.snapshot();
    let task = &snapshot.stages[0].task;
    let all = task.busy_s
        + task.thread_wait_s
        + task.permit_wait_s
        + task.blocked_s
        + task.order_wait_s
        + task.idle_s;
    assert!((all - 12.0 * task.elapsed_s).abs() < 1e-6, "{task:?}");
    // At most two of the twelve tasks have a permit at a time.
    assert!(task.permit_wait_s > task.busy_s, "{task:?}");
    let verdict = snapshot.verdict.unwrap();
    assert_eq!(
        (verdict.kind, verdict.stage.as_deref()),
        (VerdictKind::Permits, Some("1:fetch")),
        "{verdict:?}"
    );
    assert!(
        verdict.advice[0].text.starts_with("Raise `reads` of store `photos` in the configuration from 2 to ")
    );
}

#[test]
fn a_wrong_secret_is_reported_and_never_printed() {
    let server = bucket();
    let folder = Folder::new();
    let mut dataset = dataset(&server);
    dataset["aws_secret_access_key"] = json!("CanaryOfTheSecretKey");
    let file = folder.write("dataset.json", dataset.to_string());
    let document = folder.document(
        &json!({ "source": { "range": { "count": 2 } }, "stages": [{ "fetch": { "store": "photos" } }] }),
    );
    let out = folder.join("out");
    let call = Call::run(&document).store("photos", &file).out(&out);
    let mut command = call.command();
    command
        .env("PENSTOCK_LOG", "trace")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let finished = call.finished(command.spawn().unwrap()).exits(1);
    let errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    assert!(errors[0].message.starts_with("store `photos` denies reading `"), "{}", errors[0].message);
    assert!(
        finished.stderr.contains("error: the run failed: stage `1:fetch`: store `photos` denies reading `")
    );
    let mut shown = vec![finished.stdout, finished.stderr];
    shown.extend(fs::read_dir(&out).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap()));
    assert!(shown.iter().all(|text| !text.contains("CanaryOfTheSecretKey")));
}

/// A metadata service that answers every request with 404, and counts the requests.
fn metadata_service() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::Builder::new()
        .name("metadata service".to_owned())
        .spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                stream.read(&mut [0; 4096]).unwrap_or_default();
                stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .unwrap_or_default();
            }
        })
        .unwrap();
    (address, asked)
}

#[test]
fn an_unknown_region_is_looked_up_once() {
    let asked_for = |samples: usize| {
        let folder = Folder::new();
        let keys: Vec<String> = (0..samples).map(|number| format!("{number}.txt")).collect();
        folder.records(keys.iter().map(String::as_str));
        let document = folder.document(&json!({
            "source": { "records": { "store": "here", "key": "records.ndjson" } },
            "stages": [{ "fetch": { "store": "far", "concurrency": 4 } }]
        }));
        let (service, asked) = metadata_service();
        let call = Call::run(&document).store("here", folder.path());
        let mut command = call.argument("--store").argument("far=s3://far").argument("--json").command();
        command.env_clear().env("HOME", folder.path());
        let output = command.env("AWS_EC2_METADATA_SERVICE_ENDPOINT", service).output().unwrap();
        let snapshot: RunSnapshot = serde_json::from_slice(&output.stdout).unwrap();
        let group = &snapshot.failures[0];
        assert_eq!((snapshot.failures.len(), group.count), (1, samples as u64));
        let expected = "failed: no region is known; set it in the store's settings or in AWS_REGION";
        assert!(group.message.ends_with(expected), "{}", group.message);
        asked.load(Ordering::Relaxed)
    };
    let once = asked_for(1);
    assert!(once > 0);
    assert_eq!(asked_for(6), once);
}
