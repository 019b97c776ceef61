use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{self, Path, PathBuf};

use crate::{OpenStreamError, random_hex};

/// Path of a run's socket, which is removed on drop.
#[derive(Debug)]
pub(crate) struct SocketPath {
    socket: PathBuf,
    shown: String,
    /// A folder that was made for this socket alone.
    own: Option<PathBuf>,
}

/// Longest path of a socket, in bytes: the system takes 108, and the last one is a zero.
const MAX_PATH_BYTES: usize = 107;

/// Random bytes in the name of a folder.
const NAME_BYTES: usize = 8;

impl SocketPath {
    /// Makes a socket that only this user reaches: in `folder`, or in one of its own where that path would be too long.
    pub(crate) fn listen(folder: &Path, run: &str) -> Result<(Self, UnixListener), OpenStreamError> {
        let wanted = path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).join(format!("{run}.sock"));
        let place = match shown(&wanted) {
            Some(shown) => {
                make_private(folder)?;
                Self { socket: wanted, shown, own: None }
            }
            None => Self::of_its_own(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))?,
        };
        let unusable = |source| OpenStreamError::Socket { socket: place.socket.clone(), source };
        let listener = UnixListener::bind(&place.socket).map_err(unusable)?;
        fs::set_permissions(&place.socket, Permissions::from_mode(0o600)).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        Ok((place, listener))
    }

    /// In a new folder of the user's, or of all users' where there is none or where its path is too long.
    fn of_its_own(users: Option<PathBuf>) -> Result<Self, OpenStreamError> {
        let name = format!("penstock-{}", random_hex::<NAME_BYTES>()?);
        let users = users.filter(|folder| folder.is_absolute() && folder.is_dir());
        let folders = users.into_iter().chain([PathBuf::from("/tmp")]);
        let sockets = folders.map(|folder| folder.join(&name).join("stream.sock"));
        let (socket, shown) = sockets
            .filter_map(|socket| shown(&socket).map(|shown| (socket, shown)))
            .next()
            .expect("a path below /tmp is short");
        let folder = socket.parent().unwrap_or(&socket).to_owned();
        // It must not be there: somebody else could have made it.
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|source| OpenStreamError::Folder { folder: folder.clone(), source })?;
        Ok(Self { socket, shown, own: Some(folder) })
    }

    /// The socket's path, as consumers are told it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let socket = match fs::remove_file(&self.socket) {
            // It was never made, or somebody has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        if let Err(error) = socket.and_then(|()| self.own.iter().try_for_each(fs::remove_dir)) {
            tracing::warn!(socket = self.shown, %error, "the socket of a run cannot be removed");
        }
    }
}

/// A path that fits into a socket's address and into JSON.
fn shown(socket: &Path) -> Option<String> {
    let fits = socket.as_os_str().as_bytes().len() <= MAX_PATH_BYTES;
    socket.to_str().filter(|_| fits).map(str::to_owned)
}

/// Makes a folder that nobody else looks into.
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
    fn only_its_user_reaches_a_socket_and_it_goes_with_its_run() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("streams");
        let (place, _listener) = SocketPath::listen(&folder, "run-1").unwrap();
        let socket = PathBuf::from(place.shown());
        assert_eq!(socket, folder.join("run-1.sock"));
        assert_eq!((mode(&folder), mode(&socket)), (0o700, 0o600));
        drop(place);
        assert!(!socket.exists() && folder.exists());
    }

    #[test]
    fn a_path_that_is_too_long_becomes_a_short_one() {
        let data = tempfile::tempdir().unwrap();
        let (place, _listener) = SocketPath::listen(&data.path().join("x".repeat(100)), "run-1").unwrap();
        let socket = PathBuf::from(place.shown());
        let folder = socket.parent().unwrap().to_owned();
        assert!(place.shown().len() <= MAX_PATH_BYTES);
        assert_eq!((mode(&folder), mode(&socket)), (0o700, 0o600));
        drop(place);
        assert!(!folder.exists());
        let users = SocketPath::of_its_own(Some(data.path().to_owned())).unwrap();
        assert!(users.shown().starts_with(data.path().to_str().unwrap()));
        let long = Some(data.path().join("x".repeat(100)));
        let own = SocketPath::of_its_own(long).unwrap();
        let folder = PathBuf::from(own.shown()).parent().unwrap().to_owned();
        assert!(own.shown().starts_with("/tmp/penstock-") && folder.exists());
        drop(own);
        assert!(!folder.exists());
    }
}
