//! The keys of a source, in the order of its traversal.

use penstock_engine::item::{Origin, Sample};
use penstock_engine::ports::{Produced, SourceFault};
use penstock_types::traversal::{NextVisits, Traversal, TraversalSettings};

use crate::keys::PackedKeys;

/// Maximum number of samples in a chunk.
pub(crate) const CHUNK: usize = 256;

/// The keys of a source and the remaining part of their traversal; empty until the source has found the keys.
pub(crate) struct Visits {
    settings: TraversalSettings,
    found: Option<(PackedKeys, Traversal)>,
}

impl Visits {
    pub(crate) fn new(settings: TraversalSettings) -> Self {
        Self { settings, found: None }
    }

    /// Returns the next samples, without fields, or the end of an epoch; `None` after the last epoch. The first call finds the
    /// keys.
    pub(crate) async fn next_chunk(
        &mut self,
        find: impl Future<Output = Result<PackedKeys, SourceFault>>,
    ) -> Result<Option<Produced>, SourceFault> {
        let (keys, traversal) = match &mut self.found {
            Some(found) => found,
            none => {
                let mut keys = find.await?;
                keys.shrink();
                let traversal = Traversal::new(keys.len() as u64, self.settings)
                    .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
                none.insert((keys, traversal))
            }
        };
        Ok(traversal.next_visits(CHUNK).map(|visits| produced(keys, 0, visits)))
    }

    /// Bytes of the keys, once they are found.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.found.as_ref().map_or(0, |(keys, _)| keys.bytes())
    }

    /// Number of samples over all epochs; `None` if the epochs never end, or the keys are not found yet.
    pub(crate) fn total(&self) -> Option<u64> {
        self.found.as_ref()?.1.total()
    }
}

/// Makes a sample without fields of each visited key. The first of `keys` has the index `first`.
pub(crate) fn produced(keys: &PackedKeys, first: u64, visits: NextVisits) -> Produced {
    match visits {
        NextVisits::EpochEnd => Produced::EpochEnd,
        NextVisits::Visits { epoch, indexes } => {
            // Cannot be out of range: a traversal over `keys.len()` entries yields only smaller indexes.
            let sample = |index: u64| {
                let key = keys.get(usize::try_from(index.checked_sub(first)?).ok()?)?;
                Some(Sample::new(key, Origin { epoch, index, path: 0 }))
            };
            Produced::Samples(indexes.into_iter().filter_map(sample).collect())
        }
    }
}
