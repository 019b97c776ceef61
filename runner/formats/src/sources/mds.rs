//! Shards of MosaicML Streaming: samples with typed columns, described by an `index.json`.

mod columns;
mod encoding;
mod index;
mod open;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::chunk::{Chunk, Outcome};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::{Numbered, Open, ReadFault, ReadSamples};
use penstock_engine::ports::SourceFault;
use penstock_engine::share::Share;
use penstock_storage::shown;
use penstock_types::data_set::DataFields;
use penstock_types::resume::Hash;
use penstock_types::spec::MdsSource;

use crate::access::Access;
use crate::damage::Damage;
use crate::index::numbered_key;
use crate::ranges::{ReadLimits, Reads};
use crate::shards::{digest, read_index, versions};
use crate::value::shortened;
use index::{MdsIndex, Shard};
use open::{Content, OpenShards};

/// Samples of the shards that the `index.json` of the source names, in any order. What is kept of the shards may take `most_bytes`: their
/// indexes of samples, and shards that are compressed as a whole.
pub fn open(source: &MdsSource, access: Access) -> Open {
    let (source, Access { store, damage, most_bytes }) = (source.clone(), access);
    let folder = match source.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{}/", prefix.strip_suffix('/').unwrap_or(prefix)),
    };
    let key: Arc<str> = Arc::from(format!("{folder}index.json"));
    async move {
        let read = move |bytes: Bytes| MdsIndex::read(&bytes, &folder, &source, most_bytes);
        let index = read_index(&store, &key, most_bytes / 4, read).await?;
        let keys = index.shards.iter().map(|shard| shard.stored().key.clone()).collect();
        let (index, digest) = index.checked(versions(&store, keys).await, &damage)?;
        let named = |shard: &Shard| (shard.raw.key.clone(), DataFields::of(shard.columns.fields()));
        let mut parts: Vec<_> = index.shards.iter().map(named).collect();
        // Most shards have the columns of the shard before.
        parts.dedup_by(|(_, one), (_, other)| one == other);
        let fields = DataFields::of_several(&parts)
            .map_err(|fault| fault.to_string().replace("the source ", "the shard "));
        let fields =
            fields.and_then(|fields| check_meanings(&index.shards).map(|()| fields)).map_err(|fault| {
                SourceFault::new(format!("{fault}; write the shards with equal columns"), None)
            })?;
        let open = OpenShards::new(store, &index, most_bytes);
        let samples: Arc<dyn Numbered> =
            Arc::new(MdsSamples { index, open, digest, fields, damage, most_bytes });
        Ok(samples)
    }
    .boxed()
}

/// Checks that no field has texts in one shard, and JSON in another, or one blob and several: both have one type.
fn check_meanings(shards: &[Shard]) -> Result<(), String> {
    let mut known: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for shard in shards {
        for (field, meaning) in shard.columns.meanings() {
            let (known, at) = *known.entry(&**field).or_insert((meaning, &*shard.raw.key));
            if known != meaning {
                let (name, at, key) = (shortened(field), shown(at), shown(&shard.raw.key));
                return Err(format!(
                    "the field `{name}` {known} in the shard {at}, and {meaning} in the shard {key}"
                ));
            }
        }
    }
    Ok(())
}

struct MdsSamples {
    index: MdsIndex,
    open: OpenShards,
    /// Digest of the versions of the shards.
    digest: Hash,
    fields: DataFields,
    damage: Damage,
    most_bytes: u64,
}

impl MdsSamples {
    /// Contents of samples of one shard, as far as there is room: their places in a chunk, and their numbers in the shard.
    async fn fetch(
        &self,
        shard: usize,
        mut wanted: Vec<(u64, usize)>,
        share: &Share,
    ) -> Result<Vec<(usize, Bytes)>, SourceFault> {
        let in_use = self.open.get(shard, &self.index.shards[shard]).await?;
        let opened = in_use.value();
        let size = |number: u64| opened.sample(number).end - opened.sample(number).start;
        let has_room = |(number, place): &&(u64, usize)| share.take(*place, size(*number));
        wanted.truncate(wanted.iter().take_while(has_room).count());
        // Neighbours are read together.
        wanted.sort_unstable();
        let mut reads = Reads::new(ReadLimits::OF_SAMPLES);
        for (number, place) in wanted {
            let range = opened.sample(number);
            let (size, most) = (range.end - range.start, self.most_bytes);
            if size > most {
                let reason =
                    format!("has the sample {number} of {size} bytes, more than {most}; raise `buffer_mib`");
                return Err(self.open.fault(&self.index.shards[shard].raw, &reason));
            }
            reads.push(shard, range, place);
        }
        let reads = reads.reads;
        match &opened.content {
            // Samples are copied, so that they do not keep a whole shard in memory.
            Content::Held(bytes) => {
                let parts = reads.into_iter().flat_map(|read| {
                    let range = read.range.start as usize..read.range.end as usize;
                    read.split(bytes.slice(range))
                        .map(|(place, bytes)| (place, Bytes::copy_from_slice(&bytes)))
                });
                Ok(parts.collect())
            }
            Content::Stored(object) => {
                let object = &object.clone();
                // Other shards may wait for its memory.
                drop(in_use);
                let reads = reads.into_iter().map(|read| async move {
                    let bytes = object.read(read.range.clone()).await?;
                    Ok::<_, SourceFault>(read.split(bytes).collect::<Vec<_>>())
                });
                let parts: Vec<_> =
                    stream::iter(reads).buffered(object.store.reads().get()).try_collect().await?;
                Ok(parts.into_iter().flatten().collect())
            }
        }
    }

    fn sample(
        &self,
        epoch: u32,
        index: u64,
        content: &Result<Bytes, Outcome>,
    ) -> Result<(Sample, Option<Outcome>), SourceFault> {
        let (shard, number) = self.index.starts.find(index);
        let shard = &self.index.shards[shard];
        let mut sample = Sample::new(numbered_key(&shard.raw.key, number), Origin::at(epoch, index));
        let outcome = match content {
            Ok(content) => shard.columns.add(&mut sample, content).err().map(|reason| {
                let key = numbered_key(&shard.raw.key, number);
                self.damage.sample(SourceFault::damage(format!("the sample {} {reason}", shown(&key))))
            }),
            Err(outcome) => Some(Ok(outcome.clone())),
        };
        Ok((sample, outcome.transpose()?))
    }
}

impl Numbered for MdsSamples {
    fn digest(&self) -> Option<Hash> {
        Some(self.digest)
    }

    fn older_digest(&self) -> Option<Hash> {
        Some(digest(self.index.shards.iter().map(|shard| (&*shard.raw.key, shard.raw.bytes, shard.samples))))
    }

    fn fields(&self) -> Option<DataFields> {
        Some(self.fields.clone())
    }

    fn count(&self) -> u64 {
        self.index.starts.count()
    }

    fn units(&self) -> Arc<[u64]> {
        self.index.shards.iter().map(|shard| shard.samples).collect()
    }

    fn mean_bytes(&self) -> u64 {
        let bytes = self.index.shards.iter().map(|shard| shard.raw.bytes).fold(0, u64::saturating_add);
        bytes / self.count().max(1)
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move {
            let mut wanted: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
            for (place, index) in indexes.iter().enumerate() {
                let (shard, number) = self.index.starts.find(*index);
                wanted.entry(shard).or_default().push((number, place));
            }
            let (own, share) = (&self, &share);
            let fetches = wanted.into_iter().map(|(shard, wanted)| async move {
                let places: Vec<usize> = wanted.iter().map(|(_, place)| *place).collect();
                match own.fetch(shard, wanted, share).await {
                    Ok(contents) => Ok(contents
                        .into_iter()
                        .map(|(place, content)| (place, Ok(content)))
                        .collect::<Vec<_>>()),
                    Err(fault) => {
                        let outcome = own.damage.sample(fault)?;
                        Ok::<_, SourceFault>(
                            places.into_iter().map(|place| (place, Err(outcome.clone()))).collect(),
                        )
                    }
                }
            });
            let fetched: Vec<_> =
                stream::iter(fetches).buffer_unordered(self.open.store.reads().get()).try_collect().await?;
            let mut contents = vec![None; indexes.len()];
            fetched.into_iter().flatten().for_each(|(place, content)| contents[place] = Some(content));
            let mut samples = Chunk::with_capacity(indexes.len());
            for (place, (index, content)) in indexes.into_iter().zip(contents).enumerate() {
                let Some(content) = content else { break };
                let (sample, outcome) = match self.sample(epoch, index, &content) {
                    Ok(made) => made,
                    Err(fault) => return Err(ReadFault { before: samples, fault }),
                };
                if content.is_ok_and(|content| !share.take_decoded(place, &sample, content.len() as u64)) {
                    break;
                }
                samples.add(sample, outcome);
            }
            Ok(samples)
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.index.bytes() + self.open.cache.used()
    }

    fn objects(&self) -> Vec<Arc<str>> {
        self.index.shards.iter().map(|shard| shard.stored().key.clone()).collect()
    }
}
