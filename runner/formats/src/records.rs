//! The sources `records`, `csv` and `tsv`: a sample for every line of NDJSON, or for every row of a table.

mod charset;
mod delimiter;
mod fault;
mod format;
mod in_order;
mod json;
mod kinds;
mod layout;
mod lenient;
mod numbered;
mod part;
mod rows;
mod split;
mod written;

pub use fault::RecordFault;
pub use format::RecordFormat;
pub use in_order::RecordSource;
pub use json::sample_of;
pub use kinds::field_type;
pub use layout::SAMPLE_KEY;
pub(crate) use numbered::{Limits, open_records};
pub use numbered::{RECORD_CURES, record_samples};
use penstock_storage::AHEAD_BYTES;

/// Bytes that may be read ahead, of the memory of a source.
fn ahead_bytes(most_bytes: u64) -> u64 {
    AHEAD_BYTES.min(most_bytes / 4)
}
