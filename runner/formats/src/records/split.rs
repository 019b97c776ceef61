//! Splits an object into records, in range reads, so that the size of the object does not matter.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use crc_fast::CrcAlgorithm;
use csv_core::ReadRecordResult;
use memchr::memchr;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BYTE_ORDER_MARK, Blocks, RangedObject, shown};

use super::format::RecordFormat;
use super::layout::{Layout, reader};
use super::part::Part;

/// Maximum size of a record, in bytes.
pub(super) const MAX_RECORD_BYTES: usize = 64 << 20;

/// The records of an object, in order.
pub(super) struct Splitter {
    part: Arc<Part>,
    format: Arc<RecordFormat>,
    blocks: Blocks,
    ends: Ends,
    /// First part of a record that continues in the next block.
    begun: BytesMut,
    /// Number of lines or rows that have ended, including blank lines and the header.
    ended: u64,
    /// Checksums of the blocks so far.
    checksums: Vec<u64>,
    /// Position of the end of the last complete record.
    last_end: u64,
}

/// A record that is not parsed yet.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Number of the line or row, from 1. Blank lines count as lines, and the header is row 1.
    pub(super) number: u64,
    /// Position of the record in the object, in bytes.
    pub(super) start: u64,
    /// Text of the record, with its line end if it has one.
    pub(super) text: Bytes,
}

/// Finds the ends of records.
enum Ends {
    Lines,
    Rows(Box<RowEnds>),
}

struct RowEnds {
    reader: csv_core::Reader,
    /// Values, which are not needed yet, and their ends.
    values: [u8; 4096],
    ends: [usize; 256],
}

impl Splitter {
    /// Starts at the beginning of the object, as [`Blocks::new`] does.
    pub(super) fn new(object: RangedObject, format: Arc<RecordFormat>, ahead_bytes: u64) -> Self {
        let blocks = Blocks::new(object.clone(), ahead_bytes);
        let ends = match &format.layout {
            Layout::Lines { .. } => Ends::Lines,
            Layout::Rows { delimiter, .. } => Ends::Rows(Box::new(RowEnds {
                reader: reader(*delimiter),
                values: [0; 4096],
                ends: [0; 256],
            })),
        };
        let part = Arc::new(Part { object, columns: None });
        Self {
            part,
            format,
            blocks,
            ends,
            begun: BytesMut::new(),
            ended: 0,
            checksums: Vec::new(),
            last_end: 0,
        }
    }

    /// Bytes of the blocks that are read ahead, including reads in progress.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.blocks.ahead_bytes()
    }

    pub(super) fn format(&self) -> &Arc<RecordFormat> {
        &self.format
    }

    /// Position of the end of the last complete record.
    pub(super) fn end_of_last(&self) -> u64 {
        self.last_end
    }

    /// Checksums of the blocks that were read.
    pub(super) fn checksums(&self) -> &[u64] {
        &self.checksums
    }

    /// The object, with its columns once a record was returned.
    pub(super) fn part(&self) -> &Arc<Part> {
        &self.part
    }

    /// Returns the records that end in the next block; `None` at the end of the object. Empty if no record ends in the block.
    pub(super) async fn next_block(&mut self) -> Result<Option<Vec<Piece>>, SourceFault> {
        let start = self.blocks.position();
        let Some(mut block) = self.blocks.next().await? else { return self.last_record() };
        self.checksums.push(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &block));
        let mut position = start - self.begun.len() as u64;
        if start == 0 && block.starts_with(BYTE_ORDER_MARK) {
            block = block.slice(BYTE_ORDER_MARK.len()..);
            position = BYTE_ORDER_MARK.len() as u64;
        }
        let mut pieces = Vec::new();
        while let Some(length) = self.ends.find(&block) {
            let mut text = block.split_to(length);
            if !self.begun.is_empty() {
                self.begun.extend_from_slice(&text);
                text = self.begun.split().freeze();
            }
            let next = position + text.len() as u64;
            pieces.extend(self.end_record(position, text)?);
            (position, self.last_end) = (next, next);
        }
        if self.begun.len() + block.len() > MAX_RECORD_BYTES {
            let reason = match self.ends {
                Ends::Lines => "is longer than 64 MiB; is it NDJSON, with one object per line?",
                Ends::Rows(_) => "is longer than 64 MiB; is there a quote without its end?",
            };
            return Err(self.part.fault(self.ended + 1, reason));
        }
        self.begun.extend_from_slice(&block);
        Ok(Some(pieces))
    }

    /// Text after the last end of a record, as a record.
    fn last_record(&mut self) -> Result<Option<Vec<Piece>>, SourceFault> {
        if self.part.object.size() == 0 {
            let (key, store) = (shown(&self.part.object.key), self.part.object.store.name());
            let reason = format!("the object {key} in store `{store}` is empty: was it written in full?");
            return Err(SourceFault::damage(reason));
        }
        let text = self.begun.split().freeze();
        if !text.is_empty() {
            let position = self.part.object.size() - text.len() as u64;
            return Ok(Some(self.end_record(position, text)?.into_iter().collect()));
        }
        if matches!(self.ends, Ends::Rows(_)) && self.part.columns.is_none() {
            return Err(self.part.fault(1, "is missing: it has the names of the columns"));
        }
        Ok(None)
    }

    /// The record in `text`; `None` for a blank line and for the header.
    fn end_record(&mut self, start: u64, text: Bytes) -> Result<Option<Piece>, SourceFault> {
        let is_blank = |byte: &u8| {
            matches!(byte, b'\r' | b'\n')
                || (matches!(self.ends, Ends::Lines) && matches!(byte, b' ' | b'\t'))
        };
        // Line ends before a row are skipped: blank lines, and the second byte of the end of the row before it.
        let blank = text.iter().take_while(|byte| is_blank(byte)).count();
        let is_empty = blank == text.len();
        match &self.ends {
            Ends::Lines => {
                self.ended += 1;
                return Ok((!is_empty).then_some(Piece { number: self.ended, start, text }));
            }
            Ends::Rows(_) if is_empty => return Ok(None),
            Ends::Rows(_) => self.ended += 1,
        }
        let piece = Piece { number: self.ended, start: start + blank as u64, text: text.slice(blank..) };
        if self.part.columns.is_some() {
            return Ok(Some(piece));
        }
        let columns =
            self.format.columns(&piece.text).map_err(|reason| self.part.fault(1, &reason.to_string()))?;
        self.part = Arc::new(Part { object: self.part.object.clone(), columns: Some(columns) });
        Ok(None)
    }
}

impl Ends {
    /// Length of the text up to the end of the current record, including its line end; `None` if the record continues behind `text`.
    fn find(&mut self, text: &[u8]) -> Option<usize> {
        match self {
            Self::Lines => memchr(b'\n', text).map(|end| end + 1),
            Self::Rows(rows) => {
                let RowEnds { reader, values, ends } = &mut **rows;
                let mut at = 0;
                // To the reader, an empty text is the end of the object.
                while at < text.len() {
                    let (result, read, ..) = reader.read_record(&text[at..], values, ends);
                    at += read;
                    if result == ReadRecordResult::Record {
                        return Some(at);
                    }
                }
                None
            }
        }
    }
}
