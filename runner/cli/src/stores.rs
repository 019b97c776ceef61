//! From `--config` and `--store` to stores; everything that can be wrong there.
//!
//! Messages never repeat what a file of credentials holds, nor an address, which may have a password in it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use penstock_runner::{StoreFault, Stores};
use penstock_types::config::{Config, DatasetConfig, FolderConfig, S3Config, StoreConfig};
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::Name;

use crate::args::StoreArgs;
use crate::input::{bad, bytes, once, pair, unusable};

/// What would do behind `--store NAME=`.
const WANTED: &str = "a folder, a `*.json` file that describes a data set in S3, or `s3://bucket/prefix`";

/// What `--store` lets a name stand for.
enum Meant {
    Store(StoreConfig),
    Dataset(DatasetConfig),
}

/// The operator's configuration, an empty one where none is named.
pub(crate) fn config(args: &StoreArgs) -> Result<Config> {
    let Some(path) = args.config.as_deref().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(Config::default());
    };
    let config = Config::read(&bytes(path)?).map_err(|found| unusable(&origin(path), &found))?;
    Ok(config.relative_to(path.parent().unwrap_or(Path::new(""))))
}

/// Opens the stores of the configuration and of the command line, which wins.
pub(crate) fn open(args: &StoreArgs, config: &Config) -> Result<Stores> {
    let mut named = BTreeSet::new();
    let mut given = Vec::new();
    for flag in &args.stores {
        let (name, what) = pair(flag, "--store", "NAME=WHAT")?;
        if Name::new(name).is_none() {
            return Err(bad(format!(
                "`--store {}=...`: a store's name has 1 to 128 letters, digits, `.`, `_` or `-`, and starts with a letter or a digit",
                name.escape_debug()
            )));
        }
        once(&mut named, name, "--store")?;
        given.push((flag, name, what));
    }
    let mut stores = Stores::default();
    let mut faults = Vec::new();
    for (name, store) in config.stores.iter().filter(|(name, _)| !named.contains(name.as_str())) {
        if let Err(fault) = stores.add(name.as_str(), store) {
            faults.push(SpecFault::new(place(name, store), with_cause(&fault)));
        }
    }
    if !faults.is_empty() {
        let path = args.config.as_deref().unwrap_or(Path::new("the configuration"));
        return Err(unusable(&origin(path), &faults));
    }
    for (flag, name, what) in given {
        let shown = if what.contains("://") { format!("{name}=...") } else { flag.clone() };
        let wrong = |message: String| bad(format!("`--store {shown}`: {message}"));
        let opened = match meant(what, wrong)? {
            Meant::Store(store) => stores.add(name, &store),
            Meant::Dataset(dataset) => stores.add_dataset(name, &dataset),
        };
        opened.map_err(|fault| wrong(with_cause(&fault)))?;
    }
    Ok(stores)
}

/// What `--store` lets a name stand for; `wrong` makes an error of why it will not do.
fn meant(what: &str, wrong: impl Fn(String) -> anyhow::Error) -> Result<Meant> {
    if what.starts_with("s3://") {
        let store = S3Config::from_address(what).map_err(wrong)?;
        return Ok(Meant::Store(StoreConfig::S3(store)));
    }
    if what.contains("://") {
        return Err(wrong(format!("it is an address that does not begin with `s3://`; wanted {WANTED}")));
    }
    let path = Path::new(what);
    let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    match path.metadata() {
        Ok(found) if found.is_file() && is_json => {
            let dataset =
                DatasetConfig::read(&bytes(path)?).map_err(|found| unusable(&origin(path), &found))?;
            Ok(Meant::Dataset(dataset))
        }
        Ok(found) if !found.is_dir() => Err(wrong(format!("it is no folder; wanted {WANTED}"))),
        Err(error) if is_json => Err(wrong(format!("it cannot be read: {error}; wanted {WANTED}"))),
        // A folder that is not there is told of where it is opened.
        _ => Ok(Meant::Store(StoreConfig::Folder(FolderConfig::new(path)))),
    }
}

/// Where in the configuration it says what could not be opened.
fn place(name: &Name, store: &StoreConfig) -> Pointer {
    let place = Pointer::ROOT.key("stores").key(name.as_str());
    match store {
        StoreConfig::Folder(_) => place.key("folder"),
        StoreConfig::S3(_) => place.key("s3"),
    }
}

fn with_cause(fault: &StoreFault) -> String {
    match std::error::Error::source(fault) {
        Some(cause) => format!("{fault}: {cause}"),
        None => fault.to_string(),
    }
}

fn origin(path: &Path) -> String {
    format!("`{}`", path.display())
}
