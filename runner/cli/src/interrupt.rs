use std::io;
use std::process;
use std::sync::mpsc::{self, Sender};

use penstock_engine::running::{RunHandle, StopReason};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::STOPPED;

/// Ctrl-C: the first one stops the run and any that follows, the second one ends the process, whatever it waits for.
pub(crate) struct Interrupts {
    run: Sender<RunHandle>,
}

impl Interrupts {
    /// Listens from now on; an interrupt that comes before the run is kept for it.
    pub(crate) fn listen(runtime: &Runtime) -> io::Result<Self> {
        let (run, runs) = mpsc::channel::<RunHandle>();
        let _context = runtime.enter();
        let mut interrupts = signal(SignalKind::interrupt())?;
        runtime.spawn(async move {
            interrupts.recv().await;
            let stopped = tokio::task::spawn_blocking(move || {
                runs.into_iter().for_each(|run| run.stop(StopReason::Asked));
            });
            interrupts.recv().await;
            drop(stopped);
            end();
        });
        Ok(Self { run })
    }

    /// Lets an interrupt stop this run, too; the runs before it are over.
    pub(crate) fn stop(&self, run: RunHandle) {
        // Nobody listens any more only when the process is about to end.
        self.run.send(run).unwrap_or_default();
    }
}

#[expect(clippy::exit, reason = "the user has asked twice; whatever still waits is not worth waiting for")]
fn end() {
    process::exit(i32::from(STOPPED));
}
