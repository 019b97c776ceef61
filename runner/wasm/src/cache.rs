//! Cache of compiled code on disk. Only code that this crate wrote may be run, because it is machine code. The cache has a
//! separate directory that only its owner may enter, and each entry is signed with a key in that directory. An entry that is
//! damaged, planted by another program, or made for another module, engine or setting is compiled again instead of run. The least
//! recently used entries are evicted.

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

/// First bytes of an entry; the number changes whenever the layout changes.
const MAGIC: &[u8; 16] = b"penstock code 1\n";
const SIGNATURE_BYTES: usize = 32;
/// Directory of the cache within the operator's directory, which may contain other files and be accessible to other users.
const DIRECTORY: &str = "compiled";
const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 32;
const ENTRY: &str = ".code";
/// Maximum size, in bytes, of an entry that is read; the compiler cannot write more.
const MAX_ENTRY_BYTES: u64 = 1 << 30;
/// Time since the last write after which the writer of an unfinished file counts as dead.
const WRITING: Duration = Duration::from_secs(3600);

/// Directory of compiled modules. Each module is one file, whose name is derived from the module and its purpose.
pub(crate) struct Cache {
    folder: Folder,
    signer: Hmac<Sha256>,
    /// Maximum size of all entries together, in bytes; the code of a module takes a few MiB.
    most_bytes: u64,
}

/// Machine code from a trusted source: complete code from the compiler in this process or in its child process, or code from the
/// cache with a valid signature. A `Code` is run without further checks, so it must not be created from any other code.
#[derive(Clone, Copy)]
pub(crate) struct Code<'a>(&'a [u8]);

impl<'a> Code<'a> {
    /// Wraps the output of the compiler in this process, or the complete output of its child process, received through a pipe
    /// that only this process and the child hold.
    pub(crate) fn from_compiler(code: &'a [u8]) -> Self {
        Self(code)
    }

    /// Wraps an entry of the cache that is signed for this module and this engine. `verified` must be the memory whose signature
    /// was verified.
    pub(crate) fn from_cache(verified: &'a [u8]) -> Self {
        Self(verified)
    }

    /// Copies the code into executable memory.
    pub(crate) fn load(self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: by the contract of the constructors, these bytes are the unchanged output of `precompile_component`. The engine
        // itself refuses code of another version or other settings.
        #[expect(unsafe_code, reason = "a sandbox has to run compiled code; see SAFETY")]
        unsafe {
            Component::deserialize(engine, self.0)
        }
    }
}

/// Key of an entry: the digest of a module, and the digest of the engine's settings together with the gate's bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose<'a> {
    pub(crate) module: &'a [u8; 32],
    pub(crate) made_for: &'a [u8; 32],
}

impl Cache {
    /// Opens the cache in `directory`, and creates both if they are missing. Fails if the cache belongs to another user. Returns
    /// `None` if no key can be stored, because then no entry could be trusted.
    pub(crate) fn open(directory: &Path, most_bytes: u64) -> Result<Option<Self>, SandboxError> {
        let mut maker = DirBuilder::new();
        maker.mode(0o700).recursive(true).create(directory).map_err(|error| SandboxError::Cache {
            path: directory.into(),
            reason: "it cannot be created".into(),
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
                let signer = Hmac::new_from_slice(&key).expect("HMAC accepts a key of any length");
                Ok(Some(Self { folder, signer, most_bytes }))
            }
            Err(error) => {
                let folder = own.display();
                tracing::warn!(%folder, %error, "cannot store the key of the compile cache; modules are compiled at every start");
                Ok(None)
            }
        }
    }

    /// Returns true if there is an entry, even an invalid one.
    pub(crate) fn has(&self, purpose: Purpose<'_>) -> bool {
        self.folder.path(&purpose.file_name()).exists()
    }

    /// Loads a compiled module; `None` if the cache has no valid entry for it.
    pub(crate) fn load(&self, engine: &Engine, purpose: Purpose<'_>) -> Option<Component> {
        let name = purpose.file_name();
        let warn = |reason: &str| {
            let path = self.folder.path(&name);
            tracing::warn!(path = %path.display(), reason, "cannot use a cached module, compiling it again");
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

    /// Stores the machine code, and evicts the least recently used entries if there is no room. A failure is only logged; the
    /// next load then compiles the module again.
    pub(crate) fn store(&self, purpose: Purpose<'_>, code: &[u8]) {
        let name = purpose.file_name();
        let signature = self.signature(purpose, code).finalize().into_bytes();
        if let Err(error) = self.folder.replace(&name, &[MAGIC, &signature, code]) {
            let path = self.folder.path(&name);
            tracing::warn!(path = %path.display(), %error, "failed to cache a compiled module");
        }
        if let Err(error) = self.tidy(self.most_bytes) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "failed to evict cached modules");
        }
    }

    /// Removes the least recently used entries until at most `most_bytes` remain, and unfinished files whose writers are dead.
    fn tidy(&self, most_bytes: u64) -> io::Result<()> {
        let mut found = self.folder.list()?;
        found.sort_by_key(|file| Reverse(file.used));
        // The time of the newest file is the current time by the clock of the file system.
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

    /// Returns the code of an entry if it was signed with this cache's key for this module and engine.
    fn verified<'a>(&self, entry: &'a [u8], purpose: Purpose<'_>) -> Option<Code<'a>> {
        let signed = entry.strip_prefix(MAGIC)?;
        let (signature, code) = signed.split_at_checked(SIGNATURE_BYTES)?;
        // The comparison takes constant time.
        self.signature(purpose, code).verify_slice(signature).ok()?;
        Some(Code::from_cache(code))
    }

    fn signature(&self, purpose: Purpose<'_>, code: &[u8]) -> Hmac<Sha256> {
        // All parts before the code have a fixed length, so different entries never have equal signed bytes.
        self.signer
            .clone()
            .chain_update(MAGIC)
            .chain_update(purpose.module)
            .chain_update(purpose.made_for)
            .chain_update(code)
    }
}

impl Purpose<'_> {
    /// Name of the entry's file, which differs for another engine version, setting or bound.
    fn file_name(&self) -> String {
        let digest = Sha256::new().chain_update(self.module).chain_update(self.made_for).finalize();
        format!("{}{ENTRY}", hex(&digest))
    }
}

/// Reads the directory's key. Creates the key if it is missing, and replaces it if other users could have read or chosen it.
fn key(folder: &Folder) -> io::Result<[u8; KEY_BYTES]> {
    let mut is_new = false;
    loop {
        let reason = match folder.read(KEY_FILE, KEY_BYTES as u64) {
            Ok(Some(key)) => match key.try_into() {
                Ok(key) => return Ok(key),
                Err(key) => format!("it has {} bytes, but {KEY_BYTES} are required", key.len()),
            },
            Ok(None) => String::new(),
            Err(Unusable::Unreadable(error)) => return Err(error),
            Err(reason) => reason.to_string(),
        };
        if is_new {
            return Err(io::Error::other(format!("the new key cannot be read back: {reason}")));
        }
        is_new = true;
        let key = random::<KEY_BYTES>()?;
        if reason.is_empty() {
            // If several processes start at once, the key of one of them is stored, and all read that key.
            folder.create(KEY_FILE, &key)?;
        } else {
            let path = folder.path(KEY_FILE);
            tracing::warn!(path = %path.display(), reason, "replaced an unusable key of the compile cache");
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
