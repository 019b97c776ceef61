//! The `records` source: a sample for every line of an NDJSON object.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::{Numbered, Open, ReadFault, ReadSamples};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};
use tokio::task::spawn_blocking;

use crate::blocks::{AHEAD_BYTES, RangedObject};
use crate::bounded::BoundedStore;
use crate::index::RAISE_BUFFER;
use crate::lines::{Lines, MAX_LINE_BYTES, ObjectLine};
use crate::record::sample_of;

/// Makes a sample from every line of an NDJSON object: the member `key` becomes the sample's key (if it is missing, the line
/// number), all other members become fields. Blank lines are skipped.
///
/// Texts and numbers become fields unchanged, booleans become the ints 0 and 1, arrays and objects become texts with their JSON;
/// a member that is null is omitted. A line that is not a JSON object, or is longer than [`MAX_LINE_BYTES`], is a fault that
/// states the line number; the samples of earlier lines are still made.
///
/// The object is streamed in blocks of 1 MiB, so its size does not matter. Up to 32 blocks are read ahead, which hides the latency of
/// a bucket. A shuffled order needs [`record_samples`].
pub struct RecordSource {
    store: BoundedStore,
    key: Arc<str>,
    settings: TraversalSettings,
    reading: Option<InOrder>,
    is_ended: bool,
    /// Fault that was found after samples that must be delivered first.
    fault: Option<SourceFault>,
    most_bytes: u64,
}

/// Samples of the lines of an NDJSON object, as [`RecordSource`] makes them, in any order. The object is scanned once for the starts of
/// its lines (8 bytes are kept per line), and then every line is read by a separate range request. An object of at most 32 MiB is kept
/// in memory instead. What is kept may have `most_bytes`.
pub fn record_samples(store: BoundedStore, key: impl Into<Arc<str>>, most_bytes: u64) -> Open {
    let key = key.into();
    async move {
        let object = RangedObject::open(store, key, HELD_BYTES.min(most_bytes / 2)).await?;
        let lines = Lines::new(object.clone(), ahead_bytes(most_bytes));
        let records: Arc<dyn Numbered> = Arc::new(Records::scan(object, lines, most_bytes).await?);
        Ok(records)
    }
    .boxed()
}

struct InOrder {
    object: RangedObject,
    ahead_bytes: u64,
    shard: Shard,
    limit: u64,
    settings: TraversalSettings,
    epoch: u32,
    lines: Lines,
    /// Lines that were read and are not parsed yet.
    pending: VecDeque<ObjectLine>,
    /// Number of records passed in this epoch, over all ranks.
    seen: u64,
    /// This rank's record of the current round of the shard: a sequence of one record per rank. `Uneven::Drop` discards an
    /// incomplete last round.
    held: Option<Raw>,
}

/// The records of an object, found by a scan for the starts of their lines.
struct Records {
    object: RangedObject,
    /// Start of each record in the object, and the end of the last record, in bytes.
    starts: Vec<u64>,
    /// Indexes of records that follow blank lines, each with the number of blank lines so far; needed to compute line numbers.
    blanks: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Raw {
    origin: Origin,
    number: u64,
    text: Bytes,
}

enum RawChunk {
    Records(Vec<Raw>),
    EpochEnd,
}

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// Maximum total size of the lines read at a time, in bytes; only the last line may exceed it.
const CHUNK_BYTES: u64 = 4 << 20;

/// Maximum size of an object that is kept in memory for a shuffled order, in bytes.
const HELD_BYTES: u64 = 32 << 20;

/// Bytes that may be read ahead, of the memory of a source.
fn ahead_bytes(most_bytes: u64) -> u64 {
    AHEAD_BYTES.min(most_bytes / 4)
}

impl RecordSource {
    /// Creates a source that reads the lines in order.
    pub fn new(store: BoundedStore, key: impl Into<Arc<str>>, settings: TraversalSettings) -> Self {
        let key = key.into();
        Self { store, key, settings, reading: None, is_ended: false, fault: None, most_bytes: u64::MAX }
    }

    /// Limits the blocks that are read ahead to a quarter of `bytes`, the source's part of the run's budget.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { most_bytes: bytes, ..self }
    }

    /// Counts the records of the object, by reading it once.
    pub async fn count(&self) -> Result<u64, SourceFault> {
        let object = RangedObject::open(self.store.clone(), self.key.clone(), 0).await?;
        let mut lines = Lines::new(object, ahead_bytes(self.most_bytes));
        let mut count = 0;
        while let Some(block) = lines.next_block().await? {
            count += block.len() as u64;
        }
        Ok(count)
    }

    async fn next_chunk(&mut self) -> Result<Option<Produced>, SourceFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if self.is_ended {
            return Ok(None);
        }
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => {
                if let Some(shard) = &self.settings.shard {
                    shard.check().map_err(|fault| SourceFault::new(fault.to_string(), None))?;
                }
                let object = RangedObject::open(self.store.clone(), self.key.clone(), 0).await?;
                none.insert(InOrder::new(object, self.settings, ahead_bytes(self.most_bytes)))
            }
        };
        let records = match reading.next_chunk().await? {
            None => {
                self.is_ended = true;
                return Ok(None);
            }
            Some(RawChunk::EpochEnd) => return Ok(Some(Produced::EpochEnd)),
            Some(RawChunk::Records(records)) => records,
        };
        let (samples, fault) = parse(reading.object.clone(), records).await?;
        if let Some(fault) = fault {
            if samples.is_empty() {
                return Err(fault);
            }
            self.fault = Some(fault);
        }
        Ok(Some(Produced::Samples(samples)))
    }
}

impl Source for RecordSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        async {
            let next = self.next_chunk().await;
            self.is_ended |= next.is_err();
            if self.is_ended {
                self.reading = None;
            }
            next
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.reading.as_ref().map_or(0, |reading| reading.lines.ahead_bytes())
    }
}

impl InOrder {
    fn new(object: RangedObject, settings: TraversalSettings, ahead_bytes: u64) -> Self {
        let alone = Shard { rank: 0, world: NonZeroU32::MIN, uneven: Uneven::Keep };
        Self {
            lines: Lines::new(object.clone(), ahead_bytes),
            object,
            ahead_bytes,
            shard: settings.shard.unwrap_or(alone),
            limit: settings.limit.unwrap_or(u64::MAX),
            settings,
            epoch: settings.first_epoch,
            pending: VecDeque::new(),
            seen: 0,
            held: None,
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<RawChunk>, SourceFault> {
        let mut records = Vec::new();
        let mut bytes = 0;
        while records.len() < CHUNK && bytes < CHUNK_BYTES && self.seen < self.limit {
            let Some(line) = self.pending.pop_front() else {
                // Complete records are returned before the next read, which may fail or take long.
                if !records.is_empty() {
                    break;
                }
                match self.lines.next_block().await? {
                    Some(lines) => self.pending = lines.into(),
                    None => break,
                }
                continue;
            };
            if let Some(record) = self.pass(line) {
                bytes += record.text.len() as u64;
                records.push(record);
            }
        }
        if !records.is_empty() {
            return Ok(Some(RawChunk::Records(records)));
        }
        Ok(self.start_next_epoch().then_some(RawChunk::EpochEnd))
    }

    /// Counts the record in `line`. Returns this rank's record of the current round: immediately with `Uneven::Keep`, otherwise
    /// once the round is complete.
    fn pass(&mut self, line: ObjectLine) -> Option<Raw> {
        let index = self.seen;
        self.seen += 1;
        let world = u64::from(self.shard.world.get());
        let place = index % world;
        if place == u64::from(self.shard.rank) {
            let origin = Origin { epoch: self.epoch, index, path: 0 };
            self.held = Some(Raw { origin, number: line.number, text: line.text });
        }
        match self.shard.uneven == Uneven::Keep || place + 1 == world {
            true => self.held.take(),
            false => None,
        }
    }

    /// Starts the next epoch, if there is one. An epoch without a record for this rank is the last one, as in [`Traversal`].
    fn start_next_epoch(&mut self) -> bool {
        let Some(next) = self.settings.after(self.epoch) else { return false };
        if self.shard.share_of(self.seen) == 0 {
            return false;
        }
        self.epoch = next;
        self.lines = Lines::new(self.object.clone(), self.ahead_bytes);
        self.pending.clear();
        self.seen = 0;
        self.held = None;
        true
    }
}

impl Records {
    async fn scan(object: RangedObject, mut lines: Lines, most_bytes: u64) -> Result<Self, SourceFault> {
        let mut starts = Vec::new();
        let mut blanks = Vec::new();
        let mut blank_so_far = 0;
        while let Some(block) = lines.next_block().await? {
            for line in block {
                let record = starts.len() as u64;
                let blank = line.number - 1 - record;
                if blank > blank_so_far {
                    blanks.push((record, blank));
                    blank_so_far = blank;
                }
                starts.push(line.start);
            }
            if kept_bytes(&object, &starts, &blanks) > most_bytes {
                let reason = format!(
                    "and those before it take more than the {most_bytes} bytes of memory that a shuffled reading may keep, 8 for \
                     each line; split the object up, read it without `shuffle`{RAISE_BUFFER}"
                );
                return Err(object.line_fault(starts.len() as u64 + blank_so_far, &reason));
            }
        }
        starts.push(object.size());
        starts.shrink_to_fit();
        Ok(Self { object, starts, blanks })
    }

    async fn record(&self, origin: Origin) -> Result<Raw, SourceFault> {
        let number = self.number_of(origin.index);
        // The range extends to the start of the next record: the line end and blank lines in between are white space in JSON.
        let (start, size) = (self.start_of(origin.index), self.size_of(origin.index));
        if size > MAX_LINE_BYTES as u64 {
            return Err(self.object.line_fault(number, "is followed by more than 64 MiB of blank lines"));
        }
        let text = self.object.read(start..start + size).await?;
        Ok(Raw { origin, number, text })
    }

    /// Start of record `index`; the end of the object for an index after the last record.
    fn start_of(&self, index: u64) -> u64 {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.starts.get(index).copied())
            .unwrap_or(self.object.size())
    }

    fn size_of(&self, index: u64) -> u64 {
        self.start_of(index + 1) - self.start_of(index)
    }

    fn number_of(&self, index: u64) -> u64 {
        let behind = self.blanks.partition_point(|(record, _)| *record <= index);
        let blank = behind.checked_sub(1).map_or(0, |last| self.blanks[last].1);
        index + blank + 1
    }
}

impl Numbered for Records {
    fn count(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    fn mean_bytes(&self) -> u64 {
        self.object.size() / self.count().max(1)
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>) -> ReadSamples {
        async move {
            let origins = indexes.into_iter().map(|index| Origin { epoch, index, path: 0 });
            let records = try_join_all(origins.map(|origin| self.record(origin))).await?;
            match parse(self.object.clone(), records).await? {
                (samples, None) => Ok(samples),
                (before, Some(fault)) => Err(ReadFault { before, fault }),
            }
        }
        .boxed()
    }

    fn kept_bytes(&self) -> u64 {
        kept_bytes(&self.object, &self.starts, &self.blanks)
    }
}

/// Memory that is kept for the records of an object, in bytes.
fn kept_bytes(object: &RangedObject, starts: &[u64], blanks: &[(u64, u64)]) -> u64 {
    object.held_bytes() + (size_of_val(starts) + size_of_val(blanks)) as u64
}

/// Parses records up to the first fault. Runs on a blocking thread, because a few MiB of JSON take milliseconds.
async fn parse(
    object: RangedObject,
    records: Vec<Raw>,
) -> Result<(Vec<Sample>, Option<SourceFault>), SourceFault> {
    let parsing = spawn_blocking(move || {
        let mut samples = Vec::with_capacity(records.len());
        for Raw { origin, number, text } in records {
            match sample_of(&text, number, origin) {
                Ok(sample) => samples.push(sample),
                Err(reason) => return (samples, Some(object.line_fault(number, &reason.to_string()))),
            }
        }
        (samples, None)
    });
    parsing.await.map_err(|error| SourceFault::new("reading records was interrupted", Some(error.into())))
}
