//! Claims: of all tasks and processes that lack the same entry, one at a time makes it.
//!
//! Within the process a map holds the claims; between processes each is a lock on one byte of a file, which the system releases
//! when the process ends.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use penstock_engine::lock::locked;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::EntryKey;

pub(super) struct Claims {
    file: File,
    held: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// Right to make an entry, until it is dropped.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    byte: u64,
}

impl Claims {
    pub(super) fn new(file: File) -> Arc<Self> {
        Arc::new(Self { file, held: Mutex::default() })
    }

    /// Takes the claim within this process; if another task has it, returns a future that ends when it is given back.
    pub(super) fn take(self: &Arc<Self>, key: &EntryKey) -> Result<Claim, OwnedNotified> {
        // The place of a lock is a signed number.
        let byte = key.short() >> 1;
        let mut held = locked(&self.held);
        match held.get(&byte) {
            Some(holder) => Err(holder.clone().notified_owned()),
            None => {
                held.insert(byte, Arc::default());
                Ok(Claim { claims: self.clone(), byte })
            }
        }
    }
}

impl Claim {
    /// Takes the claim among all processes. Returns false if another one has it.
    pub(super) fn lock(&self) -> bool {
        // Without such locks in the file system, several processes may make an entry.
        set_lock(&self.claims.file, self.byte, libc::F_WRLCK).unwrap_or(true)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        set_lock(&self.claims.file, self.byte, libc::F_UNLCK).unwrap_or_default();
        if let Some(others) = locked(&self.claims.held).remove(&self.byte) {
            others.notify_waiters();
        }
    }
}

/// Locks or unlocks one byte of the file, for the open file. Returns false if another process has locked it.
fn set_lock(file: &File, byte: u64, kind: libc::c_int) -> io::Result<bool> {
    let (whence, start) = (libc::SEEK_SET as _, byte as _);
    let lock = libc::flock { l_type: kind as _, l_whence: whence, l_start: start, l_len: 1, l_pid: 0 };
    // SAFETY: the descriptor is open, and the structure lives until the call returns, which keeps no reference to it.
    #[expect(unsafe_code, reason = "no safe interface to locks of open files; see SAFETY")]
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        _ if set == 0 => Ok(true),
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}
