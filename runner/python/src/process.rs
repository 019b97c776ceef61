//! What there is once in a process: the threads that read storage, and the knowledge that they do not survive a fork.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use crate::errors::{ForkError, PenstockError};
use crate::logs;

/// How long a wait goes on without looking for signals: Ctrl-C is to be felt at once.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The process in which something was made.
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

    /// Whether this is still the process.
    pub(crate) fn is_here(self) -> bool {
        self.0 == std::process::id()
    }

    /// Fails in a process that was forked from it.
    pub(crate) fn check(self) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(ForkError::new_err(
            "this process was forked from one that runs Penstock, and threads do not survive a fork: start workers with the method \
             `spawn` (`multiprocessing.get_context(\"spawn\")`), or let the pipeline do the loading, in place of a `DataLoader` \
             with workers",
        ))
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads that read storage and wait.
pub(crate) fn io() -> PyResult<&'static Handle> {
    if let Some(io) = IO.get() {
        io.home.check()?;
        return Ok(io.runtime.handle());
    }
    logs::listen();
    let runtime = Builder::new_multi_thread()
        .thread_name("penstock-io")
        .enable_all()
        .build()
        .map_err(|error| PenstockError::new_err(format!("cannot start the I/O threads: {error}")))?;
    // Another thread may have been faster; its threads do as well.
    Ok(IO.get_or_init(|| Io { home: Home::here(), runtime }).runtime.handle())
}

/// What comes of a future, waited for without Python's lock. Ctrl-C drops it.
pub(crate) fn wait_for<F: Future<Output: Send> + Send>(py: Python<'_>, future: F) -> PyResult<F::Output> {
    let io = io()?;
    let mut future = pin!(future);
    loop {
        match py.detach(|| io.block_on(async { timeout(SLICE, future.as_mut()).await })) {
            Ok(output) => return Ok(output),
            Err(_) => {
                logs::tell(py)?;
                py.check_signals()?;
            }
        }
    }
}
