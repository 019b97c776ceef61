//! The `list` source: a sample for every object that a store lists.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use penstock_engine::item::{Origin, Sample};
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_types::traversal::{Chunk, Traversal, TraversalSettings};

use crate::bounded::BoundedStore;
use crate::error::shown;
use crate::keys::Keys;

/// Makes a sample without fields for every key of a store that starts with a prefix and ends with a suffix. Keys are
/// sorted by their bytes before they are permuted, so that a folder and a bucket give the same samples in the same
/// order.
///
/// Lists once, at the first call, and keeps the keys (their bytes and eight more each) for all epochs. Finding none is
/// a fault that says what was looked for.
#[derive(Debug)]
pub struct ListSource {
    store: BoundedStore,
    prefix: String,
    suffix: String,
    settings: TraversalSettings,
    listed: Option<Listed>,
}

#[derive(Debug)]
struct Listed {
    keys: Keys,
    traversal: Traversal,
}

/// Samples handed over at a time.
const CHUNK: usize = 256;

impl ListSource {
    /// Lists `store`; an empty prefix or suffix lets all keys pass.
    pub fn new(
        store: BoundedStore,
        prefix: impl Into<String>,
        suffix: impl Into<String>,
        settings: TraversalSettings,
    ) -> Self {
        Self { store, prefix: prefix.into(), suffix: suffix.into(), settings, listed: None }
    }

    async fn next_chunk(&mut self) -> Result<Option<Produced>, SourceFault> {
        let listed = match &mut self.listed {
            Some(listed) => listed,
            None => {
                let listed = self.list().await?;
                self.listed.insert(listed)
            }
        };
        Ok(listed.traversal.next_chunk(CHUNK).map(|chunk| match chunk {
            Chunk::EpochEnd => Produced::EpochEnd,
            Chunk::Visits { epoch, indexes } => Produced::Samples(
                indexes.into_iter().filter_map(|index| listed.sample(epoch, index)).collect(),
            ),
        }))
    }

    async fn list(&self) -> Result<Listed, SourceFault> {
        let mut keys = Keys::default();
        let mut seen: u64 = 0;
        let mut pages = self.store.list(&self.prefix);
        while let Some(page) = pages.next().await {
            let page = page?;
            seen += page.len() as u64;
            page.iter().filter(|key| key.ends_with(&self.suffix)).for_each(|key| keys.push(key));
        }
        if keys.is_empty() {
            return Err(self.nothing_found(seen));
        }
        keys.shrink();
        let traversal = Traversal::new(keys.len() as u64, self.settings)
            .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
        Ok(Listed { keys, traversal })
    }

    fn nothing_found(&self, seen: u64) -> SourceFault {
        let store = self.store.name();
        let (prefix, suffix) = (shown(&self.prefix), shown(&self.suffix));
        let message = match (self.prefix.is_empty(), self.suffix.is_empty(), seen) {
            (true, _, 0) => format!("store `{store}` holds no objects at all"),
            (false, _, 0) => format!("store `{store}` holds no object whose key starts with {prefix}"),
            (true, ..) => format!("none of the {seen} objects of store `{store}` ends with {suffix}"),
            (false, ..) => format!(
                "none of the {seen} objects of store `{store}` that start with {prefix} ends with {suffix}"
            ),
        };
        SourceFault::new(message, None)
    }
}

impl Source for ListSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        self.next_chunk().boxed()
    }

    fn total(&self) -> Option<u64> {
        self.listed.as_ref()?.traversal.total()
    }
}

impl Listed {
    fn sample(&self, epoch: u32, index: u64) -> Option<Sample> {
        // A traversal over `keys.len()` entries gives no index outside.
        let key = self.keys.get(usize::try_from(index).ok()?)?;
        Some(Sample::new(Arc::<str>::from(key), Origin { epoch, index, path: 0 }))
    }
}
