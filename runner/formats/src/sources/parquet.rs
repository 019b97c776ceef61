//! Parquet files: a sample for each row.
//!
//! Footers, page headers and compression are read here, with a bound for each size and count that a file states; the crate `parquet`
//! decodes the values.

mod columns;
mod decode;
mod fault;
mod filter;
mod footer;
mod groups;
mod growing;
mod open;
mod pages;
mod prefixes;
mod rows;
mod schema;
mod thrift;

use std::sync::Arc;

use futures::FutureExt;
use penstock_engine::numbered::{Numbered, Open};
use penstock_types::spec::ParquetSource;

use crate::access::Access;
use rows::Rows;

/// Samples of the rows in Parquet files, in any order. Reading takes at most `most_bytes` of memory: an eighth for the places of the row
/// groups, an eighth for marks of the selected rows, half for the row groups themselves. `shuffle` and `window` of the source say how many
/// row groups are read at a time.
pub fn open(source: &ParquetSource, access: Access) -> Open {
    let source = Arc::new(source.clone());
    async move {
        let opened = open::open(&source, &access).await?;
        Ok(Arc::new(Rows::new(&source, access, opened).await?) as Arc<dyn Numbered>)
    }
    .boxed()
}
