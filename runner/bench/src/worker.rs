//! Worker of a load: reads batches one after another and passes each through the stages, like the worker process of a data
//! loader.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use penstock_engine::clock::Clock;
use penstock_engine::item::{Item, Sample};
use penstock_engine::ports::{Failed, Items, Output, StopFlag, ThreadOp};
use penstock_storage::{BoundedStore, ReadParts, StoreError, observe};
use penstock_types::stats::Tick;
use strum::IntoStaticStr;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::gauge::Gauge;
use crate::load::BenchError;
use crate::record::{Fetch, ItemRead, Load, Span, WorkerLoop};
use crate::subject::{Subject, SubjectObject, Takes};
use crate::window::BatchWindow;

/// A sample that was read: a sample of a format, or the bytes of an object.
pub(crate) type ReadSample = Result<Sample, ReadFailure>;

/// Handle that cancels a benchmark; all work of the benchmark ends soon after.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    token: CancellationToken,
    flag: StopFlag,
}

/// State of one pass, shared by all of its workers.
pub(crate) struct PassWork {
    pub(crate) order: Arc<[u32]>,
    pub(crate) batch_size: usize,
    pub(crate) window: BatchWindow<Made>,
    pub(crate) gauge: Gauge,
}

#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) fetch: Fetch,
    pub(crate) objects: Vec<u32>,
    /// Time at which the batch was ready for the consumer.
    pub(crate) at: Tick,
    pub(crate) failures: Vec<ReadFailure>,
}

#[derive(Clone, Debug)]
pub(crate) struct ReadFailure {
    /// Number of the object; `None` if the failure does not concern an object.
    pub(crate) object: Option<u32>,
    pub(crate) what: FailedIn,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum FailedIn {
    Storage,
    Stage,
}

#[derive(Clone)]
pub(crate) struct LoadWorker {
    pub(crate) number: u32,
    pub(crate) load: Load,
    pub(crate) subject: Subject,
    pub(crate) store: BoundedStore,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Handle,
    pub(crate) cancel: Cancel,
}

/// Guard that ends the current pass and all queued passes if the worker panics.
struct EndsPasses<'a> {
    passes: &'a Receiver<Arc<PassWork>>,
    current: Option<Arc<PassWork>>,
}

impl Drop for EndsPasses<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.passes.try_iter().chain(self.current.take()).for_each(|pass| pass.window.end());
        }
    }
}

impl ReadFailure {
    pub(crate) fn of(object: u32, error: &StoreError) -> Self {
        Self { object: Some(object), what: FailedIn::Storage, message: error.with_causes() }
    }
}

impl Cancel {
    pub fn cancel(&self) {
        self.flag.set();
        self.token.cancel();
    }

    pub fn is_cancelled(&self) -> bool {
        self.flag.is_set()
    }

    /// Runs `work` and returns its result; `None` if the benchmark is cancelled before `work` completes.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.token.run_until_cancelled(work).await
    }
}

impl LoadWorker {
    /// Reads the batches of each received pass until the channel closes. Fails if a stage cannot be created.
    pub(crate) fn run(self, passes: &Receiver<Arc<PassWork>>) -> Result<WorkerLoop, BenchError> {
        let start = self.clock.now();
        let mut told = WorkerLoop {
            worker: self.number,
            span: Span { start, end: start },
            set_up_ns: 0,
            waited_ns: 0,
            fetched_ns: 0,
            worked_ns: 0,
        };
        let this = Arc::new(self.clone());
        let mut ends = EndsPasses { passes, current: None };
        let mut ops = Vec::with_capacity(self.subject.stages.len());
        for stage in &self.subject.stages {
            match stage.factory.build(&self.cancel.flag) {
                Ok(op) => ops.push((stage.takes, op)),
                Err(fault) => {
                    // Ending the passes wakes the consumer, which otherwise waits for their batches for ever.
                    passes.iter().for_each(|pass| pass.window.end());
                    return Err(BenchError::Failed(format!("stage `{}` cannot start: {fault}", stage.name)));
                }
            }
        }
        let mut now = self.clock.now();
        told.set_up_ns = now - start;
        while let Ok(pass) = passes.recv() {
            ends.current = Some(pass.clone());
            while let Some(batch) = pass.window.begin(self.number) {
                let begun = self.clock.now();
                told.waited_ns += begun - now;
                let Some((fetch, read)) = this.fetched(&pass, batch) else {
                    pass.window.end();
                    break;
                };
                now = fetch.span.end;
                told.fetched_ns += now - begun;
                let made = self.made(fetch, read, &mut ops);
                now = made.at;
                told.worked_ns += now - made.fetch.span.end;
                pass.window.finish(batch, made);
            }
            ends.current = None;
        }
        told.span.end = self.clock.now();
        told.waited_ns += told.span.end - now;
        Ok(told)
    }

    /// Reads the items of a batch; `None` when cancelled. Reads run on the I/O runtime, so that this thread wakes once per batch
    /// and not once per item.
    fn fetched(self: &Arc<Self>, pass: &Arc<PassWork>, batch: u32) -> Option<(Fetch, Vec<ReadSample>)> {
        let (worker, pass) = (self.clone(), pass.clone());
        let reading =
            self.runtime.spawn(async move { worker.cancel.unless(worker.fetch(&pass, batch)).await });
        self.runtime.block_on(reading).unwrap_or_else(|ended| match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => None,
        })
    }

    async fn fetch(&self, pass: &PassWork, batch: u32) -> (Fetch, Vec<ReadSample>) {
        let first = batch as usize * pass.batch_size;
        let objects = &pass.order[first..pass.order.len().min(first + pass.batch_size)];
        let start = self.clock.now();
        let between = &Gauge::starting_at(start);
        let size = self.load.items_of_read() as usize;
        let firsts = (0..objects.len()).step_by(size);
        let mut found: Vec<_> = firsts.clone().map(|_| Vec::new()).collect();
        // Reads may complete in any order: with `buffered`, one slow read would keep later reads from starting.
        let mut reads = stream::iter(firsts)
            .map(|first| async move {
                let objects = &objects[first..objects.len().min(first + size)];
                (first, self.read(objects, start, pass, between).await)
            })
            .buffer_unordered(self.load.permits_of_worker() as usize);
        while let Some((first, read)) = reads.next().await {
            found[first / size] = read;
        }
        drop(reads);
        let (items, samples) = found.into_iter().flatten().unzip();
        let span = Span { start, end: self.clock.now() };
        let fetch = Fetch {
            batch,
            worker: self.number,
            span,
            between_ns: between.idle_until(span.end),
            items,
            stages: Vec::new(),
            lost_in_stages: 0,
        };
        (fetch, samples)
    }

    /// Reads these objects or samples by one read, and compares their bytes with those of the first read.
    async fn read(
        &self,
        numbers: &[u32],
        asked: Tick,
        pass: &PassWork,
        between: &Gauge,
    ) -> Vec<(ItemRead, ReadSample)> {
        let start = self.clock.now();
        for gauge in [&pass.gauge, between] {
            numbers.iter().for_each(|_| gauge.begin(start));
        }
        let (read, mut parts) = observe(self.subject.read(&self.store, numbers)).await;
        let came = self.clock.now();
        let objects = numbers.iter().map(|number| &self.subject.objects[*number as usize]);
        let is_same = |(object, read): (&SubjectObject, &ReadSample)| {
            read.as_ref().map_or(true, |sample| object.is_same(sample))
        };
        let same: Vec<bool> = objects.zip(&read).map(is_same).collect();
        let end = self.clock.now();
        for gauge in [&pass.gauge, between] {
            numbers.iter().for_each(|_| gauge.end(end));
        }
        if self.subject.samples.is_some() && parts.attempts > parts.retries + 1 {
            // The times of several requests do not add up to that of the read.
            parts = counts(parts);
        }
        parts.verify += Duration::from_nanos(end - came);
        let items = numbers.iter().zip(read).zip(same).enumerate();
        let items = items.map(|(place, ((number, read), is_same))| {
            let item = ItemRead {
                object: *number,
                permit_ns: start - asked,
                span: Span { start, end },
                bytes: read.as_ref().ok().map(Sample::bytes),
                is_same,
                parts: if place == 0 { parts } else { times(parts) },
            };
            (item, read)
        });
        items.collect()
    }

    fn made(&self, mut fetch: Fetch, read: Vec<ReadSample>, ops: &mut [(Takes, Box<dyn ThreadOp>)]) -> Made {
        let mut failures = Vec::new();
        let mut samples = Vec::with_capacity(read.len());
        let mut objects = Vec::with_capacity(read.len());
        for (item, read) in fetch.items.iter().zip(read) {
            match read {
                Ok(sample) => {
                    objects.push(item.object);
                    samples.push((item.object, sample));
                }
                Err(failure) => failures.push(failure),
            }
        }
        if !ops.is_empty() {
            self.pass_stages(&mut fetch, samples, ops, &mut failures);
        }
        Made { fetch, objects, at: self.clock.now(), failures }
    }

    /// Calls the stages that take samples for each sample, and then the stages that take batches for the whole batch.
    fn pass_stages(
        &self,
        fetch: &mut Fetch,
        samples: Vec<(u32, Sample)>,
        ops: &mut [(Takes, Box<dyn ThreadOp>)],
        failures: &mut Vec<ReadFailure>,
    ) {
        let gathers = ops.iter().position(|(takes, _)| *takes == Takes::Batch).unwrap_or(ops.len());
        let (of_samples, of_batches) = ops.split_at_mut(gathers);
        let mut batch = Vec::with_capacity(samples.len());
        let first = samples.first().map_or(0, |(object, _)| *object);
        for (object, sample) in samples {
            let mut items = vec![Item::Sample(sample)];
            for (place, (_, op)) in of_samples.iter_mut().enumerate() {
                items = self.called(op.as_mut(), place, items, fetch, object, failures);
            }
            batch.extend(items.into_iter().filter_map(|item| match item {
                Item::Sample(sample) => Some(sample),
                _ => None,
            }));
        }
        if of_batches.is_empty() || batch.is_empty() {
            return;
        }
        let mut items = vec![Item::Batch(batch)];
        for (place, (_, op)) in of_batches.iter_mut().enumerate() {
            items = self.called(op.as_mut(), gathers + place, items, fetch, first, failures);
        }
    }

    fn called(
        &self,
        op: &mut dyn ThreadOp,
        place: usize,
        items: Vec<Item>,
        fetch: &mut Fetch,
        object: u32,
        failures: &mut Vec<ReadFailure>,
    ) -> Vec<Item> {
        let mut made = Vec::with_capacity(items.len());
        for item in items {
            let start = self.clock.now();
            let Output { items, dropped, failed, .. } = op.apply(item, &self.cancel.flag);
            fetch.stages.push((u16::try_from(place).unwrap_or(u16::MAX), self.clock.now() - start));
            let lost = dropped + failed.len() as u64;
            fetch.lost_in_stages += u32::try_from(lost).unwrap_or(u32::MAX);
            failures.extend(failed.into_iter().map(|Failed { fault, .. }| ReadFailure {
                object: Some(object),
                what: FailedIn::Stage,
                message: format!("stage `{}`: {fault}", self.subject.stages[place].name),
            }));
            match items {
                Items::None => {}
                Items::One(item) => made.push(item),
                Items::Many(items) => made.extend(items),
            }
        }
        made
    }
}

/// Counts of requests, without times.
fn counts(parts: ReadParts) -> ReadParts {
    let ReadParts { attempts, retries, new_connections, .. } = parts;
    ReadParts { attempts, retries, new_connections, ..ReadParts::default() }
}

/// Times, without counts of requests.
fn times(parts: ReadParts) -> ReadParts {
    ReadParts { attempts: 0, retries: 0, new_connections: 0, ..parts }
}
