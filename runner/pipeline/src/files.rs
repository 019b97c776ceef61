//! The consumer `files`: writes every collated batch as a complete file `PREFIX/batch-00000000.safetensors`.
//!
//! Beside the batches is a manifest, `PREFIX/penstock-files.json`: the recipe (the document without the settings that cannot
//! change the batches, with modules by digest) and, once a run has completed, the number of batches: `complete`. A second run
//! with the same manifest and a fixed order processes all of its data again, but writes only missing batches; it compares its
//! own header of a batch, which contains a digest of the data, with the header of the existing file. Any other object in the
//! folder is an error before the run.
//!
//! Each batch is put as a new object, and a batch that another run has written meanwhile is compared in the same way. If two runs
//! start at the same time and make the same batches, both succeed; otherwise at most one does. Only a resumed run without a fixed
//! order overwrites batches: those that were written after its state.
//!
//! The command keeps the state of the run in `PREFIX/penstock-state.json`, from which a run continues without processing the data of
//! the batches before.

mod batch;
mod consumer;
mod manifest;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use penstock_storage::{BoundedStore, StoreError};
use penstock_types::fault::{self, Pointer};
use penstock_types::spec::Files;
use penstock_types::text::{MAX_SHOWN_KEY, printable};
use serde_json::Value;

pub(crate) use self::consumer::FilesConsumer;
pub use self::manifest::DocumentChange;
use self::manifest::Manifest;
pub(crate) use self::manifest::differences;

const MAX_DIFFERENCES: usize = 10;

const STATE: &str = "penstock-state.json";

/// The folder of a store for the batches of one pipeline.
#[derive(Clone, Debug)]
pub(crate) struct FilesFolder {
    store: BoundedStore,
    /// Prefix of all keys: empty, or a folder with a trailing `/`.
    folder: Arc<str>,
}

/// A folder that is empty, or contains batches of this pipeline.
#[derive(Debug)]
pub(crate) struct Opened {
    place: FilesFolder,
    manifest: Manifest,
    /// Numbers of existing batches.
    there: BTreeSet<u64>,
    /// Numbers of batches to be overwritten: the samples in them come again, in another order.
    stale: BTreeSet<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error(
        "{place} holds the files of another pipeline; write to another prefix, or remove them and `{}`. Differences:{}",
        Manifest::NAME,
        listed(differences)
    )]
    Another { place: String, differences: Vec<DocumentChange> },
    /// The order of batches varies from run to run, so a later run cannot continue.
    #[error(
        "{place} holds {files} batches already, and a second run would make different ones, because their order is not fixed; set {} to \
         `input`, write to another prefix, or remove them",
        fault::listed(unordered.iter().map(Pointer::as_str))
    )]
    Unordered {
        place: String,
        files: usize,
        /// Settings in the document that must have the value `input`.
        unordered: Vec<Pointer>,
    },
    #[error(
        "{place} has no `{name}`, which the state counts as written; resume from a state that fits the folder"
    )]
    Missing { place: String, name: String },
    #[error("{place} holds `{name}`, {what}; write to another prefix, or remove it")]
    Foreign { place: String, name: String, what: String },
    /// The store does not answer, or rejects writes.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FilesError {
    /// True if the user has to change something; otherwise the same call may succeed later.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Store(_))
    }
}

impl FilesFolder {
    pub(crate) fn new(store: BoundedStore, files: &Files) -> Self {
        let folder = match files.folder() {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        Self { store, folder: folder.into() }
    }

    /// Checks the folder's contents, and writes the manifest if it is missing.
    ///
    /// A resumed run begins behind the first `earlier` batches, which must be there. `state` is that of the run at its start: batches are
    /// never without one.
    pub(crate) async fn open(
        self,
        recipe: &Value,
        unordered: &[Pointer],
        earlier: Option<u64>,
        state: Bytes,
    ) -> Result<Opened, FilesError> {
        let own = Manifest::of(recipe);
        let (mut there, mut has_manifest) = self.look().await?;
        if !has_manifest && there.is_empty() {
            if self.store.put_new(self.key(Manifest::NAME), own.bytes()).await? {
                self.put_state(state).await?;
                return Ok(Opened { place: self, manifest: own, there, stale: BTreeSet::new() });
            }
            // Another run has just started in this folder. Its manifest must match even if it has not written a batch yet.
            (there, has_manifest) = self.look().await?;
        }
        if let Some(first) = there.first().filter(|_| !has_manifest) {
            let what = format!(
                "but no `{}` that describes its pipeline; another program may have written it",
                Manifest::NAME
            );
            return Err(self.foreign(&batch_name(*first), what));
        }
        let mut manifest = self.read_manifest().await?;
        let differences = differences(&manifest.recipe(), &own.recipe());
        // Differences count even in a folder without batches: another run may be writing its first batch.
        if !differences.is_empty() {
            return Err(FilesError::Another { place: self.to_string(), differences });
        }
        if let Some(missing) = (0..earlier.unwrap_or(0)).find(|number| !there.contains(number)) {
            let name = batch_name(missing);
            return Err(FilesError::Missing { place: self.to_string(), name });
        }
        let mut stale = BTreeSet::new();
        if !there.is_empty() && !unordered.is_empty() {
            let Some(earlier) = earlier else {
                let unordered = unordered.to_vec();
                return Err(FilesError::Unordered { place: self.to_string(), files: there.len(), unordered });
            };
            stale = there.split_off(&earlier);
        }
        // Readers trust `complete`, so it is removed while batches that it counts are missing.
        if manifest.complete.is_some_and(|complete| complete.batches != there.len() as u64) {
            manifest.complete = None;
            self.store.put(self.key(Manifest::NAME), manifest.bytes()).await?;
        }
        self.put_state(state).await?;
        Ok(Opened { place: self, manifest, there, stale })
    }

    /// The numbers of existing batches, and true if there is a manifest.
    async fn look(&self) -> Result<(BTreeSet<u64>, bool), FilesError> {
        let mut there = BTreeSet::new();
        let mut has_manifest = false;
        let mut pages = self.store.list(&self.folder);
        while let Some(page) = pages.next().await {
            for key in page?.iter() {
                let name = key.strip_prefix(&*self.folder).unwrap_or(key);
                if name == Manifest::NAME {
                    has_manifest = true;
                } else if name == STATE {
                } else if let Some(number) = batch_number(name) {
                    there.insert(number);
                } else {
                    return Err(self.foreign(name, "which `files` does not write".to_owned()));
                }
            }
        }
        Ok((there, has_manifest))
    }

    async fn read_manifest(&self) -> Result<Manifest, FilesError> {
        let key = self.key(Manifest::NAME);
        let foreign = |what| self.foreign(Manifest::NAME, what);
        let size = self.store.version(key.clone()).await?.size;
        if size > Manifest::MOST_BYTES {
            return Err(foreign(format!("which has {size} bytes, too many for a manifest of `files`")));
        }
        let bytes: Bytes = self.store.get_range(key, None, 0..size).await?;
        Manifest::read(&bytes).map_err(|reason| foreign(format!("which cannot be read: {reason}")))
    }

    pub(crate) async fn put_state(&self, state: Bytes) -> Result<(), StoreError> {
        self.store.put(self.key(STATE), state).await
    }

    /// Reads the state of an interrupted run, at most `most` bytes of it.
    pub(crate) async fn state(&self, most: u64) -> Result<Bytes, StoreError> {
        let size = self.store.version(self.key(STATE)).await?.size;
        self.store.get_range(self.key(STATE), None, 0..size.min(most)).await
    }

    fn foreign(&self, name: &str, what: String) -> FilesError {
        FilesError::Foreign { place: self.to_string(), name: printable(name, MAX_SHOWN_KEY), what }
    }

    fn key(&self, name: &str) -> Arc<str> {
        format!("{}{name}", self.folder).into()
    }
}

impl fmt::Display for FilesFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.folder {
            "" => write!(f, "store `{}`", self.store.name()),
            folder => write!(f, "`{folder}` of store `{}`", self.store.name()),
        }
    }
}

fn batch_name(number: u64) -> String {
    format!("batch-{number:08}.safetensors")
}

/// Number in the name of a batch; `None` for any other name.
fn batch_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("batch-")?.strip_suffix(".safetensors")?;
    let number = digits.parse().ok()?;
    // `+1` and `000000001` also parse as numbers, but no batch has such a name.
    (batch_name(number) == name).then_some(number)
}

fn listed(differences: &[DocumentChange]) -> String {
    let shown = differences.iter().take(MAX_DIFFERENCES).map(|difference| format!("\n  {difference}"));
    let more = differences.len().checked_sub(MAX_DIFFERENCES).filter(|more| *more > 0);
    shown.chain(more.map(|more| format!("\n  and {more} more"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_of_a_name_is_a_batch() {
        assert_eq!(batch_number("batch-00000012.safetensors"), Some(12));
        assert_eq!(batch_number("batch-123456789.safetensors"), Some(123_456_789));
        for other in [
            "batch-12.safetensors",
            "batch-+0000012.safetensors",
            "batch-.safetensors",
            "batch-00000012",
            "a",
        ] {
            assert_eq!(batch_number(other), None, "{other}");
        }
    }
}
