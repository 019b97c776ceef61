//! Records in the order of their objects.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::Origin;
use penstock_engine::numbered::selected_otherwise;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::share::Share;
use penstock_engine::typed::{FieldRules, Typing};
use penstock_storage::BoundedStore;
use penstock_types::data_set::{DataFields, LEARN_BYTES, LEARN_SAMPLES, Learner};
use penstock_types::resume::{DataSet, StartPoint};
use penstock_types::traversal::{NextVisits, Shard, Traversal, TraversalSettings, Uneven};

use super::ahead_bytes;
use super::format::RecordFormat;
use super::numbered::{RECORD_CURES, learn_line};
use super::part::{Part, Raw, parse};
use super::split::{LongRecords, Piece};
use super::stream::RecordStream;
use crate::shards::Shards;
use tokio::task::spawn_blocking;

/// Makes a sample from every record of one or several objects, in order. Blank lines are skipped. A record that is malformed, or
/// has more than 64 MiB, is a fault that states its line or row; the samples of earlier records are still made.
///
/// Objects are streamed in blocks of 1 MiB, so their sizes do not matter. Up to 32 blocks are read ahead, which hides the latency of
/// a bucket. Objects may be compressed with gzip or zstd. A shuffled order needs [`record_samples`], and objects that are not compressed.
///
/// [`record_samples`]: super::record_samples
pub struct RecordSource {
    store: BoundedStore,
    objects: Shards,
    format: Arc<RecordFormat>,
    settings: TraversalSettings,
    typing: Typing,
    start: Option<Arc<StartPoint>>,
    /// Rules of the fields, once these are known.
    rules: Option<Arc<FieldRules>>,
    reading: Option<InOrder>,
    /// Data that were read, once the source has ended.
    data: DataSet,
    is_ended: bool,
    /// Records that were read and are parsed next.
    left: Vec<Raw>,
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
    /// Records that earlier runs have left, in a resumed run.
    rest: Option<Rest>,
}

/// Records that earlier runs have left to this rank.
struct Rest {
    start: Arc<StartPoint>,
    traversal: Traversal,
    /// Number of records that are known.
    known: u64,
    /// Records that were read and that this rank may visit, with their indexes.
    kept: VecDeque<(u64, Arc<Part>, Piece)>,
    /// The next visit: epoch and index.
    next: Option<(u32, u64)>,
    /// Set once all records of the epoch were read.
    is_read: bool,
}

enum RawChunk {
    Records(Vec<Raw>),
    EpochEnd,
}

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// Maximum total size of the records parsed at a time, in bytes; only the last record may exceed it.
const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum total size of what the samples of a chunk take beyond their texts, in bytes; one sample may exceed it.
const PARSED_BYTES: u64 = 4 << 20;

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
            start: None,
            rules: None,
            reading: None,
            data: DataSet::default(),
            is_ended: false,
            left: Vec::new(),
            fault: None,
            most_bytes,
        }
    }

    /// Limits the blocks that are read ahead to a quarter of `bytes`, the source's part of the run's budget.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { most_bytes: bytes, ..self }
    }

    /// Continues where an earlier run has stopped. The records before are read, but not parsed. Their bytes are compared with those of the
    /// earlier run first.
    #[must_use]
    pub fn from(self, start: Option<Arc<StartPoint>>) -> Self {
        Self { start, ..self }
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
        let is_once = self.settings.after(self.settings.first_epoch).is_none() && self.start.is_none();
        let keys = self.objects.keys(&self.store).await?;
        Ok(RecordStream::new(
            self.store.clone(),
            keys,
            self.format.clone(),
            ahead_bytes(self.most_bytes),
            LongRecords::within(self.most_bytes),
            is_once,
        ))
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
            let mut records = self.records().await?;
            let mut rest = None;
            if let Some(start) = &self.start {
                if start.is_selected_by_older_rules()
                    && let Some(rule) = self.format.damage.notes.rules().first()
                {
                    return Err(selected_otherwise(rule));
                }
                records.compare(start.data()).await?;
                let traversal = Traversal::new(0, self.settings)
                    .map_err(|fault| SourceFault::new(fault.to_string(), None))?
                    .from(start);
                let (known, kept, next, is_read) = (0, VecDeque::new(), None, false);
                rest = Some(Rest { start: start.clone(), traversal, known, kept, next, is_read });
            }
            self.reading = Some(InOrder { rest, ..InOrder::new(records, self.settings) });
        }
        let Some(reading) = &mut self.reading else { return Ok(None) };
        if self.rules.is_none() {
            let learnt = match &self.typing.earlier {
                Some(earlier) => earlier.clone(),
                None => reading.learn().await?,
            };
            self.rules = Some(self.typing.rules(learnt)?);
        }
        let chunk = match std::mem::take(&mut self.left) {
            left if left.is_empty() => reading.next_chunk().await?,
            left => Some(RawChunk::Records(left)),
        };
        self.data = reading.data();
        let records = match chunk {
            None => {
                self.is_ended = true;
                return Ok(None);
            }
            Some(RawChunk::EpochEnd) => return Ok(Some(Produced::EpochEnd)),
            Some(RawChunk::Records(records)) => records,
        };
        let (rules, share, left) = (self.rules.clone(), Share::alone(PARSED_BYTES), records.clone());
        let (samples, fault) = parse(self.format.clone(), rules, records, share).await?;
        match fault {
            None => self.left = left[samples.len()..].to_vec(),
            Some(fault) if samples.is_empty() => return Err(fault),
            Some(fault) => self.fault = Some(fault),
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
        self.reading.as_ref().map_or(0, |reading| reading.records.kept_bytes())
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
            rest: None,
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
        let (blocks, digest) = self.records.digested();
        let blocks = if self.count.is_some() && self.limit == u64::MAX { None } else { Some(blocks) };
        DataSet { count: self.count, digest: Some(digest), blocks }
    }

    async fn next_chunk(&mut self) -> Result<Option<RawChunk>, SourceFault> {
        if self.rest.is_some() {
            return self.next_chunk_of_rest().await;
        }
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

    /// The next chunk of what earlier runs have left.
    async fn next_chunk_of_rest(&mut self) -> Result<Option<RawChunk>, SourceFault> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while let Some(rest) = self.rest.as_mut().filter(|rest| !rest.traversal.is_over()) {
            if records.len() == CHUNK || bytes >= CHUNK_BYTES {
                break;
            }
            if rest.next.is_none()
                && !rest.traversal.is_epoch_visited()
                && let Some(NextVisits::Visits { epoch, indexes }) = rest.traversal.next_visits(1)
            {
                rest.next = Some((epoch, indexes[0]));
            }
            let next = rest.next;
            while next.is_some_and(|(_, next)| rest.kept.front().is_some_and(|(index, ..)| *index < next)) {
                rest.kept.pop_front();
            }
            match next.and_then(|next| Some((next, rest.kept.pop_front()?))) {
                Some(((epoch, index), (_, part, piece))) => {
                    rest.next = None;
                    bytes += piece.text.len() as u64;
                    records.push(Raw { origin: Origin::at(epoch, index), part, piece });
                }
                // Complete records are returned before the next read, and before the end of the epoch.
                None if !records.is_empty() => break,
                None if rest.is_read && next.is_some() => {
                    return Err(SourceFault::new(
                        "the objects have fewer records than in an earlier epoch",
                        None,
                    ));
                }
                None if rest.is_read => {
                    let is_followed = rest.traversal.next_visits(1).is_some();
                    (rest.is_read, self.seen) = (false, 0);
                    rest.kept.clear();
                    self.records.rewind();
                    return Ok(is_followed.then_some(RawChunk::EpochEnd));
                }
                None => self.read_rest().await?,
            }
        }
        Ok((!records.is_empty()).then_some(RawChunk::Records(records)))
    }

    /// Reads the next block, or notices the end of the epoch.
    async fn read_rest(&mut self) -> Result<(), SourceFault> {
        let Some(rest) = &mut self.rest else { return Ok(()) };
        if self.pending.is_empty() && self.seen < self.limit {
            match self.records.next_block().await? {
                Some(block) => self.pending = block.into(),
                None => {
                    self.records.format.damage.notes.check_some_left(self.seen)?;
                    rest.start.check_count(self.seen)?;
                    (rest.is_read, self.count) = (true, Some(self.seen));
                    return Ok(());
                }
            }
        }
        while self.seen < self.limit
            && let Some((part, piece)) = self.pending.pop_front()
        {
            if rest.traversal.may_visit(self.seen) {
                rest.kept.push_back((self.seen, part, piece));
            }
            self.seen += 1;
        }
        if self.seen >= self.limit {
            rest.is_read = true;
            self.pending.clear();
        }
        if self.seen > rest.known {
            rest.known = self.seen;
            rest.traversal.grow(rest.known);
        }
        Ok(())
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
    fn start_next_epoch(&mut self) -> bool {
        let Some(next) = self.settings.after(self.epoch) else { return false };
        if self.shard.share_of(self.seen) == 0 {
            return false;
        }
        self.epoch = next;
        self.records.rewind();
        self.pending.clear();
        self.seen = 0;
        self.held = None;
        true
    }
}
