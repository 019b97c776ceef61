//! Errors of stores and their messages.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_engine::ports::SourceFault;
use penstock_types::text::with_causes;
use tokio::task::JoinError;

/// Error of a store. Every variant names the store and the key.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no object with this key. A folder is not an object, as in S3.
    #[error("store `{store}` has no object {}{}", shown(key), of_pattern(key))]
    NotFound { store: Arc<str>, key: Arc<str> },
    /// The object may exist, but this process has no permission to access it.
    #[error("store `{store}` denies {}; check its permissions", access.of(key))]
    Denied {
        store: Arc<str>,
        key: Arc<str>,
        access: Access,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The credentials of this process are missing, expired, invalid or lack the permission. Reads of other keys fail in the same way.
    #[error("store `{store}` denies {}; check its credentials and permissions", access.of(key))]
    Credentials {
        store: Arc<str>,
        key: Arc<str>,
        access: Access,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The key is not valid in any store, or leads to a file outside of this store.
    #[error("store `{store}` refuses the key {}: {reason}", shown(key))]
    Refused { store: Arc<str>, key: Arc<str>, reason: Cow<'static, str> },
    #[error(
        "object {} of store `{store}` has {size} bytes, but at most {most} are read at once; split it up",
        shown(key)
    )]
    TooLarge { store: Arc<str>, key: Arc<str>, size: u64, most: u64 },
    #[error(
        "object {} of store `{store}` ends at byte {size}, before the end of the requested range {}..{}; did it change meanwhile?",
        shown(key), range.start, range.end
    )]
    OutOfRange { store: Arc<str>, key: Arc<str>, range: Range<u64>, size: u64 },
    /// Reading, writing or listing failed, after all retries.
    #[error("{} of store `{store}` failed", access.of(key))]
    Io {
        store: Arc<str>,
        /// Key of the object; for a listing, its prefix.
        key: Arc<str>,
        access: Access,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads an object, a range of it, or its size.
    Reading,
    Writing,
    Listing,
}

#[derive(Debug, thiserror::Error)]
#[error("store `{store}` cannot open its folder `{}`; check that it exists and is readable", path.display())]
pub struct OpenFault {
    pub store: Arc<str>,
    /// The folder as given by the caller.
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl StoreError {
    /// The message followed by the messages of its causes, for places that do not keep the chain of causes.
    pub fn with_causes(&self) -> String {
        with_causes(self)
    }
}

/// Remedy for a key that was meant as a pattern.
fn of_pattern(key: &str) -> &'static str {
    if key.contains('*') {
        "; a `*` in a key is no pattern: `prefix` takes all objects that start with a text"
    } else {
        ""
    }
}

impl From<StoreError> for SourceFault {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        let is_damage = matches!(error, StoreError::NotFound { .. } | StoreError::OutOfRange { .. });
        // The error's message is already part of the returned fault, so the error's cause is its source.
        let cause = match error {
            StoreError::Denied { source, .. }
            | StoreError::Credentials { source, .. }
            | StoreError::Io { source, .. } => Some(source),
            StoreError::NotFound { .. }
            | StoreError::Refused { .. }
            | StoreError::TooLarge { .. }
            | StoreError::OutOfRange { .. } => None,
        };
        Self { is_damage, ..Self::new(message, cause) }
    }
}

impl Access {
    fn of(self, key: &str) -> String {
        match self {
            Self::Reading => format!("reading {}", shown(key)),
            Self::Writing => format!("writing {}", shown(key)),
            Self::Listing if key.is_empty() => "listing all keys".to_owned(),
            Self::Listing => format!("listing {}", shown(key)),
        }
    }
}

/// Fault of `work` on another thread or task that did not end.
pub fn interrupted(work: &str, error: JoinError) -> SourceFault {
    SourceFault::new(format!("{work} was interrupted"), Some(error.into()))
}

/// Formats a key for messages: in backticks, with control characters escaped, and cut off if very long.
pub fn shown(key: &str) -> impl fmt::Display + use<> {
    const MOST_CHARS: usize = 200;
    let escaped: String = key.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect();
    match key.chars().nth(MOST_CHARS) {
        Some(_) => format!("`{escaped}`... ({} bytes)", key.len()),
        None => format!("`{escaped}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_meant_as_a_pattern_names_the_remedy() {
        let told = |key: &str| StoreError::NotFound { store: "d".into(), key: key.into() }.to_string();
        assert_eq!(told("a.tar"), "store `d` has no object `a.tar`");
        assert_eq!(
            told("a-*.tar"),
            "store `d` has no object `a-*.tar`; a `*` in a key is no pattern: `prefix` takes all objects that start with a text"
        );
    }
}
