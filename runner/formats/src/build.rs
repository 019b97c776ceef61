//! Making of an index, by reading all shards once.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RangedObject};

use crate::index::{FieldNames, IndexKind, MAX_FIELDS, SampleIndex, ShardIndex};
use crate::shards::Shards;
use crate::{tar, tfrecord};

/// Entries of one shard, to be packed with the numbers that the fields have in the whole index. `None` if there are too many fields.
pub(crate) type Pack = Box<dyn FnOnce(&mut FieldNames) -> Option<ShardIndex> + Send>;

impl SampleIndex {
    /// Makes an index, by reading the headers in all shards, several shards at a time. `on_shard` receives the number of shards that are
    /// done, and of all.
    pub async fn build(
        kind: IndexKind,
        store: &BoundedStore,
        shards: &Shards,
        mut on_shard: impl FnMut(usize, usize),
    ) -> Result<Self, SourceFault> {
        let keys = shards.keys(store).await?;
        let all = keys.len();
        let scans = stream::iter(keys).map(|key: Arc<str>| {
            let store = store.clone();
            async move {
                let object = RangedObject::open(store, key, 0).await?;
                match kind {
                    IndexKind::Tar => tar::scan(object).await,
                    IndexKind::Tfrecord => tfrecord::scan(object).await,
                }
            }
        });
        let mut scans = scans.buffered((store.reads().get() / 4).max(1));
        let (mut fields, mut done) = (FieldNames::default(), Vec::with_capacity(all));
        while let Some(pack) = scans.next().await {
            let Some(shard) = pack?(&mut fields) else {
                return Err(SourceFault::new(
                    format!("the {kind} have more than {MAX_FIELDS} different fields"),
                    None,
                ));
            };
            done.push(shard);
            on_shard(done.len(), all);
        }
        Ok(Self::new(kind, fields.into_names(), done))
    }
}
