//! Tests of the limit on concurrent reads, and of the order in which reads are admitted.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use penstock_engine::item::{Item, Origin, Sample};
use penstock_engine::ports::{SlotWatch, TaskOp, TaskSlot};
use penstock_storage::{BoundedStore, FetchOp, IfThere, KeyPages, Store, StoreFuture, Version};
use tokio::sync::oneshot;

/// A store that counts concurrent reads. Every read yields several times, so that other reads can run.
#[derive(Default)]
struct Counting {
    in_flight: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Store for Counting {
    fn name(&self) -> &Arc<str> {
        unreachable!("no read of this store fails")
    }

    fn describe(&self) -> String {
        String::new()
    }

    fn list(&self, _prefix: &str) -> KeyPages {
        stream::empty().boxed()
    }

    fn get(&self, _key: Arc<str>) -> StoreFuture<Bytes> {
        let (in_flight, most) = (self.in_flight.clone(), self.most.clone());
        async move {
            most.fetch_max(in_flight.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            in_flight.fetch_sub(1, Ordering::Relaxed);
            Ok(Bytes::new())
        }
        .boxed()
    }

    fn get_range(&self, key: Arc<str>, _of: Option<Version>, _range: Range<u64>) -> StoreFuture<Bytes> {
        self.get(key)
    }

    fn version(&self, _key: Arc<str>) -> StoreFuture<Version> {
        std::future::ready(Ok(Version { size: 0, tag: None })).boxed()
    }

    fn write(&self, key: Arc<str>, _: Bytes, _: IfThere) -> StoreFuture<bool> {
        self.get(key).map(|put| put.map(|_| true)).boxed()
    }
}

#[tokio::test]
async fn stages_that_share_a_store_share_its_bound() {
    let counting = Counting::default();
    let most = counting.most.clone();
    let store = BoundedStore::new(Arc::new(counting), NonZeroUsize::new(3).unwrap());
    let batch = || Item::Batch((0..10).map(|_| Sample::new("k", Origin::default())).collect());
    let (one, other) = (FetchOp::new(store.clone(), None), FetchOp::new(store.clone(), None));
    let puts = join_all((0..10).map(|_| store.put(Arc::from("k"), Bytes::new())));
    let (first, second, puts) = futures::join!(one.start(batch()), other.start(batch()), puts);
    assert!(first.failed.is_empty() && second.failed.is_empty() && puts.iter().all(Result::is_ok));
    assert_eq!(most.load(Ordering::Relaxed), 3);
}

/// A store whose reads complete only when the test calls [`Gated::end_one`].
#[derive(Clone, Default)]
struct Gated(Arc<Mutex<VecDeque<UnderWay>>>);

/// A read in progress: its key, and the sender that completes it.
type UnderWay = (Arc<str>, oneshot::Sender<()>);

impl Gated {
    fn store(&self, reads: usize) -> BoundedStore {
        BoundedStore::new(Arc::new(self.clone()), NonZeroUsize::new(reads).unwrap())
    }

    /// Completes the read that has been in progress longest, and returns its key.
    fn end_one(&self) -> Option<Arc<str>> {
        let (key, gate) = self.0.lock().unwrap().pop_front()?;
        gate.send(()).unwrap();
        Some(key)
    }
}

impl Store for Gated {
    fn name(&self) -> &Arc<str> {
        unreachable!("no read of this store fails")
    }

    fn describe(&self) -> String {
        String::new()
    }

    fn list(&self, _prefix: &str) -> KeyPages {
        stream::empty().boxed()
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        let (gate, opened) = oneshot::channel();
        self.0.lock().unwrap().push_back((key, gate));
        async move {
            opened.await.unwrap();
            Ok(Bytes::new())
        }
        .boxed()
    }

    fn get_range(&self, key: Arc<str>, _of: Option<Version>, _range: Range<u64>) -> StoreFuture<Bytes> {
        self.get(key)
    }

    fn version(&self, _key: Arc<str>) -> StoreFuture<Version> {
        std::future::ready(Ok(Version { size: 0, tag: None })).boxed()
    }

    fn write(&self, key: Arc<str>, _: Bytes, _: IfThere) -> StoreFuture<bool> {
        self.get(key).map(|put| put.map(|_| true)).boxed()
    }
}

fn batch(key: &str, samples: usize) -> Item {
    Item::Batch((0..samples).map(|_| Sample::new(key, Origin::default())).collect())
}

#[tokio::test]
async fn a_run_with_huge_batches_lets_another_run_take_turns() {
    let gated = Gated::default();
    let store = gated.store(8);
    let large = FetchOp::new(store.for_user(), None);
    let small = Arc::new(FetchOp::new(store.for_user(), None));
    let sample = || Item::Sample(Sample::new("small", Origin::default()));
    let small =
        stream::repeat_with(|| small.start(sample())).take(200).buffer_unordered(8).collect::<Vec<_>>();
    let ended = async {
        let mut ended = Vec::new();
        while ended.len() < 20_200 {
            match gated.end_one() {
                Some(key) => ended.push(key),
                None => tokio::task::yield_now().await,
            }
        }
        ended
    };
    let (large, small, ended) = futures::join!(large.start(batch("large", 20_000)), small, ended);
    assert!(large.failed.is_empty() && small.iter().all(|output| output.failed.is_empty()));
    // The large batch came first and so held all permits at the beginning. If permits were not granted in turns, the large batch
    // would keep them.
    let last = ended.iter().rposition(|key| **key == *"small").unwrap();
    let of_large = ended[..last].iter().filter(|key| ***key == *"large").count();
    assert!(of_large <= 200 + 2 * 8, "{of_large} reads of the large batch came before 200 of the other run");
}

#[test]
fn a_batch_requests_no_more_permits_than_there_are() {
    let gated = Gated::default();
    let op = FetchOp::new(gated.store(3), None);
    let key: Arc<str> = Arc::from("k");
    let samples = (0..100_000).map(|_| Sample::new(key.clone(), Origin::default())).collect();
    let before = Arc::strong_count(&key);
    let mut fetch = op.start(Item::Batch(samples));
    assert!((&mut fetch).now_or_never().is_none());
    // Each request holds one reference to the key, so the number of references shows the number of requests.
    assert!(Arc::strong_count(&key) <= before + 100_000 + 3, "{}", Arc::strong_count(&key));
    while (&mut fetch).now_or_never().is_none() {
        gated.end_one().unwrap();
    }
}

/// Records the waits that slots report.
#[derive(Default)]
struct Recorded(Mutex<Vec<bool>>);

impl SlotWatch for Recorded {
    fn on_permit_wait(&self, stage: usize, slot: usize, waits: bool) {
        assert_eq!((stage, slot), (4, 2));
        self.0.lock().unwrap().push(waits);
    }
}

#[test]
fn a_task_waits_for_permits_while_none_of_its_reads_has_one() {
    let gated = Gated::default();
    let store = gated.store(2);
    let other = store.for_user();
    // Another run holds both permits, so the fetch must wait.
    let mut held = [other.get("other".into()).boxed(), other.get("other".into()).boxed()];
    held.iter_mut().for_each(|read| assert!(read.now_or_never().is_none()));
    let watch = Arc::new(Recorded::default());
    let reports = || watch.0.lock().unwrap().clone();
    let mut fetch = FetchOp::new(store, None).start_in(batch("mine", 4), TaskSlot::new(watch.clone(), 4, 2));
    assert!((&mut fetch).now_or_never().is_none());
    assert_eq!(reports(), [true]);
    // One permit is freed, so one of the four reads starts; the task no longer waits for permits.
    gated.end_one().unwrap();
    assert!((&mut held[0]).now_or_never().is_some());
    assert!((&mut fetch).now_or_never().is_none());
    assert_eq!(reports(), [true, false]);
    // From now on, at least one read of the task always holds a permit.
    gated.end_one().unwrap();
    assert!((&mut held[1]).now_or_never().is_some());
    while (&mut fetch).now_or_never().is_none() {
        gated.end_one().unwrap();
    }
    assert_eq!(reports(), [true, false]);
    // A permit that is granted immediately is not reported as a wait.
    let mut free =
        FetchOp::new(gated.store(2), None).start_in(batch("mine", 4), TaskSlot::new(watch.clone(), 4, 2));
    while (&mut free).now_or_never().is_none() {
        gated.end_one().unwrap();
    }
    assert_eq!(reports(), [true, false]);
}
