//! Storage benchmarks that the server runs itself: one at a time, in the budget of runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use penstock_bench::report::ReportState;
use penstock_bench::{
    BenchReport, BenchSpec, BenchStep, BenchStoreKind, Benchmark, Cancel, LoadMode, Subject,
};
use penstock_engine::ports::StopFlag;
use penstock_pipeline::{Outlets, Prepared, Runner};
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::spec::Spec;
use penstock_types::text::with_causes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::admission::Cost;
use crate::error::RunsError;
use crate::history::now;
use crate::letters::LOOK;
use crate::owner::Part;
use crate::runs::{Runs, WeakRuns, apart};
use crate::turns::Place;

/// Limit of the objects of one benchmark.
const MAX_OBJECTS: u32 = 100_000;
/// Limit of the numbers of workers that are tried in turn.
const MAX_WORKERS_LISTED: usize = 8;
/// Limit of the passes over the objects.
const MAX_REPEATS: u32 = 10;
/// Longest time that may be asked for, in seconds.
const MAX_SECONDS: u32 = 3_600;
/// Memory for the key and the size of an object, in bytes.
const OBJECT_BYTES: u64 = 256;
/// Memory for the record of one read, in bytes.
const RECORD_BYTES: u64 = 256;
/// Memory that the benchmark needs in addition to objects, records and batches, in MiB.
const OWN_MIB: u64 = 64;
/// Longest wait for the end of a benchmark that is stopped.
const STOP: Duration = Duration::from_secs(3);

/// A storage benchmark for the server to run.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBenchmark {
    /// Store whose objects are read.
    pub store: String,
    /// Name of the benchmark; the store's name when missing.
    pub name: Option<String>,
    /// Start of the keys to read; empty for all.
    #[serde(default)]
    pub prefix: String,
    /// End of the keys to read, e.g. `.jpg`; empty for all.
    #[serde(default)]
    pub suffix: String,
    /// Limit of the objects to read, 1 to 100,000.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = MAX_OBJECTS))]
    pub limit: u32,
    /// Ways in which workers read the objects of a batch.
    #[serde(default = "default_modes")]
    pub modes: Vec<LoadMode>,
    /// Numbers of workers to try in turn, each at most the threads of the server's budget; 1, 2, 4 and 8, as far as the
    /// budget allows, when missing.
    #[serde(default)]
    #[schemars(length(max = MAX_WORKERS_LISTED))]
    pub workers: Vec<u32>,
    /// Limit of the reads in flight of one `async` worker.
    #[serde(default = "default_in_flight")]
    #[schemars(range(min = 1))]
    pub in_flight: u32,
    /// Objects of a batch.
    #[serde(default = "default_batch_size")]
    #[schemars(range(min = 1))]
    pub batch_size: u32,
    /// Measured passes over the objects for each load, 1 to 10.
    #[serde(default = "default_repeats")]
    #[schemars(range(min = 1, max = MAX_REPEATS))]
    pub repeats: u32,
    /// Drops the objects of a folder from the page cache before each pass.
    #[serde(default)]
    pub cold: bool,
    /// Longest time of the benchmark, in seconds, 1 to 3,600; then it is stopped, and what it measured is kept. The server's
    /// longest time of a run applies as well.
    #[serde(default = "default_max_s")]
    #[schemars(range(min = 1, max = MAX_SECONDS))]
    pub max_s: u32,
    /// Memory of the benchmark, in MiB: batches that workers hold, and records of reads. A benchmark that needs more fails
    /// before its first load.
    #[serde(default = "default_memory_mib")]
    #[schemars(range(min = 1))]
    pub memory_mib: u32,
}

/// A storage benchmark of the server: the one under way, or the last one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchmarkProgress {
    /// Id of the benchmark while it runs; the report that is kept has another one.
    pub id: String,
    /// Name of the benchmark.
    pub name: String,
    /// Store that it reads.
    pub store: String,
    /// Start, RFC 3339 in UTC.
    pub started_at: String,
    /// Time since the start, or until the end, in seconds.
    pub elapsed_s: f64,
    /// Longest time that it may take, in seconds.
    pub max_s: f64,
    /// State of the benchmark.
    pub state: BenchmarkState,
    /// Work under way, in words, e.g. `load 2 of 4: async 2x8`.
    pub step: String,
    /// Loads that have ended.
    pub loads_done: u32,
    /// All loads: every mode with every number of workers.
    pub loads: u32,
    /// Reason of a failure or of an early end.
    pub error: Option<String>,
    /// Id of the kept report, once there is one.
    pub benchmark: Option<String>,
}

/// State of a benchmark that the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BenchmarkState {
    /// It lists, surveys or reads objects.
    Running,
    /// All loads were measured.
    Completed,
    /// It was stopped, by a user or by its longest time.
    Stopped,
    /// It could not go on.
    Failed,
}

/// A report as it is kept: what lists show of it, and the report as JSON.
pub type PackReport = fn(BenchReport) -> (Value, Vec<u8>);

/// Slot of the benchmark of a server.
#[derive(Debug, Default)]
pub(crate) struct Benching(Mutex<Option<Slot>>);

#[derive(Debug)]
struct Slot {
    live: Arc<LiveBenchmark>,
    thread: Option<JoinHandle<()>>,
}

/// A benchmark as its thread and its readers share it.
#[derive(Debug)]
struct LiveBenchmark {
    started: Instant,
    cancel: Cancel,
    progress: watch::Sender<BenchmarkProgress>,
}

/// Everything that the thread of a benchmark owns.
struct Job {
    runs: WeakRuns,
    live: Arc<LiveBenchmark>,
    request: StartBenchmark,
    spec: BenchSpec,
    prepared: Prepared,
    ending: StopFlag,
    runtime: tokio::runtime::Handle,
    pack: PackReport,
    /// Given back at the end.
    _held: (Place, Part),
}

impl Runs {
    /// Starts a benchmark in a part of the budget. One runs at a time; its report is kept with the others.
    pub async fn start_benchmark(
        &self,
        request: StartBenchmark,
        pack: PackReport,
    ) -> Result<BenchmarkProgress, RunsError> {
        let store = self.allowed_stores().get(&request.store);
        let store = store.ok_or_else(|| RunsError::not_found("store", &request.store))?;
        let request = request.completed(self.0.budget.threads);
        let mut faults = request.faults(self.0.budget.threads, store.reads().get());
        let spec = request.spec().unwrap_or_else(|found| {
            faults.extend(found);
            None
        });
        let Some(spec) = spec.filter(|_| faults.is_empty()) else { return Err(RunsError::invalid(faults)) };
        let busy = || RunsError::Busy("a benchmark is running; try again when it has ended".to_owned());
        let place = self.0.benching_place.try_take(self.client()).map_err(|_| busy())?;
        let part = self.take(request.cost(), "the benchmark").await?;
        let (workshop, stores, pipeline) =
            (self.0.workshop.clone(), self.allowed_stores().clone(), request.pipeline());
        let prepared = apart(self, move || {
            let spec = Spec::from_value(pipeline).map_err(RunsError::invalid)?;
            let runner = Runner::new(workshop.runtime.clone(), stores, workshop.modules());
            runner.prepare(&spec, Outlets::ALL).map_err(RunsError::invalid)
        });
        let prepared = prepared.await?;
        let asked = Duration::from_secs(request.max_s.into());
        let most = self.0.bounds.max_time.map_or(asked, |most| asked.min(*most.get()));
        let (progress, _) = watch::channel(BenchmarkProgress {
            id: uuid::Uuid::now_v7().to_string(),
            name: spec.name.to_string(),
            store: request.store.clone(),
            started_at: now(),
            elapsed_s: 0.0,
            max_s: most.as_secs_f64(),
            state: BenchmarkState::Running,
            step: "listing objects".to_owned(),
            loads_done: 0,
            loads: u32::try_from(request.modes.len() * request.workers.len()).unwrap_or(u32::MAX),
            error: None,
            benchmark: None,
        });
        let live = Arc::new(LiveBenchmark { started: Instant::now(), cancel: Cancel::default(), progress });
        let job = Job {
            runs: self.downgraded(),
            live: live.clone(),
            request,
            spec,
            prepared,
            ending: self.0.ending.clone(),
            runtime: self.0.workshop.runtime.clone(),
            pack,
            _held: (place, part),
        };
        let thread =
            Builder::new().name("benchmark".to_owned()).spawn(move || job.run(most)).map_err(|error| {
                RunsError::Busy(format!("the machine gives no thread for the benchmark: {error}"))
            })?;
        let told = live.progress();
        let before = self.0.benching.lock().replace(Slot { live, thread: Some(thread) });
        // The benchmark before has given back its place and is about to end.
        if let Some(thread) = before.and_then(|slot| slot.thread) {
            apart(self, move || {
                joined(thread);
                Ok(())
            })
            .await?;
        }
        Ok(told)
    }

    /// The benchmark that the server runs, or the last one that it ran; `None` before the first, and for callers who may not
    /// use its store.
    pub fn current_benchmark(&self) -> Option<BenchmarkProgress> {
        let progress = self.0.benching.lock().as_ref()?.live.progress();
        self.allowed_stores().get(&progress.store).map(|_| progress)
    }

    /// Stops the benchmark under way and waits for its end, but not longer than 3 s.
    pub async fn stop_benchmark(&self, id: &str) -> Result<BenchmarkProgress, RunsError> {
        let live = self.current_benchmark().filter(|current| current.id == id).and_then(|_| {
            let slot = self.0.benching.lock();
            slot.as_ref().map(|slot| slot.live.clone())
        });
        let live = live.ok_or_else(|| RunsError::not_found("benchmark under way", id))?;
        live.cancel.cancel();
        let mut progress = live.progress.subscribe();
        let over = progress.wait_for(|progress| progress.state != BenchmarkState::Running);
        // The answer tells the state, whether it is over or not.
        timeout(STOP, over).await.ok();
        Ok(live.progress())
    }
}

impl StartBenchmark {
    /// The request with its default numbers of workers.
    fn completed(self, threads: u32) -> Self {
        if !self.workers.is_empty() {
            return self;
        }
        let workers = [1, 2, 4, 8].into_iter().filter(|workers| *workers <= threads.max(1)).collect();
        Self { workers, ..self }
    }

    /// Faults that the benchmark's own document does not have.
    fn faults(&self, threads: u32, reads: usize) -> Vec<SpecFault> {
        let mut faults = Vec::new();
        let mut within = |field: &str, found: u32, most: u32| {
            if !(1..=most).contains(&found) {
                let message = format!("found {found}, expected 1 to {most}");
                faults.push(SpecFault::new(Pointer::ROOT.key(field), message));
            }
        };
        within("limit", self.limit, MAX_OBJECTS);
        within("repeats", self.repeats, MAX_REPEATS);
        within("max_s", self.max_s, MAX_SECONDS);
        within("memory_mib", self.memory_mib, u32::MAX);
        let place = Pointer::ROOT.key("workers");
        if self.workers.len() > MAX_WORKERS_LISTED {
            let message =
                format!("found {} numbers, expected {MAX_WORKERS_LISTED} at most", self.workers.len());
            faults.push(SpecFault::new(place.clone(), message));
        }
        for (index, workers) in self.workers.iter().enumerate() {
            let in_flight = u64::from(*workers) * u64::from(self.in_flight_of_worker());
            if *workers > threads {
                let message = format!("found {workers} workers, and the server has {threads} threads");
                faults.push(SpecFault::new(place.index(index), message));
            } else if in_flight > reads as u64 {
                let message = format!(
                    "{workers} workers with {} reads each would have {in_flight} reads in flight, and the store allows {reads} (`reads`)",
                    self.in_flight_of_worker()
                );
                faults.push(SpecFault::new(place.index(index), message));
            }
        }
        faults
    }

    fn in_flight_of_worker(&self) -> u32 {
        if self.modes.contains(&LoadMode::Async) { self.in_flight.min(self.batch_size) } else { 1 }
    }

    fn most_workers(&self) -> u32 {
        self.workers.iter().copied().max().unwrap_or(1)
    }

    /// The document of the benchmark. Its faults are at the places of this request.
    fn spec(&self) -> Result<Option<BenchSpec>, Vec<SpecFault>> {
        let document = json!({
            "name": self.name.as_deref().unwrap_or(&self.store),
            "source": self.source(1),
            "cache": if self.cold { "cold" } else { "warm" },
            // The server already knows the sizes of the objects.
            "survey": false,
            "ceiling": false,
            "actions": [{ "whole_set": {
                "modes": self.modes, "workers": self.workers, "in_flight": self.in_flight,
                "batch_size": self.batch_size, "repeats": self.repeats
            } }],
        });
        let placed = |fault: SpecFault| {
            let place = fault.pointer.to_string();
            let inner =
                ["/actions/0/whole_set", "/source/list"].iter().find_map(|start| place.strip_prefix(start));
            let pointer = inner
                .unwrap_or(&place)
                .split('/')
                .skip(1)
                .fold(Pointer::ROOT, |pointer, name| pointer.key(name));
            SpecFault { pointer, ..fault }
        };
        BenchSpec::from_value(document).map(Some).map_err(|faults| faults.into_iter().map(placed).collect())
    }

    fn source(&self, epochs: u32) -> Value {
        json!({ "list": {
            "store": self.store, "prefix": self.prefix, "suffix": self.suffix, "limit": self.limit, "epochs": epochs
        } })
    }

    /// The pipeline that reads the same objects: its source lists them.
    fn pipeline(&self) -> Value {
        json!({
            "name": "benchmark", "threads": 1, "source": self.source(self.repeats),
            "stages": [{ "fetch": {} }], "consumer": { "discard": {} }
        })
    }

    fn cost(&self) -> Cost {
        Cost { threads: self.most_workers(), memory_mib: u64::from(self.memory_mib) + OWN_MIB, instances: 0 }
    }

    /// Memory for objects of these sizes, in bytes.
    fn bytes_for(&self, objects: u64, largest: u64) -> u64 {
        let held_by_worker = u64::from(self.batch_size)
            .saturating_mul(penstock_bench::WholeSet::default().prefetch.into())
            .saturating_add(self.in_flight_of_worker().into());
        let held =
            held_by_worker.saturating_mul(self.most_workers().into()).min(objects).saturating_mul(largest);
        let records = objects.saturating_mul(self.repeats.into()).saturating_mul(RECORD_BYTES);
        held.saturating_add(records).saturating_add(objects.saturating_mul(OBJECT_BYTES))
    }
}

impl Job {
    fn run(self, most: Duration) {
        let until = self.live.started + most;
        let measured = thread::scope(|scope| {
            let measuring =
                Builder::new().name("benchmark load".to_owned()).spawn_scoped(scope, || self.measure());
            let measuring = match measuring {
                Ok(measuring) => measuring,
                Err(error) => return Err(format!("cannot start the thread of the benchmark: {error}")),
            };
            let mut is_late = false;
            while !measuring.is_finished() {
                is_late |= Instant::now() >= until && !self.live.cancel.is_cancelled();
                if is_late || self.ending.is_set() {
                    self.live.cancel.cancel();
                }
                thread::park_timeout(LOOK);
            }
            let panicked = || Err("the benchmark panicked; this is a defect of Penstock".to_owned());
            let measured = measuring.join().unwrap_or_else(|_| panicked());
            let late =
                || format!("it was stopped after {} s, its longest time (`max_s`)", most.as_secs_f64());
            measured.map(|report| {
                report.map(|report| BenchReport {
                    reason: report.reason.or_else(|| is_late.then(late)),
                    ..report
                })
            })
        });
        let (state, error, report) = match measured {
            Ok(Some(report)) => {
                let state = match report.state {
                    ReportState::Completed => BenchmarkState::Completed,
                    ReportState::Stopped => BenchmarkState::Stopped,
                    ReportState::Failed => BenchmarkState::Failed,
                };
                (state, report.reason.clone(), Some(report).filter(|report| report.cells().next().is_some()))
            }
            Ok(None) => (BenchmarkState::Stopped, None, None),
            Err(error) => (BenchmarkState::Failed, Some(error), None),
        };
        let (benchmark, lost) = match report.map(|report| self.keep(report)) {
            None => (None, None),
            Some(Ok(id)) => (Some(id), None),
            Some(Err(lost)) => (None, Some(format!("its report could not be kept: {lost}"))),
        };
        let elapsed_s = self.live.started.elapsed().as_secs_f64();
        let live = self.live.clone();
        // Threads and memory are given back before the end is published: a caller that waits for it may start another benchmark.
        drop(self);
        live.progress.send_modify(|progress| {
            progress.elapsed_s = elapsed_s;
            progress.state = if lost.is_some() { BenchmarkState::Failed } else { state };
            progress.step = "ended".to_owned();
            progress.error = lost.or(error);
            progress.benchmark = benchmark;
        });
    }

    /// Lists and surveys the objects, and measures the loads. `None` when it was stopped before the first load.
    fn measure(&self) -> Result<Option<BenchReport>, String> {
        let (request, live) = (&self.request, &self.live);
        let store = self.prepared.stores().get(&request.store).ok_or("the store is gone")?.clone();
        let kind = if self.prepared.stores().is_folder(&request.store) {
            BenchStoreKind::Folder
        } else {
            BenchStoreKind::S3
        };
        let passes = request.repeats as usize;
        let listing = Instant::now();
        let listed = Subject::open(store, kind, self.prepared.source(), passes, Vec::new());
        let Some(listed) = self.runtime.block_on(live.cancel.unless(listed)) else { return Ok(None) };
        let listed = listed.map_err(|error| with_causes(&error))?.sharing_permits();
        let index = listing.elapsed();
        live.progress.send_modify(|progress| {
            progress.step = format!("reading the sizes of {} objects", listed.reads())
        });
        let surveyed = self.runtime.block_on(live.cancel.unless(listed.survey(self.spec.on_error)));
        let Some(surveyed) = surveyed else { return Ok(None) };
        let subject = surveyed.map_err(|error| with_causes(&error))?;
        let needed_mib =
            request.bytes_for(subject.reads(), subject.largest_bytes().unwrap_or(0)).div_ceil(1 << 20);
        if needed_mib > u64::from(request.memory_mib) {
            return Err(format!(
                "it may need {needed_mib} MiB of memory, more than its {} MiB (`memory_mib`); set more, or use fewer workers, smaller batches \
                 or fewer objects",
                request.memory_mib
            ));
        }
        let benchmark = Benchmark::new(
            self.spec.clone(),
            subject,
            index,
            None,
            self.runtime.clone(),
            live.cancel.clone(),
        );
        let mut follow = |step: &BenchStep| live.on_step(step);
        Ok(Some(benchmark.run(concat!("penstock ", env!("CARGO_PKG_VERSION")), &mut follow)))
    }

    /// Keeps the report; returns its id.
    fn keep(&self, report: BenchReport) -> Result<String, String> {
        let runs =
            self.runs.upgrade().filter(|_| !self.ending.is_set()).ok_or("the server is shutting down")?;
        let (summary, report) = (self.pack)(report);
        let kept = self.runtime.block_on(runs.keep_benchmark(summary, report));
        kept.map(|pushed| pushed.benchmark.id).map_err(|error| error.to_string())
    }
}

impl LiveBenchmark {
    fn progress(&self) -> BenchmarkProgress {
        let mut progress = self.progress.borrow().clone();
        if progress.state == BenchmarkState::Running {
            progress.elapsed_s = self.started.elapsed().as_secs_f64();
        }
        progress
    }

    fn on_step(&self, step: &BenchStep) {
        self.progress.send_modify(|progress| match step {
            BenchStep::Load { number, of, label } => {
                progress.loads_done = u32::try_from(number.saturating_sub(1)).unwrap_or(u32::MAX);
                progress.loads = u32::try_from(*of).unwrap_or(u32::MAX);
                progress.step = format!("load {number} of {of}: {label}");
            }
            BenchStep::Warm => progress.step = "reading all objects once, for the page cache".to_owned(),
            _ => {}
        });
    }
}

impl Benching {
    fn lock(&self) -> MutexGuard<'_, Option<Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the benchmark under way and joins its thread.
    pub(crate) fn end(&self) {
        let Some(Slot { live, thread }) = self.lock().take() else { return };
        live.cancel.cancel();
        if let Some(thread) = thread {
            joined(thread);
        }
    }
}

/// Waits for the end of a benchmark's thread, unless this is it: the last handle of the runs may be dropped there.
fn joined(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!("the thread of a benchmark panicked; this is a defect of Penstock");
    }
}

fn default_limit() -> u32 {
    1_000
}

fn default_modes() -> Vec<LoadMode> {
    vec![LoadMode::Sync, LoadMode::Async]
}

fn default_in_flight() -> u32 {
    8
}

fn default_batch_size() -> u32 {
    16
}

fn default_repeats() -> u32 {
    1
}

fn default_max_s() -> u32 {
    60
}

fn default_memory_mib() -> u32 {
    256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(document: Value) -> StartBenchmark {
        serde_json::from_value(document).unwrap()
    }

    fn places(request: StartBenchmark) -> Vec<String> {
        let request = request.completed(2);
        let mut faults = request.faults(2, 16);
        faults.extend(request.spec().err().into_iter().flatten());
        faults.iter().map(|fault| fault.pointer.to_string()).collect()
    }

    #[test]
    fn default_workers_fit_the_budget() {
        let request = request(json!({ "store": "photos" }));
        assert_eq!(request.clone().completed(1).workers, [1]);
        assert_eq!(request.clone().completed(6).workers, [1, 2, 4]);
        assert_eq!(request.completed(64).workers, [1, 2, 4, 8]);
    }

    #[test]
    fn each_number_out_of_its_range_is_a_fault_at_its_place() {
        assert_eq!(places(request(json!({ "store": "photos" }))), [""; 0]);
        for (field, wrong, place) in [
            ("workers", json!([1, 3]), "/workers/1"),
            ("workers", json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), "/workers"),
            ("in_flight", json!(9), "/workers/1"),
            ("limit", json!(0), "/limit"),
            ("repeats", json!(11), "/repeats"),
            ("max_s", json!(0), "/max_s"),
            ("batch_size", json!(0), "/batch_size"),
            ("modes", json!([]), "/modes"),
            ("name", json!("a b"), "/name"),
        ] {
            let mut document = json!({ "store": "photos" });
            document[field] = wrong;
            assert_eq!(places(request(document.clone())), [place], "{document}");
        }
    }

    #[test]
    fn memory_counts_batches_records_and_keys() {
        let request = request(json!({ "store": "photos", "workers": [2], "batch_size": 4, "repeats": 3 }));
        let (held, objects) = (2 * (4 * 2 + 4), 100);
        assert_eq!(
            request.bytes_for(objects, 1_000),
            held * 1_000 + objects * 3 * RECORD_BYTES + objects * OBJECT_BYTES
        );
        assert_eq!(request.cost(), Cost { threads: 2, memory_mib: 256 + OWN_MIB, instances: 0 });
    }
}
