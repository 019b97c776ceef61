//! Samples of shards without an index, in the order of the shards.

mod pass;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::chunk::{Chunk, Outcome};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::{differs, selected_otherwise};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::{FieldRules, Typing, learn, typed};
use penstock_storage::{BoundedStore, RangedObject, shown};
use penstock_types::data_set::{DataFields, LEARN_BYTES, LEARN_SAMPLES, Learner};
use penstock_types::resume::{DataSet, Hash, StartPoint};
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};

use crate::damage::{Damage, cut_sample};
use crate::shards::{Shards, found, versions, with_version};
pub(crate) use pass::Pass;

/// Size of a chunk in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// The samples of a shard, in order.
pub trait InOrder<T>: Send + Sync {
    /// The next samples; `None` at the end of the shard. Unless `is_wanted`, the fields of the first one need not be read.
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Vec<T>>, SourceFault>>;

    /// Begins to read, before the first sample is asked for.
    fn begin(&mut self);

    /// Bytes that are read ahead.
    fn ahead_bytes(&self) -> u64;

    /// Bytes of the shard that are left.
    fn left_bytes(&self) -> u64;

    /// Checksums of the blocks that were read since the last call, for samples that are read in blocks.
    fn take_checksums(&mut self) -> Vec<u64> {
        Vec::new()
    }
}

/// A sample as it is read, before its visit.
pub trait Unvisited: Send + Sync + Sized + 'static {
    /// Settings of the format of the shards.
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

    /// Makes the samples that are visited.
    fn make(stream: &ShardStream<Self>, visits: Vec<Self>) -> BoxFuture<'_, Result<Done<Self>, SourceFault>>;
}

/// Samples that were made, up to the first fault.
pub struct Done<T> {
    pub(crate) chunk: Chunk,
    /// Those that are left for the next chunk.
    pub(crate) left: Vec<T>,
    pub(crate) fault: Option<SourceFault>,
}

/// A sample, with its outcome if it is damaged.
pub(crate) type Made = (Sample, Option<Outcome>);

/// A sample that is whole once it is read.
pub struct WholeSample {
    pub(crate) made: Made,
    /// See [`Unvisited::unmarked`].
    pub(crate) unmarked_fields: Option<Vec<Arc<str>>>,
}

/// Starts to read a shard whose samples are whole once they are read.
pub(crate) type OpenShard =
    Box<dyn Fn(RangedObject, u64, Damage) -> Box<dyn InOrder<WholeSample>> + Send + Sync>;

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
}

impl<T: Unvisited> ShardStream<T> {
    pub(crate) fn of(
        store: BoundedStore,
        shards: Shards,
        format: T::Format,
        settings: TraversalSettings,
        ahead_bytes: u64,
    ) -> Self {
        let (typing, damage) = (Typing::default(), Damage::default());
        Self {
            store,
            shards,
            format,
            settings,
            ahead_bytes,
            start: None,
            typing,
            damage,
            is_open: false,
            rules: None,
            pass: None,
            is_ended: false,
        }
    }

    /// The same for samples that may have further fields than those that were learnt, whose names determine their types.
    pub(crate) fn opened(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// The same with these types and this handling of damage.
    #[must_use]
    pub fn with(self, typing: Typing, damage: Damage) -> Self {
        Self { typing, damage, ..self }
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
        if start.is_selected_by_older_rules()
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

    fn open(&self, object: RangedObject, pass: u64) -> Box<dyn InOrder<T>> {
        // What is left out is counted in the first pass.
        let notes = if pass == 0 { self.damage.notes.clone() } else { Notes::default() };
        T::open(&self.format, object, self.ahead_bytes, Damage { notes, ..self.damage })
    }

    /// Reads the next samples, or notices the end of the shards.
    async fn read(&self, pass: &mut Pass<T>, keeps_all: bool) -> Result<(), SourceFault> {
        if let Some(fault) = pass.read_fault.take() {
            return Err(fault);
        }
        if !self.read_on(pass, keeps_all).await? {
            self.damage.notes.check_some_left(pass.read)?;
            if let Some(start) = &self.start {
                start.check_count(pass.read)?;
            }
            pass.is_counted = true;
        }
        if self.rules.is_some() {
            pass.count();
        }
        Ok(())
    }

    /// Reads the next samples; returns false at the end of the shards. Those that may be visited are kept, or all if `keeps_all`.
    pub(crate) async fn read_on(&self, pass: &mut Pass<T>, keeps_all: bool) -> Result<bool, SourceFault> {
        let number = pass.number;
        let found = loop {
            let Some(samples) = &mut pass.current else {
                if !self.open_next(pass).await? {
                    return Ok(false);
                }
                continue;
            };
            if samples.left_bytes() <= self.ahead_bytes / 2 {
                pass.following.begin(|object| self.open(object, number));
            }
            let found = samples.next(keeps_all || pass.traversal.may_visit(pass.read)).await;
            if number == 0 {
                for checksum in samples.take_checksums() {
                    let (blocks, digest) = pass.digested;
                    pass.digested = (blocks + 1, digest.with(&checksum.to_le_bytes()));
                }
            }
            match found {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(fault) => self.damage.part(&pass.shards[pass.begun - 1], None, fault)?,
            }
            pass.current = None;
        };
        for sample in found {
            let (index, shard) = (pass.read, pass.begun - 1);
            if sample.unmarked().is_some() {
                match &self.rules {
                    Some(rules) if self.is_cut(&pass.shards[shard], &sample, rules)? => continue,
                    Some(_) => {}
                    None => pass.unmarked.push((index, shard)),
                }
            }
            pass.read += 1;
            if keeps_all || pass.traversal.may_visit(index) {
                pass.kept.push_back((index, sample));
            }
        }
        Ok(true)
    }

    /// Opens the next shard that can be read; returns false after the last one.
    async fn open_next(&self, pass: &mut Pass<T>) -> Result<bool, SourceFault> {
        let number = pass.number;
        if pass.begun == 0 {
            pass.open_following(&self.store);
        }
        while let Some(opened) = pass.following.take(|object| self.open(object, number)).await {
            let key = pass.shards[pass.begun].clone();
            if !T::IN_BLOCKS {
                self.note_version(pass, &key, opened.as_ref().ok().map(|(object, _)| object))?;
            }
            pass.begun += 1;
            pass.open_following(&self.store);
            match opened {
                Ok((object, samples)) => {
                    if T::IN_BLOCKS && !self.is_once() && pass.objects.len() < pass.begun {
                        pass.objects.push(object);
                    }
                    pass.current = Some(samples);
                    return Ok(true);
                }
                Err(fault) => {
                    self.damage.part(&key, None, fault)?;
                    if T::IN_BLOCKS {
                        // It stays left out in the passes that follow.
                        pass.begun -= 1;
                        pass.shards.remove(pass.begun);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Notes the version of a shard in the first pass, `None` for a missing one, and compares it in those that follow.
    fn note_version(
        &self,
        pass: &mut Pass<T>,
        key: &str,
        object: Option<&RangedObject>,
    ) -> Result<(), SourceFault> {
        let version = object.map(RangedObject::version);
        let found = with_version(Hash::EMPTY, key, version);
        if pass.number == 0 {
            let (begun, digest) = pass.digested;
            pass.digested = (begun + 1, with_version(digest, key, version));
            pass.versions.push(found);
        } else if pass.versions.get(pass.begun) != Some(&found) {
            let (key, store) = (shown(key), self.store.name());
            let reason = format!(
                "the shard {key} in store `{store}` has changed since the pass before: no shard may change within a run"
            );
            return Err(SourceFault::new(reason, None));
        }
        Ok(())
    }

    /// True if the shards are read once.
    fn is_once(&self) -> bool {
        self.settings.after(self.settings.first_epoch).is_none() && self.start.is_none()
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
        self.pass.as_ref().map_or(0, Pass::kept_bytes)
    }
}

impl Unvisited for WholeSample {
    type Format = OpenShard;

    const IN_BLOCKS: bool = false;

    fn open(
        open: &OpenShard,
        shard: RangedObject,
        ahead_bytes: u64,
        damage: Damage,
    ) -> Box<dyn InOrder<Self>> {
        open(shard, ahead_bytes, damage)
    }

    fn bytes(&self) -> u64 {
        self.made.0.memory_bytes()
    }

    fn set_origin(&mut self, origin: Origin) {
        self.made.0.origin = origin;
    }

    fn unmarked(&self) -> Option<(&str, &[Arc<str>])> {
        self.unmarked_fields.as_deref().map(|fields| (&*self.made.0.key, fields))
    }

    fn learn<'a>(
        stream: &'a ShardStream<Self>,
        pass: &'a mut Pass<Self>,
    ) -> BoxFuture<'a, Result<DataFields, SourceFault>> {
        async move {
            let (mut learner, mut bytes) = (Learner::default(), 0);
            let mut see = |sample: &Sample| {
                learn(&mut learner, sample).map_err(|fault| stream.typing.cures.fault(&fault))
            };
            let most = stream.settings.limit.map_or(LEARN_SAMPLES, |limit| limit.min(LEARN_SAMPLES));
            while pass.read < most && bytes < LEARN_BYTES && !pass.is_counted {
                let before = pass.read;
                if let Err(fault) = stream.read(pass, true).await {
                    if pass.kept.is_empty() {
                        return Err(fault);
                    }
                    // It is told behind the samples before it.
                    pass.read_fault = Some(fault);
                    break;
                }
                if let Some((_, Self { made: (sample, None), unmarked_fields })) = pass.kept.back()
                    && pass.read > before
                {
                    bytes += sample.bytes();
                    if unmarked_fields.is_none() {
                        see(sample)?;
                    }
                }
            }
            // What may be cut teaches only if all may be.
            if pass.unmarked.len() == pass.kept.len() {
                for (_, Self { made: (sample, outcome), .. }) in &pass.kept {
                    if outcome.is_none() {
                        see(sample)?;
                    }
                }
            }
            let fields = learner.finish(pass.is_counted && !stream.is_open);
            Ok(DataFields { is_open: stream.is_open, ..fields })
        }
        .boxed()
    }

    fn make(stream: &ShardStream<Self>, visits: Vec<Self>) -> BoxFuture<'_, Result<Done<Self>, SourceFault>> {
        let chunk = visits.into_iter().map(|sample| sample.made).collect();
        let (chunk, fault) = match &stream.rules {
            Some(rules) => typed(rules, chunk),
            None => (chunk, None),
        };
        std::future::ready(Ok(Done { chunk, left: Vec::new(), fault })).boxed()
    }
}
