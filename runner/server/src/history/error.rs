use std::sync::Arc;

/// Why the history cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HistoryError {
    /// The database says no.
    #[error("the history cannot be {what}: {}", in_words(.source))]
    Database {
        /// `read` or `written`.
        what: &'static str,
        /// What it said.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// Something in it is not what was written.
    #[error("the history is damaged: {0}")]
    Damaged(String),
    /// More is to be written than the disk takes.
    #[error("the disk is too slow for what is to be written down; try again")]
    Behind,
    /// Work on it panicked.
    #[error("the history was not written; the server's log says more")]
    Defect,
    /// It was closed.
    #[error("the history is closed")]
    Closed,
}

impl HistoryError {
    pub(crate) fn read(source: rusqlite::Error) -> Self {
        Self::Database { what: "read", source: Arc::new(source) }
    }

    pub(crate) fn written(source: rusqlite::Error) -> Self {
        Self::Database { what: "written", source: Arc::new(source) }
    }
}

/// What closures on a connection fail with; which of both it was is told by who called them.
impl From<rusqlite::Error> for HistoryError {
    fn from(source: rusqlite::Error) -> Self {
        Self::written(source)
    }
}

impl From<serde_json::Error> for HistoryError {
    fn from(error: serde_json::Error) -> Self {
        Self::Damaged(format!("a part of it is not the JSON that was expected: {error}"))
    }
}

/// What a row of the history holds; `None`, and said in the log, when that is damaged: the others are still good.
pub(crate) fn undamaged<T>(
    what: &'static str,
    row: rusqlite::Result<Result<T, HistoryError>>,
) -> Result<Option<T>, HistoryError> {
    use rusqlite::Error;
    let damage = match row {
        Ok(Ok(found)) => return Ok(Some(found)),
        Ok(Err(HistoryError::Damaged(damage))) => damage,
        Ok(Err(error)) => return Err(error),
        Err(
            error @ (Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::Utf8Error(..)
            | Error::InvalidColumnType(..)),
        ) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    tracing::error!(what, damage, "a row of the history is damaged and left out");
    Ok(None)
}

/// What an operator can do something about, without paths.
fn in_words(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full",
        Some(ErrorCode::ReadOnly) => "the data directory is read-only",
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => "its file cannot be opened",
        Some(ErrorCode::SystemIoFailure) => "the disk reports an error",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "its file is damaged",
        _ => "the database refuses",
    }
}
