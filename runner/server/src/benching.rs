//! Storage benchmarks that the server runs itself: one at a time, with threads and memory from the budget of runs.

mod job;
mod request;

use std::sync::{Arc, Mutex};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use penstock_bench::{BenchReport, BenchStep, Cancel};
use penstock_engine::lock::locked;
use penstock_pipeline::{Outlets, Runner};
use penstock_types::spec::Spec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::job::Job;
pub use self::request::StartBenchmark;
use crate::error::RunsError;
use crate::history::now;
use crate::runs::{Runs, apart};

/// Maximum time that a stop waits for the end of the benchmark.
const STOP: Duration = Duration::from_secs(3);

/// Progress of the storage benchmark that the server is running, or else of the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchmarkProgress {
    /// Id of this execution of the benchmark; the stored report has another id (`benchmark`).
    pub id: String,
    /// Name of the benchmark.
    pub name: String,
    /// Name of the store whose objects the benchmark reads.
    pub store: String,
    /// Start time of the benchmark, RFC 3339 in UTC.
    pub started_at: String,
    /// Duration of the benchmark so far, or of the whole benchmark once it has ended, in seconds.
    pub elapsed_s: f64,
    /// Maximum duration of the benchmark, in seconds.
    pub max_s: f64,
    /// State of the benchmark.
    pub state: BenchmarkState,
    /// Description of the current step, e.g. `load 2 of 4: async 2x8`.
    pub step: String,
    /// Number of loads that have ended.
    pub loads_done: u32,
    /// Total number of loads: one for each mode and number of workers.
    pub loads: u32,
    /// Reason why the benchmark failed or ended early; `null` if it did neither.
    pub error: Option<String>,
    /// Id of the stored report; `null` until a report is stored.
    pub benchmark: Option<String>,
}

/// State of a benchmark that the server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BenchmarkState {
    /// Running: the benchmark lists objects, reads their sizes, or measures loads.
    #[default]
    Running,
    /// Completed: all loads were measured.
    Completed,
    /// Stopped by a user or by the maximum duration.
    Stopped,
    /// Failed: an error ended the benchmark, or its report could not be stored.
    Failed,
}

/// Function that converts a report into the form in which it is stored: the summary that lists show, and the report as JSON.
pub type PackReport = fn(BenchReport) -> (Value, Vec<u8>);

/// Current or last benchmark of a server; `None` before the first one.
#[derive(Debug, Default)]
pub(crate) struct Benching(Mutex<Option<(Arc<LiveBenchmark>, JoinHandle<()>)>>);

/// State of a benchmark that its thread shares with requests.
#[derive(Debug)]
struct LiveBenchmark {
    started: Instant,
    cancel: Cancel,
    progress: watch::Sender<BenchmarkProgress>,
}

impl Runs {
    /// Starts a benchmark with a part of the budget, and later stores its report. Fails if another benchmark is running.
    pub async fn start_benchmark(
        &self,
        request: StartBenchmark,
        pack: PackReport,
    ) -> Result<BenchmarkProgress, RunsError> {
        let store = self.store(&request.store)?;
        let request = request.completed(self.settings().budget.threads);
        let mut faults = request.faults(self.settings().budget.threads, store.reads().get());
        let spec = match request.spec() {
            Ok(spec) if faults.is_empty() => spec,
            found => {
                faults.extend(found.err().into_iter().flatten());
                return Err(RunsError::invalid(faults));
            }
        };
        let busy = || RunsError::Busy("a benchmark is running; try again when it has ended".to_owned());
        let place = self.0.permits.benchmarks.try_take(self.client()).map_err(|_| busy())?;
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
        let most = self.settings().bounds.max_time.map_or(asked, |most| asked.min(*most.get()));
        let (progress, _) = watch::channel(BenchmarkProgress {
            id: uuid::Uuid::now_v7().to_string(),
            name: spec.name.to_string(),
            store: request.store.clone(),
            started_at: now(),
            max_s: most.as_secs_f64(),
            step: "listing objects".to_owned(),
            loads: u32::try_from(request.modes.len() * request.workers.len()).unwrap_or(u32::MAX),
            ..BenchmarkProgress::default()
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
        let thread = Builder::new()
            .name("benchmark".to_owned())
            .spawn(move || job.run(most))
            .map_err(|error| RunsError::Busy(format!("cannot start a thread for the benchmark: {error}")))?;
        let told = live.progress();
        let before = locked(&self.0.benching.0).replace((live, thread));
        // The previous benchmark has released its permit, so its thread is about to end.
        if let Some((_, thread)) = before {
            apart(self, move || {
                joined(thread);
                Ok(())
            })
            .await?;
        }
        Ok(told)
    }

    /// Returns the progress of the running benchmark, or else of the last one; `None` if there was none, and for callers that may
    /// not use the store of the benchmark.
    pub fn current_benchmark(&self) -> Option<BenchmarkProgress> {
        Some(self.current()?.progress())
    }

    fn current(&self) -> Option<Arc<LiveBenchmark>> {
        let live = locked(&self.0.benching.0).as_ref()?.0.clone();
        self.allowed_stores().get(&live.progress.borrow().store)?;
        Some(live)
    }

    /// Stops the running benchmark and waits up to 3 s for its end.
    pub async fn stop_benchmark(&self, id: &str) -> Result<BenchmarkProgress, RunsError> {
        let live = self.current().filter(|live| live.progress.borrow().id == id);
        let live = live.ok_or_else(|| RunsError::not_found("running benchmark", id))?;
        live.cancel.cancel();
        let mut progress = live.progress.subscribe();
        let over = progress.wait_for(|progress| progress.state != BenchmarkState::Running);
        // After the timeout, the benchmark is returned in its current state.
        timeout(STOP, over).await.ok();
        Ok(live.progress())
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
            BenchStep::Warm => progress.step = "reading all objects once to fill the page cache".to_owned(),
            _ => {}
        });
    }
}

impl Benching {
    /// Cancels the running benchmark and joins its thread.
    pub(crate) fn end(&self) {
        let Some((live, thread)) = locked(&self.0).take() else { return };
        live.cancel.cancel();
        joined(thread);
    }
}

/// Joins the thread of a benchmark, unless it is the current thread: the benchmark's thread may drop the last handle to the runs.
fn joined(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!("the thread of a benchmark panicked; this is a defect of Penstock");
    }
}
