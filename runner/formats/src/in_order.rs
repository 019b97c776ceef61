//! Samples of shards without an index, in the order of the shards.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::chunk::{Chunk, Outcome};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::differs;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::{FieldRules, Typing, learn};
use penstock_storage::{BoundedStore, RangedObject, StoreError, Version, shown};
use penstock_types::data_set::{DataFields, LEARN_BYTES, LEARN_SAMPLES, Learner};
use penstock_types::resume::{DataSet, Hash, StartPoint};
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};
use tokio::task::{JoinError, JoinSet};

use crate::damage::{Damage, cut_sample};
use crate::shards::{Shards, found, versions, with_version};

/// Size of a chunk in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// The samples of a shard, in order.
pub(crate) trait InOrder: Send + Sync {
    /// The next sample, with its outcome if it is damaged; `None` at the end of the shard. Unless `is_wanted`, its fields need not be read.
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Made>, SourceFault>>;

    /// Begins to read, before the first sample is asked for.
    fn begin(&mut self);

    /// Bytes that are read ahead.
    fn ahead_bytes(&self) -> u64;

    /// Bytes of the shard that are left.
    fn left_bytes(&self) -> u64;

    /// Fields of the sample that was returned last, if the shard has ended behind it without its end mark: others may have been cut off.
    fn unmarked_fields(&self) -> Option<Vec<Arc<str>>> {
        None
    }
}

/// A sample, with its outcome if it is damaged.
pub(crate) type Made = (Sample, Option<Outcome>);

/// Starts to read a shard. At most this number of bytes is read ahead.
pub(crate) type OpenShard = Box<dyn Fn(RangedObject, u64, Damage) -> Box<dyn InOrder> + Send + Sync>;

/// Reads shards from their first to their last, once per epoch. Samples that other ranks visit are read, too. The order is that of the
/// shards: a shuffle needs an index.
pub struct ShardStream {
    store: BoundedStore,
    shards: Shards,
    open: OpenShard,
    settings: TraversalSettings,
    /// Maximum number of bytes that are read ahead of the current sample.
    ahead_bytes: u64,
    start: Option<Arc<StartPoint>>,
    typing: Typing,
    damage: Damage,
    /// Set if samples may have further fields, whose names determine their types.
    is_open: bool,
    /// Rules of the fields, once these are known.
    rules: Option<Arc<FieldRules>>,
    pass: Option<Pass>,
}

/// The shard after the current one. It is opened at once, and begun while the rest of the current one is on its way: the latency of a
/// bucket does not pass at each shard.
#[derive(Default)]
struct Following {
    /// A set of one task, if there is a shard: dropping the set cancels the opening.
    opening: JoinSet<Result<RangedObject, StoreError>>,
    begun: Option<Result<Begun, SourceFault>>,
}

/// A shard of which the reading has begun.
type Begun = (Version, Box<dyn InOrder>);

/// A pass over the shards.
struct Pass {
    traversal: Traversal,
    shards: Vec<Arc<str>>,
    /// Number of shards that are read or being read.
    begun: usize,
    current: Option<Box<dyn InOrder>>,
    following: Following,
    /// Number of samples that were read in this epoch.
    read: u64,
    /// Samples that were read and that this rank may visit, with their indexes.
    kept: VecDeque<(u64, Made)>,
    /// The next visit: epoch and index.
    next: Option<(u32, u64)>,
    /// Number of samples that are known, and whether these are all.
    known: u64,
    is_counted: bool,
    /// Reason why no sample follows those that were returned.
    fault: Option<SourceFault>,
    /// Reason why no sample follows those that were read.
    read_fault: Option<SourceFault>,
    /// Number of the pass, from 0.
    number: u64,
    /// Samples at the ends of shards without an end mark that were read before the fields are known.
    unmarked: Vec<Unmarked>,
    /// Number of shards that were begun in the first pass, and digest of their versions.
    digested: (u64, Hash),
    /// Versions of the shards in the first pass.
    versions: Vec<Hash>,
}

/// A sample at the end of a shard without its end mark.
struct Unmarked {
    index: u64,
    /// Number of its shard.
    shard: usize,
    fields: Vec<Arc<str>>,
}

impl ShardStream {
    pub(crate) fn new(
        store: BoundedStore,
        shards: Shards,
        settings: TraversalSettings,
        ahead_bytes: u64,
        open: OpenShard,
    ) -> Self {
        let (typing, damage) = (Typing::default(), Damage::default());
        Self {
            store,
            shards,
            open,
            settings,
            ahead_bytes,
            start: None,
            typing,
            damage,
            is_open: false,
            rules: None,
            pass: None,
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

    /// Compares the shards with those that the earlier run had begun.
    async fn check_versions(&self, shards: &[Arc<str>]) -> Result<(), SourceFault> {
        let Some(DataSet { digest: Some(before), blocks, .. }) =
            self.start.as_ref().map(|start| start.data())
        else {
            return Ok(());
        };
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
                let traversal = self.traversal()?;
                let shards = self.shards.keys(&self.store).await?;
                self.check_versions(&shards).await?;
                Pass {
                    traversal,
                    shards,
                    begun: 0,
                    current: None,
                    following: Following::default(),
                    read: 0,
                    kept: VecDeque::new(),
                    next: None,
                    known: 0,
                    is_counted: false,
                    fault: None,
                    read_fault: None,
                    number: 0,
                    unmarked: Vec::new(),
                    digested: (0, Hash::EMPTY),
                    versions: Vec::new(),
                }
            }
        };
        if self.rules.is_none() {
            let learnt = match &self.typing.earlier {
                Some(earlier) => earlier.clone(),
                None => self.learn(&mut pass).await?,
            };
            let rules = self.typing.rules(learnt)?;
            self.leave_out_cut(&mut pass, &rules)?;
            self.rules = Some(rules);
        }
        let produced = self.chunk(&mut pass).await;
        self.pass = Some(pass);
        produced
    }

    /// Learns the fields from the first samples, which are kept.
    async fn learn(&self, pass: &mut Pass) -> Result<DataFields, SourceFault> {
        let (mut learner, mut bytes) = (Learner::default(), 0);
        let mut see =
            |sample: &Sample| learn(&mut learner, sample).map_err(|fault| self.typing.cures.fault(&fault));
        let most = self.settings.limit.map_or(LEARN_SAMPLES, |limit| limit.min(LEARN_SAMPLES));
        while pass.read < most && bytes < LEARN_BYTES && !pass.is_counted {
            let before = pass.read;
            if let Err(fault) = self.read(pass, true).await {
                if pass.kept.is_empty() {
                    return Err(fault);
                }
                // It is told behind the samples before it.
                pass.read_fault = Some(fault);
                break;
            }
            if let Some((_, (sample, None))) = pass.kept.back()
                && pass.read > before
            {
                bytes += sample.bytes();
                if pass.unmarked.last().is_none_or(|unmarked| unmarked.index != before) {
                    see(sample)?;
                }
            }
        }
        // What may be cut teaches only if all may be.
        if pass.unmarked.len() == pass.kept.len() {
            for (_, (sample, outcome)) in &pass.kept {
                if outcome.is_none() {
                    see(sample)?;
                }
            }
        }
        let fields = learner.finish(pass.is_counted && !self.is_open);
        Ok(DataFields { is_open: self.is_open, ..fields })
    }

    /// Leaves out samples that were read before the fields were known, and of which files may be cut off.
    fn leave_out_cut(&self, pass: &mut Pass, rules: &FieldRules) -> Result<(), SourceFault> {
        for Unmarked { index, shard, fields } in std::mem::take(&mut pass.unmarked).into_iter().rev() {
            let Some(name) = rules.lacking(&fields) else { continue };
            let Some((_, (sample, _))) = pass.kept.remove(index as usize) else { continue };
            self.cut(&pass.shards[shard], &sample, name)?;
            pass.kept.iter_mut().skip(index as usize).for_each(|(index, _)| *index -= 1);
            pass.read -= 1;
        }
        pass.count();
        Ok(())
    }

    /// Counts a sample that lacks the field `name`, at the end of a shard without its end mark.
    fn cut(&self, shard: &str, sample: &Sample, name: &str) -> Result<(), SourceFault> {
        let fault = cut_sample(shard, &self.store, &sample.key, name);
        self.damage.part(&format!("{shard}: {}", sample.key), Some(1), fault)
    }

    async fn chunk(&self, pass: &mut Pass) -> Result<Option<Produced>, SourceFault> {
        if let Some(fault) = pass.fault.take() {
            return Err(fault);
        }
        if pass.traversal.is_over() {
            return Ok(None);
        }
        let mut chunk = Chunk::default();
        let filled = self.fill(pass, &mut chunk).await;
        match (filled, chunk.is_empty()) {
            (Err(fault), true) => Err(fault),
            (Ok(()), true) => Ok(pass.traversal.next_visits(1).map(|_| {
                pass.rewind();
                Produced::EpochEnd
            })),
            (filled, false) => {
                pass.fault = filled.err();
                Ok(Some(Produced::Samples(chunk)))
            }
        }
    }

    /// Adds the next samples of the epoch; none at its end.
    async fn fill(&self, pass: &mut Pass, chunk: &mut Chunk) -> Result<(), SourceFault> {
        let mut bytes = 0;
        while chunk.len() < CHUNK && bytes < CHUNK_BYTES {
            if pass.next.is_none() {
                if !pass.traversal.is_epoch_visited() {
                    if let Some(NextVisits::Visits { epoch, indexes }) = pass.traversal.next_visits(1) {
                        pass.next = Some((epoch, indexes[0]));
                    }
                } else if self.is_over(pass) {
                    return Ok(());
                } else {
                    self.read(pass, false).await?;
                    continue;
                }
            }
            let Some((epoch, index)) = pass.next else { return Ok(()) };
            while pass.kept.front().is_some_and(|(kept, _)| *kept < index) {
                pass.kept.pop_front();
            }
            match pass.kept.pop_front() {
                Some((_, (mut sample, outcome))) => {
                    sample.origin = Origin::at(epoch, index);
                    let outcome = match (outcome, &self.rules) {
                        (None, Some(rules)) => rules.apply(&mut sample)?,
                        (outcome, _) => outcome,
                    };
                    bytes += sample.memory_bytes();
                    chunk.add(sample, outcome);
                    pass.next = None;
                }
                None if pass.is_read() => {
                    return Err(SourceFault::new(
                        "the shards have fewer samples than in an earlier epoch",
                        None,
                    ));
                }
                None => self.read(pass, false).await?,
            }
        }
        Ok(())
    }

    fn open(&self, object: RangedObject, pass: u64) -> Box<dyn InOrder> {
        // What is left out is counted in the first pass.
        let notes = if pass == 0 { self.damage.notes.clone() } else { Notes::default() };
        (self.open)(object, self.ahead_bytes, Damage { notes, ..self.damage })
    }

    /// True if no sample of the epoch is left to read.
    fn is_over(&self, pass: &Pass) -> bool {
        pass.is_counted || self.settings.limit.is_some_and(|limit| pass.read >= limit)
    }

    /// Reads the next sample, or notices the end of the shards. It is kept if it may be visited, or if `keeps`.
    async fn read(&self, pass: &mut Pass, keeps: bool) -> Result<(), SourceFault> {
        if let Some(fault) = pass.read_fault.take() {
            return Err(fault);
        }
        let number = pass.number;
        loop {
            let samples = match &mut pass.current {
                Some(samples) => samples,
                None => {
                    if pass.begun == 0 {
                        pass.following.open(&self.store, pass.shards.first());
                    }
                    let Some(samples) = pass.following.take(|object| self.open(object, number)).await else {
                        self.damage.notes.check_some_left(pass.read)?;
                        if let Some(start) = &self.start {
                            start.check_count(pass.read)?;
                        }
                        pass.is_counted = true;
                        return Ok(());
                    };
                    let (key, version) =
                        (&pass.shards[pass.begun], samples.as_ref().ok().map(|(version, _)| version));
                    let found = with_version(Hash::EMPTY, key, version);
                    if number == 0 {
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
                    pass.begun += 1;
                    pass.following.open(&self.store, pass.shards.get(pass.begun));
                    match samples {
                        Ok((_, samples)) => pass.current.insert(samples),
                        Err(fault) => {
                            self.damage.part(&pass.shards[pass.begun - 1], None, fault)?;
                            continue;
                        }
                    }
                }
            };
            if samples.left_bytes() <= self.ahead_bytes / 2 {
                pass.following.begin(|object| self.open(object, number));
            }
            let index = pass.read;
            let is_visited = keeps || pass.traversal.may_visit(index);
            let sample = match samples.next(is_visited).await {
                Ok(Some(sample)) => sample,
                Ok(None) => {
                    pass.current = None;
                    continue;
                }
                Err(fault) => {
                    pass.current = None;
                    self.damage.part(&pass.shards[pass.begun - 1], None, fault)?;
                    continue;
                }
            };
            if let Some(fields) = samples.unmarked_fields() {
                let shard = pass.begun - 1;
                match &self.rules {
                    Some(rules) => {
                        if let Some(name) = rules.lacking(&fields) {
                            self.cut(&pass.shards[shard], &sample.0, name)?;
                            continue;
                        }
                    }
                    None => pass.unmarked.push(Unmarked { index, shard, fields }),
                }
            }
            pass.read += 1;
            if is_visited {
                pass.kept.push_back((index, sample));
            }
            if self.rules.is_some() {
                pass.count();
            }
            return Ok(());
        }
    }
}

impl Following {
    fn open(&mut self, store: &BoundedStore, key: Option<&Arc<str>>) {
        if let Some(key) = key {
            self.opening.spawn(RangedObject::open(store.clone(), key.clone(), 0));
        }
    }

    /// Begins to read the shard, once it is open.
    fn begin(&mut self, open: impl FnOnce(RangedObject) -> Box<dyn InOrder>) {
        if let Some(opened) = self.opening.try_join_next() {
            self.begun = Some(Self::opened(opened).map(|object| {
                let version = object.version().clone();
                let mut samples = open(object);
                samples.begin();
                (version, samples)
            }));
        }
    }

    /// The shard; `None` if there is none.
    async fn take(
        &mut self,
        open: impl FnOnce(RangedObject) -> Box<dyn InOrder>,
    ) -> Option<Result<Begun, SourceFault>> {
        match self.begun.take() {
            Some(begun) => Some(begun),
            None => {
                let opened = self.opening.join_next().await;
                opened
                    .map(|opened| Self::opened(opened).map(|object| (object.version().clone(), open(object))))
            }
        }
    }

    fn opened(
        opened: Result<Result<RangedObject, StoreError>, JoinError>,
    ) -> Result<RangedObject, SourceFault> {
        Ok(opened
            .map_err(|error| SourceFault::new("opening a shard was interrupted", Some(error.into())))??)
    }
}

impl Pass {
    /// True if all shards are read.
    fn is_read(&self) -> bool {
        self.current.is_none() && self.begun == self.shards.len()
    }

    /// Tells the traversal of the samples that were read.
    fn count(&mut self) {
        if self.read > self.known {
            self.known = self.read;
            self.traversal.grow(self.known);
        }
    }

    fn rewind(&mut self) {
        (self.begun, self.current, self.read) = (0, None, 0);
        self.number += 1;
        self.following = Following::default();
        self.kept.clear();
    }
}

impl Source for ShardStream {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        self.next_chunk().boxed()
    }

    fn total(&self) -> Option<u64> {
        self.pass.as_ref().filter(|pass| pass.is_counted).and_then(|pass| pass.traversal.total())
    }

    fn data(&self) -> DataSet {
        let Some(pass) = &self.pass else { return DataSet::default() };
        let count = (pass.is_counted && self.settings.limit.is_none()).then_some(pass.known);
        let (begun, digest) = pass.digested;
        DataSet { count, digest: Some(digest), blocks: (!pass.is_counted).then_some(begun) }
    }

    fn kept_bytes(&self) -> u64 {
        let of_pass = |pass: &Pass| {
            let kept: u64 = pass.kept.iter().map(|(_, (sample, _))| sample.memory_bytes()).sum();
            let begun = pass.following.begun.as_ref().and_then(|samples| samples.as_ref().ok());
            let begun = begun.map(|(_, samples)| samples);
            kept + pass.current.iter().chain(begun).map(|samples| samples.ahead_bytes()).sum::<u64>()
        };
        self.pass.as_ref().map_or(0, of_pass)
    }
}
