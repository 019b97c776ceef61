//! Parquet files: a sample for each row.
//!
//! Footers, page headers and compression are read here, with a bound for each size and count that a file states; the crate `parquet`
//! decodes the values.

mod cache;
mod columns;
mod decode;
mod fault;
mod filter;
mod footer;
mod groups;
mod open;
mod pages;
mod prefixes;
mod rows;
mod schema;
mod thrift;

use std::num::NonZeroU32;
use std::sync::Arc;

use futures::FutureExt;
use penstock_engine::numbered::{Numbered, Open};
use penstock_storage::BoundedStore;

pub use columns::Query;

use crate::damage::Damage;
use crate::shards::Shards;
use open::Opened;
use rows::{ReadOrder, Rows};

/// Samples of the rows in Parquet files, in any order. Reading takes at most `most_bytes` of memory: an eighth for the places of the row
/// groups, an eighth for marks of the selected rows, half for the row groups themselves. `shuffle` and `window` say how many row
/// groups are read at a time.
pub fn parquet_samples(
    store: BoundedStore,
    files: Shards,
    query: Query,
    shuffle: bool,
    window: Option<NonZeroU32>,
    damage: Damage,
    most_bytes: u64,
) -> Open {
    async move {
        let keys = files.keys(&store).await?;
        let Opened { files, groups, fields } =
            open::open(&store, keys, query.clone(), &damage, most_bytes / 8).await?;
        let order = ReadOrder { shuffle, window };
        let samples: Arc<dyn Numbered> =
            Arc::new(Rows::new(store, (files, groups, fields), &query, order, damage, most_bytes / 2).await?);
        Ok(samples)
    }
    .boxed()
}
