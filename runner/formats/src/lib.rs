//! Formats that hold many samples in one object: readers, and their indexes.

mod access;
mod build;
mod cache;
mod compression;
mod damage;
mod entry;
mod in_order;
mod index;
mod indexed;
mod labels;
mod lists;
mod ranges;
mod reason;
mod records;
mod select;
mod sequence;
mod shards;
pub mod sources;
mod unpack;
mod value;

pub use access::Access;
pub use damage::Damage;
pub use in_order::ShardStream;
pub use index::{IndexKind, SampleIndex};
pub use labels::{Classes, LabelTable, Labelling, NEW_CLASSES, SharedClasses, labelled_samples};
pub use reason::Reason;
pub use records::{
    RECORD_CURES, RecordFault, RecordFormat, RecordSource, SAMPLE_KEY, field_type, record_samples, sample_of,
};
pub use shards::{MAX_SHARDS, PatternFault, Shards, expand};
pub use sources::{mds, parquet, tar, tfrecord};
