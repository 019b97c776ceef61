//! Splits an object into records, in range reads, so that the size of the object does not matter.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use crc_fast::CrcAlgorithm;
use csv_core::ReadRecordResult;
use memchr::memchr;
use penstock_engine::ports::SourceFault;
use penstock_storage::{RAISE_BUFFER, RangedObject};
use penstock_types::spec::RecordForm;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::charset::{Charset, Decoder};
use super::format::RecordFormat;
use super::layout::reader;
use super::part::Part;
use crate::sequence::Sequence;

/// Maximum size of a record, in bytes.
pub(super) const MAX_RECORD_BYTES: usize = 64 << 20;

/// Size beyond which the records of several objects are read one at a time, in bytes.
const LONG: usize = 4 << 20;

/// Limits of long records, shared by the objects of a source.
#[derive(Clone)]
pub(super) struct LongRecords {
    most_bytes: usize,
    /// One permit, to read a record of more than [`LONG`] bytes.
    turn: Arc<Semaphore>,
}

pub(super) struct Splitter {
    /// The object, with its columns once a record was returned.
    pub(super) part: Arc<Part>,
    pub(super) format: Arc<RecordFormat>,
    pub(super) content: Sequence,
    /// Decoder of the text, once its encoding is known.
    decoder: Option<Decoder>,
    ends: Ends,
    /// First part of a record that continues in the next block.
    begun: BytesMut,
    long: LongRecords,
    /// Held while a long record is read.
    turn: Option<OwnedSemaphorePermit>,
    /// Number of lines or rows that have ended, including blank lines and the header.
    ended: u64,
    /// Checksums of the blocks so far.
    pub(super) checksums: Vec<u64>,
    /// Position of the current record, which is the end of the last complete one.
    pub(super) position: u64,
}

/// A record that is not parsed yet.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Number of the line or row, from 1. Blank lines count as lines, and the header is row 1.
    pub(super) number: u64,
    /// Position of the record in the content of the object, in bytes.
    pub(super) start: u64,
    /// Text of the record, with its line end if it has one.
    pub(super) text: Bytes,
}

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

impl LongRecords {
    /// Records of at most `most_bytes`, and at most 64 MiB.
    pub(super) fn within(most_bytes: u64) -> Self {
        let most_bytes = usize::try_from(most_bytes).unwrap_or(usize::MAX).min(MAX_RECORD_BYTES);
        Self { most_bytes, turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Splitter {
    /// Starts at the beginning of the object, as [`Sequence::new`] does.
    pub(super) fn new(
        object: RangedObject,
        format: Arc<RecordFormat>,
        ahead_bytes: u64,
        long: LongRecords,
    ) -> Self {
        let content = Sequence::new(object.clone(), ahead_bytes, |_| false);
        let ends = match format.form {
            RecordForm::Lines => Ends::Lines,
            RecordForm::Rows(form) => {
                Ends::Rows(Box::new(RowEnds { reader: reader(form), values: [0; 4096], ends: [0; 256] }))
            }
        };
        let part = Arc::new(Part { object, charset: Charset::default(), columns: None });
        Self {
            part,
            format,
            content,
            decoder: None,
            ends,
            begun: BytesMut::new(),
            long,
            turn: None,
            ended: 0,
            checksums: Vec::new(),
            position: 0,
        }
    }

    /// Returns the records that end in the next block; `None` at the end of the object. Empty if no record ends in the block.
    pub(super) async fn next_block(&mut self) -> Result<Option<Vec<Piece>>, SourceFault> {
        let mut block = match &mut self.decoder {
            Some(decoder) => match self.content.block().await? {
                None => return self.last_record(),
                Some(raw) => {
                    self.checksums.push(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &raw));
                    decoder.decode(raw)
                }
            },
            None => self.first_block().await?,
        };
        let charset = self.part.charset;
        let mut pieces = Vec::new();
        while let Some(length) = self.ends.find(&block) {
            let mut text = block.split_to(length);
            if !self.begun.is_empty() {
                self.begun.extend_from_slice(&text);
                text = std::mem::take(&mut self.begun).freeze();
                self.turn = None;
            }
            let start = self.position;
            let next = start + charset.raw_length(&text);
            pieces.extend(self.end_record(start, text)?);
            self.position = next;
        }
        let length = self.begun.len() + block.len();
        if length > self.long.most_bytes {
            return Err(self.too_long());
        }
        if length > LONG && self.turn.is_none() {
            self.turn = self.long.turn.clone().acquire_owned().await.ok();
        }
        self.begun.extend_from_slice(&block);
        Ok(Some(pieces))
    }

    fn too_long(&self) -> SourceFault {
        let (number, most) = (self.ended + 1, self.long.most_bytes);
        if most < MAX_RECORD_BYTES {
            let reason = format!("is longer than {most} bytes; split it up{RAISE_BUFFER}");
            return SourceFault { is_damage: false, ..self.part.fault(number, &reason) };
        }
        let reason = match self.ends {
            Ends::Lines => "is longer than 64 MiB; is it NDJSON, with one object per line?",
            Ends::Rows(_) => "is longer than 64 MiB; is there a quote without its end?",
        };
        self.part.fault(number, reason)
    }

    /// Text of the first block, by which the encoding is known. Fails if the object is empty.
    async fn first_block(&mut self) -> Result<Bytes, SourceFault> {
        let Some(head) = self.content.block().await? else {
            let object = self.part.object.named();
            return Err(SourceFault::damage(format!(
                "the object {object} is empty: was it written in full?"
            )));
        };
        self.checksums.push(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &head));
        let (charset, mark) =
            Charset::of(self.format.form, &head).map_err(|reason| self.part.fault_of(1, &reason))?;
        self.part = Arc::new(Part { object: self.part.object.clone(), charset, columns: None });
        self.position = mark as u64;
        Ok(self.decoder.insert(Decoder::new(charset)).decode(head.slice(mark..)))
    }

    /// Text after the last end of a record, as a record.
    fn last_record(&mut self) -> Result<Option<Vec<Piece>>, SourceFault> {
        if let Some(decoder) = &mut self.decoder {
            self.begun.extend_from_slice(decoder.take_rest());
        }
        let text = self.begun.split().freeze();
        if !text.is_empty() {
            return Ok(Some(self.end_record(self.position, text)?.into_iter().collect()));
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
        let start = start + self.part.charset.raw_length(&text[..blank]);
        let piece = Piece { number: self.ended, start, text: text.slice(blank..) };
        if self.part.columns.is_some() {
            return Ok(Some(piece));
        }
        let Part { object, charset, .. } = &*self.part;
        let columns = self.format.columns(&piece.text, *charset, self.ended == 1);
        if let Some(columns) = columns.map_err(|reason| self.part.fault_of(self.ended, &reason))? {
            self.part = Arc::new(Part { object: object.clone(), charset: *charset, columns: Some(columns) });
        }
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
