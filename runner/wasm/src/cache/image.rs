//! Verified files of machine code, each of which is read and verified once per process for all sandboxes that map it.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, Weak};

use penstock_engine::lock::locked;
use penstock_engine::private::{Identity, KEY_BYTES, Unusable};

use super::SIGNATURE_BYTES;

/// A file of code and its signature, which was verified. It stays open, so that it can be mapped after another file replaced it.
///
/// Sandboxes map the file itself: the pages of a copy in memory would take three times as long to allocate as the code takes to
/// verify. Only this user could change the mapped file, and only after changing its mode.
#[derive(Debug)]
pub(crate) struct Image(File);

impl Image {
    /// Verifies an open file that only this user may access.
    pub(super) fn verified(file: File, key: &[u8; KEY_BYTES]) -> Result<Self, Unusable> {
        let bytes = file.metadata().map_err(Unusable::Unreadable)?.len();
        let code_bytes = bytes.checked_sub(SIGNATURE_BYTES as u64).ok_or(Unusable::NotSigned)?;
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update_reader((&file).take(code_bytes)).map_err(Unusable::Unreadable)?;
        let mut signature = [0; SIGNATURE_BYTES];
        (&file).read_exact(&mut signature).map_err(Unusable::Unreadable)?;
        // The comparison of hashes takes constant time.
        if hasher.finalize() == blake3::Hash::from_bytes(signature) {
            Ok(Self(file))
        } else {
            Err(Unusable::NotSigned)
        }
    }

    /// Path by which this process can open the file.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

/// An image that components of this process may still map: the file that it was read from, and the key that it was verified with.
struct Held {
    file: Identity,
    key: [u8; 32],
    image: Weak<Image>,
}

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// Returns the image of this file, if it was verified with this key and is still held.
pub(super) fn held(file: Identity, key: &[u8; 32]) -> Option<Arc<Image>> {
    let held = locked(&HELD);
    held.iter().find(|held| held.file == file && held.key == *key).and_then(|held| held.image.upgrade())
}

/// Shares a verified image with later loads of this file, for as long as it is held.
pub(super) fn share(file: Identity, key: [u8; 32], image: &Arc<Image>) {
    let mut held = locked(&HELD);
    held.retain(|held| held.image.strong_count() > 0);
    held.push(Held { file, key, image: Arc::downgrade(image) });
}
