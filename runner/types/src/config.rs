//! The operator's configuration as written: what the names that pipelines use stand for on this machine.

mod dataset;
mod limits;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use dataset::DatasetConfig;
pub use limits::{Budget, ClientBounds, CompileBounds, GateBounds, Limits, RunBounds};
pub use text::{
    BucketName, Endpoint, FilePath, FolderPath, HostName, IndexUrl, KeyPrefix, ListenAddress, Region,
    SecretText, TimeSpan,
};

use crate::fault::{Pointer, SpecFault};
use crate::spec::{Name, ObjectKey, Reads, parse, read_all};

/// The operator's configuration, `penstock.json`. It holds no secrets: stores name a file that does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The stores that pipelines may name.
    #[serde(default)]
    pub stores: BTreeMap<Name, StoreConfig>,
    /// What strangers' modules and runs may be and cost.
    #[serde(default)]
    pub limits: Limits,
    /// What all runs of a server may use at a time.
    #[serde(default)]
    pub budget: Budget,
    /// Where a server listens.
    #[serde(default)]
    pub listen: Option<ListenAddress>,
    /// Names that a server goes by, beside its addresses and `localhost`.
    #[serde(default)]
    pub hosts: Vec<HostName>,
    /// A file with the token that a server wants from everybody. As written it is relative to the folder of the configuration.
    #[serde(default)]
    pub token_file: Option<FilePath>,
    /// Certificate and key of a server that speaks TLS itself.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Where a server keeps modules, runs and their history. As written it is relative to the folder of the configuration.
    #[serde(default)]
    pub data_dir: Option<FolderPath>,
}

/// Files of a certificate and its key (PEM). As written they are relative to the folder of the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate, then those between it and one that clients trust.
    pub certificate: FilePath,
    /// The key of the certificate.
    pub key: FilePath,
}

/// What a store's name stands for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreConfig {
    /// A local folder.
    Folder(FolderConfig),
    /// A bucket, or a part of one.
    S3(S3Config),
}

/// A local folder.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderConfig {
    /// Its path. As written it is relative to the folder of the configuration.
    pub root: FolderPath,
    /// Key of the index that the source `index` reads when the document names none.
    #[serde(default)]
    pub index: Option<ObjectKey>,
    /// Reads and writes in flight at a time, together; 64 when missing.
    #[serde(default)]
    pub reads: Option<Reads>,
    /// Whether runs of a server may write to it; `penstock run` may in any case.
    #[serde(default)]
    pub writable: bool,
}

/// A bucket, or the part of it below a prefix.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// The bucket.
    pub bucket: BucketName,
    /// The part of the bucket that is the store: a folder of keys, as it were.
    #[serde(default)]
    pub prefix: KeyPrefix,
    /// The service, when it is not the one the credentials belong to by default.
    #[serde(default)]
    pub endpoint: Option<Endpoint>,
    /// The region; looked up in the environment and the profile when missing.
    #[serde(default)]
    pub region: Option<Region>,
    /// Whether the bucket stands in the path of addresses instead of the host; true with an `endpoint` when missing.
    #[serde(default)]
    pub path_style: Option<bool>,
    /// A file in the form of `~/.aws/credentials`. As written it is relative to the folder of the configuration. When
    /// missing, the standard places are looked at: the environment, the profile, the machine's role.
    #[serde(default)]
    pub credentials_file: Option<FilePath>,
    /// Whether requests go unsigned, to a public bucket.
    #[serde(default)]
    pub anonymous: bool,
    /// Key of the index, below the prefix, that the source `index` reads when the document names none.
    #[serde(default)]
    pub index: Option<ObjectKey>,
    /// Reads and writes in flight at a time, together; 64 when missing.
    #[serde(default)]
    pub reads: Option<Reads>,
    /// Whether runs of a server may write to it; `penstock run` may in any case.
    #[serde(default)]
    pub writable: bool,
}

impl Config {
    /// Reads a configuration. Fails with everything that is wrong with it, as [`Spec::read`](crate::spec::Spec::read)
    /// does.
    pub fn read(bytes: &[u8]) -> Result<Self, Vec<SpecFault>> {
        read_all(parse(bytes)?, Vec::new(), Self::check)
    }

    /// The configuration with relative paths made relative to `folder`, the one it was read from.
    #[must_use]
    pub fn relative_to(mut self, folder: &Path) -> Self {
        for store in self.stores.values_mut() {
            match store {
                StoreConfig::Folder(store) => store.root.0 = folder.join(&store.root.0),
                StoreConfig::S3(store) => {
                    if let Some(file) = &mut store.credentials_file {
                        file.0 = folder.join(&file.0);
                    }
                }
            }
        }
        if let Some(file) = &mut self.token_file {
            file.0 = folder.join(&file.0);
        }
        if let Some(TlsConfig { certificate, key }) = &mut self.tls {
            for file in [certificate, key] {
                file.0 = folder.join(&file.0);
            }
        }
        if let Some(data) = &mut self.data_dir {
            data.0 = folder.join(&data.0);
        }
        self
    }

    fn check(&self) -> Vec<SpecFault> {
        let both = self.stores.iter().filter(|(_, store)| {
            matches!(store, StoreConfig::S3(S3Config { anonymous: true, credentials_file: Some(_), .. }))
        });
        let fault = |(name, _): (&Name, _)| {
            let place = Pointer::ROOT.key("stores").key(name.as_str()).key("s3").key("anonymous");
            SpecFault::new(place, "found `true` beside a `credentials_file`, keep one of them")
        };
        both.map(fault).collect()
    }
}

impl FolderConfig {
    /// A folder with everything else as it is when missing.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: FolderPath(root.into()), index: None, reads: None, writable: false }
    }
}

impl S3Config {
    /// Reads `s3://bucket` or `s3://bucket/prefix`. Fails with what would do, and never repeats the address: it may hold
    /// a password.
    pub fn from_address(address: &str) -> Result<Self, String> {
        let wrong = |reason: &str| format!("{reason}; wanted `s3://bucket` or `s3://bucket/prefix`");
        let rest = address.strip_prefix("s3://").ok_or_else(|| wrong("it does not begin with `s3://`"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            bucket: BucketName::new(bucket)
                .map_err(|reason| wrong(&format!("its bucket will not do: {reason}")))?,
            prefix: KeyPrefix::new(prefix)
                .map_err(|reason| wrong(&format!("its prefix will not do: {reason}")))?,
            endpoint: None,
            region: None,
            path_style: None,
            credentials_file: None,
            anonymous: false,
            index: None,
            reads: None,
            writable: false,
        })
    }
}
