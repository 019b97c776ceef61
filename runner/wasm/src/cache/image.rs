//! Verified code in sealed memory, which is read from the disk once per process for all sandboxes that map it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::folder::Identity;

/// Size of the parts in which a file is read, hashed and copied; they stay in the processor's cache in between.
const PART_BYTES: usize = 128 << 10;

/// A file in memory that no process can change.
#[derive(Debug)]
pub(crate) struct Image(File);

impl Image {
    /// Copies all bytes, and calls `see` with every part of the copy in order.
    pub(super) fn of(mut from: impl Read, mut see: impl FnMut(&[u8])) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("penstock-code", flags)?);
        let mut part = vec![0; PART_BYTES];
        loop {
            match from.read(&mut part) {
                Ok(0) => break,
                Ok(read) => {
                    see(&part[..read]);
                    file.write_all(&part[..read])?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self(file))
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
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.iter().find(|held| held.file == file && held.key == *key).and_then(|held| held.image.upgrade())
}

/// Shares a verified image with later loads of this file, for as long as it is held.
pub(super) fn share(file: Identity, key: [u8; 32], image: &Arc<Image>) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.retain(|held| held.image.strong_count() > 0);
    held.push(Held { file, key, image: Arc::downgrade(image) });
}
