//! Samples of shards without an index, in the order of the shards.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::{Origin, Sample};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};

use crate::shards::Shards;

/// Size of a chunk in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum number of samples in a chunk.
const CHUNK: usize = 256;

/// The samples of a shard, in order.
pub(crate) trait InOrder: Send + Sync {
    /// The next sample; `None` at the end of the shard. Unless `is_wanted`, its fields need not be read.
    fn next(&mut self, is_wanted: bool) -> BoxFuture<'_, Result<Option<Sample>, SourceFault>>;

    /// Bytes that are read ahead.
    fn ahead_bytes(&self) -> u64;
}

/// Starts to read a shard.
pub(crate) type OpenShard = Box<dyn Fn(RangedObject) -> Box<dyn InOrder> + Send + Sync>;

/// Reads shards from their first to their last, once per epoch. Samples that other ranks visit are read, too. The order is that of the
/// shards: a shuffle needs an index.
pub struct ShardStream {
    store: BoundedStore,
    shards: Shards,
    open: OpenShard,
    settings: TraversalSettings,
    pass: Option<Pass>,
}

/// A pass over the shards.
struct Pass {
    traversal: Traversal,
    shards: Vec<Arc<str>>,
    /// Number of shards that are read or being read.
    begun: usize,
    current: Option<Box<dyn InOrder>>,
    /// Number of samples that were read in this epoch.
    read: u64,
    /// Samples that were read and that this rank may visit, with their indexes.
    kept: VecDeque<(u64, Sample)>,
    /// The next visit: epoch and index.
    next: Option<(u32, u64)>,
    /// Number of samples that are known, and whether these are all.
    known: u64,
    is_counted: bool,
    /// Reason why no sample follows those that were returned.
    fault: Option<SourceFault>,
}

impl ShardStream {
    pub(crate) fn new(
        store: BoundedStore,
        shards: Shards,
        settings: TraversalSettings,
        open: OpenShard,
    ) -> Self {
        Self { store, shards, open, settings, pass: None }
    }

    async fn next_chunk(&mut self) -> Result<Option<Produced>, SourceFault> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                let traversal = Traversal::new(0, self.settings)
                    .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
                let shards = self.shards.keys(&self.store).await?;
                Pass {
                    traversal,
                    shards,
                    begun: 0,
                    current: None,
                    read: 0,
                    kept: VecDeque::new(),
                    next: None,
                    known: 0,
                    is_counted: false,
                    fault: None,
                }
            }
        };
        let produced = self.chunk(&mut pass).await;
        self.pass = Some(pass);
        produced
    }

    async fn chunk(&self, pass: &mut Pass) -> Result<Option<Produced>, SourceFault> {
        if let Some(fault) = pass.fault.take() {
            return Err(fault);
        }
        let mut chunk = Vec::new();
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
    async fn fill(&self, pass: &mut Pass, chunk: &mut Vec<Sample>) -> Result<(), SourceFault> {
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
                    self.read(pass).await?;
                    continue;
                }
            }
            let Some((epoch, index)) = pass.next else { return Ok(()) };
            while pass.kept.front().is_some_and(|(kept, _)| *kept < index) {
                pass.kept.pop_front();
            }
            match pass.kept.pop_front() {
                Some((_, mut sample)) => {
                    sample.origin = Origin { epoch, index, path: 0 };
                    bytes += sample.memory_bytes();
                    chunk.push(sample);
                    pass.next = None;
                }
                None if pass.is_read() => {
                    return Err(SourceFault::new(
                        "the shards have fewer samples than in an earlier epoch",
                        None,
                    ));
                }
                None => self.read(pass).await?,
            }
        }
        Ok(())
    }

    /// True if no sample of the epoch is left to read.
    fn is_over(&self, pass: &Pass) -> bool {
        pass.is_counted || self.settings.limit.is_some_and(|limit| pass.read >= limit)
    }

    /// Reads the next sample, or notices the end of the shards.
    async fn read(&self, pass: &mut Pass) -> Result<(), SourceFault> {
        loop {
            let samples = match &mut pass.current {
                Some(samples) => samples,
                None => {
                    let Some(key) = pass.shards.get(pass.begun) else {
                        pass.is_counted = true;
                        return Ok(());
                    };
                    pass.begun += 1;
                    let object = RangedObject::open(self.store.clone(), key.clone(), 0).await?;
                    pass.current.insert((self.open)(object))
                }
            };
            let index = pass.read;
            let rank =
                self.settings.shard.map_or((0, 1), |shard| (shard.rank.into(), u64::from(shard.world.get())));
            let is_visited = index % rank.1 == rank.0;
            let Some(sample) = samples.next(is_visited).await? else {
                pass.current = None;
                continue;
            };
            pass.read += 1;
            if is_visited {
                pass.kept.push_back((index, sample));
            }
            if !pass.is_counted && pass.read > pass.known {
                pass.known = pass.read;
                pass.traversal.grow(pass.known);
            }
            return Ok(());
        }
    }
}

impl Pass {
    /// True if all shards are read.
    fn is_read(&self) -> bool {
        self.current.is_none() && self.begun == self.shards.len()
    }

    fn rewind(&mut self) {
        (self.begun, self.current, self.read) = (0, None, 0);
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

    fn kept_bytes(&self) -> u64 {
        let of_pass = |pass: &Pass| {
            let kept: u64 = pass.kept.iter().map(|(_, sample)| sample.memory_bytes()).sum();
            kept + pass.current.as_ref().map_or(0, |samples| samples.ahead_bytes())
        };
        self.pass.as_ref().map_or(0, of_pass)
    }
}
