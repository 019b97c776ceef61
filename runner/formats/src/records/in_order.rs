//! Records in the order of their objects.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::item::Origin;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::{FieldRules, Typing};
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::data_set::{DataFields, LEARN_BYTES, LEARN_SAMPLES, Learner};
use penstock_types::resume::{DataSet, Hash};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};

use super::ahead_bytes;
use super::format::RecordFormat;
use super::numbered::{RECORD_CURES, learn_line};
use super::part::{PART_BYTES, Part, Raw, parse};
use super::split::{Piece, Splitter};
use crate::shards::Shards;
use tokio::task::spawn_blocking;

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
    typing: Typing,
    /// Rules of the fields, once these are known.
    rules: Option<Arc<FieldRules>>,
    reading: Option<InOrder>,
    /// Data that were read, once the source has ended.
    data: DataSet,
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
    /// The objects that were opened, in the order of the keys, those that are missing as `None`; unused if there is one pass.
    opened: Vec<Option<RangedObject>>,
    is_once: bool,
    /// Number of objects that are read in this pass, or being read.
    begun: usize,
    current: Option<Splitter>,
    /// Number of blocks read in the first pass, and their digest.
    blocks: u64,
    digest: Hash,
    /// Set once the first pass is over.
    is_digested: bool,
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
        typing: Typing,
    ) -> Self {
        let (format, most_bytes) = (Arc::new(format), u64::MAX);
        Self {
            store,
            objects,
            format,
            settings,
            typing,
            rules: None,
            reading: None,
            data: DataSet::default(),
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
            blocks: 0,
            digest: Hash::EMPTY,
            is_digested: false,
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
        if self.rules.is_none() {
            let learnt = match &self.typing.earlier {
                Some(earlier) => earlier.clone(),
                None => reading.learn().await?,
            };
            self.rules = Some(self.typing.rules(learnt)?);
        }
        let chunk = reading.next_chunk().await?;
        self.data = reading.data();
        let records = match chunk {
            None => {
                self.is_ended = true;
                return Ok(None);
            }
            Some(RawChunk::EpochEnd) => return Ok(Some(Produced::EpochEnd)),
            Some(RawChunk::Records(records)) => records,
        };
        let (samples, fault) = parse(self.format.clone(), self.rules.clone(), records).await?;
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
        self.data
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

    /// Learns the fields: of a table from the headers of all, of lines from the first ones, which are kept.
    async fn learn(&mut self) -> Result<DataFields, SourceFault> {
        let format = self.records.format.clone();
        if format.has_columns() {
            return self.records.columns().await;
        }
        let (mut learner, mut bytes) = (Learner::default(), 0);
        let most = LEARN_SAMPLES.min(self.limit);
        let mut is_all = false;
        while learner.samples() < most && bytes < LEARN_BYTES && !is_all {
            let Some(block) = self.records.next_block().await? else {
                is_all = true;
                break;
            };
            let first = self.pending.len();
            self.pending.extend(block);
            let (read, lines) = (
                learner,
                self.pending
                    .range(first..)
                    .map(|(part, line)| (part.clone(), line.clone()))
                    .collect::<Vec<_>>(),
            );
            let of = format.clone();
            let learning = spawn_blocking(move || {
                let mut learner = read;
                let mut bytes = bytes;
                for (part, line) in lines {
                    if learner.samples() >= most || bytes >= LEARN_BYTES {
                        break;
                    }
                    bytes += line.text.len() as u64;
                    learn_line(&mut learner, &of, &part, &line)?;
                }
                Ok((learner, bytes))
            });
            let learnt = learning.await;
            let learnt = learnt
                .map_err(|error| SourceFault::new("reading records was interrupted", Some(error.into())))?;
            (learner, bytes) = learnt.map_err(|fault| RECORD_CURES.fault(&fault))?;
        }
        Ok(learner.finish(is_all))
    }

    /// Data that were read so far; all of them, once they are counted.
    fn data(&self) -> DataSet {
        let RecordStream { blocks, digest, .. } = &self.records;
        let blocks = if self.count.is_some() && self.limit == u64::MAX { None } else { Some(*blocks) };
        DataSet { count: self.count, digest: Some(*digest), blocks }
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
            self.records.format.damage.notes.check_some_left(self.seen)?;
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
        (self.records.begun, self.records.current, self.records.is_digested) = (0, None, true);
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
                        None => {
                            let opened = RangedObject::open(self.store.clone(), key.clone(), 0).await;
                            match opened {
                                Ok(object) => Some(object),
                                Err(error) => {
                                    self.format.damage.part(key, None, error.into())?;
                                    None
                                }
                            }
                        }
                    };
                    if !self.is_once && self.opened.len() == self.begun {
                        self.opened.push(object.clone());
                    }
                    self.begun += 1;
                    let Some(object) = object else { continue };
                    self.current.insert(Splitter::new(object, self.format.clone(), self.ahead_bytes))
                }
            };
            let read = splitter.checksums().len();
            let block = splitter.next_block().await;
            if !self.is_digested {
                let more = &splitter.checksums()[read..];
                self.blocks += more.len() as u64;
                self.digest = more.iter().fold(self.digest, |digest, sum| digest.with(&sum.to_le_bytes()));
            }
            match block {
                Ok(Some(pieces)) => {
                    let part = splitter.part().clone();
                    return Ok(Some(pieces.into_iter().map(|piece| (part.clone(), piece)).collect()));
                }
                Ok(None) => self.current = None,
                Err(fault) => {
                    self.format.damage.part(&splitter.part().object.key, None, fault)?;
                    self.current = None;
                }
            }
        }
    }

    /// Fields of the rows of all tables, by their headers.
    async fn columns(&self) -> Result<DataFields, SourceFault> {
        let headers = self.keys.clone().into_iter().map(|key| {
            let (store, format) = (self.store.clone(), self.format.clone());
            async move { header(store, key, format).await }
        });
        let parts: Vec<_> = stream::iter(headers).buffered(self.store.reads().get()).try_collect().await?;
        let parts: Vec<Arc<Part>> = parts.into_iter().flatten().collect();
        let found = self.format.fields_of(parts.iter().filter_map(|part| part.columns.as_deref()));
        found.map_err(|reason| match parts.first() {
            Some(first) => first.fault(1, &reason.to_string()),
            None => SourceFault::new(reason.to_string(), None),
        })
    }
}

/// The object `key` with the columns of its header; `None` if it is damaged and left out.
async fn header(
    store: BoundedStore,
    key: Arc<str>,
    format: Arc<RecordFormat>,
) -> Result<Option<Arc<Part>>, SourceFault> {
    let object = match RangedObject::open(store, key.clone(), 0).await {
        Ok(object) => object,
        Err(error) => return format.damage.part(&key, None, error.into()).map(|()| None),
    };
    // No block is read ahead.
    let mut splitter = Splitter::new(object, format.clone(), 0);
    while splitter.part().columns.is_none() {
        match splitter.next_block().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(fault) => return format.damage.part(&key, None, fault).map(|()| None),
        }
    }
    Ok(Some(splitter.part().clone()))
}
