//! Stores in S3 buckets.

mod answer;
mod bucket;
mod client;
mod connection;
mod credentials;
mod failure;
mod settings;

use std::sync::Arc;

use futures::future::FutureExt;

use crate::remote::RemoteStore;
use crate::remote::options::Options;
use crate::s3::client::connect;
use crate::store::Store;

pub use crate::s3::settings::{S3Credentials, S3Fault, S3Settings};

/// Creates the store `name` in a bucket of Amazon S3, or of a server with a compatible API. Sends no request: a missing bucket or wrong
/// credentials are detected only at the first use.
///
/// A failed request is repeated if another attempt may succeed: after lost connections, timeouts, responses such as "slow
/// down" or "internal error", and bodies that are too short, too long, or do not match the checksum that came with them. The
/// number of attempts, the waits and all times are limited, so that no request hangs; see [`Retries`](crate::Retries) and
/// [`Timeouts`](crate::Timeouts). All requests of a store share a limit on repetitions: 100 at once, then 10 per second and one for every
/// ten successful requests.
///
/// An object of at most 16 MiB is read in one request, with its checksum. A larger one is read in parts of 8 MiB, four at a time,
/// all of the same version: the read fails if the object is replaced meanwhile. After a read in parts, only a CRC-32 of the whole
/// object is verified, which every object written by this store has. A range has no checksum. A
/// [`BoundedStore`](crate::BoundedStore) counts a read in parts as one read.
///
/// A write is one request, of at most 5 GiB. Every object written by the store has a CRC-32. The write of an object that must be new has the
/// condition `If-None-Match: *`. If the server reports that it does not support the condition, the store checks for the object first; a
/// server that ignores the condition overwrites the existing object.
///
/// Keys with empty segments (`//`, `/` at either end) can be read, but not written. A listing leaves out keys that no pipeline can name,
/// and the empty objects ending in `/` that consoles create as folders. It is in the order of the bytes of keys even if that of the service
/// is not: all keys are then sorted first.
///
/// A bucket in another region is followed there, once. Credentials are renewed before their end, and after a refusal.
/// Secrets are never logged and never part of an error; log messages of the SDK are dropped.
pub fn s3_store(name: impl Into<Arc<str>>, settings: S3Settings) -> Result<Arc<dyn Store>, S3Fault> {
    let store = name.into();
    let (settings, endpoint) = settings.checked(&store)?;
    let prefix = match settings.prefix.as_str() {
        "" => String::new(),
        prefix => format!(", prefix `{prefix}`"),
    };
    let host = endpoint.as_ref().map_or_else(String::new, |url| {
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        format!(" at {}{port}", url.host_str().unwrap_or_default())
    });
    // A directory bucket of S3 Express One Zone lists keys in no order, and only by prefixes that end with `/`.
    let is_directory = settings.bucket.ends_with("--x-s3");
    let options = Options {
        store: store.clone(),
        describe: format!("store `{store}` (S3 bucket `{}`{prefix}{host})", settings.bucket),
        prefix: settings.prefix.clone(),
        is_sorted: !settings.is_unsorted && !is_directory,
        lists_folders_only: is_directory,
        timeouts: settings.timeouts,
        retries: settings.retries,
    };
    let settings = Arc::new(settings);
    let connect = Box::new(move || connect(store.clone(), settings.clone()).boxed());
    Ok(Arc::new(RemoteStore::new_with(options, connect)))
}
