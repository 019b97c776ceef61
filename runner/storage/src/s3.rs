//! A store in an S3 bucket.

mod ahead;
mod answer;
mod attempts;
mod bucket;
mod client;
mod connection;
mod credentials;
mod failure;
mod list;
mod read;
mod settings;
mod sort;
mod throttle;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use penstock_types::spec::Links;

use crate::asked::Asked;
use crate::error::{Access, StoreError};
use crate::key::{MAX_KEY_BYTES, check_bucket_key, check_bucket_prefix, check_key};
use crate::keys::Keys;
use crate::s3::ahead::Pages;
use crate::s3::bucket::Bucket;
use crate::s3::failure::S3Failure;
use crate::s3::list::folders;
use crate::s3::read::{read_range, read_whole, version};
use crate::s3::settings::REQUEST_CHECKSUMS;
use crate::store::{Folders, IfThere, Store, Version};

pub use crate::s3::settings::{S3Credentials, S3Fault, S3Retries, S3Settings, S3Timeouts};

/// A bucket of Amazon S3, or of a server with a compatible API, as a store.
///
/// A failed request is repeated if another attempt may succeed: after lost connections, timeouts, responses such as "slow
/// down" or "internal error", and bodies that are too short, too long, or do not match the checksum that came with them. The
/// number of attempts, the waits and all times are limited, so that no request hangs; see [`S3Retries`] and [`S3Timeouts`]. All
/// requests of a store share a limit on repetitions: 100 at once, then 10 per second and one for every ten successful requests.
///
/// An object of at most 16 MiB is read in one request, with its checksum. A larger one is read in parts of 8 MiB, four at a time,
/// all of the same version: the read fails if the object is replaced meanwhile. After a read in parts, only a CRC-32 of the whole
/// object is verified, which every object written by this store has. A range has no checksum. A
/// [`BoundedStore`](crate::BoundedStore) counts a read in parts as one read. A write is one request, of at most 5 GiB.
///
/// The write of an object that must be new is conditional on the server (`If-None-Match: *`). If the server reports that it
/// does not support the condition, the store checks for the object first; a server that ignores the condition overwrites
/// the existing object.
///
/// Keys with empty segments (`//`, `/` at either end) can be read, but not written. A listing leaves out keys that no pipeline can name,
/// and the empty objects ending in `/` that consoles create as folders. It is in the order of the bytes of keys even if that of the service
/// is not: all keys are then sorted first.
///
/// A bucket in another region is followed there, once. Credentials are renewed before their end, and after a refusal.
/// Secrets are never logged and never part of an error; log messages of the SDK are dropped.
pub struct S3Store {
    bucket: Arc<Bucket>,
    describe: String,
}

impl S3Store {
    /// Creates the store `name` for the bucket of `settings`. Sends no request: a missing bucket or wrong credentials are
    /// detected only at the first use.
    pub fn new(name: impl Into<Arc<str>>, settings: S3Settings) -> Result<Self, S3Fault> {
        let name = name.into();
        let (settings, endpoint) = settings.checked(&name)?;
        let prefix = match settings.prefix.as_str() {
            "" => String::new(),
            prefix => format!(", prefix `{prefix}`"),
        };
        let host = endpoint.as_ref().map_or_else(String::new, |url| {
            let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
            format!(" at {}{port}", url.host_str().unwrap_or_default())
        });
        let describe = format!("store `{name}` (S3 bucket `{}`{prefix}{host})", settings.bucket);
        Ok(Self { bucket: Arc::new(Bucket::new(name, settings)), describe })
    }

    /// Runs `work` with the bucket, if the key is valid.
    fn with_bucket<T: Send + 'static, W>(
        &self,
        key: Arc<str>,
        access: Access,
        work: impl FnOnce(Arc<Bucket>, Arc<str>) -> W,
    ) -> BoxFuture<'static, Result<T, StoreError>>
    where
        W: Future<Output = Result<T, S3Failure>> + Send + 'static,
    {
        let asked = Asked { store: self.name().clone(), key: key.clone(), access };
        let checked = if access == Access::Writing { check_key(&key) } else { check_bucket_key(&key) };
        if let Err(reason) = checked {
            return std::future::ready(Err(asked.refused(reason))).boxed();
        }
        if key.len() + self.bucket.prefix().len() > MAX_KEY_BYTES {
            let error = match access {
                Access::Writing => {
                    asked.refused("with the store's prefix, the key is longer than 1024 bytes")
                }
                Access::Reading | Access::Listing => asked.not_found(),
            };
            return std::future::ready(Err(error)).boxed();
        }
        let work = work(self.bucket.clone(), key);
        async move { work.await.map_err(|failure| failure.of(&asked)) }.boxed()
    }
}

impl S3Store {
    fn pages(
        &self,
        prefix: &str,
        start: fn(Arc<Bucket>, &str) -> Pages,
    ) -> BoxStream<'static, Result<Keys, StoreError>> {
        let asked = Asked { store: self.name().clone(), key: Arc::from(prefix), access: Access::Listing };
        if let Err(reason) = check_bucket_prefix(prefix) {
            return stream::once(std::future::ready(Err(asked.refused(reason)))).boxed();
        }
        stream::unfold(Some(start(self.bucket.clone(), prefix)), move |pages| {
            let asked = asked.clone();
            async move {
                let mut pages = pages?;
                match pages.next_page().await {
                    Ok(page) => page.map(|page| (Ok(page), Some(pages))),
                    Err(failure) => Some((Err(failure.of(&asked)), None)),
                }
            }
        })
        .boxed()
    }
}

impl Store for S3Store {
    fn name(&self) -> &Arc<str> {
        self.bucket.store()
    }

    fn describe(&self) -> String {
        self.describe.clone()
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Keys, StoreError>> {
        self.pages(prefix, Pages::one_by_one)
    }

    fn list_all(&self, prefix: &str) -> BoxStream<'static, Result<Keys, StoreError>> {
        self.pages(prefix, Pages::new)
    }

    fn folders(&self, folder: &str, _: Links) -> BoxFuture<'static, Result<Option<Folders>, StoreError>> {
        let asked = Asked { store: self.name().clone(), key: Arc::from(folder), access: Access::Listing };
        if let Err(reason) = check_bucket_prefix(folder) {
            return std::future::ready(Err(asked.refused(reason))).boxed();
        }
        let (bucket, folder) = (self.bucket.clone(), folder.to_owned());
        async move {
            let names = folders(&bucket, &folder).await.map_err(|failure| failure.of(&asked))?;
            Ok(Some(Folders { names, ..Folders::default() }))
        }
        .boxed()
    }

    fn get(&self, key: Arc<str>) -> BoxFuture<'static, Result<Bytes, StoreError>> {
        self.with_bucket(key, Access::Reading, |bucket, key| async move { read_whole(&bucket, &key).await })
    }

    fn get_range(
        &self,
        key: Arc<str>,
        of: Option<Version>,
        range: Range<u64>,
    ) -> BoxFuture<'static, Result<Bytes, StoreError>> {
        if range.is_empty() && check_bucket_key(&key).is_ok() {
            return std::future::ready(Ok(Bytes::new())).boxed();
        }
        self.with_bucket(key, Access::Reading, |bucket, key| async move {
            read_range(&bucket, &key, range, of.as_ref()).await
        })
    }

    fn version(&self, key: Arc<str>) -> BoxFuture<'static, Result<Version, StoreError>> {
        self.with_bucket(key, Access::Reading, |bucket, key| async move { version(&bucket, &key).await })
    }

    fn write(
        &self,
        key: Arc<str>,
        bytes: Bytes,
        if_there: IfThere,
    ) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.with_bucket(key, Access::Writing, move |bucket, key| async move {
            match if_there {
                IfThere::Replace => write(&bucket, &key, bytes, if_there).await,
                IfThere::Leave => write_new(&bucket, &key, bytes).await,
            }
        })
    }
}

/// Writes an object in one request: S3 makes the object visible only once it is complete. Returns false if the object was not
/// written.
async fn write(bucket: &Bucket, key: &str, bytes: Bytes, if_there: IfThere) -> Result<bool, S3Failure> {
    let allowance = Duration::from_secs(bytes.len() as u64 >> 20);
    let put = |client: &Client| {
        let request = client.put_object().bucket(bucket.name()).key(bucket.full(key));
        let request = request.body(ByteStream::from(bytes.clone())).set_request_payer(bucket.payer());
        let request = if if_there == IfThere::Leave { request.if_none_match("*") } else { request };
        // There is no separate limit for the response's start, because it begins only after the last byte was sent; the attempt's
        // time limit applies.
        async {
            let failure = |error| {
                let failure = S3Failure::of_request(&error);
                if bucket.adds_checksums() { failure.naming(REQUEST_CHECKSUMS) } else { failure }
            };
            request.send().await.map_err(failure)
        }
    };
    match bucket.attempts(allowance, put).await {
        Ok(_) => Ok(true),
        Err(S3Failure::Unmet) if if_there == IfThere::Leave => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Writes an object that must be new. Returns false if the object already exists.
async fn write_new(bucket: &Bucket, key: &str, bytes: Bytes) -> Result<bool, S3Failure> {
    match write(bucket, key, bytes.clone(), IfThere::Leave).await {
        // The server does not support the condition, so the store checks for the object first. Check and write are not atomic
        // together.
        Err(S3Failure::NotImplemented(_)) => match version(bucket, key).await {
            Ok(_) => Ok(false),
            Err(S3Failure::NotFound) => write(bucket, key, bytes, IfThere::Replace).await,
            Err(failure) => Err(failure),
        },
        written => written,
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("S3Store").field(&self.describe).finish()
    }
}
