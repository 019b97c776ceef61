//! Layout of objects with records.

use std::collections::BTreeMap;
use std::sync::Arc;

use csv_core::ReadRecordResult;
use penstock_engine::item::Field;
use penstock_types::spec::ColumnType;

/// Layout of an object.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// A JSON object on each line.
    Lines { types: BTreeMap<String, ColumnType> },
    /// A table with a header.
    Rows { delimiter: u8, types: BTreeMap<String, ColumnType> },
}

/// Name of the member or column that becomes the sample's key unless a document names another.
pub const SAMPLE_KEY: &str = "key";

/// Maximum number of columns of a table.
pub(super) const MAX_COLUMNS: usize = 1 << 14;

/// Key and fields of a record.
pub(super) type KeyAndFields = (Option<Arc<str>>, Vec<Field>);

/// A reader of rows that is past a byte order mark: it would remove one from each row.
pub(super) fn reader(delimiter: u8) -> csv_core::Reader {
    let mut reader = csv_core::ReaderBuilder::new().delimiter(delimiter).build();
    let (result, ..) = reader.read_record(b"\n", &mut [0], &mut [0]);
    debug_assert_eq!(result, ReadRecordResult::InputEmpty, "a blank line is no record");
    reader
}
