//! The `index.json` of MDS shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use penstock_engine::ports::SourceFault;
use penstock_storage::{StoreError, Version, shown};
use penstock_types::resume::Hash;
use penstock_types::spec::MdsSource;
use serde::Deserialize;

use super::columns::{Column, ShardColumns};
use super::encoding::Encoding;
use crate::damage::Damage;
use crate::lists::{check_name, offsets_name};
use crate::reason::Reason;
use crate::select::Selection;
use crate::shards::{Starts, found, with_version};
use crate::value::{listed, shortened};

const MAX_COLUMNS: usize = 256;

#[derive(Debug)]
pub(super) struct MdsIndex {
    pub(super) shards: Vec<Shard>,
    pub(super) starts: Starts,
}

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) samples: u64,
    pub(super) columns: Arc<ShardColumns>,
    /// The shard, uncompressed. It exists in the store unless there is a compressed one.
    pub(super) raw: File,
    pub(super) compressed: Option<(Compression, File)>,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) key: Arc<str>,
    pub(super) bytes: u64,
    /// Hashes of the content in hexadecimal digits, by the names of their algorithms.
    pub(super) hashes: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Brotli,
    Bzip2,
    Gzip,
    Snappy,
    Zstd,
}

#[derive(Deserialize)]
struct IndexJson {
    version: u64,
    shards: Vec<ShardJson>,
}

#[derive(Deserialize)]
struct ShardJson {
    format: String,
    samples: u64,
    raw_data: Option<FileJson>,
    zip_data: Option<FileJson>,
    compression: Option<String>,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u64>>,
}

#[derive(Deserialize)]
struct FileJson {
    basename: String,
    bytes: u64,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

impl MdsIndex {
    /// Reads an index, whose shards lie in `folder`. A compressed shard may take `most_bytes` in both forms together. The error is the end
    /// of a sentence about the index.
    pub(super) fn read(
        bytes: &[u8],
        folder: &str,
        source: &MdsSource,
        most_bytes: u64,
    ) -> Result<Self, Reason> {
        let IndexJson { version, shards } =
            serde_json::from_slice(bytes).map_err(|error| format!("is no index of MDS shards: {error}"))?;
        if version != 2 {
            return Err(format!("has version {version}, and only version 2 is read").into());
        }
        let selection = Selection::new(&source.fields, source.sample_key.clone());
        // Most shards have the columns of the shard before.
        let mut last: Option<(ColumnsJson, Arc<ShardColumns>)> = None;
        let mut read = Vec::with_capacity(shards.len());
        for (number, mut shard) in shards.into_iter().enumerate() {
            let name =
                shard.raw_data.as_ref().map_or_else(|| format!("{number}"), |file| shortened(&file.basename));
            let fault = |reason: String| Reason::from(format!("has the shard `{name}`, which {reason}"));
            if shard.format != "mds" {
                return Err(fault(format!("has the format `{}` instead of `mds`", shortened(&shard.format))));
            }
            let json = ColumnsJson {
                names: std::mem::take(&mut shard.column_names),
                encodings: std::mem::take(&mut shard.column_encodings),
                sizes: std::mem::take(&mut shard.column_sizes),
            };
            let columns = match &last {
                Some((known, columns)) if *known == json => columns.clone(),
                _ => Arc::new(json.read(&selection, fault)?),
            };
            last = Some((json, columns.clone()));
            read.push(shard.read(folder, columns, most_bytes).map_err(fault)?);
        }
        Ok(Self::of(read))
    }

    pub(super) fn of(shards: Vec<Shard>) -> Self {
        let starts = Starts::new(shards.iter().map(|shard| shard.samples));
        Self { shards, starts }
    }

    /// The index, and a digest of these versions of its shards. If damage is left out, shards that are missing or of another size than the
    /// index says are removed.
    pub(super) fn checked(
        self,
        versions: Vec<Result<Version, StoreError>>,
        damage: &Damage,
    ) -> Result<(Self, Hash), SourceFault> {
        let (mut sound, mut hash) = (Vec::with_capacity(versions.len()), Hash::EMPTY);
        for (shard, version) in self.shards.into_iter().zip(versions) {
            let (file, version) = (shard.stored(), found(version)?);
            hash = with_version(hash, &file.key, version.as_ref()).with(&shard.samples.to_le_bytes());
            let reason = match version {
                Some(version) if version.size != file.bytes => {
                    format!("has {} bytes instead of {}, as the index says", version.size, file.bytes)
                }
                None => "is missing".to_owned(),
                Some(_) => {
                    sound.push(shard);
                    continue;
                }
            };
            // Otherwise the reading ends there, behind the samples before it.
            if !damage.skips() {
                sound.push(shard);
                continue;
            }
            let fault = SourceFault::damage(format!("the shard {} {reason}", shown(&file.key)));
            damage.part(&file.key, Some(shard.samples), fault)?;
        }
        Ok((Self::of(sound), hash))
    }

    pub(super) fn bytes(&self) -> u64 {
        let of_shard = |shard: &Shard| (size_of::<Shard>() + shard.raw.key.len()) as u64;
        self.shards.iter().map(of_shard).sum::<u64>() + self.starts.bytes()
    }
}

impl Shard {
    /// The file that lies in the store.
    pub(super) fn stored(&self) -> &File {
        self.compressed.as_ref().map_or(&self.raw, |(_, zip)| zip)
    }
}

#[derive(PartialEq, Eq)]
struct ColumnsJson {
    names: Vec<String>,
    encodings: Vec<String>,
    sizes: Vec<Option<u64>>,
}

impl ColumnsJson {
    fn read(&self, selection: &Selection, fault: impl Fn(String) -> Reason) -> Result<ShardColumns, Reason> {
        let Self { names, encodings, sizes } = self;
        if names.len() != encodings.len() || names.len() != sizes.len() {
            return Err(fault("has different numbers of names, encodings and sizes of columns".to_owned()));
        }
        if names.len() > MAX_COLUMNS {
            return Err(fault(format!("has more than {MAX_COLUMNS} columns")));
        }
        let is_there = |name: &str| names.iter().any(|known| known == name);
        if let Some(missing) = selection.missing(is_there) {
            let (missing, columns) =
                (shortened(&missing), listed(names.iter().map(|name| shortened(name)), " and more"));
            return Err(format!("has no column `{missing}`; the columns are {columns}").into());
        }
        let mut columns = ShardColumns::default();
        for ((name, encoding), size) in names.iter().zip(encodings).zip(sizes) {
            let (is_key, field) = (selection.is_key(name), selection.name_of(name));
            let encoding = match is_key || field.is_some() {
                false => None,
                true => Some(Encoding::named(encoding).map_err(|reason| {
                    let (name, encoding) = (shortened(name), shortened(encoding));
                    fault(format!(
                        "has the column `{name}` of the encoding `{encoding}`, which {reason}; read the other columns by \
                         naming them in `fields`"
                    ))
                })?),
            };
            let images = field.as_deref().filter(|_| matches!(encoding, Some(Encoding::Images { .. })));
            if is_key && matches!(encoding, Some(Encoding::Images { .. })) {
                let name = shortened(name);
                return Err(fault(format!("has several images in the column `{name}`, which are no key")));
            }
            if let Some(field) = images {
                let name = shortened(name);
                check_name(field)
                    .map_err(|reason| fault(format!("has the column `{name}`, which {reason}")))?;
            }
            let (offsets, size) = (images.map(offsets_name), size.filter(|size| *size > 0));
            columns.0.push(Column { name: name.clone(), encoding, size, field, offsets, is_key });
        }
        let mut fields = BTreeSet::new();
        if let Some(twice) = columns.fields().iter().find(|field| !fields.insert(field.name.clone())) {
            let name = shortened(&twice.name);
            return Err(fault(format!("has the field `{name}` twice: name one of its columns in `fields`")));
        }
        Ok(columns)
    }
}

impl ShardJson {
    fn read(self, folder: &str, columns: Arc<ShardColumns>, most_bytes: u64) -> Result<Shard, String> {
        let file = |file: FileJson| File {
            key: Arc::from(format!("{folder}{}", file.basename)),
            bytes: file.bytes,
            hashes: file.hashes,
        };
        let raw = file(self.raw_data.ok_or("has no `raw_data`")?);
        // A shard starts with the number of samples and the places of all, four bytes each.
        let head = self.samples.checked_mul(4).and_then(|places| places.checked_add(8));
        let head = head.filter(|head| self.samples <= u32::MAX.into() && *head <= raw.bytes);
        let head =
            head.ok_or_else(|| format!("cannot have {} samples in {} bytes", self.samples, raw.bytes))?;
        if head > most_bytes / 2 {
            let most = most_bytes / 2;
            return Err(format!(
                "has places of samples in {head} bytes, more than the limit of {most}; raise `buffer_mib`"
            ));
        }
        let compressed = match (self.zip_data, self.compression) {
            (None, _) => None,
            (Some(zip), name) => {
                let name = name.unwrap_or_default();
                // The level behind a colon is of no matter to a reader.
                let compression = match name.split(':').next() {
                    Some("br") => Compression::Brotli,
                    Some("bz2") => Compression::Bzip2,
                    Some("gz") => Compression::Gzip,
                    Some("snappy") => Compression::Snappy,
                    Some("zstd") => Compression::Zstd,
                    _ => {
                        let name = shortened(&name);
                        return Err(format!(
                            "has the compression `{name}`, which is unknown: write it with `zstd`, `br`, `bz2`, `gz`, `snappy` or none"
                        ));
                    }
                };
                let (bytes, most) = (raw.bytes.saturating_add(zip.bytes), most_bytes / 2);
                if bytes > most {
                    return Err(format!(
                        "has {} bytes, compressed {}, together more than the limit of {most}; raise `buffer_mib`, of \
                         which a quarter holds compressed shards",
                        raw.bytes, zip.bytes
                    ));
                }
                Some((compression, file(zip)))
            }
        };
        Ok(Shard { samples: self.samples, columns, raw, compressed })
    }
}
