//! Why data could not be written.

use std::io;
use std::path::{Path, PathBuf};

use crate::photo::PhotoFault;

/// Why data could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// A folder or a file could not be made.
    #[error("cannot write `{}`", path.display())]
    File {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A photo could not be made.
    #[error(transparent)]
    Photo(#[from] PhotoFault),
    /// A thread could not be started, or panicked.
    #[error("a thread that makes photos failed: {reason}")]
    Thread {
        /// What happened to it.
        reason: String,
    },
}

impl WriteFault {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, source }
    }
}
