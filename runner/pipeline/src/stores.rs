mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_storage::{
    BoundedStore, DEFAULT_READS, FolderStore, OpenFault, S3Credentials, S3Fault, S3Settings, Store,
    check_key, s3_store,
};
use penstock_types::config::{DatasetConfig, FolderConfig, S3Config, StoreConfig, StoreKind, StoreOptions};
use penstock_types::plan::StoreFacts;
use penstock_types::spec::{ObjectKey, Reads};

pub use written::WrittenFault;

/// Stores that pipelines may name. Only the operator maps a name to a location; a document never contains a path.
#[derive(Clone, Debug, Default)]
pub struct Stores(BTreeMap<String, Entry>);

#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    #[error(transparent)]
    Folder(#[from] OpenFault),
    #[error(transparent)]
    S3(#[from] S3Fault),
    #[error("the key of the store's index is invalid: {0}")]
    Index(&'static str),
}

#[derive(Clone, Debug)]
struct Entry {
    store: BoundedStore,
    kind: StoreKind,
    /// Folder of the objects; `None` for a store that is not a folder.
    root: Option<PathBuf>,
    index: Option<Index>,
    /// Set when runs of a server may write to the store.
    is_writable: bool,
}

/// Store and key of an index.
type Index = (BoundedStore, Arc<str>);

impl Stores {
    pub fn add_folder(&mut self, name: &str, root: impl AsRef<Path>) -> Result<(), StoreFault> {
        self.add(name, &StoreConfig::Folder(FolderConfig::new(root.as_ref())))
    }

    /// Adds the configured store as `name`, replacing any store of that name. Sends no request yet.
    pub fn add(&mut self, name: &str, config: &StoreConfig) -> Result<(), StoreFault> {
        let StoreOptions { index, reads, writable } = config.options();
        let (store, root) = match config {
            StoreConfig::Folder(folder) => {
                let root = folder.root.as_path();
                let links: Vec<PathBuf> = folder.links.iter().map(|path| path.as_path().to_owned()).collect();
                let store = Arc::new(FolderStore::open_with(name, root, &links)?);
                (bounded(store, reads), Some(root.to_owned()))
            }
            StoreConfig::S3(bucket) => (bounded(s3_store(name, s3_settings(bucket))?, reads), None),
        };
        // The index is in the store whose objects it lists.
        let index = index.map(|key| index_at(&store, key)).transpose()?;
        let entry = Entry { store, kind: config.kind(), root, index, is_writable: writable };
        self.0.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Adds a data set in S3 as the store `name`, replacing any store of that name. Sends no request yet.
    pub fn add_dataset(&mut self, name: &str, config: &DatasetConfig) -> Result<(), StoreFault> {
        let settings = dataset_settings(config);
        let index = config.index_file_download_url.as_ref().map(|url| -> Result<Index, StoreFault> {
            // The address of the index is relative to its bucket, not to the prefix of the store.
            let bucket = url.bucket.as_str().to_owned();
            let place = S3Settings { bucket, prefix: String::new(), ..settings.clone() };
            index_at(&bounded(s3_store(format!("{name} (its index)"), place)?, None), &url.key)
        });
        let index = index.transpose()?;
        let store = bounded(s3_store(name, settings)?, None);
        let entry = Entry { store, kind: StoreKind::S3, root: None, index, is_writable: false };
        self.0.insert(name.to_owned(), entry);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&BoundedStore> {
        self.0.get(name).map(|entry| &entry.store)
    }

    /// Creates a view of the stores for another run, which takes turns with other runs for permits.
    #[must_use]
    pub(crate) fn for_run(&self) -> Self {
        let entry = |entry: &Entry| {
            let index = entry.index.as_ref().map(|(store, key)| (store.for_user(), key.clone()));
            Entry { store: entry.store.for_user(), index, ..entry.clone() }
        };
        Self(self.0.iter().map(|(name, found)| (name.clone(), entry(found))).collect())
    }

    /// Creates a view of the stores with a separate limit of concurrent reads for each, independent of other users' reads.
    #[must_use]
    pub(crate) fn with_reads(&self, reads: NonZeroUsize) -> Self {
        let entry = |entry: &Entry| Entry { store: entry.store.with_reads(reads), ..entry.clone() };
        Self(self.0.iter().map(|(name, found)| (name.clone(), entry(found))).collect())
    }

    pub fn kind(&self, name: &str) -> Option<StoreKind> {
        self.0.get(name).map(|entry| entry.kind)
    }

    pub fn is_folder(&self, name: &str) -> bool {
        self.kind(name) == Some(StoreKind::Folder)
    }

    /// True if runs of a server may not write to the store.
    pub fn is_read_only(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|entry| !entry.is_writable)
    }

    /// Subset of the stores whose names are in `names`.
    #[must_use]
    pub fn among(&self, names: &BTreeSet<String>) -> Self {
        let kept = self.0.iter().filter(|(name, _)| names.contains(*name));
        Self(kept.map(|(name, entry)| (name.clone(), entry.clone())).collect())
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Key of a local file in the store; `None` when the file is outside it. The file need not exist yet.
    pub fn key_of(&self, name: &str, file: &Path) -> Option<String> {
        let root = fs::canonicalize(self.0.get(name)?.root.as_ref()?).ok()?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = fs::canonicalize(folder).ok()?.join(file.file_name()?);
        path.strip_prefix(root).ok()?.to_str().map(str::to_owned)
    }

    /// Index in the configuration of the store, if it has one.
    pub(crate) fn index(&self, name: &str) -> Option<Index> {
        self.0.get(name)?.index.clone()
    }

    /// Properties of the stores that a plan needs.
    pub(crate) fn facts(&self) -> BTreeMap<String, StoreFacts> {
        let facts = |entry: &Entry| StoreFacts { has_index: entry.index.is_some() };
        self.0.iter().map(|(name, entry)| (name.clone(), facts(entry))).collect()
    }
}

fn bounded(store: Arc<dyn Store>, reads: Option<Reads>) -> BoundedStore {
    tracing::debug!(store = store.describe(), "opened");
    let reads = reads.and_then(|reads| NonZeroUsize::new(reads.get() as usize)).unwrap_or(DEFAULT_READS);
    BoundedStore::new(store, reads)
}

fn index_at(store: &BoundedStore, key: &ObjectKey) -> Result<Index, StoreFault> {
    check_key(key.as_str()).map_err(StoreFault::Index)?;
    Ok((store.clone(), Arc::from(key.as_str())))
}

fn s3_settings(config: &S3Config) -> S3Settings {
    let credentials = match &config.credentials_file {
        Some(file) => S3Credentials::File(file.as_path().to_owned()),
        None if config.anonymous => S3Credentials::Anonymous,
        None => S3Credentials::Chain,
    };
    S3Settings {
        bucket: config.bucket.as_str().to_owned(),
        prefix: config.prefix.as_str().to_owned(),
        endpoint: config.endpoint.as_ref().map(|endpoint| endpoint.as_str().to_owned()),
        region: config.region.as_ref().map(|region| region.as_str().to_owned()),
        path_style: config.path_style,
        credentials,
        requester_pays: config.requester_pays,
        is_unsorted: !config.sorted,
        ..S3Settings::default()
    }
}

fn dataset_settings(config: &DatasetConfig) -> S3Settings {
    let credentials = match (&config.aws_access_key_id, &config.aws_secret_access_key) {
        (Some(id), Some(key)) => S3Credentials::Static {
            access_key_id: id.expose().to_owned(),
            secret_access_key: key.clone(),
            session_token: config.aws_session_token.clone(),
        },
        _ => S3Credentials::Chain,
    };
    S3Settings {
        bucket: config.bucket_name.as_str().to_owned(),
        prefix: config.prefix.as_str().to_owned(),
        endpoint: config.endpoint_url.as_ref().map(|endpoint| endpoint.as_str().to_owned()),
        region: config.region_name.as_ref().map(|region| region.as_str().to_owned()),
        credentials,
        ..S3Settings::default()
    }
}
