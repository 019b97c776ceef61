use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{self, Path, PathBuf};

use crate::{OpenStreamError, random_hex};

/// Path of a run's socket; the socket is removed on drop.
#[derive(Debug)]
pub(crate) struct SocketPath {
    socket: PathBuf,
    /// Path of the socket, as sent to consumers.
    pub(crate) shown: String,
    /// Folder that was created only for this socket, and is removed together with it.
    private_folder: Option<PathBuf>,
}

/// Maximum length of a socket's path in bytes: the system allows 108, including a terminating zero.
const MAX_PATH_BYTES: usize = 107;

/// Number of random bytes in the name of a folder.
const NAME_BYTES: usize = 8;

impl SocketPath {
    /// Creates a socket that only this user can access: in `folder`, or in a new folder if the path in `folder` would be too
    /// long.
    pub(crate) fn listen(folder: &Path, run: &str) -> Result<(Self, UnixListener), OpenStreamError> {
        let wanted = path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).join(format!("{run}.sock"));
        let place = match shown(&wanted) {
            Some(shown) => {
                make_private(folder)?;
                Self { socket: wanted, shown, private_folder: None }
            }
            None => Self::in_private_folder(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))?,
        };
        let unusable = |source| OpenStreamError::Socket { socket: place.socket.clone(), source };
        let listener = UnixListener::bind(&place.socket).map_err(unusable)?;
        fs::set_permissions(&place.socket, Permissions::from_mode(0o600)).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        Ok((place, listener))
    }

    /// Creates a new folder in `users`, the user's runtime folder, or in `/tmp` if `users` does not exist or its path is too
    /// long.
    fn in_private_folder(users: Option<PathBuf>) -> Result<Self, OpenStreamError> {
        let name = format!("penstock-{}", random_hex::<NAME_BYTES>()?);
        let users = users.filter(|folder| folder.is_absolute() && folder.is_dir());
        let folders = users.into_iter().chain([PathBuf::from("/tmp")]);
        let mut sockets = folders.map(|folder| folder.join(&name).join("stream.sock"));
        let (socket, shown) = sockets
            .find_map(|socket| shown(&socket).map(|shown| (socket, shown)))
            .expect("a path below /tmp is short");
        let folder = socket.parent().unwrap_or(&socket).to_owned();
        // Fails if the folder exists, because another user could have created it.
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|source| OpenStreamError::Folder { folder: folder.clone(), source })?;
        Ok(Self { socket, shown, private_folder: Some(folder) })
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let socket = match fs::remove_file(&self.socket) {
            // Nothing to remove: the socket was never created, or another program has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        if let Err(error) = socket.and_then(|()| self.private_folder.iter().try_for_each(fs::remove_dir)) {
            tracing::warn!(socket = self.shown, %error, "cannot remove the socket of a run");
        }
    }
}

/// Returns the path as text; `None` if it does not fit into a socket's address or is not UTF-8.
fn shown(socket: &Path) -> Option<String> {
    let fits = socket.as_os_str().as_bytes().len() <= MAX_PATH_BYTES;
    socket.to_str().filter(|_| fits).map(str::to_owned)
}

/// Creates a folder that only this user can access.
fn make_private(folder: &Path) -> Result<(), OpenStreamError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o700)))
        .map_err(|source| OpenStreamError::Folder { folder: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_socket_is_private_and_is_removed_with_its_run() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("streams");
        let (place, _listener) = SocketPath::listen(&folder, "run-1").unwrap();
        let socket = PathBuf::from(&place.shown);
        assert_eq!(socket, folder.join("run-1.sock"));
        assert_eq!((mode(&folder), mode(&socket)), (0o700, 0o600));
        drop(place);
        assert!(!socket.exists() && folder.exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_replaced_by_a_short_one() {
        let data = tempfile::tempdir().unwrap();
        let (place, _listener) = SocketPath::listen(&data.path().join("x".repeat(100)), "run-1").unwrap();
        let socket = PathBuf::from(&place.shown);
        let folder = socket.parent().unwrap().to_owned();
        assert!(place.shown.len() <= MAX_PATH_BYTES);
        assert_eq!((mode(&folder), mode(&socket)), (0o700, 0o600));
        drop(place);
        assert!(!folder.exists());
        let users = SocketPath::in_private_folder(Some(data.path().to_owned())).unwrap();
        assert!(users.shown.starts_with(data.path().to_str().unwrap()));
        let long = Some(data.path().join("x".repeat(100)));
        let own = SocketPath::in_private_folder(long).unwrap();
        let folder = PathBuf::from(&own.shown).parent().unwrap().to_owned();
        assert!(own.shown.starts_with("/tmp/penstock-") && folder.exists());
        drop(own);
        assert!(!folder.exists());
    }
}
