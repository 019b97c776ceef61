//! A running pipeline: its threads and tasks, the owner thread that joins them, and the end of the run.

use std::io;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use futures::FutureExt;
use penstock_types::ledger::Ledger;
use penstock_types::resume::Progress;
use penstock_types::run::{FailureGroup, QueueRecord, RunState, StageRecord};
use penstock_types::stats::Tick;
use penstock_types::text::with_causes;
use tokio::runtime::Handle;

use crate::clock::Clock;
pub use crate::dispatch::StopReason;
use crate::dispatch::{Dispatcher, OwnerGuard, PanicGuard};
use crate::graph::Graph;
use crate::handed::Handed;
use crate::item::{Item, Origin};
use crate::lock::locked;
use crate::ports::{Consumer, Fault, Observer, Source};
use crate::record::Recorder;
pub use crate::schedule::{Resize, ResizeFault};
use crate::schedule::{RunError, SinkDelivery};
use crate::worker::run_worker;

#[derive(Clone, Debug)]
pub struct RunView {
    pub state: RunState,
    pub error: Option<String>,
    pub elapsed: Duration,
    pub expected: Option<u64>,
    pub stages: Vec<StageRecord>,
    pub queues: Vec<QueueRecord>,
    pub ledger: Ledger,
    /// Failures by group, most frequent first.
    pub failures: Vec<FailureGroup>,
    pub failures_not_listed: u64,
}

/// A running pipeline. One owner thread starts all other threads and joins them.
#[derive(Debug)]
pub struct Running {
    handle: RunHandle,
    owner: JoinHandle<RunView>,
}

/// Result of taking an item from a run without a consumer.
#[derive(Debug)]
pub enum Taken {
    Item(Item),
    /// No item arrived within the given time.
    NotYet,
    /// The run has no more items.
    Over,
}

/// Handle to a run that can be cloned and used from any thread.
#[derive(Clone, Debug)]
pub struct RunHandle {
    dispatcher: Arc<Dispatcher>,
    recorder: Arc<Recorder>,
}

impl Graph {
    /// Starts the pipeline. Ops that wait run on `runtime`; everything else runs on its own threads. Fails if the system does not
    /// start the owner thread.
    pub fn start(
        self,
        runtime: Handle,
        clock: Arc<dyn Clock>,
        observers: Vec<Arc<dyn Observer>>,
    ) -> io::Result<Running> {
        let recorder = Arc::new(Recorder::of(&self.chain));
        let dispatcher = Arc::new(Dispatcher::new(&self, runtime, clock, observers));
        let handle = RunHandle { dispatcher, recorder };
        let owner = {
            let handle = handle.clone();
            Builder::new().name(format!("run {}", self.name)).spawn(move || {
                let _guard = OwnerGuard(handle.dispatcher.clone());
                handle.run_to_end(self)
            })?
        };
        Ok(Running { handle, owner })
    }
}

impl Running {
    pub fn handle(&self) -> RunHandle {
        self.handle.clone()
    }

    /// Waits until the run is over and all its threads have ended.
    pub fn wait(self) -> RunView {
        match self.owner.join() {
            Ok(view) => view,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl RunHandle {
    /// Ends the run immediately: guests are interrupted, and samples that are still in the pipeline count as left.
    pub fn stop(&self, reason: StopReason) {
        self.dispatcher.change(|state| {
            if !state.schedule.is_over() {
                state.stopped = Some(reason);
                match reason {
                    StopReason::Asked => state.schedule.stop(),
                    StopReason::TimeIsUp => state.schedule.time_is_up(),
                }
            }
        });
    }

    /// Ends the run immediately as failed with this error. Has no effect on a run that is over.
    pub fn fail(&self, error: String) {
        self.dispatcher.event(|schedule, _| schedule.fail_unless_over(error));
    }

    /// Changes a setting of the run. Has no effect on a run that is over.
    pub fn resize(&self, change: Resize<'_>) -> Result<(), ResizeFault> {
        self.dispatcher.resize(change)
    }

    /// Waits until the run is over, but not longer than `most`. Returns true if the run is over; threads may still be ending.
    pub fn wait_for(&self, most: Duration) -> bool {
        self.dispatcher.wait_until(self.after(most), |state| state.schedule.is_over())
    }

    /// Waits until the run is over and all its threads have ended, but not longer than `most`. Returns true if all threads have
    /// ended; then [`Running::wait`] returns without waiting.
    pub fn ended_within(&self, most: Duration) -> bool {
        self.dispatcher.wait_until(self.after(most), |state| state.owner_ended)
    }

    /// Takes the next item of a graph without a consumer from the sink queue, on the calling thread, if one arrives within
    /// `most`. Several threads may call this method. The run ends once it has no more items.
    pub fn take(&self, most: Duration) -> Taken {
        let until = Some(self.after(most));
        match self.dispatcher.deliver(until, 1, &mut Vec::new(), &mut Handed::default(), || {}) {
            SinkDelivery::Item(item) => Taken::Item(item),
            SinkDelivery::Wait => Taken::NotYet,
            SinkDelivery::Ended => {
                self.dispatcher.event(|schedule, _| schedule.consumer_done(Ok(()), 0));
                Taken::Over
            }
            SinkDelivery::Over => Taken::Over,
        }
    }

    /// Records that an item that was taken, with these samples, is handed out to the user: a resumed run does not repeat it.
    pub fn hand_out(&self, samples: &[Origin]) {
        self.dispatcher.lock().schedule.hand_out(1, samples);
    }

    /// Counts samples that were taken, and that the user has not got, as left.
    pub fn take_back(&self, samples: u64) {
        self.dispatcher.event(|schedule, _| schedule.take_back(samples));
    }

    /// Ends the run as completed because another rank has no more batches: all that is left is discarded, and settled. Has no effect on a run
    /// that was stopped.
    pub fn end_together(&self) {
        self.dispatcher.change(|state| {
            if state.stopped.is_none() {
                state.schedule.end_together(state.expected);
            }
        });
    }

    /// Samples settled so far: handed out, left out on purpose, or failed. `None` if the state certainly has more than `most_bytes`.
    pub fn progress(&self, most_bytes: u64) -> Option<Progress> {
        let mut state = self.dispatcher.lock();
        let data = state.data;
        state.schedule.progress(data, most_bytes)
    }

    pub fn view(&self) -> RunView {
        let (now, (error, ledger)) =
            self.dispatcher.read(|schedule| (schedule.error().map(str::to_owned), schedule.ledger()));
        // The lock is free again behind this statement: failures are grouped while the view is made.
        let (failures, failures_not_listed) = locked(&self.dispatcher.failures).listed();
        RunView {
            state: now.state,
            error,
            elapsed: Duration::from_nanos(now.sums.at - Tick::ZERO),
            expected: now.expected,
            stages: self.recorder.stages(&now.sums.stages, &now.sums.concurrency),
            queues: self.recorder.queues(&now.sums.queues, &now.sums.concurrency, &now.sums.capacity),
            ledger,
            failures,
            failures_not_listed,
        }
    }

    fn after(&self, time: Duration) -> Tick {
        self.dispatcher.clock.now().after(time)
    }

    /// Starts all other threads, reports statistics to the observers until the run is over, and joins the threads.
    fn run_to_end(&self, graph: Graph) -> RunView {
        let ops = Arc::new(graph.factories());
        let workers = if ops.iter().any(Option::is_some) { graph.threads } else { 0 };
        let stack_bytes = graph.stack_bytes;
        let interval = graph.interval;
        let mut threads = Vec::with_capacity(workers + 1);
        let mut spawn = |name: String, stack: usize, work: Box<dyn FnOnce() + Send>| match Builder::new()
            .name(name.clone())
            .stack_size(stack)
            .spawn(work)
        {
            Ok(thread) => threads.push(thread),
            Err(error) => self.dispatcher.fail(format!("cannot start the thread `{name}`: {error}")),
        };
        for worker in 0..workers {
            let (dispatcher, ops) = (self.dispatcher.clone(), ops.clone());
            spawn(
                format!("worker/{worker}"),
                stack_bytes,
                Box::new(move || run_worker(&dispatcher, &ops, worker)),
            );
        }
        let Graph { source, consumer, .. } = graph;
        if let Some(consumer) = consumer {
            let dispatcher = self.dispatcher.clone();
            let drain = move || run_consumer(&dispatcher, consumer);
            spawn("consumer".into(), CONSUMER_STACK_BYTES, Box::new(drain));
        }
        self.dispatcher.spawn(run_source(self.dispatcher.clone(), source));

        self.keep_time(interval);
        for thread in threads {
            if thread.join().is_err() {
                self.dispatcher.fail("a thread of the run panicked; this is a defect of Penstock".into());
            }
        }
        self.dispatcher.join_tasks();
        self.dispatcher.close_books();
        self.view()
    }

    /// Reads the run's sums at the end of every window and of the run, and at least every 250 ms, and reports the difference from
    /// the previous reading to the observers.
    fn keep_time(&self, interval: Duration) {
        let (mut windows, mut pulses) = (Grid::of(interval), Grid::of(interval.min(PULSE)));
        // Readings start from zero: source and consumer are already running, and their work so far belongs to the first window.
        let mut at_window = self.recorder.nothing();
        let mut before = self.recorder.nothing();
        loop {
            let border = windows.border.min(pulses.border);
            let over = self.dispatcher.wait_until(border, |state| state.schedule.is_over());
            let (run, ()) = self.dispatcher.read(|_| ());
            let now = &run.sums;
            if now.at > before.at {
                let sums = self.recorder.sums(&before, &run);
                self.dispatcher.observers.iter().for_each(|observer| observer.on_sums(&sums));
            }
            if (over || now.at >= windows.border) && now.at > at_window.at {
                let window = self.recorder.window(&at_window, now);
                self.dispatcher.observers.iter().for_each(|observer| observer.on_window(&window));
                at_window = now.clone();
            }
            windows.pass(now.at);
            pulses.pass(now.at);
            before = run.sums;
            if over {
                return;
            }
        }
    }
}

/// Maximum time between two readings of the run's sums.
const PULSE: Duration = Duration::from_millis(250);

/// Consecutive intervals of equal length from the start of the run.
struct Grid {
    step: Duration,
    /// End of the current interval.
    border: Tick,
}

impl Grid {
    fn of(step: Duration) -> Self {
        Self { step, border: Tick::ZERO.after(step) }
    }

    /// Moves on to the first interval that ends after `now`; skips intervals that ended during a stall.
    fn pass(&mut self, now: Tick) {
        while self.border <= now {
            self.border = self.border.after(self.step);
        }
    }
}

/// Stack of the consumer's thread in bytes. Built-in consumers need little stack, but the binding to a training loop may need
/// more.
const CONSUMER_STACK_BYTES: usize = 2 << 20;

fn run_consumer(dispatcher: &Arc<Dispatcher>, mut consumer: Box<dyn Consumer>) {
    let _guard = PanicGuard(dispatcher.clone());
    let fail = |message| dispatcher.event(|schedule, _| schedule.fail_unless_over(message));
    let (most, mut more) = (consumer.takes_at_once(), Vec::new());
    let completes_later = consumer.completed().is_some();
    let mut handed = Handed::default();
    while let SinkDelivery::Item(item) =
        dispatcher.deliver(None, most, &mut more, &mut handed, || consumer.taken())
    {
        for item in iter::once(item).chain(more.drain(..)) {
            if completes_later {
                handed.take(&item);
            }
            match catch_unwind(AssertUnwindSafe(|| consumer.consume(item, &dispatcher.stop))) {
                Ok(Ok(())) => {}
                Ok(Err(fault)) => fail(cannot_continue(&fault)),
                // The panic may have left the consumer in an inconsistent state, so `finish` is not called.
                Err(panic) => return fail(format!("the consumer {}", Fault::of_panic(&*panic).message)),
            }
            handed.complete(consumer.completed().unwrap_or(0));
        }
    }
    let ending = dispatcher.ending();
    match catch_unwind(AssertUnwindSafe(|| consumer.finish(ending, &dispatcher.stop))) {
        Ok(finished) => {
            let finished = finished.map_err(|fault| RunError(cannot_continue(&fault)));
            let unfinished = consumer.unfinished();
            handed.complete(consumer.completed().unwrap_or(0));
            dispatcher.event(|schedule, _| {
                handed.settle(schedule);
                schedule.consumer_done(finished, unfinished);
            });
        }
        Err(panic) => dispatcher.fail(format!("the consumer {}", Fault::of_panic(&*panic).message)),
    }
}

/// Runs the source until the data ends. The source makes one chunk ahead of demand.
async fn run_source(dispatcher: Arc<Dispatcher>, mut source: Box<dyn Source>) {
    let _guard = PanicGuard(dispatcher.clone());
    loop {
        let produced = match AssertUnwindSafe(source.next()).catch_unwind().await {
            Ok(produced) => {
                produced.map_err(|fault| format!("the source cannot continue: {}", with_causes(&fault)))
            }
            Err(panic) => Err(Fault::of_panic(&*panic).message.to_string()),
        }
        .map_err(RunError);
        if !dispatcher.offer(produced, source.total(), source.data(), source.kept_bytes()).await {
            return;
        }
    }
}

fn cannot_continue(fault: &Fault) -> String {
    format!("the consumer cannot continue: {}", fault.message)
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroUsize};
    use std::sync::mpsc;
    use std::thread;

    use futures::channel::oneshot;
    use futures::future::{BoxFuture, pending};
    use penstock_types::policy::{Capacity, Concurrency, OnError, Order, StageKindName};
    use penstock_types::traversal::{Traversal, TraversalSettings};
    use tokio::runtime::Runtime;

    use super::*;
    use crate::clock::MonotonicClock;
    use crate::consumers::Discard;
    use crate::graph::{Chain, GraphNode, StageNode, StageOp};
    use crate::item::Sample;
    use crate::ports::{Output, Produced, SourceFault, StopFlag, ThreadOp, ThreadOpFactory};
    use crate::range::RangeSource;
    use crate::stage_work::StageWork;

    /// Timeout longer than any wait in a passing test.
    const LONG: Duration = Duration::from_secs(60);

    struct Silent;

    impl Source for Silent {
        fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
            pending().boxed()
        }
    }

    fn node(name: &str) -> GraphNode {
        GraphNode {
            id: name.to_owned(),
            name: name.to_owned(),
            queue_id: format!("{name}_queue"),
            capacity: Capacity::new(2).unwrap(),
        }
    }

    /// A source that receives a number from the channel, makes this number of samples, then waits forever.
    struct Late(Option<oneshot::Receiver<u64>>);

    impl Source for Late {
        fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
            async {
                let Some(told) = self.0.take() else { return pending().await };
                let samples = (0..told.await.unwrap())
                    .map(|index| Sample::new("", Origin { index, ..Origin::default() }));
                Ok(Some(Produced::Samples(samples.collect())))
            }
            .boxed()
        }
    }

    /// A consumer that returns from an item only after it receives a message; ignores the stop flag.
    struct Stubborn {
        begun: mpsc::Sender<()>,
        told: mpsc::Receiver<()>,
    }

    impl Consumer for Stubborn {
        fn consume(&mut self, _: Item, _: &StopFlag) -> Result<(), Fault> {
            self.begun.send(()).unwrap();
            self.told.recv().unwrap();
            Ok(())
        }
    }

    /// An op that takes between 0 and 100 us, so that some waits for it are spent spinning and others sleeping.
    struct Uneven;

    impl ThreadOpFactory for Uneven {
        fn build(&self, _: &StopFlag) -> Result<Box<dyn ThreadOp>, Fault> {
            Ok(Box::new(Self))
        }
    }

    impl ThreadOp for Uneven {
        fn apply(&mut self, item: Item, _: &StopFlag) -> Output {
            let index = item.first().map_or(0, |(_, origin)| origin.index);
            if index.is_multiple_of(7) {
                thread::sleep(Duration::from_micros(index % 100));
            }
            Output::one(item)
        }
    }

    fn stage(position: usize, concurrency: u32, stateful: bool) -> StageNode<StageOp> {
        let concurrency = Concurrency::new(concurrency).unwrap();
        let work = StageWork::Op(StageOp::Threads {
            factory: Arc::new(Uneven),
            concurrency,
            order: Order::Input,
            stateful,
        });
        StageNode {
            node: node(&format!("stage-{position}")),
            kind: StageKindName::Wasm,
            on_error: OnError::Skip,
            max_failures: None,
            keeps_size: false,
            work,
        }
    }

    /// Starts a pipeline without a consumer, from which the test takes the items.
    fn start_without_consumer(runtime: &Runtime, source: impl Source + 'static) -> Running {
        started(runtime, source, None)
    }

    fn graph(
        source: impl Source + 'static,
        stages: Vec<StageNode<StageOp>>,
        consumer: Option<Box<dyn Consumer>>,
    ) -> Graph {
        Graph {
            name: "test".to_owned(),
            source: Box::new(source),
            source_on_error: OnError::Skip,
            threads: stages.len().max(1),
            chain: Chain { source: node("source"), stages, routes: Vec::new(), sink: node("sink") },
            consumer,
            stack_bytes: 1 << 20,
            buffer_bytes: u64::MAX,
            known: Vec::new(),
            kept: penstock_types::resume::Kept::default(),
            max_failures: None,
            all_may_fail_before: 0,
            interval: Duration::from_secs(1),
            measured: true,
        }
    }

    fn started(
        runtime: &Runtime,
        source: impl Source + 'static,
        consumer: Option<Box<dyn Consumer>>,
    ) -> Running {
        graph(source, Vec::new(), consumer)
            .start(runtime.handle().clone(), Arc::new(MonotonicClock::start()), Vec::new())
            .unwrap()
    }

    #[test]
    fn taking_all_items_ends_the_run() {
        let runtime = Runtime::new().unwrap();
        let settings = TraversalSettings { epochs: NonZeroU32::new(1), ..TraversalSettings::IN_ORDER };
        let running =
            start_without_consumer(&runtime, RangeSource::new(Traversal::new(5, settings).unwrap()));
        let handle = running.handle();
        for _ in 0..5 {
            assert!(matches!(handle.take(LONG), Taken::Item(_)));
        }
        assert!(matches!(handle.take(LONG), Taken::Over));
        let view = running.wait();
        assert_eq!((view.state, view.ledger.total.delivered), (RunState::Completed, 5));
        assert!(matches!(handle.take(LONG), Taken::Over));
    }

    /// Starts a run of 20,000 samples with three threads.
    fn three_stages(runtime: &Runtime) -> Running {
        let settings = TraversalSettings { epochs: NonZeroU32::new(1), ..TraversalSettings::IN_ORDER };
        let source = RangeSource::new(Traversal::new(20_000, settings).unwrap());
        let stages = vec![stage(1, 3, false), stage(2, 1, true), stage(3, 2, false)];
        let graph = graph(source, stages, Some(Box::new(Discard)));
        let clock = Arc::new(MonotonicClock::start());
        graph.start(runtime.handle().clone(), clock, Vec::new()).unwrap()
    }

    #[test]
    fn no_call_is_lost_while_the_settings_of_a_run_change() {
        let runtime = Runtime::new().unwrap();
        let running = three_stages(&runtime);
        let handle = running.handle();
        let mut rounds = 0;
        while !handle.wait_for(Duration::from_micros(50)) {
            let number = 1 + rounds % 5;
            let concurrency = Concurrency::new(number).unwrap();
            let changes = [
                Resize::Workers(NonZeroUsize::new(1 + rounds as usize % 3).unwrap()),
                Resize::Concurrency(["stage-1", "stage-3"][rounds as usize / 5 % 2], concurrency),
                Resize::Capacity("stage-1_queue", Capacity::new(number).unwrap()),
            ];
            changes.into_iter().for_each(|change| handle.resize(change).unwrap());
            rounds += 1;
            assert!(rounds < 500_000, "{:?}", handle.view());
        }
        let view = running.wait();
        assert_eq!((view.state, view.ledger.total.delivered), (RunState::Completed, 20_000));
    }

    #[test]
    fn no_call_is_lost_between_threads_that_spin_and_threads_that_sleep() {
        let runtime = Runtime::new().unwrap();
        let running = three_stages(&runtime);
        assert!(running.handle().ended_within(LONG), "{:?}", running.handle().view());
        assert_eq!(running.wait().ledger.total.delivered, 20_000);
    }

    #[test]
    fn every_waiting_thread_is_woken_for_an_item() {
        let runtime = Runtime::new().unwrap();
        let (tell, told) = oneshot::channel();
        let running = start_without_consumer(&runtime, Late(Some(told)));
        let handle = running.handle();
        thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| handle.take(LONG)));
            while handle.dispatcher.lock().takers < 2 {
                thread::yield_now();
            }
            // Both samples arrive at once and cause a single wake-up.
            tell.send(2).unwrap();
            for taker in waiting {
                assert!(matches!(taker.join().unwrap(), Taken::Item(_)));
            }
        });
        handle.stop(StopReason::Asked);
        assert_eq!(running.wait().ledger.total.delivered, 2);
    }

    #[test]
    fn a_run_that_is_over_has_ended_only_after_its_threads_have() {
        let runtime = Runtime::new().unwrap();
        let settings = TraversalSettings { epochs: NonZeroU32::new(1), ..TraversalSettings::IN_ORDER };
        let source = RangeSource::new(Traversal::new(1, settings).unwrap());
        let ((begun, has_begun), (tell, told)) = (mpsc::channel(), mpsc::channel());
        let running = started(&runtime, source, Some(Box::new(Stubborn { begun, told })));
        let handle = running.handle();
        has_begun.recv().unwrap();
        handle.stop(StopReason::Asked);
        assert!(handle.wait_for(LONG));
        assert!(!handle.ended_within(Duration::from_millis(1)));
        tell.send(()).unwrap();
        assert!(handle.ended_within(LONG));
        assert_eq!(running.wait().state, RunState::Stopped);
    }

    #[test]
    fn a_waiting_thread_learns_of_a_timeout_and_of_a_stopped_run() {
        let runtime = Runtime::new().unwrap();
        let running = start_without_consumer(&runtime, Silent);
        let handle = running.handle();
        assert!(matches!(handle.take(Duration::from_millis(1)), Taken::NotYet));
        let taken = thread::scope(|scope| {
            let waits = scope.spawn(|| handle.take(LONG));
            handle.stop(StopReason::Asked);
            waits.join().unwrap()
        });
        assert!(matches!(taken, Taken::Over));
        assert_eq!(running.wait().state, RunState::Stopped);
    }
}
