//! Formats that hold many samples in one object: readers, and their indexes.

mod labels;
pub mod parquet;
mod records;
mod shards;
pub mod tar;
mod value;

pub use labels::{LabelTable, Labelling, labelled_samples};
pub use records::{RecordFault, RecordFormat, RecordSource, SAMPLE_KEY, record_samples, sample_of};
pub use shards::{MAX_SHARDS, PatternFault, Shards, expand};
