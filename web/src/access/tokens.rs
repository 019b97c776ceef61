//! Named tokens and their file.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use penstock_server::{ANYONE, OPERATOR};
use penstock_types::spec::Name;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::caller::{Caller, Role};
use super::operator_token::{
    OperatorToken, TokenError, hexadecimal, random_text, read_private, write_private,
};
use crate::problem::{ApiResult, ProblemKind, refuse};

const FILE: &str = "tokens.json";
/// Maximum size of the token file, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Minimum time between two checks of the token file for changes.
const LOOK: Duration = Duration::from_secs(1);

/// Stored form of a token: its digest and its permissions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedToken {
    /// Name of the token in logs.
    pub name: Name,
    /// SHA-256 of the token, in hexadecimal digits. A token has 256 random bits, so its digest does not reveal it.
    pub sha256: String,
    pub role: Role,
    /// Stores that documents of the holder may name; all stores if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores: Option<BTreeSet<Name>>,
    /// Expiry time, RFC 3339; the token does not expire if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
}

/// Named tokens of a data directory, in the order in which they were added.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFile {
    pub tokens: Vec<NamedToken>,
}

pub(crate) type TokenDigest = [u8; 32];

/// Digest of a token that is valid until `expires`, and its holder.
#[derive(Debug)]
struct Key {
    digest: TokenDigest,
    expires: Option<SystemTime>,
    caller: Caller,
}

/// Tokens of a server: the operator's own, and the named ones of a file that may change at any time.
#[derive(Debug)]
pub(crate) struct Tokens {
    own: Key,
    file: Option<PathBuf>,
    read: Mutex<FileKeys>,
}

/// Tokens of the token file, as of its last check.
#[derive(Debug, Default)]
struct FileKeys {
    looked: Option<Instant>,
    /// Inode, size and time of the last change of the token file, to detect changes.
    seen: Option<(u64, u64, i64, i64)>,
    keys: Vec<Key>,
}

impl TokenFile {
    /// Reads the token file of a data directory; a missing file holds no tokens.
    pub fn read(folder: &Path) -> Result<Self, TokenError> {
        read(&Self::path(folder))
    }

    pub fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// Adds a token, or replaces the token of the same name. Only the returned text contains the token itself: the file stores
    /// its digest.
    pub fn add(
        &mut self,
        name: Name,
        role: Role,
        stores: Option<BTreeSet<Name>>,
        expires: Option<SystemTime>,
    ) -> Result<String, TokenError> {
        let token = random_text()?;
        let sha256 = hexadecimal(&digest(token.as_bytes()));
        let expires = expires.map(|time| humantime::format_rfc3339_seconds(time).to_string());
        self.remove(name.as_str());
        self.tokens.push(NamedToken { name, sha256, role, stores, expires });
        Ok(token)
    }

    /// Removes a token; returns false if no token has that name.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.tokens.len();
        self.tokens.retain(|token| token.name.as_str() != name);
        self.tokens.len() < before
    }

    /// Changes the token file of a data directory atomically, one caller at a time. Fails without a change if a server could not
    /// read the new file.
    pub fn change<T>(
        folder: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, TokenError>,
    ) -> Result<T, TokenError> {
        let path = Self::path(folder);
        let failed = |source| TokenError::File { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        // The lock is held until the file is written.
        let lock = File::open(folder).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut file = Self::read(folder)?;
        let changed = change(&mut file)?;
        keys(&file, &path)?;
        let text = serde_json::to_string_pretty(&file).map_err(|error| failed(error.into()))?;
        write_private(&path, text.as_bytes())?;
        Ok(changed)
    }
}

impl NamedToken {
    /// Returns the digest and the holder of this token. An error completes a sentence whose subject is the token.
    fn key(&self) -> Result<Key, &'static str> {
        if [OPERATOR, ANYONE].contains(&self.name.as_str()) {
            return Err("has a reserved name");
        }
        let digest = digest_of(&self.sha256).ok_or("has a `sha256` that is not 64 hexadecimal digits")?;
        let expires = self.expires.as_deref().map(humantime::parse_rfc3339).transpose();
        let expires =
            expires.map_err(|_| "has an `expires` that is not a time such as `2030-01-31T00:00:00Z`")?;
        let stores = self.stores.as_ref();
        let stores = stores.map(|names| names.iter().map(|name| name.as_str().to_owned()).collect());
        let caller =
            Caller { name: self.name.as_str().into(), role: self.role, stores: stores.map(Arc::new) };
        Ok(Key { digest, expires, caller })
    }
}

impl Tokens {
    pub(crate) fn new(own: &OperatorToken, file: Option<PathBuf>) -> Self {
        let caller = Caller { name: OPERATOR.into(), role: Role::Admin, stores: None };
        let own = Key { digest: digest(own.bytes()), expires: None, caller };
        Self { own, file, read: Mutex::default() }
    }

    pub(crate) fn own(&self) -> TokenDigest {
        self.own.digest
    }

    /// Returns the holder of the token with this digest. The search takes the same time for every digest.
    pub(crate) fn holder(&self, digest: &TokenDigest, now: SystemTime) -> ApiResult<Caller> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file {
            read.look(file, Instant::now());
        }
        let refused = |detail: String| refuse(ProblemKind::SIGN_IN_NEEDED, detail);
        let keys = read.keys.iter().chain([&self.own]);
        let found =
            keys.fold(None, |found, key| if key.digest.ct_eq(digest).into() { Some(key) } else { found });
        match found {
            None => refused("this is not a token of this server, or it was removed".to_owned()),
            Some(Key { expires: Some(expires), caller, .. }) if *expires <= now => {
                let ended = humantime::format_rfc3339_seconds(*expires);
                refused(format!(
                    "the token `{}` expired at {ended}; ask the operator for a new one",
                    caller.name
                ))
            }
            Some(key) => Ok(key.caller.clone()),
        }
    }
}

impl FileKeys {
    /// Reads the file again if it has changed. If the file cannot be read, none of its tokens is valid.
    fn look(&mut self, file: &Path, now: Instant) {
        if self.looked.is_some_and(|looked| now < looked + LOOK) {
            return;
        }
        self.looked = Some(now);
        let seen = fs::metadata(file).ok();
        let seen = seen.map(|seen| (seen.ino(), seen.size(), seen.mtime(), seen.mtime_nsec()));
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        self.keys = read(file).and_then(|found| keys(&found, file)).unwrap_or_else(|error| {
            let error = penstock_types::text::with_causes(&error);
            tracing::error!(
                error,
                "cannot read the token file; no named token is valid until it is repaired"
            );
            Vec::new()
        });
        tracing::info!(tokens = self.keys.len(), "read the named tokens");
    }
}

/// Converts all tokens of a file; fails at the first invalid one.
fn keys(file: &TokenFile, path: &Path) -> Result<Vec<Key>, TokenError> {
    let key = |token: &NamedToken| {
        token.key().map_err(|wrong| {
            let message = format!("the token `{}` {wrong}", token.name.as_str());
            TokenError::File { path: path.to_owned(), source: io::Error::other(message) }
        })
    };
    file.tokens.iter().map(key).collect()
}

fn read(path: &Path) -> Result<TokenFile, TokenError> {
    let Some(text) = read_private(path, MOST_BYTES)? else { return Ok(TokenFile::default()) };
    serde_json::from_str(&text)
        .map_err(|error| TokenError::File { path: path.to_owned(), source: error.into() })
}

/// SHA-256 digest of a token that a client sent.
pub(crate) fn digest(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

fn digest_of(digits: &str) -> Option<TokenDigest> {
    let is_written_well = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    bytes.filter(|_| is_written_well)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[u8] = b"0123456789abcdef";

    fn tokens(file: PathBuf) -> Tokens {
        Tokens::new(&OperatorToken::new("0123456789abcdef").unwrap(), Some(file))
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn refusal(tokens: &Tokens, offered: &[u8], now: SystemTime) -> String {
        format!("{:?}", tokens.holder(&digest(offered), now).unwrap_err())
    }

    #[test]
    fn a_token_is_stored_as_a_digest_and_is_valid_until_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let until = now + Duration::from_secs(60);
        let stores = Some(BTreeSet::from([name("photos")]));
        let add = |file: &mut TokenFile| file.add(name("ci"), Role::Run, stores, Some(until));
        let token = TokenFile::change(folder.path(), add).unwrap();
        let path = TokenFile::path(folder.path());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(&path).unwrap().contains(&token));

        let tokens = tokens(path);
        let found = tokens.holder(&digest(token.as_bytes()), now).unwrap();
        assert_eq!((&*found.name, found.role), ("ci", Role::Run));
        assert!(found.stores.unwrap().contains("photos"));
        let expired = refusal(&tokens, token.as_bytes(), until);
        assert!(expired.contains("`ci` expired at 2027-01-15T08:01:00Z"), "{expired}");
        for other in [b"", &token.as_bytes()[1..]] {
            assert!(refusal(&tokens, other, now).contains("not a token of this server"));
        }
        assert_eq!(tokens.holder(&digest(OWN), until).unwrap().role, Role::Admin);
    }

    #[test]
    fn an_invalid_file_leaves_only_the_operators_own_token_valid() {
        let folder = tempfile::tempdir().unwrap();
        let path = TokenFile::path(folder.path());
        let entry = |name: &str, sha256: &str, more: &str| {
            format!(r#"{{"tokens": [{{"name": "{name}", "sha256": "{sha256}", "role": "read"{more}}}]}}"#)
        };
        let good = hexadecimal(&digest(b"secret"));
        for (text, is_good) in [
            (entry("a", &good, ""), true),
            (entry("a", &good, r#", "expires": "soon""#), false),
            (entry("a", &good[1..], ""), false),
            (entry("a", &format!("+{}", &good[1..]), ""), false),
            (entry("a", &good, r#", "rol": 1"#), false),
            (entry("operator", &good, ""), false),
            ("{".to_owned(), false),
        ] {
            write_private(&path, text.as_bytes()).unwrap();
            let tokens = tokens(path.clone());
            assert_eq!(tokens.holder(&digest(b"secret"), SystemTime::now()).is_ok(), is_good, "{text}");
            assert!(tokens.holder(&digest(OWN), SystemTime::now()).is_ok());
        }
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = TokenFile::path(folder.path());
        let mut keys = FileKeys::default();
        let start = Instant::now();
        keys.look(&path, start);
        TokenFile::change(folder.path(), |file| file.add(name("a"), Role::Read, None, None)).unwrap();
        keys.look(&path, start + LOOK / 2);
        assert_eq!(keys.keys.len(), 0);
        keys.look(&path, start + LOOK);
        assert_eq!(keys.keys.len(), 1);
        let remove = || TokenFile::change(folder.path(), |file| Ok(file.remove("a"))).unwrap();
        assert!(remove() && !remove());
        keys.look(&path, start + 2 * LOOK);
        assert_eq!(keys.keys.len(), 0);
    }
}
