use std::fs;
use std::future::poll_fn;
use std::io;
use std::process;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use penstock_engine::running::{RunHandle, StopReason};
use penstock_pipeline::{OutputFolder, Run};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::STOPPED;

/// How long the second Ctrl-C waits for what failed so far to be written down: the disk may be what hangs.
const FLUSH: Duration = Duration::from_secs(1);

/// How long after the first one another is taken for its twin.
const TWIN: Duration = Duration::from_millis(300);

/// What asks a process to end: a person, a supervisor, and a terminal that goes away, unless whoever started the process has it
/// outlive that.
struct Signals(Vec<Signal>);

impl Signals {
    fn listen() -> io::Result<Self> {
        let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
        if !ignores_hangup() {
            kinds.push(SignalKind::hangup());
        }
        Ok(Self(kinds.into_iter().map(signal).collect::<Result<_, _>>()?))
    }

    async fn next(&mut self) {
        poll_fn(|context| match self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Forgets those that have come.
    fn forget(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for signal in &mut self.0 {
            while signal.poll_recv(&mut context).is_ready() {}
        }
    }
}

/// Whether this process was started to ignore that its terminal goes away, as `nohup` does: who listens ignores it no longer.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    // The lowest bit stands for signal 1, which this is.
    ignored.is_some_and(|signals| signals & 1 == 1)
}

/// Lets the first Ctrl-C, and what else asks the process to end, do `stop`; the second one ends the process, whatever it
/// waits for.
pub(crate) fn stopping(runtime: &Runtime, stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _context = runtime.enter();
    let mut signals = Signals::listen()?;
    runtime.spawn(async move {
        signals.next().await;
        stop();
        sleep(TWIN).await;
        signals.forget();
        signals.next().await;
        end();
    });
    Ok(())
}

/// Ctrl-C, and what else asks the process to end: the first one stops the run and any that follows, the second one ends the process, whatever it waits for.
pub(crate) struct Interrupts {
    run: Sender<RunHandle>,
    /// Of the run, and of all that follow.
    output: Arc<OnceLock<Arc<OutputFolder>>>,
}

impl Interrupts {
    /// Listens from now on; an interrupt that comes before the run is kept for it.
    pub(crate) fn listen(runtime: &Runtime) -> io::Result<Self> {
        let (run, runs) = mpsc::channel::<RunHandle>();
        let output: Arc<OnceLock<Arc<OutputFolder>>> = Arc::default();
        let begun = output.clone();
        let _context = runtime.enter();
        let mut signals = Signals::listen()?;
        runtime.spawn(async move {
            signals.next().await;
            let stopped = spawn_blocking(move || {
                runs.into_iter().for_each(|run| run.stop(StopReason::Asked));
            });
            // Some who send one send it twice: to the process, and to its group.
            sleep(TWIN).await;
            signals.forget();
            signals.next().await;
            drop(stopped);
            if let Some(output) = begun.get().cloned() {
                // In time or not, the process ends.
                timeout(FLUSH, spawn_blocking(move || output.flush())).await.ok();
            }
            end();
        });
        Ok(Self { run, output })
    }

    /// Lets an interrupt stop this run, too; the runs before it are over, and had the same output.
    pub(crate) fn stop(&self, run: &Run) {
        if let Some(output) = run.output() {
            self.output.get_or_init(|| output);
        }
        // Nobody listens any more only when the process is about to end.
        self.run.send(run.handle()).unwrap_or_default();
    }
}

#[expect(clippy::exit, reason = "the user has asked twice; whatever still waits is not worth waiting for")]
fn end() {
    process::exit(i32::from(STOPPED));
}
