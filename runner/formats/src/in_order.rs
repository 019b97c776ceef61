//! Samples of shards without an index, in the order of the shards.

mod pass;
mod whole;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::chunk::Chunk;
use penstock_engine::item::Origin;
use penstock_engine::numbered::{differs, selected_otherwise};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::{FieldRules, Typing};
use penstock_storage::{AHEAD_BYTES, BoundedStore, RangedObject};
use penstock_types::data_set::DataFields;
use penstock_types::resume::{DataSet, Hash, StartPoint};
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};

use crate::access::Access;
use crate::damage::{Damage, cut_sample};
use crate::sequence::Sequence;
use crate::shards::{Shards, found, versions, with_version};
pub(crate) use pass::Pass;
pub(crate) use whole::{Made, OpenShard, WholeSample};

const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// The samples of a shard, in order.
pub trait InOrder<T>: Send + Sync {
    /// The next samples; `None` at the end of the shard. Unless `is_wanted`, the fields of the first one need not be read.
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Vec<T>>, SourceFault>>;

    /// Content of the shard, of which the samples before the next one are read.
    fn content(&mut self) -> &mut Sequence;

    /// Checksums of the blocks that were read since the last call, for samples that are read in blocks.
    fn take_checksums(&mut self) -> Vec<u64> {
        Vec::new()
    }
}

/// A sample as it is read, before its visit.
pub trait Unvisited: Send + Sync + Sized + 'static {
    type Format: Send + Sync;

    /// Set if a shard gives the samples of a block at a time. Then the data are known by the checksums of blocks, which are read again when
    /// a run continues, and all passes read the versions that the first one found. Else they are known by the versions of shards, which each
    /// pass compares.
    const IN_BLOCKS: bool;

    /// Starts to read a shard. At most this number of bytes is read ahead.
    fn open(
        format: &Self::Format,
        shard: RangedObject,
        ahead_bytes: u64,
        damage: Damage,
    ) -> Box<dyn InOrder<Self>>;

    fn bytes(&self) -> u64;

    fn set_origin(&mut self, origin: Origin);

    /// Key, and fields that the sample has, if the shard has ended behind it without its end mark: others may have been cut off.
    fn unmarked(&self) -> Option<(&str, &[Arc<str>])> {
        None
    }

    /// Learns the fields from the first samples, which are kept.
    fn learn<'a>(
        stream: &'a ShardStream<Self>,
        pass: &'a mut Pass<Self>,
    ) -> BoxFuture<'a, Result<DataFields, SourceFault>>;

    fn make(stream: &ShardStream<Self>, visits: Vec<Self>) -> BoxFuture<'_, Result<Done<Self>, SourceFault>>;
}

/// Samples that were made, up to the first fault.
pub struct Done<T> {
    pub(crate) chunk: Chunk,
    /// Those that are left for the next chunk.
    pub(crate) left: Vec<T>,
    pub(crate) fault: Option<SourceFault>,
}

/// Reads shards from their first to their last, once per epoch. Samples that other ranks visit are read, too. The order is that of the
/// shards: a shuffle needs an index.
pub struct ShardStream<T: Unvisited = WholeSample> {
    pub(crate) store: BoundedStore,
    shards: Shards,
    pub(crate) format: T::Format,
    pub(crate) settings: TraversalSettings,
    /// Maximum number of bytes that are read ahead of the current sample.
    pub(crate) ahead_bytes: u64,
    start: Option<Arc<StartPoint>>,
    typing: Typing,
    damage: Damage,
    /// Set if samples may have further fields, whose names determine their types.
    is_open: bool,
    /// Rules of the fields, once these are known.
    pub(crate) rules: Option<Arc<FieldRules>>,
    pass: Option<Pass<T>>,
    is_ended: bool,
    /// Bytes that are kept behind the last chunk.
    kept_bytes: u64,
}

impl<T: Unvisited> ShardStream<T> {
    pub(crate) fn of(
        access: Access,
        shards: Shards,
        typing: Typing,
        settings: TraversalSettings,
        format: T::Format,
    ) -> Self {
        let Access { store, damage, most_bytes } = access;
        Self {
            store,
            shards,
            format,
            settings,
            ahead_bytes: AHEAD_BYTES.min(most_bytes),
            start: None,
            typing,
            damage,
            is_open: false,
            rules: None,
            pass: None,
            is_ended: false,
            kept_bytes: 0,
        }
    }

    /// The same for samples that may have further fields than those that were learnt, whose names determine their types.
    pub(crate) fn opened(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// Continues where an earlier run has stopped. The samples before are read, but not returned.
    #[must_use]
    pub fn from(self, start: Option<Arc<StartPoint>>) -> Self {
        Self { start, ..self }
    }

    fn traversal(&self) -> Result<Traversal, SourceFault> {
        let traversal =
            Traversal::new(0, self.settings).map_err(|fault| SourceFault::new(fault.to_string(), None))?;
        if self.damage.skips() && self.settings.shard.is_some_and(|shard| shard.world.get() > 1) {
            let message = "`on_damage` is `skip`, and without an index ranks could find different samples at a position; make an index \
                           with `penstock index create`";
            return Err(SourceFault::new(message, None));
        }
        let Some(start) = &self.start else { return Ok(traversal) };
        let traversal = traversal.from(start);
        if traversal.is_scattered() {
            let message = "the positions that are left are not in the order of the shards: a source without an index resumes with the same \
                           number of ranks only; create an index with `penstock index create`";
            return Err(SourceFault::new(message, None));
        }
        Ok(traversal)
    }

    pub(crate) async fn pass(&self, traversal: Traversal) -> Result<Pass<T>, SourceFault> {
        Ok(Pass::new(traversal, self.shards.keys(&self.store).await?))
    }

    /// Compares the data with those of the earlier run.
    async fn compare(&self, start: &StartPoint, pass: &mut Pass<T>) -> Result<(), SourceFault> {
        let before = start.data();
        if !T::IN_BLOCKS {
            return self.compare_versions(before, &pass.shards).await;
        }
        if start.token.is_selected_by_older_rules()
            && let Some(rule) = self.damage.notes.rules().first()
        {
            return Err(selected_otherwise(rule));
        }
        let Some(digest) = before.digest else { return Ok(()) };
        let mut found = None;
        loop {
            let (blocks, digest) = pass.digested;
            if before.blocks == Some(blocks) {
                found = Some(digest);
            }
            if found.is_some() && before.count.is_none() || !self.read_on(pass, false).await? {
                break;
            }
            pass.kept.clear();
        }
        match before.count.filter(|before| *before != pass.read) {
            Some(before) => return Err(differs(&format!("has {} samples, and had {before}", pass.read))),
            None if found.unwrap_or(pass.digested.1) != digest => {
                return Err(differs("has other files, keys, sizes or bytes than it had"));
            }
            None => {}
        }
        pass.rewind();
        (pass.number, pass.digested) = (0, (0, Hash::EMPTY));
        Ok(())
    }

    /// Compares the shards with those that the earlier run had begun.
    async fn compare_versions(&self, before: DataSet, shards: &[Arc<str>]) -> Result<(), SourceFault> {
        let DataSet { digest: Some(before), blocks, .. } = before else { return Ok(()) };
        let begun = blocks.map_or(shards.len(), |begun| usize::try_from(begun).unwrap_or(usize::MAX));
        // Fewer shards than before cannot be the same.
        let shards = &shards[..begun.min(shards.len())];
        let mut digest = Hash::EMPTY;
        for (key, version) in shards.iter().zip(versions(&self.store, shards.to_vec()).await) {
            digest = with_version(digest, key, found(version)?.as_ref());
        }
        match digest == before {
            true => Ok(()),
            false => Err(differs("has other shards than it had, or other versions of them,")),
        }
    }

    async fn next_chunk(&mut self) -> Result<Option<Produced>, SourceFault> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                let mut pass = self.pass(self.traversal()?).await?;
                if let Some(start) = &self.start {
                    self.compare(start, &mut pass).await?;
                }
                pass
            }
        };
        if self.rules.is_none() {
            let learnt = match &self.typing.earlier {
                Some(earlier) => earlier.clone(),
                None => T::learn(self, &mut pass).await?,
            };
            let rules = self.typing.rules(learnt)?;
            self.leave_out_cut(&mut pass, &rules)?;
            self.rules = Some(rules);
        }
        let produced = self.chunk(&mut pass).await;
        self.pass = Some(pass);
        produced
    }

    /// Leaves out samples that were read before the fields were known, and of which files may be cut off.
    fn leave_out_cut(&self, pass: &mut Pass<T>, rules: &FieldRules) -> Result<(), SourceFault> {
        for (index, shard) in std::mem::take(&mut pass.unmarked).into_iter().rev() {
            let Some((_, sample)) = pass.kept.get(index as usize) else { continue };
            if self.is_cut(&pass.shards[shard], sample, rules)? {
                pass.kept.remove(index as usize);
                pass.kept.iter_mut().skip(index as usize).for_each(|(index, _)| *index -= 1);
                pass.read -= 1;
            }
        }
        pass.count();
        Ok(())
    }

    /// True for a sample at the end of a shard without its end mark that lacks a field. It is counted as damage.
    fn is_cut(&self, shard: &str, sample: &T, rules: &FieldRules) -> Result<bool, SourceFault> {
        let Some((key, fields)) = sample.unmarked() else { return Ok(false) };
        let Some(name) = rules.lacking(fields) else { return Ok(false) };
        let fault = cut_sample(shard, &self.store, key, name);
        self.damage.part(&format!("{shard}: {key}"), Some(1), fault)?;
        Ok(true)
    }

    async fn chunk(&self, pass: &mut Pass<T>) -> Result<Option<Produced>, SourceFault> {
        if let Some(fault) = pass.fault.take() {
            return Err(fault);
        }
        if pass.traversal.is_over() {
            return Ok(None);
        }
        let mut visits = std::mem::take(&mut pass.left);
        let filled = if visits.is_empty() { self.fill(pass, &mut visits).await } else { Ok(()) };
        // A block that ends the run is not noted: it may be mended before the run continues.
        if filled.is_ok() || !T::IN_BLOCKS {
            pass.data = pass.data(self.settings.limit);
        }
        if visits.is_empty() {
            filled?;
            return Ok(pass.traversal.next_visits(1).map(|_| {
                pass.rewind();
                Produced::EpochEnd
            }));
        }
        let Done { chunk, left, fault } = T::make(self, visits).await?;
        pass.left = left;
        match fault.or(filled.err()) {
            Some(fault) if chunk.is_empty() => return Err(fault),
            fault => pass.fault = fault,
        }
        Ok(Some(Produced::Samples(chunk)))
    }

    /// Adds the next samples of the epoch; none at its end.
    async fn fill(&self, pass: &mut Pass<T>, visits: &mut Vec<T>) -> Result<(), SourceFault> {
        let mut bytes = 0;
        while visits.len() < CHUNK && bytes < CHUNK_BYTES {
            if pass.next.is_empty()
                && !pass.traversal.is_epoch_visited()
                && let Some(NextVisits::Visits { epoch, indexes }) = pass.traversal.next_visits(CHUNK)
            {
                (pass.epoch, pass.next) = (epoch, indexes.into());
            }
            if let Some((index, mut sample)) = pass.take_next() {
                bytes += sample.bytes();
                sample.set_origin(Origin::at(pass.epoch, index));
                visits.push(sample);
                continue;
            }
            let is_over = pass.next.is_empty() && self.is_over(pass);
            // Complete samples are returned before the next block is read, which may fail or take long.
            if is_over || T::IN_BLOCKS && !visits.is_empty() {
                break;
            }
            if !pass.next.is_empty() && pass.is_read() {
                return Err(SourceFault::new("the shards have fewer samples than in an earlier epoch", None));
            }
            self.read(pass, false).await?;
        }
        Ok(())
    }

    /// True if no sample of the epoch is left to read.
    fn is_over(&self, pass: &Pass<T>) -> bool {
        pass.is_counted || self.settings.limit.is_some_and(|limit| pass.read >= limit)
    }
}

impl<T: Unvisited> Source for ShardStream<T> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        async {
            if self.is_ended {
                return Ok(None);
            }
            let next = self.next_chunk().await;
            if !matches!(next, Ok(Some(_))) {
                self.is_ended = true;
                self.pass.iter_mut().for_each(Pass::close);
            }
            self.kept_bytes = self.pass.as_mut().map_or(0, Pass::kept_bytes);
            next
        }
        .boxed()
    }

    fn total(&self) -> Option<u64> {
        // Samples in blocks are counted for the state alone.
        let counted = self.pass.as_ref().filter(|pass| pass.is_counted && !T::IN_BLOCKS);
        counted.and_then(|pass| pass.traversal.total())
    }

    fn data(&self) -> DataSet {
        self.pass.as_ref().map_or_else(DataSet::default, |pass| pass.data)
    }

    fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }
}
