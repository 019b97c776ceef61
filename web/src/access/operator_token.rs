//! The secret that gives access to the API.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Minimum length of a token, in characters; a shorter token could be guessed.
const LEAST_CHARACTERS: usize = 16;
/// Maximum size of a token file, in bytes.
const MOST_BYTES: u64 = 4096;
const RANDOM_BYTES: usize = 32;
const FILE: &str = "token";
/// Permission bits of the group and of other users.
const OTHERS: u32 = 0o077;

/// Secret that gives access to the API; its `Debug` output hides it.
#[derive(Clone)]
pub struct OperatorToken(Box<[u8]>);

/// Reason why a token, or a file of tokens, cannot be read, created or stored.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(
        "the token has {found} characters, but at least {LEAST_CHARACTERS} are required; `openssl rand -hex 32` generates one"
    )]
    Short { found: usize },
    #[error(
        "the token contains characters other than visible ASCII; `openssl rand -hex 32` generates a valid one"
    )]
    Characters,
    #[error(
        "other users may read or change `{}`; remove it and create new tokens (the server creates its own at the next start)", .0.display()
    )]
    Exposed(PathBuf),
    #[error("cannot use the token file `{}`", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the operating system provides no random numbers for a token")]
    Random(#[source] io::Error),
}

impl OperatorToken {
    /// Checks a token and removes the white space around it.
    pub fn new(written: &str) -> Result<Self, TokenError> {
        let written = written.trim();
        if !written.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Characters);
        }
        if written.len() < LEAST_CHARACTERS {
            return Err(TokenError::Short { found: written.len() });
        }
        Ok(Self(written.as_bytes().into()))
    }

    /// Reads the token of a data directory, or creates it if missing. Only the server that has locked the directory calls this.
    pub fn kept_in(folder: &Path) -> Result<Self, TokenError> {
        let path = Self::file_in(folder);
        match read_private(&path, MOST_BYTES)? {
            Some(written) => Self::new(&written),
            None => {
                let written = random_text()?;
                write_private(&path, format!("{written}\n").as_bytes())?;
                Self::new(&written)
            }
        }
    }

    pub fn file_in(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for OperatorToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

/// Reads a file that only this user may read or change; `None` if it is missing.
pub(crate) fn read_private(path: &Path, most_bytes: u64) -> Result<Option<String>, TokenError> {
    let failed = |source| TokenError::File { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
        return Err(TokenError::Exposed(path.to_owned()));
    }
    let mut text = String::new();
    file.take(most_bytes).read_to_string(&mut text).map_err(failed)?;
    Ok(Some(text))
}

/// Writes a file atomically, so that only this user may read it.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), TokenError> {
    let failed = |source| TokenError::File { path: path.to_owned(), source };
    let draft = path.with_extension("new");
    // A draft left by a killed process may have any content and permissions.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().map_err(failed)
}

/// Generates a secret, as hexadecimal digits.
pub(crate) fn random_text() -> Result<String, TokenError> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| TokenError::Random(io::Error::other(error.to_string())))?;
    Ok(hexadecimal(&bytes))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_validated_and_hidden_in_debug_output() {
        assert!(matches!(OperatorToken::new(" short \n"), Err(TokenError::Short { found: 5 })));
        assert!(matches!(OperatorToken::new("sixteen or more, with blanks"), Err(TokenError::Characters)));
        let token = OperatorToken::new("0123456789abcdef\n").unwrap();
        assert_eq!(token.bytes(), b"0123456789abcdef");
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_folder_keeps_one_token_that_only_its_user_may_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token.new"), "left by a server that was killed").unwrap();
        let token = OperatorToken::kept_in(folder.path()).unwrap();
        assert_eq!(token.bytes().len(), 2 * RANDOM_BYTES);
        let path = OperatorToken::file_in(folder.path());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(OperatorToken::kept_in(folder.path()).unwrap().bytes(), token.bytes());
        let other = tempfile::tempdir().unwrap();
        assert_ne!(OperatorToken::kept_in(other.path()).unwrap().bytes(), token.bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(OperatorToken::kept_in(folder.path()), Err(TokenError::Exposed(_))));
    }
}
