//! A store whose reads and writes in flight are bounded.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::BoxStream;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use crate::error::StoreError;
use crate::keys::Keys;
use crate::observe::now;
use crate::store::{Store, Version};

/// Default bound on the reads and writes in flight.
pub const DEFAULT_READS: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");

/// A store as sources and stages hold it. All clones share one bound on the reads and writes in flight, whichever stage
/// they belong to: a batch of a thousand samples opens no thousand files, and no thousand connections.
#[derive(Clone)]
pub struct BoundedStore {
    store: Arc<dyn Store>,
    reads: Arc<Semaphore>,
}

/// The span of a read without its wait for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTime {
    pub start: Instant,
    pub end: Instant,
}

impl BoundedStore {
    /// Bounds the reads and writes of `store` in flight to `reads` together.
    pub fn new(store: Arc<dyn Store>, reads: NonZeroUsize) -> Self {
        let reads = reads.get().min(Semaphore::MAX_PERMITS);
        Self { store, reads: Arc::new(Semaphore::new(reads)) }
    }

    /// The same store with a bound of its own, apart from other users' reads.
    pub fn with_reads(&self, reads: NonZeroUsize) -> Self {
        Self::new(self.store.clone(), reads)
    }

    pub fn name(&self) -> &Arc<str> {
        self.store.name()
    }

    /// [`Store::list`]; a listing takes no permit.
    pub fn list(&self, prefix: &str) -> BoxStream<'static, Result<Keys, StoreError>> {
        self.store.list(prefix)
    }

    /// [`Store::get`] once there is a permit, and its span.
    pub async fn get(&self, key: Arc<str>) -> (Result<Bytes, StoreError>, ReadTime) {
        let _place = self.place().await;
        let start = now();
        let read = self.store.get(key).await;
        (read, ReadTime { start, end: now() })
    }

    /// [`Store::get_range`] once there is a permit.
    pub async fn get_range(
        &self,
        key: Arc<str>,
        of: Option<Version>,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let _place = self.place().await;
        self.store.get_range(key, of, range).await
    }

    pub async fn version(&self, key: Arc<str>) -> Result<Version, StoreError> {
        let _place = self.place().await;
        self.store.version(key).await
    }

    pub async fn size(&self, key: Arc<str>) -> Result<u64, StoreError> {
        let _place = self.place().await;
        self.store.size(key).await
    }

    pub async fn put(&self, key: Arc<str>, bytes: Bytes) -> Result<(), StoreError> {
        let _place = self.place().await;
        self.store.put(key, bytes).await
    }

    pub async fn put_new(&self, key: Arc<str>, bytes: Bytes) -> Result<bool, StoreError> {
        let _place = self.place().await;
        self.store.put_new(key, bytes).await
    }

    pub async fn forget(&self, key: Arc<str>) -> Result<bool, StoreError> {
        let _place = self.place().await;
        self.store.forget(key).await
    }

    pub async fn cached_share(&self, key: Arc<str>) -> Result<Option<f64>, StoreError> {
        let _place = self.place().await;
        self.store.cached_share(key).await
    }

    async fn place(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        // Never an error: nobody closes the semaphore. The permit is held as long as the result is.
        self.reads.acquire().await
    }
}

impl ReadTime {
    /// Time in which at least one of `reads` was under way.
    pub(crate) fn covered(mut reads: Vec<Self>) -> Duration {
        reads.sort_unstable_by_key(|read| read.start);
        let mut covered = Duration::ZERO;
        let mut until: Option<Instant> = None;
        for read in reads {
            let start = until.map_or(read.start, |until| until.max(read.start));
            covered += read.end.saturating_duration_since(start);
            until = Some(until.map_or(read.end, |until| until.max(read.end)));
        }
        covered
    }
}

impl fmt::Debug for BoundedStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BoundedStore").field("name", self.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_reads_count_once_and_gaps_not_at_all() {
        let zero = now();
        let read = |start: u64, end: u64| ReadTime {
            start: zero + Duration::from_secs(start),
            end: zero + Duration::from_secs(end),
        };
        assert_eq!(ReadTime::covered(vec![]), Duration::ZERO);
        assert_eq!(
            ReadTime::covered(vec![read(10, 12), read(0, 4), read(1, 2), read(3, 6)]),
            Duration::from_secs(8)
        );
    }
}
