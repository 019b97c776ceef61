//! Samples of indexed shards, read by their places.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::chunk::{Chunk, Outcome};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::{Numbered, Open, ReadFault, ReadSamples};
use penstock_engine::ports::SourceFault;
use penstock_engine::share::Share;
use penstock_storage::{RAISE_BUFFER, RangedObject, Version, shown};
use penstock_types::data_set::DataFields;
use penstock_types::resume::Hash;
use penstock_types::spec::ObjectKey;

use crate::access::Access;
use crate::build::{Pack, scan};
use crate::entry::{Digest, FilePlace};
use crate::index::{FieldNames, IndexKind, SampleIndex, ShardIndex};
use crate::ranges::{Read, ReadLimits, Reads};
use crate::reason::Reason;
use crate::shards::{Shards, digest, read_index, versions, with_version};

pub(crate) trait Decode: Send + Sync {
    /// True if the files of the field with this number are read.
    fn is_wanted(&self, field: usize) -> bool;

    /// Adds the content of a file to its sample. The error is a whole message.
    fn add(&self, sample: &mut Sample, field: usize, content: Bytes) -> Result<(), Reason>;
}

struct IndexedShards {
    access: Access,
    index: SampleIndex,
    /// Key of the index, unless it was made for these samples.
    made: Option<Arc<str>>,
    kind: IndexKind,
    decode: Box<dyn Decode>,
    fields: Option<DataFields>,
    mean_bytes: u64,
    /// Versions of the shards that are read, once the first read of each has succeeded: no shard may change within a run.
    in_use: Box<[OnceLock<Version>]>,
}

/// Files with their contents, or with the outcomes of their samples.
type Fetched = Vec<(File, Result<Bytes, Outcome>)>;

/// Samples without fields, the sizes of their files, and the reads of these.
type Plan = (Vec<Sample>, Vec<u64>, Reads<File>);

struct File {
    place: usize,
    field: usize,
    digest: Option<Digest>,
}

/// Index that is read, the decoder of its files, and the fields of its samples, if they are known from it.
pub(crate) type Decoded = (SampleIndex, Box<dyn Decode>, Option<DataFields>);

/// Samples of the shards that the index `key` describes, in any order. Without a key, an index is made of the headers in `shards`, and kept
/// in memory. The index may take `most_bytes` of memory, and so may a file.
pub(crate) fn indexed_samples(
    access: Access,
    key: Option<&ObjectKey>,
    shards: Shards,
    kind: IndexKind,
    decode: impl FnOnce(SampleIndex) -> Result<Decoded, SourceFault> + Send + 'static,
) -> Open {
    let made: Option<Arc<str>> = key.map(|key| Arc::from(key.as_str()));
    async move {
        let index = match &made {
            Some(key) => read(key, &access, kind).await?,
            None => make(&shards, &access, kind).await?,
        };
        let (index, decode, fields) = decode(index)?;
        let bytes: u64 = index.shards.iter().map(|shard| shard.version.size).fold(0, u64::saturating_add);
        let mean_bytes = bytes / index.samples().max(1);
        let in_use = index.shards.iter().map(|_| OnceLock::new()).collect();
        let samples = IndexedShards { access, index, made, kind, decode, fields, mean_bytes, in_use };
        Ok(Arc::new(samples) as _)
    }
    .boxed()
}

async fn make(shards: &Shards, access: &Access, kind: IndexKind) -> Result<SampleIndex, SourceFault> {
    let Access { store, damage, most_bytes } = access;
    let index = SampleIndex::build(kind, store, shards, damage, |_, _| {}).await?;
    let bytes = index.bytes();
    if bytes > *most_bytes {
        let reason =
            format!("the index of the {kind} takes {bytes} bytes, more than the limit of {most_bytes}");
        return Err(SourceFault::new(reason + RAISE_BUFFER, None));
    }
    Ok(index)
}

async fn read(key: &Arc<str>, access: &Access, kind: IndexKind) -> Result<SampleIndex, SourceFault> {
    let read = move |bytes| SampleIndex::read(bytes, kind);
    let index = read_index(&access.store, key, access.most_bytes, read).await?;
    if access.damage.skips() { sound(index, key, access, kind).await } else { Ok(index) }
}

/// The index `made` without the shards that are missing. Shards that have changed since it was made are read again.
async fn sound(
    index: SampleIndex,
    made: &str,
    Access { store, damage, .. }: &Access,
    kind: IndexKind,
) -> Result<SampleIndex, SourceFault> {
    let versions = versions(store, index.shards.iter().map(|shard| shard.key.clone()).collect()).await;
    let checks = index.shards.iter().zip(versions).map(|(shard, version)| async move {
        let opened = match version {
            Ok(version) if version == shard.version => return Ok(Checked::Same),
            Ok(_) => RangedObject::open(store.clone(), shard.key.clone(), 0).await,
            Err(error) => Err(error),
        };
        let known = Some(shard.samples);
        match opened {
            Ok(object) => Ok(Checked::Again(scan(kind, object, damage.clone(), known).await?.0)),
            Err(error) => damage.part(&shard.key, known, error.into()).map(|()| Checked::Lost),
        }
    });
    let checks: Vec<_> = checks.collect();
    let checked: Vec<Checked> =
        stream::iter(checks).buffered((store.reads().get() / 4).max(1)).try_collect().await?;
    let mut names = FieldNames(index.fields().to_vec());
    let mut shards = Vec::with_capacity(index.shards.len());
    for (shard, checked) in index.shards.iter().zip(checked) {
        let found = match checked {
            Checked::Same => {
                shards.push(shard.clone());
                continue;
            }
            Checked::Lost => continue,
            Checked::Again(pack) => {
                pack(&mut names).ok_or_else(|| SourceFault::new("the index has too many fields", None))?
            }
        };
        // A true copy.
        if found.has_samples_of(shard) && found.version.may_be_copy_of(&shard.version) {
            shards.push(shard.clone());
            continue;
        }
        let warning = "shards that have changed since their index was made (make it again)";
        damage.notes.warn(warning, &format!("{}, {made}", shard.key));
        if let Some(lost @ 1..) = shard.samples.checked_sub(found.samples) {
            let (found, before) = (found.samples, shard.samples);
            let fewer =
                format!("{} has {found} samples instead of {before}, as `{made}` says", shown(&shard.key));
            damage.part(&shard.key, Some(lost), SourceFault::damage(fewer))?;
        }
        shards.push(found);
    }
    Ok(index.with_shards(names.0, shards))
}

/// A shard of an index, compared with the object.
enum Checked {
    Same,
    /// The samples of another version.
    Again(Pack),
    Lost,
}

impl IndexedShards {
    /// Samples without fields, each with the size of its files, and the reads of these, as far as there is room.
    fn plan(&self, epoch: u32, indexes: &[u64], share: &Share) -> Result<Plan, SourceFault> {
        let (mut samples, mut sizes) = (Vec::with_capacity(indexes.len()), Vec::new());
        let mut reads = Reads::new(ReadLimits::OF_SAMPLES);
        for (place, &index) in indexes.iter().enumerate() {
            let (shard, entry) = self.index.find(index);
            let is_wanted = |file: &&FilePlace| self.decode.is_wanted(file.field as usize);
            let bytes =
                entry.files.iter().filter(is_wanted).map(|file| file.content.end - file.content.start);
            let bytes = bytes.fold(0, u64::saturating_add);
            if !share.take(place, bytes) {
                break;
            }
            sizes.push(bytes);
            for file in entry.files {
                let FilePlace { field, ref content, digest } = file;
                let field = field as usize;
                if !self.decode.is_wanted(field) {
                    continue;
                }
                let (size, most) = (content.end - content.start, self.access.most_bytes);
                if bytes > most {
                    let (name, key) = (shown(&self.index.fields()[field]), shown(&entry.key));
                    let reason = match size > most {
                        true => format!("the {name} of the sample {key} has {size} bytes"),
                        false => format!("the sample {key} has {bytes} bytes"),
                    };
                    let message = format!("{reason}, more than {most}; raise `buffer_mib`");
                    return Err(SourceFault::new(message, None));
                }
                // An index that was made for these samples describes the shards as they are.
                let digest = digest.filter(|_| self.made.is_some());
                let part = if digest.is_some() { file.checked() } else { file.content };
                reads.push(shard, part, File { place, field, digest });
            }
            samples.push(Sample::new(entry.key, Origin::at(epoch, index)));
        }
        Ok((samples, sizes, reads))
    }

    /// The files of a read, or the reason why they are damaged.
    async fn fetch(&self, read: Read<File>) -> Result<Fetched, SourceFault> {
        let bytes = match self.unchecked(&read).await {
            Ok(bytes) => bytes,
            Err(fault) => {
                let outcome = self.access.damage.sample(fault)?;
                return Ok(read.into_parts().map(|file| (file, Err(outcome.clone()))).collect());
            }
        };
        let shard = &self.index.shards[read.shard];
        // The tag of a file does not tell whether its content is the same, nor does that of an object whether a copy is true.
        let checked = read.split(bytes).map(|(file, mut bytes)| {
            let Some(digest) = file.digest else { return Ok((file, Ok(bytes))) };
            if self.kind.digest(&bytes, digest.header_bytes) != Some(digest) {
                let outcome = self.access.damage.sample(self.changed(shard))?;
                return Ok((file, Err(outcome)));
            }
            bytes.advance(digest.header_bytes as usize);
            Ok((file, Ok(bytes)))
        });
        checked.collect()
    }

    /// Bytes of a read, of the version in the index or of what may be a copy of it.
    async fn unchecked(&self, read: &Read<File>) -> Result<Bytes, SourceFault> {
        let (shard, in_use) = (&self.index.shards[read.shard], &self.in_use[read.shard]);
        let get = |version: &Version| {
            let (key, version) = (shard.key.clone(), Some(version.clone()));
            self.access.store.get_range(key, version, read.range.clone())
        };
        let known = in_use.get();
        let bytes = match get(known.unwrap_or(&shard.version)).await {
            Err(error) if known.is_none() => match self.other_version(shard).await {
                None => return Err(error.into()),
                Some(copy) if shard.has_digests && copy.may_be_copy_of(&shard.version) => {
                    // Another read may have found the copy meanwhile.
                    get(in_use.get_or_init(|| copy)).await?
                }
                Some(_) => return Err(self.changed(shard)),
            },
            bytes => bytes?,
        };
        in_use.get_or_init(|| shard.version.clone());
        Ok(bytes)
    }

    /// Version of a shard, if it is not the one that the index describes. An index that was made for these samples describes the shards as
    /// they were when the run began.
    async fn other_version(&self, shard: &ShardIndex) -> Option<Version> {
        self.made.as_ref()?;
        let version = self.access.store.version(shard.key.clone()).await.ok()?;
        (version != shard.version).then_some(version)
    }

    /// Fault of a shard that is not the one which the index describes.
    fn changed(&self, shard: &ShardIndex) -> SourceFault {
        let (shard, flag) = (self.access.store.named(&shard.key), self.kind.flag());
        let made = shown(self.made.as_deref().unwrap_or_default());
        SourceFault::damage(format!(
            "the shard {shard} has changed since {made} was made: make it again with `penstock index create {flag}`"
        ))
    }
}

impl Numbered for IndexedShards {
    fn digest(&self) -> Option<Hash> {
        Some(self.index.shards.iter().fold(Hash::EMPTY, |hash, shard| {
            with_version(hash, &shard.key, Some(&shard.version)).with(&shard.samples.to_le_bytes())
        }))
    }

    fn older_digest(&self) -> Option<Hash> {
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
        self.index.shards.iter().map(|shard| shard.samples).collect()
    }

    fn mean_bytes(&self) -> u64 {
        self.mean_bytes
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move {
            let (mut samples, sizes, Reads { reads, .. }) = self.plan(epoch, &indexes, &share)?;
            let reads = stream::iter(reads.into_iter().map(|read| self.fetch(read)));
            let fetched: Vec<_> = reads.buffered(self.access.store.reads().get()).try_collect().await?;
            let mut ended: BTreeMap<usize, Outcome> = BTreeMap::new();
            // What a sample takes beyond its files is known once they are decoded.
            let has_room =
                |samples: &[Sample], place: usize| share.take_decoded(place, &samples[place], sizes[place]);
            let mut complete = 0;
            for (File { place, field, .. }, content) in fetched.into_iter().flatten() {
                // Files are in the order of the samples.
                while complete < place && has_room(&samples, complete) {
                    complete += 1;
                }
                if complete < place {
                    samples.truncate(complete);
                    break;
                }
                if ended.contains_key(&place) {
                    continue;
                }
                let outcome = match content {
                    Ok(content) => match self.decode.add(&mut samples[place], field, content) {
                        Ok(()) => continue,
                        Err(reason) => self.access.damage.sample(SourceFault::damage(reason)),
                    },
                    Err(outcome) => Ok(outcome),
                };
                match outcome {
                    Ok(outcome) => drop(ended.insert(place, outcome)),
                    Err(fault) => {
                        samples.truncate(place);
                        return Err(ReadFault { before: Chunk::with_ended(samples, ended), fault });
                    }
                }
            }
            while complete < samples.len() && has_room(&samples, complete) {
                complete += 1;
            }
            samples.truncate(complete);
            Ok(Chunk::with_ended(samples, ended))
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
