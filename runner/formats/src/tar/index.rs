//! Index of the samples in tar shards.
//!
//! The index is one object: a magic number, the length of a header, the header in JSON, and a section for each shard. A section has an
//! entry for each sample, 15 to 30 bytes long: the key, of which the part in common with the key before it is left out, and the places
//! of its files. Each sixteenth entry stands for itself, so that a sample is found in constant time.

use std::sync::Arc;

use bytes::Bytes;
use penstock_storage::Version;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Packer, Unpacker};

/// First bytes of an index.
const MAGIC: &[u8; 8] = b"PNSTAR01";

/// Number of entries from one that stands for itself to the next.
pub(super) const GROUP: u64 = 16;

/// Maximum number of different fields.
pub(super) const MAX_FIELDS: usize = 256;

/// Places of all samples in tar shards.
#[derive(Debug)]
pub struct TarIndex {
    /// Names of fields; entries contain their positions.
    pub(super) fields: Vec<String>,
    pub(super) shards: Vec<ShardIndex>,
    /// Number of samples before each shard, and in all.
    pub(super) starts: Vec<u64>,
}

/// Places of the samples in one shard.
#[derive(Clone, Debug)]
pub(super) struct ShardIndex {
    pub(super) key: Arc<str>,
    pub(super) version: Version,
    pub(super) samples: u64,
    pub(super) entries: Bytes,
    /// Position in `entries` of each entry that stands for itself.
    groups: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct HeaderJson {
    fields: Vec<String>,
    shards: Vec<ShardJson>,
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
}

/// Reason why an object is no index.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexFault {
    /// The object does not start as an index does.
    #[error("is not an index of tar shards; make one with `penstock index create --tar`")]
    NoIndex,
    /// The index is incomplete or changed.
    #[error("is damaged: {0}; make it again with `penstock index create --tar`")]
    Damaged(String),
}

impl TarIndex {
    pub(super) fn new(fields: Vec<String>, shards: Vec<ShardIndex>) -> Self {
        let mut starts = vec![0];
        starts.extend(shards.iter().scan(0, |sum, shard| {
            *sum += shard.samples;
            Some(*sum)
        }));
        Self { fields, shards, starts }
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Names of the fields, in the order in which they were found.
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Bytes that the index takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let of_shard =
            |shard: &ShardIndex| (shard.entries.len() + size_of_val(&*shard.groups) + shard.key.len()) as u64;
        self.shards.iter().map(of_shard).sum::<u64>() + size_of_val(&*self.starts) as u64
    }

    /// The index as an object.
    pub fn to_bytes(&self) -> Vec<u8> {
        let shards = self.shards.iter().map(|shard| ShardJson {
            key: shard.key.to_string(),
            size: shard.version.size,
            tag: shard.version.tag.as_deref().map(str::to_owned),
            samples: shard.samples,
            bytes: shard.entries.len() as u64,
        });
        let header = HeaderJson { fields: self.fields.clone(), shards: shards.collect() };
        let header = serde_json::to_vec(&header).expect("texts and numbers are JSON");
        let mut bytes = [&MAGIC[..], &(header.len() as u64).to_le_bytes(), &header].concat();
        self.shards.iter().for_each(|shard| bytes.extend_from_slice(&shard.entries));
        bytes
    }

    /// Reads an index. Each entry is checked, so that a sample can be found without further faults.
    pub fn read(mut bytes: Bytes) -> Result<Self, IndexFault> {
        let damaged = |reason: &str| IndexFault::Damaged(reason.to_owned());
        if !bytes.starts_with(MAGIC) || bytes.len() < 16 {
            return Err(IndexFault::NoIndex);
        }
        let start = bytes.split_to(16);
        let length = start[8..].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
        let header = bytes.split_to(length.ok_or_else(|| damaged("it ends in its header"))?);
        let HeaderJson { fields, shards } = serde_json::from_slice(&header)
            .map_err(|error| IndexFault::Damaged(format!("its header: {error}")))?;
        if fields.len() > MAX_FIELDS {
            return Err(damaged("it has more than 256 fields"));
        }
        let mut read = Vec::with_capacity(shards.len());
        for shard in shards {
            let length = usize::try_from(shard.bytes).ok().filter(|length| *length <= bytes.len());
            let entries = bytes.split_to(length.ok_or_else(|| damaged("it ends in an entry"))?);
            let version = Version { size: shard.size, tag: shard.tag.map(Arc::from) };
            let index = ShardIndex::read(&shard.key, version, shard.samples, entries, fields.len());
            read.push(
                index.ok_or_else(|| {
                    IndexFault::Damaged(format!("entries of `{}`", shard.key.escape_debug()))
                })?,
            );
        }
        if !bytes.is_empty() {
            return Err(damaged("it is longer than its header says"));
        }
        Ok(Self::new(fields, read))
    }

    /// Position of a sample's shard, and the places of the sample in the shard. Panics when `sample` is not below the number of samples.
    pub(super) fn find(&self, sample: u64) -> (usize, Entry) {
        let place = self.starts.partition_point(|start| *start <= sample) - 1;
        (place, self.shards[place].entry(sample - self.starts[place]))
    }
}

impl ShardIndex {
    /// Checks the entries of a shard; `None` if they are damaged.
    fn read(key: &str, version: Version, samples: u64, entries: Bytes, fields: usize) -> Option<Self> {
        let mut groups = Vec::new();
        let mut unpacker = Unpacker::new(&entries);
        for number in 0..samples {
            if number % GROUP == 0 {
                groups.push(u32::try_from(unpacker.position(&entries)).ok()?);
                unpacker.start_group();
            }
            let entry = unpacker.next()?;
            let is_valid = |(field, content): &(u32, std::ops::Range<u64>)| {
                (*field as usize) < fields && content.end <= version.size
            };
            if !entry.files.iter().all(is_valid) {
                return None;
            }
        }
        (unpacker.position(&entries) == entries.len()).then_some(Self {
            key: Arc::from(key),
            version,
            samples,
            entries,
            groups,
        })
    }

    /// Packs the entries of a shard.
    pub(super) fn pack(key: Arc<str>, version: Version, entries: impl IntoIterator<Item = Entry>) -> Self {
        let (mut packer, mut groups, mut samples) = (Packer::default(), Vec::new(), 0);
        for entry in entries {
            if samples % GROUP == 0 {
                groups.push(packer.start_group());
            }
            packer.push(&entry);
            samples += 1;
        }
        Self { key, version, samples, entries: packer.finish().into(), groups }
    }

    fn entry(&self, number: u64) -> Entry {
        let start = self.groups[(number / GROUP) as usize] as usize;
        let mut unpacker = Unpacker::new(&self.entries[start..]);
        unpacker.start_group();
        for _ in 0..number % GROUP {
            unpacker.next();
        }
        unpacker.next().expect("entries were checked when they were read")
    }
}
