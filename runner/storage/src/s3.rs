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
use crate::s3::bucket::Bucket;
use crate::s3::client::connect;

pub use crate::s3::settings::{S3Credentials, S3Fault, S3Settings};

/// A bucket of Amazon S3, or of a server with a compatible API, as a store.
///
/// A write is one request, of at most 5 GiB. The write of an object that must be new has the condition `If-None-Match: *`. Every object
/// written by the store has a CRC-32.
pub type S3Store = RemoteStore<Bucket>;

impl S3Store {
    /// Creates the store `name` for the bucket of `settings`. Sends no request: a missing bucket or wrong credentials are
    /// detected only at the first use.
    pub fn new(name: impl Into<Arc<str>>, settings: S3Settings) -> Result<Self, S3Fault> {
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
        Ok(Self::new_with(options, Box::new(move || connect(store.clone(), settings.clone()).boxed())))
    }
}
