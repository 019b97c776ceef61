//! The `list` source: a sample for every object that a store lists.

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_types::traversal::TraversalSettings;

use crate::bounded::BoundedStore;
use crate::error::shown;
use crate::keys::Keys;
use crate::visits::Visits;

/// Makes a sample without fields for every key of a store that starts with a prefix and ends with a suffix. Keys are
/// sorted by their bytes before they are permuted, so that a folder and a bucket give the same samples in the same
/// order.
///
/// Lists once, at the first call, and keeps the keys (their bytes and eight more each) for all epochs. Finding none is
/// a fault that says what was looked for.
#[derive(Debug)]
pub struct ListSource {
    store: BoundedStore,
    wanted: Wanted,
    settings: TraversalSettings,
    visits: Option<Visits>,
}

impl ListSource {
    /// Lists `store`; an empty prefix or suffix lets all keys pass.
    pub fn new(
        store: BoundedStore,
        prefix: impl Into<String>,
        suffix: impl Into<String>,
        settings: TraversalSettings,
    ) -> Self {
        let wanted = Wanted { prefix: prefix.into(), suffix: suffix.into(), except: None };
        Self { store, wanted, settings, visits: None }
    }

    async fn next_chunk(&mut self) -> Result<Option<Produced>, SourceFault> {
        let visits = match &mut self.visits {
            Some(visits) => visits,
            None => {
                let visits = Visits::new(self.wanted.list(&self.store, |_| {}).await?, self.settings)?;
                self.visits.insert(visits)
            }
        };
        Ok(visits.next_chunk())
    }
}

impl Source for ListSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        self.next_chunk().boxed()
    }

    fn total(&self) -> Option<u64> {
        self.visits.as_ref()?.total()
    }
}

/// Which of a store's keys are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// What they start with; empty for all.
    pub prefix: String,
    /// What they end with; empty for all.
    pub suffix: String,
    /// One that is left out.
    pub except: Option<String>,
}

impl Wanted {
    /// These keys of `store`, sorted by their bytes. `on_page` is told how many were found so far. Finding none is a fault
    /// that says what was looked for.
    pub async fn list(
        &self,
        store: &BoundedStore,
        mut on_page: impl FnMut(usize),
    ) -> Result<Keys, SourceFault> {
        let mut keys = Keys::default();
        let mut seen: u64 = 0;
        let mut pages = store.list(&self.prefix);
        while let Some(page) = pages.next().await {
            let page = page?;
            seen += page.len() as u64;
            page.iter().filter(|key| self.has(key)).for_each(|key| keys.push(key));
            on_page(keys.len());
        }
        if keys.is_empty() { Err(self.nothing_found(store.name(), seen)) } else { Ok(keys) }
    }

    /// Whether a key that starts with the prefix is wanted.
    fn has(&self, key: &str) -> bool {
        key.ends_with(&self.suffix) && self.except.as_deref() != Some(key)
    }

    fn nothing_found(&self, store: &str, seen: u64) -> SourceFault {
        let (prefix, suffix) = (shown(&self.prefix), shown(&self.suffix));
        let message = match (self.prefix.is_empty(), self.suffix.is_empty(), seen) {
            (true, _, 0) => format!("store `{store}` holds no objects at all"),
            (false, _, 0) => format!("store `{store}` holds no object whose key starts with {prefix}"),
            (_, true, _) => format!("store `{store}` holds nothing but the index"),
            (true, ..) => format!("none of the {seen} objects of store `{store}` ends with {suffix}"),
            (false, ..) => format!(
                "none of the {seen} objects of store `{store}` that start with {prefix} ends with {suffix}"
            ),
        };
        SourceFault::new(message, None)
    }
}
