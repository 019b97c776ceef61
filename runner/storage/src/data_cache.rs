//! Folder that keeps data between runs, and is shared by all processes of its owner.
//!
//! The folder has sets, each of entries that belong together, such as the objects of one bucket. An entry is written once and never
//! changed; when the folder is full, no more are admitted. Sets that no process uses are removed to make room, those first that were
//! unused for the longest time. Nothing in the folder is trusted: rows and payloads are authenticated with the owner's key, and a damaged
//! entry counts as missing.

mod claims;
mod filler;
mod segment;
mod set;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_engine::private::{NotPrivate, NotPrivateReason, PrivateFolder, Unusable};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

pub(crate) use self::claims::Claim;
use self::filler::Filler;
pub use self::filler::MOST_WAITING;
pub(crate) use self::filler::Room;
use self::segment::Keys;
pub(crate) use self::set::{Found, NotAdmitted, Set};

/// Folder of the cache within the owner's folder, which may have other files and other users.
const FOLDER: &str = "data";
const SETS: &str = "sets";
const KEY: &str = "key";
/// File that a process locks while it changes the space that the folder takes.
const SPACE: &str = "space";
/// File of a set that each process which uses the set locks.
const IN_USE: &str = "in-use";
/// File of a set that says to people what it holds.
const ABOUT: &str = "about";
/// Prefix of the name of a set that is being removed.
const GONE: &str = "gone-";
/// Part of the limit that a writer reserves at a time, and the least and most bytes of that.
const PART: u64 = 512;
const LEAST_PART: u64 = 64 << 10;
const MOST_PART: u64 = 16 << 20;
/// Part of the free space that a cache without a limit may take.
const DEFAULT_PART: u64 = 4;
/// Bytes of the file system that stay free, when the owner does not say how many.
pub const DEFAULT_KEEP_FREE: u64 = 10 << 30;
/// Attempts at what other processes may disturb.
const MOST_ATTEMPTS: u32 = 20;
/// Length in bytes of a description that is read.
const MOST_ABOUT: u64 = 4096;

/// Key of an entry: a digest of everything that determines its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryKey(pub(crate) [u8; 32]);

/// Space that a cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Most bytes of all sets together; `None` for a quarter of what they have and what is free.
    pub bytes: Option<u64>,
    /// Bytes of the file system that stay free.
    pub keep_free: u64,
}

/// Reason why a cache takes no more entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The sets in use take all of the space that the owner grants.
    Full,
    /// The file system has no more space than what stays free.
    DiskFull,
    Failed(String),
}

/// A set, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFacts {
    pub name: String,
    /// What it holds.
    pub about: String,
    pub bytes: u64,
    /// Time since 1970 of its last use.
    pub used: Duration,
    /// Set while a process uses it.
    pub is_in_use: bool,
}

/// An open cache folder.
pub struct DataCache {
    folder: PrivateFolder,
    sets: PrivateFolder,
    keys: Keys,
    /// Most bytes of all sets together.
    bytes: u64,
    keep_free: u64,
    filler: Filler,
    /// Sets that this process has open.
    open: Mutex<HashMap<String, Weak<Set>>>,
}

impl EntryKey {
    /// The part by which entries are found in memory.
    fn short(&self) -> u64 {
        u64::from_le_bytes(*self.0.first_chunk().expect("a key is longer than 8 bytes"))
    }
}

impl DataCache {
    /// Opens the cache in the folder `path`, and creates both if they are missing. Within a process, all who open it with the same limits
    /// share one.
    pub fn open(path: &Path, limits: CacheLimits) -> Result<Arc<Self>, NotPrivate> {
        static OPEN: Mutex<Vec<(PathBuf, CacheLimits, Weak<DataCache>)>> = Mutex::new(Vec::new());
        let folder = PrivateFolder::create_in(path, FOLDER)?;
        let failed = |source| NotPrivate {
            path: path.into(),
            reason: NotPrivateReason::NotUsable,
            source: Some(source),
        };
        let place = path.canonicalize().map_err(failed)?;
        let mut open = locked(&OPEN);
        open.retain(|(_, _, cache)| cache.strong_count() > 0);
        let same = open.iter().find(|(other, with, _)| *other == place && *with == limits);
        if let Some(cache) = same.and_then(|(_, _, cache)| cache.upgrade()) {
            return Ok(cache);
        }
        let sets = folder.new_folder(SETS)?;
        let mut cache = Self {
            keys: Keys::new(&folder.key(KEY).map_err(failed)?),
            bytes: 0,
            keep_free: limits.keep_free,
            filler: Filler::start().map_err(failed)?,
            open: Mutex::default(),
            folder,
            sets,
        };
        cache.bytes = match limits.bytes {
            Some(bytes) => bytes,
            None => {
                let free = cache.folder.free_bytes().map_err(failed)?;
                cache.used().map_err(failed)?.saturating_add(free) / DEFAULT_PART
            }
        };
        let cache = Arc::new(cache);
        open.push((place, limits, Arc::downgrade(&cache)));
        Ok(cache)
    }

    /// True if there is a cache in the folder `path`.
    pub fn is_in(path: &Path) -> bool {
        path.join(FOLDER).join(SETS).is_dir()
    }

    /// Opens the set `name`, and creates it if it is missing. `about` says to people what it holds. Waits for the disk.
    pub(crate) fn set(self: &Arc<Self>, name: &str, about: &str) -> io::Result<Arc<Set>> {
        let mut open = locked(&self.open);
        open.retain(|_, set| set.strong_count() > 0);
        if let Some(set) = open.get(name).and_then(Weak::upgrade) {
            return Ok(set);
        }
        for _ in 0..MOST_ATTEMPTS {
            let folder = self.sets.new_folder(name).map_err(io::Error::other)?;
            // Another process may have removed the set before it is locked.
            let Ok(in_use) = folder.shared_file(IN_USE) else { continue };
            uninterrupted(|| in_use.lock_shared())?;
            if !self.is_of(name, &in_use) {
                continue;
            }
            touch(&in_use);
            let mut file = folder.shared_file(ABOUT).map_err(io::Error::other)?;
            if file.metadata()?.len() == 0 {
                file.write_all(about.as_bytes())?;
            }
            let set = Arc::new(Set::open(self.clone(), folder, in_use)?);
            open.insert(name.to_owned(), Arc::downgrade(&set));
            return Ok(set);
        }
        Err(io::Error::other("other processes remove it again and again"))
    }

    /// True if `in_use` is the lock of the set that has this name now.
    fn is_of(&self, name: &str, in_use: &File) -> bool {
        self.sets.folder(name).ok().flatten().is_some_and(|folder| folder.has(IN_USE, in_use))
    }

    /// The sets in the folder, those first that were unused for the longest time.
    pub fn sets(&self) -> io::Result<Vec<SetFacts>> {
        let mut sets = Vec::new();
        for name in self.sets.folders()? {
            // A set can be removed meanwhile.
            let Ok(Some(folder)) = self.sets.folder(&name) else { continue };
            let files = folder.list()?;
            let about = folder.read(ABOUT, MOST_ABOUT).ok().flatten().unwrap_or_default();
            let is_in_use = match folder.file(IN_USE, u64::MAX) {
                Ok(Some((file, _))) => !is_unused(&file)?,
                Ok(None) | Err(_) => false,
            };
            sets.push(SetFacts {
                about: String::from_utf8_lossy(&about).into_owned(),
                bytes: files.iter().fold(0, |bytes, file| bytes.saturating_add(file.bytes)),
                used: files.iter().find(|file| file.name == IN_USE).map_or(Duration::ZERO, |file| file.used),
                is_in_use,
                name,
            });
        }
        sets.sort_by_key(|set| set.used);
        Ok(sets)
    }

    /// Reads and checks all entries of the set `name`. Returns the number of whole entries and of damaged ones.
    pub fn verify(&self, name: &str) -> io::Result<(u64, u64)> {
        let folder = self.sets.folder(name).map_err(io::Error::other)?;
        Ok(folder.map_or((0, 0), |folder| Set::verify(self, &folder)))
    }

    /// Removes the set `name`. Returns false if a process uses it.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        let Some(folder) = self.sets.folder(name).map_err(io::Error::other)? else { return Ok(true) };
        let in_use = folder.shared_file(IN_USE).map_err(io::Error::other)?;
        if !is_unused(&in_use)? {
            return Ok(false);
        }
        // Another process may have removed the set before it was locked, and a third one may use a new one of that name.
        if !self.is_of(name, &in_use) {
            return Ok(true);
        }
        // A process that opens the set by its name from now on creates another one.
        let gone = if name.starts_with(GONE) { name.to_owned() } else { format!("{GONE}{name}") };
        if gone != name {
            match self.sets.rename_folder(name, &gone) {
                // An earlier removal has left something.
                Err(error)
                    if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) =>
                {
                    self.sets.remove_folder(&gone)?;
                    self.sets.rename_folder(name, &gone)?;
                }
                renamed => renamed?,
            }
        }
        self.sets.remove_folder(&gone)?;
        Ok(true)
    }

    /// Bytes that all sets take.
    fn used(&self) -> io::Result<u64> {
        let mut bytes = 0_u64;
        for name in self.sets.folders()? {
            let Ok(Some(folder)) = self.sets.folder(&name) else { continue };
            bytes = folder.list()?.iter().fold(bytes, |bytes, file| bytes.saturating_add(file.bytes));
        }
        Ok(bytes)
    }

    /// Calls `reserve` with the number of bytes that it may reserve: about a [`PART`] of the limit, and at least `least`. If there is no
    /// room, removes sets that no process uses, if that makes room. Waits for other processes that do the same.
    fn reserve(&self, least: u64, reserve: impl FnOnce(u64) -> io::Result<()>) -> Result<(), Stopped> {
        let space = self.folder.shared_file(SPACE)?;
        uninterrupted(|| space.lock()).map_err(|error| stopped(&error))?;
        let wanted = (self.bytes / PART).clamp(LEAST_PART, MOST_PART).max(least);
        let mut unused = None;
        loop {
            let room = self.bytes.saturating_sub(self.used().map_err(|error| stopped(&error))?);
            let free = self.folder.free_bytes().map_err(|error| stopped(&error))?;
            let most = room.min(free.saturating_sub(self.keep_free));
            if most >= least {
                return reserve(wanted.min(most)).map_err(|error| stopped(&error));
            }
            let full = || if room < least { Stopped::Full } else { Stopped::DiskFull };
            let unused = match &mut unused {
                Some(unused) => unused,
                None => {
                    let mut sets = self.sets().map_err(|error| stopped(&error))?;
                    sets.retain(|set| !set.is_in_use);
                    let bytes = sets.iter().fold(0_u64, |bytes, set| bytes.saturating_add(set.bytes));
                    let has_disk = free.saturating_add(bytes) >= self.keep_free.saturating_add(least);
                    if !has_disk || room.saturating_add(bytes) < least {
                        return Err(full());
                    }
                    unused.insert(sets.into_iter())
                }
            };
            let Some(set) = unused.next() else { return Err(full()) };
            if let Err(error) = self.remove(&set.name) {
                tracing::debug!(set = set.name, %error, "a set of the cache cannot be removed");
            }
        }
    }
}

/// Records that a set is used now. If that fails, it is removed sooner.
fn touch(in_use: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(in_use, &Timestamps { last_access: now, last_modification: now }).unwrap_or_default();
}

/// Locks a set of which no process has the lock. Others who look at the same time have it for a moment.
fn is_unused(in_use: &File) -> io::Result<bool> {
    for _ in 0..MOST_ATTEMPTS {
        match in_use.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// Calls `wait` again as long as a signal interrupts it.
fn uninterrupted(mut wait: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match wait() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            waited => return waited,
        }
    }
}

fn stopped(error: &io::Error) -> Stopped {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Stopped::DiskFull,
        _ => Stopped::Failed(error.to_string()),
    }
}

impl From<Unusable> for Stopped {
    fn from(reason: Unusable) -> Self {
        match reason {
            Unusable::Unreadable(error) => stopped(&error),
            reason => Self::Failed(reason.to_string()),
        }
    }
}
