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

/// Maximum time that the second Ctrl-C waits until recorded failures are flushed: the user may have pressed Ctrl-C because the
/// disk hangs.
const FLUSH: Duration = Duration::from_secs(1);

/// A second signal within this time after the first signal counts as a duplicate.
const TWIN: Duration = Duration::from_millis(300);

/// Starts to listen for these signals. The future resolves when the first of them arrives.
pub(crate) fn signalled(kinds: &[SignalKind]) -> io::Result<impl Future<Output = ()> + use<>> {
    let mut signals = kinds.iter().map(|kind| signal(*kind)).collect::<io::Result<Vec<_>>>()?;
    Ok(poll_fn(move |context| match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }))
}

/// Signals that ask the process to end: Ctrl-C, a supervisor's SIGTERM, and the SIGHUP of a closed terminal, unless the process
/// was started to ignore SIGHUP.
fn end_signals() -> Vec<SignalKind> {
    let hangup = (!ignores_hangup()).then(SignalKind::hangup);
    [SignalKind::interrupt(), SignalKind::terminate()].into_iter().chain(hangup).collect()
}

/// True if this process was started to ignore SIGHUP, as by `nohup`; listening for SIGHUP would make the process react to it.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    // Bit 0 is signal 1, SIGHUP.
    ignored.is_some_and(|signals| signals & 1 == 1)
}

/// Runs `stop` at the first Ctrl-C or other end signal. A second signal runs `flush` for up to one second, and ends the process
/// even if threads still run. `stop` must not block.
pub(crate) fn stopping(
    runtime: &Runtime,
    stop: impl FnOnce() + Send + 'static,
    flush: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let _context = runtime.enter();
    let kinds = end_signals();
    let first = signalled(&kinds)?;
    runtime.spawn(async move {
        first.await;
        stop();
        // Some programs send a signal both to the process and to its group.
        sleep(TWIN).await;
        let Ok(second) = signalled(&kinds) else { return };
        second.await;
        // The process ends even if the flush takes longer.
        timeout(FLUSH, spawn_blocking(flush)).await.ok();
        end();
    });
    Ok(())
}

/// Effects of Ctrl-C and of other end signals: the first signal stops the current run and all later runs, and the second signal
/// ends the process even if threads still run.
pub(crate) struct Interrupts {
    run: Sender<RunHandle>,
    /// Output folder, which all runs of this process share; set by the first run that has one.
    output: Arc<OnceLock<Arc<OutputFolder>>>,
}

impl Interrupts {
    /// Starts to listen. An interrupt that arrives earlier than a run stops the run as soon as [`Self::stop`] registers it.
    pub(crate) fn listen(runtime: &Runtime) -> io::Result<Self> {
        let (run, runs) = mpsc::channel::<RunHandle>();
        let output: Arc<OnceLock<Arc<OutputFolder>>> = Arc::default();
        let begun = output.clone();
        let stop = || drop(spawn_blocking(|| runs.into_iter().for_each(|run| run.stop(StopReason::Asked))));
        stopping(runtime, stop, move || begun.get().into_iter().for_each(|output| output.flush()))?;
        Ok(Self { run, output })
    }

    /// Registers the current run, which an interrupt then stops. Earlier runs have ended, and had the same output folder.
    pub(crate) fn stop(&self, run: &Run) {
        if let Some(output) = run.output() {
            self.output.get_or_init(|| output);
        }
        // The send fails only if the receiver is gone because the process is about to end.
        self.run.send(run.handle.clone()).unwrap_or_default();
    }
}

#[expect(clippy::exit, reason = "a second interrupt ends the process, even if threads still wait")]
fn end() {
    process::exit(i32::from(STOPPED));
}
