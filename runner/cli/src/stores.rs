//! Stores that `--config` and `--store` define, and errors for the faults in them.
//!
//! Messages contain neither the content of a credentials file nor an address, which may include a password.

use std::path::{Path, PathBuf};

use anyhow::Result;
use penstock_pipeline::{Stores, WrittenFault};
use penstock_types::config::Config;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::Name;
use penstock_types::text::{printable, with_causes};

use crate::args::StoreArgs;
use crate::input::{bad, bytes, pairs, unusable};

/// Maximum number of characters that a message shows of the value of a flag.
const MAX_SHOWN: usize = 1024;

/// Configuration of the operator in a file, empty if no file is named.
pub(crate) fn config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(Config::default());
    };
    let config = Config::read(&bytes(path)?).map_err(|found| unusable(&origin(path), &found))?;
    Ok(config.relative_to(path.parent().unwrap_or(Path::new(""))))
}

/// Opens the stores of the configuration and of the command line, which takes precedence.
pub(crate) fn open(args: &StoreArgs, config: &Config) -> Result<Stores> {
    let given = pairs(&args.stores, "--store", "NAME=LOCATION").collect::<Result<Vec<_>>>()?;
    let is_given = |name: &Name| given.iter().any(|(given, _)| *given == name.as_str());
    let links = StoreLinks::of(&args.links);
    let mut stores = Stores::cached(args.store_cache.clone());
    let mut faults = Vec::new();
    for (name, store) in config.stores.iter().filter(|(name, _)| !is_given(name)) {
        let store = store.clone().with_links(&links.of_store(name.as_str()));
        if let Err(fault) = stores.add(name.as_str(), &store) {
            let place = Pointer::ROOT.key("stores").key(name.as_str()).key(store.kind().into());
            faults.push(SpecFault::new(place, with_causes(&fault)));
        }
    }
    if !faults.is_empty() {
        let path = args.config.as_deref().unwrap_or(Path::new("the configuration"));
        return Err(unusable(&origin(path), &faults));
    }
    for (name, what) in given {
        let shown = match what.contains("://") {
            true => format!("{name}=..."),
            false => printable(&format!("{name}={what}"), MAX_SHOWN),
        };
        stores.add_linked(name, what, &links.of_store(name)).map_err(|fault| match fault {
            WrittenFault::Dataset { file, faults } => unusable(&format!("`{file}`"), &faults),
            wrong => bad(format!("`--store {shown}`: {wrong}")),
        })?;
    }
    links.check(&stores)?;
    Ok(stores)
}

/// Folders that links of stores may enter, with the name of the store; without a name, those of all stores.
struct StoreLinks<'a>(Vec<(Option<&'a str>, &'a str)>);

impl<'a> StoreLinks<'a> {
    fn of(flags: &'a [String]) -> Self {
        let split = |flag: &'a String| match flag.split_once('=') {
            Some((name, folder)) if Name::new(name).is_some() => (Some(name), folder),
            _ => (None, flag.as_str()),
        };
        Self(flags.iter().map(split).collect())
    }

    fn of_store(&self, name: &str) -> Vec<PathBuf> {
        let is_of_store = |(of, _): &&(Option<&str>, &str)| of.is_none_or(|of| of == name);
        self.0.iter().filter(is_of_store).map(|(_, folder)| PathBuf::from(folder)).collect()
    }

    fn check(&self, stores: &Stores) -> Result<()> {
        for (name, folder) in &self.0 {
            let wrong = |reason: String| {
                let of = name.map(|name| format!("{name}=")).unwrap_or_default();
                Err(bad(format!("`--store-links {of}{}`: {reason}", printable(folder, MAX_SHOWN))))
            };
            match name {
                Some(name) if stores.get(name).is_none() => {
                    return wrong(format!("there is no store `{name}`"));
                }
                Some(name) if !stores.is_folder(name) => {
                    return wrong(format!("the store `{name}` is no folder, so it has no links"));
                }
                None if !stores.names().iter().any(|name| stores.is_folder(name)) => {
                    return wrong("no store is a folder".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn origin(path: &Path) -> String {
    format!("`{}`", path.display())
}
