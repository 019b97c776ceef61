//! Files and folders of the data directory. Other users have no access to them, even if they may enter the directory itself.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permission bits of the group and of other users.
const OTHERS: u32 = 0o077;

/// Creates a folder if it is missing, and removes the permissions of other users.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    close(path)
}

/// Creates an empty file if it is missing, and removes the permissions of other users.
pub(crate) fn file(path: &Path) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    close(path)
}

/// Removes the permissions of the group and of other users.
fn close(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    tracing::info!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "removed the permissions of other users");
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_and_folders_are_closed_to_other_users() {
        let root = tempfile::tempdir().unwrap();
        let (made, there) = (root.path().join("made"), root.path().join("there"));
        fs::create_dir(&there).unwrap();
        let (new, old) = (made.join("new"), there.join("old"));
        fs::write(&old, "kept").unwrap();
        for (path, open) in [(&there, 0o755), (&old, 0o644), (&root.path().to_owned(), 0o755)] {
            fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
        }
        folder(&made).unwrap();
        folder(&there).unwrap();
        file(&new).unwrap();
        file(&old).unwrap();
        assert_eq!([&made, &there].map(|path| mode(path)), [0o700; 2]);
        assert_eq!([&new, &old].map(|path| mode(path)), [0o600; 2]);
        assert_eq!(fs::read(&old).unwrap(), b"kept");
        assert_eq!(mode(root.path()), 0o755, "the parent folder is not changed");
    }
}
