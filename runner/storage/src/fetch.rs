//! The `fetch` stage: reads the objects that the keys of samples name.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use penstock_engine::item::{Collated, Item, Sample, Value};
use penstock_engine::ports::{Failed, Fault, Items, Output, TaskOp, TaskSlot};
use penstock_types::plan::BYTES_FIELD;
use penstock_types::run::FailureClass;

use crate::bounded::{BoundedStore, ReadTime};
use crate::error::StoreError;
use crate::observe::now;

/// Reads objects into the field [`BYTES_FIELD`] of the samples whose keys, or one of whose fields, name them.
///
/// The samples of a batch are read concurrently, and each has a separate result: a missing key does not fail the other samples. A
/// batch never has more concurrent requests than the store has permits. The op's time is the time during which at least one read
/// had a permit; during the remaining time of the task, its slot counts as waiting for permits.
///
/// A read that fails for want of credentials ends the run, whatever the stage's `on_error` says.
pub struct FetchOp {
    store: BoundedStore,
    field: Arc<str>,
    names: Names,
}

/// Reason why a sample has no object.
struct Unread {
    fault: Fault,
    /// Set if reads of other objects fail in the same way, so that the run ends.
    is_fatal: bool,
}

/// Origin of the keys of objects: a field, or the keys of samples.
#[derive(Clone)]
struct Names(Option<Arc<str>>);

/// Number of reads of one task that hold a permit.
#[derive(Debug, Default)]
struct Reading(AtomicUsize);

impl FetchOp {
    pub fn new(store: BoundedStore) -> Self {
        Self { store, field: Arc::from(BYTES_FIELD), names: Names(None) }
    }

    /// Reads the objects that the field `field` names, or those of the samples' keys.
    #[must_use]
    pub fn of(self, field: Option<&str>) -> Self {
        Self { names: Names(field.map(Arc::from)), ..self }
    }
}

impl TaskOp for FetchOp {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        self.start_in(item, TaskSlot::default())
    }

    fn start_in(&self, item: Item, slot: TaskSlot) -> BoxFuture<'static, Output> {
        let (store, field, names) = (self.store.clone(), self.field.clone(), self.names.clone());
        async move {
            let reading = Reading::default();
            let fetch = async {
                match item {
                    Item::Sample(sample) => fetch_sample(&store, &field, &names, sample, &reading).await,
                    Item::Batch(samples) => fetch_batch(&store, &field, &names, samples, &reading).await,
                    Item::Collated(batch) => refuse(batch),
                }
            };
            reading.run_in(slot, fetch).await
        }
        .boxed()
    }
}

impl Names {
    /// Key of the object of a sample.
    fn key(&self, sample: &Sample) -> Result<Arc<str>, Fault> {
        let Self(Some(field)) = self else { return Ok(sample.key.clone()) };
        match sample.field(field) {
            Some(Value::Text(key)) => Ok(Arc::from(key.as_str())),
            found => {
                let found = if found.is_some() { "is no text" } else { "is missing" };
                let message = format!(
                    "`fetch` reads the object that the field `{field}` names, but this field {found}"
                );
                Err(Fault::new(FailureClass::Contract, message))
            }
        }
    }
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Self {
        let is_fatal = matches!(error, StoreError::Credentials { .. });
        Self { fault: Fault::new(FailureClass::Storage, error.with_causes()), is_fatal }
    }
}

impl Reading {
    /// Waits for a permit and reads an object, if its key is known.
    async fn read(
        &self,
        store: &BoundedStore,
        key: Result<Arc<str>, Fault>,
    ) -> (Result<Bytes, Unread>, ReadTime) {
        let key = match key {
            Ok(key) => key,
            Err(fault) => {
                return (Err(Unread { fault, is_fatal: false }), ReadTime { start: now(), end: now() });
            }
        };
        let permit = store.permit().await;
        self.0.fetch_add(1, Ordering::Relaxed);
        let (read, time) = store.get_with(permit, key).await;
        self.0.fetch_sub(1, Ordering::Relaxed);
        (read.map_err(Unread::from), time)
    }

    /// Runs `work` and reports to `slot` whether any read of the task holds a permit. If one read returns its permit and the next
    /// one gets it within the same poll, no wait is reported.
    async fn run_in<T>(&self, mut slot: TaskSlot, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() {
                slot.set_permit_wait(self.0.load(Ordering::Relaxed) == 0);
            }
            polled
        })
        .await
    }
}

async fn fetch_sample(
    store: &BoundedStore,
    field: &Arc<str>,
    names: &Names,
    sample: Sample,
    reading: &Reading,
) -> Output {
    let (read, time) = reading.read(store, names.key(&sample)).await;
    let fatal = fatal(&read);
    let mut output = match answer(sample, read, field) {
        Ok(sample) => Output::one(Item::Sample(sample)),
        Err(failed) => Output { failed: vec![failed], fatal, ..Output::default() },
    };
    output.op_time = Some(time.end - time.start);
    output
}

async fn fetch_batch(
    store: &BoundedStore,
    field: &Arc<str>,
    names: &Names,
    samples: Vec<Sample>,
    reading: &Reading,
) -> Output {
    let read = |place: usize| {
        let key = names.key(&samples[place]);
        async move { (place, reading.read(store, key).await) }
    };
    // More concurrent requests than permits would only wait.
    let reads = stream::iter((0..samples.len()).map(read)).buffer_unordered(store.reads().get());
    let mut reads: Vec<_> = reads.collect().await;
    reads.sort_unstable_by_key(|(place, _)| *place);
    let mut read = Vec::with_capacity(samples.len());
    let mut failed = Vec::new();
    let mut ending = None;
    let mut times = Vec::with_capacity(samples.len());
    for (sample, (_, (result, time))) in samples.into_iter().zip(reads) {
        times.push(time);
        ending = ending.or_else(|| fatal(&result));
        match answer(sample, result, field) {
            Ok(sample) => read.push(sample),
            Err(failure) => failed.push(failure),
        }
    }
    let items = if read.is_empty() { Items::None } else { Items::One(Item::Batch(read)) };
    Output { items, failed, fatal: ending, op_time: Some(ReadTime::covered(times)), ..Output::default() }
}

/// Message of a read that ends the run.
fn fatal(read: &Result<Bytes, Unread>) -> Option<String> {
    read.as_ref().err().filter(|unread| unread.is_fatal).map(|unread| unread.fault.message.to_string())
}

fn answer(mut sample: Sample, read: Result<Bytes, Unread>, field: &Arc<str>) -> Result<Sample, Failed> {
    match read {
        Ok(bytes) => {
            sample.set(field.clone(), Value::Blob(bytes));
            Ok(sample)
        }
        Err(Unread { fault, .. }) => Err(Failed { sample, fault }),
    }
}

/// Fails all samples of a collated batch. The check of the plan excludes collated batches here; failing the samples keeps the
/// ledger balanced.
fn refuse(batch: Collated) -> Output {
    let fault = Fault::new(
        FailureClass::Contract,
        "`fetch` takes samples and batches of samples, but this is a collated batch: put `fetch` before `collate`",
    );
    Output::all_failed(batch.into_samples(), &fault)
}
