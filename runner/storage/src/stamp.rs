//! Digests of versions that tell all changes of an object.

use crate::store::Version;

/// Size in bytes up to which objects that are read whole are one entry of a data cache.
pub(crate) const WHOLE_BYTES: u64 = 16 << 20;
/// Start of the tag of a version whose service gives it none: the time of its last change follows, in seconds. Tags of services are in
/// quotes.
pub(crate) const MODIFIED: &str = "modified ";

/// Digest of a version. The lowest bit is set for an object that is kept in blocks however it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// Digest of a version; `None` for one that does not tell all changes: without a tag, with a weak one, or with the time of the last
    /// change in seconds.
    pub(crate) fn of(version: &Version) -> Option<Self> {
        let tag =
            version.tag.as_deref().filter(|tag| !tag.starts_with(MODIFIED) && !tag.starts_with("W/"))?;
        let mut hasher = blake3::Hasher::new_derive_key("penstock data cache 1: version");
        // Some services leave out the quotes in listings.
        hasher.update(&version.size.to_le_bytes()).update(tag.trim_matches('"').as_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        let digest = u64::from_le_bytes(*digest.first_chunk().expect("a digest is longer than 8 bytes"));
        Some(Self(digest & !1 | u64::from(version.size > WHOLE_BYTES)))
    }

    pub(crate) fn is_large(self) -> bool {
        self.0 & 1 == 1
    }

    pub(crate) fn digest(self) -> u64 {
        self.0
    }
}
