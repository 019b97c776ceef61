//! Samples of indexed tar shards, read by their places.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::{Numbered, ReadSamples};
use penstock_engine::ports::SourceFault;
use penstock_storage::BoundedStore;

use super::index::TarIndex;
use super::select::Selection;
use crate::value;

/// Files that are this close to each other are read together, with what lies between them, in bytes.
const GAP: u64 = 32 << 10;

/// Maximum size of a read of several files, in bytes.
const MAX_READ: u64 = 4 << 20;

/// Samples of tar shards, with an index.
pub(super) struct IndexedTar {
    store: BoundedStore,
    index: TarIndex,
    /// Name in samples of each field of the index; `None` for fields that are not selected.
    names: Vec<Option<Arc<str>>>,
    units: Arc<[u64]>,
    mean_bytes: u64,
    most_bytes: u64,
}

/// A read of files that lie close to each other in one shard.
struct Read {
    shard: usize,
    range: Range<u64>,
    files: Vec<File>,
}

/// A selected file.
struct File {
    /// Place of its sample in the chunk.
    place: usize,
    field: usize,
    content: Range<u64>,
}

impl IndexedTar {
    /// Reads fields of at most `most_bytes` each from the shards of the index, which are in `store`.
    pub(super) fn new(store: BoundedStore, index: TarIndex, selection: &Selection, most_bytes: u64) -> Self {
        let names = index.fields().iter().map(|field| selection.name_of(field)).collect();
        let units = index.shards.iter().map(|shard| shard.samples).collect();
        let bytes: u64 = index.shards.iter().map(|shard| shard.version.size).sum();
        let mean_bytes = bytes / index.samples().max(1);
        Self { store, index, names, units, mean_bytes, most_bytes }
    }

    /// Samples without fields, and the reads of their files.
    fn plan(&self, epoch: u32, indexes: &[u64]) -> (Vec<Sample>, Vec<Read>) {
        let mut reads: Vec<Read> = Vec::new();
        let mut samples = Vec::with_capacity(indexes.len());
        for (place, &index) in indexes.iter().enumerate() {
            let (shard, entry) = self.index.find(index);
            samples.push(Sample::new(&*entry.key, Origin { epoch, index, path: 0 }));
            for (field, content) in entry.files {
                let field = field as usize;
                if self.names[field].is_none() {
                    continue;
                }
                let file = File { place, field, content: content.clone() };
                match reads.last_mut() {
                    Some(read) if read.takes(shard, &content) => {
                        read.range.end = content.end;
                        read.files.push(file);
                    }
                    _ => reads.push(Read { shard, range: content, files: vec![file] }),
                }
            }
        }
        (samples, reads)
    }

    async fn fetch(&self, read: Read) -> Result<Vec<(File, Bytes)>, SourceFault> {
        let shard = &self.index.shards[read.shard];
        let bytes =
            self.store.get_range(shard.key.clone(), Some(shard.version.clone()), read.range.clone()).await?;
        let start = read.range.start;
        // A file shares the memory of its neighbours, which stay in the same chunk.
        let slice = |file: File| {
            let content = (file.content.start - start) as usize..(file.content.end - start) as usize;
            (bytes.slice(content), file)
        };
        Ok(read.files.into_iter().map(slice).map(|(bytes, file)| (file, bytes)).collect())
    }
}

impl Read {
    fn takes(&self, shard: usize, content: &Range<u64>) -> bool {
        let gap = content.start.checked_sub(self.range.end);
        self.shard == shard && gap.is_some_and(|gap| gap <= GAP) && content.end - self.range.start <= MAX_READ
    }
}

impl Numbered for IndexedTar {
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
            let (mut samples, reads) = self.plan(epoch, &indexes);
            let reads = stream::iter(reads.into_iter().map(|read| self.fetch(read)));
            let fetched: Vec<_> = reads.buffered(self.store.reads().get()).try_collect().await?;
            for (file, bytes) in fetched.into_iter().flatten() {
                let (sample, field) = (&mut samples[file.place], &self.index.fields()[file.field]);
                let Some(name) = &self.names[file.field] else { continue };
                let value = value::of(field, bytes, self.most_bytes).map_err(|reason| {
                    let key = sample.key.escape_debug();
                    SourceFault::new(format!("the field `{field}` of the sample `{key}` {reason}"), None)
                })?;
                sample.set(name.clone(), value);
            }
            Ok(samples)
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.index.bytes()
    }
}
