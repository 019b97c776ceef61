//! Writes a file of a folder completely or not at all.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsFd;

use cap_std::fs::{Dir, File, OpenOptions};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, fsync, linkat, openat, renameat_with};
use rustix::io::Errno;

use crate::asked::{Asked, NOT_REGULAR};
use crate::error::StoreError;
use crate::key::draft_name;
use crate::store::IfThere;

const FOLDER_IS_THERE: &str = "a folder with that name exists; only files are objects";
const FILE_IN_THE_WAY: &str = "a part of it before a `/` names a file, not a folder";
const LINK_TO_NOWHERE: &str = "a part of it before a `/` is a broken link";
const NAME_TOO_LONG: &str = "a part of it is longer than the folder's file system allows";

/// A file being written. It is removed on drop unless one of the `keep` methods has renamed it.
struct Draft<'a> {
    folder: &'a Dir,
    name: String,
    file: File,
    is_kept: bool,
}

/// Writes the object of `asked` below `root`, durably, and creates missing folders. Returns false if an existing object was
/// left unchanged.
pub(crate) fn write(root: &Dir, asked: &Asked, bytes: &[u8], if_there: IfThere) -> Result<bool, StoreError> {
    let (folder, name) = asked.key.rsplit_once('/').unwrap_or((".", &asked.key));
    let folder = folder_at(root, folder).map_err(|error| asked.not_written(error))?;
    if let Ok(found) = folder.symlink_metadata(name) {
        if !(found.is_file() || found.is_symlink()) {
            return Err(asked.refused(if found.is_dir() { FOLDER_IS_THERE } else { NOT_REGULAR }));
        }
        // Avoids writing a draft if the object exists. A concurrent write is detected only when the draft is renamed.
        if if_there == IfThere::Leave {
            return Ok(false);
        }
    }
    let written = Draft::create(&folder).and_then(|mut draft| {
        draft.file.write_all(bytes)?;
        draft.file.sync_all()?;
        match if_there {
            IfThere::Replace => draft.keep_as(name).map(|()| true),
            IfThere::Leave => draft.keep_as_new(name),
        }
    });
    written.map_err(|error| asked.not_written(error))
}

fn folder_at(root: &Dir, path: &str) -> io::Result<Dir> {
    match root.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let mut parent = ".";
    for end in path.match_indices('/').map(|(at, _)| at).chain([path.len()]) {
        let folder = &path[..end];
        match root.create_dir(folder) {
            Ok(()) => sync(&root.open_dir(parent)?)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        parent = folder;
    }
    root.open_dir(path)
}

/// Makes changes of the names in `folder` durable.
fn sync(folder: &Dir) -> io::Result<()> {
    // Reopened for reading, because cap-std opens folders with O_PATH, and such a descriptor cannot be synced.
    let readable = openat(folder.as_fd(), ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match fsync(readable) {
        // The file system does not support syncing folders and does not need it.
        Err(Errno::INVAL) => Ok(()),
        synced => synced.map_err(io::Error::from),
    }
}

impl<'a> Draft<'a> {
    fn create(folder: &'a Dir) -> io::Result<Self> {
        // The name is random, because every `RandomState` that a process creates is random.
        let name = draft_name(RandomState::new().build_hasher().finish());
        let file = folder.open_with(&name, OpenOptions::new().write(true).create_new(true))?;
        Ok(Self { folder, name, file, is_kept: false })
    }

    fn keep_as(&mut self, name: &str) -> io::Result<()> {
        self.folder.rename(&self.name, self.folder, name)?;
        self.is_kept = true;
        sync(self.folder)
    }

    /// Renames the draft if no file has that name. Of several concurrent calls, one succeeds.
    fn keep_as_new(&mut self, name: &str) -> io::Result<bool> {
        let folder = self.folder.as_fd();
        let linked = match linkat(folder, &self.name, folder, name, AtFlags::empty()) {
            // The file system supports neither call, so two concurrent calls may both succeed.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                renameat_with(folder, &self.name, folder, name, RenameFlags::NOREPLACE)
                    .inspect(|()| self.is_kept = true)
            }
            linked => linked,
        };
        match linked {
            Ok(()) => sync(self.folder).map(|()| true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // An error is ignored: the caller gets the error of the write itself.
            self.folder.remove_file(&self.name).ok();
        }
    }
}

impl Asked {
    fn not_written(&self, error: io::Error) -> StoreError {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ISDIR) => self.refused(FOLDER_IS_THERE),
            Some(Errno::NOTDIR) => self.refused(FILE_IN_THE_WAY),
            Some(Errno::NOENT) => self.refused(LINK_TO_NOWHERE),
            Some(Errno::NAMETOOLONG) => self.refused(NAME_TOO_LONG),
            _ => self.not_opened(error),
        }
    }
}
