//! Formats that hold many samples in one object: readers, and their indexes.

mod shards;
pub mod tar;
mod value;

pub use shards::{MAX_SHARDS, PatternFault, Shards, expand};
