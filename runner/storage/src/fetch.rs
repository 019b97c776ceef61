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
pub struct FetchOp(Arc<Fetch>);

struct Fetch {
    store: BoundedStore,
    /// [`BYTES_FIELD`], which all samples share.
    field: Arc<str>,
    /// Field that names the objects; `None` for the keys of samples.
    names: Option<Arc<str>>,
}

/// Reason why a sample has no object.
struct Unread {
    fault: Fault,
    /// Set if reads of other objects fail in the same way, so that the run ends.
    is_fatal: bool,
}

/// Number of reads of one task that hold a permit.
#[derive(Debug, Default)]
struct Reading(AtomicUsize);

impl FetchOp {
    /// Reads the objects that the field `names` names, or those of the samples' keys.
    pub fn new(store: BoundedStore, names: Option<&str>) -> Self {
        Self(Arc::new(Fetch { store, field: Arc::from(BYTES_FIELD), names: names.map(Arc::from) }))
    }
}

impl TaskOp for FetchOp {
    fn start(&self, item: Item) -> BoxFuture<'static, Output> {
        self.start_in(item, TaskSlot::default())
    }

    fn start_in(&self, item: Item, slot: TaskSlot) -> BoxFuture<'static, Output> {
        let fetch = self.0.clone();
        async move {
            let reading = Reading::default();
            let output = async {
                match item {
                    Item::Sample(sample) => fetch.sample(sample, &reading).await,
                    Item::Batch(samples) => fetch.batch(samples, &reading).await,
                    Item::Collated(batch) => refuse(batch),
                }
            };
            reading.run_in(slot, output).await
        }
        .boxed()
    }
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Self {
        let is_fatal = matches!(error, StoreError::Credentials { .. });
        Self { fault: Fault::new(FailureClass::Storage, error.with_causes()), is_fatal }
    }
}

impl Reading {
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

impl Fetch {
    async fn sample(&self, sample: Sample, reading: &Reading) -> Output {
        let (read, time) = self.read(&sample, reading).await;
        let fatal = fatal(&read);
        let mut output = match self.answer(sample, read) {
            Ok(sample) => Output::one(Item::Sample(sample)),
            Err(failed) => Output { failed: vec![failed], fatal, ..Output::default() },
        };
        output.op_time = Some(time.end - time.start);
        output
    }

    async fn batch(&self, samples: Vec<Sample>, reading: &Reading) -> Output {
        let all = &samples;
        let read = |place: usize| async move { (place, self.read(&all[place], reading).await) };
        // More concurrent requests than permits would only wait.
        let reads = stream::iter((0..samples.len()).map(read)).buffer_unordered(self.store.reads().get());
        let mut reads: Vec<_> = reads.collect().await;
        reads.sort_unstable_by_key(|(place, _)| *place);
        let mut read = Vec::with_capacity(samples.len());
        let mut failed = Vec::new();
        let mut ending = None;
        let mut times = Vec::with_capacity(samples.len());
        for (sample, (_, (result, time))) in samples.into_iter().zip(reads) {
            times.push(time);
            ending = ending.or_else(|| fatal(&result));
            match self.answer(sample, result) {
                Ok(sample) => read.push(sample),
                Err(failure) => failed.push(failure),
            }
        }
        let items = if read.is_empty() { Items::None } else { Items::One(Item::Batch(read)) };
        Output { items, failed, fatal: ending, op_time: Some(ReadTime::covered(times)), ..Output::default() }
    }

    /// Waits for a permit and reads the object of a sample, if its key is known.
    async fn read(&self, sample: &Sample, reading: &Reading) -> (Result<Bytes, Unread>, ReadTime) {
        let key = match self.key(sample) {
            Ok(key) => key,
            Err(fault) => {
                return (Err(Unread { fault, is_fatal: false }), ReadTime { start: now(), end: now() });
            }
        };
        let permit = self.store.permit().await;
        reading.0.fetch_add(1, Ordering::Relaxed);
        let (read, time) = self.store.get_with(permit, key).await;
        reading.0.fetch_sub(1, Ordering::Relaxed);
        (read.map_err(Unread::from), time)
    }

    fn key(&self, sample: &Sample) -> Result<Arc<str>, Fault> {
        let Some(field) = &self.names else { return Ok(sample.key.clone()) };
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

    fn answer(&self, mut sample: Sample, read: Result<Bytes, Unread>) -> Result<Sample, Failed> {
        match read {
            Ok(bytes) => {
                sample.set(self.field.clone(), Value::Blob(bytes));
                Ok(sample)
            }
            Err(Unread { fault, .. }) => Err(Failed { sample, fault }),
        }
    }
}

/// Message of a read that ends the run.
fn fatal(read: &Result<Bytes, Unread>) -> Option<String> {
    read.as_ref().err().filter(|unread| unread.is_fatal).map(|unread| unread.fault.message.to_string())
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
