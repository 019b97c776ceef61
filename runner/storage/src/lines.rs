//! Reads an object line by line, in range reads, so that the size of the object does not matter.

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use penstock_engine::ports::SourceFault;

use crate::blocks::{Blocks, RangedObject};

pub const MAX_LINE_BYTES: usize = 64 << 20;

/// UTF-8 byte order mark, which some editors write at the start of a file; not part of the contents.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The lines of an object, in order.
pub(crate) struct Lines {
    object: RangedObject,
    blocks: Blocks,
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

impl Lines {
    /// Starts at the beginning of the object, as [`Blocks::new`] does.
    pub(crate) fn new(object: RangedObject, ahead_bytes: u64) -> Self {
        let blocks = Blocks::new(object.clone(), ahead_bytes);
        Self { object, blocks, begun: BytesMut::new(), ended: 0 }
    }

    /// Bytes of the blocks that are read ahead, including reads in progress.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.blocks.ahead_bytes()
    }

    /// Returns the lines that end in the next block; `None` at the end of the object. Empty if no line ends in the block or all
    /// of them are blank.
    pub(crate) async fn next_block(&mut self) -> Result<Option<Vec<ObjectLine>>, SourceFault> {
        let start = self.blocks.position();
        let Some(mut block) = self.blocks.next().await? else { return Ok(self.last_line()) };
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
