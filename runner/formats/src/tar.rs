//! Tar shards in WebDataset's convention: neighbouring files with one key are a sample.

mod entry;
mod in_order;
mod index;
mod indexed;
mod members;
mod names;
mod scan;
mod select;

use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use penstock_engine::numbered::{Numbered, Open};
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, MAX_INDEX_BYTES, RAISE_BUFFER, RangedObject, shown};
use tokio::task::spawn_blocking;

pub use in_order::TarStream;
pub use index::{IndexFault, TarIndex};
pub use select::Selection;

use crate::shards::Shards;
use index::MAX_FIELDS;
use indexed::IndexedTar;
use scan::{FieldNames, scan};

/// Samples of the shards that an index names, in any order. The index may take `most_bytes` of memory, and so may a field that is
/// decompressed.
pub fn tar_samples(store: BoundedStore, index: &str, selection: Selection, most_bytes: u64) -> Open {
    let key: Arc<str> = Arc::from(index);
    async move {
        let object = RangedObject::open(store.clone(), key.clone(), 0).await?;
        let fault = |reason: String| {
            SourceFault::new(format!("the index {} in store `{}` {reason}", shown(&key), store.name()), None)
        };
        let size = object.size();
        if size > most_bytes.min(MAX_INDEX_BYTES) {
            let most = most_bytes.min(MAX_INDEX_BYTES);
            return Err(fault(format!("has {size} bytes, more than the limit of {most}{RAISE_BUFFER}")));
        }
        let bytes = object.read(0..size).await?;
        let read = spawn_blocking(move || TarIndex::read(bytes)).await;
        let read =
            read.map_err(|error| SourceFault::new("reading the index was interrupted", Some(error.into())))?;
        let index = read.map_err(|reason| fault(reason.to_string()))?;
        let samples: Arc<dyn Numbered> = Arc::new(IndexedTar::new(store, index, &selection, most_bytes));
        Ok(samples)
    }
    .boxed()
}

impl TarIndex {
    /// Makes an index, by reading the headers in all shards, several shards at a time. `on_shard` receives the number of shards that are
    /// done, and of all.
    pub async fn build(
        store: &BoundedStore,
        shards: &Shards,
        mut on_shard: impl FnMut(usize, usize),
    ) -> Result<Self, SourceFault> {
        let keys = shards.keys(store).await?;
        let all = keys.len();
        let scans = stream::iter(keys).map(|key: Arc<str>| {
            let store = store.clone();
            async move { scan(RangedObject::open(store, key, 0).await?).await }
        });
        let mut scans = scans.buffered((store.reads().get() / 4).max(1));
        let (mut fields, mut done) = (FieldNames::default(), Vec::with_capacity(all));
        while let Some(scanned) = scans.next().await {
            let Some(shard) = scanned?.pack(&mut fields) else {
                return Err(SourceFault::new(
                    format!("the tar shards have more than {MAX_FIELDS} different fields"),
                    None,
                ));
            };
            done.push(shard);
            on_shard(done.len(), all);
        }
        Ok(Self::new(fields.into_names(), done))
    }
}
