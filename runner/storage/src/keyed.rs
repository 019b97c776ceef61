//! Samples that are keys without fields: those of a listing, or of an index.

use std::sync::Arc;

use futures::FutureExt;
use penstock_engine::chunk::Chunk;
use penstock_engine::item::{Origin, Sample};
use penstock_engine::numbered::{Numbered, ReadSamples};
use penstock_engine::ports::Produced;
use penstock_engine::share::Share;
use penstock_types::plan::LEAST_SAMPLE_BYTES;
use penstock_types::resume::Hash;
use penstock_types::traversal::NextVisits;

use crate::keys::PackedKeys;

/// Maximum number of samples in a chunk.
pub(crate) const CHUNK: usize = 256;

/// A sample without fields for each key.
pub(crate) struct KeyedSamples(PackedKeys);

impl KeyedSamples {
    pub(crate) fn numbered(mut keys: PackedKeys) -> Arc<dyn Numbered> {
        keys.shrink();
        Arc::new(Self(keys))
    }
}

impl Numbered for KeyedSamples {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn digest(&self) -> Option<Hash> {
        Some(self.0.digest())
    }

    fn mean_bytes(&self) -> u64 {
        LEAST_SAMPLE_BYTES
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, _: Share) -> ReadSamples {
        std::future::ready(Ok(samples(&self.0, 0, epoch, indexes))).boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// Makes a sample of each visited key. The first of `keys` has the index `first`.
pub(crate) fn produced(keys: &PackedKeys, first: u64, visits: NextVisits) -> Produced {
    match visits {
        NextVisits::EpochEnd => Produced::EpochEnd,
        NextVisits::Visits { epoch, indexes } => Produced::Samples(samples(keys, first, epoch, indexes)),
    }
}

fn samples(keys: &PackedKeys, first: u64, epoch: u32, indexes: Vec<u64>) -> Chunk {
    // Cannot be out of range: a traversal over `keys.len()` entries yields only smaller indexes.
    let sample = |index: u64| {
        let key = keys.get(usize::try_from(index.checked_sub(first)?).ok()?)?;
        Some(Sample::new(key, Origin::at(epoch, index)))
    };
    indexes.into_iter().filter_map(sample).collect()
}
