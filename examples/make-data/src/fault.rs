//! Errors of writing data.

use std::io;
use std::path::{Path, PathBuf};

use crate::photo::PhotoFault;

/// Reason why data could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    #[error("cannot write `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Photo(#[from] PhotoFault),
    #[error("a thread that creates photos failed: {reason}")]
    Thread { reason: String },
}

impl WriteFault {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, source }
    }
}
