//! An object that is read from its start to its end, in blocks that are read ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::ports::SourceFault;
use tokio::task::JoinSet;

use crate::bounded::BoundedStore;
use crate::error::{StoreError, interrupted};
use crate::store::Version;

/// Size of a read in bytes.
const BLOCK_BYTES: u64 = 1 << 20;

/// Maximum number of bytes that are read ahead: enough for 1.6 GB/s from a bucket with a latency of 20 ms.
pub const AHEAD_BYTES: u64 = 32 << 20;

/// UTF-8 byte order mark, which some editors write at the start of a file; not part of the contents.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An object that is read in ranges. All ranges are of the version found when the object was opened.
#[derive(Clone)]
pub struct RangedObject {
    pub store: BoundedStore,
    pub key: Arc<str>,
    version: Version,
    /// The whole object, if it is small enough to keep in memory.
    held: Option<Bytes>,
}

/// The blocks of an object, in order. The blocks that follow the current one are read ahead, concurrently.
pub struct Blocks {
    object: RangedObject,
    /// Position from which on the object is needed: within the next block, or at its start.
    read_to: u64,
    /// Reads of the next blocks, in order, with the ranges of the blocks.
    reads: VecDeque<(Range<u64>, BlockRead)>,
    /// End of the last block in `reads`.
    ahead_to: u64,
    /// Number of reads that the next call may have in progress, and its upper bound. The number starts at 1 and grows by one for
    /// each block, so that a reading that ends early has read at most as much again as it needed.
    window: usize,
    most_reads: usize,
}

/// A read in progress, as a set of one task. A task makes progress, and returns its permit, even while the source waits for its
/// consumer. Dropping the set cancels the read.
type BlockRead = JoinSet<Result<Bytes, StoreError>>;

impl RangedObject {
    /// Opens the object `key`. If the object has at most `hold` bytes, all of it is kept in memory.
    pub async fn open(store: BoundedStore, key: Arc<str>, hold: u64) -> Result<Self, StoreError> {
        let version = store.version(key.clone()).await?;
        let held = match version.size <= hold {
            true => Some(store.get_range(key.clone(), Some(version.clone()), 0..version.size).await?),
            false => None,
        };
        Ok(Self { store, key, version, held })
    }

    pub fn size(&self) -> u64 {
        self.version.size
    }

    pub fn version(&self) -> &Version {
        &self.version
    }

    /// See [`BoundedStore::named`].
    pub fn named(&self) -> String {
        self.store.named(&self.key)
    }

    /// Bytes of the object that are kept in memory.
    pub fn held_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.len() as u64)
    }

    /// Reads exactly `range`, which is within the object.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let slice = self.held.as_ref().and_then(|held| {
            let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
            (end <= held.len()).then(|| held.slice(start..end))
        });
        match slice {
            Some(slice) => Ok(slice),
            None => self.store.get_range(self.key.clone(), Some(self.version.clone()), range).await,
        }
    }
}

impl Blocks {
    /// Starts at the beginning of the object. At most `ahead_bytes` are read ahead, and at most half of the store's permits are used
    /// for that, because stages of the same run may need the others.
    pub fn new(object: RangedObject, ahead_bytes: u64) -> Self {
        let ahead = usize::try_from(ahead_bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        let most_reads = ahead.saturating_add(1).min((object.store.reads().get() / 2).max(1));
        Self { object, read_to: 0, reads: VecDeque::new(), ahead_to: 0, window: 1, most_reads }
    }

    /// Begins to read before the first call of [`Self::next`], with half of the reads that may be in progress. For an object that will
    /// surely be read.
    pub fn begin(&mut self) {
        self.window = (self.most_reads / 2).max(1);
        self.read_ahead();
    }

    /// Bytes of the object that follow the position.
    pub fn left_bytes(&self) -> u64 {
        self.object.size() - self.read_to
    }

    /// Bytes of the blocks that are read ahead, including reads in progress.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead_to - self.read_to
    }

    /// Position of the next byte in the object.
    pub fn position(&self) -> u64 {
        self.read_to
    }

    /// Continues at this position of the object, which is not before the current one. Reads of blocks that are not needed are cancelled.
    pub fn seek(&mut self, position: u64) {
        while self.reads.front().is_some_and(|(range, _)| range.end <= position) {
            self.reads.pop_front();
        }
        if self.reads.is_empty() && position > self.ahead_to {
            (self.ahead_to, self.window) = (position, 1);
        }
        self.read_to = position;
    }

    /// Reads the next block; `None` at the end of the object. A failed read is reported in its place: the blocks before it were
    /// returned.
    pub async fn next(&mut self) -> Result<Option<Bytes>, SourceFault> {
        self.read_ahead();
        let Some((range, read)) = self.reads.front_mut() else { return Ok(None) };
        let start = range.start;
        let read = read.join_next().await.expect("the set has one task, whose end removes the set");
        self.reads.pop_front();
        let mut block = read.map_err(|error| interrupted("reading an object", error))??;
        drop(block.split_to((self.read_to - start) as usize));
        self.window = self.most_reads.min(self.window + 1);
        self.read_to += block.len() as u64;
        Ok(Some(block))
    }

    /// Starts the reads that may be in progress.
    fn read_ahead(&mut self) {
        while self.reads.len() < self.window && self.ahead_to < self.object.size() {
            let (object, start) = (self.object.clone(), self.ahead_to);
            self.ahead_to = object.size().min(start + BLOCK_BYTES);
            let range = start..self.ahead_to;
            let mut read = BlockRead::new();
            read.spawn({
                let range = range.clone();
                async move { object.read(range).await }
            });
            self.reads.push_back((range, read));
        }
    }
}
