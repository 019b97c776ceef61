//! Why a store could not answer.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_engine::ports::SourceFault;
use penstock_types::text::with_causes;

/// Why a store could not answer. Every variant names the store and the key.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object. A folder is none, as in S3.
    #[error("store `{store}` has no object {}", shown(key))]
    NotFound {
        /// The store's name.
        store: Arc<str>,
        /// The key asked for.
        key: Arc<str>,
    },
    /// The object is there, or may be, and this process may not do this with it.
    #[error("store `{store}` denies {}; check its permissions", access.of(key))]
    Denied {
        /// The store's name.
        store: Arc<str>,
        /// The key asked for.
        key: Arc<str>,
        /// What was to be done with it.
        access: Access,
        /// What the system or the service said.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The key cannot name an object of any store, or leads out of this one.
    #[error("store `{store}` refuses the key {}: {reason}", shown(key))]
    Refused {
        /// The store's name.
        store: Arc<str>,
        /// The key asked for.
        key: Arc<str>,
        /// What is wrong with it.
        reason: Cow<'static, str>,
    },
    /// The object is larger than what is read at once.
    #[error(
        "object {} of store `{store}` has {size} bytes, more than the {most} read at once; split it up",
        shown(key)
    )]
    TooLarge {
        /// The store's name.
        store: Arc<str>,
        /// The key asked for.
        key: Arc<str>,
        /// The object's size, in bytes.
        size: u64,
        /// The most that is read at once, in bytes.
        most: u64,
    },
    /// The object does not have the bytes asked for.
    #[error(
        "object {} of store `{store}` ends at byte {size}, before the end of {}..{} asked for; did it change meanwhile?",
        shown(key), range.start, range.end
    )]
    OutOfRange {
        /// The store's name.
        store: Arc<str>,
        /// The key asked for.
        key: Arc<str>,
        /// The bytes asked for.
        range: Range<u64>,
        /// Where the object ends, in bytes.
        size: u64,
    },
    /// Reading, writing or listing failed, after all retries.
    #[error("{} of store `{store}` failed", access.of(key))]
    Io {
        /// The store's name.
        store: Arc<str>,
        /// The key asked for; of a listing, the prefix.
        key: Arc<str>,
        /// What was to be done with it.
        access: Access,
        /// What went wrong.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// What is done with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An object, its size or a range of it is read.
    Reading,
    /// An object is written.
    Writing,
    /// The keys that start with a prefix are listed.
    Listing,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("store `{store}` cannot open its folder `{}`; is there one, and may it be read?", path.display())]
pub struct OpenFault {
    /// The store's name.
    pub store: Arc<str>,
    /// The folder as it was given.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl From<OpenFault> for io::Error {
    /// Keeps the kind of what the system said, and the message that names store and folder.
    fn from(fault: OpenFault) -> Self {
        Self::new(fault.source.kind(), fault)
    }
}

impl StoreError {
    /// The message with the messages of its causes, for places that keep no chain.
    pub fn with_causes(&self) -> String {
        with_causes(self)
    }
}

impl From<StoreError> for SourceFault {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        // The error itself says nothing that the message does not: its own cause takes its place.
        let cause = match error {
            StoreError::Denied { source, .. } | StoreError::Io { source, .. } => Some(source),
            StoreError::NotFound { .. }
            | StoreError::Refused { .. }
            | StoreError::TooLarge { .. }
            | StoreError::OutOfRange { .. } => None,
        };
        Self::new(message, cause)
    }
}

impl Access {
    /// What was done with `key`, as messages say it.
    fn of(self, key: &str) -> String {
        match self {
            Self::Reading => format!("reading {}", shown(key)),
            Self::Writing => format!("writing {}", shown(key)),
            Self::Listing if key.is_empty() => "listing all keys".to_owned(),
            Self::Listing => format!("listing {}", shown(key)),
        }
    }
}

/// A key as messages show it: in backticks, control characters escaped, and cut when it is very long.
pub(crate) fn shown(key: &str) -> impl fmt::Display + use<> {
    const MOST_CHARS: usize = 200;
    let escaped: String = key.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect();
    match key.chars().nth(MOST_CHARS) {
        Some(_) => format!("`{escaped}`... ({} bytes)", key.len()),
        None => format!("`{escaped}`"),
    }
}
