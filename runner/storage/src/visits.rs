//! The keys that a source found, in the order in which they are visited.

use std::sync::Arc;

use penstock_engine::item::{Origin, Sample};
use penstock_engine::ports::{Produced, SourceFault};
use penstock_types::traversal::{Chunk, Traversal, TraversalSettings};

use crate::keys::Keys;

const CHUNK: usize = 256;

/// Keys and the rest of their traversal: the state of a source that knows its keys.
#[derive(Debug)]
pub(crate) struct Visits {
    keys: Keys,
    traversal: Traversal,
}

impl Visits {
    pub(crate) fn new(mut keys: Keys, settings: TraversalSettings) -> Result<Self, SourceFault> {
        keys.shrink();
        let traversal = Traversal::new(keys.len() as u64, settings)
            .map_err(|fault| SourceFault::new(fault.to_string(), None))?;
        Ok(Self { keys, traversal })
    }

    /// The next samples, without fields, or the end of an epoch; `None` after the last.
    pub(crate) fn next_chunk(&mut self) -> Option<Produced> {
        Some(match self.traversal.next_chunk(CHUNK)? {
            Chunk::EpochEnd => Produced::EpochEnd,
            Chunk::Visits { epoch, indexes } => {
                Produced::Samples(indexes.into_iter().filter_map(|index| self.sample(epoch, index)).collect())
            }
        })
    }

    /// Samples of all epochs together; `None` when they never end.
    pub(crate) fn total(&self) -> Option<u64> {
        self.traversal.total()
    }

    fn sample(&self, epoch: u32, index: u64) -> Option<Sample> {
        // A traversal over `keys.len()` entries gives no index outside.
        let key = self.keys.get(usize::try_from(index).ok()?)?;
        Some(Sample::new(Arc::<str>::from(key), Origin { epoch, index, path: 0 }))
    }
}
