//! The `range` source: numbered samples without fields, for tests, benchmarks and stages that generate their own data.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_types::plan::LEAST_SAMPLE_BYTES;
use penstock_types::resume::DataSet;
use penstock_types::traversal::{NextVisits, Traversal};

use crate::item::{Origin, Sample};
use crate::numbered::{Numbered, ReadSamples};
use crate::ports::{Produced, Source, SourceFault};
use crate::share::Share;

/// Makes samples without fields whose key is their index in decimal.
#[derive(Debug)]
pub struct RangeSource {
    traversal: Traversal,
    total: Option<u64>,
}

/// Samples per chunk: enough to make the overhead of switching to the source's task negligible, few enough to start quickly.
const CHUNK: usize = 256;

impl RangeSource {
    pub fn new(traversal: Traversal) -> Self {
        Self { total: traversal.total(), traversal }
    }
}

/// Samples without fields whose key is their number in decimal, as [`RangeSource`] makes them.
#[derive(Debug)]
pub struct RangeSamples(pub u64);

impl Numbered for RangeSamples {
    fn count(&self) -> u64 {
        self.0
    }

    fn mean_bytes(&self) -> u64 {
        LEAST_SAMPLE_BYTES
    }

    fn read(self: Arc<Self>, epoch: u32, indexes: Vec<u64>, _: Share) -> ReadSamples {
        std::future::ready(Ok(indexes.into_iter().map(|index| numbered(epoch, index)).collect())).boxed()
    }

    fn kept_bytes(&self) -> u64 {
        0
    }
}

impl Source for RangeSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        let produced = self.traversal.next_visits(CHUNK).map(|visits| match visits {
            NextVisits::EpochEnd => Produced::EpochEnd,
            NextVisits::Visits { epoch, indexes } => {
                Produced::Samples(indexes.into_iter().map(|index| numbered(epoch, index)).collect())
            }
        });
        std::future::ready(Ok(produced)).boxed()
    }

    fn total(&self) -> Option<u64> {
        self.total
    }

    fn data(&self) -> DataSet {
        DataSet { count: Some(self.traversal.count()), ..DataSet::default() }
    }
}

fn numbered(epoch: u32, index: u64) -> Sample {
    Sample::new(Arc::<str>::from(index.to_string()), Origin::at(epoch, index))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use penstock_types::traversal::TraversalSettings;

    use super::*;

    #[tokio::test]
    async fn samples_are_numbered_and_an_end_separates_two_epochs() {
        let settings = TraversalSettings { epochs: NonZeroU32::new(2), ..TraversalSettings::IN_ORDER };
        let mut source = RangeSource::new(Traversal::new(300, settings).unwrap());
        let mut seen = Vec::new();
        let mut ends = Vec::new();
        while let Some(produced) = source.next().await.unwrap() {
            match produced {
                Produced::Samples(samples) => seen.extend(samples.into_kept()),
                Produced::EpochEnd => ends.push(seen.len()),
            }
        }
        assert_eq!(ends, [300]);
        assert_eq!(seen.len(), 600);
        assert_eq!(seen[299], numbered(0, 299));
        assert_eq!(seen[300], Sample::new("0", Origin::at(1, 0)));
    }
}
