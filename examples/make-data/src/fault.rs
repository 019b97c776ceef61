//! Errors of writing data.

use std::io;
use std::path::{Path, PathBuf};

use crate::photo::PhotoFault;

/// Reason why data could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// A folder or a file could not be written.
    #[error("cannot write `{}`", path.display())]
    File {
        /// Path of the folder or file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A photo could not be created.
    #[error(transparent)]
    Photo(#[from] PhotoFault),
    /// A thread could not be started, or panicked.
    #[error("a thread that creates photos failed: {reason}")]
    Thread {
        /// Cause of the failure.
        reason: String,
    },
}

impl WriteFault {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, source }
    }
}
