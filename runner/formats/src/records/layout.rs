//! Limits of records, and readers of rows.

use std::sync::{Arc, Mutex};

use csv_core::ReadRecordResult;
use penstock_engine::item::Field;
use penstock_engine::lock::locked;
use penstock_types::spec::TableForm;

/// Name of the member or column that becomes the sample's key unless a document names another.
pub const SAMPLE_KEY: &str = "key";

pub(super) const MAX_COLUMNS: usize = 1 << 14;

/// Maximum number of names and values in a line, because each takes dozens of bytes while the line is parsed.
pub(super) const MAX_NODES: usize = 1 << 18;

pub(super) type KeyAndFields = (Option<Arc<str>>, Vec<Field>);

/// Readers of rows that nobody uses: to make one takes as long as to read hundreds of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Readers(Arc<Mutex<Vec<csv_core::Reader>>>);

impl Readers {
    pub(super) fn take(&self, form: TableForm) -> csv_core::Reader {
        locked(&self.0).pop().unwrap_or_else(|| reader(form))
    }

    /// Keeps a reader that has read whole rows.
    pub(super) fn keep(&self, reader: csv_core::Reader) {
        locked(&self.0).push(reader);
    }
}

pub(super) fn reader(TableForm { delimiter, quote, .. }: TableForm) -> csv_core::Reader {
    let mut builder = csv_core::ReaderBuilder::new();
    builder.delimiter(delimiter);
    match quote {
        Some(quote) => builder.quote(quote),
        None => builder.quoting(false),
    };
    let mut reader = builder.build();
    restart(&mut reader);
    reader
}

/// Lets a reader begin a row, past a byte order mark: it would remove one from the row.
pub(super) fn restart(reader: &mut csv_core::Reader) {
    reader.reset();
    let (result, ..) = reader.read_record(b"\n", &mut [0], &mut [0]);
    debug_assert_eq!(result, ReadRecordResult::InputEmpty, "a blank line is no record");
}

/// A delimiter in messages.
pub(super) fn quoted_delimiter(delimiter: char) -> String {
    format!("`{}`", delimiter.escape_debug())
}

/// The setting that names a delimiter.
pub(super) fn setting(delimiter: char) -> String {
    format!("`\"delimiter\": {}`", serde_json::Value::from(delimiter.to_string()))
}
