//! The directory of the cache. Files are read only if they are regular files that only this user may access, and are written
//! atomically. All accesses use the open directory that was checked, even if its path refers to another directory later.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fchmod, fstat,
    futimens, linkat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::component::hex;
use crate::error::SandboxError;

/// Suffix of files that are being written.
const UNFINISHED: &str = ".new";
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// An open directory that belongs to this user and is not accessible to other users.
pub(super) struct Folder {
    path: PathBuf,
    directory: OwnedFd,
}

#[derive(Debug)]
pub(super) struct CachedFile {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Time since 1970 of the file's last write or last use.
    pub(super) used: Duration,
}

/// Identity of a file and its content: a file that is written or replaced gets another one, unless that happens in the same tick
/// of the file system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    bytes: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(found: &Stat) -> Self {
        Self {
            device: found.st_dev as _,
            inode: found.st_ino as _,
            bytes: found.st_size as _,
            modified: (found.st_mtime as _, found.st_mtime_nsec as _),
            changed: (found.st_ctime as _, found.st_ctime_nsec as _),
        }
    }

    /// Records that a file is used now, and returns the file's new identity. If that fails, the file is evicted sooner.
    pub(super) fn after_touch(self, file: &File) -> Self {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        futimens(file, &now).and_then(|()| fstat(file)).map_or(self, |found| Self::of(&found))
    }
}

/// Reasons why a file of the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it is {0}, not a plain file")]
    NotAFile(&'static str),
    #[error("it belongs to another user")]
    NotOurs,
    #[error("other users may read or change it (mode {0:o})")]
    Open(u32),
    #[error("it has {found} bytes, at most {limit} are expected")]
    TooLong { found: u64, limit: u64 },
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("it is not signed with this cache's key for this module and engine")]
    NotSigned,
}

impl Folder {
    /// Opens an existing directory and removes other users' access to it.
    pub(super) fn open(path: &Path) -> Result<Self, SandboxError> {
        let failed = |reason: &str, source: Option<io::Error>| SandboxError::Cache {
            path: path.into(),
            reason: reason.into(),
            source,
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => failed("it is a link or a file; use a directory", None),
            error => failed("it cannot be opened", Some(error.into())),
        })?;
        let found = fstat(&directory)
            .map_err(|error| failed("its owner and mode cannot be read", Some(error.into())))?;
        if found.st_uid != geteuid().as_raw() {
            return Err(failed("it belongs to another user, who could plant machine code there", None));
        }
        if Mode::from_raw_mode(found.st_mode).intersects(OTHERS) {
            fchmod(&directory, Mode::RWXU).map_err(|error| {
                failed("other users may enter it, and its mode cannot be changed", Some(error.into()))
            })?;
        }
        Ok(Self { path: path.into(), directory })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn display(&self) -> impl fmt::Display {
        self.path.display()
    }

    /// Opens a file of at most `limit` bytes for reading; `None` if there is no such file.
    pub(super) fn file(&self, name: &str, limit: u64) -> Result<Option<(File, Identity)>, Unusable> {
        // Links are not followed, and opening a pipe without a writer does not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(Unusable::NotAFile("a link")),
            Err(Errno::NXIO) => return Err(Unusable::NotAFile("a socket or a device")),
            Err(error) => return Err(Unusable::Unreadable(error.into())),
        };
        let found = fstat(&file).map_err(|error| Unusable::Unreadable(error.into()))?;
        check(&found, limit)?;
        Ok(Some((file.into(), Identity::of(&found))))
    }

    /// Reads a file once, so that its content cannot change after the check; `None` if there is no such file.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, Unusable> {
        let Some((file, _)) = self.file(name, limit)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(Unusable::Unreadable)?;
        if bytes.len() as u64 > limit {
            return Err(Unusable::TooLong { found: bytes.len() as u64, limit });
        }
        Ok(Some(bytes))
    }

    /// Writes a new file; an existing file is not changed.
    pub(super) fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.written(&[bytes])?;
        let linked = linkat(&self.directory, &temporary, &self.directory, name, AtFlags::empty());
        self.remove(&temporary);
        match linked {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            // Some file systems do not support links. Two concurrent writers may then use different keys, and one of them
            // compiles its module again.
            Err(Errno::PERM | Errno::NOTSUP | Errno::NOSYS | Errno::MLINK) => self.replace(name, &[bytes]),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces a file atomically.
    pub(super) fn replace(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let temporary = self.written(parts)?;
        renameat(&self.directory, &temporary, &self.directory, name).map_err(|error| {
            self.remove(&temporary);
            error.into()
        })
    }

    pub(super) fn list(&self) -> io::Result<Vec<CachedFile>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            // Skips names that are not UTF-8, which this cache never writes, and files that were removed after the directory was read.
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(file) = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(file.st_mode) == FileType::RegularFile {
                let used = Timespec { tv_sec: file.st_mtime, tv_nsec: file.st_mtime_nsec as _ };
                let used = Duration::try_from(used).unwrap_or_default();
                found.push(CachedFile { name: name.to_owned(), bytes: file.st_size.unsigned_abs(), used });
            }
        }
        Ok(found)
    }

    /// Returns true for the name of an unfinished file: one that is being written, or whose writer died.
    pub(super) fn is_unfinished(name: &str) -> bool {
        name.starts_with('.') && name.ends_with(UNFINISHED)
    }

    /// Writes a file under an unused temporary name, and returns this name.
    fn written(&self, parts: &[&[u8]]) -> io::Result<String> {
        let name = format!(".{}{UNFINISHED}", hex(&random::<8>()?));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // Read-only from the start: code may be mapped as long as the file exists.
        let mut file = File::from(openat(&self.directory, &name, flags, Mode::RUSR)?);
        let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_data());
        written.inspect_err(|_| self.remove(&name)).map(|()| name)
    }

    /// Removes a file; a missing file is not an error.
    pub(super) fn remove(&self, name: &str) {
        unlinkat(&self.directory, name, AtFlags::empty()).unwrap_or_default();
    }
}

pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

fn check(found: &Stat, limit: u64) -> Result<(), Unusable> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Unusable::NotAFile("a directory")),
        FileType::Fifo => return Err(Unusable::NotAFile("a pipe")),
        _ => return Err(Unusable::NotAFile("a socket or a device")),
    }
    if found.st_uid != geteuid().as_raw() {
        return Err(Unusable::NotOurs);
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    if mode.intersects(OTHERS) {
        return Err(Unusable::Open(mode.as_raw_mode()));
    }
    let size = found.st_size.unsigned_abs();
    if size > limit {
        return Err(Unusable::TooLong { found: size, limit });
    }
    Ok(())
}
