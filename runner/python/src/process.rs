//! State of the process: the threads that read storage, and detection of forks, which these threads do not survive.

use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use crate::errors::{ForkError, PenstockError};
use crate::logs;

/// Time between two checks for signals during a wait, so that Ctrl-C acts at once.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Process in which an object was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(u32);

struct Io {
    home: Home,
    runtime: Runtime,
}

static IO: OnceLock<Io> = OnceLock::new();

impl Home {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn is_here(self) -> bool {
        self.0 == std::process::id()
    }

    /// Fails in a process forked from the one that created the object.
    pub(crate) fn check(self) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(ForkError::new_err(
            "this process was forked from one that runs Penstock, and threads do not survive a fork: start workers with the method \
             `spawn` (`multiprocessing.get_context(\"spawn\")`), or let the pipeline load the data, in place of a `DataLoader` \
             with workers",
        ))
    }
}

/// Runtime whose threads read storage and wait.
pub(crate) fn io() -> PyResult<&'static Handle> {
    if let Some(io) = IO.get() {
        io.home.check()?;
        return Ok(io.runtime.handle());
    }
    logs::start_queueing();
    let runtime = Builder::new_multi_thread()
        .thread_name("penstock-io")
        .enable_all()
        .build()
        .map_err(|error| PenstockError::new_err(format!("cannot start the I/O threads: {error}")))?;
    // Another thread may have started a runtime first; then that runtime is used.
    Ok(IO.get_or_init(|| Io { home: Home::here(), runtime }).runtime.handle())
}

/// Waits for a future without the GIL. Ctrl-C drops the future.
pub(crate) fn wait_for<F: Future<Output: Send> + Send>(py: Python<'_>, future: F) -> PyResult<F::Output> {
    let io = io()?;
    let mut future = pin!(future);
    loop {
        match py.detach(|| io.block_on(async { timeout(SLICE, future.as_mut()).await })) {
            Ok(output) => return Ok(output),
            Err(_) => {
                logs::flush_to_python(py)?;
                py.check_signals()?;
            }
        }
    }
}
