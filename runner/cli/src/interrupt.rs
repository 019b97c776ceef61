use std::fs;
use std::future::poll_fn;
use std::io;
use std::process;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use penstock_engine::running::{RunHandle, StopReason};
use penstock_pipeline::{OutputFolder, Run};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::STOPPED;

/// How long the second Ctrl-C waits for what failed so far to be written down: the disk may be what hangs.
const FLUSH: Duration = Duration::from_secs(1);

/// How long after the first one another is taken for its twin.
const TWIN: Duration = Duration::from_millis(300);

/// Waits for one of these signals, from now on.
pub(crate) fn signalled(kinds: &[SignalKind]) -> io::Result<impl Future<Output = ()> + use<>> {
    let mut signals = kinds.iter().map(|kind| signal(*kind)).collect::<io::Result<Vec<_>>>()?;
    Ok(poll_fn(move |context| match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }))
}

/// Signals that ask a process to end: of a person, of a supervisor, and of a terminal that goes away, unless whoever started
/// the process has it outlive that.
fn asking() -> Vec<SignalKind> {
    let hangup = (!ignores_hangup()).then(SignalKind::hangup);
    [SignalKind::interrupt(), SignalKind::terminate()].into_iter().chain(hangup).collect()
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
/// waits for, after `flush`, which may block for a second. `stop` must not block.
pub(crate) fn stopping(
    runtime: &Runtime,
    stop: impl FnOnce() + Send + 'static,
    flush: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let _context = runtime.enter();
    let kinds = asking();
    let first = signalled(&kinds)?;
    runtime.spawn(async move {
        first.await;
        stop();
        // Some who send one send it twice: to the process, and to its group.
        sleep(TWIN).await;
        let Ok(second) = signalled(&kinds) else { return };
        second.await;
        // In time or not, the process ends.
        timeout(FLUSH, spawn_blocking(flush)).await.ok();
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
        let stop = || drop(spawn_blocking(|| runs.into_iter().for_each(|run| run.stop(StopReason::Asked))));
        stopping(runtime, stop, move || begun.get().into_iter().for_each(|output| output.flush()))?;
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
