use std::path::PathBuf;
use std::time::Duration;

use penstock_pipeline::Stores;
use penstock_types::config::{ClientBounds, RunBounds};
use penstock_wasm::SandboxSettings;

use crate::admission::Budget;

const TRIAL_TIME: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct RunsSettings {
    /// Data directory, created if missing. One server at a time uses it.
    pub data_dir: PathBuf,
    pub stores: Stores,
    pub budget: Budget,
    /// Compilation and size limits of modules. The cache folder and the number of instances in it are ignored: the other settings
    /// determine them.
    pub sandbox: SandboxSettings,
    /// Bounds of each run, and the maximum number of waiting runs.
    pub bounds: RunBounds,
    pub clients: ClientBounds,
    /// True if further versions of a module may be uploaded only by the token that owns the name, and by admins.
    pub module_owners: bool,
    /// Limit of the data directory, in bytes; no limit if `None`.
    pub disk_bytes: Option<u64>,
    pub trial_time: Duration,
}

impl RunsSettings {
    pub fn new(data_dir: impl Into<PathBuf>, stores: Stores) -> Self {
        Self {
            data_dir: data_dir.into(),
            stores,
            budget: Budget::of_this_machine(),
            sandbox: SandboxSettings::default(),
            bounds: RunBounds::default(),
            clients: ClientBounds::default(),
            module_owners: true,
            disk_bytes: None,
            trial_time: TRIAL_TIME,
        }
    }
}
