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

/// Which of the versions of an object this is; it has another one as soon as it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Of the object, in bytes.
    pub size: u64,
    /// What tells it from other versions of the same size; `None` where the store does not say.
    pub tag: Option<Arc<str>>,
}

/// What a write does about an object that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfThere {
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

    /// What it is, for the operator's logs: it may hold a path or an endpoint that a pipeline's author must not see.
    fn describe(&self) -> String;

    /// All keys that start with `prefix`, sorted by their bytes, a page at a time. A prefix is a string, not a folder:
    /// `a/b` finds `a/bc`. Nothing found is an empty listing, not an error.
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Keys, StoreError>>;

    /// The whole object, at most [`MAX_GET_BYTES`].
    fn get(&self, key: Arc<str>) -> BoxFuture<'static, Result<Bytes, StoreError>>;

    /// Exactly the bytes `range` of the object; an error when it does not have them all. An empty range gives no bytes
    /// and need not look at the object.
    fn get_range(&self, key: Arc<str>, range: Range<u64>) -> BoxFuture<'static, Result<Bytes, StoreError>>;

    /// As [`Self::get_range`], of this version of the object; an error when it has another one by now.
    fn get_range_of(
        &self,
        key: Arc<str>,
        version: Version,
        range: Range<u64>,
    ) -> BoxFuture<'static, Result<Bytes, StoreError>>;

    /// The object's version, and with it its size.
    fn version(&self, key: Arc<str>) -> BoxFuture<'static, Result<Version, StoreError>>;

    /// The object's size in bytes.
    fn size(&self, key: Arc<str>) -> BoxFuture<'static, Result<u64, StoreError>> {
        let version = self.version(key);
        Box::pin(async move { Ok(version.await?.size) })
    }

    /// Writes the object whole or not at all; replaces one that is there. Who reads or lists meanwhile sees the old
    /// object or the new one, never a part. Once this has returned, the object outlives this machine's failure as far
    /// as the store can promise. Giving the future up may still write the object, whole.
    fn put(&self, key: Arc<str>, bytes: Bytes) -> BoxFuture<'static, Result<(), StoreError>>;

    /// As [`Self::put`], but leaves an object that is there as it is. Says whether it was written: of several at once that
    /// write the same key, one is. `false` may also mean that an attempt whose answer was lost had written it, so that
    /// whoever cares looks at what is there.
    fn put_new(&self, key: Arc<str>, bytes: Bytes) -> BoxFuture<'static, Result<bool, StoreError>>;

    /// Asks this machine to forget the object's bytes, so that the next read comes from where they are kept; those that are
    /// not written to it yet are written first. Says whether there was something to ask: `false` where this machine keeps
    /// nothing of an object in between, is where it is kept, or cannot be asked. `true` is no promise: what somebody else uses may
    /// stay.
    fn forget(&self, key: Arc<str>) -> BoxFuture<'static, Result<bool, StoreError>> {
        drop(key);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// How much of the object this machine would not have to read from where it is kept, 0.0 to 1.0; `None` where it cannot be
    /// told. It is a sample: of at most 8 pages spread over the object.
    fn cached_share(&self, key: Arc<str>) -> BoxFuture<'static, Result<Option<f64>, StoreError>> {
        drop(key);
        Box::pin(std::future::ready(Ok(None)))
    }
}
