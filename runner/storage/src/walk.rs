//! Walks a folder so that files are listed in the byte order of their whole keys, as in the listing of a bucket.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::vec;

use cap_std::fs::{FileType, ReadDir};
use penstock_types::left_out::LeftOutReason;
use penstock_types::spec::Links;
use tracing::warn;

use crate::asked::Asked;
use crate::error::StoreError;
use crate::key::{MAX_KEY_BYTES, is_draft};
use crate::keys::{Keys, LinkedKey};
use crate::links::{FileId, NoTarget, Place, Roots, Target, id};
use crate::store::Folders;

/// Number of keys in a page. One call on a blocking thread produces one page.
const PAGE: usize = 1000;

/// Maximum number of names that are visited for a page.
const MAX_VISITED: usize = 20_000;

/// Maximum number of linked folders that a listing enters; folders that have links to each other can be entered in very many ways.
const MAX_LINKED_FOLDERS: usize = 1 << 20;

/// Maximum number of names of links that [`folders`] returns.
const MAX_OUTSIDE: usize = 1000;

/// End of the names of links in [`Level::names`]; no name of a file has it, and it does not change the order.
const LINK: char = '\0';

/// A listing in progress. Holds the sorted names of one folder per level, and no open file.
pub(crate) struct Walk {
    roots: Arc<Roots>,
    asked: Asked,
    links: Links,
    /// Levels from the first folder down to the current one.
    levels: Vec<Level>,
    is_started: bool,
    /// Folders above the first level, once a link to a folder is found.
    above: Option<Vec<FileId>>,
    linked_folders: usize,
}

struct Level {
    /// Path of the folder with `/` at its end; empty for the root.
    path: String,
    place: Place,
    /// Sorted names; names of folders end with `/`, and those of links with [`LINK`]. All keys in a folder start with the folder's name,
    /// so sorted names lead to sorted keys.
    names: vec::IntoIter<String>,
    /// Device and number of the folder, once a link to a folder is found.
    id: Option<FileId>,
    /// The nearest linked folder that is this one, or above it.
    linked: Option<Linked>,
}

/// A folder that was entered through a link.
#[derive(Clone, Copy)]
struct Linked {
    id: FileId,
    /// Length of the path of the link, with `/` at its end.
    length: usize,
}

#[derive(Default)]
struct Names {
    sorted: Vec<String>,
    /// Links that lead out of the store.
    outside: Vec<String>,
}

impl Walk {
    /// Creates a walk over all keys that start with the key of `asked`, which is a valid prefix.
    pub(crate) fn new(roots: Arc<Roots>, asked: Asked, links: Links) -> Self {
        Self { roots, asked, links, levels: Vec::new(), is_started: false, above: None, linked_folders: 0 }
    }

    /// The next keys, possibly none, and what was left out meanwhile; `None` at the end.
    pub(crate) fn next_page(&mut self) -> Result<Option<Keys>, StoreError> {
        let mut page = Keys::default();
        if !self.is_started {
            self.is_started = true;
            self.start(&mut page)?;
        }
        let is_ended = self.levels.is_empty();
        let mut visited = 0;
        while page.len() < PAGE && visited < MAX_VISITED {
            let Some(level) = self.levels.last_mut() else { break };
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            visited += 1;
            let (name, is_link) = match name.strip_suffix(LINK) {
                Some(name) => (name, true),
                None => (name.as_str(), false),
            };
            let path = format!("{}{name}", level.path);
            if path.len() > MAX_KEY_BYTES {
                page.leave_out(LeftOutReason::Name, Some(&path));
            } else if is_link {
                self.follow(&mut page, path)?;
            } else if path.ends_with('/') {
                let (place, linked) = (level.place.join(name.trim_end_matches('/')), level.linked);
                self.enter(&mut page, path, place, None, linked)?;
            } else {
                if let Some(linked) = level.linked {
                    let own_key = level.place.join(name);
                    let own_key = own_key.own_key().map(Box::from);
                    page.push_linked(LinkedKey::new(linked.id, &path[linked.length..], own_key, true));
                }
                page.push(&path);
            }
        }
        Ok((!is_ended || !page.left_out.is_empty()).then_some(page))
    }

    /// Enters the folder of the prefix. A prefix need not match any folder.
    fn start(&mut self, page: &mut Keys) -> Result<(), StoreError> {
        let prefix = self.asked.key.clone();
        let (folder, name_prefix) = prefix.split_at(prefix.rfind('/').map_or(0, |slash| slash + 1));
        let Some(place) = self.listed(folder, self.resolve_folder(folder))? else { return Ok(()) };
        let names = self.names(page, folder, &place, name_prefix);
        let Some(Names { sorted, .. }) = self.listed(folder, names)? else { return Ok(()) };
        let (path, names) = (folder.to_owned(), sorted.into_iter());
        self.levels.push(Level { path, place, names, id: None, linked: None });
        Ok(())
    }

    fn resolve_folder(&self, folder: &str) -> Result<Place, NoTarget> {
        let path = folder.strip_suffix('/').unwrap_or(folder);
        if self.links == Links::Files && !path.is_empty() {
            // Fails if a link on the way is absolute, or leads out of the store.
            self.roots.own().metadata(path)?;
        }
        self.roots.resolve(Place::OWN, path).map(|target| target.place)
    }

    /// Reads the names of a folder. A folder that does not exist counts as empty: it may be removed after its name was listed.
    fn enter(
        &mut self,
        page: &mut Keys,
        path: String,
        place: Place,
        id: Option<FileId>,
        linked: Option<Linked>,
    ) -> Result<(), StoreError> {
        // Below a linked folder, each folder may be one that is already on the path.
        let id = match (id, linked) {
            (None, Some(_)) => match self.listed(&path, self.id_of(&place))? {
                None => return Ok(()),
                found => found,
            },
            (id, _) => id,
        };
        if id.is_some_and(|id| self.is_on_path(id)) {
            return Ok(());
        }
        let names = self.names(page, &path, &place, "");
        let Some(Names { sorted, .. }) = self.listed(&path, names)? else { return Ok(()) };
        self.levels.push(Level { path, place, names: sorted.into_iter(), id, linked });
        Ok(())
    }

    /// Lists the file, or enters the folder, that a link of the current folder leads to; `path` is that of the link, with `/` at its end
    /// for a folder.
    fn follow(&mut self, page: &mut Keys, path: String) -> Result<(), StoreError> {
        let level = self.levels.last().expect("the link is in a folder");
        let is_folder = path.ends_with('/');
        let name = path[level.path.len()..].trim_end_matches('/');
        let target = match self.roots.resolve(&level.place, name) {
            Ok(target) if target.kind.is_dir() == is_folder && (is_folder || target.kind.is_file()) => target,
            found => {
                // Unless it leads outside, the link has changed since its folder was read.
                let is_outside = matches!(found, Err(NoTarget::Outside));
                let reason = if is_outside { LeftOutReason::Link } else { LeftOutReason::NoFile };
                page.leave_out(reason, Some(&path));
                return Ok(());
            }
        };
        let Target { place, id, .. } = target;
        if is_folder {
            self.linked_folders += 1;
            if self.linked_folders > MAX_LINKED_FOLDERS {
                return Err(self.asked.refused("its links to folders lead to more than 1048576 of them"));
            }
            let linked = Linked { id, length: path.len() };
            return self.enter(page, path, place, Some(id), Some(linked));
        }
        let is_new = level.linked.is_some() || {
            let (dir, folder) = self.roots.folder(&level.place);
            self.links == Links::All && dir.metadata(folder.join(name)).is_err()
        };
        page.push_linked(LinkedKey::new(id, "", place.own_key().map(Box::from), is_new));
        page.push(&path);
        Ok(())
    }

    fn is_on_path(&mut self, id: FileId) -> bool {
        if self.above.is_none() {
            let first = self.levels.first().map_or("", |level| &level.path);
            let folders = first.match_indices('/').map(|(at, _)| &first[..at]);
            let above = [""].into_iter().chain(folders).filter(|folder| folder.len() + 1 < first.len());
            let above = above.filter_map(|folder| self.roots.resolve(Place::OWN, folder).ok());
            self.above = Some(above.map(|target| target.id).collect());
        }
        let is_above = self.above.iter().flatten().any(|above| *above == id);
        is_above
            || (0..self.levels.len()).any(|index| {
                let level = &self.levels[index];
                let of_level = level.id.or_else(|| self.id_of(&level.place).ok());
                self.levels[index].id = of_level;
                of_level == Some(id)
            })
    }

    fn id_of(&self, place: &Place) -> io::Result<FileId> {
        let (dir, path) = self.roots.folder(place);
        match path.as_os_str().is_empty() {
            true => dir.dir_metadata(),
            false => dir.metadata(path),
        }
        .map(|metadata| id(&metadata))
    }

    /// Names in the folder with this path that start with `name_prefix`.
    fn names(&self, page: &mut Keys, path: &str, place: &Place, name_prefix: &str) -> io::Result<Names> {
        let (dir, folder) = self.roots.folder(place);
        let listed: ReadDir =
            if folder.as_os_str().is_empty() { dir.entries()? } else { dir.read_dir(folder)? };
        let mut names = Names::default();
        for entry in listed {
            let entry = entry?;
            let name = match entry.file_name().into_string() {
                Ok(name) if is_draft(&name) => continue,
                Ok(name) => name,
                Err(name) => {
                    if name.to_string_lossy().starts_with(name_prefix) {
                        page.leave_out(LeftOutReason::Name, Some(&format!("{path}{}", name.display())));
                    }
                    continue;
                }
            };
            if !name.starts_with(name_prefix) {
                continue;
            }
            let mut kind = entry.file_type()?;
            if kind == FileType::unknown() {
                // Some file systems do not report the file type in a listing, so it is read from the metadata.
                kind = match entry.metadata() {
                    Ok(metadata) => metadata.file_type(),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
            }
            let key = || format!("{path}{name}");
            if kind.is_dir() {
                names.sorted.push(name + "/");
            } else if kind.is_file() {
                names.sorted.push(name);
            } else if kind.is_symlink() {
                match self.target_kind(place, &name) {
                    Ok(kind) if kind.is_file() => names.sorted.push(format!("{name}{LINK}")),
                    Ok(kind) if kind.is_dir() && self.links == Links::All => {
                        names.sorted.push(format!("{name}/{LINK}"));
                    }
                    Ok(kind) if kind.is_dir() => page.leave_out(LeftOutReason::Link, Some(&key())),
                    Err(NoTarget::Outside) => {
                        self.leave_out_link(page, &key(), place, &name);
                        if names.outside.len() < MAX_OUTSIDE {
                            names.outside.push(name);
                        }
                    }
                    Ok(_) | Err(NoTarget::Failed(_)) => page.leave_out(LeftOutReason::NoFile, Some(&key())),
                }
            } else {
                page.leave_out(LeftOutReason::NoFile, Some(&key()));
            }
        }
        names.sorted.sort_unstable();
        Ok(names)
    }

    fn leave_out_link(&self, page: &mut Keys, key: &str, folder: &Place, name: &str) {
        let is_first = !page.left_out.contains_key(&LeftOutReason::Link);
        page.leave_out(LeftOutReason::Link, Some(key));
        if is_first && let Some(to) = self.roots.text_of(folder, name) {
            // The author of a pipeline does not see the log, and may not see paths of the machine.
            let (store, to) = (&*self.asked.store, to.display());
            let message = match self.links {
                Links::All => {
                    "a link leads out of the store's folder, so it is left out; the store's `links` may name its folder"
                }
                Links::Files => {
                    "a link is absolute or leads out of the store's folder, so `\"links\": \"files\"` leaves it out"
                }
            };
            warn!(store, link = key, %to, "{message}");
        }
    }

    /// Kind of what a link in a folder leads to.
    fn target_kind(&self, folder: &Place, name: &str) -> Result<FileType, NoTarget> {
        let (dir, path) = self.roots.folder(folder);
        match (dir.metadata(path.join(name)).map_err(NoTarget::from), self.links) {
            (Ok(metadata), _) => Ok(metadata.file_type()),
            (Err(NoTarget::Outside), Links::All) => {
                self.roots.resolve(folder, name).map(|target| target.kind)
            }
            (Err(fault), _) => Err(fault),
        }
    }

    /// Result of reading the folder with this path; `None` if the folder no longer exists.
    fn listed<T>(&self, path: &str, found: Result<T, impl Into<NoTarget>>) -> Result<Option<T>, StoreError> {
        match found.map_err(Into::into) {
            Ok(found) => Ok(Some(found)),
            Err(NoTarget::Outside) => {
                Err(Asked { key: Arc::from(path), ..self.asked.clone() }.leads_outside())
            }
            Err(NoTarget::Failed(error)) => self.asked.not_listed(path, error).map_or(Ok(None), Err),
        }
    }
}

/// Folders directly in the folder that `asked` names, also those that links lead to.
pub(crate) fn folders(roots: Arc<Roots>, asked: Asked, links: Links) -> Result<Folders, StoreError> {
    let none = || Folders { has_empty: true, ..Folders::default() };
    let walk = Walk::new(roots, asked, links);
    let path = walk.asked.key.clone();
    let Some(place) = walk.listed(&path, walk.resolve_folder(&path))? else { return Ok(none()) };
    let names = walk.names(&mut Keys::default(), &path, &place, "");
    let Some(Names { sorted, outside }) = walk.listed(&path, names)? else { return Ok(none()) };
    let folder = |name: &String| Some(name.trim_end_matches(LINK).strip_suffix('/')?.to_owned());
    let names: BTreeSet<String> = sorted.iter().filter_map(folder).collect();
    let outside = if links == Links::All { outside } else { Vec::new() };
    Ok(Folders { names: names.into_iter().collect(), outside, ..none() })
}
