//! Resources of all runs: the sandbox, modules, and folders.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_wasm::{Module, ModuleError, Sandbox};
use tokio::runtime::Handle;

use crate::error::{OpenError, RunsError};
use crate::fair::ClientId;
use crate::history::{History, HistoryError, free_bytes, modules, runs};
use crate::private;
use crate::settings::RunsSettings;
use crate::sharing::{HeldAmount, SharedAmount};
use penstock_pipeline::{DiskRoom, Modules, StdModule};

/// Maximum number of loaded modules in the cache.
const KEPT: usize = 16;

/// Maximum number of old runs that are removed in one step.
const AT_A_TIME: u32 = 100;

const MODULES: &str = "modules";
const OBJECTS: &str = "modules/sha256";
const DRAFTS: &str = "modules/drafts";
const RUNS: &str = "runs";
const STREAMS: &str = "streams";
pub(crate) const CACHE: &str = "cache";

#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) runtime: Handle,
    pub(crate) history: History,
    pub(crate) sandbox: Sandbox,
    pub(crate) settings: RunsSettings,
    pub(crate) compiling: SharedAmount,
    /// Bytes used in the data directory, and their limit.
    pub(crate) disk: Arc<DiskRoom>,
    /// Cached modules, the least recently used first.
    loaded: Mutex<VecDeque<Module>>,
    /// Held while the bytes and the database row of a module are added or removed, so that they are always present or absent
    /// together.
    registering: Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the stored bytes cannot be read")]
    Read(#[source] io::Error),
    #[error("the stored bytes are not those that were uploaded: their digest differs")]
    Changed,
    #[error(transparent)]
    Module(#[from] ModuleError),
}

impl Workshop {
    /// Creates the folders, and removes unfinished files that a killed server left.
    pub(crate) fn open(
        runtime: Handle,
        history: History,
        sandbox: Sandbox,
        settings: RunsSettings,
        compiling: SharedAmount,
    ) -> Result<Self, OpenError> {
        for path in [DRAFTS, STREAMS].map(|folder| settings.data_dir.join(folder)) {
            match fs::remove_dir_all(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(OpenError::Unusable { path, source });
                }
                _ => {}
            }
        }
        for path in [MODULES, DRAFTS, OBJECTS, RUNS].map(|folder| settings.data_dir.join(folder)) {
            private::folder(&path).map_err(|source| OpenError::Unusable { path, source })?;
        }
        let workshop = Self {
            runtime,
            history,
            sandbox,
            disk: Arc::new(DiskRoom::new(settings.disk_bytes)),
            settings,
            compiling,
            loaded: Mutex::default(),
            registering: Mutex::default(),
        };
        workshop.sweep_objects();
        workshop.measure();
        Ok(workshop)
    }

    pub(crate) fn object(&self, digest: &str) -> PathBuf {
        self.settings.data_dir.join(OBJECTS).join(digest.trim_start_matches("sha256:"))
    }

    pub(crate) fn draft(&self) -> PathBuf {
        self.settings.data_dir.join(DRAFTS).join(uuid::Uuid::now_v7().to_string())
    }

    pub(crate) fn run_folder(&self, run: &str) -> PathBuf {
        self.settings.data_dir.join(RUNS).join(run)
    }

    /// Folder of the sockets of runs with the consumer `stream`.
    pub(crate) fn streams(&self) -> PathBuf {
        self.settings.data_dir.join(STREAMS)
    }

    /// Measures the data directory: all of its files, which may be many, without the free pages of the history.
    pub(crate) fn measure(&self) {
        let counted = self.disk.used();
        match self.history.read_blocking(free_bytes) {
            Ok(free) => self.disk.correct(counted, size_of(&self.settings.data_dir).saturating_sub(free)),
            Err(HistoryError::Closed) => {}
            Err(error) => tracing::warn!(%error, "failed to measure the data directory"),
        }
    }

    pub(crate) fn take_room(&self, bytes: u64) -> Result<(), RunsError> {
        if self.disk.take(bytes) {
            return Ok(());
        }
        let most_bytes = self.disk.most().unwrap_or(u64::MAX);
        Err(RunsError::DiskFull { used_bytes: self.disk.used(), most_bytes, wanted_bytes: bytes })
    }

    /// Waits for a permit to compile a module, in the client's turn; `None` if the compiled code is cached.
    pub(crate) async fn compile_place(
        &self,
        digest: &str,
        client: &ClientId,
        most: Duration,
    ) -> Result<Option<HeldAmount>, RunsError> {
        if self.loaded(digest).is_some() || self.sandbox.is_compiled(digest) {
            return Ok(None);
        }
        // The size 0 puts runs and trials before uploads of the same client.
        let place = self.compiling.take(client, 0, most).await;
        place.map(Some).ok_or_else(|| RunsError::no_place("compiling modules"))
    }

    /// Removes the oldest runs that have ended, with their history and dead letters, if more runs are stored than may be kept.
    /// Waits for the history.
    pub(crate) fn retain(&self) {
        let kept = u64::from(self.settings.bounds.kept.get());
        let removed = || -> Result<usize, HistoryError> {
            let mut removed = 0;
            loop {
                let oldest =
                    self.history.read_blocking(|connection| runs::oldest(connection, kept, AT_A_TIME))?;
                if oldest.is_empty() {
                    return Ok(removed);
                }
                removed += oldest.len();
                // The dead letters are removed before the row of their run, because dead letters without a row would never be
                // removed.
                oldest.iter().for_each(|run| self.remove_run_folder(run));
                self.history.write_blocking(move |transaction| {
                    oldest.iter().try_for_each(|run| runs::remove(transaction, run).map(drop))
                })?;
            }
        };
        match removed() {
            Ok(0) | Err(HistoryError::Closed) => {}
            Ok(removed) => {
                tracing::info!(removed, kept, "removed the oldest runs");
                self.measure();
            }
            Err(error) => tracing::warn!(%error, "failed to remove the oldest runs"),
        }
    }

    pub(crate) fn remove_run_folder(&self, run: &str) {
        let folder = self.run_folder(run);
        let bytes = size_of(&folder);
        match fs::remove_dir_all(folder) {
            Ok(()) => self.disk.give_back(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(run, %error, "failed to remove the dead letters of a removed run"),
        }
    }

    pub(crate) fn remove_object(&self, digest: &str) {
        // Runs that use the module continue.
        locked(&self.loaded).retain(|kept| kept.digest() != digest);
        let object = self.object(digest);
        let bytes = fs::metadata(&object).map_or(0, |found| found.len());
        match fs::remove_file(object) {
            Ok(()) => self.disk.give_back(bytes),
            Err(error) => tracing::warn!(%digest, %error, "failed to remove the bytes of a removed module"),
        }
    }

    /// Removes the bytes of a module if no version has them, e.g. after a failed registration.
    pub(crate) fn remove_stray(&self, digest: &str) {
        let own = digest.to_owned();
        if let Ok(false) = self.history.read_blocking(move |connection| modules::has(connection, &own)) {
            self.remove_object(digest);
        }
    }

    /// Prevents other threads from adding or removing modules while the guard is held; blocks.
    pub(crate) fn registering(&self) -> MutexGuard<'_, ()> {
        locked(&self.registering)
    }

    /// Returns the module with this digest, from the cache or loaded from its bytes, which may take seconds.
    pub(crate) fn load(&self, digest: &str) -> Result<Module, LoadError> {
        if let Some(module) = self.loaded(digest) {
            return Ok(module);
        }
        let bytes = match StdModule::of_digest(digest) {
            Some(module) => Cow::Borrowed(module.bytes()),
            None => Cow::Owned(fs::read(self.object(digest)).map_err(LoadError::Read)?),
        };
        let module = self.sandbox.load(&bytes)?;
        if module.digest() != digest {
            return Err(LoadError::Changed);
        }
        self.keep(module.clone());
        Ok(module)
    }

    /// Adds a module to the cache; if the cache is full, the least recently used module is dropped.
    pub(crate) fn keep(&self, module: Module) {
        let mut loaded = locked(&self.loaded);
        loaded.retain(|kept| kept.digest() != module.digest());
        loaded.push_back(module);
        if loaded.len() > KEPT {
            loaded.pop_front();
        }
    }

    pub(crate) fn modules(&self) -> Modules {
        Modules::new(self.sandbox.clone())
    }

    fn loaded(&self, digest: &str) -> Option<Module> {
        let mut loaded = locked(&self.loaded);
        let place = loaded.iter().position(|module| module.digest() == digest)?;
        let module = loaded.remove(place)?;
        loaded.push_back(module.clone());
        Some(module)
    }

    /// Removes the bytes of a module that has no version because its upload was not registered. A killed server leaves the bytes
    /// of at most one upload. If there are more, or if no version exists at all, the history was probably replaced, and the bytes
    /// are kept.
    fn sweep_objects(&self) {
        let Ok(objects) = fs::read_dir(self.settings.data_dir.join(OBJECTS)) else { return };
        let unknown = objects.flatten().filter(|object| {
            let digest = format!("sha256:{}", object.file_name().to_string_lossy());
            let known = self.history.read_blocking(|connection| modules::has(connection, &digest));
            matches!(known, Ok(false))
        });
        let unknown: Vec<PathBuf> = unknown.map(|object| object.path()).collect();
        let versions = self.history.read_blocking(modules::count).unwrap_or(0);
        match unknown.as_slice() {
            [] => {}
            [one] if versions > 0 => {
                if let Err(error) = fs::remove_file(one) {
                    tracing::warn!(bytes = %one.display(), %error, "failed to remove bytes that belong to no module");
                }
            }
            more => tracing::warn!(
                objects = more.len(),
                folder = %self.settings.data_dir.join(OBJECTS).display(),
                "kept the bytes of modules that are missing in the history, which may have been replaced: restore the history, \
                 upload the modules again, or remove the bytes"
            ),
        }
    }
}

fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// Syncs a folder to the disk, so that a rename of a file into it is durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
