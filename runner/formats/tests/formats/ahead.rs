//! Tests of the blocks that the sources `records` and `tar` read ahead.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::pending;
use penstock_engine::ports::{Produced, Source};
use penstock_engine::typed::Typing;
use penstock_formats::{RecordSource, tar};
use penstock_s3_server::{Fault, Server, Settings, Trouble};
use penstock_storage::{
    BoundedStore, IfThere, KeyPages, MemoryStore, S3Credentials, S3Settings, Store, StoreFuture, Version,
    s3_store,
};
use penstock_types::config::SecretText;
use penstock_types::traversal::TraversalSettings;
use serde_json::json;
use tokio::task::yield_now;

use crate::records::{drain, lines};
use crate::{access, written};

const KEY: &str = "lines.ndjson";
const BLOCK: u64 = 1 << 20;
const LINE_BYTES: usize = 1000;

/// A store in memory whose reads of an early block take longer than those of a later one.
struct Reversed {
    store: MemoryStore,
    seen: Arc<Seen>,
    behaviour: Behaviour,
}

#[derive(Default)]
struct Seen {
    /// Starts of the ranges, in the order of the requests.
    starts: Mutex<Vec<u64>>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Clone, Copy, Default)]
struct Behaviour {
    /// Start of the range whose read fails.
    fails: Option<u64>,
    /// Start of the first range whose read never ends.
    hangs: Option<u64>,
}

impl Store for Reversed {
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
        self.store.get(key)
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        let (seen, Behaviour { fails, hangs }) = (self.seen.clone(), self.behaviour);
        seen.starts.lock().unwrap().push(range.start);
        let wanted = if fails == Some(range.start) { u64::MAX - 1..u64::MAX } else { range.clone() };
        let read = self.store.get_range(key, of, wanted);
        async move {
            seen.most.fetch_max(seen.in_flight.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            if hangs.is_some_and(|from| range.start >= from) {
                pending::<()>().await;
            }
            for _ in range.start / BLOCK % 64..64 {
                yield_now().await;
            }
            seen.in_flight.fetch_sub(1, Ordering::Relaxed);
            read.await
        }
        .boxed()
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.store.version(key)
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        self.store.write(key, bytes, if_there)
    }
}

/// Lines of [`LINE_BYTES`] bytes that fill this many blocks.
fn content(blocks: u64, letter: &str) -> Bytes {
    let count = (blocks * BLOCK).div_ceil(LINE_BYTES as u64);
    let text = letter.repeat(LINE_BYTES - "{\"n\":12345678,\"x\":\"\"}\n".len());
    (0..count).map(|number| format!("{{\"n\":{number:>8},\"x\":\"{text}\"}}\n")).collect::<String>().into()
}

async fn store(blocks: u64, permits: usize, behaviour: Behaviour) -> (BoundedStore, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let store = Reversed { store: MemoryStore::new("data"), seen: seen.clone(), behaviour };
    store.put(Arc::from(KEY), content(blocks, "y")).await.unwrap();
    (BoundedStore::new(Arc::new(store), NonZeroUsize::new(permits).unwrap()), seen)
}

fn source(store: &BoundedStore) -> RecordSource {
    lines(store, KEY, TraversalSettings::IN_ORDER)
}

fn numbers(count: usize) -> Vec<String> {
    (1..=count).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn blocks_that_arrive_out_of_order_are_delivered_in_order_and_read_once() {
    let (store, seen) = store(50, 64, Behaviour::default()).await;
    let found = drain(source(&store)).await;
    assert_eq!(found.keys(), numbers((50 * BLOCK).div_ceil(LINE_BYTES as u64) as usize));
    let starts = seen.starts.lock().unwrap();
    assert!(starts.iter().copied().eq((0..=50).map(|block| block * BLOCK)), "{starts:?}");
}

#[tokio::test]
async fn half_of_the_permits_and_no_more_than_33_reads_are_used() {
    for (permits, expected) in [(1, 1), (3, 1), (6, 3), (200, 33)] {
        let (store, seen) = store(80, permits, Behaviour { fails: None, hangs: Some(40 * BLOCK) }).await;
        let mut source = source(&store);
        let drained = async { while source.next().await.unwrap().is_some() {} };
        let all_hang = async {
            let hanging = |starts: &Vec<u64>| starts.iter().filter(|start| **start >= 40 * BLOCK).count();
            while hanging(&seen.starts.lock().unwrap()) < expected {
                yield_now().await;
            }
            for _ in 0..1000 {
                yield_now().await;
            }
        };
        tokio::select! {
            () = drained => panic!("the reads hang"),
            () = all_hang => {}
        }
        assert_eq!(seen.most.load(Ordering::Relaxed), expected);
    }
}

#[tokio::test]
async fn blocks_ahead_count_as_kept_memory_and_take_a_quarter_of_the_part_of_the_source() {
    for (part, blocks, most) in [(1 << 20, 5, 0), (16 << 20, 20, 4 << 20), (u64::MAX, 80, 32 << 20)] {
        let (store, _) = store(blocks, 200, Behaviour::default()).await;
        let mut source = source(&store).within(part);
        let mut kept = Vec::new();
        while source.next().await.unwrap().is_some() {
            kept.push(source.kept_bytes());
        }
        assert_eq!(kept.iter().max(), Some(&most));
        assert_eq!(source.kept_bytes(), 0);
    }
}

#[tokio::test]
async fn a_reading_that_ends_in_the_first_block_reads_no_other() {
    let (store, seen) = store(20, 64, Behaviour::default()).await;
    let settings = TraversalSettings { limit: Some(700), ..TraversalSettings::IN_ORDER };
    assert_eq!(drain(lines(&store, KEY, settings)).await.keys(), numbers(700));
    assert_eq!(*seen.starts.lock().unwrap(), [0]);
}

/// An archive with files of half a block.
fn archive(name: &str, blocks: usize) -> Bytes {
    let mut archive = Vec::new();
    for number in 0..2 * blocks {
        let mut header = [0; 512];
        let name = format!("{name}-{number}.bin");
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", BLOCK / 2 - 512).as_bytes());
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:07o}").as_bytes());
        archive.extend_from_slice(&header);
        archive.resize(archive.len() + BLOCK as usize / 2 - 512, b'y');
    }
    archive.into()
}

#[tokio::test]
async fn the_next_shard_is_read_while_the_rest_of_the_one_before_is_on_its_way() {
    let (store, seen) = store(0, 64, Behaviour { fails: None, hangs: Some(3 * BLOCK) }).await;
    let shards = ["a", "b", "c"].map(Arc::from);
    for key in &shards {
        store.put(Arc::clone(key), archive(key, 4)).await.unwrap();
    }
    let source = written(json!({ "shards": "{a,b,c}" }));
    let mut source =
        tar::stream(&source, access(&store, u64::MAX), Typing::default(), TraversalSettings::IN_ORDER);
    let drained = async { while source.next().await.unwrap().is_some() {} };
    let waits = async {
        for _ in 0..10_000 {
            yield_now().await;
        }
    };
    tokio::select! {
        () = drained => panic!("the reads hang"),
        () = waits => {}
    }
    let starts = seen.starts.lock().unwrap();
    let begun = starts.iter().filter(|start| **start == 0).count();
    assert_eq!((begun, starts.len()), (2, 8), "{starts:?}");
}

#[tokio::test]
async fn a_failed_block_ends_the_reading_in_its_place() {
    let behaviour = Behaviour { fails: Some(10 * BLOCK), hangs: None };
    let (store, seen) = store(80, 64, behaviour).await;
    let mut source = source(&store);
    let mut made = 0;
    let fault = loop {
        match source.next().await {
            Ok(Some(Produced::Samples(samples))) => made += samples.len() as u64,
            Ok(other) => panic!("{other:?}"),
            Err(fault) => break fault,
        }
    };
    assert_eq!(made, 10 * BLOCK / LINE_BYTES as u64);
    assert!(fault.to_string().contains("ends at byte"), "{fault}");
    assert!(
        seen.starts.lock().unwrap().len() > 11,
        "later blocks were read, but their lines are not delivered"
    );
    assert!(matches!(source.next().await, Ok(None)));
    assert_eq!(source.kept_bytes(), 0);
}

#[tokio::test]
async fn a_source_that_waits_for_its_consumer_holds_no_permit() {
    let (store, _) = store(80, 64, Behaviour::default()).await;
    let mut source = source(&store);
    while source.kept_bytes() < 8 * BLOCK {
        assert!(source.next().await.unwrap().is_some());
    }
    while store.reads_used() > 0 {
        yield_now().await;
    }
    assert_eq!(source.kept_bytes(), 8 * BLOCK);
}

#[tokio::test]
async fn a_dropped_source_cancels_its_reads() {
    let behaviour = Behaviour { fails: None, hangs: Some(10 * BLOCK) };
    let (store, seen) = store(80, 64, behaviour).await;
    let mut source = source(&store);
    while seen.starts.lock().unwrap().len() < 15 {
        assert!(source.next().await.unwrap().is_some());
    }
    assert!(store.reads_used() > 0);
    drop(source);
    while store.reads_used() > 0 {
        yield_now().await;
    }
}

#[tokio::test]
async fn ranges_of_a_bucket_are_repeated_after_failures_but_not_mixed_with_those_of_another_version() {
    const BLOCKS: u64 = 64;
    let server = Server::start(Settings::default()).unwrap();
    // More than is read for the types of the first records, and ahead.
    server.put(KEY, content(BLOCKS, "y"));
    for trouble in [Trouble::Status(500, "InternalError"), Trouble::ResetInBody(20_000)] {
        server.inject(Fault::on(KEY, trouble).method("GET").after(4).times(2));
    }
    let secret_access_key = SecretText::new("penstock-test-secret").unwrap();
    let settings = S3Settings {
        bucket: "data".to_owned(),
        endpoint: Some(server.endpoint()),
        region: Some("us-east-1".to_owned()),
        credentials: S3Credentials::Static {
            access_key_id: "penstock-test".to_owned(),
            secret_access_key,
            session_token: None,
        },
        ..S3Settings::default()
    };
    let store = s3_store("data", settings).unwrap();
    let store = BoundedStore::new(store, NonZeroUsize::new(64).unwrap());
    let found = drain(source(&store)).await;
    assert_eq!(found.keys(), numbers((BLOCKS * BLOCK).div_ceil(LINE_BYTES as u64) as usize));
    assert!(server.seen().iter().any(|seen| seen.trouble.is_some()));

    let mut source = source(&store);
    assert!(source.next().await.unwrap().is_some());
    server.put(KEY, content(BLOCKS, "z"));
    let fault = drain(source).await.fault();
    assert_eq!(fault, "reading `lines.ndjson` of store `data` failed");
}
