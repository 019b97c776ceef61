//! Tests of the memory store: synthetic objects and latency.
#![expect(clippy::disallowed_methods, reason = "the configured latency is compared with the measured time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::join_all;
use penstock_storage::{Keys, MemoryStore, Store};

use crate::conformance::{self, OBJECTS};

#[tokio::test]
async fn memory_is_a_store() {
    let store = MemoryStore::new("data");
    for (key, bytes) in OBJECTS {
        store.put(Arc::from(*key), Bytes::from_static(bytes)).await.unwrap();
    }
    conformance::check(&store).await;
    conformance::check_alone(&with_objects_and_latency().await).await;
}

async fn with_objects_and_latency() -> MemoryStore {
    let store = MemoryStore::new("data").with_latency(Duration::from_micros(100)).unwrap();
    for (key, bytes) in OBJECTS {
        store.put(Arc::from(*key), Bytes::from_static(bytes)).await.unwrap();
    }
    store
}

#[tokio::test]
async fn synthetic_objects_have_the_given_sizes_and_different_bytes() {
    let store = MemoryStore::synthetic("data", &[(1_500, 100_000), (2, 8), (1, 0)]);
    let pages: Vec<Keys> = store.list("").try_collect().await.unwrap();
    let keys: Vec<Arc<str>> = pages.iter().flat_map(Keys::iter).map(Arc::from).collect();
    assert_eq!((pages.len(), keys.len()), (2, 1_503));
    assert!(keys.is_sorted());
    assert_eq!((&*keys[0], &*keys[1_502]), ("000000.bin", "001502.bin"));
    let read = |store: &MemoryStore| join_all(keys.iter().map(|key| store.get(key.clone())));
    let read_again = read(&MemoryStore::synthetic("data", &[(1_500, 100_000), (2, 8), (1, 0)])).await;
    let objects: Vec<Bytes> = read(&store).await.into_iter().map(Result::unwrap).collect();
    assert!(objects.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(objects.iter().zip(read_again).all(|(object, again)| *object == again.unwrap()));
    let sizes: Vec<usize> = objects[1_499..].iter().map(Bytes::len).collect();
    assert_eq!(sizes, [100_000, 8, 8, 0]);
    assert_eq!(store.version(keys[1_500].clone()).await.unwrap().size, 8);
}

#[tokio::test]
async fn concurrent_reads_wait_in_parallel_for_at_least_the_latency() {
    let latency = Duration::from_millis(20);
    let store = MemoryStore::synthetic("data", &[(50, 10)]).with_latency(latency).unwrap();
    let start = Instant::now();
    let reads = join_all((0..50).map(|number| store.get(Arc::from(format!("{number:06}.bin"))))).await;
    let took = start.elapsed();
    assert!(reads.iter().all(Result::is_ok));
    assert!(took >= latency && took < 25 * latency, "{took:?}");
}
