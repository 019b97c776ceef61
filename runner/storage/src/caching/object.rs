//! Names of objects, of their versions and of their parts in a data cache.

use std::sync::Arc;

use bytes::Bytes;

use crate::data_cache::EntryKey;
use crate::stamp::Stamp;
use crate::store::Version;

/// Place of the objects of a store, whatever its name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    /// Service, its address and the bucket; or the folder.
    pub parts: Vec<String>,
    /// Beginning of all keys of the store within that place; empty, or with a `/` at its end.
    pub prefix: String,
}

/// Digest of an [`ObjectPlace`] without its prefix: stores with other prefixes share objects.
#[derive(Clone, Copy)]
pub(super) struct PlaceDigest(pub(super) [u8; 32]);

/// Digest of an object's place and key.
#[derive(Clone, Copy)]
pub(super) struct Object([u8; 32]);

/// Part of an object that an entry has.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Whole(Stamp),
    Block(Stamp, u64),
    /// The version that was seen last.
    Version,
    /// Any version; only claimed.
    Any,
}

impl PlaceDigest {
    pub(super) fn of(place: &ObjectPlace) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("penstock data cache 1: place of objects");
        for part in &place.parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Self(hasher.finalize().into())
    }

    /// The object with this key, which includes the prefix of the store.
    pub(super) fn object(self, prefix: &str, key: &str) -> Object {
        let mut hasher = blake3::Hasher::new_derive_key("penstock data cache 1: object");
        hasher.update(&self.0).update(prefix.as_bytes()).update(key.as_bytes());
        Object(hasher.finalize().into())
    }
}

impl Object {
    /// Group of all entries of the object.
    pub(super) fn group(self) -> u64 {
        u64::from_le_bytes(*self.0.first_chunk().expect("a digest is longer than 8 bytes"))
    }

    pub(super) fn entry(self, part: Part) -> EntryKey {
        let (kind, stamp, number) = match part {
            Part::Whole(stamp) => (0_u8, stamp.digest(), 0),
            Part::Block(stamp, number) => (1, stamp.digest(), number),
            Part::Version => (2, 0, 0),
            Part::Any => (3, 0, 0),
        };
        let mut hasher = blake3::Hasher::new_derive_key("penstock data cache 1: entry of an object");
        hasher.update(&self.0).update(&[kind]).update(&stamp.to_le_bytes()).update(&number.to_le_bytes());
        EntryKey(hasher.finalize().into())
    }
}

/// A version as the payload of an entry.
pub(super) fn to_bytes(version: &Version) -> Bytes {
    let tag = version.tag.as_deref().unwrap_or_default();
    [&version.size.to_le_bytes(), tag.as_bytes()].concat().into()
}

pub(super) fn from_bytes(kept: &[u8]) -> Option<Version> {
    let (size, tag) = kept.split_first_chunk()?;
    Some(Version { size: u64::from_le_bytes(*size), tag: Some(Arc::from(str::from_utf8(tag).ok()?)) })
}
