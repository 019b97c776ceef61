//! Benchmarks of real stores, with and without failures.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

use penstock_bench::report::{LoadReport, ReportState};
use penstock_bench::{BenchReport, BenchStoreKind};
use penstock_s3_server::{Fault, Latency, Server, Settings, Trouble};
use penstock_storage::{FolderStore, Retries, S3Credentials, S3Settings, Store, Timeouts, s3_store};
use penstock_types::config::SecretText;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{numbered, ran, run, timed, unless};

const COUNT: u32 = 200;
/// Secret that must not appear in any output.
const CANARY: &str = "wJalrXUtnFEMI-K7MDENG-canary";

fn document(source: &str, load: Value, on_error: &str) -> Value {
    json!({
        "source": { "list": { "store": source } }, "on_error": on_error, "ceiling": false,
        "actions": [{ "whole_set": load }]
    })
}

fn bytes(number: u32) -> Vec<u8> {
    (0..1_000 + number).map(|place| (place * 31 + number) as u8).collect()
}

/// Creates a folder of objects in the build folder, which is usually on a disk: the default temporary folder is often in memory.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for number in 0..COUNT {
        fs::write(folder.path().join(format!("{number:06}.bin")), bytes(number)).unwrap();
    }
    folder
}

pub(crate) fn settings(latency: Latency) -> Settings {
    Settings { latency, secret_access_key: CANARY.to_owned(), remembers: false, ..Settings::default() }
}

fn server(latency: Latency) -> Server {
    let server = Server::start(settings(latency)).unwrap();
    (0..COUNT).for_each(|number| server.put(&format!("{number:06}.bin"), bytes(number)));
    server
}

pub(crate) fn bucket(server: &Server) -> Arc<dyn Store> {
    let settings = S3Settings {
        bucket: "data".to_owned(),
        endpoint: Some(server.endpoint()),
        credentials: S3Credentials::Static {
            access_key_id: "penstock-test".to_owned(),
            secret_access_key: SecretText::new(CANARY).unwrap(),
            session_token: None,
        },
        retries: Retries {
            attempts: NonZeroU32::new(20).unwrap(),
            base: Duration::from_millis(5),
            cap: Duration::from_millis(80),
        },
        timeouts: Timeouts {
            first_byte: Duration::from_millis(800),
            idle: Duration::from_millis(300),
            attempt: Duration::from_secs(2),
            operation: Duration::from_secs(4),
            ..Timeouts::default()
        },
        ..S3Settings::default()
    };
    s3_store("photos", settings).unwrap()
}

fn read(server: &Server, load: Value, on_error: &str) -> BenchReport {
    let store = bucket(server);
    let report = ran(document("photos", load, on_error), numbered(store, BenchStoreKind::S3, COUNT));
    let told = serde_json::to_string(&report).unwrap();
    assert!(!told.contains(CANARY) && !told.contains("penstock-test"), "{told}");
    report
}

pub(crate) fn only(report: &BenchReport) -> &LoadReport {
    let wrong: Vec<_> =
        report.cells().flat_map(|cell| &cell.books.checks).filter(|check| !check.holds).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!((report.state, &report.reason), (ReportState::Completed, &None));
    report.cells().next().unwrap()
}

fn load() -> Value {
    json!({ "modes": ["async"], "workers": [2], "in_flight": 8, "batch_size": 20, "repeats": 1 })
}

#[test]
fn a_bucket_with_latency_and_a_tail_keeps_its_permits_in_use() {
    let ms = Duration::from_millis;
    let server = server(Latency { usual: ms(20), tail: Some(ms(60)), tail_every: 50 });
    let grid = json!({ "workers": [2], "in_flight": 8, "batch_size": 50, "repeats": 1 });
    timed(|| {
        let subject = numbered(bucket(&server), BenchStoreKind::S3, COUNT);
        let report = run(document("photos", grid.clone(), "fail"), subject);
        let first = only(&report);
        let cells: Vec<&LoadReport> = report.cells().collect();
        let part = |name: &str| cells[1].parts.iter().find(|part| part.name == name).unwrap();
        assert!(part("first_byte").time.min_s >= 0.02 && first.levels.getitem.unwrap().max_s >= 0.06);
        assert!(cells[1].little.most == 16 && cells[1].requests.connections <= 16, "{:?}", cells[1]);
        assert_eq!(first.bytes, (0..COUNT).map(|number| u64::from(1_000 + number)).sum::<u64>());
        let (one, many) = (first.items_per_s, cells[1].items_per_s);
        let is_in_use = part("first_byte").share > 0.5 && cells[1].little.used > 0.6;
        unless(many > 4.0 * one && is_in_use, &(one, many, &cells[1].little, &cells[1].parts))
    });
}

#[test]
fn retries_are_reported_and_all_bytes_arrive() {
    let server = server(Latency::default());
    server.inject(Fault::on("", Trouble::SlowDown { after_s: 0 }).method("GET").after(5).times(10));
    server.inject(Fault::on("", Trouble::Reset).method("GET").after(5).times(5));
    server.inject(Fault::on("", Trouble::Truncated(100)).method("GET").after(5).times(5));
    server.inject(Fault::on("", Trouble::FlippedBit).method("GET").after(5).times(5));
    let report = read(&server, load(), "fail");
    let cell = only(&report);
    assert!(cell.requests.retries >= 25, "{:?}", cell.requests);
    assert_eq!(cell.requests.made, u64::from(COUNT) + cell.requests.retries);
    assert_eq!((cell.items, &cell.failures), (u64::from(COUNT), &Vec::new()));
    assert!(cell.parts.iter().any(|part| part.name == "retry"));
}

#[test]
fn an_unreadable_object_ends_the_benchmark_or_is_reported() {
    let server = server(Latency::default());
    server.inject(Fault::on("000077", Trouble::Status(403, "AccessDenied")).method("GET"));
    server.inject(Fault::on("000099", Trouble::HangInBody(10)).method("GET"));
    let report = read(&server, load(), "skip");
    let cell = only(&report);
    assert_eq!(cell.items, u64::from(COUNT) - 2);
    assert_eq!(cell.failures.iter().map(|group| group.count).sum::<u64>(), 2);
    let keys: Vec<&String> = cell.failures.iter().flat_map(|group| &group.keys).collect();
    assert!(keys.contains(&&"000077.bin".to_owned()) && keys.contains(&&"000099.bin".to_owned()), "{keys:?}");
    assert!(!report.is_sound());
    assert!(report.findings.iter().any(|told| told.contains("2 failures")));

    let ended = read(&server, load(), "fail");
    assert_eq!(ended.state, ReportState::Failed);
    assert!(
        ended.findings[0].starts_with("The benchmark failed, and this report is incomplete"),
        "{:?}",
        ended.findings
    );
}

#[test]
fn slow_bodies_are_reported_as_body_time() {
    let server = server(Latency::default());
    server.inject(Fault::on("", Trouble::Trickle(400, Duration::from_millis(20))).method("GET"));
    let report = read(&server, load(), "fail");
    let cell = only(&report);
    let body = cell.parts.iter().find(|part| part.name == "body").unwrap();
    assert!(body.time.median_s >= 0.03 && body.share > 0.5, "{body:?}");
}

#[test]
fn a_load_survives_a_restart_of_the_service_and_fails_without_one() {
    let latency = Latency { usual: Duration::from_millis(10), ..Latency::default() };
    let mut document = document("photos", load(), "fail");
    document["survey"] = json!(false);
    // The objects are on disk, so that the restarted server can deliver them immediately.
    let folder = folder();
    timed(|| {
        let settings = Settings { root: Some(folder.path().to_owned()), ..settings(latency) };
        let server = Server::start(settings.clone()).unwrap();
        let port = server.endpoint().rsplit(':').next().unwrap().parse().unwrap();
        let store = bucket(&server);
        let restarted = Builder::new().name("restart".to_owned()).spawn(move || {
            // The server goes down during the first pass.
            thread::sleep(Duration::from_millis(60));
            drop(server);
            thread::sleep(Duration::from_millis(150));
            Server::start(Settings { port, ..settings }).unwrap()
        });
        let report = run(document.clone(), numbered(store.clone(), BenchStoreKind::S3, COUNT));
        let cell = only(&report);
        assert_eq!(cell.items, u64::from(COUNT));
        drop(restarted.unwrap().join().unwrap());
        unless(cell.requests.retries > 0, &cell.requests)?;

        // The server is down now, so the load fails once its timeouts have passed.
        let report =
            run(self::document("photos", load(), "fail"), numbered(store, BenchStoreKind::S3, COUNT));
        assert_eq!(report.state, ReportState::Failed);
        unless(report.elapsed_s < 10.0, &report.elapsed_s)
    });
}

fn of_folder(root: &Path, document: Value) -> BenchReport {
    let store = Arc::new(FolderStore::open("photos", root).unwrap());
    ran(document, numbered(store, BenchStoreKind::Folder, COUNT))
}

/// Returns true if a file of the folder can be dropped from the page cache; otherwise prints that the test is skipped.
fn can_be_cold(root: &Path) -> bool {
    let store = FolderStore::open("photos", root).unwrap();
    let forgets = Runtime::new().unwrap().block_on(store.forget("000001.bin".into())).unwrap();
    if !forgets {
        skipped("files of this file system cannot be dropped from the page cache");
    }
    forgets
}

#[test]
fn the_report_of_a_folder_states_whether_it_was_read_warm_or_cold() {
    let folder = folder();
    let warm = of_folder(folder.path(), document("photos", load(), "fail"));
    only(&warm);
    assert!(warm.objects.warmed_s.is_some());
    assert!(warm.findings.iter().any(|told| told.contains("page cache")), "{:?}", warm.findings);
    let mut cold = document("photos", load(), "fail");
    cold["cache"] = json!("cold");
    let cold = of_folder(folder.path(), cold);
    let cell = only(&cold);
    if !can_be_cold(folder.path()) {
        return;
    }
    match cell.passes[0].cached {
        Some(share) => assert!(share < 0.1, "{share}"),
        None => skipped("this file system does not report the page cache"),
    }
    assert!(
        cold.findings
            .iter()
            .any(|told| told.starts_with("Each pass began cold") || told.contains("does not report")),
        "{:?}",
        cold.findings
    );
}

#[test]
fn a_missing_or_empty_object_leaves_the_others_cold() {
    let folder = folder();
    let mut cold = document("photos", load(), "skip");
    cold["cache"] = json!("cold");
    // True if this file system reports the cached share of files, as tested before the objects are damaged.
    let is_told = only(&of_folder(folder.path(), cold.clone())).passes[0].cached.is_some();
    fs::remove_file(folder.path().join("000000.bin")).unwrap();
    fs::write(folder.path().join("000002.bin"), "").unwrap();
    let report = of_folder(folder.path(), cold);
    let cell = only(&report);
    assert_eq!((cell.items, cell.failures[0].count), (u64::from(COUNT) - 1, 1));
    assert_eq!(cell.passes[0].cached.is_some(), is_told);
    if can_be_cold(folder.path()) && is_told {
        assert!(cell.passes[0].cached.unwrap() < 0.1, "{:?}", cell.passes[0]);
    }
}

#[test]
fn a_client_that_is_the_limit_is_reported() {
    let mut document = json!({
        "source": { "memory": { "count": COUNT, "bytes": 1000 } },
        "actions": [{ "whole_set": load() }]
    });
    let bound = ran(document.clone(), crate::synthetic(COUNT, 1000, Duration::ZERO));
    let ceiling = only(&bound).ceiling.unwrap();
    assert!(ceiling.items_per_s > 0.0 && ceiling.against == BenchStoreKind::Memory);
    // With batches this large, a whole pass that measures the client without storage (the ceiling) has fewer batches than the workers may prefetch.
    let many =
        json!({ "modes": ["sync"], "workers": [2], "prefetch": 100, "batch_size": 10_000, "repeats": 1 });
    document["actions"] = json!([{ "whole_set": many }]);
    let large = ran(document.clone(), crate::synthetic(COUNT, 10, Duration::ZERO));
    assert!(only(&large).ceiling.unwrap().items_per_s > 0.0);
    document["actions"] = json!([{ "whole_set": load() }]);
    document["source"]["memory"]["latency_ms"] = json!(5);
    timed(|| {
        let slow = run(document.clone(), crate::synthetic(COUNT, 1000, Duration::from_millis(5)));
        let ceiling = only(&slow).ceiling.unwrap();
        unless(!ceiling.is_client_bound && ceiling.reached < 0.5, &ceiling)
    });

    // The latency is large, because the S3 client is slow in a build without optimisation and would otherwise be the limit.
    let server = server(Latency { usual: Duration::from_millis(300), ..Latency::default() });
    let mut document = self::document("photos", load(), "fail");
    document["ceiling"] = json!(true);
    timed(|| {
        let report = run(document.clone(), numbered(bucket(&server), BenchStoreKind::S3, COUNT));
        let ceiling = only(&report).ceiling.unwrap();
        assert!(ceiling.against == BenchStoreKind::S3 && ceiling.items_per_s > 0.0, "{ceiling:?}");
        unless(!ceiling.is_client_bound, &ceiling)
    });
}

#[test]
fn accelerators_are_fed_as_far_as_the_rate_goes_and_parts_cost_what_they_cost() {
    // 2 x 8 reads of 5 ms reach at most 3,200 samples per second. An accelerator with a step of 20 ms for 8 samples takes 400 per
    // second, or 200 at half utilisation, so at most 16 accelerators can be fed.
    let document = json!({
        "source": { "memory": { "count": 400, "bytes": 1000, "latency_ms": 5 } },
        "accelerator": { "step_ms": 20, "batch_size": 8, "utilisation": 0.5 }, "counterfactuals": true, "ceiling": false,
        "actions": [{ "whole_set": { "modes": ["async"], "workers": [2], "in_flight": 8, "batch_size": 8, "repeats": 1 } }]
    });
    timed(|| {
        let report = run(document.clone(), crate::synthetic(400, 1000, Duration::from_millis(5)));
        only(&report);
        let found = report.accelerators.as_ref().unwrap();
        assert!(found.supported <= 16, "{found:?}");
        assert!(found.trials.iter().any(|trial| trial.accelerators == found.supported.max(1)), "{found:?}");
        assert!(found.presets.iter().any(|preset| preset.name == "resnet50/h100"));
        let without: Vec<(&str, f64)> =
            report.counterfactuals.iter().map(|one| (one.without.as_str(), one.gain)).collect();
        let names: Vec<&str> = without.iter().map(|(without, _)| *without).collect();
        assert_eq!(names, ["nothing", "storage", "consumer"]);
        unless(found.supported >= 6, found)?;
        // The supported accelerators take about as much as the storage delivers, so either the storage or the accelerators may
        // be the limit. The load must not become slower without the storage, nor without the accelerators.
        unless(without[2].1 > -0.2 && without[1].1 > -0.2, &without)
    });
}

#[expect(clippy::print_stderr, reason = "skipped tests are printed")]
fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}
