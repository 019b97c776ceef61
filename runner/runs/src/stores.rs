use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore};

/// The stores that pipelines may name. The operator decides what a name stands for; a document never brings a path.
#[derive(Clone, Debug, Default)]
pub struct Stores(BTreeMap<String, BoundedStore>);

impl Stores {
    /// Lets `name` stand for a folder.
    pub fn add_folder(&mut self, name: &str, root: impl AsRef<Path>) -> io::Result<()> {
        let store = BoundedStore::new(Arc::new(FolderStore::open(name, root)?), DEFAULT_READS);
        self.0.insert(name.to_owned(), store);
        Ok(())
    }

    /// The store called `name`.
    pub fn get(&self, name: &str) -> Option<&BoundedStore> {
        self.0.get(name)
    }

    /// All names.
    pub fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }
}
