//! Shards that were opened: places of their samples, and the content of those that are compressed as a whole.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use bzip2::bufread::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, RangedObject};
use penstock_types::text::hex;
use tokio::sync::Semaphore;

use super::index::{Compression, File, MdsIndex, Shard};
use crate::cache::{Cache, InUse, Limits};
use crate::reason::{Reason, blocking};
use crate::unpack;
use crate::value::{little_endian, read_up_to, unzstd};

/// Maximum number of compressed shards that are read at a time.
const LOADS: u64 = 4;

/// Memory of an opened shard beside its content, in bytes.
const SHELL_BYTES: u64 = 512;

pub(super) struct Opened {
    /// Places of the samples and the end of the last one, four bytes each.
    places: Bytes,
    pub(super) content: Content,
}

pub(super) enum Content {
    Stored(RangedObject),
    Held(Bytes),
}

/// Opens shards, and keeps those that were used last, within a bound.
pub(super) struct OpenShards {
    pub(super) store: BoundedStore,
    pub(super) cache: Cache<Opened>,
    loads: Semaphore,
}

impl Opened {
    /// Place of a sample. Panics when `number` is not below the number of samples.
    pub(super) fn sample(&self, number: u64) -> Range<u64> {
        self.place(number)..self.place(number + 1)
    }

    fn place(&self, number: u64) -> u64 {
        let at = 4 * number as usize;
        little_endian(&self.places[at..at + 4])
    }
}

impl OpenShards {
    /// Keeps shards in half of `most_bytes`; the other half is for those that are being read.
    pub(super) fn new(store: BoundedStore, index: &MdsIndex, most_bytes: u64) -> Self {
        let of_both =
            |shard: &Shard| shard.compressed.as_ref().map_or(0, |(_, zip)| shard.raw.bytes + zip.bytes);
        let largest = index.shards.iter().map(of_both).max().unwrap_or(0).max(1);
        let loads = (most_bytes / 2 / largest).clamp(1, LOADS) as usize;
        let cache = Cache::new(Limits { all: most_bytes / 2, shared: 0, unused: most_bytes / 2 });
        Self { store, cache, loads: Semaphore::new(loads) }
    }

    /// Opens the shard of this number, unless it is open.
    pub(super) async fn get(&self, number: usize, shard: &Shard) -> Result<InUse<Opened>, SourceFault> {
        let bytes = match &shard.compressed {
            Some(_) => shard.raw.bytes,
            None => 4 * shard.samples,
        };
        let open = |reserved| async move { Ok((self.open(shard).await?, reserved)) };
        self.cache.get(number, bytes + SHELL_BYTES, open).await
    }

    async fn open(&self, shard: &Shard) -> Result<Opened, SourceFault> {
        let head = 4 * (shard.samples + 2);
        let (head, content) = match &shard.compressed {
            None => {
                let object = self.object(&shard.raw).await?;
                (object.read(0..head).await?, Content::Stored(object))
            }
            Some((compression, zip)) => {
                // The semaphore is never closed.
                let _permit = self.loads.acquire().await;
                let object = self.object(zip).await?;
                let bytes = object.read(0..zip.bytes).await?;
                let (compression, hashes, size) = (*compression, zip.hashes.clone(), shard.raw.bytes);
                let content = blocking("reading a shard", move || {
                    check_hashes(&hashes, &bytes)?;
                    decompressed(compression, &bytes, size)
                });
                let content = content.await?.map_err(|reason| self.fault(zip, &reason.to_string()))?;
                // The index states a size that the places fit into, and the content has this size.
                (content.slice(..head as usize), Content::Held(content))
            }
        };
        check_places(&head, shard).map_err(|reason| self.fault(&shard.raw, &reason.to_string()))?;
        Ok(Opened { places: head.slice(4..), content })
    }

    /// The object of a file, of the size in the index.
    async fn object(&self, file: &File) -> Result<RangedObject, SourceFault> {
        let object = RangedObject::open(self.store.clone(), file.key.clone(), 0).await?;
        match object.size() == file.bytes {
            true => Ok(object),
            false => {
                let reason =
                    format!("has {} bytes instead of {}, as the index says", object.size(), file.bytes);
                Err(self.fault(file, &reason))
            }
        }
    }

    pub(super) fn fault(&self, file: &File, reason: &str) -> SourceFault {
        SourceFault::damage(format!("the shard {} {reason}", self.store.named(&file.key)))
    }
}

/// Checks the start of a shard: the number of its samples, and their places, which ascend to its end.
fn check_places(head: &[u8], shard: &Shard) -> Result<(), Reason> {
    let mut numbers = head.chunks_exact(4).map(little_endian);
    let count = numbers.next().unwrap_or(0);
    if count != shard.samples {
        return Err(format!("has {count} samples instead of {}, as the index says", shard.samples).into());
    }
    let mut last = head.len() as u64;
    for place in numbers {
        if place < last {
            return Err(format!("has a sample at byte {place}, before byte {last}: it is damaged").into());
        }
        last = place;
    }
    match last == shard.raw.bytes {
        true => Ok(()),
        false => {
            Err(format!("has samples up to byte {last}, and {} bytes: it is damaged", shard.raw.bytes).into())
        }
    }
}

fn check_hashes(hashes: &BTreeMap<String, String>, bytes: &[u8]) -> Result<(), Reason> {
    use sha1::Digest as _;
    use sha2::Digest as _;
    for (name, stored) in hashes {
        let found = match name.as_str() {
            "sha1" => hex(&sha1::Sha1::digest(bytes)),
            "sha256" => hex(&sha2::Sha256::digest(bytes)),
            _ => continue,
        };
        if !found.eq_ignore_ascii_case(stored) {
            return Err(format!("has another {name} than in the index: it is damaged").into());
        }
    }
    Ok(())
}

fn decompressed(compression: Compression, bytes: &[u8], size: u64) -> Result<Bytes, Reason> {
    let content = match compression {
        Compression::Brotli => unpack::whole(size, |content| unpack::brotli(bytes, content))?,
        Compression::Bzip2 => read_up_to(MultiBzDecoder::new(bytes), size)?,
        Compression::Gzip => read_up_to(MultiGzDecoder::new(bytes), size)?,
        Compression::Snappy => unpack::whole(size, |content| unpack::snappy(bytes, content))?,
        Compression::Zstd => unzstd(bytes, size)?,
    };
    let content = content.filter(|content| content.len() as u64 == size);
    let other = || format!("has other than {size} bytes when it is decompressed, as the index says");
    Ok(content.ok_or_else(other)?)
}
