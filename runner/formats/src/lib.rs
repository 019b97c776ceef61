//! Formats that hold many samples in one object: readers, and their indexes.

mod build;
mod entry;
mod in_order;
mod index;
mod indexed;
mod labels;
pub mod mds;
pub mod parquet;
mod ranges;
mod records;
mod select;
mod sequence;
mod shards;
pub mod tar;
pub mod tfrecord;
mod value;

pub use in_order::ShardStream;
pub use index::{IndexFault, IndexKind, SampleIndex};
pub use indexed::IndexFrom;
pub use labels::{LabelTable, Labelling, labelled_samples};
pub use records::{RecordFault, RecordFormat, RecordSource, SAMPLE_KEY, record_samples, sample_of};
pub use select::Selection;
pub use shards::{MAX_SHARDS, PatternFault, Shards, expand};
