//! Objects of a store to measure, the orders in which passes read them, and the stages after the reads.

use std::collections::HashMap;
use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_engine::item::{Origin, Sample, Value};
use penstock_engine::numbered::{Numbered, chunk};
use penstock_engine::ports::{Produced, Source, SourceFault, ThreadOpFactory};
use penstock_engine::range::RangeSource;
use penstock_storage::{BoundedStore, MemoryStore, StoreError};
use penstock_types::config::BenchStoreKind;
use penstock_types::traversal::{Traversal, TraversalSettings};

use crate::spec::{MAX_READS, MemorySource, OnReadError};

const SURVEYED_AT_ONCE: usize = 64;
/// Number of objects read at a time to fill the page cache.
const WARMED_AT_ONCE: usize = 16;
/// Maximum number of objects whose share in the page cache is measured.
const CACHE_PROBES: usize = 256;

#[derive(Clone)]
pub struct StageOp {
    pub name: String,
    /// Input of each call.
    pub takes: Takes,
    pub factory: Arc<dyn ThreadOpFactory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Sample,
    Batch,
}

#[derive(Clone)]
pub struct Subject {
    pub(crate) store: BoundedStore,
    pub(crate) kind: BenchStoreKind,
    pub(crate) objects: Arc<[SubjectObject]>,
    /// Object numbers of each pass; never empty.
    pub(crate) orders: Vec<Arc<[u32]>>,
    pub(crate) stages: Vec<StageOp>,
    /// Samples that are read in place of objects, by the positions in their origins.
    pub(crate) samples: Option<Arc<dyn Numbered>>,
    /// Maximum number of neighbouring samples that one read takes; 1 for objects.
    pub(crate) joined: u32,
    /// Set if reads take permits from the store's own limit, in turn with the other users of the store.
    pub(crate) shares_permits: bool,
}

pub(crate) struct SubjectObject {
    pub(crate) key: Arc<str>,
    pub(crate) origin: Origin,
    /// Size in bytes; `None` if unknown.
    pub(crate) size: Option<u64>,
    /// CRC-32 of the bytes of the first read, with bit 32 set once there was a read.
    first: AtomicU64,
}

#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    #[error("cannot list the objects")]
    Source(#[from] SourceFault),
    #[error("cannot open the samples")]
    Samples(#[source] SourceFault),
    #[error("there are no objects to read")]
    Empty,
    #[error("all passes together would read more than {MAX_READS} items; set a `limit`, or fewer `repeats`")]
    TooMany,
    #[error("cannot start the timer thread")]
    Timer(#[source] io::Error),
    #[error("cannot read the size of an object")]
    Survey(#[source] StoreError),
}

impl SubjectError {
    pub(crate) fn with_cause(&self) -> String {
        let cause = std::error::Error::source(self).map_or_else(String::new, |cause| format!(": {cause}"));
        format!("{self}{cause}")
    }
}

impl Subject {
    /// Collects the objects of `source`, in the orders of its first `passes` epochs. If the source has fewer epochs, their orders
    /// are repeated.
    pub async fn open(
        store: BoundedStore,
        kind: BenchStoreKind,
        mut source: Box<dyn Source>,
        passes: usize,
        stages: Vec<StageOp>,
    ) -> Result<Self, SubjectError> {
        let mut objects = Vec::new();
        let mut numbers = HashMap::new();
        let mut orders = Vec::new();
        let mut order = Vec::new();
        let mut reads = 0;
        while orders.len() < passes {
            match source.next().await? {
                Some(Produced::Samples(samples)) => {
                    reads += samples.len() as u64;
                    if reads > MAX_READS {
                        return Err(SubjectError::TooMany);
                    }
                    for sample in samples.into_kept() {
                        let next = u32::try_from(objects.len()).map_err(|_| SubjectError::TooMany)?;
                        let number = *numbers.entry(sample.origin.index).or_insert_with(|| {
                            objects.push(SubjectObject::new(sample.key, sample.origin));
                            next
                        });
                        order.push(number);
                    }
                }
                ended => {
                    orders.push(Arc::from(std::mem::take(&mut order)));
                    if ended.is_none() {
                        break;
                    }
                }
            }
        }
        orders.retain(|order: &Arc<[u32]>| !order.is_empty());
        if orders.is_empty() {
            return Err(SubjectError::Empty);
        }
        let objects = objects.into();
        Ok(Self { store, kind, objects, orders, stages, samples: None, joined: 1, shares_permits: false })
    }

    pub async fn memory(source: &MemorySource, seed: u64, passes: usize) -> Result<Self, SubjectError> {
        let MemorySource { count, bytes, latency_ms, shuffle } = *source;
        let store = MemoryStore::synthetic("memory", &[(count.get() as usize, bytes as usize)]);
        let latency = Duration::from_secs_f64(latency_ms.map_or(0.0, |latency| latency.get() / 1e3));
        let store = match latency.is_zero() {
            true => store,
            false => store.with_latency(latency).map_err(SubjectError::Timer)?,
        };
        let store = BoundedStore::new(Arc::new(store), NonZeroUsize::MIN);
        let epochs = u32::try_from(passes).ok().and_then(NonZeroU32::new);
        let settings = TraversalSettings { seed, shuffle, epochs, ..TraversalSettings::IN_ORDER };
        let numbers = Traversal::new(u64::from(count.get()), settings)
            .map_err(|fault| SourceFault::new("cannot visit the objects", Some(fault.into())))?;
        let subject = Self::open(
            store,
            BenchStoreKind::Memory,
            Box::new(RangeSource::new(numbers)),
            passes,
            Vec::new(),
        );
        Ok(subject.await?.with_keys(|number| format!("{number:06}.bin").into()))
    }

    /// Creates a subject from objects of known keys and sizes.
    pub(crate) fn of(
        store: BoundedStore,
        kind: BenchStoreKind,
        objects: Vec<(Arc<str>, Option<u64>)>,
    ) -> Self {
        let order = (0..u32::try_from(objects.len()).unwrap_or(u32::MAX)).collect();
        let objects = objects.into_iter().enumerate().map(|(index, (key, size))| {
            let origin = Origin { index: index as u64, ..Origin::default() };
            SubjectObject { size, ..SubjectObject::new(key, origin) }
        });
        let (objects, orders, stages) = (objects.collect(), vec![order], Vec::new());
        Self { store, kind, objects, orders, stages, samples: None, joined: 1, shares_permits: false }
    }

    /// Bounds the reads in flight by the store's own limit, which the other users of the store share.
    #[must_use]
    pub fn sharing_permits(self) -> Self {
        Self { shares_permits: true, ..self }
    }

    /// Returns the store with a limit of `reads` reads in flight, or with the store's own limit if its permits are shared.
    pub(crate) fn store_with(&self, reads: usize) -> BoundedStore {
        if self.shares_permits {
            return self.store.clone();
        }
        self.store.with_reads(NonZeroUsize::new(reads).unwrap_or(NonZeroUsize::MIN))
    }

    /// Size of the largest object, in bytes; `None` if the size of any object is unknown.
    pub fn largest_bytes(&self) -> Option<u64> {
        self.objects.iter().try_fold(0, |largest: u64, object| Some(largest.max(object.size?)))
    }

    /// Noun for what is read.
    pub(crate) fn noun(&self) -> &'static str {
        if self.samples.is_some() { "sample" } else { "object" }
    }

    /// Number of reads in one pass.
    pub fn reads(&self) -> u64 {
        self.order(0).len() as u64
    }

    /// Replaces the keys by the results of `key`, which takes the position of an object in the unshuffled source.
    #[must_use]
    pub fn with_keys(mut self, key: impl Fn(u64) -> Arc<str>) -> Self {
        let objects =
            self.objects.iter().map(|object| SubjectObject::new(key(object.origin.index), object.origin));
        self.objects = objects.collect();
        self
    }

    /// Reads the size of every object. A failed read is an error; if `on_error` skips failures, the size stays unknown instead.
    pub async fn survey(mut self, on_error: OnReadError) -> Result<Self, SubjectError> {
        let store = self.store_with(SURVEYED_AT_ONCE);
        let keys: Vec<Arc<str>> = self.objects.iter().map(|object| object.key.clone()).collect();
        let versions = stream::iter(keys).map(|key| store.version(key)).buffered(SURVEYED_AT_ONCE);
        let sizes = versions.map(|version| match version {
            Err(_) if on_error == OnReadError::Skip => Ok(None),
            version => version.map(|version| Some(version.size)).map_err(SubjectError::Survey),
        });
        let sizes: Vec<Option<u64>> = sizes.try_collect().await?;
        let surveyed = self.objects.iter().zip(sizes).map(|(object, size)| SubjectObject {
            size,
            ..SubjectObject::new(object.key.clone(), object.origin)
        });
        self.objects = surveyed.collect();
        Ok(self)
    }

    pub(crate) fn order(&self, pass: usize) -> Arc<[u32]> {
        self.orders[pass % self.orders.len()].clone()
    }

    pub(crate) fn sizes(&self) -> Arc<[Option<u64>]> {
        self.objects.iter().map(|object| object.size).collect()
    }

    /// Returns the same subject with a single pass that repeats the first order up to at least `items` items.
    pub(crate) fn going_round(&self, items: usize) -> Self {
        let order = self.order(0);
        let items = items.max(order.len());
        Self { orders: vec![order.iter().copied().cycle().take(items).collect()], ..self.clone() }
    }

    /// Reads everything once to fill the page cache.
    pub(crate) async fn warm(&self) {
        let store = self.store_with(WARMED_AT_ONCE);
        let mut numbers: Vec<u32> = (0..self.objects.len() as u32).collect();
        numbers.sort_unstable_by_key(|number| self.objects[*number as usize].origin.index);
        let neighbours = self.samples.as_deref().map_or(1, chunk) as usize;
        // The error is ignored here, because the load reports everything that cannot be read.
        stream::iter(numbers.chunks(neighbours))
            .map(|numbers| self.read(&store, numbers))
            .buffer_unordered(WARMED_AT_ONCE)
            .for_each(async |_| ())
            .await;
    }

    /// Total size of all objects, in bytes; `None` if any size is unknown. An estimate for samples.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match &self.samples {
            Some(samples) => samples.mean_bytes().checked_mul(self.objects.len() as u64),
            None => self.objects.iter().map(|object| object.size).sum(),
        }
    }

    /// Keys of the objects that are read. Empty objects have no bytes that could be cached.
    fn keys(&self) -> Vec<Arc<str>> {
        match &self.samples {
            Some(samples) => samples.objects(),
            None => {
                let objects = self.objects.iter().filter(|object| object.size != Some(0));
                objects.map(|object| object.key.clone()).collect()
            }
        }
    }

    /// Drops all objects from the page cache. An error is returned only after all objects were tried.
    pub(crate) async fn forget(&self) -> Result<(), StoreError> {
        let forgotten = stream::iter(self.keys()).map(|key| self.store.forget(key)).buffer_unordered(8);
        forgotten.fold(Ok(()), async |all, one| all.and(one.map(drop))).await
    }

    /// Share of the objects' bytes in the page cache, measured on a sample of the objects. Objects whose share cannot be measured
    /// do not count; `None` if no share is known.
    pub(crate) async fn cached_share(&self) -> Option<f64> {
        let keys = self.keys();
        let step = keys.len().div_ceil(CACHE_PROBES).max(1);
        let (mut sum, mut answered) = (0.0, 0.0);
        for key in keys.into_iter().step_by(step) {
            // The error is ignored here, because the load reports every object that cannot be read.
            if let Ok(share) = self.store.cached_share(key).await {
                sum += share?;
                answered += 1.0;
            }
        }
        (answered > 0.0).then(|| sum / answered)
    }
}

impl SubjectObject {
    fn new(key: Arc<str>, origin: Origin) -> Self {
        Self { key, origin, size: None, first: AtomicU64::new(0) }
    }

    /// Returns true if the CRC-32 of the values is the same as in the first read of the object; true for the first read.
    pub(crate) fn is_same(&self, sample: &Sample) -> bool {
        let mut hasher = crc32fast::Hasher::new();
        for field in &sample.fields {
            match &field.value {
                Value::Blob(bytes) => hasher.update(bytes),
                Value::Text(text) => hasher.update(text.as_bytes()),
                Value::Int(number) => hasher.update(&number.to_le_bytes()),
                Value::Real(number) => hasher.update(&number.to_le_bytes()),
                Value::Tensor(tensor) => hasher.update(&tensor.data),
            }
        }
        let found = u64::from(hasher.finalize()) | 1 << 32;
        match self.first.compare_exchange(0, found, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(first) => first == found,
        }
    }
}
