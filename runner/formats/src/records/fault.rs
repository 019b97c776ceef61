//! Reasons why records are not valid samples.

use penstock_types::text::printable;

use super::layout::{MAX_COLUMNS, MAX_NODES, quoted_delimiter, setting};

/// Maximum length of a number in messages, in bytes.
pub(super) const MAX_SHOWN_NUMBER: usize = 40;

/// Reason why a line or a row is not a valid sample; the message is the predicate of a sentence about it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    #[error("is not UTF-8: the first invalid byte is number {byte}")]
    NotUtf8 { byte: usize },
    #[error("is {what} in {place}{remedy}")]
    NotText { what: String, place: String, remedy: &'static str },
    /// The text has another encoding than the document states.
    #[error("is {0}")]
    Encoding(String),
    #[error(
        "has a zero byte among the names of the columns; is the text UTF-16? then set `\"encoding\": \"utf-16\"`"
    )]
    ZeroByte,
    #[error(
        "is `{line}`, {}; set {} if that separates the columns, or {} to read them as they are",
        match (columns, others) {
            (columns, others) if others <= columns => format!("one column with {} in its name", quoted_delimiter(*other)),
            (1, others) => format!("one column with the delimiter {}, and {others} with {}", quoted_delimiter(*own), quoted_delimiter(*other)),
            (columns, others) =>
                format!("{columns} columns with the delimiter {}, and {others} with {}", quoted_delimiter(*own), quoted_delimiter(*other)),
        },
        setting(*other),
        setting(*own)
    )]
    Delimiter { line: String, own: char, columns: usize, other: char, others: usize },
    #[error(
        "is `{line}`, by which spreadsheets name the delimiter; {}",
        match found {
            Some(found) => format!("set {}, and the row is passed over", setting(*found)),
            None => "set `delimiter`, and the row is passed over".to_owned(),
        }
    )]
    Separator { line: String, found: Option<char> },
    #[error("is `{line}`, by which spreadsheets name the delimiter, and `delimiter` is {}", quoted_delimiter(*delimiter))]
    OtherSeparator { line: String, delimiter: char },
    #[error("has more than {MAX_NODES} names and values, which is the limit")]
    TooMany,
    #[error("is not a JSON object: {0}")]
    NotJson(String),
    #[error("has the `{name}` {found}; expected an integer or a non-empty string")]
    Key { name: String, found: String },
    #[error("has no `{}`, which is the key of a sample", name.escape_debug())]
    NoKey { name: String },
    /// An integer does not fit into 64 bits. It is not rounded to a real number, because rounding would silently change an id or
    /// a hash.
    #[error(
        "has the member `{name}`: {}, which does not fit into a signed 64-bit integer; write it as a string",
        printable(number, MAX_SHOWN_NUMBER)
    )]
    Number { name: String, number: String },
    /// A value of the type `float` is a whole number that would be rounded.
    #[error(
        "has the whole number {} as `{}`, a `float`, which does not hold it exactly; set the type `int` or `text` in `types`",
        printable(number, MAX_SHOWN_NUMBER),
        name.escape_debug()
    )]
    Inexact { name: String, number: String },
    #[error("has {found} values, and the header names {columns} columns")]
    Values { found: usize, columns: usize },
    #[error("has more values than the {columns} columns that the header names")]
    MoreValues { columns: usize },
    #[error("has `{found}` in the column `{}`, which is no `{kind}`", column.escape_debug())]
    Value { column: String, kind: &'static str, found: String },
    #[error("has {found} as the member `{}`, which is no `{kind}`", name.escape_debug())]
    Member { name: String, kind: &'static str, found: String },
    #[error("has a quote without its end")]
    Quote,
    #[error("names more than {MAX_COLUMNS} columns, which is the limit")]
    TooManyColumns,
    #[error("names the column `{}` twice", name.escape_debug())]
    ColumnTwice { name: String },
    #[error("names no column `{}`; its columns are {columns}", name.escape_debug())]
    NoColumn { name: String, columns: String },
}

impl RecordFault {
    /// False for what a setting of the document cures, and for a contradiction of the type of the data set: both end the run.
    pub(super) fn is_damage(&self) -> bool {
        !matches!(
            self,
            Self::Inexact { .. }
                | Self::Encoding(_)
                | Self::ZeroByte
                | Self::Delimiter { .. }
                | Self::Separator { .. }
                | Self::OtherSeparator { .. }
        )
    }
}
