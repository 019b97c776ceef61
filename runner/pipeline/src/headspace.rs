//! Measures the possible gain from faster loading: runs the consumer without the loader, the loader without the consumer, and
//! both.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::consumers::{Discard, Simulate};
use penstock_engine::item::Item;
use penstock_engine::lock::locked;
use penstock_engine::ports::{Consumer, Ending, Fault, StopFlag};
use penstock_engine::running::StopReason;
use penstock_types::run::{RunSnapshot, RunState};
use penstock_types::spec;
use penstock_types::stats::QueueFigures;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::prepare::Prepared;
use crate::run::Run;
use crate::runner::{RunEnds, StartError};

/// Gain up to which improvements are not worthwhile: two measurements may differ by this much.
pub const ENOUGH: f64 = 0.02;
/// Factor by which loader and consumer together may appear faster than one of them alone; a larger factor is a contradiction.
const NOISE: f64 = 1.5;
/// Maximum number of measurements, repeated while their results contradict each other.
const ATTEMPTS: u32 = 3;
/// Number of items that are passed repeatedly to the consumer when it is measured alone.
const KEPT: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");
/// Share of each run's duration at the start of the run that is not measured, because queues are still filling.
const WARM_UP: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// The pipeline as written in the document.
    Real,
    /// The loader with a consumer that takes no time.
    Loader,
    /// The consumer alone, with items held in memory.
    Consumer,
}

/// Possible gain from faster loading.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Headspace {
    /// Items per second that the consumer takes in the real pipeline.
    pub real_rate: f64,
    /// Items per second that the loader delivers to a consumer that takes no time.
    pub loader_rate: f64,
    /// Items per second that the consumer takes without loading; `null` when it takes no time.
    pub consumer_rate: Option<f64>,
    /// Possible speed-up if loading took no time: 0.25 is 25 %. `null` when the consumer takes no time: then only loading takes
    /// time.
    pub to_gain: Option<f64>,
    /// Number of consumers of this speed that the loader could feed; `null` when the consumer takes no time.
    pub feeds: Option<f64>,
    /// Set if the possible gain is not worth any work.
    pub is_enough: bool,
    /// Queue in front of the consumer in the real run.
    pub sink: QueueFigures,
    /// Result in one sentence.
    pub sentence: String,
}

#[derive(Debug, thiserror::Error)]
pub enum HeadspaceError {
    /// The consumer cannot take the same item twice.
    #[error(
        "the consumer `files` cannot be measured alone: it would write the same batch again and again; measure with `simulate`"
    )]
    Files,
    /// The consumer is in another process.
    #[error(
        "the consumer `stream` is in another process, which takes each batch once; measure with `simulate`, or with \
         `penstock.headspace` where it is"
    )]
    Stream,
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the measurement was stopped")]
    Stopped,
    /// A run failed, or ended before it could be measured.
    #[error("{0}")]
    Run(String),
    #[error("{0}; raise `--for`")]
    Contradiction(String),
}

/// Makes the runs, each for `span`, and repeats all of them while their results contradict each other; calls `on_start` before
/// each.
pub fn headspace(
    prepared: &Prepared,
    runtime: &Handle,
    span: Duration,
    on_start: &mut dyn FnMut(Leg, &Run),
) -> Result<Headspace, HeadspaceError> {
    let mut contradiction = String::new();
    for _ in 0..ATTEMPTS {
        let found = measured_once(prepared, runtime, span, on_start)?;
        match found.contradiction() {
            None => return Ok(found),
            Some(told) => contradiction = told,
        }
    }
    Err(HeadspaceError::Contradiction(contradiction))
}

fn measured_once(
    prepared: &Prepared,
    runtime: &Handle,
    span: Duration,
    on_start: &mut dyn FnMut(Leg, &Run),
) -> Result<Headspace, HeadspaceError> {
    let mut prepared = prepared.clone();
    // The number of samples does not matter: only rates are measured.
    prepared.plan.source.traversal.epochs = None;
    let plan = &prepared.plan;
    let simulated = match plan.consumer {
        spec::Consumer::Simulate(simulate) => Some(simulate),
        spec::Consumer::Discard(_) => None,
        spec::Consumer::Files(_) => return Err(HeadspaceError::Files),
        spec::Consumer::Stream(_) => return Err(HeadspaceError::Stream),
    };
    let consumer = || -> Option<Box<dyn Consumer>> {
        simulated.map(|simulate| Box::new(Simulate::new(&simulate, plan.seed)) as _)
    };
    let start = |consumer: Box<dyn Consumer>| {
        let ends = RunEnds { consumer: Some(consumer), ..RunEnds::default() };
        runtime.block_on(prepared.start(None, ends))
    };
    let mut measure = |leg, consumer: Box<dyn Consumer>| -> Result<(f64, QueueFigures), HeadspaceError> {
        let run = start(consumer)?;
        on_start(leg, &run);
        measured(run, span)
    };
    let (real_rate, sink) = measure(Leg::Real, consumer().unwrap_or_else(|| Box::new(Discard)))?;
    let (loader_rate, _) = measure(Leg::Loader, Box::new(Discard))?;
    let consumer_rate = match consumer() {
        Some(consumer) => {
            let alone = Alone::new(consumer, span.mul_f64(1.0 - WARM_UP));
            let found = alone.found.clone();
            let run = start(Box::new(alone))?;
            on_start(Leg::Consumer, &run);
            Some(alone_rate(run, &found)?)
        }
        None => None,
    };
    Ok(Headspace::new(real_rate, loader_rate, consumer_rate, sink))
}

/// Items per second after the warm-up, and the figures of the sink queue over the whole run.
fn measured(run: Run, span: Duration) -> Result<(f64, QueueFigures), HeadspaceError> {
    let taken = |run: &Run| {
        let snapshot = run.snapshot();
        (snapshot.elapsed_s, snapshot.queues.last().map_or(0, |queue| queue.figures.num_items))
    };
    run.handle.wait_for(span.mul_f64(WARM_UP));
    let (from_s, before) = taken(&run);
    run.handle.wait_for(span.mul_f64(1.0 - WARM_UP));
    let (to_s, after) = taken(&run);
    let snapshot = ended(run)?;
    if snapshot.state != RunState::Completed {
        return Err(HeadspaceError::Run(format!("a run did not complete: {}", why(snapshot))));
    }
    let sink = snapshot.queues.last().map(|queue| queue.figures.clone());
    match sink {
        Some(sink) if after > before && to_s > from_s => {
            Ok(((after - before) as f64 / (to_s - from_s), sink))
        }
        _ => Err(HeadspaceError::Run(format!(
            "no item reached the consumer within {:.1} s; measure longer with `--for`",
            span.as_secs_f64()
        ))),
    }
}

fn alone_rate(run: Run, found: &Mutex<Option<f64>>) -> Result<f64, HeadspaceError> {
    let rate = || *locked(found);
    while rate().is_none() && !run.handle.wait_for(Duration::from_millis(20)) {}
    let snapshot = ended(run)?;
    let unknown = || format!("the run of the consumer alone did not complete: {}", why(snapshot));
    rate().ok_or_else(|| HeadspaceError::Run(unknown()))
}

fn ended(run: Run) -> Result<RunSnapshot, HeadspaceError> {
    run.handle.stop(StopReason::TimeIsUp);
    let snapshot = run.wait().snapshot;
    if snapshot.state == RunState::Stopped { Err(HeadspaceError::Stopped) } else { Ok(snapshot) }
}

fn why(snapshot: RunSnapshot) -> String {
    snapshot.error.unwrap_or_else(|| snapshot.state.name().to_owned())
}

/// Keeps the first items and passes them to a consumer repeatedly.
struct Alone {
    consumer: Box<dyn Consumer>,
    kept: Vec<Item>,
    span: Duration,
    /// Measured items per second; `None` until the measurement ends.
    found: Arc<Mutex<Option<f64>>>,
}

impl Alone {
    fn new(consumer: Box<dyn Consumer>, span: Duration) -> Self {
        Self { consumer, kept: Vec::new(), span, found: Arc::default() }
    }

    fn rehearse(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        let clock = MonotonicClock::start();
        let begin = clock.now();
        for (taken, item) in (0_u64..).zip(self.kept.iter().cycle()) {
            let passed = Duration::from_nanos(clock.now() - begin);
            if stop.is_set() {
                return Ok(());
            }
            if passed >= self.span && taken > 0 {
                let rate = taken as f64 / passed.as_secs_f64();
                *locked(&self.found) = Some(rate);
                break;
            }
            self.consumer.consume(item.clone(), stop)?;
        }
        Ok(())
    }
}

impl Consumer for Alone {
    fn consume(&mut self, item: Item, stop: &StopFlag) -> Result<(), Fault> {
        if self.kept.len() < KEPT.get() {
            self.kept.push(item);
            if self.kept.len() == KEPT.get() {
                return self.rehearse(stop);
            }
        }
        Ok(())
    }

    fn finish(&mut self, ending: Ending, stop: &StopFlag) -> Result<(), Fault> {
        // Measures with fewer items than `KEPT` if the source has no more.
        if ending == Ending::Whole && !self.kept.is_empty() && self.kept.len() < KEPT.get() {
            return self.rehearse(stop);
        }
        Ok(())
    }
}

impl Headspace {
    /// Computes the result from three rates in items per second (of loader and consumer together, of the loader alone, and of
    /// the consumer alone, if it takes any time) and from the queue between loader and consumer.
    pub fn new(real_rate: f64, loader_rate: f64, consumer_rate: Option<f64>, sink: QueueFigures) -> Self {
        let to_gain = consumer_rate.map(|consumer| (consumer / real_rate - 1.0).max(0.0));
        let feeds = consumer_rate.map(|consumer| loader_rate / consumer);
        let is_enough = to_gain.is_some_and(|gain| gain <= ENOUGH);
        let sentence = match (consumer_rate, to_gain, feeds) {
            (Some(consumer), Some(gain), Some(feeds)) if is_enough => format!(
                "Loading is fast enough: the consumer takes {real_rate:.1} items/s of the {consumer:.1}/s that it could take at \
                 most ({:.1} % to gain), and the loader could feed {feeds:.2} such consumers. No change is needed.",
                gain * 100.0
            ),
            (Some(consumer), Some(gain), Some(feeds)) => format!(
                "There are {:.0} % to gain: the consumer takes {real_rate:.1} items/s and could take {consumer:.1}/s if loading took \
                 no time; the loader feeds {feeds:.2} such consumers.",
                gain * 100.0
            ),
            _ => format!(
                "The consumer takes no time, so that only loading is measured: {loader_rate:.1} items/s. Set a consumer \
                 that takes as long as a training step (`simulate`) to learn whether that is enough."
            ),
        };
        Self { real_rate, loader_rate, consumer_rate, to_gain, feeds, is_enough, sink, sentence }
    }

    /// Describes rates that contradict each other: neither loader nor consumer can be faster when it may have to wait for the
    /// other.
    pub fn contradiction(&self) -> Option<String> {
        let alone = [("loader", Some(self.loader_rate)), ("consumer", self.consumer_rate)];
        let (what, rate) = alone
            .into_iter()
            .filter_map(|(what, rate)| Some((what, rate?)))
            .find(|(_, rate)| self.real_rate > NOISE * rate)?;
        Some(format!(
            "the measurements contradict each other: {:.1} items/s by loader and consumer together, but {rate:.1}/s by the {what} alone; \
             another process may have used the machine",
            self.real_rate
        ))
    }
}
