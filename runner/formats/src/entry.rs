//! Entries of an index: key and places of the files of one sample, packed.

use std::ops::Range;

use penstock_types::varint;

use crate::value::MAX_KEY;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Key; empty for a sample that has none of its own.
    pub(crate) key: String,
    /// Files in the order of the shard.
    pub(crate) files: Vec<FilePlace>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    pub(crate) field: u32,
    pub(crate) content: Range<u64>,
    /// Digest of the headers before the content, or of the content; `None` in indexes of earlier builds.
    pub(crate) digest: Option<Digest>,
}

/// Digest that tells whether a file is still the one of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    /// Size of the headers before the content, whose name may be in an extended one.
    pub(crate) header_bytes: u64,
    pub(crate) checksum: u32,
}

impl FilePlace {
    /// Place of the content with the headers that its digest stands for.
    pub(crate) fn checked(&self) -> Range<u64> {
        self.content.start - self.digest.map_or(0, |digest| digest.header_bytes)..self.content.end
    }
}

/// Writes entries. Numbers have seven bits in each byte, the lowest first.
#[derive(Debug)]
pub(crate) struct Packer {
    /// Alignment of the files in bytes.
    pub(crate) alignment: u64,
    bytes: Vec<u8>,
    /// Key and end of the entry before.
    last: (Vec<u8>, u64),
}

pub(crate) struct Unpacker<'a> {
    alignment: u64,
    has_digests: bool,
    rest: &'a [u8],
    last: (Vec<u8>, u64),
}

impl Packer {
    pub(crate) fn new(alignment: u64) -> Self {
        Self { alignment, bytes: Vec::new(), last: (Vec::new(), 0) }
    }

    /// Lets the next entry stand for itself; returns its position.
    pub(crate) fn start_group(&mut self) -> u32 {
        self.last = (Vec::new(), 0);
        self.bytes.len() as u32
    }

    /// Adds an entry whose files follow the files before it.
    pub(crate) fn push(&mut self, entry: &Entry) {
        let (last, end) = &mut self.last;
        let key = entry.key.as_bytes();
        let shared = last.iter().zip(key).take_while(|(last, byte)| last == byte).count();
        varint::push(&mut self.bytes, shared as u64);
        varint::push(&mut self.bytes, (key.len() - shared) as u64);
        self.bytes.extend_from_slice(&key[shared..]);
        varint::push(&mut self.bytes, entry.files.len() as u64);
        for FilePlace { field, content, digest } in &entry.files {
            varint::push(&mut self.bytes, (*field).into());
            varint::push(&mut self.bytes, content.start / self.alignment - *end);
            varint::push(&mut self.bytes, content.end - content.start);
            if let Some(Digest { header_bytes, checksum }) = digest {
                if self.alignment > 1 {
                    varint::push(&mut self.bytes, header_bytes / self.alignment);
                }
                self.bytes.extend_from_slice(&checksum.to_le_bytes());
            }
            *end = content.end.div_ceil(self.alignment);
        }
        *last = key.to_vec();
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(entries: &'a [u8], alignment: u64, has_digests: bool) -> Self {
        Self { alignment, has_digests, rest: entries, last: (Vec::new(), 0) }
    }

    pub(crate) fn start_group(&mut self) {
        self.last = (Vec::new(), 0);
    }

    /// Position in the entries that the value was made for.
    pub(crate) fn position(&self, entries: &[u8]) -> usize {
        entries.len() - self.rest.len()
    }

    pub(crate) fn next(&mut self) -> Option<Entry> {
        let mut files = Vec::new();
        self.pass(|file| files.push(file))?;
        let key = str::from_utf8(&self.last.0).ok()?.to_owned();
        Some(Entry { key, files })
    }

    /// Passes the next entry, whose files `file` receives; `None` if it is damaged.
    pub(crate) fn pass(&mut self, mut file: impl FnMut(FilePlace)) -> Option<()> {
        let (shared, other) = (self.number()?, self.number()?);
        let (shared, other) = (usize::try_from(shared).ok()?, usize::try_from(other).ok()?);
        let (text, rest) = self.rest.split_at_checked(other)?;
        self.rest = rest;
        if shared > self.last.0.len() || shared + other > MAX_KEY {
            return None;
        }
        self.last.0.truncate(shared);
        self.last.0.extend_from_slice(text);
        let count = self.number()?;
        // Each file takes three bytes at least.
        if count > self.rest.len() as u64 / 3 {
            return None;
        }
        for _ in 0..count {
            let field = u32::try_from(self.number()?).ok()?;
            let start = self.last.1.checked_add(self.number()?)?.checked_mul(self.alignment)?;
            let end = start.checked_add(self.number()?)?;
            self.last.1 = end.div_ceil(self.alignment);
            let digest = if self.has_digests { Some(self.digest()?) } else { None };
            file(FilePlace { field, content: start..end, digest });
        }
        Some(())
    }

    fn digest(&mut self) -> Option<Digest> {
        let header_bytes = if self.alignment > 1 { self.number()?.checked_mul(self.alignment)? } else { 0 };
        let (checksum, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(Digest { header_bytes, checksum: u32::from_le_bytes(*checksum) })
    }

    fn number(&mut self) -> Option<u64> {
        varint::take(&mut self.rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_are_returned_unchanged(
            alignment in prop_oneof![Just(1_u64), Just(512)],
            samples in proptest::collection::vec(("[a-c/\u{e9}]{0,9}", proptest::collection::vec((0_u32..300, 0_u64..5, 0_u64..5000), 1..4)), 0..40),
        ) {
            let mut end = 0;
            let mut entries = Vec::new();
            for (key, files) in samples {
                let files = files.into_iter().map(|(field, gap, size)| {
                    let start = (end + gap) * alignment;
                    end = (start + size).div_ceil(alignment);
                    let header_bytes = if alignment > 1 { u64::from(field) * alignment } else { 0 };
                    let digest = Digest { header_bytes, checksum: field * 7 };
                    FilePlace { field, content: start..start + size, digest: Some(digest) }
                });
                entries.push(Entry { key, files: files.collect() });
            }
            let mut packer = Packer::new(alignment);
            packer.start_group();
            entries.iter().for_each(|entry| packer.push(entry));
            let bytes = packer.finish();
            let mut unpacker = Unpacker::new(&bytes, alignment, true);
            for entry in &entries {
                let read = unpacker.next();
                prop_assert_eq!(read.as_ref(), Some(entry));
            }
            prop_assert_eq!(unpacker.position(&bytes), bytes.len());
        }

        #[test]
        fn damaged_entries_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60), has_digests: bool) {
            let mut unpacker = Unpacker::new(&bytes, 512, has_digests);
            while unpacker.next().is_some() && unpacker.position(&bytes) < bytes.len() {}
        }
    }
}
