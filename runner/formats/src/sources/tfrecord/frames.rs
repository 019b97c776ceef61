//! Frames of a TFRecord file: length, checksum of the length, record, checksum of the record.

use std::ops::Range;

use bytes::Bytes;
use penstock_engine::ports::SourceFault;
use penstock_storage::RangedObject;

use crate::reason::Reason;
use crate::sequence::Sequence;

/// Size of length and checksum in front of a record, in bytes.
const HEADER: u64 = 12;

/// Size of the checksum after a record, in bytes.
const FOOTER: u64 = 4;

const NO_RECORD: &str = "has a length with a wrong checksum: it is damaged, no TFRecord file, or compressed other than with gzip or zstd";

pub(super) struct Frames {
    pub(super) content: Sequence,
}

impl Frames {
    pub(super) fn new(object: RangedObject, ahead_bytes: u64) -> Self {
        // The first bytes of a length may be those of a compressed file.
        let is_plain = |first: &[u8]| first.get(..HEADER as usize).and_then(length).is_some();
        Self { content: Sequence::new(object, ahead_bytes, is_plain) }
    }

    /// Place of the next frame, whose record must then be read or skipped; `None` at the end of the file.
    pub(super) async fn next(&mut self) -> Result<Option<Range<u64>>, SourceFault> {
        let start = self.content.position();
        if self.content.end().await?.is_some() {
            if start == 0 {
                return Err(self.fault(0, "is empty: was it written in full?"));
            }
            return Ok(None);
        }
        let Some(header) = self.content.take(HEADER).await? else {
            return Err(self.fault(start, "ends within the length of a record: is it truncated?"));
        };
        let Some(length) = length(&header) else { return Err(self.fault(start, NO_RECORD)) };
        let end = length.checked_add(HEADER + FOOTER).and_then(|length| start.checked_add(length));
        let size = self.content.size().unwrap_or(u64::MAX);
        let Some(end) = end.filter(|end| *end <= size) else { return Err(self.truncated(start, length)) };
        Ok(Some(start..end))
    }

    /// The record of the frame that was returned last, with its checksum.
    pub(super) async fn rest(&mut self, frame: &Range<u64>, most_bytes: u64) -> Result<Bytes, SourceFault> {
        let length = frame.end - frame.start - HEADER - FOOTER;
        if length > most_bytes {
            let reason =
                format!("has a record of {length} bytes, more than {most_bytes}; raise `buffer_mib`");
            return Err(SourceFault { is_damage: false, ..self.fault(frame.start, &reason) });
        }
        match self.content.take(length + FOOTER).await? {
            Some(rest) => Ok(rest),
            None => Err(self.truncated(frame.start, length)),
        }
    }

    /// The record in what [`Self::rest`] has returned.
    pub(super) fn checked(&self, frame: &Range<u64>, rest: Bytes) -> Result<Bytes, SourceFault> {
        checked(rest).map_err(|reason| self.fault(frame.start, &format!("has a record that {reason}")))
    }

    /// The checksum of the record of the frame that was returned last, which is skipped.
    pub(super) async fn checksum(&mut self, frame: &Range<u64>) -> Result<Bytes, SourceFault> {
        self.content.seek(frame.end - FOOTER);
        let checksum = self.content.take(FOOTER).await?;
        checksum.ok_or_else(|| self.truncated(frame.start, frame.end - frame.start - HEADER - FOOTER))
    }

    /// Skips the record of the frame that was returned last.
    pub(super) async fn skip(&mut self, frame: &Range<u64>) -> Result<(), SourceFault> {
        self.content.seek(frame.end);
        match self.content.is_within().await? {
            true => Ok(()),
            false => Err(self.truncated(frame.start, frame.end - frame.start - HEADER - FOOTER)),
        }
    }

    pub(super) fn fault(&self, at: u64, reason: &str) -> SourceFault {
        self.content.fault_at("the TFRecord file", at, reason)
    }

    fn truncated(&self, start: u64, length: u64) -> SourceFault {
        self.fault(start, &format!("ends before the {length} bytes of a record: is it truncated?"))
    }
}

/// The record of a whole frame. The error is the end of a sentence.
pub(super) fn record(mut frame: Bytes) -> Result<Bytes, Reason> {
    let whole = frame.len() as u64;
    let header = frame.split_to(frame.len().min(HEADER as usize));
    match length(&header) {
        Some(length) if length.checked_add(HEADER + FOOTER) == Some(whole) => checked(frame),
        Some(_) => {
            Err("has another length than in the index; make it again with `penstock index create --tfrecord`"
                .into())
        }
        None => Err("has a length with a wrong checksum: the file is damaged".into()),
    }
}

fn length(header: &[u8]) -> Option<u64> {
    let (length, checksum) = header.split_first_chunk::<8>()?;
    (masked_crc(length) == u32::from_le_bytes(checksum.try_into().ok()?)).then(|| u64::from_le_bytes(*length))
}

/// A record without the checksum that follows it.
fn checked(mut record: Bytes) -> Result<Bytes, Reason> {
    let checksum = record.split_off(record.len().saturating_sub(FOOTER as usize));
    let found = masked_crc(&record);
    match checksum.as_ref().try_into().map(u32::from_le_bytes) {
        Ok(stored) if stored == found => Ok(record),
        _ => Err(format!("has a wrong checksum, {found:#010x}: the file is damaged").into()),
    }
}

/// Checksum as TFRecord files have it: rotated, since a checksum of data that contains checksums is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
