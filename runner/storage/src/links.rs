//! Resolves links of a folder's store, without ever reading anything outside the folders that the store may read.
//!
//! A path is resolved name by name, as a list of the names of its absolute path. Each name is looked up beneath the handle of an open
//! folder. Names outside of all these folders are not looked up: a link may lead through the folders above them, because their canonical
//! paths are known. What is found is opened beneath the same handle again, so that a link that changes meanwhile leads nowhere else.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{self, Component, Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, FileType, Metadata, MetadataExt, OpenOptions, OpenOptionsExt};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// Maximum number of links that lead to one file, as in Linux.
const MAX_LINKS: usize = 40;

/// Flags for files. `NONBLOCK`: opening a pipe without a writer must not block. `NOCTTY`: a terminal must not become the controlling terminal.
const FILE: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Folders that a store may read: its own, and those that links may enter.
#[derive(Debug)]
pub(crate) struct Roots {
    /// The store's own folder, and then those that links may enter.
    roots: Vec<Root>,
    /// Absolute paths by which the folders were opened, where these are not canonical: with the index of the folder.
    aliases: Vec<(Vec<OsString>, usize)>,
    /// Content of the repository in a cache of Hugging Face, in whose layout the store's own folder lies.
    blobs: Option<Blobs>,
}

#[derive(Debug)]
struct Root {
    dir: Arc<Dir>,
    /// Names of the canonical path.
    path: Vec<OsString>,
}

/// Folder `blobs` of a repository in a cache of Hugging Face. Its files have hashes as names; `snapshots/REVISION` has links to them.
#[derive(Debug)]
struct Blobs {
    dir: Arc<Dir>,
    /// Number of names of the repository's canonical path.
    depth: usize,
}

/// Place beneath one of the folders of [`Roots`]. Its path had no links when it was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    root: At,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Root(usize),
    Blobs,
}

/// Device and number of a file or folder.
pub(crate) type FileId = (u64, u64);

/// File or folder that a path leads to.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) place: Place,
    pub(crate) kind: FileType,
    pub(crate) id: FileId,
}

/// Reason why a path leads to nothing.
#[derive(Debug)]
pub(crate) enum NoTarget {
    /// It leads out of all folders that the store may read.
    Outside,
    Failed(io::Error),
}

enum Position {
    /// Beneath a folder; the path is empty for the folder itself.
    Within(usize, PathBuf),
    /// Above a folder, so that names further down may be within it.
    Above,
    Outside,
}

impl Roots {
    /// Opens the folder of a store, and the folders that its links may enter. The error has the path of the folder that cannot be opened.
    pub(crate) fn open(own: &Path, entered: &[PathBuf]) -> Result<Self, (PathBuf, io::Error)> {
        let (mut roots, mut aliases) = (Vec::new(), Vec::new());
        for (index, path) in [own].into_iter().chain(entered.iter().map(PathBuf::as_path)).enumerate() {
            let open = || {
                let dir = Dir::open_ambient_dir(path, ambient_authority())?;
                Ok((dir, fs::canonicalize(path)?, path::absolute(path)?))
            };
            let (dir, canonical, given) = open().map_err(|error| (path.to_owned(), error))?;
            let (canonical, given) = (names(&canonical), names(&given));
            if given != canonical && !given.iter().any(|name| name == "..") {
                aliases.push((given, index));
            }
            roots.push(Root { dir: Arc::new(dir), path: canonical });
        }
        let blobs = Blobs::beside(&roots[0].path);
        Ok(Self { roots, aliases, blobs })
    }

    pub(crate) fn own(&self) -> &Arc<Dir> {
        &self.roots[0].dir
    }

    /// Resolves a path relative to `from`, a folder, with all links in it.
    pub(crate) fn resolve(&self, from: &Place, path: &str) -> Result<Target, NoTarget> {
        let mut stack = self.names_of(from);
        let mut rest: Vec<OsString> = path.split('/').rev().map(OsString::from).collect();
        let (mut links, mut found) = (0, None::<Metadata>);
        while let Some(name) = rest.pop() {
            if name.is_empty() || name == "." {
                continue;
            }
            if found.take().is_some_and(|found| !found.is_dir()) {
                return Err(Errno::NOTDIR.into());
            }
            if name == ".." {
                stack.pop();
                continue;
            }
            stack.push(name);
            let (index, path) = match self.position(&stack) {
                Position::Outside => return Err(NoTarget::Outside),
                Position::Above => continue,
                Position::Within(_, path) if path.as_os_str().is_empty() => continue,
                Position::Within(index, path) => (index, path),
            };
            let dir = &self.roots[index].dir;
            let metadata = dir.symlink_metadata(&path)?;
            if !metadata.is_symlink() {
                found = Some(metadata);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP.into());
            }
            let text = dir.read_link_contents(&path)?;
            if index == 0
                && rest.is_empty()
                && let Some(hash) = self.blobs.as_ref().and_then(|blobs| blobs.hash(&stack, &text))
            {
                return self.blob(hash);
            }
            stack.pop();
            let mut more = names(&text);
            if text.is_absolute() {
                stack.clear();
                if let Some((alias, index)) = self.aliases.iter().find(|(alias, _)| more.starts_with(alias)) {
                    stack.clone_from(&self.roots[*index].path);
                    more.drain(..alias.len());
                }
            }
            rest.extend(more.into_iter().rev());
        }
        let Position::Within(index, path) = self.position(&stack) else { return Err(NoTarget::Outside) };
        let metadata = match found {
            Some(found) => found,
            None if path.as_os_str().is_empty() => self.roots[index].dir.dir_metadata()?,
            None => self.roots[index].dir.symlink_metadata(&path)?,
        };
        Ok(Target::new(Place { root: At::Root(index), path }, &metadata))
    }

    pub(crate) fn open_file(&self, place: &Place) -> io::Result<File> {
        match (place.root, &self.blobs) {
            (At::Root(index), _) => open_file(&self.roots[index].dir, &place.path),
            (At::Blobs, Some(blobs)) => {
                let flags = FILE | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = openat(&*blobs.dir, &place.path, flags, Mode::empty())?;
                Ok(File::from_std(file.into()))
            }
            (At::Blobs, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Open folder, and the path in it, of a place that is no blob.
    pub(crate) fn folder<'a>(&'a self, place: &'a Place) -> (&'a Dir, &'a Path) {
        let index = if let At::Root(index) = place.root { index } else { 0 };
        (&self.roots[index].dir, &place.path)
    }

    /// Absolute path in the text of a link, for the operator's log.
    pub(crate) fn text_of(&self, folder: &Place, name: &str) -> Option<PathBuf> {
        let (dir, path) = self.folder(folder);
        let text = dir.read_link_contents(path.join(name)).ok()?;
        let mut stack = if text.is_absolute() { Vec::new() } else { self.names_of(folder) };
        for name in names(&text) {
            if name == ".." { drop(stack.pop()) } else { stack.push(name) }
        }
        Some([OsString::from("/")].into_iter().chain(stack).collect())
    }

    /// File with the name `hash` in the folder of blobs.
    fn blob(&self, hash: &str) -> Result<Target, NoTarget> {
        let blobs = self.blobs.as_ref().ok_or(NoTarget::Outside)?;
        let metadata = blobs.dir.symlink_metadata(hash)?;
        match metadata.is_file() {
            true => Ok(Target::new(Place { root: At::Blobs, path: hash.into() }, &metadata)),
            false => Err(NoTarget::Outside),
        }
    }

    fn names_of(&self, place: &Place) -> Vec<OsString> {
        let At::Root(index) = place.root else { return Vec::new() };
        self.roots[index].path.iter().cloned().chain(names(&place.path)).collect()
    }

    fn position(&self, names: &[OsString]) -> Position {
        let within = self.roots.iter().enumerate().find(|(_, root)| names.starts_with(&root.path));
        match within {
            Some((index, root)) => Position::Within(index, names[root.path.len()..].iter().collect()),
            None if self.roots.iter().any(|root| root.path.starts_with(names)) => Position::Above,
            None => Position::Outside,
        }
    }
}

impl Blobs {
    /// Finds the folder `blobs` beside `snapshots` for a folder that is `snapshots/REVISION`, or lies in it.
    fn beside(own: &[OsString]) -> Option<Self> {
        let depth = own.iter().rposition(|name| name == "snapshots").filter(|at| at + 1 < own.len())?;
        let path: PathBuf = [OsString::from("/")].iter().chain(&own[..depth]).collect();
        let blobs = path.join("blobs");
        fs::symlink_metadata(&blobs).ok().filter(fs::Metadata::is_dir)?;
        let dir = Dir::open_ambient_dir(&blobs, ambient_authority()).ok()?;
        Some(Self { dir: Arc::new(dir), depth })
    }

    /// Hash that a link names, if it is exactly `blobs/HASH` of the same repository. `link` has the names of its absolute path.
    fn hash<'a>(&self, link: &[OsString], text: &'a Path) -> Option<&'a str> {
        let upwards = link.len().checked_sub(self.depth + 1)?;
        let hash = text.to_str()?.strip_prefix(&"../".repeat(upwards))?.strip_prefix("blobs/")?;
        let is_hash = matches!(hash.len(), 40 | 64) && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then_some(hash)
    }
}

impl Place {
    /// The store's own folder.
    pub(crate) const OWN: &Self = &Self { root: At::Root(0), path: PathBuf::new() };

    pub(crate) fn join(&self, name: &str) -> Self {
        Self { root: self.root, path: self.path.join(name) }
    }

    /// Key under which the store lists the place in any case; `None` if it is not in the store's own folder.
    pub(crate) fn own_key(&self) -> Option<&str> {
        (self.root == At::Root(0)).then(|| self.path.to_str()).flatten()
    }
}

impl Target {
    fn new(place: Place, metadata: &Metadata) -> Self {
        Self { place, kind: metadata.file_type(), id: id(metadata) }
    }
}

/// Device and number of a file or folder.
pub(crate) fn id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Opens a file beneath `dir`, following links that do not lead out of it.
pub(crate) fn open_file(dir: &Dir, path: impl AsRef<Path>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(FILE.bits().cast_signed());
    dir.open_with(path, &options)
}

/// True if an operation failed because its path has a link that is absolute, or leads out of the folder.
pub(crate) fn leads_outside(error: &io::Error) -> bool {
    // cap-std's error: the only such error without an error number.
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::PermissionDenied
}

impl From<io::Error> for NoTarget {
    fn from(error: io::Error) -> Self {
        if leads_outside(&error) { Self::Outside } else { Self::Failed(error) }
    }
}

impl From<Errno> for NoTarget {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.into())
    }
}

/// Names of a path, without those that stand for the folder itself.
fn names(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        Component::ParentDir => Some(OsString::from("..")),
        Component::Normal(name) => Some(OsStr::to_owned(name)),
    };
    path.components().filter_map(name).collect()
}
