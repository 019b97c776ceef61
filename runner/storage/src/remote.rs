//! Stores in a service on another machine.
//!
//! A service implements [`Service`](service::Service): one request per method, each failure classified. The layers around it are the
//! same for all services:
//!
//! - `connected` connects at the first request, follows a service to the place that it names, and renews refused credentials;
//! - `attempts` repeats failed requests, within limits of number and time, and `throttle` limits the repetitions of all requests;
//! - `parts` reads large objects in parallel parts, all of one version, and compares each response with its request;
//! - `list` reads pages, `ahead` several of them at a time, and `sort` sorts the keys of services that do not.

mod ahead;
mod attempts;
mod connected;
pub(crate) mod failure;
mod list;
pub(crate) mod options;
mod parts;
pub(crate) mod service;
mod sort;
#[cfg(test)]
mod tests;
pub(crate) mod throttle;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::FutureExt;
use futures::stream::{self, StreamExt};
use penstock_types::spec::Links;

use crate::asked::Asked;
use crate::error::Access;
use crate::key::{MAX_KEY_BYTES, check_bucket_key, check_bucket_prefix, check_key};
use crate::remote::ahead::Pages;
use crate::remote::connected::{Connect, Remote};
use crate::remote::failure::Failure;
use crate::remote::list::folders;
use crate::remote::options::Options;
use crate::remote::parts::{read_range, read_whole, version};
use crate::remote::service::Service;
use crate::store::{Folders, IfThere, KeyPages, Store, StoreFuture, Version};

/// A store in a service on another machine. A function of each service makes one as a [`Store`], so that this crate, which is optimised for
/// speed, compiles it.
pub(crate) struct RemoteStore<S>(Arc<Remote<S>>);

impl<S> RemoteStore<S> {
    /// Creates the store for a service to which `connect` connects at the first request.
    pub(crate) fn new_with(options: Options, connect: Connect<S>) -> Self {
        Self(Arc::new(Remote::new(options, connect)))
    }
}

impl<S: Service> Remote<S> {
    /// Runs `work` with the key of the service, if the key is valid.
    fn with_key<T: Send + 'static, W>(
        self: &Arc<Self>,
        key: Arc<str>,
        access: Access,
        work: impl FnOnce(Arc<Self>, String) -> W,
    ) -> StoreFuture<T>
    where
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let asked = Asked { store: self.options.store.clone(), key: key.clone(), access };
        let checked = if access == Access::Writing { check_key(&key) } else { check_bucket_key(&key) };
        if let Err(reason) = checked {
            return std::future::ready(Err(asked.refused(reason))).boxed();
        }
        if key.len() + self.options.prefix.len() > MAX_KEY_BYTES {
            let error = match access {
                Access::Writing => {
                    asked.refused("with the store's prefix, the key is longer than 1024 bytes")
                }
                Access::Reading | Access::Listing => asked.not_found(),
            };
            return std::future::ready(Err(error)).boxed();
        }
        let work = work(self.clone(), self.full(&key));
        async move { work.await.map_err(|failure| failure.of::<S>(&asked)) }.boxed()
    }

    fn pages(self: &Arc<Self>, prefix: &str, start: fn(Arc<Self>, &str) -> Pages<S>) -> KeyPages {
        let asked =
            Asked { store: self.options.store.clone(), key: Arc::from(prefix), access: Access::Listing };
        if let Err(reason) = check_bucket_prefix(prefix) {
            return asked.refused_pages(reason);
        }
        stream::try_unfold(start(self.clone(), prefix), move |mut pages| {
            let asked = asked.clone();
            async move {
                let page = pages.next_page().await.map_err(|failure| failure.of::<S>(&asked))?;
                Ok(page.map(|page| (page, pages)))
            }
        })
        .boxed()
    }
}

impl<S: Service> Store for RemoteStore<S> {
    fn name(&self) -> &Arc<str> {
        &self.0.options.store
    }

    fn describe(&self) -> String {
        self.0.options.describe.clone()
    }

    fn list(&self, prefix: &str) -> KeyPages {
        self.0.pages(prefix, Pages::one_by_one)
    }

    fn list_all(&self, prefix: &str, _: Links) -> KeyPages {
        self.0.pages(prefix, Pages::new)
    }

    fn folders(&self, folder: &str, _: Links) -> StoreFuture<Option<Folders>> {
        let asked = Asked { store: self.name().clone(), key: Arc::from(folder), access: Access::Listing };
        let (remote, folder) = (self.0.clone(), folder.to_owned());
        async move {
            check_bucket_prefix(&folder).map_err(|reason| asked.refused(reason))?;
            let names = folders(&remote, &folder).await.map_err(|failure| failure.of::<S>(&asked))?;
            Ok(Some(Folders { names, ..Folders::default() }))
        }
        .boxed()
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        self.0.with_key(key, Access::Reading, |remote, key| async move {
            read_whole(&remote, &key).await.map(|(bytes, _)| bytes)
        })
    }

    fn get_versioned(&self, key: Arc<str>) -> Option<StoreFuture<(Bytes, Version)>> {
        let read = |remote: Arc<Remote<S>>, key: String| async move { read_whole(&remote, &key).await };
        Some(self.0.with_key(key, Access::Reading, read))
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        if range.is_empty() && check_bucket_key(&key).is_ok() {
            return std::future::ready(Ok(Bytes::new())).boxed();
        }
        self.0.with_key(key, Access::Reading, |remote, key| async move {
            read_range(&remote, &key, range, of.as_ref()).await
        })
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.0.with_key(key, Access::Reading, |remote, key| async move { version(&remote, &key).await })
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        self.0.with_key(key, Access::Writing, move |remote, key| async move {
            match if_there {
                IfThere::Replace => write(&remote, &key, bytes, if_there).await,
                IfThere::Leave => write_new(&remote, &key, bytes).await,
            }
        })
    }
}

/// Writes an object in one request. Returns false if the object was not written.
async fn write<S: Service>(
    remote: &Remote<S>,
    key: &str,
    bytes: Bytes,
    if_there: IfThere,
) -> Result<bool, Failure> {
    let allowance = Duration::from_secs(bytes.len() as u64 >> 20);
    // There is no separate limit for the response's start, because it begins only after the last byte was sent; the attempt's time
    // limit applies.
    match remote.attempts(allowance, |service| service.write(key, bytes.clone(), if_there)).await {
        Ok(()) => Ok(true),
        Err(Failure::Unmet) if if_there == IfThere::Leave => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Writes an object that must be new. Returns false if the object already exists.
async fn write_new<S: Service>(remote: &Remote<S>, key: &str, bytes: Bytes) -> Result<bool, Failure> {
    match write(remote, key, bytes.clone(), IfThere::Leave).await {
        // The server does not support the condition, so the store checks for the object first. Check and write are not atomic
        // together.
        Err(Failure::NotImplemented(_)) => match version(remote, key).await {
            Ok(_) => Ok(false),
            Err(Failure::NotFound) => write(remote, key, bytes, IfThere::Replace).await,
            Err(failure) => Err(failure),
        },
        written => written,
    }
}
