//! Files in a tar archive: POSIX ustar and pax, and the extensions of GNU tar for long names and large sizes.

use std::fmt::Write;
use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memchr_iter};
use penstock_engine::ports::SourceFault;
use penstock_storage::{RangedObject, shown};
use penstock_types::left_out::LeftOutReason;

use crate::damage::Damage;
use crate::entry::Digest;
use crate::index::MAX_HEADERS;
use crate::sequence::Sequence;

/// Size of a header, and alignment of all parts of an archive.
const BLOCK: u64 = 512;

/// Maximum size of an extended header, in bytes.
const MAX_EXTENSION: u64 = 1 << 20;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Place of the content in the archive.
    pub(crate) content: Range<u64>,
    /// Digest of the headers, for an index.
    pub(crate) digest: Option<Digest>,
    /// Reason why the content is not read: the archive ends before its end, or before that of the padding.
    cut: Option<String>,
}

pub(crate) struct Members {
    /// Bytes that follow the last header or content.
    pub(super) bytes: Sequence,
    damage: Damage,
    /// Set once the archive has ended without its end mark.
    pub(super) lacks_end: bool,
    /// Set if the digests of headers are needed.
    pub(super) has_digests: bool,
    is_ended: bool,
}

struct Header {
    kind: u8,
    name: Vec<u8>,
    size: u64,
}

/// Values of extended headers for the file that follows. Of several headers, the first one counts.
#[derive(Default)]
struct Extension {
    is_there: bool,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    /// Set if the content has holes, and starts with their places or lies in other parts than a reader without the extension finds.
    is_sparse: bool,
}

impl Members {
    pub(crate) fn new(object: RangedObject, ahead_bytes: u64, damage: Damage) -> Self {
        // The first name may look like compressed content.
        let is_plain =
            |first: &[u8]| first.get(..BLOCK as usize).is_some_and(|block| Header::read(block).is_ok());
        Self {
            bytes: Sequence::new(object, ahead_bytes, is_plain),
            damage,
            lacks_end: false,
            has_digests: false,
            is_ended: false,
        }
    }

    /// Counts a file that belongs to no sample.
    pub(crate) fn leave_out(&self, reason: LeftOutReason, name: &str) {
        let name = format!("{}: {name}", self.bytes.object.key);
        self.damage.notes.leave_out(reason, 1, [&*name]);
    }

    /// The next file, which may be cut; `None` at the end of the archive. The content of the file before it is skipped.
    pub(crate) async fn next(&mut self) -> Result<Option<Member>, SourceFault> {
        let mut extension = Extension::default();
        // Headers before the next file, which lie side by side: the place of the first, and their checksum.
        let (mut first, mut checksum) = (self.bytes.position(), crc32fast::Hasher::new());
        while !self.is_ended {
            let start = self.bytes.position();
            if let Some(end) = self.bytes.end().await? {
                return self.end_without_mark(start, end, &extension).map(|()| None);
            }
            let header = self.bytes.take(BLOCK).await?;
            let Some(header) = header else { return Err(self.fault(start, "ends within a header")) };
            if header.iter().all(|byte| *byte == 0) {
                self.is_ended = true;
                self.read_padding().await?;
                break;
            }
            if self.has_digests {
                checksum.update(&header);
            }
            let header = Header::read(&header).map_err(|reason| self.fault(start, reason))?;
            let is_file = header.is_file(&extension);
            let size = header.content_bytes(is_file, &extension);
            let content = start + BLOCK;
            let padded = size.checked_next_multiple_of(BLOCK).and_then(|size| content.checked_add(size));
            let archive = self.bytes.size().unwrap_or(u64::MAX);
            let Some(next) = padded.filter(|next| *next <= archive) else {
                let name = readable(extension.name.unwrap_or(header.name));
                return self.cut_member(name, content, size, is_file).map(Some);
            };
            match header.kind {
                b'L' | b'x' | b'X' | b'g' => {
                    extension.or(self.read_extension(header.kind, start, size, &mut checksum).await?);
                    continue;
                }
                b'S' => return Err(self.sparse(start)),
                _ if is_file && extension.is_sparse => return Err(self.sparse(start)),
                _ if is_file => {
                    let name = readable(extension.name.map_or(header.name, without_slashes));
                    return self.member(name, content..content + size, first, checksum).map(Some);
                }
                // The target of a link.
                b'K' => {}
                kind => {
                    if let Some(reason) = left_out(kind) {
                        self.leave_out(reason, &readable(extension.name.unwrap_or(header.name)));
                    }
                    extension = Extension::default();
                }
            }
            self.bytes.seek(next);
            (first, checksum) = (next, crc32fast::Hasher::new());
        }
        Ok(None)
    }

    /// Notes the end of an archive without the block of zeros: some writers omit it, and an archive that was cut between two files lacks it.
    fn end_without_mark(&mut self, start: u64, end: u64, extension: &Extension) -> Result<(), SourceFault> {
        if start == 0 {
            return Err(self.fault(0, "is empty: was it written in full?"));
        }
        if end < start {
            return Err(self.fault(end, "ends within a file or the padding behind it: is it truncated?"));
        }
        if extension.is_there {
            return Err(self.fault(start, "ends after an extended header: is it truncated?"));
        }
        self.lacks_end = true;
        self.damage.notes.warn("shards without an end mark, as if they were cut", &self.bytes.object.key);
        Ok(())
    }

    /// The file whose content, or the padding behind it, would end behind the archive. Anything but a file is a fault.
    fn cut_member(
        &self,
        name: String,
        content: u64,
        size: u64,
        is_file: bool,
    ) -> Result<Member, SourceFault> {
        let shown = shown(&name);
        let archive = self.bytes.size().unwrap_or(u64::MAX);
        let reason = match content.checked_add(size) {
            Some(end) if end <= archive => {
                format!("ends within the padding behind {shown}: is it truncated?")
            }
            _ => format!("ends before the {size} bytes of {shown}: is it truncated?"),
        };
        match is_file {
            true => Ok(Member { name, content: content..content, digest: None, cut: Some(reason) }),
            false => Err(self.fault(content - BLOCK, &reason)),
        }
    }

    /// Reads the extended header behind the block at `start`, and adds it to `checksum` if digests are needed.
    async fn read_extension(
        &mut self,
        kind: u8,
        start: u64,
        size: u64,
        checksum: &mut crc32fast::Hasher,
    ) -> Result<Extension, SourceFault> {
        if size > MAX_EXTENSION {
            let reason = format!("has an extended header of {size} bytes, more than {MAX_EXTENSION}");
            return Err(self.fault(start, &reason));
        }
        let Some(mut text) = self.bytes.take(size.next_multiple_of(BLOCK)).await? else {
            return Err(self.fault(start, "ends within an extended header: is it truncated?"));
        };
        if self.has_digests {
            checksum.update(&text);
        }
        text.truncate(size as usize);
        let mut read = Extension { is_there: kind != b'g', ..Extension::default() };
        match kind {
            b'L' => read.name = Some(until_nul(&text).to_vec()),
            _ => read.read_pax(&text).map_err(|reason| self.fault(start, reason))?,
        }
        if kind == b'g' && (read.name.is_some() || read.size.is_some() || read.is_sparse) {
            let reason = "has a global header with a path, a size or holes for all files, which is not read";
            return Err(SourceFault { is_damage: false, ..self.fault(start, reason) });
        }
        Ok(read)
    }

    /// A whole file, whose headers begin at `first`.
    fn member(
        &self,
        name: String,
        content: Range<u64>,
        first: u64,
        checksum: crc32fast::Hasher,
    ) -> Result<Member, SourceFault> {
        if name.len() > MAX_NAME {
            return Err(self.fault(content.start - BLOCK, "has a name of more than 4096 bytes"));
        }
        let header_bytes = content.start - first;
        if header_bytes > MAX_HEADERS {
            let reason =
                format!("has headers of {header_bytes} bytes before a file, more than {MAX_HEADERS}");
            return Err(SourceFault { is_damage: false, ..self.fault(first, &reason) });
        }
        let digest = self.has_digests.then(|| Digest { header_bytes, checksum: checksum.finalize() });
        Ok(Member { name, content, digest, cut: None })
    }

    /// Looks at what follows the end mark, usually zeros up to 10 KiB. Compressed content is read to its end, so that its checksum is verified.
    async fn read_padding(&mut self) -> Result<(), SourceFault> {
        let (mut has_data, mut blocks) = (false, 0);
        while self.bytes.compression().is_some() || !has_data && blocks < 2 {
            let Some(block) = self.bytes.block().await? else { break };
            has_data = has_data || block.iter().any(|byte| *byte != 0);
            blocks += 1;
        }
        if has_data {
            let warning =
                "shards with data behind their end mark, which are not read (are several archives joined?)";
            self.damage.notes.warn(warning, &self.bytes.object.key);
        }
        Ok(())
    }

    fn sparse(&self, at: u64) -> SourceFault {
        let reason = "has a sparse file, which is not read: make the archive without `--sparse` (`-S`)";
        SourceFault { is_damage: false, ..self.fault(at, reason) }
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
        let size = member.content.end - member.content.start;
        let content = self.bytes.take(size).await?;
        if content.is_none() && self.bytes.compression().is_some() {
            let name = shown(&member.name);
            let reason = format!("ends before the {size} bytes of {name}: is it truncated?");
            return Err(self.fault(member.content.start - BLOCK, &reason));
        }
        self.bytes.seek(self.bytes.position().next_multiple_of(BLOCK));
        let changed = || self.fault(member.content.start, "changed while it was read");
        content.ok_or_else(|| SourceFault { is_damage: false, ..changed() })
    }

    /// Leaves the content of the file that was returned last.
    pub(crate) fn skip(&mut self, member: &Member) {
        self.bytes.seek(member.content.end.next_multiple_of(BLOCK));
    }

    pub(crate) fn fault(&self, at: u64, reason: &str) -> SourceFault {
        self.bytes.fault_at("the tar archive", at, reason)
    }
}

impl Header {
    fn read(block: &[u8]) -> Result<Self, &'static str> {
        // The sum is that of the header with spaces in its place.
        let sum = sum(block) - sum(&block[148..156]) + 8 * u64::from(b' ');
        let stated = number(&block[148..156]);
        if stated != Some(sum) && (stated.is_none() || stated != signed_sum(block, sum)) {
            return Err("has a header with a wrong checksum: is it a tar archive?");
        }
        let size = number(&block[124..136]).ok_or("has a header with an invalid size")?;
        let (name, kind) = (until_nul(&block[..100]), block[156]);
        // GNU tar uses the place of the prefix for times.
        let prefix = if &block[257..263] == b"ustar\0" { until_nul(&block[345..500]) } else { &[] };
        let name = if prefix.is_empty() { name.to_vec() } else { [prefix, &b"/"[..], name].concat() };
        Ok(Self { kind, name, size })
    }

    /// Size of the content behind the header, without its padding.
    fn content_bytes(&self, is_file: bool, extension: &Extension) -> u64 {
        match self.kind {
            b'L' | b'K' | b'x' | b'X' | b'g' => self.size,
            // Behind links, folders and devices no content follows, even if they state a size.
            b'1'..=b'6' => 0,
            b'0' | 0 | b'7' if !is_file => 0,
            _ => extension.size.unwrap_or(self.size),
        }
    }

    /// True for a file. Old archives mark folders by a `/` at the end of the name, and so do some others; the name of an extended header counts.
    fn is_file(&self, extension: &Extension) -> bool {
        if !matches!(self.kind, b'0' | 0 | b'7') {
            return false;
        }
        let name = extension.name.as_deref().unwrap_or(&self.name);
        let is_old = self.kind == 0 && extension.name.is_none();
        !(name.ends_with(b"/") && (is_old || extension.size.unwrap_or(self.size) == 0))
    }
}

impl Extension {
    /// Adds the values of a later header.
    fn or(&mut self, other: Self) {
        self.is_there |= other.is_there;
        self.name = self.name.take().or(other.name);
        self.size = self.size.or(other.size);
        self.is_sparse |= other.is_sparse;
    }

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
                (&record[..equals], &record[equals + 1..])
            };
            match name {
                b"path" => self.name = Some(value.to_vec()),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    self.size = Some(size.ok_or(DAMAGED)?);
                }
                // GNU tar, star and the tar of Solaris.
                _ if name.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                b"SUN.holesdata" | b"SCHILY.realsize" => self.is_sparse = true,
                _ => {}
            }
            text = rest;
        }
        Ok(())
    }
}

/// Reason by which an entry of this kind counts as left out; `None` if it does not count.
fn left_out(kind: u8) -> Option<LeftOutReason> {
    match kind {
        b'1' | b'2' => Some(LeftOutReason::Link),
        // Folders, lists of their files, and names of volumes.
        b'0' | 0 | b'5' | b'7' | b'D' | b'V' => None,
        _ => Some(LeftOutReason::NoFile),
    }
}

/// The sum as writers make it whose characters have signs.
fn signed_sum(block: &[u8], sum: u64) -> Option<u64> {
    let negative = block[..148].iter().chain(&block[156..]).filter(|byte| **byte >= 0x80).count();
    sum.checked_sub(256 * negative as u64)
}

/// A number: octal digits, or, if the first bit is set, a big-endian number of the remaining bits.
fn number(field: &[u8]) -> Option<u64> {
    if let [first, rest @ ..] = field
        && first & 0x80 != 0
    {
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |number, byte| Some(number.checked_mul(256)? + u64::from(*byte)));
    }
    let digits = str::from_utf8(until_nul(field)).ok()?.trim_matches(' ');
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

fn without_slashes(mut name: Vec<u8>) -> Vec<u8> {
    name.truncate(name.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1));
    name
}

fn until_nul(text: &[u8]) -> &[u8] {
    &text[..memchr(0, text).unwrap_or(text.len())]
}

/// The name as a text. Bytes that are not UTF-8 become `\xHH`, with two digits each; a `\` before `xHH` becomes `\x5c`, so that different
/// names stay different, also in lower case.
fn readable(name: Vec<u8>) -> String {
    let is_escape = |name: &[u8]| match name {
        [b'\\', b'x' | b'X', high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
        _ => false,
    };
    let escapes = |name: &[u8]| memchr_iter(b'\\', name).any(|at| is_escape(&name[at..]));
    let name = match String::from_utf8(name) {
        Ok(name) if !escapes(name.as_bytes()) => return name,
        name => name.map_or_else(|error| error.into_bytes(), String::into_bytes),
    };
    let mut text = String::new();
    let mut rest = &name[..];
    for part in name.utf8_chunks() {
        for char in part.valid().chars() {
            match char {
                '\\' if is_escape(rest) => text.push_str("\\x5c"),
                char => text.push(char),
            }
            rest = &rest[char.len_utf8()..];
        }
        for byte in part.invalid() {
            write!(text, "\\x{byte:02x}").expect("a string takes any text");
            rest = &rest[1..];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_different_and_readable() {
        for (name, expected) in [
            (&b"a/caf\xc3\xa9.jpg"[..], "a/caf\u{e9}.jpg"),
            (b"caf\xe8.jpg", "caf\\xe8.jpg"),
            (b"caf\\xe8.jpg", "caf\\x5cxe8.jpg"),
            (b"caf\\XE8.jpg", "caf\\x5cXE8.jpg"),
            (b"\\x5c\xff\\xg", "\\x5cx5c\\xff\\xg"),
            (b"windows\\xylo\\x", "windows\\xylo\\x"),
        ] {
            assert_eq!(readable(name.to_vec()), expected);
        }
    }
}
