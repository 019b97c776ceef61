//! Stores, the use of the server, and its audit log.

use std::collections::BTreeMap;

use penstock_types::config::StoreKind;
use penstock_types::run::{FailureClass, RunSnapshot, RunState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pages::{MAX_LIMIT, at_most};

/// Maximum number of keys in a list of a store's keys.
pub const MAX_KEYS: u32 = 1_000;

/// Store that pipelines may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreSummary {
    /// Name of the store.
    pub name: String,
    /// Kind of the store.
    pub kind: StoreKind,
    /// True if runs may write batches to the store.
    pub writable: bool,
    /// Maximum number of reads and writes in flight, for all runs together.
    pub reads: u64,
    /// Number of reads and writes in flight now, for all runs together.
    pub reads_used: u64,
}

/// Prefix and number of keys to list.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyQuery {
    /// Prefix of the keys; all keys if empty.
    #[serde(default)]
    pub prefix: String,
    /// Maximum number of keys; 100 if missing, 1000 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_KEYS, _>")]
    #[schemars(range(min = 1, max = MAX_KEYS))]
    pub limit: Option<u32>,
}

/// Keys that a store lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreKeys {
    /// First keys with the prefix, sorted by their bytes.
    pub items: Vec<String>,
    /// True if the store has more keys with the prefix.
    pub more: bool,
    /// Time that the store took to list the keys, in seconds.
    pub elapsed_s: f64,
}

/// Budget of all runs together, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetUse {
    /// Number of worker threads of the budget.
    pub threads: u32,
    /// Memory of the budget, in MiB.
    pub memory_mib: u64,
    /// Number of worker threads that are reserved for runs.
    pub threads_used: u32,
    /// Memory that is reserved for runs, in MiB.
    pub memory_mib_used: u64,
    /// Share of the worker threads that is reserved for runs, 0.0 to 1.0.
    pub threads_share: Option<f64>,
    /// Share of the memory that is reserved for runs, 0.0 to 1.0.
    pub memory_share: Option<f64>,
    /// Number of runs that have started and not ended.
    pub runs_alive: u64,
    /// Number of waiting runs.
    pub runs_queued: u64,
}

/// Resources of the runs of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientUse {
    /// Name of the client: a token, an address, or the server itself.
    pub client: String,
    /// Number of worker threads of the client's active runs.
    pub threads_used: u64,
    /// Memory of the client's active runs, in MiB.
    pub memory_mib_used: u64,
    /// Number of runs that have started and not ended, including replays.
    pub runs_alive: u64,
    /// Number of waiting runs.
    pub runs_queued: u64,
}

/// Use of the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StorageUse {
    /// Size of all files in the data directory, in bytes, without the free pages of the history.
    pub data_dir_bytes: u64,
    /// Limit of the data directory, in bytes; `null` if unlimited.
    pub data_dir_limit_bytes: Option<u64>,
    /// Number of versions of modules.
    pub modules: u64,
    /// Number of stored runs.
    pub runs: u64,
    /// Free space of the file system, in bytes.
    pub free_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Counts {
    pub runs: BTreeMap<RunState, u64>,
    /// Number of samples that consumers have taken since the server started.
    pub samples: u64,
    /// Number of samples that have failed since the server started, by class.
    pub failures: BTreeMap<FailureClass, u64>,
    /// Snapshots of the runs that have started and not ended.
    pub live: Vec<RunSnapshot>,
}

/// Entry of the audit log: a change that a client has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuditEntry {
    /// Time of the response, RFC 3339 in UTC.
    pub at: String,
    /// Name of the token that was used: `operator` for the server's own token, `anyone` if the server requires no token.
    pub token: String,
    /// Address of the client, or of its proxy; empty for `own_module`, which follows from an upload with an entry of its own.
    pub address: String,
    /// Id of the operation, e.g. `delete_run`, or `own_module` if a token got the name of a module that had no owner.
    pub action: String,
    /// Path and query of the request beneath the API; for a new resource, also the path of the resource.
    pub target: String,
    /// Status of the response; `null` if the client disconnected before the response.
    pub status: Option<u16>,
}

/// Cursor and size of a page of the audit log.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Cursor of the page: `next` of the previous page; the first page if missing.
    pub cursor: Option<String>,
    /// Maximum number of entries; 50 if missing, 200 at most.
    #[serde(default, deserialize_with = "at_most::<MAX_LIMIT, _>")]
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: Option<u32>,
}
