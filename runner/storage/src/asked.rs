//! The store and key of a request, and the errors that name both.

use std::error::Error;
use std::future::ready;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use rustix::io::Errno;

use crate::error::{Access, StoreError};
use crate::links::leads_outside;
use crate::store::{KeyPages, MAX_GET_BYTES};

/// Store, key and kind of a request, for its errors.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) store: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) access: Access,
}

pub(crate) const NOT_REGULAR: &str = "it names a pipe, a socket or a device; only regular files are objects";
const LEADS_OUTSIDE: &str = "it leads out of the store's folder; links are followed into other folders only if `--store-links` or the \
                             store's `links` names them";
const WRITES_OUTSIDE: &str = "it leads out of the store's folder; links on the way to a written object must be relative and stay inside";
/// Message for a read that is refused because it would mix two versions of an object.
pub(crate) const CHANGED: &str = "the object changed while it was read";
const LINK_CIRCLE: &str = "it leads through circular links";

impl Asked {
    pub(crate) fn not_opened(&self, error: io::Error) -> StoreError {
        if leads_outside(&error) {
            return self.leads_outside();
        }
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::LOOP) => self.refused(LINK_CIRCLE),
            // Errors returned for opening a socket, or a device without a driver.
            Some(Errno::NXIO | Errno::NODEV) => self.refused(NOT_REGULAR),
            Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => self.not_found(),
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => self.denied(error),
            _ => self.failed(error),
        }
    }

    pub(crate) fn leads_outside(&self) -> StoreError {
        self.refused(if self.access == Access::Writing { WRITES_OUTSIDE } else { LEADS_OUTSIDE })
    }

    pub(crate) fn not_found(&self) -> StoreError {
        StoreError::NotFound { store: self.store.clone(), key: self.key.clone() }
    }

    pub(crate) fn denied(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
        let Self { store, key, access } = self.clone();
        StoreError::Denied { store, key, access, source: source.into() }
    }

    pub(crate) fn without_credentials(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
        let Self { store, key, access } = self.clone();
        StoreError::Credentials { store, key, access, source: source.into() }
    }

    pub(crate) fn refused(&self, reason: &'static str) -> StoreError {
        StoreError::Refused { store: self.store.clone(), key: self.key.clone(), reason: reason.into() }
    }

    pub(crate) fn refused_pages(&self, reason: &'static str) -> KeyPages {
        stream::once(ready(Err(self.refused(reason)))).boxed()
    }

    pub(crate) fn too_large(&self, size: u64) -> StoreError {
        let (store, key) = (self.store.clone(), self.key.clone());
        StoreError::TooLarge { store, key, size, most: MAX_GET_BYTES }
    }

    pub(crate) fn out_of_range(&self, range: Range<u64>, size: u64) -> StoreError {
        StoreError::OutOfRange { store: self.store.clone(), key: self.key.clone(), range, size }
    }

    /// Checks that an object of `size` bytes contains all of `range`, and that `range` is not too long for one read.
    pub(crate) fn check_range(&self, range: &Range<u64>, size: u64) -> Result<(), StoreError> {
        let length = range.end.saturating_sub(range.start);
        if range.end > size {
            Err(self.out_of_range(range.clone(), size))
        } else if length > MAX_GET_BYTES {
            Err(self.too_large(length))
        } else {
            Ok(())
        }
    }

    pub(crate) fn failed(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
        let Self { store, key, access } = self.clone();
        StoreError::Io { store, key, access, source: source.into() }
    }

    /// Error for a folder that cannot be read during a listing; `None` if the folder no longer exists.
    pub(crate) fn not_listed(&self, folder: &str, error: io::Error) -> Option<StoreError> {
        let asked = Self { key: Arc::from(folder), ..self.clone() };
        match asked.not_opened(error) {
            StoreError::NotFound { .. } => None,
            error => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_become_the_matching_store_errors() {
        let asked = Asked { store: Arc::from("data"), key: Arc::from("a/b"), access: Access::Reading };
        let error = |errno: Errno| asked.not_opened(io::Error::from(errno));
        // The error is constructed, because a test that runs as root is never denied access.
        assert!(matches!(error(Errno::ACCESS), StoreError::Denied { .. }));
        assert!(matches!(error(Errno::MFILE), StoreError::Io { .. }));
        assert!(matches!(error(Errno::NOTDIR), StoreError::NotFound { .. }));
        assert!(matches!(error(Errno::LOOP), StoreError::Refused { .. }));
        let escape = io::Error::new(io::ErrorKind::PermissionDenied, "a path led outside of the filesystem");
        assert!(matches!(asked.not_opened(escape), StoreError::Refused { .. }));
        assert!(asked.not_listed("a/", io::Error::from(Errno::NOENT)).is_none());
        let writing = Asked { access: Access::Writing, ..asked.clone() };
        let read_only = writing.not_opened(io::Error::from(Errno::ROFS)).to_string();
        assert_eq!(read_only, "store `data` denies writing `a/b`; check its permissions");
        let all = Asked { key: Arc::from(""), access: Access::Listing, ..asked.clone() };
        let failed = all.failed(io::Error::from(Errno::IO)).to_string();
        assert_eq!(failed, "listing all keys of store `data` failed");
        let text = error(Errno::MFILE).with_causes();
        assert!(text.starts_with("reading `a/b` of store `data` failed: Too many open files"), "{text}");
    }
}
