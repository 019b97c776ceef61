use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore, OpenFault, check_key};
use penstock_types::config::{DatasetConfig, FolderConfig, StoreConfig};
use penstock_types::plan::StoreFacts;
use penstock_types::spec::{ObjectKey, Reads};

/// The stores that pipelines may name. The operator decides what a name stands for; a document never brings a path.
#[derive(Clone, Debug, Default)]
pub struct Stores(BTreeMap<String, Entry>);

/// Why a name cannot stand for what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenFault),
    /// The key of its index is none.
    #[error("the key of its index is none: {0}")]
    Index(&'static str),
    /// This build has no S3.
    #[error("this build knows folders only")]
    Unsupported,
}

#[derive(Clone, Debug)]
struct Entry {
    store: BoundedStore,
    /// Where the objects lie, if that is a folder.
    root: Option<PathBuf>,
    /// The index that the store's configuration names, and the store it lies in.
    index: Option<(BoundedStore, Arc<str>)>,
}

impl Stores {
    /// Lets `name` stand for a folder.
    pub fn add_folder(&mut self, name: &str, root: impl AsRef<Path>) -> io::Result<()> {
        let folder = StoreConfig::Folder(FolderConfig::new(root.as_ref()));
        self.add(name, &folder).map_err(|fault| match fault {
            StoreFault::Open(fault) => fault.into(),
            StoreFault::Index(_) | StoreFault::Unsupported => io::Error::other(fault),
        })
    }

    /// Lets `name` stand for what a configuration says, in place of what it stood for.
    pub fn add(&mut self, name: &str, config: &StoreConfig) -> Result<(), StoreFault> {
        let entry = match config {
            StoreConfig::Folder(folder) => {
                let root = folder.root.as_path();
                let store = bounded(FolderStore::open(name, root)?, folder.reads);
                Entry { index: own_index(&store, folder.index.as_ref())?, root: Some(root.to_owned()), store }
            }
            StoreConfig::S3(_) => return Err(StoreFault::Unsupported),
        };
        self.0.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Lets `name` stand for a data set in S3, in place of what it stood for.
    pub fn add_dataset(&mut self, _name: &str, _config: &DatasetConfig) -> Result<(), StoreFault> {
        Err(StoreFault::Unsupported)
    }

    /// The store called `name`.
    pub fn get(&self, name: &str) -> Option<&BoundedStore> {
        self.0.get(name).map(|entry| &entry.store)
    }

    /// All names.
    pub fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// The key by which the store called `name` has a local file; `None` when the file lies elsewhere. The file need
    /// not be there yet.
    pub fn key_of(&self, name: &str, file: &Path) -> Option<String> {
        let root = fs::canonicalize(self.0.get(name)?.root.as_ref()?).ok()?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = fs::canonicalize(folder).ok()?.join(file.file_name()?);
        path.strip_prefix(root).ok()?.to_str().map(str::to_owned)
    }

    /// The index that the configuration of the store called `name` names: the store it lies in, and its key there.
    pub(crate) fn index(&self, name: &str) -> Option<(BoundedStore, Arc<str>)> {
        self.0.get(name)?.index.clone()
    }

    /// What a plan has to know of them.
    pub(crate) fn facts(&self) -> BTreeMap<String, StoreFacts> {
        let facts = |entry: &Entry| StoreFacts { has_index: entry.index.is_some() };
        self.0.iter().map(|(name, entry)| (name.clone(), facts(entry))).collect()
    }
}

fn bounded(store: impl penstock_storage::Store + 'static, reads: Option<Reads>) -> BoundedStore {
    let reads = reads.and_then(|reads| NonZeroUsize::new(reads.get() as usize)).unwrap_or(DEFAULT_READS);
    BoundedStore::new(Arc::new(store), reads)
}

/// An index that lies in the store whose objects it names.
fn own_index(
    store: &BoundedStore,
    key: Option<&ObjectKey>,
) -> Result<Option<(BoundedStore, Arc<str>)>, StoreFault> {
    let Some(key) = key else { return Ok(None) };
    check_key(key.as_str()).map_err(StoreFault::Index)?;
    Ok(Some((store.clone(), Arc::from(key.as_str()))))
}
