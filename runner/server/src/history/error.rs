use std::sync::Arc;

#[derive(Clone, Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("the history cannot be {what}: {}", in_words(.source))]
    Database {
        what: &'static str,
        #[source]
        source: Arc<rusqlite::Error>,
    },
    #[error("the history is damaged: {0}")]
    Damaged(String),
    #[error("the disk is too slow for the pending writes; try again")]
    Behind,
    #[error("the history was not written; the server's log has the details")]
    Defect,
    #[error("the history is closed")]
    Closed,
}

/// Reports the error as a failed read; [`super::transact`] reports errors of transactions that write as failed writes.
impl From<rusqlite::Error> for HistoryError {
    fn from(source: rusqlite::Error) -> Self {
        Self::Database { what: "read", source: Arc::new(source) }
    }
}

impl From<serde_json::Error> for HistoryError {
    fn from(error: serde_json::Error) -> Self {
        Self::Damaged(format!("a value is not the expected JSON: {error}"))
    }
}

/// Returns the contents of a row. If the row is damaged, logs an error and returns `None`.
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
    tracing::error!(what, damage, "left out a damaged row of the history");
    Ok(None)
}

/// Explains an error of the database in words, without paths.
fn in_words(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full",
        Some(ErrorCode::ReadOnly) => "the data directory is read-only",
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => "its file cannot be opened",
        Some(ErrorCode::SystemIoFailure) => "the disk reports an error",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "its file is damaged",
        _ => "the database reports an error",
    }
}
