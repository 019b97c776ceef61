//! One run from its start to its end, on its own thread.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use penstock_engine::running::StopReason;
use penstock_pipeline::{Ended, OutputError, OutputFolder, Prepared, Run, RunEnds, StartError};
use penstock_stream::OpenStreamError;
use penstock_types::resume::{Token, TokenFault};
use penstock_types::run::RunState;
use penstock_types::spec::Consumer;
use penstock_types::text::with_causes;
use tokio::time::{Instant, timeout_at};

use crate::error::RunsError;
use crate::fair::ClientId;
use crate::history::{HistoryError, runs};
use crate::live::{LiveObserver, LiveRun};
use crate::workshop::{LoadError, Workshop};

/// Interval at which replays, trials and benchmarks check for cancellation.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(100);

const WAIT: Duration = Duration::from_secs(3600);
/// Maximum wait for a permit to compile a module whose compiled code is no longer cached.
const COMPILE_TURN: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) prepared: Prepared<()>,
    /// Document with all defaults filled in, as JSON text: a queued run holds no parsed tree.
    pub(crate) spec: String,
    /// Set if the run continues another one whatever differs.
    pub(crate) is_forced: bool,
}

#[derive(Debug, thiserror::Error)]
enum RunStartError {
    #[error("cannot load the module `{written}`")]
    Module { written: String, source: LoadError },
    #[error(transparent)]
    Turn(#[from] RunsError),
    #[error("cannot read the state from which the run begins")]
    State(#[from] HistoryError),
    #[error(transparent)]
    Token(#[from] TokenFault),
    #[error("{}", too_long(*.0))]
    TooLong(Duration),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Stream(#[from] OpenStreamError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Maximum duration of a run, and the time at which the run reaches it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    most: Duration,
    until: Instant,
}

impl TimeLimit {
    /// Time limit of a run or replay that starts now; `None` if unlimited.
    pub(crate) fn starting_now(workshop: &Workshop) -> Option<Self> {
        let most = *workshop.settings.bounds.max_time?.get();
        Some(Self { most, until: Instant::now() + most })
    }

    /// Ends a run as failed if it has reached its time limit.
    pub(crate) fn enforce(self, run: &Run) {
        if Instant::now() >= self.until {
            run.handle.fail(too_long(self.most));
        }
    }
}

fn too_long(most: Duration) -> String {
    let most = humantime::format_duration(most);
    format!("the run took longer than {most}, which is the limit (`limits.runs.max_time`)")
}

/// Runs a job of a client to its end. Returns true if the whole run is stored.
pub(crate) fn work(workshop: &Workshop, client: &ClientId, live: &Arc<LiveRun>, job: &Job) -> bool {
    let limit = TimeLimit::starting_now(workshop);
    match start(workshop, client, live, job, limit) {
        Ok(Some(run)) => {
            live.on_started(&run);
            live.write_soon();
            let Ended { snapshot, output, .. } =
                wait(run, live.registered.for_s.map(Duration::from_secs_f64), limit);
            let output =
                output.err().map(|error| format!("the dead letters are incomplete: {}", with_causes(&error)));
            let (state, error) = (snapshot.state, snapshot.error.clone());
            live.on_ended(Some(snapshot), state, error, output);
        }
        Ok(None) => live.on_ended(None, RunState::Stopped, None, None),
        Err(error) => live.on_ended(None, RunState::Failed, Some(with_causes(&error)), None),
    }
    live.write_all()
}

/// Starts the run; `None` if it was stopped before its start.
fn start(
    workshop: &Workshop,
    client: &ClientId,
    live: &Arc<LiveRun>,
    job: &Job,
    limit: Option<TimeLimit>,
) -> Result<Option<Run>, RunStartError> {
    let mut stop = live.stop_wanted();
    let mut prepared = job.prepared.clone();
    if live.registered.resumes.is_some() {
        let stored = workshop.history.read_blocking(|connection| runs::state(connection, live.id()))?;
        let missing = || HistoryError::Damaged("the state of a waiting run is missing".to_owned());
        let state = stored.flatten().ok_or_else(missing)?;
        prepared.resume(Token::read(state.as_bytes())?, job.is_forced)?;
    }
    // If the run is stopped while its modules are loaded, loading ends with `Err(None)`, an error without a reason.
    let loaded = prepared.load(|wasm| {
        let stopped = pin!(stop.wait_for(|stop| *stop));
        let place = pin!(workshop.compile_place(&wasm.digest, client, COMPILE_TURN));
        // The permit is held until the module is loaded.
        let _place = match workshop.runtime.block_on(select(stopped, place)) {
            Either::Left(_) => return Err(None),
            Either::Right((place, _)) => place.map_err(|busy| Some(RunStartError::from(busy)))?,
        };
        let failed = |source| Some(RunStartError::Module { written: wasm.module.clone(), source });
        workshop.load(&wasm.digest).map_err(failed)
    });
    let prepared = match loaded {
        Ok(prepared) => prepared,
        Err(None) => return Ok(None),
        Err(Some(error)) => return Err(error),
    };
    let folder = workshop.run_folder(live.id());
    let document = serde_json::from_str(&job.spec).expect("it was written from a document");
    let letter_bytes = u64::from(workshop.settings.bounds.dead_letters_mib.get()) << 20;
    let output = OutputFolder::for_letters(&folder, document, letter_bytes, workshop.disk.clone())?;
    let max_tasks = Some(workshop.settings.bounds.concurrency.get());
    let mut ends = RunEnds { id: Some(live.id().clone()), max_tasks, ..RunEnds::default() };
    if let Consumer::Stream(stream) = prepared.plan.consumer {
        let (ahead, wait) = (stream.ahead.get() as usize, Duration::from_secs_f64(stream.wait_s.get()));
        let (consumer, address) =
            penstock_stream::open(&workshop.streams(), live.id(), &prepared.plan.name, ahead, wait)?;
        live.on_stream(address);
        ends.memory = Some(consumer.memory());
        ends.consumer = Some(Box::new(consumer));
    }
    let ready = workshop.runtime.block_on(async {
        let ready = pin!(prepared.ready(Some(Arc::new(output)), ends));
        // The wait cannot fail: `live` holds the sender, so the channel stays open.
        let stopped = pin!(stop.wait_for(|stop| *stop));
        let first = async {
            match select(ready, stopped).await {
                Either::Left((ready, _)) => Some(ready),
                Either::Right(_) => None,
            }
        };
        match limit {
            Some(TimeLimit { most, until }) => {
                timeout_at(until, first).await.map_err(|_| RunStartError::TooLong(most))
            }
            None => Ok(first.await),
        }
    });
    let Some(ready) = ready?.transpose()? else { return Ok(None) };
    live.begin(ready.clock.clone(), ready.facts().clone());
    Ok(Some(ready.start(vec![Arc::new(LiveObserver(Arc::downgrade(live)))])?))
}

fn wait(run: Run, time: Option<Duration>, limit: Option<TimeLimit>) -> Ended {
    let left = limit.map(|limit| limit.until.saturating_duration_since(Instant::now()));
    match (time, left.zip(limit)) {
        (Some(time), left) if left.is_none_or(|(left, _)| time <= left) => {
            if !run.handle.wait_for(time) {
                run.handle.stop(StopReason::TimeIsUp);
            }
        }
        (_, Some((left, limit))) => {
            if !run.handle.wait_for(left) {
                run.handle.fail(too_long(limit.most));
            }
        }
        _ => while !run.handle.wait_for(WAIT) {},
    }
    run.wait()
}
