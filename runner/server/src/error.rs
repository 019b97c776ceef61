use std::path::PathBuf;
use std::sync::mpsc::TrySendError;

use penstock_storage::StoreError;
use penstock_types::fault::SpecFault;
use penstock_wasm::SandboxError;

use crate::history::{HistoryError, HistoryOpenError};

/// Why something asked of the runs of this server was not done. What it says is fit for whoever asked; paths and
/// addresses are in the chain of causes only.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// The document cannot run as written; all that is wrong with it.
    #[error("the pipeline cannot run as written: {}", count(.0.len()))]
    Invalid(Vec<SpecFault>),
    /// There is no such thing.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// What was asked for.
        what: &'static str,
        /// What it was called, printable.
        name: String,
    },
    /// Something else than a document will not do.
    #[error("{0}")]
    Refused(String),
    /// An upload has more bytes than it may have.
    #[error("the upload is too large: {what} may have {limit_bytes} bytes at most")]
    TooLarge {
        /// What it is an upload of, with the setting that bounds it if there is one.
        what: &'static str,
        /// Most bytes of it.
        limit_bytes: u64,
    },
    /// It cannot be done in the state things are in.
    #[error("{0}")]
    Conflict(String),
    /// The key that makes a request safe to repeat came before, with another one.
    #[error(
        "this Idempotency-Key was used in the last 24 hours for another request; use a new key for a new request"
    )]
    KeyReused,
    /// Enough runs wait already.
    #[error("{most} runs wait already, which is as many as may; try again when one of them has started")]
    QueueFull {
        /// How many may wait.
        most: usize,
    },
    /// Others do the same now.
    #[error("{0}")]
    Busy(String),
    /// A store could not be read.
    #[error("{0}")]
    Storage(String, #[source] StoreError),
    /// What is kept cannot be read or written.
    #[error(transparent)]
    History(HistoryError),
    /// A file of the data directory cannot be read or written.
    #[error("a file of the data directory cannot be {what}: {}", .source.kind())]
    File {
        /// `read` or `written`.
        what: &'static str,
        /// Which one.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The server shuts down.
    #[error("the server is shutting down")]
    Closed,
}

/// Why the runs of a data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The history cannot be used.
    #[error(transparent)]
    History(#[from] HistoryOpenError),
    /// The sandbox cannot be set up.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The data directory, or what is in it, cannot be used.
    #[error("cannot use `{}` in the data directory", .path.display())]
    Unusable {
        /// Which one.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The machine gives no thread.
    #[error("cannot start the thread that owns all runs")]
    Thread(#[source] std::io::Error),
}

impl From<HistoryError> for RunsError {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::Closed => Self::Closed,
            HistoryError::Behind => Self::Busy(error.to_string()),
            other => Self::History(other),
        }
    }
}

/// The owner of all runs does not take a message.
impl<T> From<TrySendError<T>> for RunsError {
    fn from(error: TrySendError<T>) -> Self {
        match error {
            TrySendError::Full(_) => Self::Busy("the server is busy; try again".to_owned()),
            TrySendError::Disconnected(_) => Self::Closed,
        }
    }
}

impl RunsError {
    pub(crate) fn not_found(what: &'static str, name: &str) -> Self {
        Self::NotFound {
            what,
            name: penstock_types::text::printable(name, penstock_types::text::MAX_SHOWN_KEY),
        }
    }
}

fn count(faults: usize) -> String {
    if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") }
}
