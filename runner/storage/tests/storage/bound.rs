//! The bound on reads in flight.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::{self, BoxStream, StreamExt};
use penstock_engine::item::{Item, Origin, Sample};
use penstock_engine::ports::TaskOp;
use penstock_storage::{BoundedStore, FetchOp, IfThere, Keys, Store, StoreError, Version};

/// Counts the reads in flight. Every read lets all others go first, several times.
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

    fn list(&self, _prefix: &str) -> BoxStream<'static, Result<Keys, StoreError>> {
        stream::empty().boxed()
    }

    fn get(&self, _key: Arc<str>) -> BoxFuture<'static, Result<Bytes, StoreError>> {
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

    fn get_range(
        &self,
        key: Arc<str>,
        _of: Option<Version>,
        _range: Range<u64>,
    ) -> BoxFuture<'static, Result<Bytes, StoreError>> {
        self.get(key)
    }

    fn version(&self, _key: Arc<str>) -> BoxFuture<'static, Result<Version, StoreError>> {
        std::future::ready(Ok(Version { size: 0, tag: None })).boxed()
    }

    fn write(&self, key: Arc<str>, _: Bytes, _: IfThere) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.get(key).map(|put| put.map(|_| true)).boxed()
    }
}

#[tokio::test]
async fn stages_that_share_a_store_share_its_bound() {
    let counting = Counting::default();
    let most = counting.most.clone();
    let store = BoundedStore::new(Arc::new(counting), NonZeroUsize::new(3).unwrap());
    let batch = || Item::Batch((0..10).map(|_| Sample::new("k", Origin::default())).collect());
    let (one, other) = (FetchOp::new(store.clone()), FetchOp::new(store.clone()));
    let puts = join_all((0..10).map(|_| store.put(Arc::from("k"), Bytes::new())));
    let (first, second, puts) = futures::join!(one.start(batch()), other.start(batch()), puts);
    assert!(first.failed.is_empty() && second.failed.is_empty() && puts.iter().all(Result::is_ok));
    assert_eq!(most.load(Ordering::Relaxed), 3);
}
