use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use penstock_engine::item::{Collated, Column, Origin, Stacked};
use penstock_storage::{BoundedStore, IfThere, KeyPages, Store, StoreFuture, Version};
use penstock_types::spec::{Files, Name};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::*;

/// A store in memory that writes a batch only when the test permits it.
struct Gated {
    name: Arc<str>,
    objects: Mutex<Vec<Arc<str>>>,
    let_through: Semaphore,
    begun: Sender<()>,
}

/// Maximum time that a test waits for an expected event.
const SOON: Duration = Duration::from_secs(20);

/// Handle of the store that the consumer gets.
#[derive(Clone)]
struct Entry(Arc<Gated>);

impl Store for Entry {
    fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn list(&self, _: &str) -> KeyPages {
        stream::empty().boxed()
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        let store = self.0.name.clone();
        std::future::ready(Err(StoreError::NotFound { store, key })).boxed()
    }

    fn get_range(&self, key: Arc<str>, _: Option<Version>, _: Range<u64>) -> StoreFuture<Bytes> {
        self.get(key)
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.get(key).map(|read| read.map(|_| Version { size: 0, tag: None })).boxed()
    }

    fn write(&self, key: Arc<str>, _: Bytes, _: IfThere) -> StoreFuture<bool> {
        let this = self.0.clone();
        async move {
            if key.ends_with(".json") {
                return Ok(true);
            }
            if key.ends_with("9.safetensors") {
                return Err(StoreError::NotFound { store: this.name.clone(), key });
            }
            this.begun.send(()).ok();
            this.let_through.acquire().await.expect("the semaphore is never closed").forget();
            this.objects.lock().unwrap().push(key);
            Ok(true)
        }
        .boxed()
    }
}

/// A consumer whose writes wait in the store, with a channel that reports the start of each write.
fn consumer(runtime: &Runtime) -> (Arc<Gated>, FilesConsumer, Receiver<()>) {
    let (begun, beginnings) = channel();
    let store = Arc::new(Gated {
        name: "gated".into(),
        objects: Mutex::default(),
        let_through: Semaphore::new(0),
        begun,
    });
    let files = Files { store: Name::new("gated").unwrap(), prefix: "p".to_owned() };
    let bounded = BoundedStore::new(Arc::new(Entry(store.clone())), NonZeroUsize::new(64).unwrap());
    let folder = FilesFolder::new(bounded, &files);
    let opened = runtime.block_on(folder.open(&serde_json::json!({}), &[], None, Bytes::new())).unwrap();
    (store, FilesConsumer::new(opened, 0, 0, runtime.handle().clone()), beginnings)
}

fn batch() -> Item {
    Item::Collated(Collated {
        keys: vec!["a".into(), "b".into()],
        origins: vec![Origin::default(); 2],
        fields: vec![Column { name: "t".into(), values: Stacked::Texts(vec![String::new(); 2]) }],
    })
}

#[test]
fn four_batches_are_written_at_a_time_and_no_more() {
    let runtime = Runtime::new().unwrap();
    let (store, mut consumer, begun) = consumer(&runtime);
    let stop = StopFlag::default();
    for _ in 0..IN_FLIGHT {
        consumer.consume(batch(), &stop).unwrap();
    }
    // No write has finished, and no call had to wait.
    (0..IN_FLIGHT).for_each(|_| begun.recv_timeout(SOON).unwrap());
    std::thread::scope(|scope| {
        let fifth = scope.spawn(|| consumer.consume(batch(), &stop));
        assert_eq!(begun.recv_timeout(2 * LOOK), Err(RecvTimeoutError::Timeout));
        store.let_through.add_permits(1);
        begun.recv_timeout(SOON).unwrap();
        assert_eq!(fifth.join().unwrap(), Ok(()));
    });
    store.let_through.add_permits(4);
    assert_eq!(consumer.finish(Ending::Whole, &stop), Ok(()));
    assert_eq!(consumer.unfinished(), 0);
    assert_eq!(store.objects.lock().unwrap().len(), 5);
    assert_eq!(consumer.opened.manifest.complete, Some(Complete { batches: 5, samples: 10 }));
}

#[test]
fn a_stop_abandons_late_batches_and_counts_them_as_unfinished() {
    let runtime = Runtime::new().unwrap();
    let (store, mut consumer, _begun) = consumer(&runtime);
    let stop = StopFlag::default();
    (0..3).for_each(|_| consumer.consume(batch(), &stop).unwrap());
    store.let_through.add_permits(1);
    stop.set();
    assert_eq!(consumer.finish(Ending::Early, &stop), Ok(()));
    assert_eq!(consumer.unfinished(), 4);
    assert_eq!(*consumer.count.lock().unwrap(), FilesRecord { written: 1, already_there: 0 });
    assert_eq!(consumer.opened.manifest.complete, None);
}

#[test]
fn a_failed_write_is_reported_with_its_key_and_its_batch_is_unfinished() {
    let runtime = Runtime::new().unwrap();
    let (store, mut consumer, _begun) = consumer(&runtime);
    store.let_through.add_permits(100);
    let stop = StopFlag::default();
    (0..10).for_each(|_| consumer.consume(batch(), &stop).unwrap());
    let fault = consumer.finish(Ending::Whole, &stop).unwrap_err();
    assert_eq!(&*fault.message, "store `gated` has no object `p/batch-00000009.safetensors`");
    assert_eq!(consumer.unfinished(), 2);
    assert_eq!(consumer.opened.manifest.complete, None);
}
