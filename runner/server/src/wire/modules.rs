//! Modules, and trials of them.

use std::collections::BTreeMap;

use penstock_types::run::RunId;
use penstock_types::spec::Name;
use penstock_wasm::ModuleReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::pages::{MAX_LIMIT, at_most};

/// Module, in the form in which lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleSummary {
    /// Name of the module.
    pub name: String,
    /// Number of versions of the module.
    pub versions: u64,
    /// Newest version of the module.
    pub latest: ModuleVersion,
    /// Version numbers by alias.
    pub aliases: BTreeMap<String, u32>,
    /// Number of runs that used any of the versions.
    pub runs: u64,
    /// Name of the token that alone, besides admins, may upload further versions; `null` if the name belongs to no token.
    pub owner: Option<String>,
}

/// Module with a page of its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleDetail {
    /// Name of the module.
    pub name: String,
    /// Version numbers by alias.
    pub aliases: BTreeMap<String, u32>,
    /// Name of the token that alone, besides admins, may upload further versions; `null` if the name belongs to no token.
    pub owner: Option<String>,
    /// Versions of the module on this page, newest first.
    pub versions: Vec<ModuleVersion>,
    /// Cursor of the next page of versions; `null` at the end of the list.
    pub next: Option<String>,
}

/// Page of the versions of a module.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionQuery {
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of versions; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Version of a module. The bytes of a version never change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleVersion {
    /// Name of the module.
    pub name: String,
    /// Number of the version, from 1; never used again after a deletion.
    pub version: u32,
    /// Aliases that point to this version.
    pub aliases: Vec<String>,
    /// Time of the upload, RFC 3339 in UTC; `null` for a module that is part of the program.
    pub uploaded_at: Option<String>,
    /// Number of runs that used this version.
    pub runs: u64,
    /// Ids of the runs that use this version and have not ended, at most 100.
    pub in_use: Vec<RunId>,
    /// Properties of the module, found by its check.
    pub report: ModuleReport,
}

/// Result of the upload of a module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleUpload {
    /// Version that holds the uploaded bytes.
    #[serde(flatten)]
    pub version: ModuleVersion,
    /// True if the upload created this version; false if the same bytes were uploaded before.
    pub created: bool,
    /// Digest of the version before this one; `null` for the first version.
    pub previous: Option<String>,
}

/// Filter and page of a list of modules.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModuleQuery {
    /// Text that the name contains.
    #[serde(rename = "q")]
    pub text: Option<String>,
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of modules; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}

/// Source of the bytes of a version of a module.
#[derive(Debug)]
pub enum ModuleContent {
    File(std::fs::File),
    /// Bytes that are part of the program.
    Program(&'static [u8]),
}

/// Bytes of a version of a module, open for reading.
#[derive(Debug)]
pub struct ModuleFile {
    /// `sha256:` and the hexadecimal digest of the bytes.
    pub digest: String,
    pub size_bytes: u64,
    pub content: ModuleContent,
}

/// Trial of a module on a few samples. Exactly one of `samples` and `from` is required.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TryRequest {
    /// Parameters of the module.
    pub params: Map<String, Value>,
    /// Limit of the CPU time for one sample, in milliseconds, at most 10,000; 5,000 if missing.
    pub deadline_ms: Option<u32>,
    /// Limit of the memory of one instance, in MiB, at most 1,024; 256 if missing.
    pub memory_mib: Option<u32>,
    /// Seed, in place of the document's seed.
    pub seed: u64,
    /// Number of trials of each sample, 1 to 3, 1 if missing; with 2 or more, the report states if all results are the same.
    pub repeat: Option<u32>,
    /// Samples in the request itself, at most 16.
    pub samples: Option<Vec<TrySample>>,
    /// Samples to read from a store.
    pub from: Option<TryFrom>,
    /// Assets that the module may request, by name, at most 16.
    pub assets: BTreeMap<Name, TryAsset>,
}

/// Asset of a module in a trial: bytes in the request, or an object of a store.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum TryAsset {
    /// Asset whose bytes are in the request.
    Given {
        /// Content of the asset, base64-encoded.
        base64: String,
    },
    /// Asset that is an object of a store.
    Stored {
        /// Name of the store that contains the object.
        store: String,
        /// Key of the object in the store.
        key: String,
    },
}

/// Sample in a request: a text, bytes, or fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrySample {
    /// Key of the sample; `sample` if empty.
    pub key: String,
    /// Value of a text field.
    pub text: Option<String>,
    /// Value of a bytes field, encoded as base64.
    pub base64: Option<String>,
    /// Name of the field that holds `text` or `base64`; `text` or `bytes` if missing.
    pub field: Option<String>,
    /// Further fields, in the form of a line of the source `records`.
    pub fields: Option<Map<String, Value>>,
}

/// Objects of a store, each of which becomes a sample in the same form as in the stage `fetch`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TryFrom {
    /// Name of the store.
    pub store: String,
    /// Keys of the objects, at most 16.
    pub keys: Vec<String>,
}
