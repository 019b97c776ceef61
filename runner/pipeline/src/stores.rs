mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_engine::private::NotPrivate;
use penstock_storage::{
    BoundedStore, CacheLimits, DEFAULT_READS, DataCache, FolderStore, ObjectPlace, OpenFault, S3Credentials,
    S3Fault, S3Settings, Store, check_key, s3_store,
};
use penstock_types::config::{
    CacheConfig, DatasetConfig, FolderConfig, S3Config, StoreConfig, StoreKind, StoreOptions,
};
use penstock_types::plan::StoreFacts;
use penstock_types::spec::{Gib, ObjectKey, Reads};
use penstock_types::text::with_causes;

pub use written::WrittenFault;

/// Stores that pipelines may name. Only the operator maps a name to a location; a document never contains a path.
#[derive(Clone, Debug, Default)]
pub struct Stores {
    entries: BTreeMap<String, Entry>,
    /// Cache of stores in services that have none of their own.
    cache: Option<CacheConfig>,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    #[error(transparent)]
    Folder(#[from] OpenFault),
    #[error(transparent)]
    S3(#[from] S3Fault),
    #[error("the key of the store's index is invalid: {0}")]
    Index(&'static str),
    #[error("the cache of its objects cannot be used")]
    Cache(#[source] NotPrivate),
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
    /// Stores, to be added, whose objects are kept in `cache` if they are in a service and have no cache of their own.
    pub fn cached(cache: Option<CacheConfig>) -> Self {
        Self { cache, ..Self::default() }
    }

    pub fn add_folder(&mut self, name: &str, root: impl AsRef<Path>) -> Result<(), StoreFault> {
        self.add(name, &StoreConfig::Folder(FolderConfig::new(root.as_ref())))
    }

    /// Adds the configured store as `name`, replacing any store of that name. Sends no request yet.
    pub fn add(&mut self, name: &str, config: &StoreConfig) -> Result<(), StoreFault> {
        let StoreOptions { index, reads, writable, cache } = config.options();
        let (store, root) = match config {
            StoreConfig::Folder(folder) => {
                let root = folder.root.as_path();
                let links: Vec<PathBuf> = folder.links.iter().map(|path| path.as_path().to_owned()).collect();
                let store = Arc::new(FolderStore::open_with(name, root, &links)?);
                let place = || Ok(folder_place(root, &links));
                (kept(bounded(store, reads), cache, place)?, Some(root.to_owned()))
            }
            StoreConfig::S3(bucket) => (self.remote(name, s3_settings(bucket), reads, cache)?, None),
        };
        // The index is in the store whose objects it lists.
        let index = index.map(|key| index_at(&store, key)).transpose()?;
        let entry = Entry { store, kind: config.kind(), root, index, is_writable: writable };
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Adds a data set in S3 as the store `name`, replacing any store of that name. Sends no request yet.
    pub fn add_dataset(&mut self, name: &str, config: &DatasetConfig) -> Result<(), StoreFault> {
        let settings = dataset_settings(config);
        let index = config.index_file_download_url.as_ref().map(|url| -> Result<Index, StoreFault> {
            // The address of the index is relative to its bucket, not to the prefix of the store.
            let bucket = url.bucket.as_str().to_owned();
            let place = S3Settings { bucket, prefix: String::new(), ..settings.clone() };
            index_at(&self.remote(&format!("{name} (its index)"), place, None, None)?, &url.key)
        });
        let index = index.transpose()?;
        let store = self.remote(name, settings, None, None)?;
        let entry = Entry { store, kind: StoreKind::S3, root: None, index, is_writable: false };
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// A store in S3, with its own cache or that of all such stores.
    fn remote(
        &self,
        name: &str,
        settings: S3Settings,
        reads: Option<Reads>,
        cache: Option<&CacheConfig>,
    ) -> Result<BoundedStore, StoreFault> {
        let place = settings.place();
        let store = bounded(s3_store(name, settings)?, reads);
        kept(store, cache.or(self.cache.as_ref()), || Ok(place?))
    }

    pub fn get(&self, name: &str) -> Option<&BoundedStore> {
        self.entries.get(name).map(|entry| &entry.store)
    }

    /// Creates a view of the stores for another run, which takes turns with other runs for permits.
    #[must_use]
    pub(crate) fn for_run(&self) -> Self {
        let entry = |entry: &Entry| {
            let index = entry.index.as_ref().map(|(store, key)| (store.for_user(), key.clone()));
            Entry { store: entry.store.for_user(), index, ..entry.clone() }
        };
        self.map(entry)
    }

    /// Creates a view of the stores with a separate limit of concurrent reads for each, independent of other users' reads.
    #[must_use]
    pub(crate) fn with_reads(&self, reads: NonZeroUsize) -> Self {
        let entry = |entry: &Entry| Entry { store: entry.store.with_reads(reads), ..entry.clone() };
        self.map(entry)
    }

    fn map(&self, entry: impl Fn(&Entry) -> Entry) -> Self {
        let entries = self.entries.iter().map(|(name, found)| (name.clone(), entry(found))).collect();
        Self { entries, cache: self.cache.clone() }
    }

    /// The stores whose objects are kept in a cache.
    pub(crate) fn with_caches(&self) -> impl Iterator<Item = &BoundedStore> {
        self.entries.values().map(|entry| &entry.store).filter(|store| store.cache_figures().is_some())
    }

    pub fn kind(&self, name: &str) -> Option<StoreKind> {
        self.entries.get(name).map(|entry| entry.kind)
    }

    pub fn is_folder(&self, name: &str) -> bool {
        self.kind(name) == Some(StoreKind::Folder)
    }

    /// True if runs of a server may not write to the store.
    pub fn is_read_only(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| !entry.is_writable)
    }

    /// Subset of the stores whose names are in `names`.
    #[must_use]
    pub fn among(&self, names: &BTreeSet<String>) -> Self {
        let kept = self.entries.iter().filter(|(name, _)| names.contains(*name));
        let entries = kept.map(|(name, entry)| (name.clone(), entry.clone())).collect();
        Self { entries, cache: self.cache.clone() }
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.entries.keys().cloned().collect()
    }

    /// Key of a local file in the store; `None` when the file is outside it. The file need not exist yet.
    pub fn key_of(&self, name: &str, file: &Path) -> Option<String> {
        let root = fs::canonicalize(self.entries.get(name)?.root.as_ref()?).ok()?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = fs::canonicalize(folder).ok()?.join(file.file_name()?);
        path.strip_prefix(root).ok()?.to_str().map(str::to_owned)
    }

    /// Index in the configuration of the store, if it has one.
    pub(crate) fn index(&self, name: &str) -> Option<Index> {
        self.entries.get(name)?.index.clone()
    }

    /// Properties of the stores that a plan needs.
    pub(crate) fn facts(&self) -> BTreeMap<String, StoreFacts> {
        let facts = |entry: &Entry| StoreFacts { has_index: entry.index.is_some() };
        self.entries.iter().map(|(name, entry)| (name.clone(), facts(entry))).collect()
    }
}

fn bounded(store: Arc<dyn Store>, reads: Option<Reads>) -> BoundedStore {
    tracing::debug!(store = store.describe(), "opened");
    let reads = reads.and_then(|reads| NonZeroUsize::new(reads.get() as usize)).unwrap_or(DEFAULT_READS);
    BoundedStore::new(store, reads)
}

/// The store, with its objects kept in `cache` by runs.
fn kept(
    store: BoundedStore,
    cache: Option<&CacheConfig>,
    place: impl FnOnce() -> Result<ObjectPlace, StoreFault>,
) -> Result<BoundedStore, StoreFault> {
    let Some(CacheConfig { dir, gib, keep_free_gib, revalidate }) = cache else { return Ok(store) };
    let limits = CacheLimits { bytes: gib.map(Gib::bytes), keep_free: keep_free_gib.bytes() };
    match DataCache::open(dir.as_path(), limits) {
        Ok(cache) => Ok(store.with_cache(cache, &place()?, *revalidate)),
        // The state of a disk stops no run.
        Err(reason) if reason.source.as_ref().is_some_and(|error| is_of_disk(error.kind())) => {
            let (store_name, error) = (&**store.name(), with_causes(&reason));
            tracing::warn!(store = store_name, error, "the store is read without its cache");
            Ok(store)
        }
        Err(reason) => Err(StoreFault::Cache(reason)),
    }
}

fn is_of_disk(kind: ErrorKind) -> bool {
    use ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(kind, PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Place of the files in a folder, with the folders that its links may enter.
fn folder_place(root: &Path, links: &[PathBuf]) -> ObjectPlace {
    let path = |path: &Path| {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        path.to_string_lossy().into_owned()
    };
    let links = links.iter().map(|link| path(link));
    let parts = ["folder".to_owned(), path(root)].into_iter().chain(links).collect();
    ObjectPlace { parts, prefix: String::new() }
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
