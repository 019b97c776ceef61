//! Reads an object line by line, in range reads, so that the size of the object does not matter.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use penstock_engine::ports::SourceFault;

use crate::bounded::BoundedStore;
use crate::error::{StoreError, shown};
use crate::store::Version;

pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Size of a read in bytes: large enough to hide the latency of a bucket, and small compared to other memory.
const BLOCK_BYTES: u64 = 1 << 20;

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

pub(crate) struct Lines {
    object: RangedObject,
    /// Start of the next block in the object.
    read_to: u64,
    /// First part of a line that continues in the next block.
    begun: BytesMut,
    /// Number of lines that have ended, including blank ones.
    ended: u64,
}

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
    pub(crate) fn new(object: RangedObject) -> Self {
        Self { object, read_to: 0, begun: BytesMut::new(), ended: 0 }
    }

    /// Returns the lines that end in the next block; `None` at the end of the object. Empty if no line ends in the block or all
    /// of them are blank.
    pub(crate) async fn next_block(&mut self) -> Result<Option<Vec<ObjectLine>>, SourceFault> {
        let start = self.read_to;
        if start == self.object.size() {
            return Ok(self.last_line());
        }
        let end = self.object.size().min(start + BLOCK_BYTES);
        let mut block = self.object.read(start..end).await?;
        self.read_to = end;
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
