//! Reasons why a file cannot be read.

use penstock_storage::RAISE_BUFFER;

/// Reason why a Parquet file cannot be read. Each is the end of a sentence about the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileFault {
    #[error("is no Parquet file: it does not end with `PAR1`")]
    NoParquet,
    #[error("is empty")]
    Empty,
    #[error("is an encrypted Parquet file; decrypt it first")]
    Encrypted,
    #[error("has a footer of {size} bytes, more than the limit of {most}; split the file up{RAISE_BUFFER}")]
    LargeFooter { size: u64, most: u64 },
    #[error("is damaged: {0}")]
    Damaged(String),
    #[error("has no column `{name}`; it has {known}")]
    NoColumn { name: String, known: String },
    /// A column that has no value for a row: the row fails.
    #[error("has, in the column `{column}`, {reason}")]
    Row { column: String, reason: String },
    /// A row that takes more memory than may be used: it fails.
    #[error("takes {bytes} bytes, and {most} may be used{RAISE_BUFFER}")]
    LargeRow { bytes: u64, most: u64 },
    /// A column whose values cannot become a field.
    #[error("has the column `{column}`, which {reason}")]
    Column { column: String, reason: String },
    /// A column whose pages are damaged.
    #[error("has the column `{column}`, which {reason}")]
    Pages { column: String, reason: String },
}

impl FileFault {
    /// True if the file is damaged or cut; other faults are of the document, or of what is supported.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::NoParquet | Self::Empty | Self::Damaged(_) | Self::Pages { .. })
    }

    pub(super) fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged(reason.into())
    }

    pub(super) fn row(column: &str, reason: impl Into<String>) -> Self {
        Self::Row { column: escaped(column), reason: reason.into() }
    }

    pub(super) fn column(column: &str, reason: impl Into<String>) -> Self {
        Self::Column { column: escaped(column), reason: reason.into() }
    }

    pub(super) fn pages(column: &str, reason: impl Into<String>) -> Self {
        Self::Pages { column: escaped(column), reason: reason.into() }
    }
}

/// Name of a column for messages: without control characters, and cut off if it is very long.
pub(super) fn escaped(name: &str) -> String {
    const MOST_CHARS: usize = 200;
    name.chars().take(MOST_CHARS).flat_map(char::escape_debug).collect()
}
