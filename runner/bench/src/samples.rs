//! Samples of a format in place of objects, and their reads.

use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use penstock_engine::chunk::Outcome;
use penstock_engine::item::{Sample, Value};
use penstock_engine::numbered::{Numbered, ReadSamples, chunk};
use penstock_engine::ports::{Source, SourceFault};
use penstock_engine::range::RangeSource;
use penstock_engine::share::Share;
use penstock_storage::{BYTES_FIELD, BoundedStore};
use penstock_types::config::BenchStoreKind;
use penstock_types::text::with_causes;
use penstock_types::traversal::{Traversal, TraversalSettings};

use crate::load::{BenchError, Surroundings};
use crate::subject::{StageOp, Subject, SubjectError};
use crate::worker::{FailedIn, ReadFailure, ReadSample};

const READ_AT_ONCE: usize = 16;

/// Numbers of samples, in the order in which a pipeline with these settings visits them.
pub fn visits(samples: &dyn Numbered, settings: TraversalSettings) -> Result<Box<dyn Source>, SourceFault> {
    let traversal = Traversal::in_units(samples.count(), samples.units(), settings)
        .map_err(|fault| SourceFault::new("cannot visit the samples", Some(fault.into())))?;
    Ok(Box::new(RangeSource::new(traversal)))
}

/// Samples that were read into memory, in place of storage.
struct Held {
    samples: Vec<Sample>,
    mean_bytes: u64,
}

impl Subject {
    /// Collects the samples of a format, in the orders of the first `passes` epochs. In the order of the source, a read takes as many
    /// neighbours as a pipeline reads together; in any other order, it takes a single sample.
    pub async fn of_samples(
        store: BoundedStore,
        kind: BenchStoreKind,
        samples: Arc<dyn Numbered>,
        settings: TraversalSettings,
        passes: usize,
        stages: Vec<StageOp>,
    ) -> Result<Self, SubjectError> {
        let subject = Self::open(store, kind, visits(&*samples, settings)?, passes, stages).await?;
        let joined = if settings.shuffle { 1 } else { chunk(&*samples) as u32 };
        Ok(Self { samples: Some(samples), joined, ..subject })
    }

    /// Reads objects, or samples by one read. If this read fails, each sample is read alone, so that only the unreadable ones fail.
    pub(crate) async fn read(&self, store: &BoundedStore, numbers: &[u32]) -> Vec<ReadSample> {
        if numbers.len() > 1
            && let Some(samples) = &self.samples
        {
            let indexes = numbers.iter().map(|number| self.objects[*number as usize].origin.index);
            if let Ok(read) = samples.clone().read(0, indexes.collect(), Share::alone(u64::MAX)).await
                && read.len() == numbers.len()
                && let kept = read.into_kept()
                && kept.len() == numbers.len()
            {
                return kept.into_iter().map(Ok).collect();
            }
        }
        let mut read = Vec::with_capacity(numbers.len());
        for number in numbers {
            read.push(self.read_one(store, *number).await);
        }
        read
    }

    /// Reads an object or a sample.
    pub(crate) async fn read_one(&self, store: &BoundedStore, number: u32) -> ReadSample {
        let object = &self.objects[number as usize];
        let Some(samples) = &self.samples else {
            let bytes = store.get(object.key.clone()).await.0;
            let bytes = bytes.map_err(|error| ReadFailure::of(number, &error))?;
            let mut sample = Sample::new(object.key.clone(), object.origin);
            sample.set(Arc::from(BYTES_FIELD), Value::Blob(bytes));
            return Ok(sample);
        };
        let failed = |message| ReadFailure { object: Some(number), what: FailedIn::Storage, message };
        let read = samples.clone().read(0, vec![object.origin.index], Share::alone(u64::MAX)).await;
        let read = read.map_err(|fault| failed(with_causes(&fault.fault)))?;
        match read.into_outcomes().next() {
            Some((sample, None)) => Ok(sample),
            Some((_, Some(Outcome::Failed(fault)))) => Err(failed(fault.message.to_string())),
            _ => Err(failed("the sample is missing".to_owned())),
        }
    }

    /// Copies what is read into memory, until it has more than `most_bytes`. If not all of it fits, the part that fits is read
    /// repeatedly.
    pub(crate) fn in_memory(&self, surroundings: &Surroundings, most_bytes: u64) -> Result<Self, BenchError> {
        let store = self.store_with(READ_AT_ONCE);
        let reads = async {
            let (mut samples, mut bytes) = (Vec::new(), 0);
            let numbers: Vec<u32> = (0..self.objects.len() as u32).collect();
            let reads =
                stream::iter(numbers.chunks(self.joined as usize)).map(|numbers| self.read(&store, numbers));
            let mut reads = reads.buffered(READ_AT_ONCE);
            while let Some(read) = reads.next().await
                && bytes <= most_bytes
            {
                let read = read.into_iter().flatten();
                samples.extend(read.inspect(|sample| bytes += sample.bytes()));
            }
            (samples, bytes)
        };
        let (samples, bytes) =
            surroundings.runtime.block_on(surroundings.cancel.unless(reads)).ok_or(BenchError::Stopped)?;
        if samples.is_empty() {
            return Err(BenchError::Failed("no object could be read into memory".to_owned()));
        }
        let objects: Vec<_> =
            samples.iter().map(|sample: &Sample| (sample.key.clone(), Some(sample.bytes()))).collect();
        let count = samples.len() as u32;
        let orders = self.orders.iter().map(|order| order.iter().map(|object| object % count).collect());
        let held = Held { mean_bytes: bytes / u64::from(count), samples };
        Ok(Self {
            orders: orders.collect(),
            stages: self.stages.clone(),
            samples: Some(Arc::new(held)),
            joined: self.joined,
            ..Self::of(self.store.clone(), BenchStoreKind::Memory, objects)
        })
    }
}

impl Numbered for Held {
    fn count(&self) -> u64 {
        self.samples.len() as u64
    }

    fn mean_bytes(&self) -> u64 {
        self.mean_bytes
    }

    fn read(self: Arc<Self>, _: u32, indexes: Vec<u64>, _: Share) -> ReadSamples {
        let samples = indexes.into_iter().map(|index| self.samples[index as usize].clone()).collect();
        std::future::ready(Ok(samples)).boxed()
    }

    fn kept_bytes(&self) -> u64 {
        self.mean_bytes * self.count()
    }
}
