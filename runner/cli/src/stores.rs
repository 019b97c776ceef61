//! Stores that `--config` and `--store` define, and errors for the faults in them.
//!
//! Messages contain neither the content of a credentials file nor an address, which may include a password.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use penstock_pipeline::{Stores, WrittenFault};
use penstock_types::config::{Config, StoreConfig};
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::Name;
use penstock_types::text::{printable, with_causes};

use crate::args::StoreArgs;
use crate::input::{bad, bytes, once, pair, unusable};

/// Maximum number of characters that a message shows of the value of a flag.
const MAX_SHOWN: usize = 1024;

/// Configuration of the operator, empty if no file is named.
pub(crate) fn config(args: &StoreArgs) -> Result<Config> {
    config_at(args.config.as_deref())
}

/// Configuration in a file, empty if no file is named.
pub(crate) fn config_at(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(Config::default());
    };
    let config = Config::read(&bytes(path)?).map_err(|found| unusable(&origin(path), &found))?;
    Ok(config.relative_to(path.parent().unwrap_or(Path::new(""))))
}

/// Opens the stores of the configuration and of the command line, which takes precedence.
pub(crate) fn open(args: &StoreArgs, config: &Config) -> Result<Stores> {
    let mut named = BTreeSet::new();
    let mut given = Vec::new();
    for flag in &args.stores {
        let (name, what) = pair(flag, "--store", "NAME=LOCATION")?;
        once(&mut named, name, "--store")?;
        given.push((flag, name, what));
    }
    let mut stores = Stores::default();
    let mut faults = Vec::new();
    for (name, store) in config.stores.iter().filter(|(name, _)| !named.contains(name.as_str())) {
        if let Err(fault) = stores.add(name.as_str(), store) {
            faults.push(SpecFault::new(place(name, store), with_causes(&fault)));
        }
    }
    if !faults.is_empty() {
        let path = args.config.as_deref().unwrap_or(Path::new("the configuration"));
        return Err(unusable(&origin(path), &faults));
    }
    for (flag, name, what) in given {
        let shown = if what.contains("://") { format!("{name}=...") } else { printable(flag, MAX_SHOWN) };
        stores.add_written(name, what).map_err(|fault| match fault {
            WrittenFault::Dataset { file, faults } => unusable(&format!("`{file}`"), &faults),
            wrong => bad(format!("`--store {shown}`: {wrong}")),
        })?;
    }
    Ok(stores)
}

/// Pointer into the configuration to the store that could not be opened.
fn place(name: &Name, store: &StoreConfig) -> Pointer {
    let place = Pointer::ROOT.key("stores").key(name.as_str());
    match store {
        StoreConfig::Folder(_) => place.key("folder"),
        StoreConfig::S3(_) => place.key("s3"),
    }
}

fn origin(path: &Path) -> String {
    format!("`{}`", path.display())
}
