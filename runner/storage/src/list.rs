//! The `list` source: a sample for every object in a listing.

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_types::traversal::TraversalSettings;

use crate::bounded::BoundedStore;
use crate::error::shown;
use crate::index::{MAX_INDEX_BYTES, RAISE_BUFFER};
use crate::keys::Keys;
use crate::visits::Visits;

/// Makes a sample without fields for every key of a store that starts with a prefix and ends with a suffix. Keys are sorted by
/// their bytes before they are permuted, so that a folder and a bucket with equal keys produce the same samples in the same
/// order.
///
/// The listing is made once, at the first call, and its keys are kept for all epochs (each takes its length plus eight bytes). An
/// empty result is a fault that names the prefix and suffix.
pub struct ListSource {
    store: BoundedStore,
    wanted: Wanted,
    visits: Visits,
    most_bytes: u64,
}

impl ListSource {
    /// Creates a source for `store`; an empty prefix or suffix matches all keys.
    pub fn new(
        store: BoundedStore,
        prefix: impl Into<String>,
        suffix: impl Into<String>,
        settings: TraversalSettings,
    ) -> Self {
        let wanted = Wanted { prefix: prefix.into(), suffix: suffix.into(), except: None };
        Self { store, wanted, visits: Visits::new(settings), most_bytes: MAX_INDEX_BYTES }
    }

    /// Limits the memory of the keys to `bytes`, the source's part of the run's budget.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        Self { most_bytes: bytes.min(MAX_INDEX_BYTES), ..self }
    }
}

impl Source for ListSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        self.visits.next_chunk(self.wanted.list_at_most(self.most_bytes, &self.store, |_| {})).boxed()
    }

    fn total(&self) -> Option<u64> {
        self.visits.total()
    }

    fn kept_bytes(&self) -> u64 {
        self.visits.kept_bytes()
    }
}

#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub prefix: String,
    pub suffix: String,
    pub except: Option<String>,
}

/// Counts of all listed keys.
#[derive(Default)]
struct Seen {
    count: u64,
    with_suffix: u64,
}

impl Wanted {
    /// Lists the matching keys of `store`, sorted by their bytes. All keys are held in memory, so their total size is limited to
    /// [`MAX_INDEX_BYTES`]. `on_page` receives the number of keys found so far. An empty result and too many keys are faults,
    /// whose messages state prefix and suffix.
    pub async fn list(&self, store: &BoundedStore, on_page: impl FnMut(usize)) -> Result<Keys, SourceFault> {
        self.list_at_most(MAX_INDEX_BYTES, store, on_page).await
    }

    async fn list_at_most(
        &self,
        most_bytes: u64,
        store: &BoundedStore,
        mut on_page: impl FnMut(usize),
    ) -> Result<Keys, SourceFault> {
        let mut keys = Keys::default();
        let mut seen = Seen::default();
        let mut pages = store.list(&self.prefix);
        while let Some(page) = pages.next().await {
            let page = page?;
            seen.count += page.len() as u64;
            for key in page.iter().filter(|key| key.ends_with(&self.suffix)) {
                seen.with_suffix += 1;
                if self.except.as_deref() != Some(key) {
                    keys.push(key);
                }
            }
            if keys.bytes() > most_bytes {
                return Err(SourceFault::new(self.too_many(store.name(), keys.len(), most_bytes), None));
            }
            on_page(keys.len());
        }
        if keys.is_empty() {
            Err(SourceFault::new(self.nothing_found(store.name(), &seen), None))
        } else {
            Ok(keys)
        }
    }

    fn nothing_found(&self, store: &str, seen: &Seen) -> String {
        let (whose, that) = match self.prefix.as_str() {
            "" => (String::new(), String::new()),
            prefix => {
                let prefix = shown(prefix);
                (format!(" whose key starts with {prefix}"), format!(" that start with {prefix}"))
            }
        };
        // No key is listed twice, so if keys with the suffix were seen and none is kept, the only one is the excluded key.
        let but = match &self.except {
            Some(index) if seen.with_suffix > 0 => format!(" but the index {}", shown(index)),
            _ => String::new(),
        };
        match (seen.count, self.suffix.as_str()) {
            (0, _) if self.prefix.is_empty() => format!("store `{store}` contains no objects"),
            (0, _) | (_, "") => format!("store `{store}` holds no object{whose}{but}"),
            (count, suffix) => {
                let suffix = shown(suffix);
                format!("none of the {count} objects of store `{store}`{that} ends with {suffix}{but}")
            }
        }
    }

    fn too_many(&self, store: &str, found: usize, most_bytes: u64) -> String {
        let longer = if self.prefix.is_empty() { "a prefix" } else { "a longer prefix" };
        let raise = if most_bytes < MAX_INDEX_BYTES { RAISE_BUFFER } else { "" };
        format!(
            "the first {found} keys of store `{store}` take more than the limit of {most_bytes} bytes of memory; list a \
             part of it with {longer}{raise}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bounded::DEFAULT_READS;
    use crate::folder::FolderStore;

    #[test]
    fn the_excluded_index_is_named_if_no_other_key_is_found() {
        let message = |prefix: &str, suffix: &str, count, with_suffix| {
            let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
            let wanted = Wanted { prefix, suffix, except: Some("a/index.json".to_owned()) };
            wanted.nothing_found("data", &Seen { count, with_suffix })
        };
        assert_eq!(message("", "", 1, 1), "store `data` holds no object but the index `a/index.json`");
        assert_eq!(
            message("a/", "", 1, 1),
            "store `data` holds no object whose key starts with `a/` but the index `a/index.json`"
        );
        assert_eq!(
            message("", ".json", 7, 1),
            "none of the 7 objects of store `data` ends with `.json` but the index `a/index.json`"
        );
        assert_eq!(
            message("a/", ".jpg", 7, 0),
            "none of the 7 objects of store `data` that start with `a/` ends with `.jpg`"
        );
    }

    #[tokio::test]
    async fn a_listing_with_too_many_keys_suggests_a_prefix() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..10 {
            std::fs::write(folder.path().join(format!("key-{number}")), b"").unwrap();
        }
        let store = FolderStore::open("data", folder.path()).unwrap();
        let store = BoundedStore::new(Arc::new(store), DEFAULT_READS);
        // A key takes five bytes of text and eight for its end position.
        let listing = |most_bytes| {
            let store = store.clone();
            async move { Wanted::default().list_at_most(most_bytes, &store, |_| {}).await }
        };
        assert_eq!(listing(130).await.unwrap().bytes(), 130);
        assert_eq!(
            listing(129).await.unwrap_err().to_string(),
            "the first 10 keys of store `data` take more than the limit of 129 bytes of memory; list a part of it with a \
             prefix, or raise `buffer_mib`, of which the source may use a part"
        );
    }
}
