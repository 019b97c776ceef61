//! Making of an index, by reading all shards once.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::data_set::Learner;

use crate::damage::Damage;
use crate::index::{FieldNames, IndexKind, MAX_FIELDS, SampleIndex, ShardIndex};
use crate::shards::Shards;
use crate::sources::tar::scan as scan_tar;
use crate::sources::tfrecord::scan as scan_tfrecord;

/// Entries of one shard, to be packed with the numbers that the fields have in the whole index. `None` if there are too many fields.
pub(crate) type Pack = Box<dyn FnOnce(&mut FieldNames) -> Option<ShardIndex> + Send>;

pub(crate) type Scan = (Pack, Option<Learner>);

/// Reads all that an index needs of a shard, which had `known` samples in an earlier index.
pub(crate) async fn scan(
    kind: IndexKind,
    object: RangedObject,
    damage: Damage,
    known: Option<u64>,
) -> Result<Scan, SourceFault> {
    match kind {
        IndexKind::Tar => Ok((scan_tar(object, damage, known).await?, None)),
        IndexKind::Tfrecord => scan_tfrecord(object, damage, known).await,
    }
}

impl SampleIndex {
    /// Makes an index, by reading the headers of tar shards and the records of TFRecord files, several shards at a time. `on_shard`
    /// receives the number of shards that are done, and of all.
    pub async fn build(
        kind: IndexKind,
        store: &BoundedStore,
        shards: &Shards,
        damage: &Damage,
        mut on_shard: impl FnMut(usize, usize),
    ) -> Result<Self, SourceFault> {
        let keys = shards.keys(store).await?;
        let all = keys.len();
        let scans = stream::iter(keys).map(|key: Arc<str>| {
            let (store, damage) = (store.clone(), damage.clone());
            async move {
                match RangedObject::open(store, key.clone(), 0).await {
                    Ok(object) => scan(kind, object, damage, None).await.map(Some),
                    Err(error) => damage.part(&key, None, error.into()).map(|()| None),
                }
            }
        });
        let mut scans = scans.buffered((store.reads().get() / 4).max(1));
        let (mut fields, mut shards, mut done) = (FieldNames::default(), Vec::with_capacity(all), 0);
        let mut learner: Option<Learner> = None;
        while let Some(scan) = scans.next().await {
            done += 1;
            let Some((pack, learnt)) = scan? else { continue };
            if let Some(more) = learnt {
                let joined = learner.get_or_insert_default().join(more);
                joined.map_err(|fault| SourceFault::new(fault.to_string(), None))?;
            }
            let Some(shard) = pack(&mut fields) else {
                let message = format!("the {kind} have more than {MAX_FIELDS} different fields");
                return Err(SourceFault::new(message, None));
            };
            shards.push(shard);
            on_shard(done, all);
        }
        let types = learner.map(|learner| learner.finish(true));
        Ok(Self::new(kind, fields.0, shards, types))
    }
}
