use std::path::{Path, PathBuf};

use penstock_types::config::{DatasetConfig, FolderConfig, StoreConfig, StoreKind};
use penstock_types::fault::SpecFault;
use penstock_types::spec::{MAX_DOCUMENT_BYTES, Name};
use penstock_types::text::with_causes;

use super::{StoreFault, Stores};
use crate::output::read_within;

/// Reason why user input is not a store. Never repeats contents of a credentials file, nor an address, which may contain a
/// password.
#[derive(Debug, thiserror::Error)]
pub enum WrittenFault {
    /// The name is invalid, or the store cannot be added.
    #[error("{0}")]
    Wrong(String),
    #[error("`{file}` is not valid: {}", .faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Dataset { file: String, faults: Vec<SpecFault> },
}

impl Stores {
    /// Adds a store from user input: a folder, a `*.json` file that describes a data set in S3, or the address of a remote store. Links
    /// in a folder may also lead into the folders `links`; other stores have no links.
    pub fn add_linked(&mut self, name: &str, what: &str, links: &[PathBuf]) -> Result<(), WrittenFault> {
        if Name::new(name).is_none() {
            return Err(WrittenFault::Wrong(
                "a store's name has 1 to 128 letters, digits, `.`, `_` or `-`, and starts with a letter or a digit"
                    .to_owned(),
            ));
        }
        if let Some(store) = StoreConfig::from_address(what) {
            return Ok(self.add(name, &store.map_err(WrittenFault::Wrong)?)?);
        }
        let wrong = |reason: &str| {
            let (file, addresses) =
                ("a `*.json` file that describes a data set in S3", StoreKind::addresses());
            WrittenFault::Wrong(format!("{reason}; expected a folder, {file}, or {addresses}"))
        };
        if what.contains("://") {
            return Err(wrong(&format!("the address does not begin with {}", StoreKind::schemes())));
        }
        let path = Path::new(what);
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        match path.metadata() {
            Ok(found) if found.is_file() && is_json => {
                // One byte more than the maximum size of a description is enough to detect a larger file.
                let bytes = read_within(path, MAX_DOCUMENT_BYTES as u64 + 1)
                    .map_err(|error| WrittenFault::Wrong(format!("the file cannot be read: {error}")))?;
                let dataset = DatasetConfig::read(&bytes)
                    .map_err(|faults| WrittenFault::Dataset { file: what.to_owned(), faults })?;
                Ok(self.add_dataset(name, &dataset)?)
            }
            Ok(found) if !found.is_dir() => Err(wrong("the path is not a folder")),
            Err(error) if is_json => Err(wrong(&format!("the file cannot be read: {error}"))),
            // For a missing folder, `add` returns the error.
            _ => Ok(self.add(name, &StoreConfig::Folder(FolderConfig::new(path)).with_links(links))?),
        }
    }
}

impl From<StoreFault> for WrittenFault {
    fn from(fault: StoreFault) -> Self {
        Self::Wrong(with_causes(&fault))
    }
}
