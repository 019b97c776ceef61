//! Cache of compiled code on disk. Only code that this crate wrote may be run, because it is machine code. The cache has a
//! separate directory that only its owner may enter, and each entry is signed with a key in that directory. An entry that is
//! damaged, planted by another program, or made for another module, engine or setting is compiled again instead of run. The least
//! recently used entries are evicted.

mod image;

use std::cmp::Reverse;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::private::{KEY_BYTES, NotPrivate, NotPrivateReason, PrivateFolder, Unusable};
use penstock_types::text::hex;
use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

pub(crate) use self::image::Image;
use crate::error::SandboxError;

/// Prefix of the input from which the key of an entry is derived; the number changes whenever the layout of entries changes.
const ENTRY_PREFIX: &[u8; 16] = b"penstock code 3\n";
/// Prefix of the input from which the mark of an upload is derived.
const UPLOAD_PREFIX: &[u8; 16] = b"penstock upload\n";
/// Size of the BLAKE3 MAC at the end of an entry, after the code.
const SIGNATURE_BYTES: usize = 32;
/// Directory of the cache within the operator's directory, which may contain other files and be accessible to other users.
const DIRECTORY: &str = "compiled";
const KEY_FILE: &str = "key";
const ENTRY: &str = ".code";
const DIGEST: &str = ".digest";
/// Number of files with digests that are kept: the most recent ones. A digest without a file is computed again.
const MAX_DIGESTS: usize = 4_096;
/// Maximum size, in bytes, of an entry that is read; the compiler cannot write more.
const MAX_ENTRY_BYTES: u64 = 1 << 30;
/// Time since the last write after which the writer of an unfinished file counts as dead.
const WRITING: Duration = Duration::from_secs(3600);

/// Directory of compiled modules. Each module is one file, whose name is derived from the module and its purpose.
pub(crate) struct Cache {
    folder: PrivateFolder,
    key: [u8; KEY_BYTES],
    /// Maximum size of all entries together, in bytes; the code of a module takes a few MiB.
    most_bytes: u64,
}

/// Copies machine code into executable memory. It is run without further checks: `code` must be the output of the compiler in this
/// process, or the complete output of its child process, received through a pipe that only this process and the child hold.
pub(crate) fn load_compiled(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: by the contract of this function, these bytes are the unchanged output of `precompile_component`. The engine itself
    // refuses code of another version or other settings.
    #[expect(unsafe_code, reason = "a sandbox has to run compiled code; see SAFETY")]
    unsafe {
        Component::deserialize(engine, code)
    }
}

/// Maps the machine code of an entry that is signed for this module and this engine. It is run without further checks: `verified`
/// must be the file whose signature was verified.
fn load_verified(engine: &Engine, verified: &Image) -> wasmtime::Result<Component> {
    // SAFETY: as for `load_compiled`. The file of an image is only replaced, never written, and only this user may access it.
    #[expect(unsafe_code, reason = "a sandbox has to run compiled code; see SAFETY")]
    unsafe {
        Component::deserialize_file(engine, verified.path())
    }
}

/// Key of an entry: the digest of a module, and the digest of the engine's settings together with the gate's bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose<'a> {
    pub(crate) module: &'a [u8; 32],
    pub(crate) made_for: &'a [u8; 32],
}

/// The name under which the cache knows a module before its digest is known, and the key that signs this digest.
pub(crate) struct Mark {
    name: [u8; 32],
    key: [u8; 32],
}

impl Cache {
    /// Opens the cache in `directory`, and creates both if they are missing. Fails if the cache belongs to another user. Returns
    /// `None` if no key can be stored, because then no entry could be trusted.
    pub(crate) fn open(directory: &Path, most_bytes: u64) -> Result<Option<Self>, SandboxError> {
        let kept = match PrivateFolder::create_in(directory, DIRECTORY) {
            Ok(folder) => folder.key(KEY_FILE).map(|key| (folder, key)),
            Err(NotPrivate { path, reason: NotPrivateReason::NotCreated, source: Some(error) })
                if path != directory =>
            {
                Err(error)
            }
            Err(NotPrivate { path, reason, source }) => {
                return Err(SandboxError::Cache { path, reason: reason.to_string(), source });
            }
        };
        match kept {
            Ok((folder, key)) => Ok(Some(Self { folder, key, most_bytes })),
            Err(error) => {
                let folder = directory.display();
                tracing::warn!(%folder, %error, "cannot store the key of the compile cache; modules are compiled at every start");
                Ok(None)
            }
        }
    }

    /// Returns true if there is an entry, even an invalid one.
    pub(crate) fn has(&self, purpose: Purpose<'_>) -> bool {
        self.folder.path(&purpose.file_name()).exists()
    }

    /// Computes the mark of an upload by BLAKE3, which takes a fifth of the time of SHA-256.
    pub(crate) fn mark(&self, upload: &[u8]) -> Mark {
        let mut mark = Mark { name: [0; 32], key: [0; 32] };
        let mut output =
            blake3::Hasher::new_keyed(&self.key).update(UPLOAD_PREFIX).update(upload).finalize_xof();
        output.fill(&mut mark.name);
        output.fill(&mut mark.key);
        mark
    }

    /// Returns the digest of a marked upload, if it was remembered.
    pub(crate) fn digest(&self, mark: &Mark) -> Option<[u8; 32]> {
        let found = self.folder.read(&mark.file_name(), 64).ok()??;
        let (digest, signature) = found.split_first_chunk::<32>()?;
        (blake3::Hash::from_slice(signature).ok()? == blake3::keyed_hash(&mark.key, digest))
            .then_some(*digest)
    }

    /// Remembers the digest of a marked upload for later loads. A failure is only logged.
    pub(crate) fn remember(&self, mark: &Mark, digest: &[u8; 32]) {
        let signature = blake3::keyed_hash(&mark.key, digest);
        if let Err(error) = self.folder.replace(&mark.file_name(), &[digest, signature.as_bytes()]) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "failed to cache the digest of a module");
        }
    }

    /// Loads a compiled module, and returns it with its code; `None` if the cache has no valid entry for it. While the code is
    /// held, later loads of the unchanged file in this process map it without reading and verifying the file again.
    pub(crate) fn load(&self, engine: &Engine, purpose: Purpose<'_>) -> Option<(Component, Arc<Image>)> {
        let name = purpose.file_name();
        let warn = |reason: &str| {
            let path = self.folder.path(&name);
            tracing::warn!(path = %path.display(), reason, "cannot use a cached module, compiling it again");
        };
        let image = self.image(&name, purpose).inspect_err(|reason| warn(&reason.to_string())).ok()??;
        let loaded = load_verified(engine, &image).inspect_err(|error| warn(&format!("{error:#}"))).ok()?;
        Some((loaded, image))
    }

    /// Returns the verified code of an entry; `None` if there is no such file.
    fn image(&self, name: &str, purpose: Purpose<'_>) -> Result<Option<Arc<Image>>, Unusable> {
        let Some((file, identity)) = self.folder.file(name, MAX_ENTRY_BYTES)? else { return Ok(None) };
        let key = self.entry_key(purpose);
        if let Some(image) = image::held(identity, &key) {
            return Ok(Some(image));
        }
        // The identity precedes the content, so a file that is changed from now on has another one.
        let identity = identity.after_touch(&file);
        let image = Arc::new(Image::verified(file, &key)?);
        image::share(identity, key, &image);
        Ok(Some(image))
    }

    /// Stores the machine code, and evicts the least recently used entries if there is no room. A failure is only logged; the
    /// next load then compiles the module again.
    pub(crate) fn store(&self, purpose: Purpose<'_>, code: &[u8]) {
        let name = purpose.file_name();
        let signature = blake3::keyed_hash(&self.entry_key(purpose), code);
        if let Err(error) = self.folder.replace(&name, &[code, signature.as_bytes()]) {
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
        let (mut bytes, mut digests) = (0, 0);
        for file in &found {
            let is_surplus = if file.name.ends_with(ENTRY) {
                bytes += file.bytes;
                bytes > most_bytes
            } else if file.name.ends_with(DIGEST) {
                digests += 1;
                digests > MAX_DIGESTS
            } else {
                PrivateFolder::is_unfinished(&file.name) && now.saturating_sub(file.used) > WRITING
            };
            if is_surplus {
                self.folder.remove(&file.name);
            }
        }
        Ok(())
    }

    /// Key that signs the code of one module for one engine. All parts have a fixed length, so different entries never have equal
    /// keys.
    fn entry_key(&self, purpose: Purpose<'_>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(ENTRY_PREFIX).update(purpose.module).update(purpose.made_for);
        hasher.finalize().into()
    }
}

impl Mark {
    fn file_name(&self) -> String {
        format!("{}{DIGEST}", hex(&self.name))
    }
}

impl Purpose<'_> {
    /// Name of the entry's file, which differs for another engine version, setting or bound.
    fn file_name(&self) -> String {
        let digest = Sha256::new().chain_update(self.module).chain_update(self.made_for).finalize();
        format!("{}{ENTRY}", hex(&digest))
    }
}

#[cfg(test)]
#[path = "cache/tests.rs"]
mod tests;
