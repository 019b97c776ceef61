//! Samples of indexed shards, read by their places.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::chunk::Outcome;
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::{Numbered, Open, ReadFault, ReadSamples};
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RAISE_BUFFER, RangedObject, shown};
use penstock_types::data_set::DataFields;
use penstock_types::resume::Hash;
use tokio::task::spawn_blocking;

use crate::build::scan;
use crate::damage::Damage;
use crate::index::{FieldNames, IndexKind, SampleIndex};
use crate::ranges::{Read, Reads};
use crate::shards::{Shards, digest, read_whole, versions};

/// Decodes the files of samples.
pub(crate) trait Decode: Send + Sync {
    /// True if the files of the field with this number are read.
    fn is_wanted(&self, field: usize) -> bool;

    /// Adds the content of a file to its sample. The error is a whole message.
    fn add(&self, sample: &mut Sample, field: usize, content: Bytes) -> Result<(), String>;
}

/// Origin of an index.
#[derive(Clone, Debug)]
pub enum IndexFrom {
    /// Key of an object in the store of the shards.
    Object(Arc<str>),
    /// The headers in these shards, which are read once. The index is kept in memory.
    Shards(Shards),
}

/// Samples of shards, with an index.
struct IndexedShards {
    store: BoundedStore,
    index: SampleIndex,
    decode: Box<dyn Decode>,
    fields: Option<DataFields>,
    damage: Damage,
    units: Arc<[u64]>,
    mean_bytes: u64,
    most_bytes: u64,
}

/// A file: place of its sample in the chunk, and the number of its field.
type File = (usize, usize);

/// Samples of the shards that an index describes, in any order. The index may take `most_bytes` of memory, and so may a file. `decode`
/// receives the index, and returns the fields of the samples, too, if they are known from it.
pub(crate) fn indexed_samples(
    store: BoundedStore,
    index: IndexFrom,
    kind: IndexKind,
    damage: Damage,
    most_bytes: u64,
    decode: impl FnOnce(&SampleIndex) -> Result<(Box<dyn Decode>, Option<DataFields>), SourceFault>
    + Send
    + 'static,
) -> Open {
    async move {
        let index = index.open(&store, kind, &damage, most_bytes).await?;
        let (decode, fields) = decode(&index)?;
        let units = index.shards.iter().map(|shard| shard.samples).collect();
        let bytes: u64 = index.shards.iter().map(|shard| shard.version.size).fold(0, u64::saturating_add);
        let mean_bytes = bytes / index.samples().max(1);
        let samples: Arc<dyn Numbered> =
            Arc::new(IndexedShards { store, index, decode, fields, damage, units, mean_bytes, most_bytes });
        Ok(samples)
    }
    .boxed()
}

impl From<&str> for IndexFrom {
    fn from(key: &str) -> Self {
        Self::Object(Arc::from(key))
    }
}

impl From<Shards> for IndexFrom {
    fn from(shards: Shards) -> Self {
        Self::Shards(shards)
    }
}

impl IndexFrom {
    async fn open(
        self,
        store: &BoundedStore,
        kind: IndexKind,
        damage: &Damage,
        most_bytes: u64,
    ) -> Result<SampleIndex, SourceFault> {
        let key = match self {
            Self::Object(key) => key,
            Self::Shards(shards) => {
                let index = SampleIndex::build(kind, store, &shards, damage, |_, _| {}).await?;
                if index.bytes() > most_bytes {
                    let bytes = index.bytes();
                    let reason = format!(
                        "the index of the {kind} takes {bytes} bytes, more than the limit of {most_bytes}"
                    );
                    return Err(SourceFault::new(reason + RAISE_BUFFER, None));
                }
                return Ok(index);
            }
        };
        let bytes = read_whole(store, &key, "index", most_bytes).await?;
        let read = spawn_blocking(move || SampleIndex::read(bytes, kind)).await;
        let read =
            read.map_err(|error| SourceFault::new("reading the index was interrupted", Some(error.into())))?;
        let index = read.map_err(|reason| {
            SourceFault::new(format!("the index {} in store `{}` {reason}", shown(&key), store.name()), None)
        })?;
        if damage.skips() { sound(index, store, kind, damage).await } else { Ok(index) }
    }
}

/// The index without the shards that are missing. Of those that are shorter than in the index, it has the whole samples.
async fn sound(
    index: SampleIndex,
    store: &BoundedStore,
    kind: IndexKind,
    damage: &Damage,
) -> Result<SampleIndex, SourceFault> {
    let versions = versions(store, index.shards.iter().map(|shard| shard.key.clone()).collect()).await;
    let mut names = FieldNames::of(index.fields().to_vec());
    let mut shards = Vec::with_capacity(index.shards.len());
    for (shard, version) in index.shards.iter().zip(versions) {
        match version {
            Ok(version) if version.size < shard.version.size => {
                let object = RangedObject::open(store.clone(), shard.key.clone(), 0).await?;
                let (size, before) = (version.size, shard.version.size);
                // The reading notes where the shard ends.
                let (pack, _) = scan(kind, object, damage.clone()).await?;
                let found = pack(&mut names)
                    .ok_or_else(|| SourceFault::new("the index has too many fields", None))?;
                let lost = shard.samples.saturating_sub(found.samples);
                let cut =
                    format!("{} has {size} bytes instead of {before}, as the index says", shown(&shard.key));
                damage.part(&shard.key, Some(lost), SourceFault::damage(cut))?;
                shards.push(found);
            }
            // Another version of the same length is told by the reads.
            Ok(_) => shards.push(shard.clone()),
            Err(error) => damage.part(&shard.key, Some(shard.samples), error.into())?,
        }
    }
    Ok(index.with_shards(names.into_names(), shards))
}

impl IndexedShards {
    /// Samples without fields, and the reads of their files.
    fn plan(&self, epoch: u32, indexes: &[u64]) -> Result<(Vec<Sample>, Reads<File>), SourceFault> {
        let (mut samples, mut reads) = (Vec::with_capacity(indexes.len()), Reads::new());
        for (place, &index) in indexes.iter().enumerate() {
            let (shard, entry) = self.index.find(index);
            for (field, content) in entry.files {
                let field = field as usize;
                if !self.decode.is_wanted(field) {
                    continue;
                }
                let (size, most) = (content.end - content.start, self.most_bytes);
                if size > most {
                    let (name, key) = (shown(&self.index.fields()[field]), shown(&entry.key));
                    let reason = format!(
                        "the {name} of the sample {key} has {size} bytes, more than {most}; raise `buffer_mib`"
                    );
                    return Err(SourceFault::new(reason, None));
                }
                reads.push(shard, content, (place, field));
            }
            samples.push(Sample::new(entry.key, Origin::at(epoch, index)));
        }
        Ok((samples, reads))
    }

    /// The files of a read, or the reason why they are damaged.
    async fn fetch(&self, read: Read<File>) -> Result<Vec<(File, Result<Bytes, Outcome>)>, SourceFault> {
        let shard = &self.index.shards[read.shard];
        let (key, version) = (shard.key.clone(), shard.version.clone());
        match self.store.get_range(key, Some(version), read.range.clone()).await {
            Ok(bytes) => Ok(read.split(&bytes).map(|(file, bytes)| (file, Ok(bytes))).collect()),
            Err(error) => {
                let outcome = self.damage.sample(error.into())?;
                Ok(read.into_parts().map(|file| (file, Err(outcome.clone()))).collect())
            }
        }
    }
}

impl Numbered for IndexedShards {
    fn digest(&self) -> Option<Hash> {
        let shards = self.index.shards.iter();
        Some(digest(shards.map(|shard| (&*shard.key, shard.version.size, shard.samples))))
    }

    fn fields(&self) -> Option<DataFields> {
        self.fields.clone()
    }

    fn count(&self) -> u64 {
        self.index.samples()
    }

    fn units(&self) -> Arc<[u64]> {
        self.units.clone()
    }

    fn mean_bytes(&self) -> u64 {
        self.mean_bytes
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>) -> ReadSamples {
        async move {
            let (mut samples, Reads(reads)) = self.plan(epoch, &indexes)?;
            let reads = stream::iter(reads.into_iter().map(|read| self.fetch(read)));
            let fetched: Vec<_> = reads.buffered(self.store.reads().get()).try_collect().await?;
            let mut outcomes: Vec<Option<Outcome>> = vec![None; samples.len()];
            for ((place, field), content) in fetched.into_iter().flatten() {
                if outcomes[place].is_some() {
                    continue;
                }
                let added = match content {
                    Ok(content) => self.decode.add(&mut samples[place], field, content),
                    Err(outcome) => {
                        outcomes[place] = Some(outcome);
                        continue;
                    }
                };
                match added.map_err(|reason| self.damage.sample(SourceFault::damage(reason))) {
                    Ok(()) => {}
                    Err(Ok(outcome)) => outcomes[place] = Some(outcome),
                    Err(Err(fault)) => {
                        // Files are in the order of the samples: those before it are complete.
                        samples.truncate(place);
                        return Err(ReadFault { before: samples.into_iter().zip(outcomes).collect(), fault });
                    }
                }
            }
            Ok(samples.into_iter().zip(outcomes).collect())
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.index.bytes()
    }

    fn objects(&self) -> Vec<Arc<str>> {
        self.index.shards.iter().map(|shard| shard.key.clone()).collect()
    }
}
