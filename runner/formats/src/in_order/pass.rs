//! State of the passes over shards in order.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_engine::notes::Notes;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RangedObject, interrupted};
use penstock_types::resume::{DataSet, Hash};
use penstock_types::traversal::Traversal;
use tokio::task::{JoinError, JoinSet};

use super::{InOrder, ShardStream, Unvisited};
use crate::damage::Damage;
use crate::shards::with_version;

/// Memory of an object whose version is kept, in bytes.
const OBJECT_BYTES: u64 = 256;

/// A pass over the shards, and what is kept of those before it.
pub struct Pass<T: Unvisited> {
    pub(super) traversal: Traversal,
    pub(crate) shards: Vec<Arc<str>>,
    /// Objects that were opened, the first of `shards`, if all passes read the versions of the first one.
    pub(super) objects: Vec<RangedObject>,
    /// Number of shards that are read or being read.
    pub(super) begun: usize,
    pub(super) current: Option<Box<dyn InOrder<T>>>,
    pub(super) following: Following<T>,
    /// Number of samples that were read in this epoch.
    pub(crate) read: u64,
    /// Samples that were read and that this rank may visit, with their indexes.
    pub(crate) kept: VecDeque<(u64, T)>,
    /// Epoch and indexes of the next visits.
    pub(super) epoch: u32,
    pub(super) next: VecDeque<u64>,
    /// Samples of visits that are not made yet.
    pub(super) left: Vec<T>,
    /// Number of samples that are known, and whether these are all.
    known: u64,
    pub(super) is_counted: bool,
    /// Reason why no sample follows those that were returned.
    pub(super) fault: Option<SourceFault>,
    /// Reason why no sample follows those that were read.
    pub(super) read_fault: Option<SourceFault>,
    /// Number of the pass, from 0.
    pub(super) number: u64,
    /// Samples at the ends of shards without an end mark that were read before the fields are known: index and number of the shard.
    pub(super) unmarked: Vec<(u64, usize)>,
    /// Number of shards that were begun in the first pass, and digest of their versions; or number of blocks, and their digest.
    pub(super) digested: (u64, Hash),
    /// Versions of the shards in the first pass.
    pub(super) versions: Vec<Hash>,
    /// Data behind the samples that were returned.
    pub(super) data: DataSet,
}

/// The shard after the current one. It is opened at once, and begun while the rest of the current one is on its way: the latency of a
/// bucket does not pass at each shard.
pub(super) struct Following<T> {
    /// A set of one task, if there is a shard: dropping the set cancels the opening.
    opening: JoinSet<Result<RangedObject, SourceFault>>,
    begun: Option<Result<Begun<T>, SourceFault>>,
}

type Begun<T> = (RangedObject, Box<dyn InOrder<T>>);

impl<T: Unvisited> Pass<T> {
    pub(super) fn new(traversal: Traversal, shards: Vec<Arc<str>>) -> Self {
        Self {
            traversal,
            shards,
            objects: Vec::new(),
            begun: 0,
            current: None,
            following: Following::default(),
            read: 0,
            kept: VecDeque::new(),
            epoch: 0,
            next: VecDeque::new(),
            left: Vec::new(),
            known: 0,
            is_counted: false,
            fault: None,
            read_fault: None,
            number: 0,
            unmarked: Vec::new(),
            digested: (0, Hash::EMPTY),
            versions: Vec::new(),
            data: DataSet::default(),
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.current.is_none() && self.begun == self.shards.len()
    }

    /// Tells the traversal of the samples that were read.
    pub(super) fn count(&mut self) {
        if self.read > self.known {
            self.known = self.read;
            self.traversal.grow(self.known);
        }
    }

    /// The next sample that this rank visits, with its index, if it is read.
    pub(super) fn take_next(&mut self) -> Option<(u64, T)> {
        let next = *self.next.front()?;
        while self.kept.front().is_some_and(|(kept, _)| *kept < next) {
            self.kept.pop_front();
        }
        let found = self.kept.pop_front()?;
        self.next.pop_front();
        Some(found)
    }

    /// Begins another pass.
    pub(super) fn rewind(&mut self) {
        (self.begun, self.current, self.read) = (0, None, 0);
        self.number += 1;
        self.following = Following::default();
        self.kept.clear();
    }

    /// Drops what is kept for further samples.
    pub(super) fn close(&mut self) {
        self.rewind();
        self.objects.clear();
        self.left.clear();
    }

    /// Opens the shard behind those that are begun.
    pub(super) fn open_following(&mut self, store: &BoundedStore) {
        let Some(key) = self.shards.get(self.begun).cloned() else { return };
        let (store, known) = (store.clone(), self.objects.get(self.begun).cloned());
        self.following.opening.spawn(async move {
            match known {
                Some(object) => Ok(object),
                None => Ok(RangedObject::open(store, key, 0).await?),
            }
        });
    }

    /// Data that were read so far; all of them, once they are counted.
    pub(super) fn data(&self, limit: Option<u64>) -> DataSet {
        let is_all = self.is_counted && limit.is_none();
        // In blocks, the number is known below a limit, too; the shards are known below a limit.
        let (has_count, has_all) =
            if T::IN_BLOCKS { (self.is_counted, is_all) } else { (is_all, self.is_counted) };
        let (blocks, digest) = self.digested;
        DataSet {
            count: has_count.then_some(self.known),
            digest: Some(digest),
            blocks: (!has_all).then_some(blocks),
        }
    }

    pub(super) fn kept_bytes(&mut self) -> u64 {
        // Of samples in blocks, at most one block is kept, or those that were read to learn the fields.
        let kept = self.kept.iter().filter(|_| !T::IN_BLOCKS).map(|(_, sample)| sample.bytes()).sum::<u64>();
        let begun = self.following.begun.iter_mut().flatten().map(|(_, samples)| samples);
        let samples = self.current.iter_mut().chain(begun);
        let objects = self.objects.len() as u64 * OBJECT_BYTES;
        kept + objects + samples.map(|samples| samples.content().ahead_bytes()).sum::<u64>()
    }
}

impl<T: Unvisited> ShardStream<T> {
    fn open(&self, object: RangedObject, pass: u64) -> Box<dyn InOrder<T>> {
        // What is left out is counted in the first pass.
        let notes = if pass == 0 { self.damage.notes.clone() } else { Notes::default() };
        T::open(&self.format, object, self.ahead_bytes, Damage { notes, ..self.damage })
    }

    /// Reads the next samples, or notices the end of the shards.
    pub(super) async fn read(&self, pass: &mut Pass<T>, keeps_all: bool) -> Result<(), SourceFault> {
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
            if samples.content().left_bytes() <= self.ahead_bytes / 2 {
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
            let reason = format!(
                "the shard {} has changed since the pass before: no shard may change within a run",
                self.store.named(key)
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

impl<T> Default for Following<T> {
    fn default() -> Self {
        Self { opening: JoinSet::new(), begun: None }
    }
}

impl<T> Following<T> {
    /// Begins to read the shard, once it is open.
    pub(super) fn begin(&mut self, open: impl FnOnce(RangedObject) -> Box<dyn InOrder<T>>) {
        if let Some(opened) = self.opening.try_join_next() {
            self.begun = Some(found(opened).map(|object| {
                let mut samples = open(object.clone());
                samples.content().begin();
                (object, samples)
            }));
        }
    }

    /// The shard; `None` if there is none.
    pub(super) async fn take(
        &mut self,
        open: impl FnOnce(RangedObject) -> Box<dyn InOrder<T>>,
    ) -> Option<Result<Begun<T>, SourceFault>> {
        match self.begun.take() {
            Some(begun) => Some(begun),
            None => {
                let opened = found(self.opening.join_next().await?);
                Some(opened.map(|object| (object.clone(), open(object))))
            }
        }
    }
}

fn found(opened: Result<Result<RangedObject, SourceFault>, JoinError>) -> Result<RangedObject, SourceFault> {
    opened.map_err(|error| interrupted("opening a shard", error)).flatten()
}
