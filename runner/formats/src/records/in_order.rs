//! Records in the order of their objects.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::Origin;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::resume::DataSet;
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};

use super::ahead_bytes;
use super::format::RecordFormat;
use super::part::{PART_BYTES, Part, Raw, parse};
use super::split::{Piece, Splitter};
use crate::shards::Shards;

/// Makes a sample from every record of one or several objects, in order. Blank lines are skipped. A record that is malformed, or
/// has more than 64 MiB, is a fault that states its line or row; the samples of earlier records are still made.
///
/// Objects are streamed in blocks of 1 MiB, so their sizes do not matter. Up to 32 blocks are read ahead, which hides the latency of
/// a bucket. A shuffled order needs [`record_samples`].
///
/// [`record_samples`]: super::record_samples
pub struct RecordSource {
    store: BoundedStore,
    objects: Shards,
    format: Arc<RecordFormat>,
    settings: TraversalSettings,
    reading: Option<InOrder>,
    /// Number of records in one pass, once all are read.
    count: Option<u64>,
    is_ended: bool,
    /// Fault that was found after samples that must be delivered first.
    fault: Option<SourceFault>,
    most_bytes: u64,
}

struct InOrder {
    records: RecordStream,
    shard: Shard,
    limit: u64,
    settings: TraversalSettings,
    epoch: u32,
    /// Records that were read and are not parsed yet.
    pending: VecDeque<(Arc<Part>, Piece)>,
    /// Number of records passed in this epoch, over all ranks.
    seen: u64,
    /// Number of records in one pass, once all are read.
    count: Option<u64>,
    /// This rank's record of the current round of the shard: a sequence of one record per rank. `Uneven::Drop` discards an
    /// incomplete last round.
    held: Option<Raw>,
}

/// Passes over the records of objects. All passes read the versions that the first one found.
struct RecordStream {
    store: BoundedStore,
    format: Arc<RecordFormat>,
    ahead_bytes: u64,
    keys: Vec<Arc<str>>,
    /// The objects that were opened, in the order of the keys; unused if there is one pass.
    opened: Vec<RangedObject>,
    is_once: bool,
    /// Number of objects that are read in this pass, or being read.
    begun: usize,
    current: Option<Splitter>,
}

enum RawChunk {
    Records(Vec<Raw>),
    EpochEnd,
}

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// Maximum total size of the records parsed at a time, in bytes; only the last record may exceed it.
const CHUNK_BYTES: u64 = 1 << 20;

impl RecordSource {
    /// Creates a source that reads the records in order.
    pub fn new(
        store: BoundedStore,
        objects: Shards,
        format: RecordFormat,
        settings: TraversalSettings,
    ) -> Self {
        let (format, most_bytes) = (Arc::new(format), u64::MAX);
        Self {
            store,
            objects,
            format,
            settings,
            reading: None,
            count: None,
            is_ended: false,
            fault: None,
            most_bytes,
        }
    }

    /// Limits the blocks that are read ahead to a quarter of `bytes`, the source's part of the run's budget.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { most_bytes: bytes, ..self }
    }

    /// Counts the records of all objects, by reading them once.
    pub async fn count(&self) -> Result<u64, SourceFault> {
        let mut records = self.records().await?;
        let mut count = 0;
        while let Some(block) = records.next_block().await? {
            count += block.len() as u64;
        }
        Ok(count)
    }

    async fn records(&self) -> Result<RecordStream, SourceFault> {
        Ok(RecordStream {
            keys: self.objects.keys(&self.store).await?,
            store: self.store.clone(),
            format: self.format.clone(),
            ahead_bytes: ahead_bytes(self.most_bytes),
            opened: Vec::new(),
            is_once: self.settings.after(self.settings.first_epoch).is_none(),
            begun: 0,
            current: None,
        })
    }

    async fn next_chunk(&mut self) -> Result<Option<Produced>, SourceFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if self.is_ended {
            return Ok(None);
        }
        if self.reading.is_none() {
            if let Some(shard) = &self.settings.shard {
                shard.check().map_err(|fault| SourceFault::new(fault.to_string(), None))?;
            }
            self.reading = Some(InOrder::new(self.records().await?, self.settings));
        }
        let Some(reading) = &mut self.reading else { return Ok(None) };
        let chunk = reading.next_chunk().await?;
        self.count = reading.count;
        let records = match chunk {
            None => {
                self.is_ended = true;
                return Ok(None);
            }
            Some(RawChunk::EpochEnd) => return Ok(Some(Produced::EpochEnd)),
            Some(RawChunk::Records(records)) => records,
        };
        let (samples, fault) = parse(self.format.clone(), records).await?;
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

    fn data(&self) -> DataSet {
        DataSet { count: self.count, digest: None }
    }

    fn kept_bytes(&self) -> u64 {
        self.reading.as_ref().map_or(0, |InOrder { records, .. }| {
            let ahead = records.current.as_ref().map_or(0, Splitter::ahead_bytes);
            ahead + records.opened.len() as u64 * PART_BYTES
        })
    }
}

impl InOrder {
    fn new(records: RecordStream, settings: TraversalSettings) -> Self {
        let alone = Shard { rank: 0, world: NonZeroU32::MIN, uneven: Uneven::Keep };
        Self {
            records,
            shard: settings.shard.unwrap_or(alone),
            limit: settings.limit.unwrap_or(u64::MAX),
            settings,
            epoch: settings.first_epoch,
            pending: VecDeque::new(),
            seen: 0,
            count: None,
            held: None,
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<RawChunk>, SourceFault> {
        let mut records = Vec::new();
        let mut bytes = 0;
        while records.len() < CHUNK && bytes < CHUNK_BYTES && self.seen < self.limit {
            let Some((part, piece)) = self.pending.pop_front() else {
                // Complete records are returned before the next read, which may fail or take long.
                if !records.is_empty() {
                    break;
                }
                match self.records.next_block().await? {
                    Some(block) => self.pending = block.into(),
                    None => break,
                }
                continue;
            };
            if let Some(record) = self.pass(part, piece) {
                bytes += record.piece.text.len() as u64;
                records.push(record);
            }
        }
        if !records.is_empty() {
            return Ok(Some(RawChunk::Records(records)));
        }
        if self.seen < self.limit {
            self.count = Some(self.seen);
        }
        Ok(self.start_next_epoch().then_some(RawChunk::EpochEnd))
    }

    /// Counts a record. Returns this rank's record of the current round: immediately with `Uneven::Keep`, otherwise once the round is
    /// complete.
    fn pass(&mut self, part: Arc<Part>, piece: Piece) -> Option<Raw> {
        let index = self.seen;
        self.seen += 1;
        let world = u64::from(self.shard.world.get());
        let place = index % world;
        if place == u64::from(self.shard.rank) {
            let origin = Origin::at(self.epoch, index);
            self.held = Some(Raw { origin, part, piece });
        }
        match self.shard.uneven == Uneven::Keep || place + 1 == world {
            true => self.held.take(),
            false => None,
        }
    }

    /// Starts the next epoch, if there is one. An epoch without a record for this rank is the last one, as in [`Traversal`].
    ///
    /// [`Traversal`]: penstock_types::traversal::Traversal
    fn start_next_epoch(&mut self) -> bool {
        let Some(next) = self.settings.after(self.epoch) else { return false };
        if self.shard.share_of(self.seen) == 0 {
            return false;
        }
        self.epoch = next;
        (self.records.begun, self.records.current) = (0, None);
        self.pending.clear();
        self.seen = 0;
        self.held = None;
        true
    }
}

impl RecordStream {
    /// Returns the records that end in the next block; `None` after the last object.
    async fn next_block(&mut self) -> Result<Option<Vec<(Arc<Part>, Piece)>>, SourceFault> {
        loop {
            let splitter = match &mut self.current {
                Some(splitter) => splitter,
                None => {
                    let Some(key) = self.keys.get(self.begun) else { return Ok(None) };
                    let object = match self.opened.get(self.begun) {
                        Some(object) => object.clone(),
                        None => RangedObject::open(self.store.clone(), key.clone(), 0).await?,
                    };
                    if !self.is_once && self.opened.len() == self.begun {
                        self.opened.push(object.clone());
                    }
                    self.begun += 1;
                    self.current.insert(Splitter::new(object, self.format.clone(), self.ahead_bytes))
                }
            };
            match splitter.next_block().await? {
                Some(pieces) => {
                    let part = splitter.part().clone();
                    return Ok(Some(pieces.into_iter().map(|piece| (part.clone(), piece)).collect()));
                }
                None => self.current = None,
            }
        }
    }
}
