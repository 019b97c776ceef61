//! What a store of objects is, whatever keeps them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::error::StoreError;
use crate::keys::Keys;

/// Most bytes one [`Store::get`] reads; larger objects are read in ranges.
pub const MAX_GET_BYTES: u64 = 2 << 30;

/// A version of an object; every change makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub size: u64,
    /// Tells versions of the same size apart; `None` where the store has none.
    pub tag: Option<Arc<str>>,
}

/// Policy of a write for an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfThere {
    Replace,
    Leave,
}

/// A flat space of objects, each named by a key: relative, `/`-separated UTF-8 of at most
/// [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
///
/// Errors name the store and the key. What can be retried has been retried when an error comes out. The futures own
/// what they need, so that an op may outlive the call; dropping one gives a read up.
pub trait Store: Send + Sync {
    /// The name by which pipelines know it.
    fn name(&self) -> &Arc<str>;

    /// Description for the operator's logs: it may hold a path or an endpoint that a pipeline's author must not see.
    fn describe(&self) -> String;

    /// All keys that start with `prefix`, sorted by their bytes, a page at a time. A prefix is a string, not a folder:
    /// `a/b` finds `a/bc`. Nothing found is an empty listing, not an error.
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Keys, StoreError>>;

    /// The whole object, at most [`MAX_GET_BYTES`].
    fn get(&self, key: Arc<str>) -> BoxFuture<'static, Result<Bytes, StoreError>>;

    /// Exactly the bytes `range` of the object, of the version `of` if one is named; an error when it does not have them
    /// all, or there is another version by now. An empty range gives no bytes and need not look at the object.
    fn get_range(
        &self,
        key: Arc<str>,
        of: Option<Version>,
        range: Range<u64>,
    ) -> BoxFuture<'static, Result<Bytes, StoreError>>;

    fn version(&self, key: Arc<str>) -> BoxFuture<'static, Result<Version, StoreError>>;

    fn size(&self, key: Arc<str>) -> BoxFuture<'static, Result<u64, StoreError>> {
        let version = self.version(key);
        Box::pin(async move { Ok(version.await?.size) })
    }

    /// Writes the object whole or not at all. Who reads or lists meanwhile sees the old object or the new one, never a
    /// part. Once this has returned, the object outlives this machine's failure as far as the store can promise. Giving
    /// the future up may still write the object, whole.
    ///
    /// Says whether it was written: of several at once that write the same key and leave what is there, one is. `false`
    /// may also mean that an attempt whose answer was lost had written it, so that whoever cares looks at what is there.
    fn write(
        &self,
        key: Arc<str>,
        bytes: Bytes,
        if_there: IfThere,
    ) -> BoxFuture<'static, Result<bool, StoreError>>;

    /// [`Self::write`], which replaces an object that is there.
    fn put(&self, key: Arc<str>, bytes: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        let write = self.write(key, bytes, IfThere::Replace);
        Box::pin(async { write.await.map(drop) })
    }

    /// [`Self::write`], which leaves an object that is there as it is.
    fn put_new(&self, key: Arc<str>, bytes: Bytes) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.write(key, bytes, IfThere::Leave)
    }

    /// Drops the object's bytes from this machine's page cache, after writing pending changes, so that the next read
    /// comes from storage. Returns false where nothing is cached, this machine is the storage, or the system cannot be
    /// asked. `true` is no promise: pages in use may stay.
    fn forget(&self, key: Arc<str>) -> BoxFuture<'static, Result<bool, StoreError>> {
        drop(key);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Share of the object in this machine's page cache, 0.0 to 1.0; `None` if unknown. A sample of at most 8 pages
    /// spread over the object.
    fn cached_share(&self, key: Arc<str>) -> BoxFuture<'static, Result<Option<f64>, StoreError>> {
        drop(key);
        Box::pin(std::future::ready(Ok(None)))
    }
}
