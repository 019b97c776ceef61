//! Compiled code on disk: machine code, so only ever what this crate wrote, in a directory that only its owner may enter.

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::SandboxError;

/// A directory of compiled modules, one file each, named by what was compiled and by what for.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// Opens the directory, making it if it is missing. Refuses one that belongs to another user.
    pub(crate) fn open(directory: &Path) -> Result<Self, SandboxError> {
        let failed = |reason: &str, source| SandboxError::Cache {
            path: directory.into(),
            reason: reason.into(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| failed("it cannot be made", Some(error)))?;
        let found =
            fs::symlink_metadata(directory).map_err(|error| failed("it cannot be looked at", Some(error)))?;
        if !found.is_dir() {
            return Err(failed("it is a link or a file; name a directory", None));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed("it belongs to another user, who could plant machine code there", None));
        }
        if found.mode() & 0o077 != 0 {
            fs::set_permissions(directory, Permissions::from_mode(0o700))
                .map_err(|error| failed("others may enter it and that cannot be changed", Some(error)))?;
        }
        Ok(Self { directory: directory.into() })
    }

    /// The compiled module of that digest for that engine; `None` if there is none or what is there is of no use.
    pub(crate) fn load(&self, engine: &Engine, digest: &[u8; 32]) -> Option<Component> {
        let path = self.path(engine, digest);
        if !path.exists() {
            return None;
        }
        // SAFETY: the file is machine code. The directory belongs to this user, nobody else may enter it, and files get
        // their name only once they are whole and never change afterwards (a newer one replaces the name).
        #[expect(unsafe_code, reason = "mapping compiled code is what the cache is for; see SAFETY")]
        let loaded = unsafe { Component::deserialize_file(engine, &path) };
        loaded
            .inspect_err(|error| {
                let error = format!("{error:#}");
                tracing::warn!(path = %path.display(), error, "compiled module cannot be used, will compile again");
            })
            .ok()
    }

    /// Keeps the compiled module. Failing to is no fault of the module: it is logged, and the next load compiles again.
    pub(crate) fn store(&self, engine: &Engine, digest: &[u8; 32], component: &Component) {
        let path = self.path(engine, digest);
        let written = component
            .serialize()
            .map_err(|error| std::io::Error::other(format!("{error:#}")))
            .and_then(|code| self.replace(&path, &code));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "compiled module cannot be kept");
        }
    }

    /// Writes a file under another name and renames it, so that nobody ever sees half of it.
    fn replace(&self, path: &Path, code: &[u8]) -> std::io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.directory.join(format!(".{}-{number}.new", std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(code).and_then(|()| file.sync_data()))
            .and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // What could not be renamed is of no use; that it may not be there either is not a second error.
            fs::remove_file(&temporary).unwrap_or_default();
        }
        written
    }

    /// `<sha256 of module and engine>.cwasm`: another version or another setting of the engine is another file.
    fn path(&self, engine: &Engine, digest: &[u8; 32]) -> PathBuf {
        let mut key = Absorb(Sha256::new());
        key.write(digest);
        engine.precompile_compatibility_hash().hash(&mut key);
        self.directory.join(format!("{}.cwasm", hex(&key.0.finalize().into())))
    }
}

/// A SHA-256 that takes what a [`Hash`] gives.
struct Absorb(Sha256);

impl Hasher for Absorb {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        u64::from_le_bytes(digest[..8].try_into().expect("eight of 32 bytes"))
    }
}

/// Lower-case hexadecimal digits of a digest.
pub(crate) fn hex(digest: &[u8; 32]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}
