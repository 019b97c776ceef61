//! Execution of a benchmark, from its document to its report.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::memory::process_limit_bytes;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_types::config::Medium;
use tokio::runtime::Handle;

use crate::accelerator;
use crate::calls::{copying, play, random_object, reading};
use crate::ceiling::Ceilings;
use crate::counterfactual::counterfactuals;
use crate::findings::findings;
use crate::load::{BenchError, LoadEnded, Surroundings, discard};
use crate::record::{Load, LoadRecord, LoadTimes};
use crate::report::{
    ActionReport, BenchReport, CallsReport, Ceiling, LoadReport, MachineFacts, ObjectsReport, REPORT_VERSION,
    ReportState,
};
use crate::spec::{BenchAction, BenchSpec, MAX_READS, PageCache, WarmUpKind, WholeSet};
use crate::subject::Subject;
use crate::worker::{Cancel, FailedIn, ReadFailure};

/// Creates the source anew, so that the benchmark can time the listing of the objects, or the opening of the samples.
pub type MakeSource = Arc<dyn Fn() -> BoxFuture<'static, Result<Box<dyn Source>, SourceFault>> + Send + Sync>;

#[derive(Clone, Debug, PartialEq)]
pub enum BenchStep {
    /// Reads the sizes of this many objects.
    Survey(usize),
    Warm,
    /// Starts load `number` (from 1) of `of` loads; `label` names it, e.g. `async 4x8`.
    Load {
        number: usize,
        of: usize,
        label: String,
    },
    Action(String),
    /// Tries to feed this many accelerators.
    Accelerators(u32),
    /// Runs the fastest load with this part replaced by a substitute that takes almost no time.
    Without(String),
}

pub trait Follow {
    fn step(&mut self, step: &BenchStep);

    /// Called with the record of a load that has ended; `key` returns the key of an object.
    fn record(&mut self, _load: &LoadRecord, _key: &dyn Fn(u32) -> Arc<str>) {}
}

impl<F: FnMut(&BenchStep)> Follow for F {
    fn step(&mut self, step: &BenchStep) {
        self(step);
    }
}

pub struct Benchmark {
    spec: BenchSpec,
    subject: Subject,
    source: Option<MakeSource>,
    index: Duration,
    surroundings: Surroundings,
}

struct Running<'a> {
    benchmark: &'a Benchmark,
    subject: Subject,
    survey_s: Option<f64>,
    warmed_s: Option<f64>,
    follow: &'a mut dyn Follow,
    actions: Vec<ActionReport>,
    fastest: Option<(Load, LoadReport)>,
    ceilings: Option<Ceilings>,
    no_ceiling: Option<String>,
}

impl Benchmark {
    /// Creates a benchmark of `subject`; `index` is the time that listing the objects took, and `source` can list them again.
    pub fn new(
        spec: BenchSpec,
        subject: Subject,
        index: Duration,
        source: Option<MakeSource>,
        runtime: Handle,
        cancel: Cancel,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(MonotonicClock::start());
        let surroundings =
            Surroundings { runtime, clock, cancel, cache: spec.cache, on_error: spec.on_error };
        Self { spec, subject, source, index, surroundings }
    }

    /// Runs the benchmark to its end and reports every failure in the report. Blocks the calling thread, which must not be a
    /// thread of the runtime.
    pub fn run(&self, program: &str, follow: &mut dyn Follow) -> BenchReport {
        let started_at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let start = self.surroundings.clock.now();
        let mut running = Running {
            benchmark: self,
            subject: self.subject.clone(),
            survey_s: None,
            warmed_s: None,
            follow,
            actions: Vec::new(),
            fastest: None,
            ceilings: None,
            no_ceiling: None,
        };
        let (mut accelerators, mut without) = (None, Vec::new());
        let ended = running.check().and_then(|()| running.survey()).and_then(|()| running.warm());
        let ended = ended.and_then(|()| running.act()).and_then(|()| {
            accelerators = running.accelerators()?;
            without = running.counterfactuals(accelerators.as_ref())?;
            Ok(())
        });
        let (state, reason) = match ended {
            Ok(()) => (ReportState::Completed, None),
            Err(BenchError::Stopped) => (ReportState::Stopped, None),
            Err(error) => (ReportState::Failed, Some(error.to_string())),
        };
        let no_ceiling = running.no_ceiling.take();
        let mut report = BenchReport {
            version: REPORT_VERSION,
            name: self.spec.name.as_str().to_owned(),
            started_at,
            elapsed_s: (self.surroundings.clock.now() - start) as f64 * 1e-9,
            state,
            reason,
            balanced: true,
            findings: Vec::new(),
            program: program.to_owned(),
            machine: machine(),
            document: self.spec.clone(),
            objects: running.objects(),
            actions: running.actions,
            accelerators,
            counterfactuals: without,
        };
        let balanced = report.cells().all(|cell| cell.books.balanced);
        report.balanced = balanced;
        report.findings = findings(&report);
        let no_ceiling =
            no_ceiling.map(|reason| format!("The limit of the client could not be measured: {reason}"));
        report.findings.extend(no_ceiling);
        report
    }
}

impl Running<'_> {
    /// Checks that no load exceeds the maximum number of reads, and that each inline warm-up is shorter than a pass.
    fn check(&self) -> Result<(), BenchError> {
        let items = self.subject.order(0).len() as u64;
        for set in self.benchmark.spec.whole_sets() {
            let warm_up: u64 = set.warm_up.rounds.iter().map(|round| u64::from(*round)).sum();
            let reads = items.saturating_mul(u64::from(set.repeats)) + warm_up * u64::from(set.batch_size);
            if reads > MAX_READS {
                return Err(BenchError::Failed(format!(
                    "a load would read {reads} items, more than the limit of {MAX_READS}; set a `limit`, or fewer `repeats`"
                )));
            }
            let batches = items.div_ceil(u64::from(set.batch_size));
            if set.warm_up.how == WarmUpKind::Inline && warm_up >= batches {
                return Err(BenchError::Failed(format!(
                    "the inline warm-up takes {warm_up} batches, but the first pass has only {batches}; use fewer `rounds`"
                )));
            }
        }
        Ok(())
    }

    fn survey(&mut self) -> Result<(), BenchError> {
        if !self.benchmark.spec.survey {
            return Ok(());
        }
        if self.subject.samples.is_none() {
            self.follow.step(&BenchStep::Survey(self.subject.objects.len()));
            let surroundings = &self.benchmark.surroundings;
            let start = surroundings.clock.now();
            let survey = surroundings.cancel.unless(self.subject.clone().survey(surroundings.on_error));
            let surveyed = surroundings.runtime.block_on(survey).ok_or(BenchError::Stopped)?;
            self.subject = surveyed.map_err(|error| BenchError::Failed(error.with_cause()))?;
            self.survey_s = Some((surroundings.clock.now() - start) as f64 * 1e-9);
        }
        let sets = self.benchmark.spec.whole_sets();
        self.check_memory(sets.flat_map(|set| Load::grid(set, self.subject.joined)))
    }

    /// Checks that the batches held by the workers of these loads fit into memory.
    fn check_memory(&self, loads: impl Iterator<Item = Load>) -> Result<(), BenchError> {
        let (Some(bytes), Some(memory)) = (self.subject.bytes(), machine().memory_bytes) else {
            return Ok(());
        };
        let mean = bytes as f64 / self.subject.objects.len() as f64;
        let held = loads.map(|load| {
            f64::from(load.workers) * f64::from(load.prefetch) * f64::from(load.batch_size) * mean
        });
        let most = held.fold(0.0, f64::max);
        if most <= memory as f64 / 2.0 {
            return Ok(());
        }
        Err(BenchError::Failed(format!(
            "the batches that workers hold may take {:.1} GB of the {:.1} GB of memory; use fewer workers, or a \
             smaller batch or prefetch",
            most / 1e9,
            memory as f64 / 1e9
        )))
    }

    /// Reads all objects once if they fit into the page cache, so that every load finds them there.
    fn warm(&mut self) -> Result<(), BenchError> {
        let half = machine().memory_bytes.map_or(0, |memory| memory / 2);
        let fits = self.subject.bytes().is_some_and(|bytes| bytes <= half);
        if self.benchmark.spec.cache != PageCache::Warm
            || self.subject.kind.medium() != Medium::Folder
            || !fits
        {
            return Ok(());
        }
        self.follow.step(&BenchStep::Warm);
        let surroundings = &self.benchmark.surroundings;
        let start = surroundings.clock.now();
        surroundings
            .runtime
            .block_on(surroundings.cancel.unless(self.subject.warm()))
            .ok_or(BenchError::Stopped)?;
        self.warmed_s = Some((surroundings.clock.now() - start) as f64 * 1e-9);
        Ok(())
    }

    fn act(&mut self) -> Result<(), BenchError> {
        let joined = self.subject.joined;
        let loads: usize = self.benchmark.spec.whole_sets().map(|set| Load::grid(set, joined).len()).sum();
        let mut number = 0;
        for action in &self.benchmark.spec.actions {
            match action {
                BenchAction::WholeSet(set) => {
                    // The action is added to the report before its first load runs, so that the report includes the finished
                    // loads even if a later load fails.
                    let place = self.actions.len();
                    self.actions.push(ActionReport::WholeSet(Vec::new()));
                    for load in Load::grid(set, joined) {
                        number += 1;
                        self.follow.step(&BenchStep::Load { number, of: loads, label: load.label() });
                        let mut cell = self.load(&load, set)?;
                        let ceiling = self.ceiling(&load, &cell);
                        cell.ceiling = ceiling.as_ref().ok().copied().flatten();
                        if let ActionReport::WholeSet(cells) = &mut self.actions[place] {
                            cells.push(cell);
                        }
                        ceiling?;
                    }
                }
                other => {
                    self.follow.step(&BenchStep::Action(other.name().to_owned()));
                    let calls = self.call(other)?;
                    self.actions.push(ActionReport::Calls(calls));
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, load: &Load, set: &WholeSet) -> Result<LoadReport, BenchError> {
        let surroundings = &self.benchmark.surroundings;
        let times = LoadTimes { warm_up: set.warm_up.clone(), passes: set.repeats };
        let LoadEnded { record, failures, how } =
            surroundings.run(&self.subject, load, &times, &mut discard());
        how?;
        let stages: Vec<String> = self.subject.stages.iter().map(|stage| stage.name.clone()).collect();
        let cell = LoadReport::of(&record, &stages, failures.into_groups());
        let objects = self.subject.objects.clone();
        self.follow.record(&record, &|object| objects[object as usize].key.clone());
        drop(record);
        let is_faster = self.fastest.as_ref().is_none_or(|(_, other)| cell.items_per_s > other.items_per_s);
        if is_faster && cell.books.balanced {
            self.fastest = Some((load.clone(), cell.clone()));
        }
        Ok(cell)
    }

    /// Measures the ceiling of a load. A load without a measured ceiling is still valid.
    fn ceiling(&mut self, load: &Load, cell: &LoadReport) -> Result<Option<Ceiling>, BenchError> {
        if !self.benchmark.spec.ceiling || self.no_ceiling.is_some() {
            return Ok(None);
        }
        let ceilings = match self.ceilings.take() {
            Some(ceilings) => Ok(ceilings),
            None => Ceilings::of(&self.benchmark.surroundings, &self.subject),
        };
        let found = ceilings.and_then(|ceilings| {
            self.ceilings.insert(ceilings).of_load(&self.benchmark.surroundings, load, cell)
        });
        match found {
            Ok(_) | Err(BenchError::Stopped) => found,
            Err(error) => {
                self.no_ceiling = Some(error.to_string());
                Ok(None)
            }
        }
    }

    fn call(&self, action: &BenchAction) -> Result<CallsReport, BenchError> {
        let (surroundings, subject) = (&self.benchmark.surroundings, &self.subject);
        let spec = &self.benchmark.spec;
        let play = |repeat: std::num::NonZeroU32, call: &crate::calls::Call<'_>| {
            play(surroundings, subject, action.name(), repeat.get(), spec.pool, call)
        };
        match action {
            BenchAction::Random(random) => play(
                random.repeat,
                &reading(surroundings, subject, spec.pool, random_object(subject, spec.seed)),
            ),
            BenchAction::Single(single) => {
                let first = subject.order(0)[0];
                play(single.repeat, &reading(surroundings, subject, spec.pool, move |_| first))
            }
            BenchAction::RandomToDevice(copy) => play(copy.repeat, &copying(copy.shape, spec.seed)),
            BenchAction::Index(index) => play(index.repeat, &|_| match &self.benchmark.source {
                None => Ok(0),
                Some(make) => {
                    let found = surroundings.cancel.unless(found_out(make.clone()));
                    let found = surroundings.runtime.block_on(found).unwrap_or(Ok(()));
                    found.map(|()| 0).map_err(|fault| ReadFailure {
                        object: None,
                        what: FailedIn::Storage,
                        message: fault.to_string(),
                    })
                }
            }),
            BenchAction::WholeSet(_) => unreachable!("loads are no calls"),
        }
    }

    fn accelerators(&mut self) -> Result<Option<accelerator::AcceleratorReport>, BenchError> {
        let Some(spec) = &self.benchmark.spec.accelerator else { return Ok(None) };
        let Some((load, cell)) = &self.fastest else { return Ok(None) };
        self.check_memory(std::iter::once(accelerator::feeding(spec, load)))?;
        let follow = &mut *self.follow;
        let mut on_trial = |number| follow.step(&BenchStep::Accelerators(number));
        let surroundings = &self.benchmark.surroundings;
        accelerator::search(surroundings, &self.subject, load, cell, spec, &mut on_trial).map(Some)
    }

    fn counterfactuals(
        &mut self,
        accelerators: Option<&accelerator::AcceleratorReport>,
    ) -> Result<Vec<crate::report::Counterfactual>, BenchError> {
        let (true, Some((load, _))) = (self.benchmark.spec.counterfactuals, &self.fastest) else {
            return Ok(Vec::new());
        };
        let follow = &mut *self.follow;
        let mut on_start = |without: &str| follow.step(&BenchStep::Without(without.to_owned()));
        counterfactuals(&self.benchmark.surroundings, &self.subject, load, accelerators, &mut on_start)
    }

    fn objects(&self) -> ObjectsReport {
        let order = self.subject.order(0);
        let sizes = order.iter().map(|object| self.subject.objects[*object as usize].size);
        let mut sizes: Vec<u64> = sizes.collect::<Option<_>>().unwrap_or_default();
        sizes.sort_unstable();
        ObjectsReport {
            store: self.subject.store.name().to_string(),
            kind: self.subject.kind,
            count: order.len() as u64,
            bytes: (!sizes.is_empty()).then(|| sizes.iter().sum()).or_else(|| self.subject.bytes()),
            min_bytes: sizes.first().copied(),
            median_bytes: sizes.get(sizes.len() / 2).copied(),
            max_bytes: sizes.last().copied(),
            index_s: self.benchmark.index.as_secs_f64(),
            survey_s: self.survey_s,
            warmed_s: self.warmed_s,
        }
    }
}

async fn found_out(make: MakeSource) -> Result<(), SourceFault> {
    let mut source = make().await?;
    while let Some(Produced::Samples(_)) = source.next().await? {}
    Ok(())
}

fn machine() -> MachineFacts {
    MachineFacts {
        cores: available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        memory_bytes: process_limit_bytes(),
    }
}
