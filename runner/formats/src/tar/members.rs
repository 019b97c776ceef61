//! Files in a tar archive: POSIX ustar and pax, and the extensions of GNU tar for long names and large sizes.

use std::ops::Range;

use bytes::Bytes;
use penstock_engine::ports::SourceFault;
use penstock_storage::{RangedObject, shown};
use penstock_types::left_out::LeftOutReason;

use crate::damage::Damage;
use crate::sequence::Sequence;

/// Size of a header, and alignment of all parts of an archive.
const BLOCK: u64 = 512;

/// Maximum size of an extended header, in bytes.
const MAX_EXTENSION: u64 = 1 << 20;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 4096;

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Place of the content in the archive.
    pub(crate) content: Range<u64>,
    /// Reason why the content is not read: the archive ends before its end, or before that of the padding.
    cut: Option<String>,
}

/// The files of an archive, in order.
pub(crate) struct Members {
    object: RangedObject,
    /// Bytes that follow the last header or content.
    pub(super) bytes: Sequence,
    damage: Damage,
    /// Set once the archive has ended without its end mark.
    pub(super) lacks_end: bool,
}

/// A header.
struct Header {
    kind: u8,
    name: String,
    size: u64,
}

/// Values of extended headers for the file that follows.
#[derive(Default)]
struct Extension {
    is_there: bool,
    name: Option<String>,
    size: Option<u64>,
}

impl Members {
    pub(crate) fn new(object: RangedObject, ahead_bytes: u64, damage: Damage) -> Self {
        Self { bytes: Sequence::new(object.clone(), ahead_bytes, |_| true), object, damage, lacks_end: false }
    }

    /// Counts a file that belongs to no sample.
    pub(crate) fn leave_out(&self, reason: LeftOutReason, name: &str) {
        let name = format!("{}: {name}", self.object.key);
        self.damage.notes.leave_out(reason, 1, [&*name]);
    }

    /// The next file, which may be cut; `None` at the end of the archive. The content of the file before it is skipped.
    pub(crate) async fn next(&mut self) -> Result<Option<Member>, SourceFault> {
        let mut extension = Extension::default();
        loop {
            let start = self.bytes.position();
            // Archives of some writers end without the block of zeros, and those that were cut between two files.
            if start == self.object.size() {
                if start == 0 {
                    return Err(self.fault(0, "is empty: was it written in full?"));
                }
                return match extension.is_there {
                    false => {
                        self.lacks_end = true;
                        self.damage.warn("shards without an end mark, as if they were cut", &self.object.key);
                        Ok(None)
                    }
                    true => Err(self.fault(start, "ends after an extended header: is it truncated?")),
                };
            }
            let header = self.bytes.take(BLOCK).await?;
            let Some(header) = header else { return Err(self.fault(start, "ends within a header")) };
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header::read(&header).map_err(|reason| self.fault(start, reason))?;
            let size = extension.size.filter(|_| header.is_file()).unwrap_or(header.size);
            let content = start + BLOCK;
            let padded = size.checked_next_multiple_of(BLOCK).and_then(|size| content.checked_add(size));
            let Some(next) = padded.filter(|next| *next <= self.object.size()) else {
                let name = shown(&header.name);
                let reason = match content.checked_add(size) {
                    Some(end) if end <= self.object.size() => {
                        format!("ends within the padding behind {name}: is it truncated?")
                    }
                    _ => format!("ends before the {size} bytes of {name}: is it truncated?"),
                };
                if header.is_file() {
                    let name = extension.name.unwrap_or(header.name);
                    return Ok(Some(Member { name, content: content..content, cut: Some(reason) }));
                }
                return Err(self.fault(start, &reason));
            };
            match header.kind {
                b'L' | b'x' => {
                    if size > MAX_EXTENSION {
                        let reason =
                            format!("has an extended header of {size} bytes, more than {MAX_EXTENSION}");
                        return Err(self.fault(start, &reason));
                    }
                    extension.is_there = true;
                    let text = self.bytes.take(size).await?.unwrap_or_default();
                    match header.kind {
                        b'L' => extension.name = Some(until_nul(&text)),
                        _ => extension.read_pax(&text).map_err(|reason| self.fault(start, reason))?,
                    }
                }
                b'S' => {
                    let reason = "has a sparse file, which is not read";
                    return Err(SourceFault { is_damage: false, ..self.fault(start, reason) });
                }
                _ if header.is_file() => {
                    let name = extension.name.unwrap_or(header.name);
                    if name.len() > MAX_NAME {
                        return Err(self.fault(start, "has a name of more than 4096 bytes"));
                    }
                    return Ok(Some(Member { name, content: content..content + size, cut: None }));
                }
                // Values of a global header do not concern names and sizes.
                b'g' | b'K' => {}
                b'1' | b'2' => {
                    let name = extension.name.take().unwrap_or(header.name);
                    self.leave_out(LeftOutReason::Link, &name);
                    extension = Extension::default();
                }
                // Folders.
                _ => extension = Extension::default(),
            }
            self.bytes.seek(next);
        }
    }

    /// Fails if the archive is cut within the file.
    pub(crate) fn check(&self, member: &Member) -> Result<(), SourceFault> {
        match &member.cut {
            Some(reason) => Err(self.fault(member.content.start - BLOCK, reason)),
            None => Ok(()),
        }
    }

    /// Content of the file that was returned last.
    pub(crate) async fn content(&mut self, member: &Member) -> Result<Bytes, SourceFault> {
        self.bytes.seek(member.content.start);
        let content = self.bytes.take(member.content.end - member.content.start).await?;
        self.bytes.seek(self.bytes.position().next_multiple_of(BLOCK));
        let changed = || self.fault(member.content.start, "changed while it was read");
        content.ok_or_else(|| SourceFault { is_damage: false, ..changed() })
    }

    /// Leaves the content of the file that was returned last.
    pub(crate) fn skip(&mut self, member: &Member) {
        self.bytes.seek(member.content.end.next_multiple_of(BLOCK));
    }

    pub(crate) fn fault(&self, at: u64, reason: &str) -> SourceFault {
        fault(&self.object, at, reason)
    }
}

pub(crate) fn fault(object: &RangedObject, at: u64, reason: &str) -> SourceFault {
    let (key, store) = (shown(&object.key), object.store.name());
    SourceFault::damage(format!("the tar archive {key} in store `{store}`, at byte {at}, {reason}"))
}

impl Header {
    fn read(block: &[u8]) -> Result<Self, &'static str> {
        // The sum is that of the header with spaces in its place.
        let sum = sum(block) - sum(&block[148..156]) + 8 * u64::from(b' ');
        if number(&block[148..156]) != Some(sum) {
            return Err("has a header with a wrong checksum: is it a tar archive, and not compressed?");
        }
        let size = number(&block[124..136]).ok_or("has a header with an invalid size")?;
        let (name, kind) = (until_nul(&block[..100]), block[156]);
        // GNU tar uses the place of the prefix for times.
        let prefix = if &block[257..263] == b"ustar\0" { until_nul(&block[345..500]) } else { String::new() };
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        Ok(Self { kind, name, size })
    }

    fn is_file(&self) -> bool {
        // An old archive marks folders by their names alone.
        matches!(self.kind, b'0' | 0 | b'7') && !self.name.ends_with('/')
    }
}

impl Extension {
    /// Reads records `LENGTH NAME=VALUE\n`, whose lengths count whole records.
    fn read_pax(&mut self, mut text: &[u8]) -> Result<(), &'static str> {
        const DAMAGED: &str = "has a damaged extended header";
        while !text.is_empty() {
            let space = text.iter().position(|byte| *byte == b' ').ok_or(DAMAGED)?;
            let length = str::from_utf8(&text[..space]).ok().and_then(|length| length.parse::<usize>().ok());
            let length = length.filter(|length| (space + 2..=text.len()).contains(length)).ok_or(DAMAGED)?;
            let (record, rest) = text.split_at(length);
            let (name, value) = {
                let record = &record[space + 1..length - 1];
                let equals = record.iter().position(|byte| *byte == b'=').ok_or(DAMAGED)?;
                (&record[..equals], String::from_utf8_lossy(&record[equals + 1..]))
            };
            match name {
                b"path" => self.name = Some(value.into_owned()),
                b"size" => self.size = Some(value.parse().map_err(|_| DAMAGED)?),
                _ => {}
            }
            text = rest;
        }
        Ok(())
    }
}

/// A number: octal digits, or, if the first bit is set, a big-endian number of the remaining bits.
fn number(field: &[u8]) -> Option<u64> {
    if let [first, rest @ ..] = field
        && first & 0x80 != 0
    {
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |number, byte| Some(number.checked_mul(256)? + u64::from(*byte)));
    }
    let digits = str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

/// Sum of the bytes. There are at most 1024: eight are added at once, each pair in 16 bits.
fn sum(bytes: &[u8]) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let (words, rest) = bytes.as_chunks::<8>();
    let pairs = words.iter().fold(0, |pairs, word| {
        let word = u64::from_le_bytes(*word);
        pairs + (word & EVEN) + (word >> 8 & EVEN)
    });
    let of_words: u64 = (0..4).map(|pair| pairs >> (16 * pair) & 0xffff).sum();
    of_words + rest.iter().map(|byte| u64::from(*byte)).sum::<u64>()
}

fn until_nul(text: &[u8]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}
