//! Thread of a storage benchmark: measures the loads within the time limit, and stores the report.

use std::io;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

use penstock_bench::report::ReportState;
use penstock_bench::{BenchReport, BenchSpec, BenchStep, Benchmark, Subject, SubjectError};
use penstock_engine::ports::StopFlag;
use penstock_pipeline::Prepared;
use penstock_types::text::with_causes;
use tokio::time::Instant;

use super::request::StartBenchmark;
use super::{BenchmarkState, LiveBenchmark, PackReport};
use crate::error::RunsError;
use crate::owner::Part;
use crate::runs::WeakRuns;
use crate::sharing::HeldAmount;
use crate::work::CHECK_EVERY;

pub(super) struct Job {
    pub(super) runs: WeakRuns,
    pub(super) live: Arc<LiveBenchmark>,
    pub(super) request: StartBenchmark,
    pub(super) spec: BenchSpec,
    pub(super) prepared: Prepared,
    pub(super) ending: StopFlag,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) pack: PackReport,
    /// Permit and part of the budget, released when the job is dropped.
    pub(super) _held: (HeldAmount, Part),
}

#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("cannot start a thread for the loads")]
    Thread(#[source] io::Error),
    #[error("the benchmark panicked; this is a defect of Penstock")]
    Panicked,
    #[error(transparent)]
    Subject(#[from] SubjectError),
    #[error(
        "the benchmark may need {needed_mib} MiB of memory, but its limit is {most_mib} MiB (`memory_mib`); raise the limit, or use fewer \
         workers, smaller batches or fewer objects"
    )]
    Memory { needed_mib: u64, most_mib: u32 },
}

impl Job {
    pub(super) fn run(self, most: Duration) {
        let until = self.live.started + most;
        let measured = thread::scope(|scope| -> Result<_, MeasureError> {
            let measuring =
                Builder::new().name("benchmark load".to_owned()).spawn_scoped(scope, || self.measure());
            let measuring = measuring.map_err(MeasureError::Thread)?;
            let mut is_late = false;
            while !measuring.is_finished() {
                is_late |= Instant::now() >= until && !self.live.cancel.is_cancelled();
                if is_late || self.ending.is_set() {
                    self.live.cancel.cancel();
                }
                thread::park_timeout(CHECK_EVERY);
            }
            let mut report = measuring.join().unwrap_or(Err(MeasureError::Panicked))?;
            if let Some(report) = report.as_mut().filter(|report| is_late && report.reason.is_none()) {
                let seconds = most.as_secs_f64();
                report.reason = Some(format!("stopped after {seconds} s, the maximum duration (`max_s`)"));
            }
            Ok(report)
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
            Err(error) => (BenchmarkState::Failed, Some(with_causes(&error)), None),
        };
        let (benchmark, lost) = match report.map(|report| self.keep(report)) {
            None => (None, None),
            Some(Ok(id)) => (Some(id), None),
            Some(Err(lost)) => (None, Some(format!("the report could not be stored: {lost}"))),
        };
        let elapsed_s = self.live.started.elapsed().as_secs_f64();
        let live = self.live.clone();
        // Threads and memory are released before the end is published, because a caller that waits for the end may start another
        // benchmark at once.
        drop(self);
        live.progress.send_modify(|progress| {
            progress.elapsed_s = elapsed_s;
            progress.state = if lost.is_some() { BenchmarkState::Failed } else { state };
            progress.step = "ended".to_owned();
            progress.error = lost.or(error);
            progress.benchmark = benchmark;
        });
    }

    /// Lists the objects, reads their sizes, and measures the loads; `None` if the benchmark was stopped before the first load.
    fn measure(&self) -> Result<Option<BenchReport>, MeasureError> {
        let (request, live) = (&self.request, &self.live);
        let stores = self.prepared.stores();
        let named = stores.get(&request.store).zip(stores.kind(&request.store));
        let (store, kind) = named.expect("the pipeline reads this store");
        let passes = request.repeats as usize;
        let listing = Instant::now();
        let listed = Subject::open(store.clone(), kind.into(), self.prepared.source(), passes, Vec::new());
        let Some(listed) = self.runtime.block_on(live.cancel.unless(listed)) else { return Ok(None) };
        let listed = listed?.sharing_permits();
        let index = listing.elapsed();
        live.progress.send_modify(|progress| {
            progress.step = format!("reading the sizes of {} objects", listed.reads())
        });
        let surveyed = self.runtime.block_on(live.cancel.unless(listed.survey(self.spec.on_error)));
        let Some(surveyed) = surveyed else { return Ok(None) };
        let subject = surveyed?;
        let needed_mib =
            request.bytes_for(subject.reads(), subject.largest_bytes().unwrap_or(0)).div_ceil(1 << 20);
        if needed_mib > u64::from(request.memory_mib) {
            return Err(MeasureError::Memory { needed_mib, most_mib: request.memory_mib });
        }
        let (spec, runtime, cancel) = (self.spec.clone(), self.runtime.clone(), live.cancel.clone());
        let benchmark = Benchmark::new(spec, subject, index, None, runtime, cancel);
        let mut follow = |step: &BenchStep| live.on_step(step);
        Ok(Some(benchmark.run(concat!("penstock ", env!("CARGO_PKG_VERSION")), &mut follow)))
    }

    fn keep(&self, report: BenchReport) -> Result<String, RunsError> {
        let runs = self.runs.upgrade().filter(|_| !self.ending.is_set()).ok_or(RunsError::Closed)?;
        let (summary, report) = (self.pack)(report);
        Ok(self.runtime.block_on(runs.keep_benchmark(summary, report))?.benchmark.id)
    }
}
