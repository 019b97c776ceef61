//! The interface of all stores.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use penstock_types::spec::Links;
use penstock_types::stats::StoreCacheFigures;

use crate::error::StoreError;
use crate::keys::Keys;

/// Result of a request, which owns its data.
pub type StoreFuture<T> = BoxFuture<'static, Result<T, StoreError>>;

/// Keys of a listing, in pages.
pub type KeyPages = BoxStream<'static, Result<Keys, StoreError>>;

/// Maximum number of bytes that one [`Store::get`] reads; larger objects are read in ranges.
pub const MAX_GET_BYTES: u64 = 2 << 30;

/// A version of an object; every change creates a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub size: u64,
    /// Distinguishes versions of the same size; `None` if the store does not support it.
    pub tag: Option<Arc<str>>,
}

impl Version {
    /// The part of the tag that true copies of the object share: the modification time of a file, whose number differs in each folder,
    /// and the whole tag of other objects.
    pub fn copied_tag(&self) -> Option<&str> {
        Some(self.of_file().map_or(self.tag.as_deref()?, |(_, time)| time))
    }

    /// True if the object may have the content of one of the version `other` although the tags differ: at least one of them is that of a
    /// file, which says nothing of the content.
    pub fn may_be_copy_of(&self, other: &Self) -> bool {
        self.size == other.size && (self.is_file() || other.is_file())
    }

    /// Time of the last change of a file, since 1970.
    pub(crate) fn file_time(&self) -> Option<Duration> {
        let (seconds, nanos) = self.of_file()?.1.split_once('-')?;
        Some(Duration::new(seconds.parse().ok()?, nanos.parse().ok()?))
    }

    /// True for a file in a folder.
    pub fn is_file(&self) -> bool {
        self.of_file().is_some()
    }

    /// Number and modification time of a file, as `folder::version` writes them.
    fn of_file(&self) -> Option<(&str, &str)> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        self.tag.as_deref()?.split_once('-').filter(|(number, time)| {
            is_number(number)
                && time.strip_prefix('-').unwrap_or(time).split('-').all(is_number)
                && time.contains('-')
        })
    }
}

/// Folders directly in a folder of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// Names, sorted by their bytes, also those of links to folders.
    pub names: Vec<String>,
    /// First names of links that lead out of the store, to files or folders.
    pub outside: Vec<String>,
    /// Set if folders without objects are among them.
    pub has_empty: bool,
}

/// Action of a write if the object already exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfThere {
    Replace,
    Leave,
}

/// A flat namespace of objects. Each object has a key: a relative, `/`-separated path in UTF-8 of at most
/// [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
///
/// Errors name the store and the key, and are returned only after all retries. The futures own their data, so that an op may
/// outlive the call; dropping the future of a read cancels the read.
pub trait Store: Send + Sync {
    /// Name of the store in pipelines.
    fn name(&self) -> &Arc<str>;

    /// Description for the operator's logs: it may contain a path or an endpoint that a pipeline's author must not see.
    fn describe(&self) -> String;

    /// Lists all keys that start with `prefix`, sorted by their bytes, in pages. A prefix is a string, not a folder: `a/b`
    /// matches `a/bc`. If no key matches, the listing is empty, which is not an error.
    fn list(&self, prefix: &str) -> KeyPages;

    /// Lists like [`Self::list`], but follows only those links that `links` names; the other methods follow all. For a caller that
    /// needs all keys: pages may be read long before they are needed.
    fn list_all(&self, prefix: &str, links: Links) -> KeyPages {
        let _ = links;
        self.list(prefix)
    }

    /// Folders directly in `folder`, which ends with `/` or is empty; also those without objects, if the store has such folders. `None`
    /// if the store has keys alone.
    fn folders(&self, folder: &str, links: Links) -> StoreFuture<Option<Folders>> {
        let _ = (folder, links);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Reads the whole object, at most [`MAX_GET_BYTES`].
    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes>;

    /// Reads the whole object together with its version, in one access; `None` if the store cannot.
    fn get_versioned(&self, key: Arc<str>) -> Option<StoreFuture<(Bytes, Version)>> {
        drop(key);
        None
    }

    /// Reads exactly `range` of the object; if `of` is given, only of this version. Fails if the object does not contain the
    /// whole range, or has another version. An empty range returns no bytes and need not access the object.
    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes>;

    /// True if [`Self::cached_range`] may return bytes.
    fn may_be_cached(&self) -> bool {
        false
    }

    /// Copies exactly `range` of this version of the object, if all of it is in this machine's page cache. Takes the time of the copy,
    /// but never waits for storage. Returns `None` for anything else, also for faults, which [`Self::get_range`] reports.
    fn cached_range(&self, _key: &str, _of: &Version, _range: Range<u64>) -> Option<Bytes> {
        None
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version>;

    /// Writes the object completely or not at all. Concurrent readers and listings see the old object or the new one, never a
    /// part. Once the call has returned, the object survives a failure of this machine if the store guarantees durability. A
    /// dropped future may still write the object, completely.
    ///
    /// Returns true if this call wrote the object. Of several concurrent writes of the same key with [`IfThere::Leave`], one
    /// writes it. `false` may also mean that an earlier attempt, whose response was lost, wrote the object; callers that need
    /// certainty have to read it.
    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool>;

    /// Calls [`Self::write`] such that an existing object is replaced.
    fn put(&self, key: Arc<str>, bytes: Bytes) -> StoreFuture<()> {
        let write = self.write(key, bytes, IfThere::Replace);
        Box::pin(async { write.await.map(drop) })
    }

    /// Calls [`Self::write`] such that an existing object stays unchanged.
    fn put_new(&self, key: Arc<str>, bytes: Bytes) -> StoreFuture<bool> {
        self.write(key, bytes, IfThere::Leave)
    }

    /// Figures of the data cache of the store, for this run; `None` for a store without one.
    fn cache_figures(&self) -> Option<StoreCacheFigures> {
        None
    }

    /// Sets the memory that entries of the data cache may take while they wait to be written.
    fn set_cache_room(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Blocks the thread until the data cache has written what it has admitted, or `most` has passed. Returns the number of entries that
    /// still wait.
    fn cache_written(&self, most: Duration) -> u64 {
        let _ = most;
        0
    }

    /// Drops the object's bytes from this machine's page cache, after writing pending changes, so that the next read comes from
    /// storage. Returns false if the store caches nothing, this machine is the storage, or the system does not support it. `true`
    /// is no guarantee: pages in use may stay.
    fn forget(&self, key: Arc<str>) -> StoreFuture<bool> {
        drop(key);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Fraction of the object that is in this machine's page cache, 0.0 to 1.0; `None` if unknown. Determined from a sample of at
    /// most 8 pages spread over the object.
    fn cached_share(&self, key: Arc<str>) -> StoreFuture<Option<f64>> {
        drop(key);
        Box::pin(std::future::ready(Ok(None)))
    }
}
