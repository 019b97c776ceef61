//! Folders of one user, which keep what a process trusts later: compiled code and cached data. Files are used only if they are regular
//! files that only this user may access. All accesses use the open folder that was checked, even if its path refers to another
//! one later.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_types::text::hex;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fchmod, fstat,
    fstatvfs, futimens, linkat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Suffix of files that are being written.
const UNFINISHED: &str = ".new";
/// Size of a key in bytes.
pub const KEY_BYTES: usize = 32;
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// An open folder that belongs to this user and is not accessible to other users.
pub struct PrivateFolder {
    path: PathBuf,
    directory: OwnedFd,
}

#[derive(Debug)]
pub struct CachedFile {
    pub name: String,
    pub bytes: u64,
    /// Time since 1970 of the file's last write or last use.
    pub used: Duration,
}

/// Identity of a file and its content: a file that is written or replaced gets another one, unless that happens in the same tick
/// of the file system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
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
    pub fn after_touch(self, file: &File) -> Self {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        futimens(file, &now).and_then(|()| fstat(file)).map_or(self, |found| Self::of(&found))
    }
}

/// Reasons why a file of the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
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
    /// Compiled code whose signature is another one.
    #[error("it is not signed with this cache's key for this module and engine")]
    NotSigned,
}

/// Reason why a folder is not one of this user alone.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `{}`: {reason}", path.display())]
pub struct NotPrivate {
    pub path: PathBuf,
    pub reason: NotPrivateReason,
    pub source: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPrivateReason {
    #[error("it cannot be created")]
    NotCreated,
    #[error("it cannot be opened")]
    NotOpened,
    #[error("it cannot be used")]
    NotUsable,
    #[error("it is a link or a file; use a folder")]
    NotAFolder,
    #[error("it belongs to another user, who could plant files there")]
    Foreign,
    #[error("other users may enter it, and its mode cannot be changed")]
    Shared,
}

impl PrivateFolder {
    /// Opens the folder `name` within `parent`, and creates both if they are missing. Removes other users' access to the folder `name`.
    pub fn create_in(parent: &Path, name: &str) -> Result<Self, NotPrivate> {
        let failed = |path: &Path, source| NotPrivate {
            path: path.into(),
            reason: NotPrivateReason::NotCreated,
            source: Some(source),
        };
        let mut maker = DirBuilder::new();
        maker.mode(0o700).recursive(true).create(parent).map_err(|error| failed(parent, error))?;
        let path = parent.join(name);
        match maker.recursive(false).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(&path, error)),
            _ => Self::open(&path),
        }
    }

    /// Opens an existing folder and removes other users' access to it.
    pub fn open(path: &Path) -> Result<Self, NotPrivate> {
        Self::open_at(CWD, path, path.into())
    }

    /// Opens the folder `name` in this one; `None` if there is none.
    pub fn folder(&self, name: &str) -> Result<Option<Self>, NotPrivate> {
        match Self::open_at(self.directory.as_fd(), Path::new(name), self.path(name)) {
            Err(NotPrivate { source: Some(error), .. }) if error.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// Opens the folder `name` in this one, and creates it if it is missing.
    pub fn new_folder(&self, name: &str) -> Result<Self, NotPrivate> {
        let path = self.path(name);
        match mkdirat(&self.directory, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open_at(self.directory.as_fd(), Path::new(name), path),
            Err(error) => {
                Err(NotPrivate { path, reason: NotPrivateReason::NotCreated, source: Some(error.into()) })
            }
        }
    }

    fn open_at(parent: BorrowedFd<'_>, name: &Path, path: PathBuf) -> Result<Self, NotPrivate> {
        let failed = |reason, source| NotPrivate { path: path.clone(), reason, source };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => failed(NotPrivateReason::NotAFolder, None),
            error => failed(NotPrivateReason::NotOpened, Some(error.into())),
        })?;
        let found =
            fstat(&directory).map_err(|error| failed(NotPrivateReason::NotOpened, Some(error.into())))?;
        if found.st_uid != geteuid().as_raw() {
            return Err(failed(NotPrivateReason::Foreign, None));
        }
        if Mode::from_raw_mode(found.st_mode).intersects(OTHERS) {
            fchmod(&directory, Mode::RWXU)
                .map_err(|error| failed(NotPrivateReason::Shared, Some(error.into())))?;
        }
        Ok(Self { path, directory })
    }

    /// Reads the key in the file `name`. Creates the key if it is missing, and replaces it if other users could have read or chosen it.
    pub fn key(&self, name: &str) -> io::Result<[u8; KEY_BYTES]> {
        let mut is_new = false;
        loop {
            let reason = match self.read(name, KEY_BYTES as u64) {
                Ok(Some(key)) => match key.try_into() {
                    Ok(key) => return Ok(key),
                    Err(key) => format!("it has {} bytes, but {KEY_BYTES} are required", key.len()),
                },
                Ok(None) => String::new(),
                Err(Unusable::Unreadable(error)) => return Err(error),
                Err(reason) => reason.to_string(),
            };
            if is_new {
                return Err(io::Error::other(format!("the new key cannot be read back: {reason}")));
            }
            is_new = true;
            let key = random::<KEY_BYTES>()?;
            if reason.is_empty() {
                // If several processes start at once, the key of one of them is stored, and all read that key.
                self.create(name, &key)?;
            } else {
                let path = self.path(name);
                tracing::warn!(path = %path.display(), reason, "replaced an unusable key of a cache");
                self.replace(name, &[&key])?;
            }
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn display(&self) -> impl fmt::Display {
        self.path.display()
    }

    /// Opens a file of at most `limit` bytes for reading; `None` if there is no such file.
    pub fn file(&self, name: &str, limit: u64) -> Result<Option<(File, Identity)>, Unusable> {
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

    /// Opens a file for reading and writing, and creates it if it is missing. Other names of the same file are refused: they may be in
    /// other folders.
    pub fn shared_file(&self, name: &str) -> Result<File, Unusable> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let file =
            openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
                Errno::LOOP => Unusable::NotAFile("a link"),
                Errno::ISDIR => Unusable::NotAFile("a directory"),
                error => Unusable::Unreadable(error.into()),
            })?;
        let found = fstat(&file).map_err(|error| Unusable::Unreadable(error.into()))?;
        check(&found, u64::MAX)?;
        if found.st_nlink > 1 {
            return Err(Unusable::NotAFile("a file with several names"));
        }
        Ok(file.into())
    }

    /// True if `file` is the one that has the name `name` now.
    pub fn has(&self, name: &str, file: &File) -> bool {
        let found = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| {
            fstat(file).is_ok_and(|own| own.st_ino == found.st_ino && own.st_dev == found.st_dev)
        })
    }

    /// Bytes of the file system that its users may still take.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let system = fstatvfs(&self.directory)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Gives the folder `from` in this one the name `to`, which no other folder has.
    pub fn rename_folder(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.directory, from, &self.directory, to)?)
    }

    /// Removes the folder `name` in this one, which has files only.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        if let Ok(Some(folder)) = self.folder(name) {
            folder.list()?.iter().for_each(|file| folder.remove(&file.name));
        }
        Ok(unlinkat(&self.directory, name, AtFlags::REMOVEDIR)?)
    }

    /// Names of the folders in this one.
    pub fn folders(&self) -> io::Result<Vec<String>> {
        let mut folders = self.names(FileType::Directory)?;
        folders.retain(|(name, _)| name != "." && name != "..");
        Ok(folders.into_iter().map(|(name, _)| name).collect())
    }

    /// Reads a file once, so that its content cannot change after the check; `None` if there is no such file.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, Unusable> {
        let Some((file, _)) = self.file(name, limit)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(Unusable::Unreadable)?;
        if bytes.len() as u64 > limit {
            return Err(Unusable::TooLong { found: bytes.len() as u64, limit });
        }
        Ok(Some(bytes))
    }

    /// Writes a new file; an existing file is not changed.
    pub fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
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
    pub fn replace(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let temporary = self.written(parts)?;
        renameat(&self.directory, &temporary, &self.directory, name).map_err(|error| {
            self.remove(&temporary);
            error.into()
        })
    }

    pub fn list(&self) -> io::Result<Vec<CachedFile>> {
        let found = self.names(FileType::RegularFile)?.into_iter().map(|(name, file)| {
            let used = Timespec { tv_sec: file.st_mtime, tv_nsec: file.st_mtime_nsec as _ };
            let used = Duration::try_from(used).unwrap_or_default();
            CachedFile { name, bytes: file.st_size.unsigned_abs(), used }
        });
        Ok(found.collect())
    }

    fn names(&self, of: FileType) -> io::Result<Vec<(String, Stat)>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            // Skips names that are not UTF-8, which no cache writes, and files that were removed after the directory was read.
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(found) = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(found.st_mode) == of {
                names.push((name.to_owned(), found));
            }
        }
        Ok(names)
    }

    /// Returns true for the name of an unfinished file: one that is being written, or whose writer died.
    pub fn is_unfinished(name: &str) -> bool {
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
    pub fn remove(&self, name: &str) {
        unlinkat(&self.directory, name, AtFlags::empty()).unwrap_or_default();
    }
}

pub fn random<const N: usize>() -> io::Result<[u8; N]> {
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
