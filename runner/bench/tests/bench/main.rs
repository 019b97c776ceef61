//! Tests of the storage benchmark through its public API: counts of a reference implementation, ledger checks that detect planted
//! faults, and stores with failures.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case should say where")]

mod formats;
mod golden;
mod planted;
mod stores;

use std::fmt::Debug;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use penstock_bench::{
    BenchReport, BenchSpec, BenchStep, BenchStoreKind, Benchmark, Cancel, Follow, MemorySource, Subject,
};
use penstock_engine::range::RangeSource;
use penstock_storage::{BoundedStore, Store};
use penstock_types::spec::Millis;
use penstock_types::traversal::{Traversal, TraversalSettings};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Creates a document that reads `count` objects from memory.
fn in_memory(count: u32, load: Value) -> Value {
    json!({
        "source": { "memory": { "count": count, "bytes": 100 } },
        "ceiling": false,
        "actions": [{ "whole_set": load }]
    })
}

/// Creates synthetic objects in memory, which are read in order.
async fn synthetic(count: u32, bytes: u32, latency: Duration) -> Subject {
    let latency_ms = Millis::new(latency.as_secs_f64() * 1e3);
    let count = NonZeroU32::new(count).unwrap();
    Subject::memory(&MemorySource { count, bytes, latency_ms, shuffle: false }, 0, 1).await.unwrap()
}

/// Creates a subject of the objects `000000.bin`, `000001.bin` and so on of a store.
async fn numbered(store: Arc<dyn Store>, kind: BenchStoreKind, count: u32) -> Subject {
    let store = BoundedStore::new(store, NonZeroUsize::MIN);
    let settings = TraversalSettings { epochs: NonZeroU32::new(1), ..TraversalSettings::IN_ORDER };
    let range = RangeSource::new(Traversal::new(u64::from(count), settings).unwrap());
    Subject::open(store, kind, Box::new(range), 1, Vec::new())
        .await
        .unwrap()
        .with_keys(|number| format!("{number:06}.bin").into())
}

/// Lock that tests share while they run a load; a test that measures times holds it exclusively.
static RUNNING: RwLock<()> = RwLock::new(());

/// Runs a benchmark document on a subject, concurrently with other tests.
fn ran(document: Value, subject: impl Future<Output = Subject>) -> BenchReport {
    let _beside = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    run(document, subject)
}

/// Runs a test that depends on times, while no other test runs a load. The test fails if four attempts fail: a stall of the
/// machine spoils one attempt, a defect all of them.
#[track_caller]
fn timed(attempt: impl Fn() -> Result<(), String>) {
    let _alone = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    let mut wrong = Vec::new();
    while let Err(told) = attempt() {
        wrong.push(told);
        assert!(wrong.len() < 4, "every time: {wrong:#?}");
    }
}

/// Returns the debug form of `told` as an error unless `holds` is true.
fn unless(holds: bool, told: &dyn Debug) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{told:?}")) }
}

fn run(document: Value, subject: impl Future<Output = Subject>) -> BenchReport {
    followed(document, subject, &mut |_: &BenchStep| {})
}

/// Runs a benchmark document on a subject, and reports its steps to `follow`.
fn followed(document: Value, subject: impl Future<Output = Subject>, follow: &mut dyn Follow) -> BenchReport {
    let runtime = Runtime::new().unwrap();
    let spec = BenchSpec::from_value(document).unwrap();
    let subject = runtime.block_on(subject);
    let benchmark =
        Benchmark::new(spec, subject, Duration::ZERO, None, runtime.handle().clone(), Cancel::default());
    benchmark.run("test", follow)
}
