//! Walks a folder so that files are listed in the byte order of their whole keys, as in the listing of a bucket.

use std::io;
use std::sync::Arc;
use std::vec;

use cap_std::fs::{Dir, FileType};

use crate::asked::Asked;
use crate::error::StoreError;
use crate::key::{MAX_KEY_BYTES, is_draft};
use crate::keys::{Keys, LeftOut};

/// Number of keys in a page. One call on a blocking thread produces one page.
const PAGE: usize = 1000;

const LEFT_OUT: &str =
    "files that are not objects: names that are not UTF-8 or too long, broken links, special files";

/// A listing in progress. Holds the sorted names of one folder per level, and no open file.
pub(crate) struct Walk {
    root: Arc<Dir>,
    asked: Asked,
    /// Levels from the first folder down to the current one.
    levels: Vec<Level>,
    is_started: bool,
    left_out: LeftOut,
}

struct Level {
    /// Path of the folder with `/` at its end; empty for the root.
    path: String,
    /// Sorted names; names of folders end with `/`. All keys in a folder start with the folder's name, so sorted names lead to
    /// sorted keys.
    names: vec::IntoIter<String>,
}

impl Walk {
    /// Creates a walk over all keys that start with the key of `asked`, which is a valid prefix.
    pub(crate) fn new(root: Arc<Dir>, asked: Asked) -> Self {
        Self { root, asked, levels: Vec::new(), is_started: false, left_out: LeftOut::default() }
    }

    pub(crate) fn next_page(&mut self) -> Result<Keys, StoreError> {
        if !self.is_started {
            self.is_started = true;
            let prefix = self.asked.key.clone();
            let (folder, name_prefix) = prefix.split_at(prefix.rfind('/').map_or(0, |slash| slash + 1));
            self.enter(folder.to_owned(), name_prefix)?;
        }
        let mut page = Keys::default();
        while page.len() < PAGE {
            let Some(level) = self.levels.last_mut() else {
                self.left_out.warn(&self.asked.store, LEFT_OUT);
                break;
            };
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let path = format!("{}{name}", level.path);
            if path.len() > MAX_KEY_BYTES {
                self.left_out.add(Some(path));
            } else if path.ends_with('/') {
                self.enter(path, "")?;
            } else {
                page.push(&path);
            }
        }
        Ok(page)
    }

    /// Reads the names of a folder. A folder that does not exist counts as empty: a prefix need not match any folder, and a
    /// folder may be removed after its name was listed.
    fn enter(&mut self, path: String, name_prefix: &str) -> Result<(), StoreError> {
        let names = match self.read_folder(&path, name_prefix) {
            Ok(names) => names.into_iter(),
            Err(error) => return self.asked.not_listed(&path, error).map_or(Ok(()), Err),
        };
        self.levels.push(Level { path, names });
        Ok(())
    }

    fn read_folder(&mut self, path: &str, name_prefix: &str) -> io::Result<Vec<String>> {
        let listed = match path.strip_suffix('/') {
            Some(folder) => self.root.read_dir(folder)?,
            None => self.root.entries()?,
        };
        let mut names = Vec::new();
        for entry in listed {
            let entry = entry?;
            let name = match entry.file_name().into_string() {
                Ok(name) if is_draft(&name) => continue,
                Ok(name) => name,
                Err(name) => {
                    if name.to_string_lossy().starts_with(name_prefix) {
                        self.left_out.add(Some(format!("{path}{}", name.display())));
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
            if kind.is_dir() {
                names.push(name + "/");
                continue;
            }
            let target = || self.root.metadata(format!("{path}{name}")).ok().filter(|_| kind.is_symlink());
            if kind.is_file() || target().is_some_and(|target| target.is_file()) {
                names.push(name);
            } else if !target().is_some_and(|target| target.is_dir()) {
                self.left_out.add(Some(format!("{path}{name}")));
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}
