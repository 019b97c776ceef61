//! Tests of the stores, of the sources that read them and of `fetch`, through their public API.
#![expect(clippy::unwrap_used, reason = "a failure to set up the files of a test fails the test")]

mod bound;
mod cached;
mod caching;
mod conformance;
mod fetch;
mod folder;
mod index;
mod links;
mod list;
mod memory;
mod observe;
mod page_cache;
mod s3;
mod s3_faults;
mod s3_modes;

use std::path::Path;
use std::sync::Arc;

use penstock_engine::item::Sample;
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore, Wanted, list_samples};
use penstock_types::spec::Suffix;
use penstock_types::traversal::TraversalSettings;
use tempfile::TempDir;

/// A folder with these files, and a store named `data` for the folder.
fn folder_with(files: &[(&str, &[u8])]) -> (TempDir, BoundedStore) {
    let folder = tempfile::tempdir().unwrap();
    for (key, bytes) in files {
        put(folder.path(), key, bytes);
    }
    let store = bounded(folder.path());
    (folder, store)
}

fn bounded(root: &Path) -> BoundedStore {
    BoundedStore::new(Arc::new(FolderStore::open("data", root).unwrap()), DEFAULT_READS)
}

fn put(root: &Path, key: &str, bytes: &[u8]) {
    let path = root.join(key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A source over numbered samples that reads nothing ahead.
fn numbered(open: Open, settings: TraversalSettings) -> NumberedSource {
    NumberedSource::new(open, settings, 0)
}

/// Keys that start and end with these texts.
fn wanted(prefix: &str, suffix: &str) -> Wanted {
    Wanted { prefix: prefix.to_owned(), suffix: Suffix::One(suffix.to_owned()), ..Wanted::default() }
}

/// A source over all keys, which are listed first.
fn listed_whole(store: BoundedStore, suffix: &str, settings: TraversalSettings) -> NumberedSource {
    let wanted = wanted("", suffix);
    numbered(list_samples(store, wanted, u64::MAX), settings)
}

/// The complete output of a source.
struct Drained {
    samples: Vec<Sample>,
    /// Number of samples before the end of each epoch, counted from the start.
    ends: Vec<usize>,
    fault: Option<SourceFault>,
}

async fn drain(source: impl Source + 'static) -> Drained {
    drain_boxed(Box::new(source)).await
}

async fn drain_boxed(mut source: Box<dyn Source>) -> Drained {
    let mut drained = Drained { samples: Vec::new(), ends: Vec::new(), fault: None };
    loop {
        match source.next().await {
            Ok(Some(Produced::Samples(samples))) => drained.samples.extend(samples.into_kept()),
            Ok(Some(Produced::EpochEnd)) => drained.ends.push(drained.samples.len()),
            Ok(None) => return drained,
            Err(fault) => {
                drained.fault = Some(fault);
                return drained;
            }
        }
    }
}

impl Drained {
    fn keys(&self) -> Vec<&str> {
        assert!(self.fault.is_none(), "{:?}", self.fault);
        self.samples.iter().map(|sample| &*sample.key).collect()
    }

    fn fault(&self) -> String {
        self.fault.as_ref().unwrap().to_string()
    }
}
