//! Runs a load: warm-up, passes, workers, and the hand-over to a consumer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use penstock_engine::clock::Clock;
use penstock_types::stats::Tick;
use tokio::runtime::Handle;

use crate::failures::Failures;
use crate::gauge::Gauge;
use crate::record::{Asked, Delivery, Load, LoadRecord, Pass, Span, WorkerLoop};
use crate::spec::{Cache, OnReadError, WarmUp, WarmUpKind, WholeSet};
use crate::subject::Subject;
use crate::window::{Rules, Window};
use crate::worker::{Cancel, PassWork, Worker};

/// Longest wait before the stop flag is looked at again.
const SLICE: Duration = Duration::from_millis(50);
/// Stack of a worker: modules run on it.
const STACK_BYTES: usize = 4 << 20;

#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) runtime: Handle,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cancel: Cancel,
    pub(crate) cache: Cache,
    pub(crate) on_error: OnReadError,
}

#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) warm_up: WarmUp,
    pub(crate) passes: u32,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) record: LoadRecord,
    pub(crate) failures: Failures,
    pub(crate) how: Ending,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed,
    /// Stopped by the user or the consumer.
    Stopped,
    Failed(String),
}

/// Receives the batches of the measured passes.
pub(crate) trait Consume {
    /// Takes a batch of `items` items that was ready at that moment; returns false when no more are wanted.
    fn take(&mut self, ready: Tick, items: usize) -> bool;

    /// Reports `length` without reads before a pass, while the page cache was prepared and probed.
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
    threads: Vec<ScopedJoinHandle<'scope, Result<WorkerLoop, String>>>,
}

impl Load {
    /// The loads of a grid in the order in which they run: by mode, then by number of workers.
    pub(crate) fn grid(set: &WholeSet) -> Vec<Self> {
        let of = |mode| {
            set.workers.iter().map(move |workers| Self {
                mode,
                workers: *workers,
                in_flight: set.in_flight,
                batch_size: set.batch_size,
                prefetch: set.prefetch,
                assignment: set.assignment,
                persistent: set.persistent,
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
        times: &Times,
        consume: &mut dyn Consume,
    ) -> Ended {
        let start = self.clock.now();
        let mut failures = Failures::default();
        let reads = NonZeroUsize::new(load.permits() as usize).unwrap_or(NonZeroUsize::MIN);
        let worker = Worker {
            number: 0,
            load: load.clone(),
            subject: subject.clone(),
            store: subject.store.with_reads(reads),
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
            asked: Asked {
                items: subject.order(0).len() as u64,
                passes: times.passes,
                warm_up: times.warm_up.clone(),
            },
        };
        let ended = thread::scope(|scope| {
            let one =
                Loading { surroundings: self, scope, worker: &worker, failures: &mut failures, consume };
            one.run(times, &mut record)
        });
        record.span.end = self.clock.now();
        let how = match ended {
            Ok(()) => Ending::Completed,
            Err(how) if self.cancel.is_cancelled() && how != Ending::Stopped => Ending::Stopped,
            Err(how) => how,
        };
        Ended { record, failures, how }
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

    /// Prepares the page cache as the document wants it, and returns the share of the objects in it.
    fn cached(&self, subject: &Subject) -> Result<Option<f64>, Ending> {
        let forget = || async {
            match self.cache {
                Cache::Warm => Ok(false),
                Cache::Cold => match subject.forget().await {
                    // The load that needs the object tells what is wrong with it.
                    Err(_) if self.on_error == OnReadError::Skip => Ok(false),
                    forgotten => forgotten.map_err(|error| Ending::Failed(error.with_causes())),
                },
            }
        };
        let prepare = async {
            forget().await?;
            Ok(subject.cached_share().await)
        };
        self.runtime.block_on(self.cancel.unless(prepare)).unwrap_or(Err(Ending::Stopped))
    }
}

struct Loading<'a, 'scope, 'env> {
    surroundings: &'a Surroundings,
    scope: &'scope Scope<'scope, 'env>,
    worker: &'a Worker,
    failures: &'a mut Failures,
    consume: &'a mut dyn Consume,
}

impl<'scope> Loading<'_, 'scope, '_> {
    fn run(mut self, times: &Times, record: &mut LoadRecord) -> Result<(), Ending> {
        let first = self.worker.subject.order(0);
        let batch_size = self.worker.load.batch_size as usize;
        match times.warm_up.how {
            WarmUpKind::Inline => {
                let wanted: u32 = times.warm_up.rounds.iter().sum();
                record.inline = wanted.min(batches(&first, batch_size));
            }
            WarmUpKind::Restart => {
                for wanted in &times.warm_up.rounds {
                    // Exactly so many: a set that is shorter is gone through again.
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
                    Ok(Pass { cached, ..this.measured(crew, number)? })
                };
                (0..times.passes).map(measured).collect::<Result<_, _>>()
            })?;
            (record.passes, record.lasting) = (passes, loops);
        } else {
            for number in 0..times.passes {
                // Before the workers live: their time is for reading.
                let cached = self.cached()?;
                let (pass, loops) = self.with_crew(|this, crew| this.measured(crew, number))?;
                let pass = Pass { loops, cached, ..pass };
                record.passes.push(pass);
            }
        }
        Ok(())
    }

    fn cached(&mut self) -> Result<Option<f64>, Ending> {
        let start = self.surroundings.clock.now();
        let cached = self.surroundings.cached(&self.worker.subject);
        self.consume.pause(Duration::from_nanos(self.surroundings.clock.now() - start));
        cached
    }

    fn measured(&mut self, crew: &Crew<'scope>, number: u32) -> Result<Pass, Ending> {
        let order = self.worker.subject.order(number as usize);
        self.pass(crew, order, Some(number))
    }

    /// Runs one pass over an order; a pass with a `number` is measured and goes to the consumer.
    fn pass(&mut self, crew: &Crew<'scope>, order: Arc<[u32]>, number: Option<u32>) -> Result<Pass, Ending> {
        let Load { workers, prefetch, assignment, batch_size, .. } = self.worker.load;
        let (batch_size, clock) = (batch_size as usize, &self.surroundings.clock);
        let wanted = batches(&order, batch_size);
        let rules = Rules { batches: wanted, workers, prefetch, assignment };
        let (window, gauge) = (Window::new(rules), Gauge::default());
        let work = Arc::new(PassWork { order: order.clone(), batch_size, window, gauge });
        let start = clock.now();
        for worker in &crew.passes {
            if worker.send(work.clone()).is_err() {
                // It is gone, and tells why when it is dismissed.
                work.window.end();
            }
        }
        let mut span = Span { start, end: start };
        let (mut fetches, mut deliveries) = (Vec::new(), Vec::new());
        while let Some((batch, made)) = work.window.take() {
            let at = clock.now();
            span.end = at;
            let items = made.objects.len().saturating_sub(made.fetch.lost_in_stages as usize);
            deliveries.push(Delivery { batch, at, objects: made.objects });
            fetches.push(made.fetch);
            if let Some(failure) =
                made.failures.first().filter(|_| self.surroundings.on_error == OnReadError::Fail)
            {
                let ending = Ending::Failed(failure.message.clone());
                self.failures.add(&self.worker.subject, made.failures);
                work.window.end();
                return Err(ending);
            }
            self.failures.add(&self.worker.subject, made.failures);
            if number.is_some() && !self.consume.take(made.at, items) {
                work.window.end();
                return Err(Ending::Stopped);
            }
        }
        if deliveries.len() < wanted as usize {
            let what = format!("a pass ended after {} of its {wanted} batches", deliveries.len());
            return Err(Ending::Failed(what));
        }
        let gauged = work.gauge.read();
        Ok(Pass { order, span, fetches, loops: Vec::new(), deliveries, gauged, cached: None })
    }

    /// Does `work` with workers that live as long as it takes; returns their records, too.
    fn with_crew<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &Crew<'scope>) -> Result<T, Ending>,
    ) -> Result<(T, Vec<WorkerLoop>), Ending> {
        let crew = Crew::start(self.scope, self.worker)?;
        let done = work(self, &crew);
        // Why a worker could not start says more than that its pass came to nothing.
        let loops = crew.dismiss()?;
        Ok((done?, loops))
    }
}

impl<'scope> Crew<'scope> {
    fn start(scope: &'scope Scope<'scope, '_>, worker: &Worker) -> Result<Self, Ending> {
        let mut crew = Self { passes: Vec::new(), threads: Vec::new() };
        for number in 0..worker.load.workers {
            let worker = Worker { number, ..worker.clone() };
            let (sender, passes) = sync_channel(1);
            let thread = Builder::new()
                .name(format!("worker/{number}"))
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, move || worker.run(&passes));
            let thread = thread.map_err(|error| {
                Ending::Failed(format!("the system gives no thread for worker {number}: {error}"))
            })?;
            crew.passes.push(sender);
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    /// Lets the workers end and joins them.
    fn dismiss(self) -> Result<Vec<WorkerLoop>, Ending> {
        drop(self.passes);
        let told = self.threads.into_iter().map(|thread| match thread.join() {
            Ok(told) => told.map_err(Ending::Failed),
            Err(_) => {
                Err(Ending::Failed("a worker panicked, which is a bug; its words stand above".to_owned()))
            }
        });
        // All of them are joined, whichever failed.
        told.collect::<Vec<_>>().into_iter().collect()
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
    use crate::spec::{Assignment, MemorySource, Mode};

    /// What a consumer was told: the items of a batch, or `None` for a pause.
    #[derive(Default)]
    struct Told(Vec<Option<usize>>);

    impl Consume for Told {
        fn take(&mut self, _: Tick, items: usize) -> bool {
            self.0.push(Some(items));
            true
        }

        fn pause(&mut self, _: Duration) {
            self.0.push(None);
        }
    }

    #[test]
    fn a_consumer_hears_of_every_pass_before_its_first_batch() {
        let runtime = Runtime::new().unwrap();
        let source =
            MemorySource { count: 5.try_into().unwrap(), bytes: 10, latency_ms: None, shuffle: false };
        let subject = runtime.block_on(Subject::memory(&source, 0, 1)).unwrap();
        let surroundings = Surroundings {
            runtime: runtime.handle().clone(),
            clock: Arc::new(MonotonicClock::start()),
            cancel: Cancel::default(),
            cache: Cache::Cold,
            on_error: OnReadError::Fail,
        };
        for persistent in [true, false] {
            let load = Load {
                mode: Mode::Sync,
                workers: 1,
                in_flight: 1,
                batch_size: 3,
                prefetch: 1,
                assignment: Assignment::Static,
                persistent,
            };
            let times = Times { warm_up: WarmUp::default(), passes: 2 };
            let mut told = Told::default();
            let ended = surroundings.run(&subject, &load, &times, &mut told);
            assert_eq!(ended.how, Ending::Completed);
            assert_eq!(told.0, [None, Some(3), Some(2), None, Some(3), Some(2)]);
        }
    }
}
