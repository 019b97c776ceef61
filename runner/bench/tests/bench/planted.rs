//! Faults planted in the record of a load, or in a store: the ledger must detect every one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use penstock_bench::books::audit;
use penstock_bench::record::LoadRecord;
use penstock_bench::{BenchStep, BenchStoreKind, Follow};
use penstock_storage::{IfThere, KeyPages, MemoryStore, Store, StoreFuture, Version};
use penstock_types::stats::Tick;
use serde_json::json;

use crate::{followed, in_memory, numbered, ran, synthetic};

/// Observer that keeps the record of a load.
#[derive(Default)]
struct Keeping(Option<LoadRecord>);

impl Follow for Keeping {
    fn step(&mut self, _: &BenchStep) {}

    fn record(&mut self, load: &LoadRecord, _key: &dyn Fn(u32) -> Arc<str>) {
        self.0 = Some(load.clone());
    }
}

/// Runs a load of 120 items in batches of 10 by 3 workers in two passes, and returns its record.
fn record() -> LoadRecord {
    let load = json!({ "modes": ["async"], "workers": [3], "in_flight": 4, "batch_size": 10, "repeats": 2 });
    let mut kept = Keeping::default();
    followed(in_memory(120, load), synthetic(120, 100, Duration::from_millis(1)), &mut kept);
    kept.0.unwrap()
}

/// Changes a valid record by `plant`, and returns the names of the identities that do not hold any more.
fn caught(plant: impl FnOnce(&mut LoadRecord)) -> Vec<String> {
    let mut record = record();
    assert!(audit(&record).balanced, "{:?}", audit(&record));
    plant(&mut record);
    let books = audit(&record);
    assert_eq!(books.balanced, books.checks.iter().all(|check| check.holds));
    let wrong = books.checks.into_iter().filter(|check| !check.holds);
    wrong
        .map(|check| {
            assert!(check.found.is_some());
            check.identity
        })
        .collect()
}

/// Removes the identities `fetches` and `workers`, which may or may not detect an additional read or batch, depending on the
/// measured times.
fn surely(mut caught: Vec<String>) -> Vec<String> {
    caught.retain(|identity| !["fetches", "workers"].contains(&identity.as_str()));
    caught
}

#[test]
fn a_lost_item_is_detected() {
    let lost = |record: &mut LoadRecord| {
        record.passes[1].deliveries[4].objects.remove(3);
    };
    assert_eq!(caught(lost), ["once", "order"]);
    // The record of a read is missing, although its item is recorded as delivered.
    let unread = |record: &mut LoadRecord| {
        record.passes[0].fetches[2].items.remove(9);
    };
    assert_eq!(surely(caught(unread)), ["counts", "once", "order", "outcomes", "little"]);
}

#[test]
fn a_double_count_is_detected() {
    let twice = |record: &mut LoadRecord| {
        let again = record.passes[0].fetches[5].items[0].clone();
        record.passes[0].fetches[5].items.push(again);
    };
    assert_eq!(surely(caught(twice)), ["counts", "once", "order", "outcomes", "little"]);
    let delivered = |record: &mut LoadRecord| {
        let again = record.passes[0].deliveries[0].objects[0];
        record.passes[0].deliveries[0].objects.push(again);
    };
    assert_eq!(caught(delivered), ["once", "order"]);
    let logged = |record: &mut LoadRecord| {
        let again = record.passes[0].fetches[1].clone();
        record.passes[0].fetches.push(again);
    };
    assert_eq!(surely(caught(logged)), ["counts", "once", "outcomes", "little"]);
}

#[test]
fn a_pass_that_reads_one_object_twice_and_another_never_is_detected() {
    let instead = |record: &mut LoadRecord| {
        let pass = &mut record.passes[1];
        let mut order = pass.order.to_vec();
        order[5] = order[4];
        pass.order = order.into();
        pass.fetches.iter_mut().find(|fetch| fetch.batch == 0).unwrap().items[5].object = 4;
        pass.deliveries[0].objects[5] = 4;
    };
    assert_eq!(caught(instead), ["once"]);
    assert_eq!(caught(|record| drop(record.passes.pop())), ["counts"]);
}

#[test]
fn parts_that_take_longer_than_their_read_are_detected() {
    let longer = |record: &mut LoadRecord| {
        let item = &mut record.passes[0].fetches[0].items[0];
        item.parts.body = Duration::from_nanos(item.span.nanos() + 1);
    };
    assert_eq!(caught(longer), ["parts"]);
}

#[test]
fn a_reordered_batch_is_detected() {
    assert_eq!(caught(|record| record.passes[0].deliveries.swap(2, 3)), ["order"]);
    assert_eq!(caught(|record| record.passes[0].deliveries[7].objects.swap(0, 9)), ["order"]);
}

#[test]
fn a_jump_of_the_clock_is_detected() {
    // The clock of one worker jumps ahead by a second, between two of its batches.
    let jump = |record: &mut LoadRecord| {
        record.passes[0].loops[1].span.end = record.passes[0].loops[1].span.end.after(Duration::from_secs(1));
    };
    assert_eq!(caught(jump), ["nesting", "workers"]);
    // The clock jumps back during a read.
    let back = |record: &mut LoadRecord| {
        let item = &mut record.passes[1].fetches[0].items[2];
        std::mem::swap(&mut item.span.start, &mut item.span.end);
    };
    assert!(caught(back).contains(&"nesting".to_owned()));
    // A read lasts a second longer than its batch.
    let long = |record: &mut LoadRecord| {
        let item = &mut record.passes[1].fetches[0].items[2];
        item.span.end = Tick::from_nanos(item.span.end.nanos() + 1_000_000_000);
    };
    let found = caught(long);
    assert!(
        ["nesting", "little"].iter().all(|identity| found.contains(&(*identity).to_owned())),
        "{found:?}"
    );
}

#[test]
fn a_truncated_body_is_detected() {
    assert_eq!(caught(|record| record.passes[0].fetches[3].items[1].bytes = Some(99)), ["bytes"]);
    assert_eq!(caught(|record| record.passes[0].fetches[3].items[1].is_same = false), ["content"]);
}

#[test]
fn more_reads_in_flight_than_allowed_are_detected() {
    assert_eq!(caught(|record| record.passes[0].gauged.most = 13), ["permits"]);
}

#[test]
fn time_in_flight_without_a_read_is_detected() {
    // Plants a wrong total time in flight, and then a read whose end was not counted.
    assert_eq!(caught(|record| record.passes[0].gauged.read_ns *= 2), ["little"]);
    assert_eq!(caught(|record| record.passes[0].gauged.ended -= 1), ["outcomes"]);
}

#[test]
fn uncounted_time_between_reads_is_detected() {
    assert_eq!(caught(|record| record.passes[0].fetches[2].between_ns += 1), ["fetches"]);
    // The batch lasts one nanosecond longer than its reads and the time between them.
    let longer = |record: &mut LoadRecord| {
        let span = &mut record.passes[1].fetches[3].span;
        span.start = Tick::from_nanos(span.start.nanos() - 1);
    };
    assert!(caught(longer).contains(&"fetches".to_owned()));
    // All ten reads of a batch overlap, although only four may be in flight.
    let at_once = |record: &mut LoadRecord| {
        let fetch = &mut record.passes[1].fetches[3];
        fetch.between_ns = 0;
        let whole = fetch.span;
        fetch.items.iter_mut().for_each(|item| item.span = whole);
    };
    assert!(caught(at_once).contains(&"fetches".to_owned()));
}

#[test]
fn a_missing_worker_lifetime_is_detected() {
    assert_eq!(
        caught(|record| {
            record.passes[0].loops.pop();
        })[0],
        "counts"
    );
}

/// A store that returns truncated or altered bytes for one read in fifty, without an error.
struct Deceiving {
    store: MemoryStore,
    shortens: bool,
    reads: AtomicU64,
}

impl Store for Deceiving {
    fn name(&self) -> &Arc<str> {
        self.store.name()
    }

    fn describe(&self) -> String {
        self.store.describe()
    }

    fn list(&self, prefix: &str) -> KeyPages {
        self.store.list(prefix)
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        let (read, shortens) = (self.store.get(key), self.shortens);
        let deceives = (self.reads.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(50);
        Box::pin(async move {
            let bytes = read.await?;
            Ok(match deceives {
                true if shortens => bytes.slice(..bytes.len() - 1),
                true => bytes.iter().map(|byte| byte ^ 1).collect(),
                false => bytes,
            })
        })
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        self.store.get_range(key, of, range)
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.store.version(key)
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        self.store.write(key, bytes, if_there)
    }
}

#[test]
fn a_store_that_returns_wrong_bytes_voids_the_figures() {
    for (shortens, identity) in [(true, "bytes"), (false, "content")] {
        let store = MemoryStore::synthetic("memory", &[(120, 100)]);
        let store = Deceiving { store, shortens, reads: AtomicU64::new(0) };
        let load = json!({ "modes": ["async"], "workers": [2], "batch_size": 10, "repeats": 3 });
        let report = ran(in_memory(120, load), numbered(Arc::new(store), BenchStoreKind::Memory, 120));
        assert!(!report.balanced);
        let cell = report.cells().next().unwrap();
        let wrong: Vec<&str> = cell
            .books
            .checks
            .iter()
            .filter(|check| !check.holds)
            .map(|check| check.identity.as_str())
            .collect();
        assert!(wrong.contains(&identity), "{wrong:?}");
        assert!(
            report.findings[0].starts_with("The figures of `async 2x8` are void"),
            "{:?}",
            report.findings
        );
        assert!(report.fastest().is_none());
    }
}
