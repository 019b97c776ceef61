//! Bytes of an object, in order, also of one that is compressed as a whole.

use std::io::Write;

use bytes::buf::Writer;
use bytes::{BufMut, Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use penstock_engine::ports::SourceFault;
use penstock_storage::{Blocks, RangedObject};

/// Number of compressed bytes that are decompressed at a time. Gzip makes a thousand times as many of them at most.
const PIECE: usize = 8 << 10;

/// Maximum number of decompressed bytes that are skipped at a time.
const SKIPPED: u64 = 1 << 20;

/// Bytes of an object, in order.
pub(crate) struct Sequence {
    blocks: Blocks,
    /// Bytes that follow the position, as far as they are read.
    rest: Bytes,
}

/// Content of an object that is compressed with gzip, in order.
pub(crate) struct Inflated {
    compressed: Sequence,
    decoder: MultiGzDecoder<Writer<BytesMut>>,
    position: u64,
    is_ended: bool,
}

impl Sequence {
    pub(crate) fn new(object: RangedObject, ahead_bytes: u64) -> Self {
        Self { blocks: Blocks::new(object, ahead_bytes), rest: Bytes::new() }
    }

    /// Begins to read, as [`Blocks::begin`] does.
    pub(crate) fn begin(&mut self) {
        self.blocks.begin();
    }

    /// Bytes of the object that follow the position.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.blocks.left_bytes() + self.rest.len() as u64
    }

    /// Bytes that are read ahead.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.blocks.ahead_bytes() + self.rest.len() as u64
    }

    pub(crate) fn position(&self) -> u64 {
        self.blocks.position() - self.rest.len() as u64
    }

    /// The next `length` bytes; `None` if fewer are left.
    pub(crate) async fn take(&mut self, length: u64) -> Result<Option<Bytes>, SourceFault> {
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        if self.rest.len() >= length {
            return Ok(Some(self.rest.split_to(length)));
        }
        let mut taken = BytesMut::from(&*std::mem::take(&mut self.rest));
        while taken.len() < length {
            let Some(mut block) = self.blocks.next().await? else { return Ok(None) };
            taken.extend_from_slice(&block.split_to(block.len().min(length - taken.len())));
            self.rest = block;
        }
        Ok(Some(taken.freeze()))
    }

    /// The next bytes, at most `most`; `None` at the end.
    async fn piece(&mut self, most: usize) -> Result<Option<Bytes>, SourceFault> {
        while self.rest.is_empty() {
            let Some(block) = self.blocks.next().await? else { return Ok(None) };
            self.rest = block;
        }
        Ok(Some(self.rest.split_to(most.min(self.rest.len()))))
    }

    /// Continues at a position that is not before the current one.
    pub(crate) fn seek(&mut self, position: u64) {
        match usize::try_from(position - self.position()) {
            Ok(length) if length <= self.rest.len() => drop(self.rest.split_to(length)),
            _ => {
                self.rest = Bytes::new();
                self.blocks.seek(position);
            }
        }
    }
}

impl Inflated {
    pub(crate) fn new(compressed: Sequence) -> Self {
        let decoder = MultiGzDecoder::new(BytesMut::new().writer());
        Self { compressed, decoder, position: 0, is_ended: false }
    }

    /// Bytes of the object that follow the position.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.compressed.left_bytes()
    }

    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.compressed.ahead_bytes() + self.decoder.get_ref().get_ref().len() as u64
    }

    /// Position in the content.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// True if nothing follows.
    pub(crate) async fn is_at_end(&mut self) -> Result<bool, InflateFault> {
        Ok(self.fill(1).await? == 0)
    }

    /// The next `length` bytes; `None` if fewer are left.
    pub(crate) async fn take(&mut self, length: u64) -> Result<Option<Bytes>, InflateFault> {
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        if self.fill(length).await? < length {
            return Ok(None);
        }
        self.position += length as u64;
        Ok(Some(self.decoder.get_mut().get_mut().split_to(length).freeze()))
    }

    /// Skips bytes; false if fewer are left.
    pub(crate) async fn skip(&mut self, mut length: u64) -> Result<bool, InflateFault> {
        while length > 0 {
            let part = length.min(SKIPPED);
            if self.take(part).await?.is_none() {
                return Ok(false);
            }
            length -= part;
        }
        Ok(true)
    }

    /// Decompresses until `length` bytes are there, or all; returns their number.
    async fn fill(&mut self, length: usize) -> Result<usize, InflateFault> {
        while self.decoder.get_ref().get_ref().len() < length && !self.is_ended {
            match self.compressed.piece(PIECE).await? {
                Some(piece) => self.decoder.write_all(&piece).map_err(InflateFault::Damaged)?,
                None => {
                    self.is_ended = true;
                    self.decoder.try_finish().map_err(InflateFault::Damaged)?;
                }
            }
        }
        Ok(self.decoder.get_ref().get_ref().len())
    }
}

/// Reason why content cannot be decompressed.
pub(crate) enum InflateFault {
    Read(SourceFault),
    Damaged(std::io::Error),
}

impl From<SourceFault> for InflateFault {
    fn from(fault: SourceFault) -> Self {
        Self::Read(fault)
    }
}
