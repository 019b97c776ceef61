//! A local folder as a store.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use cap_std::fs::File;
use futures::StreamExt;
use futures::stream;
use penstock_engine::memory::{ALIGNMENT, buffer, bytes_of, unaligned};
use penstock_types::spec::Links;
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{pread, retry_on_intr};
use tokio::task::coop::consume_budget;
use tokio::task::spawn_blocking;

use crate::asked::{Asked, CHANGED, NOT_REGULAR};
use crate::cached::{self, is_local};
use crate::error::{Access, OpenFault, StoreError};
use crate::key::{check_key, check_prefix};
use crate::links::{NoTarget, Place, Roots, leads_outside, open_file};
use crate::observe::{is_observed, note, now};
use crate::page_cache::{cached_share, forget};
use crate::store::{Folders, IfThere, KeyPages, Store, StoreFuture, Version};
use crate::walk::{Walk, folders};
use crate::write::write;

/// A local folder as a store: its regular files, named by their paths relative to the folder.
///
/// Nothing outside the folder is ever read, regardless of keys and links: the kernel resolves every path beneath the
/// folder (`openat2` with `RESOLVE_BENEATH`; where this is missing, cap-std does so step by step). The folder itself may
/// be reached through links. Inside, a link that stays inside is followed, also an absolute one. A link may also lead into the folders
/// that [`Self::open_with`] is given, and in the layout of the cache of Hugging Face, a link of the form `../../blobs/HASH` leads to that
/// file of the same repository. Any other link is refused. Folders, pipes, sockets and devices are not objects, and requests for them
/// never block.
///
/// A listing includes hidden files, so that a folder and a bucket copied from it list the same keys. It includes links to files, and
/// descends into linked folders, except into one that is already on the path: circular links end. Names that are not UTF-8, keys longer
/// than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES), broken links, links that are refused, and special files are left out, and each page
/// states their number. Pages are read on demand; a listing holds the names of one folder per level of depth.
///
/// A write creates missing folders, and replaces a link by the object itself. Until it is complete, the object has the name
/// `.penstock-draft-` with 16 hex digits, which is not a valid key and never listed; a process that dies may leave one behind.
///
/// Reads and writes run on tokio's blocking threads, with one switch to such a thread for open, read and close together. A read
/// of a small file that is in memory needs no such switch.
#[derive(Debug)]
pub struct FolderStore {
    name: Arc<str>,
    path: PathBuf,
    roots: Arc<Roots>,
    /// Set if small files in memory are read without a switch of threads.
    is_local: bool,
}

struct Object {
    file: File,
    version: Version,
}

impl FolderStore {
    /// Opens the folder at `path` as the store `name`. Fails if it is not a folder or access is denied.
    pub fn open(name: impl Into<Arc<str>>, path: impl AsRef<Path>) -> Result<Self, OpenFault> {
        Self::open_with(name, path, &[])
    }

    /// Opens the folder at `path` as the store `name`, whose links may enter the folders `links`, too.
    pub fn open_with(
        name: impl Into<Arc<str>>,
        path: impl AsRef<Path>,
        links: &[PathBuf],
    ) -> Result<Self, OpenFault> {
        let (name, path) = (name.into(), path.as_ref().to_path_buf());
        match Roots::open(&path, links) {
            Ok(roots) => Ok(Self { name, path, is_local: is_local(roots.own()), roots: Arc::new(roots) }),
            Err((path, source)) => Err(OpenFault { store: name, path, source }),
        }
    }

    /// Opens the object on a blocking thread and returns the result of `read`.
    fn with_object<T: Send + 'static>(
        &self,
        key: Arc<str>,
        read: impl FnOnce(&Asked, Object) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let roots = self.roots.clone();
        let asked = Asked { store: self.name.clone(), key, access: Access::Reading };
        Box::pin(async move {
            // The clock is read only for observed reads, because it costs a few percent of the time of a small read.
            let start = is_observed().then(now);
            let work = move |roots: &Roots, asked: &Asked| {
                let object = Object::open(roots, asked)?;
                let opened = start.map(|start| start.elapsed());
                let read = read(asked, object)?;
                Ok((read, opened.zip(start.map(|start| start.elapsed()))))
            };
            let (read, times) = on_blocking_thread(roots, asked, work).await?;
            if let Some((opened, ended)) = times {
                note(|parts| (parts.first_byte, parts.body) = (opened, ended - opened));
            }
            Ok(read)
        })
    }

    /// Reads the object, or a part of it, on the caller's thread if that never waits, or else by `read`.
    fn cached_or(
        &self,
        key: Arc<str>,
        part: Option<Range<u64>>,
        of: Option<Version>,
        read: StoreFuture<Bytes>,
    ) -> StoreFuture<Bytes> {
        let is_small =
            part.as_ref().is_none_or(|part| part.end.saturating_sub(part.start) <= cached::MOST_BYTES);
        if !self.is_local || !is_small || check_key(&key).is_err() {
            return read;
        }
        let roots = self.roots.clone();
        Box::pin(async move {
            // A task that reads many files lets other tasks run in between.
            consume_budget().await;
            match cached::read(roots.own(), &key, part.as_ref(), of.as_ref(), cached::MOST_BYTES) {
                Some(bytes) => Ok(bytes),
                None => read.await,
            }
        })
    }
}

/// Runs `work` on a blocking thread, if the key is valid.
async fn on_blocking_thread<T: Send + 'static>(
    roots: Arc<Roots>,
    asked: Asked,
    work: impl FnOnce(&Roots, &Asked) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    check_key(&asked.key).map_err(|reason| asked.refused(reason))?;
    note(|parts| parts.attempts += 1);
    let asked_again = asked.clone();
    let task = spawn_blocking(move || work(&roots, &asked));
    task.await.unwrap_or_else(|error| Err(asked_again.failed(error)))
}

impl Store for FolderStore {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn describe(&self) -> String {
        format!("store `{}` (folder `{}`)", self.name, self.path.display())
    }

    fn list(&self, prefix: &str) -> KeyPages {
        self.list_all(prefix, Links::All)
    }

    fn list_all(&self, prefix: &str, links: Links) -> KeyPages {
        let asked = Asked { store: self.name.clone(), key: Arc::from(prefix), access: Access::Listing };
        if let Err(reason) = check_prefix(prefix) {
            return asked.refused_pages(reason);
        }
        // The walk moves to a blocking thread and back for every page, so that pages are read only on demand.
        let walk = Walk::new(self.roots.clone(), asked.clone(), links);
        stream::try_unfold(walk, move |mut walk| {
            let asked = asked.clone();
            async move {
                let task = spawn_blocking(move || Ok(walk.next_page()?.map(|page| (page, walk))));
                task.await.unwrap_or_else(|error| Err(asked.failed(error)))
            }
        })
        .boxed()
    }

    fn folders(&self, folder: &str, links: Links) -> StoreFuture<Option<Folders>> {
        let asked = Asked { store: self.name.clone(), key: Arc::from(folder), access: Access::Listing };
        let (roots, folder) = (self.roots.clone(), folder.to_owned());
        Box::pin(async move {
            check_prefix(&folder).map_err(|reason| asked.refused(reason))?;
            let asked_again = asked.clone();
            let task = spawn_blocking(move || folders(roots, asked, links).map(Some));
            task.await.unwrap_or_else(|error| Err(asked_again.failed(error)))
        })
    }

    fn get(&self, key: Arc<str>) -> StoreFuture<Bytes> {
        let read =
            self.with_object(key.clone(), |asked, object| object.read_range(asked, 0..object.version.size));
        self.cached_or(key, None, None, read)
    }

    fn get_versioned(&self, key: Arc<str>) -> Option<StoreFuture<(Bytes, Version)>> {
        Some(self.with_object(key, |asked, object| {
            Ok((object.read_range(asked, 0..object.version.size)?, object.version))
        }))
    }

    fn get_range(&self, key: Arc<str>, of: Option<Version>, range: Range<u64>) -> StoreFuture<Bytes> {
        let (part, version) = (range.clone(), of.clone());
        let read = self.with_object(key.clone(), move |asked, object| {
            // A range read reports a more specific error if the object has become shorter.
            let read = object.read_range(asked, range)?;
            if of.is_none_or(|of| of == object.version) { Ok(read) } else { Err(asked.failed(CHANGED)) }
        });
        self.cached_or(key, Some(part), version, read)
    }

    fn may_be_cached(&self) -> bool {
        self.is_local
    }

    fn cached_range(&self, key: &str, of: &Version, range: Range<u64>) -> Option<Bytes> {
        if !self.is_local || check_key(key).is_err() {
            return None;
        }
        cached::read(self.roots.own(), key, Some(&range), Some(of), u64::MAX)
    }

    fn version(&self, key: Arc<str>) -> StoreFuture<Version> {
        self.with_object(key, |_, object| Ok(object.version))
    }

    fn write(&self, key: Arc<str>, bytes: Bytes, if_there: IfThere) -> StoreFuture<bool> {
        let asked = Asked { store: self.name.clone(), key, access: Access::Writing };
        let work = move |roots: &Roots, asked: &Asked| write(roots.own(), asked, &bytes, if_there);
        Box::pin(on_blocking_thread(self.roots.clone(), asked, work))
    }

    fn forget(&self, key: Arc<str>) -> StoreFuture<bool> {
        self.with_object(key, |_, object| Ok(forget(&object.file)))
    }

    fn cached_share(&self, key: Arc<str>) -> StoreFuture<Option<f64>> {
        self.with_object(key, |asked, object| {
            cached_share(&object.file, object.version.size).map_err(|error| asked.failed(error))
        })
    }
}

/// Version of a file. The inode number changes when the file is replaced, the modification time when it is written to.
pub(crate) fn version(stat: &Stat) -> Version {
    let tag = format!("{}-{}-{}", stat.st_ino, stat.st_mtime, stat.st_mtime_nsec);
    Version { size: stat.st_size.cast_unsigned(), tag: Some(tag.into()) }
}

impl Object {
    fn open(roots: &Roots, asked: &Asked) -> Result<Self, StoreError> {
        let file = match open_file(roots.own(), &*asked.key) {
            // A link that the kernel does not follow may lead into a folder that the store may read.
            Err(error) if leads_outside(&error) => match roots.resolve(Place::OWN, &asked.key) {
                Ok(target) if target.kind.is_dir() => return Err(asked.not_found()),
                Ok(target) => roots.open_file(&target.place),
                Err(NoTarget::Outside) => Err(error),
                Err(NoTarget::Failed(error)) => Err(error),
            },
            opened => opened,
        };
        let file = file.map_err(|error| asked.not_opened(error))?;
        let stat = fstat(file.as_fd()).map_err(|error| asked.failed(io::Error::from(error)))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Self { file, version: version(&stat) }),
            FileType::Directory => Err(asked.not_found()),
            _ => Err(asked.refused(NOT_REGULAR)),
        }
    }

    /// Reads a range of the file, checked against the file's size at the time of opening.
    fn read_range(&self, asked: &Asked, range: Range<u64>) -> Result<Bytes, StoreError> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            return Ok(Bytes::new());
        }
        asked.check_range(&range, self.version.size)?;
        let most = usize::try_from(length).map_err(|error| asked.failed(error))?;
        if let Some(mut buffer) = buffer(most) {
            let bytes = &mut (*buffer).as_mut()[..most];
            self.read_all(asked, range, |read, at| pread(self.file.as_fd(), &mut bytes[read..], at))?;
            return Ok(bytes_of(buffer).slice(..most));
        }
        let mut bytes = Vec::new();
        // Without a pooled buffer, the read is small or huge.
        let padding = if most < 1 << 20 { 0 } else { ALIGNMENT };
        bytes.try_reserve_exact(most.saturating_add(padding)).map_err(|error| asked.failed(error))?;
        let start = padding.min(unaligned(&bytes));
        bytes.resize(start, 0);
        self.read_all(asked, range, |_, at| pread(self.file.as_fd(), spare_capacity(&mut bytes), at))?;
        // The buffer may be longer than requested, because the allocator may have provided more capacity and the file may have
        // grown.
        bytes.truncate(start + most);
        Ok(Bytes::from(bytes).slice(start..))
    }

    /// Calls `read` with the number of bytes that were read, and the place of the next one, until all are read.
    fn read_all(
        &self,
        asked: &Asked,
        range: Range<u64>,
        mut read: impl FnMut(usize, u64) -> rustix::io::Result<usize>,
    ) -> Result<(), StoreError> {
        let mut at = range.start;
        while at < range.end {
            let more = retry_on_intr(|| read((at - range.start) as usize, at));
            match more.map_err(|error| asked.failed(io::Error::from(error)))? {
                0 => return Err(asked.out_of_range(range, at)),
                more => at += more as u64,
            }
        }
        Ok(())
    }
}
