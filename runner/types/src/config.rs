//! The operator's configuration as written: the stores behind the names in pipelines, and the limits of this machine.

mod cache;
mod dataset;
mod limits;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

pub use cache::{CacheConfig, Revalidate};
pub use dataset::DatasetConfig;
pub use limits::{Budget, ClientBounds, CompileBounds, GateBounds, Limits, RunBounds};
pub use text::{
    BucketName, Endpoint, FilePath, FolderPath, HostName, IndexUrl, KeyPrefix, ListenAddress, Region,
    RegistryHost, SecretText, TimeSpan,
};

use crate::fault::{Pointer, SpecFault};
use crate::spec::{Name, ObjectKey, Reads, parse, read_all};

/// The operator's configuration, `penstock.json`. Contains no secrets, only the paths of files that contain them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Stores that pipelines may name.
    pub stores: BTreeMap<Name, StoreConfig>,
    /// Hosts of OCI registries that `penstock push` and `penstock pull` may send requests to.
    pub registries: BTreeSet<RegistryHost>,
    /// Limits of modules and runs that clients submit.
    pub limits: Limits,
    /// Resources that all runs of a server together may use at a time.
    pub budget: Budget,
    /// Address that a server listens on.
    pub listen: Option<ListenAddress>,
    /// Host names of a server, in addition to its addresses and `localhost`.
    pub hosts: Vec<HostName>,
    /// False permits every token with the role `run` to upload further versions of all modules; otherwise only the token that owns
    /// the name of a module, and those with the role `admin`, may.
    pub module_owners: Option<bool>,
    /// File with the token that a server requires from every client. Relative to the folder of the configuration.
    pub token_file: Option<FilePath>,
    /// Certificate and key of a server that serves TLS itself.
    pub tls: Option<TlsConfig>,
    /// Folder in which a server keeps modules, runs and their history. Relative to the folder of the configuration.
    pub data_dir: Option<FolderPath>,
}

/// Files of a certificate and its key (PEM), relative to the folder of the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate, followed by the intermediate certificates.
    pub certificate: FilePath,
    /// Private key of the certificate.
    pub key: FilePath,
}

/// Kind and location of a store.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreConfig {
    /// A folder on the local file system.
    Folder(FolderConfig),
    /// An S3 bucket, or the part of it below a prefix.
    S3(S3Config),
}

/// Kind of a store.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum StoreKind {
    /// Folder on the server's machine.
    Folder,
    /// S3 bucket, or the objects of a bucket with a common key prefix.
    S3,
}

/// Kind of storage that holds the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum BenchStoreKind {
    /// A folder on this machine.
    Folder,
    /// An S3 bucket.
    S3,
    /// The memory of this process.
    Memory,
}

/// Class of storage of a benchmark's objects; all services on other machines are one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Memory of this process.
    Memory,
    /// File system of this machine, with its page cache.
    Folder,
    /// Service on another machine.
    Remote,
}

/// Options that stores of all kinds have.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions<'a> {
    /// Key of the index that the source `index` reads when the document names none.
    pub index: Option<&'a ObjectKey>,
    /// Maximum number of reads and writes in flight at a time, both together; 64 when missing.
    pub reads: Option<Reads>,
    /// Permits runs of a server to write to the store.
    pub writable: bool,
    /// Cache of the store's objects; none when missing.
    pub cache: Option<&'a CacheConfig>,
}

/// A folder on the local file system.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderConfig {
    /// Path of the folder, relative to the folder of the configuration.
    pub root: FolderPath,
    /// Further folders into which links in the folder may lead, relative to the folder of the configuration; other links that lead out of
    /// the folder are not followed.
    #[serde(default)]
    pub links: Vec<FolderPath>,
    /// Key of the index that the source `index` reads when the document names none.
    pub index: Option<ObjectKey>,
    /// Maximum number of reads and writes in flight at a time, both together; 64 when missing.
    pub reads: Option<Reads>,
    /// Permits runs of a server to write to the store; `penstock run` may write in any case.
    #[serde(default)]
    pub writable: bool,
    /// Keeps objects of the store on this machine; nothing is kept when missing.
    pub cache: Option<CacheConfig>,
}

/// An S3 bucket, or the part of it below a prefix.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// Name of the bucket, without `s3://` and without a prefix.
    pub bucket: BucketName,
    /// Prefix of all keys of the store, like a folder in the bucket; the whole bucket when empty.
    #[serde(default)]
    pub prefix: KeyPrefix,
    /// Address of the S3 service; the default service of the credentials when missing.
    pub endpoint: Option<Endpoint>,
    /// Region of the bucket; taken from the environment or the profile when missing.
    pub region: Option<Region>,
    /// Puts the bucket into the path of request URLs instead of the host name. When missing: `true` if `endpoint` is set.
    pub path_style: Option<bool>,
    /// Credentials file in the format of `~/.aws/credentials`, relative to the folder of the configuration. When missing, the
    /// standard places apply: the environment, the profile, the machine's role.
    pub credentials_file: Option<FilePath>,
    /// Sends unsigned requests, for a public bucket.
    #[serde(default)]
    pub anonymous: bool,
    /// Agrees to pay for requests and transfer, as some buckets require of those who read them.
    #[serde(default)]
    pub requester_pays: bool,
    /// False for a service that lists keys in no order: all keys of a listing are then read and sorted before the first one is used.
    #[serde(default = "default_sorted")]
    pub sorted: bool,
    /// Key of the index, below the prefix, that the source `index` reads when the document names none.
    pub index: Option<ObjectKey>,
    /// Maximum number of reads and writes in flight at a time, both together; 64 when missing.
    pub reads: Option<Reads>,
    /// Permits runs of a server to write to the store; `penstock run` may write in any case.
    #[serde(default)]
    pub writable: bool,
    /// Keeps objects of the store on this machine; nothing is kept when missing.
    pub cache: Option<CacheConfig>,
}

fn default_sorted() -> bool {
    true
}

impl Config {
    /// Reads a configuration. On failure, returns all faults, as [`Spec::read`](crate::spec::Spec::read) does.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        read_all(parse(bytes)?, Vec::new(), Self::check)
    }

    /// Makes relative paths relative to `folder`, the folder of the configuration file.
    #[must_use]
    pub fn relative_to(mut self, folder: &Path) -> Self {
        let mut files: Vec<&mut FilePath> = self.token_file.iter_mut().collect();
        let mut folders: Vec<&mut FolderPath> = self.data_dir.iter_mut().collect();
        files.extend(self.tls.iter_mut().flat_map(|tls| [&mut tls.certificate, &mut tls.key]));
        for store in self.stores.values_mut() {
            let cache = match store {
                StoreConfig::Folder(store) => {
                    folders.extend(store.links.iter_mut().chain([&mut store.root]));
                    &mut store.cache
                }
                StoreConfig::S3(store) => {
                    files.extend(&mut store.credentials_file);
                    &mut store.cache
                }
            };
            folders.extend(cache.as_mut().map(|cache| &mut cache.dir));
        }
        let paths = files.into_iter().map(|file| &mut file.0);
        paths
            .chain(folders.into_iter().map(|folder| &mut folder.0))
            .for_each(|path| *path = folder.join(&*path));
        self
    }

    fn check(&self) -> Vec<SpecFault> {
        let mut faults = Vec::new();
        for (name, store) in &self.stores {
            let place = Pointer::ROOT.key("stores").key(name.as_str()).key(store.kind().into());
            match store {
                StoreConfig::Folder(_) => {}
                StoreConfig::S3(store) => faults.extend(store.faults(&place)),
            }
        }
        faults
    }
}

impl StoreKind {
    /// Form of the addresses of such stores; `None` if they have no address.
    pub fn address(self) -> Option<&'static str> {
        match self {
            Self::Folder => None,
            Self::S3 => Some("s3://bucket/prefix"),
        }
    }

    /// Beginning of the addresses of such stores.
    fn scheme(self) -> Option<&'static str> {
        self.address()?.split_inclusive("://").next()
    }

    /// Forms of addresses of stores, for messages.
    pub fn addresses() -> String {
        quoted(Self::address)
    }

    /// Beginnings of addresses of stores, for messages.
    pub fn schemes() -> String {
        quoted(Self::scheme)
    }
}

fn quoted(text: fn(StoreKind) -> Option<&'static str>) -> String {
    let texts = StoreKind::VARIANTS.iter().filter_map(|kind| text(*kind));
    texts.map(|text| format!("`{text}`")).collect::<Vec<_>>().join(" or ")
}

impl BenchStoreKind {
    /// Class of storage that holds the objects.
    pub fn medium(self) -> Medium {
        match self {
            Self::Memory => Medium::Memory,
            Self::Folder => Medium::Folder,
            Self::S3 => Medium::Remote,
        }
    }
}

impl From<StoreKind> for BenchStoreKind {
    fn from(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Folder => Self::Folder,
            StoreKind::S3 => Self::S3,
        }
    }
}

impl StoreConfig {
    /// Parses the address of a remote store; `None` if no kind of store has addresses that begin in this way. The error states the
    /// expected form and never repeats the address, which may contain a password.
    pub fn from_address(address: &str) -> Option<Result<Self, String>> {
        let begins = |kind: &&StoreKind| kind.scheme().is_some_and(|scheme| address.starts_with(scheme));
        match StoreKind::VARIANTS.iter().find(begins)? {
            StoreKind::Folder => None,
            StoreKind::S3 => Some(S3Config::from_address(address).map(Self::S3)),
        }
    }

    /// Kind of the store.
    pub fn kind(&self) -> StoreKind {
        match self {
            Self::Folder(_) => StoreKind::Folder,
            Self::S3(_) => StoreKind::S3,
        }
    }

    /// Options of the store that do not depend on its kind.
    pub fn options(&self) -> StoreOptions<'_> {
        match self {
            Self::Folder(FolderConfig { index, reads, writable, cache, .. })
            | Self::S3(S3Config { index, reads, writable, cache, .. }) => StoreOptions {
                index: index.as_ref(),
                reads: *reads,
                writable: *writable,
                cache: cache.as_ref(),
            },
        }
    }

    /// Adds further folders into which links of a folder may lead; other stores have no links.
    #[must_use]
    pub fn with_links(mut self, links: &[PathBuf]) -> Self {
        if let Self::Folder(folder) = &mut self {
            folder.links.extend(links.iter().cloned().map(FolderPath));
        }
        self
    }
}

impl FolderConfig {
    /// Store in the folder `root`, with the default for every other setting.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: FolderPath(root.into()),
            links: Vec::new(),
            index: None,
            reads: None,
            writable: false,
            cache: None,
        }
    }
}

impl S3Config {
    /// Parses `s3://bucket` or `s3://bucket/prefix`. The error states the expected form and never repeats the address, which may
    /// contain a password.
    pub fn from_address(address: &str) -> Result<Self, String> {
        let wrong = |reason: &str| format!("{reason}; expected `s3://bucket` or `s3://bucket/prefix`");
        let rest = address.strip_prefix("s3://").ok_or_else(|| wrong("it does not begin with `s3://`"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            bucket: BucketName::new(bucket).map_err(|reason| wrong(&format!("invalid bucket: {reason}")))?,
            prefix: KeyPrefix::new(prefix).map_err(|reason| wrong(&format!("invalid prefix: {reason}")))?,
            endpoint: None,
            region: None,
            path_style: None,
            credentials_file: None,
            anonymous: false,
            requester_pays: false,
            sorted: true,
            index: None,
            reads: None,
            writable: false,
            cache: None,
        })
    }

    /// Faults of the settings together; `place` is that of the settings.
    fn faults(&self, place: &Pointer) -> impl Iterator<Item = SpecFault> {
        let others = [
            ("a `credentials_file`", self.credentials_file.is_some()),
            ("`requester_pays`", self.requester_pays),
        ];
        let excluded = others.into_iter().filter(|(_, is_set)| self.anonymous && *is_set);
        excluded.map(|(other, _)| {
            let fault = format!("found `true` beside {other}, keep one of them");
            SpecFault::new(place.key("anonymous"), fault)
        })
    }
}
