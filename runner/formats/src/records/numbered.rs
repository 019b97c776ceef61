//! Records in any order, by their places.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::item::Origin;
use penstock_engine::numbered::{Numbered, Open, ReadFault, ReadSamples};
use penstock_engine::ports::SourceFault;
use penstock_engine::share::Share;
use penstock_engine::typed::Cures;
use penstock_storage::{BoundedStore, RAISE_BUFFER, RangedObject, interrupted};
use penstock_types::data_set::{DataFields, Learner, TypeFault};
use penstock_types::resume::Hash;
use tokio::task::{JoinHandle, spawn_blocking};

use super::format::RecordFormat;
use super::part::{PART_BYTES, Part, READING, Raw, parse};
use super::split::{LongRecords, MAX_RECORD_BYTES, Piece, Splitter};
use super::{ahead_bytes, kinds};
use crate::in_order::Done;
use crate::ranges::{Read, ReadLimits, Reads};
use crate::shards::{Shards, Starts};

/// Samples of the records of one or several objects, in any order. The objects are read once for the starts of their records (8 bytes
/// are kept for each) and the types of their fields, several objects at a time, and then records are read by range requests; neighbours
/// are read together. Objects of at most 32 MiB together are kept in memory instead. What is kept may have `most_bytes`.
pub fn record_samples(store: BoundedStore, objects: Shards, format: RecordFormat, most_bytes: u64) -> Open {
    let limits = Limits {
        held_bytes: HELD_BYTES.min(most_bytes / 2),
        most_bytes,
        remedy: "split the object up, read it without `shuffle`",
    };
    open_records(store, objects, format, limits).boxed()
}

#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum size of objects that are kept in memory, in bytes.
    pub(crate) held_bytes: u64,
    /// Maximum size of all that is kept, in bytes.
    pub(crate) most_bytes: u64,
    /// Remedy for objects with too many records, besides more memory.
    pub(crate) remedy: &'static str,
}

/// The same within these limits.
pub(crate) async fn open_records(
    store: BoundedStore,
    objects: Shards,
    format: RecordFormat,
    limits: Limits,
) -> Result<Arc<dyn Numbered>, SourceFault> {
    let keys = objects.keys(&store).await?;
    let format = Arc::new(format);
    let at_a_time = (store.reads().get() / 4).min(keys.len()).clamp(1, MAX_SCANS);
    let share = limits.held_bytes / keys.len().max(1) as u64;
    let kept = Arc::new(AtomicU64::new(0));
    let long = LongRecords::within(limits.most_bytes);
    let scans = stream::iter(keys).map(|key| {
        let (store, format, kept, long) = (store.clone(), format.clone(), kept.clone(), long.clone());
        async move {
            let object = match RangedObject::open(store, key.clone(), share).await {
                Ok(object) => object,
                Err(error) => return format.damage.part(&key, None, error.into()).map(|()| None),
            };
            let ahead_bytes = ahead_bytes(limits.most_bytes) / at_a_time as u64;
            let splitter = Splitter::new(object, format, ahead_bytes, long);
            Places::scan(splitter, &kept, limits).await.map(Some)
        }
    });
    let parts: Vec<Option<(Places, Learner)>> = scans.buffered(at_a_time).try_collect().await?;
    let (parts, learners): (Vec<Places>, Vec<Learner>) = parts.into_iter().flatten().unzip();
    let firsts = Starts::new(parts.iter().map(Places::count));
    let fields = fields(&format, &parts, learners)?;
    Ok(Arc::new(Records { format, parts, firsts, fields, kept_bytes: kept.load(Ordering::Relaxed) }))
}

/// Fields of the records: of all columns, or of all members.
fn fields(
    format: &RecordFormat,
    parts: &[Places],
    learners: Vec<Learner>,
) -> Result<DataFields, SourceFault> {
    if format.has_columns() {
        return table_fields(format, parts.iter().map(|part| &*part.part));
    }
    let mut learners = learners.into_iter();
    let first = learners.next().unwrap_or_default();
    let learnt = learners.try_fold(first, |mut all, more| all.join(more).map(|()| all));
    Ok(learnt.map_err(|fault| RECORD_CURES.fault(&fault))?.finish(true))
}

/// Fields of the rows of tables, by their columns.
pub(super) fn table_fields<'a>(
    format: &RecordFormat,
    mut parts: impl Iterator<Item = &'a Part> + Clone,
) -> Result<DataFields, SourceFault> {
    let found = format.fields_of(parts.clone().filter_map(|part| part.columns.as_deref()));
    found.map_err(|reason| match parts.next() {
        Some(first) => first.fault(1, &reason.to_string()),
        None => SourceFault::new(reason.to_string(), None),
    })
}

/// Remedies for values of records that do not fit together.
pub const RECORD_CURES: Cures = Cures {
    differs: "make them alike, or set `types`, such as `{\"NAME\": \"float\"}`",
    inexact: "make them alike, or set `types`, such as `{\"NAME\": \"text\"}`, which keeps all digits",
    unknown: "`types` declares a field that no record has, such as `{\"NAME\": \"float\"}`",
};

/// Maximum size of objects that are kept in memory for a shuffled order, in bytes.
const HELD_BYTES: u64 = 32 << 20;

/// Maximum number of objects that are scanned at a time.
const MAX_SCANS: usize = 8;

/// The records of objects, found by a scan for their starts.
struct Records {
    format: Arc<RecordFormat>,
    parts: Vec<Places>,
    firsts: Starts,
    fields: DataFields,
    kept_bytes: u64,
}

struct Places {
    part: Arc<Part>,
    /// Start of each record in the object, and the end of the last record, in bytes.
    starts: Vec<u64>,
    /// Indexes of records that follow lines without a record, each with the number of such lines so far.
    skipped: Vec<(u64, u64)>,
    /// Checksums of the object's blocks.
    checksums: Vec<u64>,
}

impl Places {
    /// Reads the object. Adds the memory that is kept to `kept`.
    async fn scan(
        mut splitter: Splitter,
        kept: &AtomicU64,
        limits: Limits,
    ) -> Result<(Self, Learner), SourceFault> {
        let Limits { most_bytes, remedy, .. } = limits;
        let format = splitter.format.clone();
        let (mut starts, mut skipped) = (Vec::new(), Vec::new());
        let (mut last, mut counted, mut end) = (0, 0, None);
        let mut lessons = Lessons::default();
        loop {
            let block = match splitter.next_block().await {
                Ok(Some(block)) => block,
                Ok(None) => break,
                Err(fault) => {
                    format.damage.part(&splitter.part.object.key, None, fault)?;
                    end = Some(splitter.position);
                    break;
                }
            };
            if let Some(fault) = splitter.content.fault_without_places() {
                return Err(fault);
            }
            for Piece { number, start, .. } in &block {
                let index = starts.len() as u64;
                let before = number - 1 - index;
                if before > skipped.last().map_or(0, |(_, lines)| *lines) {
                    skipped.push((index, before));
                }
                starts.push(*start);
                last = *number;
            }
            if !format.has_columns() {
                lessons.add(format.clone(), splitter.part.clone(), block).await?;
            }
            let bytes = kept_bytes(&splitter.part, &starts, &skipped);
            let before = kept.fetch_add(bytes - counted, Ordering::Relaxed);
            if before + (bytes - counted) > most_bytes {
                let reason = format!(
                    "and those before it take more than the {most_bytes} bytes of memory that places of records may take, 8 for \
                     each; {remedy}{RAISE_BUFFER}"
                );
                let place = splitter.part.place(last);
                return Err(SourceFault::new(format!("{place} {reason}"), None));
            }
            counted = bytes;
        }
        let (part, checksums) = (splitter.part.clone(), std::mem::take(&mut splitter.checksums));
        starts.push(end.unwrap_or(part.object.size()));
        starts.shrink_to_fit();
        kept.fetch_add(kept_bytes(&part, &starts, &skipped) - counted, Ordering::Relaxed);
        Ok((Self { part, starts, skipped, checksums }, lessons.finish().await?))
    }

    fn count(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    fn number_of(&self, index: u64) -> u64 {
        let behind = self.skipped.partition_point(|(record, _)| *record <= index);
        let skipped = behind.checked_sub(1).map_or(0, |last| self.skipped[last].1);
        index + skipped + 1
    }

    /// Range from the start of a record to that of the next one: the line end and blank lines in between do not change a record.
    fn range_of(&self, index: u64) -> Range<u64> {
        let index = index as usize;
        self.starts[index]..self.starts[index + 1]
    }

    /// Reads neighbouring records, each with its origin and its index in the object.
    async fn read(&self, read: Read<(Origin, u64)>) -> Result<Vec<Raw>, SourceFault> {
        // Only one record alone is as long as this.
        if read.range.end - read.range.start > MAX_RECORD_BYTES as u64 {
            let (_, index) = read.into_parts().next().expect("each read has a part");
            let reason = "is followed by more than 64 MiB of blank lines";
            return Err(self.part.fault(self.number_of(index), reason));
        }
        let bytes = self.part.object.read(read.range.clone()).await?;
        let raw = |((origin, index), text)| {
            let text = self.part.charset.decoded(text);
            let piece = Piece { number: self.number_of(index), start: self.range_of(index).start, text };
            Raw { origin, part: self.part.clone(), piece }
        };
        Ok(read.split(bytes).map(raw).collect())
    }
}

impl Records {
    /// Size of the text of a record, with its line end.
    fn size_of(&self, number: u64) -> u64 {
        let (part, index) = self.firsts.find(number);
        let Range { start, end } = self.parts[part].range_of(index);
        end - start
    }

    fn checksums(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().flat_map(|part| part.checksums.iter().copied())
    }
}

impl Numbered for Records {
    fn count(&self) -> u64 {
        self.firsts.count()
    }

    fn digest(&self) -> Option<Hash> {
        Some(chain(self.checksums()))
    }

    fn digest_of(&self, blocks: u64) -> Option<Hash> {
        let blocks = usize::try_from(blocks).ok()?;
        (self.checksums().count() >= blocks).then(|| chain(self.checksums().take(blocks)))
    }

    fn fields(&self) -> Option<DataFields> {
        Some(self.fields.clone())
    }

    fn mean_bytes(&self) -> u64 {
        let bytes: u64 = self.parts.iter().map(|part| part.part.object.size()).sum();
        bytes / self.count().max(1)
    }

    fn read(self: Arc<Self>, epoch: u32, mut indexes: Vec<u64>, share: Share) -> ReadSamples {
        async move {
            let has_room = |(place, number): (usize, &u64)| share.take(place, self.size_of(*number));
            indexes.truncate(indexes.iter().enumerate().take_while(|record| has_room(*record)).count());
            let mut reads = Reads::new(ReadLimits::OF_RECORDS);
            for number in indexes {
                let (part, index) = self.firsts.find(number);
                let of = (Origin::at(epoch, number), index);
                reads.push(part, self.parts[part].range_of(index), of);
            }
            let reads = reads.reads.into_iter().map(|read| self.parts[read.shard].read(read));
            let records = try_join_all(reads).await?.into_iter().flatten().collect();
            match parse(self.format.clone(), None, records, share.clone()).await? {
                Done { chunk, fault: None, .. } => Ok(chunk),
                Done { chunk, fault: Some(fault), .. } => Err(ReadFault { before: chunk, fault }),
            }
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    fn objects(&self) -> Vec<Arc<str>> {
        self.parts.iter().map(|part| part.part.object.key.clone()).collect()
    }
}

/// Digest of blocks by their checksums.
pub(super) fn chain(checksums: impl Iterator<Item = u64>) -> Hash {
    checksums.fold(Hash::EMPTY, |hash, checksum| hash.with(&checksum.to_le_bytes()))
}

/// What the lines of an object teach about its fields. Several blocks are parsed at a time.
#[derive(Default)]
struct Lessons {
    learner: Learner,
    running: VecDeque<JoinHandle<Result<Learner, TypeFault>>>,
}

impl Lessons {
    async fn add(
        &mut self,
        format: Arc<RecordFormat>,
        part: Arc<Part>,
        block: Vec<Piece>,
    ) -> Result<(), SourceFault> {
        let most = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        if self.running.len() > most {
            self.join_next().await?;
        }
        self.running.push_back(spawn_blocking(move || {
            let mut learner = Learner::default();
            let mut lines = block.iter();
            lines.try_for_each(|line| learn_line(&mut learner, &format, &part, line)).map(|()| learner)
        }));
        Ok(())
    }

    async fn finish(mut self) -> Result<Learner, SourceFault> {
        while !self.running.is_empty() {
            self.join_next().await?;
        }
        Ok(self.learner)
    }

    async fn join_next(&mut self) -> Result<(), SourceFault> {
        let Some(running) = self.running.pop_front() else { return Ok(()) };
        let learnt = running.await.map_err(|error| interrupted(READING, error))?;
        learnt.and_then(|more| self.learner.join(more)).map_err(|fault| RECORD_CURES.fault(&fault))
    }
}

pub(super) fn learn_line(
    learner: &mut Learner,
    format: &RecordFormat,
    part: &Part,
    line: &Piece,
) -> Result<(), TypeFault> {
    kinds::learn(learner, &line.text, format.key_name(), &format.types, &|| part.place(line.number))
}

/// Memory that is kept for the records of an object, in bytes. Columns count for each table, also where several share them.
fn kept_bytes(part: &Part, starts: &[u64], skipped: &[(u64, u64)]) -> u64 {
    let columns = part.columns.as_ref().map_or(0, |columns| columns.bytes());
    PART_BYTES + part.object.held_bytes() + columns + (size_of_val(starts) + size_of_val(skipped)) as u64
}
