//! Records in the order of their objects.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::item::Origin;
use penstock_engine::ports::SourceFault;
use penstock_engine::share::Share;
use penstock_engine::typed::Typing;
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::data_set::{DataFields, LEARN_BYTES, LEARN_SAMPLES, Learner};
use penstock_types::traversal::{Traversal, TraversalSettings};

use super::ahead_bytes;
use super::format::RecordFormat;
use super::numbered::{RECORD_CURES, learn_line, table_fields};
use super::part::{Part, READING, Raw, parse};
use super::split::{LongRecords, Splitter};
use crate::access::Access;
use crate::damage::Damage;
use crate::in_order::{Done, InOrder, Pass, ShardStream, Unvisited};
use crate::reason::blocking;
use crate::sequence::Sequence;
use crate::shards::Shards;

/// Makes a sample from every record of one or several objects, in order. Blank lines are skipped. A record that is malformed, or
/// has more than 64 MiB, is a fault that states its line or row; the samples of earlier records are still made.
///
/// Objects are streamed in blocks of 1 MiB, so their sizes do not matter. Up to 32 blocks are read ahead, which hides the latency of
/// a bucket. Objects may be compressed with gzip or zstd. A shuffled order needs [`record_samples`], and objects that are not compressed.
///
/// [`record_samples`]: super::record_samples
pub type RecordSource = ShardStream<Raw>;

/// Format of records that are read in order, with the limits of long ones.
pub struct StreamedFormat {
    format: Arc<RecordFormat>,
    long: LongRecords,
}

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
        let access = Access { store, damage: format.damage.clone(), most_bytes: u64::MAX };
        let format = StreamedFormat { format: Arc::new(format), long: LongRecords::within(u64::MAX) };
        Self::of(access, objects, typing, settings, format).within(u64::MAX)
    }

    /// Limits the blocks that are read ahead to a quarter of `bytes`, the source's part of the run's budget.
    #[must_use]
    pub fn within(mut self, bytes: u64) -> Self {
        self.format.long = LongRecords::within(bytes);
        self.ahead_bytes = ahead_bytes(bytes);
        self
    }

    /// Counts the records of all objects, by reading them once.
    pub async fn count(&self) -> Result<u64, SourceFault> {
        let whole = Traversal::new(0, TraversalSettings::IN_ORDER).expect("no shard is out of range");
        let mut pass = self.pass(whole).await?;
        while self.read_on(&mut pass, false).await? {
            pass.kept.clear();
        }
        Ok(pass.read)
    }

    /// Fields of the rows of all tables, by their headers.
    async fn columns(&self, keys: &[Arc<str>]) -> Result<DataFields, SourceFault> {
        let headers = stream::iter(keys.to_vec()).map(|key| self.header(key));
        let parts: Vec<_> = headers.buffered(self.store.reads().get()).try_collect().await?;
        let parts: Vec<Arc<Part>> = parts.into_iter().flatten().collect();
        table_fields(&self.format.format, parts.iter().map(|part| &**part))
    }

    /// The object `key` with the columns of its header; `None` if it is damaged and left out.
    async fn header(&self, key: Arc<str>) -> Result<Option<Arc<Part>>, SourceFault> {
        let StreamedFormat { format, long } = &self.format;
        let object = match RangedObject::open(self.store.clone(), key.clone(), 0).await {
            Ok(object) => object,
            Err(error) => return format.damage.part(&key, None, error.into()).map(|()| None),
        };
        // No block is read ahead.
        let mut splitter = Splitter::new(object, format.clone(), 0, long.clone());
        while splitter.part.columns.is_none() {
            match splitter.next_block().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault) => return format.damage.part(&key, None, fault).map(|()| None),
            }
        }
        Ok(Some(splitter.part.clone()))
    }

    /// Fields of lines, by the first ones.
    async fn learn_lines(&self, pass: &mut Pass<Raw>) -> Result<DataFields, SourceFault> {
        let (mut learner, mut bytes) = (Learner::default(), 0);
        let most = self.settings.limit.map_or(LEARN_SAMPLES, |limit| limit.min(LEARN_SAMPLES));
        while learner.samples() < most && bytes < LEARN_BYTES {
            let first = pass.kept.len();
            if !self.read_on(pass, true).await? {
                return Ok(learner.finish(true));
            }
            let lines: Vec<Raw> = pass.kept.range(first..).map(|(_, line)| line.clone()).collect();
            let format = self.format.format.clone();
            let learnt = blocking(READING, move || {
                for Raw { part, piece, .. } in lines {
                    if learner.samples() >= most || bytes >= LEARN_BYTES {
                        break;
                    }
                    bytes += piece.text.len() as u64;
                    learn_line(&mut learner, &format, &part, &piece)?;
                }
                Ok((learner, bytes))
            });
            (learner, bytes) = learnt.await?.map_err(|fault| RECORD_CURES.fault(&fault))?;
        }
        Ok(learner.finish(false))
    }
}

impl Unvisited for Raw {
    type Format = StreamedFormat;

    const IN_BLOCKS: bool = true;

    fn open(
        StreamedFormat { format, long }: &StreamedFormat,
        object: RangedObject,
        ahead_bytes: u64,
        _: Damage,
    ) -> Box<dyn InOrder<Self>> {
        Box::new(Splitter::new(object, format.clone(), ahead_bytes, long.clone()))
    }

    fn bytes(&self) -> u64 {
        self.piece.text.len() as u64
    }

    fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    fn learn<'a>(
        source: &'a RecordSource,
        pass: &'a mut Pass<Self>,
    ) -> BoxFuture<'a, Result<DataFields, SourceFault>> {
        async {
            match source.format.format.has_columns() {
                true => source.columns(&pass.shards).await,
                false => source.learn_lines(pass).await,
            }
        }
        .boxed()
    }

    fn make(source: &RecordSource, records: Vec<Self>) -> BoxFuture<'_, Result<Done<Self>, SourceFault>> {
        let (format, rules) = (source.format.format.clone(), source.rules.clone());
        parse(format, rules, records, Share::alone(PARSED_BYTES)).boxed()
    }
}

impl InOrder<Raw> for Splitter {
    fn next(&mut self, _: bool) -> BoxFuture<'_, Result<Option<Vec<Raw>>, SourceFault>> {
        async {
            let Some(pieces) = self.next_block().await? else { return Ok(None) };
            let (origin, part) = (Origin::default(), &self.part);
            Ok(Some(pieces.into_iter().map(|piece| Raw { origin, part: part.clone(), piece }).collect()))
        }
        .boxed()
    }

    fn content(&mut self) -> &mut Sequence {
        &mut self.content
    }

    fn take_checksums(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.checksums)
    }
}
