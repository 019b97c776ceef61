//! Index of the samples in shards.
//!
//! The index is one object: a magic number, the length of a header, the header in JSON, and a section for each shard. A section has an
//! entry for each sample: the key, of which the part in common with the key before it is left out, and the places of its files. An
//! entry of a tar shard has 15 to 30 bytes, one of a TFRecord file, without a key, 7, and each file has a digest of 4 or 5 bytes. Each sixteenth
//! entry stands for itself, so that a sample is found in constant time.

use std::fmt;
use std::ops::Not;
use std::sync::Arc;

use bytes::Bytes;
use penstock_storage::Version;
use penstock_types::data_set::DataFields;
use serde::{Deserialize, Serialize};

use crate::entry::{Digest, Entry, FilePlace, Packer, Unpacker};
use crate::reason::Reason;
use crate::shards::Starts;
use crate::value::little_endian;

/// Number of entries from one that stands for itself to the next.
const GROUP: u64 = 16;

/// Maximum size of the headers before a file, in bytes.
pub(crate) const MAX_HEADERS: u64 = 4 << 20;

pub(crate) const MAX_FIELDS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    Tar,
    Tfrecord,
}

/// Places of all samples in shards.
#[derive(Debug)]
pub struct SampleIndex {
    kind: IndexKind,
    /// Names of fields; entries contain their positions.
    fields: Vec<String>,
    pub(crate) shards: Vec<ShardIndex>,
    starts: Starts,
    /// Types of the features of all records, by their names in the records.
    pub(crate) types: Option<DataFields>,
}

/// Names of fields, numbered in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct FieldNames(pub(crate) Vec<String>);

/// Places of the samples in one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardIndex {
    pub(crate) key: Arc<str>,
    pub(crate) version: Version,
    pub(crate) samples: u64,
    alignment: u64,
    /// Set unless an earlier build has made the index.
    pub(crate) has_digests: bool,
    entries: Bytes,
    /// Position in `entries` of each entry that stands for itself.
    groups: Vec<u32>,
    /// Number of files of each field of the index; missing ones have none.
    counts: Vec<u64>,
    /// Set if the shard ends without its end mark: files of its last sample may have been cut off.
    pub(crate) lacks_end: bool,
}

pub(crate) struct ShardPacker {
    packer: Packer,
    groups: Vec<u32>,
    pub(crate) samples: u64,
    counts: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct HeaderJson {
    fields: Vec<String>,
    shards: Vec<ShardJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    types: Option<DataFields>,
}

#[derive(Serialize, Deserialize)]
struct ShardJson {
    key: String,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    samples: u64,
    /// Length of the section in bytes.
    bytes: u64,
    #[serde(default, skip_serializing_if = "Not::not")]
    lacks_end: bool,
}

impl IndexKind {
    /// First bytes of an index. Those of earlier builds have no digests.
    fn magic(self, has_digests: bool) -> &'static [u8; 8] {
        match (self, has_digests) {
            (Self::Tar, true) => b"PNSTAR02",
            (Self::Tar, false) => b"PNSTAR01",
            (Self::Tfrecord, true) => b"PNSTFR02",
            (Self::Tfrecord, false) => b"PNSTFR01",
        }
    }

    /// Digest of a file, given with the headers before it: of a tar shard, of these headers; of a TFRecord file, the checksum of the record.
    pub(crate) fn digest(self, file: &[u8], header_bytes: u64) -> Option<Digest> {
        let checksum = match self {
            Self::Tar => crc32fast::hash(file.get(..header_bytes as usize)?),
            Self::Tfrecord => u32::from_le_bytes(*file.last_chunk()?),
        };
        Some(Digest { header_bytes, checksum })
    }

    /// True if an index may state headers of this size before a file.
    fn may_have(self, header_bytes: u64) -> bool {
        match self {
            Self::Tar => (1..=MAX_HEADERS).contains(&header_bytes),
            Self::Tfrecord => header_bytes == 0,
        }
    }

    /// Alignment of files in a shard, in bytes.
    fn alignment(self) -> u64 {
        match self {
            Self::Tar => 512,
            Self::Tfrecord => 1,
        }
    }

    /// Option of `penstock index create` for such shards.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Tar => "--tar",
            Self::Tfrecord => "--tfrecord",
        }
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tar => "tar shards",
            Self::Tfrecord => "TFRecord files",
        })
    }
}

impl FieldNames {
    /// Number of the field `name`; `None` if there are too many fields.
    pub(crate) fn number(&mut self, name: &str) -> Option<u32> {
        let known = self.0.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        (number < MAX_FIELDS).then_some(number as u32)
    }
}

impl SampleIndex {
    pub(crate) fn new(
        kind: IndexKind,
        fields: Vec<String>,
        shards: Vec<ShardIndex>,
        types: Option<DataFields>,
    ) -> Self {
        let starts = Starts::new(shards.iter().map(|shard| shard.samples));
        Self { kind, fields, shards, starts, types }
    }

    pub(crate) fn with_shards(self, fields: Vec<String>, shards: Vec<ShardIndex>) -> Self {
        Self::new(self.kind, fields, shards, self.types)
    }

    pub(crate) fn count(&self, field: usize) -> u64 {
        self.shards.iter().filter_map(|shard| shard.counts.get(field)).sum()
    }

    pub fn samples(&self) -> u64 {
        self.starts.count()
    }

    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Names of the fields, in the order in which they were found.
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    pub(crate) fn bytes(&self) -> u64 {
        let of_shard =
            |shard: &ShardIndex| (shard.entries.len() + size_of_val(&*shard.groups) + shard.key.len()) as u64;
        self.shards.iter().map(of_shard).sum::<u64>() + self.starts.bytes()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let shards = self.shards.iter().map(|shard| ShardJson {
            key: shard.key.to_string(),
            size: shard.version.size,
            tag: shard.version.tag.as_deref().map(str::to_owned),
            samples: shard.samples,
            bytes: shard.entries.len() as u64,
            lacks_end: shard.lacks_end,
        });
        let (fields, types) = (self.fields.clone(), self.types.clone());
        let header = HeaderJson { fields, shards: shards.collect(), types };
        let header = serde_json::to_vec(&header).expect("texts and numbers are JSON");
        let has_digests = self.shards.iter().all(|shard| shard.has_digests);
        let mut bytes =
            [&self.kind.magic(has_digests)[..], &(header.len() as u64).to_le_bytes(), &header].concat();
        self.shards.iter().for_each(|shard| bytes.extend_from_slice(&shard.entries));
        bytes
    }

    /// Reads an index. Each entry is checked, so that a sample can be found without further faults. The error is the end of a sentence about
    /// the index.
    pub fn read(mut bytes: Bytes, kind: IndexKind) -> Result<Self, Reason> {
        let remedy = format!("`penstock index create {}`", kind.flag());
        let damaged =
            |reason: &str| Reason::from(format!("is damaged: {reason}; make it again with {remedy}"));
        let is_of = |has_digests: &bool| bytes.starts_with(kind.magic(*has_digests)) && bytes.len() >= 16;
        let Some(has_digests) = [true, false].into_iter().find(is_of) else {
            return Err(format!("is not an index of {kind}; make one with {remedy}").into());
        };
        let start = bytes.split_to(16);
        let length = little_endian(&start[8..]);
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
        let header = bytes.split_to(length.ok_or_else(|| damaged("it ends in its header"))?);
        let HeaderJson { fields, shards, types } =
            serde_json::from_slice(&header).map_err(|error| damaged(&format!("its header: {error}")))?;
        if fields.len() > MAX_FIELDS {
            return Err(damaged("it has more than 256 fields"));
        }
        let mut read = Vec::with_capacity(shards.len());
        for shard in shards {
            let length = usize::try_from(shard.bytes).ok().filter(|length| *length <= bytes.len());
            let entries = bytes.split_to(length.ok_or_else(|| damaged("it ends in an entry"))?);
            let index = ShardIndex::read(kind, &shard, entries, has_digests, fields.len());
            read.push(index.ok_or_else(|| damaged(&format!("entries of `{}`", shard.key.escape_debug())))?);
        }
        if !bytes.is_empty() {
            return Err(damaged("it is longer than its header says"));
        }
        Ok(Self::new(kind, fields, read, types))
    }

    /// Position of a sample's shard, and the places of the sample in the shard. A sample without a key gets that of the shard and its
    /// number there. Panics when `sample` is not below the number of samples.
    pub(crate) fn find(&self, sample: u64) -> (usize, Entry) {
        let (place, number) = self.starts.find(sample);
        let shard = &self.shards[place];
        let mut entry = shard.entry(number);
        if entry.key.is_empty() {
            entry.key = numbered_key(&shard.key, number);
        }
        (place, entry)
    }
}

impl ShardIndex {
    fn read(
        kind: IndexKind,
        json: &ShardJson,
        entries: Bytes,
        has_digests: bool,
        fields: usize,
    ) -> Option<Self> {
        let (mut groups, mut counts, alignment) = (Vec::new(), vec![0; fields], kind.alignment());
        let mut unpacker = Unpacker::new(&entries, alignment, has_digests);
        for number in 0..json.samples {
            if number % GROUP == 0 {
                groups.push(u32::try_from(unpacker.position(&entries)).ok()?);
                unpacker.start_group();
            }
            let entry = unpacker.next()?;
            let is_valid = |file: &FilePlace| {
                let has_room = |Digest { header_bytes, .. }| {
                    kind.may_have(header_bytes) && header_bytes <= file.content.start
                };
                (file.field as usize) < fields
                    && file.digest.is_none_or(has_room)
                    && file.content.end <= json.size
            };
            if !entry.files.iter().all(is_valid) {
                return None;
            }
            entry.files.iter().for_each(|file| counts[file.field as usize] += 1);
        }
        (unpacker.position(&entries) == entries.len()).then_some(Self {
            key: Arc::from(&*json.key),
            version: Version { size: json.size, tag: json.tag.as_deref().map(Arc::from) },
            samples: json.samples,
            alignment,
            has_digests,
            entries,
            groups,
            counts,
            lacks_end: json.lacks_end,
        })
    }

    /// True if the samples are those of `other`, in the same places and with the same digests.
    pub(crate) fn has_samples_of(&self, other: &Self) -> bool {
        (self.samples, self.has_digests, &self.entries) == (other.samples, other.has_digests, &other.entries)
    }

    /// The last sample, if its files may have been cut off.
    pub(crate) fn unmarked(&self) -> Option<Entry> {
        let last = self.samples.checked_sub(1).filter(|_| self.lacks_end);
        last.map(|number| self.entry(number))
    }

    /// Removes the last sample, which is that of `entry`.
    pub(crate) fn remove_last(&mut self, entry: &Entry) {
        entry.files.iter().for_each(|file| self.counts[file.field as usize] -= 1);
        (self.samples, self.lacks_end) = (self.samples - 1, false);
    }

    fn entry(&self, number: u64) -> Entry {
        let start = self.groups[(number / GROUP) as usize] as usize;
        let mut unpacker = Unpacker::new(&self.entries[start..], self.alignment, self.has_digests);
        for _ in 0..number % GROUP {
            unpacker.pass(|_| {});
        }
        unpacker.next().expect("entries were checked when they were read")
    }
}

impl ShardPacker {
    pub(crate) fn new(kind: IndexKind) -> Self {
        let packer = Packer::new(kind.alignment());
        Self { packer, groups: Vec::new(), samples: 0, counts: Vec::new() }
    }

    /// Adds an entry whose files follow the files before it.
    pub(crate) fn push(&mut self, entry: &Entry) {
        if self.samples.is_multiple_of(GROUP) {
            self.groups.push(self.packer.start_group());
        }
        self.packer.push(entry);
        self.samples += 1;
        for file in &entry.files {
            let field = file.field as usize;
            self.counts.resize(self.counts.len().max(field + 1), 0);
            self.counts[field] += 1;
        }
    }

    pub(crate) fn finish(self, key: Arc<str>, version: Version) -> ShardIndex {
        let Self { packer, groups, samples, counts } = self;
        let (alignment, entries) = (packer.alignment, packer.finish().into());
        let (has_digests, lacks_end) = (true, false);
        ShardIndex { key, version, samples, alignment, has_digests, entries, groups, counts, lacks_end }
    }
}

/// Key of a sample that has none of its own: key of its shard, and its number there.
pub(crate) fn numbered_key(shard: &str, number: u64) -> String {
    format!("{shard}#{number}")
}
