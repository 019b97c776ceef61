//! Servers of this user on this machine, and the files that hold their tokens.
//!
//! A server keeps a file in a folder of its user. The file is named by the server's address, contains the path of the server's
//! token file, and is locked by the server. A file without a lock was left by a killed server, and a program of another user may
//! now listen at its address.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use ureq::http::Uri;

use crate::input::own_folder;

/// Maximum length of the path in a file, in bytes.
const MOST_BYTES: u64 = 4096;

/// Announcement of a running server; removed on drop.
#[derive(Debug)]
pub(crate) struct Announcement {
    path: PathBuf,
    _locked: File,
}

impl Announcement {
    /// Announces the file that holds the token of the server at `address` to other programs of this user. `None` if the user has
    /// no home folder.
    pub(crate) fn new(address: SocketAddr, token: &Path) -> io::Result<Option<Self>> {
        let Some(folder) = folder() else { return Ok(None) };
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let path = folder.join(name(address));
        let draft = folder.join(format!("{}.{}", name(address), process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        // The file is locked before it is renamed to its final path, where it replaces the file of a killed server.
        file.lock()?;
        file.write_all(fs::canonicalize(token)?.as_os_str().as_bytes())?;
        fs::rename(&draft, &path)?;
        Ok(Some(Self { path, _locked: file }))
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the announcement of this server");
        }
    }
}

/// Path of the token file of this user's server at `address`; `None` if no such server runs. Only for numeric addresses: a host name
/// may resolve to another machine, which must not receive the token.
pub(crate) fn token_file(address: &Uri) -> Option<PathBuf> {
    let usual = if address.scheme_str() == Some("https") { 443 } else { 80 };
    let host = address.host()?.trim_start_matches('[').trim_end_matches(']');
    let address = SocketAddr::new(host.parse().ok()?, address.port_u16().unwrap_or(usual));
    let file = File::open(folder()?.join(name(address))).ok()?;
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    let mut path = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut path).ok()?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(path)))
}

fn folder() -> Option<PathBuf> {
    Some(own_folder("XDG_STATE_HOME", ".local/state")?.join("servers"))
}

fn name(address: SocketAddr) -> String {
    reachable(address).to_string()
}

/// Address at which this machine reaches a server that listens at `address`, which may be the unspecified address.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}
