//! Uploads of modules. The bytes are written to a draft file as they arrive; a module is registered once it is complete and
//! valid.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_pipeline::DiskRoom;
use penstock_types::spec::Name;
use penstock_types::text::{shown, with_causes};
use penstock_wasm::{Module, ModuleReport};
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::audit::record_owner;
use crate::catalogue::check_alias;
use crate::error::RunsError;
use crate::history::modules::Uploader;
use crate::history::{HistoryError, modules};
use crate::priority::work_low;
use crate::runs::{COMPILE_TURN, Runs, apart};
use crate::sharing::HeldAmount;
use crate::wire::ModuleUpload;
use crate::workshop::{Workshop, sync_folder};

/// Module that is being uploaded. If it is dropped before `finish`, its file is removed.
#[derive(Debug)]
pub struct Draft {
    runs: Runs,
    whole: Whole,
    file: File,
    digest: Sha256,
}

/// Draft file, removed on drop together with its reserved disk space.
#[derive(Debug)]
struct Whole {
    path: PathBuf,
    size: u64,
    room: Arc<DiskRoom>,
    /// Set once the file has been moved to its final path: its disk space then stays reserved.
    is_kept: bool,
}

impl Drop for Whole {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.room.give_back(self.size);
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(draft = %self.path.display(), %error, "failed to remove a draft");
        }
    }
}

impl Runs {
    pub async fn begin_upload(&self) -> Result<Draft, RunsError> {
        let workshop = &self.0.workshop;
        let path = workshop.draft();
        let file = File::create_new(&path).await.map_err(|source| unwritten(path.clone(), source))?;
        let whole = Whole { path, size: 0, room: workshop.disk.clone(), is_kept: false };
        Ok(Draft { runs: self.clone(), whole, file, digest: Sha256::new() })
    }
}

impl Draft {
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), RunsError> {
        let (bytes, workshop) = (piece.len() as u64, &self.runs.0.workshop);
        let limit_bytes = workshop.settings.sandbox.gate.module_bytes;
        if self.whole.size.saturating_add(bytes) > limit_bytes {
            let what = "a module (`limits.modules.module_bytes`)";
            return Err(RunsError::TooLarge { what, limit_bytes });
        }
        workshop.take_room(bytes)?;
        self.whole.size += bytes;
        self.digest.update(piece);
        self.file.write_all(piece).await.map_err(|source| unwritten(self.whole.path.clone(), source))
    }

    /// Inspects the uploaded module without registering it.
    pub async fn inspect(self) -> Result<ModuleReport, RunsError> {
        let runs = self.runs.clone();
        let (draft, _) = self.close().await?;
        let place = draft.turn(&runs).await?;
        let sandbox = runs.0.workshop.sandbox.clone();
        apart(&runs, move || {
            let bytes = read(&draft.path)?;
            let inspected = in_turn(&place, || sandbox.inspect(&bytes))?;
            inspected.map_err(|error| RunsError::Refused(with_causes(&error)))
        })
        .await
    }

    /// Checks and compiles the uploaded module, and registers it as the next version of its name. If the same bytes are already
    /// registered, their version stays. Sets `alias`, if given, to the version. Fails if the name belongs to another token, unless the
    /// caller is an admin or names have no owners.
    pub async fn finish(self, alias: Option<&str>) -> Result<ModuleUpload, RunsError> {
        if let Some(alias) = alias {
            check_alias(alias)?;
        }
        let (runs, alias) = (self.runs.clone(), alias.map(str::to_owned));
        let (draft, digest) = self.close().await?;
        // The permit is taken before the check for known bytes: of many concurrent uploads of the same bytes, those that wait
        // find the registered module and do not compile it.
        let place = draft.turn(&runs).await?;
        let (workshop, by) = (runs.0.workshop.clone(), runs.uploader());
        let uploaded = apart(&runs, move || {
            check_room(&workshop, &digest)?;
            let report = in_turn(&place, || check(&workshop, &draft, &digest, &by))??;
            let _registering = workshop.registering();
            // The limit is checked again, because other uploads may have been registered meanwhile.
            check_room(&workshop, &digest)?;
            let registered = keep(&workshop, draft, &digest).and_then(|()| {
                workshop.history.write_blocking(move |transaction| {
                    let inserted = modules::insert(transaction, &report, alias.as_deref(), &by)?;
                    if let (Ok((_, true)), Some(token)) = (&inserted, by.token.as_deref()) {
                        record_owner(transaction, &report.manifest.name, token)?;
                    }
                    Ok(inserted.map(|(upload, _)| upload))
                })?
            });
            if registered.is_err() {
                workshop.remove_stray(&digest);
            }
            registered
        });
        uploaded.await
    }

    /// Syncs the draft to the disk. Returns the draft and its digest.
    async fn close(self) -> Result<(Whole, String), RunsError> {
        let Self { whole, mut file, digest, .. } = self;
        let synced = async {
            file.flush().await?;
            file.sync_all().await
        };
        synced.await.map_err(|source| unwritten(whole.path.clone(), source))?;
        Ok((whole, format!("sha256:{:x}", digest.finalize())))
    }
}

impl Whole {
    /// Waits for a permit to inspect and compile the module. Among the modules of one client, the smallest comes first.
    async fn turn(&self, runs: &Runs) -> Result<HeldAmount, RunsError> {
        let place = runs.0.workshop.compiling.take(runs.client(), self.size, COMPILE_TURN).await;
        place.ok_or_else(|| RunsError::no_place("compiling modules"))
    }
}

/// Works behind the requests of others if the client has more modules at once.
fn in_turn<T: Send>(place: &HeldAmount, work: impl FnOnce() -> T + Send) -> Result<T, RunsError> {
    if !place.is_one_of_several {
        return Ok(work());
    }
    let no_thread =
        |error| RunsError::Busy(format!("no thread can be started for the module ({error}); try again"));
    work_low(work).map_err(no_thread)
}

fn check_room(workshop: &Workshop, digest: &str) -> Result<(), RunsError> {
    let most = workshop.settings.sandbox.gate.versions;
    let (is_known, count) = workshop.history.read_blocking(|connection| -> Result<_, HistoryError> {
        Ok((modules::has(connection, digest)?, modules::count(connection)?))
    })?;
    RunsError::refuse_unless(is_known || count < most, || {
        format!(
            "this server stores at most {most} versions of modules (`limits.modules.versions`) and has {count}; delete versions that are no longer needed"
        )
    })
}

/// Returns the report of a module from the history; if its bytes are unknown, compiles the module first, unless its name belongs
/// to another token.
fn check(workshop: &Workshop, draft: &Whole, digest: &str, by: &Uploader) -> Result<ModuleReport, RunsError> {
    let own = digest.to_owned();
    let known = workshop.history.read_blocking(|connection| modules::resolve(connection, &own))?;
    if let Some(known) = known {
        return Ok(known.report);
    }
    let bytes = read(&draft.path)?;
    let refused = |error: &dyn std::error::Error| RunsError::Refused(with_causes(error));
    let report =
        ModuleReport::read(&bytes, &workshop.settings.sandbox.gate).map_err(|error| refused(&error))?;
    let name = &report.manifest.name;
    RunsError::refuse_unless(Name::new(name).is_some(), || {
        format!(
            "the module is named `{}`, which is not a valid name: a name has 1 to 128 letters, digits, `.`, `_` or `-`, and starts with a letter or a digit",
            shown(name)
        )
    })?;
    if let Some(refused) = workshop.history.read_blocking(|connection| by.refused_by(connection, name))? {
        return Err(refused);
    }
    let module: Module = workshop.sandbox.load(&bytes).map_err(|error| refused(&error))?;
    workshop.keep(module);
    Ok(report)
}

/// Moves the draft to the object file of its digest, unless this file exists.
fn keep(workshop: &Workshop, mut draft: Whole, digest: &str) -> Result<(), RunsError> {
    let object = workshop.object(digest);
    if object.is_file() {
        return Ok(());
    }
    let moved = std::fs::rename(&draft.path, &object);
    draft.is_kept = moved.is_ok();
    let synced = moved.and_then(|()| object.parent().map_or(Ok(()), sync_folder));
    synced.map_err(|source| unwritten(object, source))
}

fn read(path: &Path) -> Result<Vec<u8>, RunsError> {
    std::fs::read(path).map_err(|source| RunsError::File { what: "read", path: path.to_owned(), source })
}

fn unwritten(path: PathBuf, source: io::Error) -> RunsError {
    RunsError::File { what: "written", path, source }
}
