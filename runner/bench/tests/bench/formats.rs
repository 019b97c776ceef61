//! Benchmarks of samples in tar shards, in a folder and in a bucket.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use penstock_bench::report::{ActionReport, ReportState};
use penstock_bench::{BenchReport, BenchStoreKind, StageOp, Subject, Takes};
use penstock_engine::item::Item;
use penstock_engine::ports::{Fault, Items, Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_formats::{Access, Damage, tar};
use penstock_s3_server::{Latency, Server};
use penstock_storage::{BoundedStore, FolderStore, Store};
use penstock_types::traversal::TraversalSettings;
use serde_json::{Value, json};

use crate::ran;
use crate::stores::{bucket, only, settings};

/// Number of samples in each of two shards.
const SAMPLES: usize = 30;
/// Bytes of a sample: a picture, and a class as a number of 64 bits.
const BYTES: u64 = 2000 + 8;
/// Memory that opened samples may keep, in bytes.
const MOST: u64 = 1 << 20;

/// A tar archive of `SAMPLES` samples, each with a picture of 2,000 bytes and a class. The member `broken` is no gzip file.
fn shard(number: usize, broken: Option<usize>) -> Vec<u8> {
    let mut archive = Vec::new();
    for sample in number * SAMPLES..(number + 1) * SAMPLES {
        let gz = if broken == Some(sample) { ".gz" } else { "" };
        for (name, content) in [
            (format!("{sample:03}.cls{gz}"), vec![b'7']),
            (format!("{sample:03}.jpg"), vec![sample as u8; 2000]),
        ] {
            let mut header = [0_u8; 512];
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
            header[148..156].fill(b' ');
            header[156] = b'0';
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            archive.extend_from_slice(&header);
            archive.extend_from_slice(&content);
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// A stage that drops samples without the fields of the shards.
struct Expects;

impl ThreadOpFactory for Expects {
    fn build(&self, _: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
        Ok(Box::new(Self))
    }
}

impl ThreadOp for Expects {
    fn apply(&mut self, item: Item, _: &StopFlag) -> Output {
        let is_whole = matches!(&item, Item::Sample(sample) if ["cls", "jpg"].map(|name| sample.field(name).is_some()) == [true; 2]);
        match is_whole {
            true => Output { items: Items::One(item), ..Output::default() },
            false => Output { dropped: 1, ..Output::default() },
        }
    }
}

fn document(source: Value, on_error: &str) -> Value {
    let load = json!({ "workers": [2], "in_flight": 4, "batch_size": 20, "repeats": 2 });
    json!({
        "source": { "tar": source }, "on_error": on_error, "ceiling": false,
        "actions": [{ "whole_set": load }, { "random": { "repeat": 30 } }, { "single": { "repeat": 5 } }]
    })
}

async fn subject(store: Arc<dyn Store>, kind: BenchStoreKind, shuffle: bool) -> Subject {
    let store = BoundedStore::new(store, NonZeroUsize::new(8).unwrap());
    let source = serde_json::from_value(json!({ "store": "shards", "shards": "{0..1}.tar" })).unwrap();
    let access = Access { store: store.clone(), damage: Damage::default(), most_bytes: MOST };
    let samples = tar::open(&source, access).await.unwrap();
    let settings = TraversalSettings { shuffle, ..TraversalSettings::IN_ORDER };
    let stage = StageOp { name: "expects".to_owned(), takes: Takes::Sample, factory: Arc::new(Expects) };
    Subject::of_samples(store, kind, samples, settings, 1, vec![stage]).await.unwrap()
}

/// A folder with two shards, as a store.
fn folder(broken: Option<usize>) -> (tempfile::TempDir, Arc<dyn Store>) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for number in 0..2 {
        fs::write(folder.path().join(format!("{number}.tar")), shard(number, broken)).unwrap();
    }
    let store = FolderStore::open("shards", folder.path()).unwrap();
    (folder, Arc::new(store))
}

/// Requests for each of the loads, and the number of samples that a read takes.
fn requests(report: &BenchReport) -> Vec<(u64, u32)> {
    report.cells().map(|cell| (cell.requests.made, cell.items_per_read)).collect()
}

#[test]
fn neighbours_are_read_together_in_order_and_each_sample_alone_at_random() {
    let (_folder, in_folder) = folder(None);
    let server = Server::start(settings(Latency::default())).unwrap();
    (0..2).for_each(|number| server.put(&format!("{number}.tar"), shard(number, None)));
    for (store, kind) in [(in_folder, BenchStoreKind::Folder), (bucket(&server), BenchStoreKind::S3)] {
        for shuffle in [false, true] {
            let source = json!({ "store": "shards", "prefix": "", "shuffle": shuffle });
            let report = ran(document(source, "fail"), subject(store.clone(), kind, shuffle));
            only(&report);
            for cell in report.cells() {
                assert_eq!((cell.items, cell.counts.getitem, cell.refused), (120, 120, 0));
                assert_eq!(cell.bytes, 120 * BYTES);
                assert_eq!(cell.permits, 2 * cell.in_flight * cell.items_per_read);
            }
            // In order, a batch is one request, but the second batch has samples of both shards.
            let expected = if shuffle { (120, 1) } else { (8, 20) };
            assert_eq!(requests(&report), [expected; 2], "{kind:?}");
            assert_eq!((report.objects.count, report.objects.survey_s), (60, None));
            let takes = if shuffle {
                "A read takes one sample; "
            } else {
                "A read takes up to 20 neighbouring samples; "
            };
            assert!(report.findings.iter().any(|told| told.starts_with(takes)), "{:?}", report.findings);
            let calls = report.actions.iter().filter_map(|action| match action {
                ActionReport::Calls(calls) => Some((calls.action.as_str(), calls.time.n, calls.bytes)),
                ActionReport::WholeSet(_) => None,
            });
            assert!(calls.eq([("random", 30, 30 * BYTES), ("single", 5, 5 * BYTES)]));
        }
    }
}

#[test]
fn an_unreadable_sample_fails_alone_and_the_ledger_balances() {
    let (_folder, store) = folder(Some(33));
    let source = json!({ "store": "shards", "prefix": "" });
    let report = ran(document(source, "skip"), subject(store.clone(), BenchStoreKind::Folder, false));
    let cell = only(&report);
    assert_eq!((cell.items, cell.failures.len()), (118, 1));
    let failure = &cell.failures[0];
    assert_eq!((failure.count, failure.keys.as_slice()), (2, ["33".to_owned()].as_slice()));
    assert!(failure.message.contains("`cls.gz` of the sample `033`"), "{}", failure.message);
    let source = json!({ "store": "shards", "prefix": "" });
    let report = ran(document(source, "fail"), subject(store, BenchStoreKind::Folder, false));
    assert_eq!(report.state, ReportState::Failed);
}

#[test]
fn a_shard_that_changes_after_it_was_indexed_fails_the_benchmark() {
    let (folder, store) = folder(None);
    let opened = subject(store, BenchStoreKind::Folder, false);
    let changed = async {
        let opened = opened.await;
        fs::write(folder.path().join("1.tar"), vec![0; 2048]).unwrap();
        opened
    };
    let report = ran(document(json!({ "store": "shards", "prefix": "" }), "fail"), changed);
    assert_eq!(report.state, ReportState::Failed);
    assert!(report.reason.as_ref().unwrap().contains("1.tar"), "{:?}", report.reason);
}

#[test]
fn samples_are_measured_cold_and_without_storage() {
    let (_folder, store) = folder(None);
    let mut document = document(json!({ "store": "shards", "prefix": "" }), "fail");
    (document["ceiling"], document["counterfactuals"], document["cache"]) =
        (json!(true), json!(true), json!("cold"));
    let report = ran(document, subject(store, BenchStoreKind::Folder, false));
    let ceiling = only(&report).ceiling.unwrap();
    assert_eq!(ceiling.against, BenchStoreKind::Memory);
    assert!(ceiling.items_per_s > 0.0);
    let without: Vec<&str> = report.counterfactuals.iter().map(|one| one.without.as_str()).collect();
    assert_eq!(without, ["nothing", "storage", "stage:expects"]);
    assert!(report.objects.warmed_s.is_none());
}
