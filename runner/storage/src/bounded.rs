//! A store with a limit on concurrent reads and writes.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_types::config::Revalidate;
use penstock_types::spec::Links;
use penstock_types::stats::StoreCacheFigures;

use crate::caching::{ObjectCache, ObjectPlace};
use crate::data_cache::DataCache;
use crate::error::{StoreError, shown};
use crate::observe::now;
use crate::permits::{Permit, PermitUser, Permits};
use crate::store::{Folders, KeyPages, Store, Version};

/// Default limit of concurrent reads and writes.
pub const DEFAULT_READS: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");

/// Handle through which sources and stages use a store. It limits concurrent reads and writes: without a limit, a batch of a
/// thousand samples would open a thousand files or connections. All clones share the limit and count as one user;
/// [`Self::for_user`] creates another user. Users get permits in turns.
#[derive(Clone)]
pub struct BoundedStore {
    store: Arc<dyn Store>,
    user: PermitUser,
    /// Cache that runs use; other users read the store itself.
    cache: Option<ObjectCache>,
}

/// Start and end of a read. The wait for a permit is not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTime {
    pub start: Instant,
    pub end: Instant,
}

impl BoundedStore {
    /// Limits the reads and writes of `store` to `reads` at the same time, counted together.
    pub fn new(store: Arc<dyn Store>, reads: NonZeroUsize) -> Self {
        Self { store, user: Permits::new(reads).add_user(), cache: None }
    }

    /// Lets runs keep objects of the store, which are at `place`, in `cache`.
    #[must_use]
    pub fn with_cache(self, cache: Arc<DataCache>, place: &ObjectPlace, revalidate: Revalidate) -> Self {
        Self { cache: Some(ObjectCache::new(self.store.clone(), cache, place, revalidate)), ..self }
    }

    /// Creates a handle to the same store and limit for another user, usually another run.
    #[must_use]
    pub fn for_user(&self) -> Self {
        let store = self.cache.as_ref().map_or_else(|| self.store.clone(), ObjectCache::for_run);
        Self { store, user: self.user.another(), cache: self.cache.clone() }
    }

    /// Creates a handle to the same store with a separate limit, independent of other users' reads.
    pub fn with_reads(&self, reads: NonZeroUsize) -> Self {
        Self::new(self.store.clone(), reads)
    }

    pub fn name(&self) -> &Arc<str> {
        self.store.name()
    }

    /// An object of the store, for messages.
    pub fn named(&self, key: &str) -> String {
        format!("{} in store `{}`", shown(key), self.name())
    }

    /// Maximum number of concurrent reads and writes of all users together.
    pub fn reads(&self) -> NonZeroUsize {
        self.user.most()
    }

    /// Number of reads and writes in flight, over all users.
    pub fn reads_used(&self) -> usize {
        self.user.used()
    }

    /// Calls [`Store::list`]; a listing takes no permit.
    pub fn list(&self, prefix: &str) -> KeyPages {
        self.store.list(prefix)
    }

    /// Calls [`Store::list_all`]; a listing takes no permit.
    pub fn list_all(&self, prefix: &str, links: Links) -> KeyPages {
        self.store.list_all(prefix, links)
    }

    /// Calls [`Store::folders`]; a listing takes no permit.
    pub async fn folders(&self, folder: &str, links: Links) -> Result<Option<Folders>, StoreError> {
        self.store.folders(folder, links).await
    }

    /// Waits for a permit and calls [`Store::get`]; returns the result and the time of the read.
    pub async fn get(&self, key: Arc<str>) -> (Result<Bytes, StoreError>, ReadTime) {
        let permit = self.permit().await;
        self.get_with(permit, key).await
    }

    /// Calls [`Store::get`] with a permit; returns the result and the time of the read.
    pub(crate) async fn get_with(
        &self,
        _permit: Permit,
        key: Arc<str>,
    ) -> (Result<Bytes, StoreError>, ReadTime) {
        let start = now();
        let read = self.store.get(key).await;
        (read, ReadTime { start, end: now() })
    }

    /// Waits for a permit and calls [`Store::get_range`].
    pub async fn get_range(
        &self,
        key: Arc<str>,
        of: Option<Version>,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let _permit = self.permit().await;
        self.store.get_range(key, of, range).await
    }

    /// Calls [`Store::may_be_cached`].
    pub fn may_be_cached(&self) -> bool {
        self.store.may_be_cached()
    }

    /// Calls [`Store::cached_range`], which takes no permit.
    pub fn cached_range(&self, key: &str, of: &Version, range: Range<u64>) -> Option<Bytes> {
        self.store.cached_range(key, of, range)
    }

    pub async fn version(&self, key: Arc<str>) -> Result<Version, StoreError> {
        let _permit = self.permit().await;
        self.store.version(key).await
    }

    pub async fn put(&self, key: Arc<str>, bytes: Bytes) -> Result<(), StoreError> {
        let _permit = self.permit().await;
        self.store.put(key, bytes).await
    }

    pub async fn put_new(&self, key: Arc<str>, bytes: Bytes) -> Result<bool, StoreError> {
        let _permit = self.permit().await;
        self.store.put_new(key, bytes).await
    }

    pub async fn forget(&self, key: Arc<str>) -> Result<bool, StoreError> {
        let _permit = self.permit().await;
        self.store.forget(key).await
    }

    pub async fn cached_share(&self, key: Arc<str>) -> Result<Option<f64>, StoreError> {
        let _permit = self.permit().await;
        self.store.cached_share(key).await
    }

    /// Calls [`Store::cache_figures`].
    pub fn cache_figures(&self) -> Option<StoreCacheFigures> {
        self.store.cache_figures()
    }

    /// Calls [`Store::set_cache_room`].
    pub fn set_cache_room(&self, bytes: u64) {
        self.store.set_cache_room(bytes);
    }

    /// Calls [`Store::cache_written`].
    pub fn cache_written(&self, most: Duration) -> u64 {
        self.store.cache_written(most)
    }

    pub(crate) async fn permit(&self) -> Permit {
        self.user.permit().await
    }
}

impl ReadTime {
    /// Time during which at least one of `reads` was in progress.
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
    fn overlapping_reads_count_once_and_gaps_do_not_count() {
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
