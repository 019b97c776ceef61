//! Execution of a load: warm-up, passes, workers, and the delivery of batches to a consumer.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use penstock_engine::clock::Clock;
use penstock_types::stats::Tick;
use tokio::runtime::Handle;

use crate::failures::Failures;
use crate::gauge::Gauge;
use crate::record::{BatchDelivery, Load, LoadPass, LoadRecord, LoadTimes, Span, WorkerLoop};
use crate::spec::{OnReadError, PageCache, WarmUpKind, WholeSet};
use crate::subject::Subject;
use crate::window::{BatchRules, BatchWindow};
use crate::worker::{Cancel, LoadWorker, PassWork};

/// Maximum wait before the stop flag is checked again.
const SLICE: Duration = Duration::from_millis(50);
/// Stack size of a worker; modules run on this stack.
const STACK_BYTES: usize = 4 << 20;

#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) runtime: Handle,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cancel: Cancel,
    pub(crate) cache: PageCache,
    pub(crate) on_error: OnReadError,
}

#[derive(Debug)]
pub(crate) struct LoadEnded {
    pub(crate) record: LoadRecord,
    pub(crate) failures: Failures,
    pub(crate) how: Result<(), BenchError>,
}

/// Reasons why a benchmark or one of its loads ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// Stopped by the user, or by the consumer of a load.
    #[error("the benchmark was stopped")]
    Stopped,
    /// Reason of the failure, as the report states it.
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    pub(crate) fn no_thread(what: &str, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot start a thread for {what}: {error}"))
    }
}

/// Consumer of the batches of the measured passes.
pub(crate) trait Consume {
    /// Takes a batch of `items` items that became ready at time `ready`; returns false to stop the load.
    fn take(&mut self, ready: Tick, items: usize) -> bool;

    /// Reports a pause without reads before a pass, in which the page cache was prepared and probed.
    fn pause(&mut self, _length: Duration) {}
}

impl<F: FnMut(Tick, usize) -> bool> Consume for F {
    fn take(&mut self, ready: Tick, items: usize) -> bool {
        self(ready, items)
    }
}

pub(crate) fn discard() -> impl Consume {
    |_: Tick, _: usize| true
}

struct Crew<'scope> {
    passes: Vec<SyncSender<Arc<PassWork>>>,
    threads: Vec<ScopedJoinHandle<'scope, Result<WorkerLoop, BenchError>>>,
}

impl Load {
    /// Loads of a grid in the order in which they run: by mode, then by number of workers. A read may take up to `joined` neighbouring
    /// items.
    pub(crate) fn grid(set: &WholeSet, joined: u32) -> Vec<Self> {
        let of = |mode| {
            set.workers.iter().map(move |workers| Self {
                mode,
                workers: *workers,
                in_flight: set.in_flight,
                batch_size: set.batch_size,
                prefetch: set.prefetch,
                assignment: set.assignment,
                persistent: set.persistent,
                joined,
            })
        };
        set.modes.iter().flat_map(|mode| of(*mode)).collect()
    }
}

impl Surroundings {
    pub(crate) fn run(
        &self,
        subject: &Subject,
        load: &Load,
        times: &LoadTimes,
        consume: &mut dyn Consume,
    ) -> LoadEnded {
        let start = self.clock.now();
        let mut failures = Failures::default();
        let worker = LoadWorker {
            number: 0,
            load: load.clone(),
            subject: subject.clone(),
            store: subject.store_with(load.permits() as usize),
            clock: self.clock.clone(),
            runtime: self.runtime.clone(),
            cancel: self.cancel.clone(),
        };
        let mut record = LoadRecord {
            load: load.clone(),
            sizes: subject.sizes(),
            span: Span { start, end: start },
            warm_up: Vec::new(),
            passes: Vec::new(),
            lasting: Vec::new(),
            inline: 0,
            items: subject.order(0).len() as u64,
            times: times.clone(),
        };
        let ended = thread::scope(|scope| {
            let one =
                Loading { surroundings: self, scope, worker: &worker, failures: &mut failures, consume };
            one.run(times, &mut record)
        });
        record.span.end = self.clock.now();
        let how = ended.map_err(|error| if self.cancel.is_cancelled() { BenchError::Stopped } else { error });
        LoadEnded { record, failures, how }
    }

    /// Fails if a load failed or was cancelled; a load stopped by its consumer succeeds.
    pub(crate) fn check(&self, how: Result<(), BenchError>) -> Result<(), BenchError> {
        match how {
            Err(error) if !matches!(error, BenchError::Stopped) => Err(error),
            _ if self.cancel.is_cancelled() => Err(BenchError::Stopped),
            _ => Ok(()),
        }
    }

    /// Waits until `at` or cancellation.
    pub(crate) fn wait_until(&self, at: Tick) {
        loop {
            let left = Duration::from_nanos(at - self.clock.now());
            if left.is_zero() || self.cancel.is_cancelled() {
                return;
            }
            thread::sleep(left.min(SLICE));
        }
    }

    /// Prepares the page cache as the document requires, and returns the share of the objects' bytes that it holds.
    fn cached(&self, subject: &Subject) -> Result<Option<f64>, BenchError> {
        let prepare = async {
            if self.cache == PageCache::Cold
                && let Err(error) = subject.forget().await
                // With `skip`, the load reports every object that cannot be read.
                && self.on_error == OnReadError::Fail
            {
                return Err(BenchError::Failed(error.with_causes()));
            }
            Ok(subject.cached_share().await)
        };
        self.runtime.block_on(self.cancel.unless(prepare)).unwrap_or(Err(BenchError::Stopped))
    }
}

struct Loading<'a, 'scope, 'env> {
    surroundings: &'a Surroundings,
    scope: &'scope Scope<'scope, 'env>,
    worker: &'a LoadWorker,
    failures: &'a mut Failures,
    consume: &'a mut dyn Consume,
}

impl<'scope> Loading<'_, 'scope, '_> {
    fn run(mut self, times: &LoadTimes, record: &mut LoadRecord) -> Result<(), BenchError> {
        let first = self.worker.subject.order(0);
        let batch_size = self.worker.load.batch_size as usize;
        match times.warm_up.how {
            WarmUpKind::Inline => {
                let wanted: u32 = times.warm_up.rounds.iter().sum();
                record.inline = wanted.min(batches(&first, batch_size));
            }
            WarmUpKind::Restart => {
                for wanted in &times.warm_up.rounds {
                    // A round reads exactly this many items; a set with fewer items is read repeatedly.
                    let items = *wanted as usize * batch_size;
                    let order: Arc<[u32]> = first.iter().copied().cycle().take(items).collect();
                    let (mut pass, loops) = self.with_crew(|this, crew| this.pass(crew, order, None))?;
                    pass.loops = loops;
                    record.warm_up.push(pass);
                }
            }
        }
        if self.worker.load.persistent {
            let (passes, loops) = self.with_crew(|this, crew| {
                let measured = |number| {
                    let cached = this.cached()?;
                    Ok(LoadPass { cached, ..this.measured(crew, number)? })
                };
                (0..times.passes).map(measured).collect::<Result<_, _>>()
            })?;
            (record.passes, record.lasting) = (passes, loops);
        } else {
            for number in 0..times.passes {
                // The cache is prepared before the workers start, so that the lifetimes of the workers do not include this time.
                let cached = self.cached()?;
                let (pass, loops) = self.with_crew(|this, crew| this.measured(crew, number))?;
                let pass = LoadPass { loops, cached, ..pass };
                record.passes.push(pass);
            }
        }
        Ok(())
    }

    fn cached(&mut self) -> Result<Option<f64>, BenchError> {
        let start = self.surroundings.clock.now();
        let cached = self.surroundings.cached(&self.worker.subject);
        self.consume.pause(Duration::from_nanos(self.surroundings.clock.now() - start));
        cached
    }

    fn measured(&mut self, crew: &Crew<'scope>, number: u32) -> Result<LoadPass, BenchError> {
        let order = self.worker.subject.order(number as usize);
        self.pass(crew, order, Some(number))
    }

    /// Runs one pass over the objects in `order`. A pass with a `number` is measured and delivers its batches to the consumer; a
    /// pass without one is a warm-up.
    fn pass(
        &mut self,
        crew: &Crew<'scope>,
        order: Arc<[u32]>,
        number: Option<u32>,
    ) -> Result<LoadPass, BenchError> {
        let Load { workers, prefetch, assignment, batch_size, .. } = self.worker.load;
        let (batch_size, clock) = (batch_size as usize, &self.surroundings.clock);
        let wanted = batches(&order, batch_size);
        let rules = BatchRules { batches: wanted, workers, prefetch, assignment };
        let (window, gauge) = (BatchWindow::new(rules), Gauge::default());
        let work = Arc::new(PassWork { order: order.clone(), batch_size, window, gauge });
        let start = clock.now();
        for worker in &crew.passes {
            if worker.send(work.clone()).is_err() {
                // The worker has already ended with an error, which is returned when the worker is joined.
                work.window.end();
            }
        }
        let mut span = Span { start, end: start };
        let (mut fetches, mut deliveries) = (Vec::new(), Vec::new());
        while let Some((batch, made)) = work.window.take() {
            let at = clock.now();
            span.end = at;
            let items = made.objects.len().saturating_sub(made.fetch.lost_in_stages as usize);
            deliveries.push(BatchDelivery { batch, at, objects: made.objects });
            fetches.push(made.fetch);
            if let Some(failure) =
                made.failures.first().filter(|_| self.surroundings.on_error == OnReadError::Fail)
            {
                let ending = BenchError::Failed(failure.message.clone());
                self.failures.add(&self.worker.subject, made.failures);
                work.window.end();
                return Err(ending);
            }
            self.failures.add(&self.worker.subject, made.failures);
            if number.is_some() && !self.consume.take(made.at, items) {
                work.window.end();
                return Err(BenchError::Stopped);
            }
        }
        if deliveries.len() < wanted as usize {
            let found = deliveries.len();
            return Err(BenchError::Failed(format!("a pass ended after {found} of {wanted} batches")));
        }
        let gauged = work.gauge.read();
        Ok(LoadPass { order, span, fetches, loops: Vec::new(), deliveries, gauged, cached: None })
    }

    /// Starts workers, runs `work` with them, and ends them. Returns the result of `work` and the records of the workers.
    fn with_crew<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &Crew<'scope>) -> Result<T, BenchError>,
    ) -> Result<(T, Vec<WorkerLoop>), BenchError> {
        let crew = Crew::start(self.scope, self.worker)?;
        let done = work(self, &crew);
        // The error of a worker that could not start comes first, since it explains more than the error of the pass.
        let loops = crew.dismiss()?;
        Ok((done?, loops))
    }
}

impl<'scope> Crew<'scope> {
    fn start(scope: &'scope Scope<'scope, '_>, worker: &LoadWorker) -> Result<Self, BenchError> {
        let mut crew = Self { passes: Vec::new(), threads: Vec::new() };
        for number in 0..worker.load.workers {
            let worker = LoadWorker { number, ..worker.clone() };
            let (sender, passes) = sync_channel(1);
            let thread = Builder::new()
                .name(format!("worker/{number}"))
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || worker.run(&passes));
            crew.threads
                .push(thread.map_err(|error| BenchError::no_thread(&format!("worker {number}"), &error))?);
            crew.passes.push(sender);
        }
        Ok(crew)
    }

    /// Ends the workers and joins them.
    fn dismiss(self) -> Result<Vec<WorkerLoop>, BenchError> {
        drop(self.passes);
        // All threads are joined before the first error is returned.
        let told: Vec<_> = self.threads.into_iter().map(ScopedJoinHandle::join).collect();
        let panicked = "a worker panicked, which is a bug; see its message above";
        told.into_iter()
            .map(|told| told.unwrap_or_else(|_| Err(BenchError::Failed(panicked.to_owned()))))
            .collect()
    }
}

fn batches(order: &[u32], batch_size: usize) -> u32 {
    u32::try_from(order.len().div_ceil(batch_size)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_engine::clock::MonotonicClock;
    use tokio::runtime::Runtime;

    use super::*;
    use crate::spec::{Assignment, LoadMode, MemorySource, WarmUp};

    /// Calls that a consumer received: the number of items of a batch, or `None` for a pause.
    #[derive(Default)]
    struct Calls(Vec<Option<usize>>);

    impl Consume for Calls {
        fn take(&mut self, _: Tick, items: usize) -> bool {
            self.0.push(Some(items));
            true
        }

        fn pause(&mut self, _: Duration) {
            self.0.push(None);
        }
    }

    #[test]
    fn a_consumer_is_notified_of_every_pass_before_its_first_batch() {
        let runtime = Runtime::new().unwrap();
        let source =
            MemorySource { count: 5.try_into().unwrap(), bytes: 10, latency_ms: None, shuffle: false };
        let subject = runtime.block_on(Subject::memory(&source, 0, 1)).unwrap();
        let surroundings = Surroundings {
            runtime: runtime.handle().clone(),
            clock: Arc::new(MonotonicClock::start()),
            cancel: Cancel::default(),
            cache: PageCache::Cold,
            on_error: OnReadError::Fail,
        };
        for persistent in [true, false] {
            let load = Load {
                mode: LoadMode::Sync,
                workers: 1,
                in_flight: 1,
                batch_size: 3,
                prefetch: 1,
                assignment: Assignment::Static,
                persistent,
                joined: 1,
            };
            let times = LoadTimes { warm_up: WarmUp::default(), passes: 2 };
            let mut calls = Calls::default();
            let ended = surroundings.run(&subject, &load, &times, &mut calls);
            assert!(ended.how.is_ok());
            assert_eq!(calls.0, [None, Some(3), Some(2), None, Some(3), Some(2)]);
        }
    }
}
