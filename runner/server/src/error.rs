use std::path::PathBuf;
use std::sync::mpsc::TrySendError;

use penstock_storage::StoreError;
use penstock_types::fault::{FaultKind, SpecFault};
use penstock_types::text::shown;
use penstock_wasm::SandboxError;

use crate::history::HistoryError;

/// Error of a request. The message is safe to show to clients: only its causes contain paths and addresses.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    #[error("the pipeline cannot run as written: {}", count(.0.len()))]
    Invalid(Vec<SpecFault>),
    #[error("there is no {what} `{name}`")]
    NotFound { what: &'static str, name: String },
    #[error("{0}")]
    Refused(String),
    #[error("the upload is too large: {what} may be at most {limit_bytes} bytes long")]
    TooLarge { what: &'static str, limit_bytes: u64 },
    #[error("{0}")]
    Conflict(String),
    #[error(
        "the module name `{name}` belongs to the token `{owner}`; upload with this token or with the role `admin`, give the module another \
         name, or set `module_owners` to false in the server's configuration"
    )]
    NotOwner { name: String, owner: String },
    #[error("the run cannot be resumed: {}; use `force` to resume it nevertheless", .0.join(", "))]
    Differs(Vec<String>),
    #[error(
        "this Idempotency-Key was used in the last 24 hours for another request; use a new key for a new request"
    )]
    KeyReused,
    #[error(
        "{most} runs are waiting, which is the limit (`limits.runs.queued`); try again when one of them has started"
    )]
    QueueFull { most: u64 },
    #[error("{0}")]
    Quota(String),
    #[error(
        "the data directory holds {} of {} MiB (`limits.disk_mib`), and the request needs {} MiB more; delete runs, versions of \
         modules or benchmarks that are no longer needed", mib(*.used_bytes), mib(*.most_bytes), mib(*.wanted_bytes)
    )]
    DiskFull { used_bytes: u64, most_bytes: u64, wanted_bytes: u64 },
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Storage(String, #[source] StoreError),
    #[error(transparent)]
    History(HistoryError),
    #[error("a file of the data directory cannot be {what}: {}", .source.kind())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the server is shutting down")]
    Closed,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory `{}` is used by another server; stop that server, or use another directory", .0.display())]
    InUse(PathBuf),
    #[error(
        "`{}` was written by a newer version of Penstock (its schema is {found}, this version supports {supported}); use the newer version, or \
         another data directory",
        .path.display()
    )]
    Newer { path: PathBuf, found: i64, supported: i64 },
    #[error("`{}` is a database of another program; use another data directory", .0.display())]
    Foreign(PathBuf),
    #[error("cannot use `{}`", .path.display())]
    Database {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("cannot use `{}` in the data directory", .path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
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

impl<T> From<TrySendError<T>> for RunsError {
    fn from(error: TrySendError<T>) -> Self {
        match error {
            TrySendError::Full(_) => Self::Busy("the server is busy; try again".to_owned()),
            TrySendError::Disconnected(_) => Self::Closed,
        }
    }
}

impl RunsError {
    /// Error of a document with faults, with hints that apply to a server.
    pub(crate) fn invalid(faults: Vec<SpecFault>) -> Self {
        let hint = |kind: &FaultKind| match kind {
            FaultKind::UnknownStore(_) => Some("stores are defined in the server's configuration".to_owned()),
            FaultKind::UnknownModule(_) => Some("upload the module first".to_owned()),
            _ => None,
        };
        Self::Invalid(faults.into_iter().map(|fault| fault.hinted(hint)).collect())
    }

    /// Refuses a document that has faults.
    pub(crate) fn refuse_faults(faults: Vec<SpecFault>) -> Result<(), Self> {
        if faults.is_empty() { Ok(()) } else { Err(Self::invalid(faults)) }
    }

    /// Refuses a request for the reason `why`, unless `is_allowed`.
    pub(crate) fn refuse_unless(is_allowed: bool, why: impl FnOnce() -> String) -> Result<(), Self> {
        if is_allowed { Ok(()) } else { Err(Self::Refused(why())) }
    }

    /// Error for a request that did not get a permit in time.
    pub(crate) fn no_place(what: &str) -> Self {
        Self::Busy(format!(
            "the limit of concurrent {what} is reached by this or other clients; try again in a moment"
        ))
    }

    pub(crate) fn not_found(what: &'static str, name: &str) -> Self {
        Self::NotFound { what, name: shown(name) }
    }
}

/// Formats a number of bytes in MiB, rounded up to one decimal, e.g. `1.5`.
fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn count(faults: usize) -> String {
    if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") }
}
