//! Reads an object line by line, in range reads, so that the size of the object does not matter.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use penstock_engine::ports::SourceFault;
use tokio::task::JoinSet;

use crate::bounded::BoundedStore;
use crate::error::{StoreError, shown};
use crate::store::Version;

pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Size of a read in bytes.
const BLOCK_BYTES: u64 = 1 << 20;

/// Maximum number of bytes that are read ahead: enough for 1.6 GB/s from a bucket with a latency of 20 ms.
pub(crate) const AHEAD_BYTES: u64 = 32 << 20;

/// UTF-8 byte order mark, which some editors write at the start of a file; not part of the contents.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An object that is read in ranges. All ranges are of the version found when the object was opened.
#[derive(Clone)]
pub(crate) struct RangedObject {
    pub(crate) store: BoundedStore,
    pub(crate) key: Arc<str>,
    version: Version,
    /// The whole object, if it is small enough to keep in memory.
    held: Option<Bytes>,
}

/// The lines of an object, in order. The blocks that follow the current one are read ahead, concurrently.
pub(crate) struct Lines {
    object: RangedObject,
    /// Start of the next block in the object.
    read_to: u64,
    /// Reads of the next blocks, in order.
    reads: VecDeque<BlockRead>,
    /// End of the last block in `reads`.
    ahead_to: u64,
    /// Number of reads that the next call may have in progress, and its upper bound. The number starts at 1 and grows by one for
    /// each block, so that a reading that ends early has read at most as much again as it needed.
    window: usize,
    most_reads: usize,
    /// First part of a line that continues in the next block.
    begun: BytesMut,
    /// Number of lines that have ended, including blank ones.
    ended: u64,
}

/// A read in progress, as a set of one task. A task makes progress, and returns its permit, even while the source waits for its
/// consumer. Dropping the set cancels the read.
type BlockRead = JoinSet<Result<Bytes, StoreError>>;

#[derive(Clone, Debug)]
pub(crate) struct ObjectLine {
    /// Number of the line, from 1; blank lines count.
    pub(crate) number: u64,
    /// Position of the line in the object, in bytes.
    pub(crate) start: u64,
    /// Text of the line, with its line end if it has one.
    pub(crate) text: Bytes,
}

impl RangedObject {
    /// Opens the object `key`. If the object has at most `hold` bytes, all of it is kept in memory.
    pub(crate) async fn open(store: BoundedStore, key: Arc<str>, hold: u64) -> Result<Self, StoreError> {
        let version = store.version(key.clone()).await?;
        let held = match version.size <= hold {
            true => Some(store.get_range(key.clone(), Some(version.clone()), 0..version.size).await?),
            false => None,
        };
        Ok(Self { store, key, version, held })
    }

    pub(crate) fn size(&self) -> u64 {
        self.version.size
    }

    /// Bytes of the object that are kept in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.len() as u64)
    }

    /// Reads exactly `range`, which is within the object.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let slice = self.held.as_ref().and_then(|held| {
            let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
            (end <= held.len()).then(|| held.slice(start..end))
        });
        match slice {
            Some(slice) => Ok(slice),
            None => self.store.get_range(self.key.clone(), Some(self.version.clone()), range).await,
        }
    }

    pub(crate) fn line_fault(&self, number: u64, reason: &str) -> SourceFault {
        let (store, key) = (self.store.name(), shown(&self.key));
        SourceFault::new(format!("line {number} of {key} in store `{store}` {reason}"), None)
    }
}

impl Lines {
    /// Starts at the beginning of the object. At most `ahead_bytes` are read ahead, and at most half of the store's permits are used
    /// for that, because stages of the same run may need the others.
    pub(crate) fn new(object: RangedObject, ahead_bytes: u64) -> Self {
        let ahead = usize::try_from(ahead_bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        let most_reads = ahead.saturating_add(1).min((object.store.reads().get() / 2).max(1));
        Self {
            object,
            read_to: 0,
            reads: VecDeque::new(),
            ahead_to: 0,
            window: 1,
            most_reads,
            begun: BytesMut::new(),
            ended: 0,
        }
    }

    /// Bytes of the blocks that are read ahead, including reads in progress.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.ahead_to - self.read_to
    }

    /// Reads the next block; `None` at the end of the object. A failed read is reported in its place: the blocks before it were
    /// returned.
    async fn read_block(&mut self) -> Result<Option<Bytes>, SourceFault> {
        while self.reads.len() < self.window && self.ahead_to < self.object.size() {
            let (object, start) = (self.object.clone(), self.ahead_to);
            self.ahead_to = object.size().min(start + BLOCK_BYTES);
            let range = start..self.ahead_to;
            let mut read = BlockRead::new();
            read.spawn(async move { object.read(range).await });
            self.reads.push_back(read);
        }
        let Some(read) = self.reads.front_mut() else { return Ok(None) };
        let read = read.join_next().await.expect("the set has one task, whose end removes the set");
        self.reads.pop_front();
        let block =
            read.map_err(|error| SourceFault::new("reading records was interrupted", Some(error.into())))??;
        self.window = self.most_reads.min(self.window + 1);
        Ok(Some(block))
    }

    /// Returns the lines that end in the next block; `None` at the end of the object. Empty if no line ends in the block or all
    /// of them are blank.
    pub(crate) async fn next_block(&mut self) -> Result<Option<Vec<ObjectLine>>, SourceFault> {
        let Some(mut block) = self.read_block().await? else { return Ok(self.last_line()) };
        let start = self.read_to;
        self.read_to += block.len() as u64;
        let mut position = start - self.begun.len() as u64;
        if start == 0 && block.starts_with(BYTE_ORDER_MARK) {
            block = block.slice(BYTE_ORDER_MARK.len()..);
            position = BYTE_ORDER_MARK.len() as u64;
        }
        let mut lines = Vec::new();
        while let Some(length) = memchr(b'\n', &block) {
            let mut text = block.split_to(length + 1);
            if !self.begun.is_empty() {
                self.begun.extend_from_slice(&text);
                text = self.begun.split().freeze();
            }
            let next = position + text.len() as u64;
            lines.extend(self.end_line(position, text));
            position = next;
        }
        if self.begun.len() + block.len() > MAX_LINE_BYTES {
            let reason = "is longer than 64 MiB; is it NDJSON, with one object per line?";
            return Err(self.object.line_fault(self.ended + 1, reason));
        }
        self.begun.extend_from_slice(&block);
        Ok(Some(lines))
    }

    /// Text after the last line end, as a line.
    fn last_line(&mut self) -> Option<Vec<ObjectLine>> {
        let text = self.begun.split().freeze();
        if text.is_empty() {
            return None;
        }
        let position = self.object.size() - text.len() as u64;
        Some(self.end_line(position, text).into_iter().collect())
    }

    fn end_line(&mut self, start: u64, text: Bytes) -> Option<ObjectLine> {
        self.ended += 1;
        let is_blank = text.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
        (!is_blank).then_some(ObjectLine { number: self.ended, start, text })
    }
}
