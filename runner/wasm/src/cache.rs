//! Compiled code on disk: machine code, so only ever what this crate wrote. It lies in a directory of its own that only its
//! owner may enter, and each entry is signed with a key of that directory: what was damaged, planted, or made for another
//! module, engine or setting is compiled again instead of run. What nobody used for longest goes when there is too much.

mod folder;

use std::cmp::Reverse;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use self::folder::{Folder, Unusable, random};
use crate::component::hex;
use crate::error::SandboxError;

/// Start of an entry; another layout gets another number.
const MAGIC: &[u8; 16] = b"penstock code 1\n";
const SIGNATURE_BYTES: usize = 32;
/// Directory within the operator's, which may hold other things and be open to others.
const DIRECTORY: &str = "compiled";
const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 32;
const ENTRY: &str = ".code";
/// Longest entry that is read; the compiler may not write more.
const MAX_ENTRY_BYTES: u64 = 1 << 30;
/// Age without a write at which an unfinished file's writer counts as dead.
const WRITING: Duration = Duration::from_secs(3600);

/// A directory of compiled modules, one file each, named by module and purpose.
pub(crate) struct Cache {
    folder: Folder,
    signer: Hmac<Sha256>,
    /// Most bytes of all entries together; a module's code takes a few MiB.
    most_bytes: u64,
}

/// Machine code that a compiler of ours gave: whole, from this process or from its own child, or from the cache with a
/// signature of ours. Nothing else may become one: it is run without further checks.
#[derive(Clone, Copy)]
pub(crate) struct Code<'a>(&'a [u8]);

impl<'a> Code<'a> {
    /// What the compiler of this process gave, or what its child sent, whole, through a pipe that only the two hold.
    pub(crate) fn from_compiler(code: &'a [u8]) -> Self {
        Self(code)
    }

    /// What lay in the cache and is signed for this module and this engine. It has to be the very memory that was verified.
    pub(crate) fn from_cache(verified: &'a [u8]) -> Self {
        Self(verified)
    }

    /// Copies the code into memory that can be run.
    pub(crate) fn load(self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: by the constructors' contract these bytes are what `precompile_component` gave, unchanged. The engine
        // itself refuses code of another version or other settings.
        #[expect(unsafe_code, reason = "running compiled code is what a sandbox is for; see SAFETY")]
        unsafe {
            Component::deserialize(engine, self.0)
        }
    }
}

/// Key of an entry: a module's digest, and that of the engine's settings and the gate's bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose<'a> {
    pub(crate) module: &'a [u8; 32],
    pub(crate) made_for: &'a [u8; 32],
}

impl Cache {
    /// Opens the cache in `directory`, making both if they are missing. Refuses one that belongs to another user; `None`
    /// where no key can be kept, so that no entry could be trusted.
    pub(crate) fn open(directory: &Path, most_bytes: u64) -> Result<Option<Self>, SandboxError> {
        let mut maker = DirBuilder::new();
        maker.mode(0o700).recursive(true).create(directory).map_err(|error| SandboxError::Cache {
            path: directory.into(),
            reason: "it cannot be made".into(),
            source: Some(error),
        })?;
        let own = directory.join(DIRECTORY);
        let kept = match maker.recursive(false).create(&own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                let folder = Folder::open(&own)?;
                key(&folder).map(|key| (folder, key))
            }
        };
        match kept {
            Ok((folder, key)) => {
                let signer = Hmac::new_from_slice(&key).expect("any length will do for a key");
                Ok(Some(Self { folder, signer, most_bytes }))
            }
            Err(error) => {
                let folder = own.display();
                tracing::warn!(%folder, %error, "no cache, since its key cannot be kept there: modules are compiled at every start");
                Ok(None)
            }
        }
    }

    /// Returns true if there is an entry, valid or not.
    pub(crate) fn has(&self, purpose: Purpose<'_>) -> bool {
        self.folder.path(&purpose.file_name()).exists()
    }

    /// The compiled module; `None` if there is no valid entry.
    pub(crate) fn load(&self, engine: &Engine, purpose: Purpose<'_>) -> Option<Component> {
        let name = purpose.file_name();
        let warn = |reason: &str| {
            let path = self.folder.path(&name);
            tracing::warn!(path = %path.display(), reason, "compiled module cannot be used, will compile again");
        };
        let entry = self
            .folder
            .read(&name, MAX_ENTRY_BYTES)
            .inspect_err(|reason| warn(&reason.to_string()))
            .ok()??;
        let Some(code) = self.verified(&entry, purpose) else {
            warn("it is not signed with this cache's key for this module and engine");
            return None;
        };
        let loaded = code.load(engine).inspect_err(|error| warn(&format!("{error:#}"))).ok()?;
        self.folder.touch(&name);
        Some(loaded)
    }

    /// Keeps the machine code, and evicts the least recently used where there is no room. A failure is logged: the next
    /// load compiles again.
    pub(crate) fn store(&self, purpose: Purpose<'_>, code: &[u8]) {
        let name = purpose.file_name();
        let signature = self.signature(purpose, code).finalize().into_bytes();
        if let Err(error) = self.folder.replace(&name, &[MAGIC, &signature, code]) {
            let path = self.folder.path(&name);
            tracing::warn!(path = %path.display(), %error, "compiled module cannot be kept");
        }
        if let Err(error) = self.tidy(self.most_bytes) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "cannot look for compiled modules that are no longer used");
        }
    }

    /// Removes the least recently used entries down to `most_bytes`, and files of dead writers.
    fn tidy(&self, most_bytes: u64) -> io::Result<()> {
        let mut found = self.folder.list()?;
        found.sort_by_key(|file| Reverse(file.used));
        // By the clock of the file system: somebody has just written.
        let now = found.first().map_or(Duration::ZERO, |newest| newest.used);
        let mut bytes = 0;
        for file in &found {
            let is_surplus = if file.name.ends_with(ENTRY) {
                bytes += file.bytes;
                bytes > most_bytes
            } else {
                Folder::is_unfinished(&file.name) && now.saturating_sub(file.used) > WRITING
            };
            if is_surplus {
                self.folder.remove(&file.name);
            }
        }
        Ok(())
    }

    /// The code of an entry, if it was signed with this cache's key for this purpose.
    fn verified<'a>(&self, entry: &'a [u8], purpose: Purpose<'_>) -> Option<Code<'a>> {
        let signed = entry.strip_prefix(MAGIC)?;
        let (signature, code) = signed.split_at_checked(SIGNATURE_BYTES)?;
        // Compares in constant time.
        self.signature(purpose, code).verify_slice(signature).ok()?;
        Some(Code::from_cache(code))
    }

    fn signature(&self, purpose: Purpose<'_>, code: &[u8]) -> Hmac<Sha256> {
        // All parts but the last are of fixed length, so no two entries are signed alike.
        self.signer
            .clone()
            .chain_update(MAGIC)
            .chain_update(purpose.module)
            .chain_update(purpose.made_for)
            .chain_update(code)
    }
}

impl Purpose<'_> {
    /// Another version, setting or bound is another file.
    fn file_name(&self) -> String {
        let digest = Sha256::new().chain_update(self.module).chain_update(self.made_for).finalize();
        format!("{}{ENTRY}", hex(&digest))
    }
}

/// The directory's key, created if missing, and replaced if others could have read or chosen it.
fn key(folder: &Folder) -> io::Result<[u8; KEY_BYTES]> {
    let mut is_new = false;
    loop {
        let reason = match folder.read(KEY_FILE, KEY_BYTES as u64) {
            Ok(Some(key)) => match key.try_into() {
                Ok(key) => return Ok(key),
                Err(key) => format!("it has {} bytes, {KEY_BYTES} are needed", key.len()),
            },
            Ok(None) => String::new(),
            Err(Unusable::Unreadable(error)) => return Err(error),
            Err(reason) => reason.to_string(),
        };
        if is_new {
            return Err(io::Error::other(format!("what was written is not there: {reason}")));
        }
        is_new = true;
        let key = random::<KEY_BYTES>()?;
        if reason.is_empty() {
            // Of several processes that begin at once one gives the key, and all read that one.
            folder.create(KEY_FILE, &key)?;
        } else {
            let path = folder.path(KEY_FILE);
            tracing::warn!(path = %path.display(), reason, "key of the compile cache cannot be used, made a new one");
            folder.replace(KEY_FILE, &[&key])?;
        }
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cache").field("folder", &self.folder).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "cache/tests.rs"]
mod tests;
