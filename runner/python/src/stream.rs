//! Batches of a server's run, in shared memory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use penstock_engine::lock::locked;
use penstock_stream::client::{Batch as Streamed, Client, Received, StreamError as ClientError};
use penstock_types::text::with_causes;
use pyo3::prelude::*;

use crate::batch::{Batch, Held};
use crate::errors::StreamError;
use crate::process::{Home, SLICE};

/// A connection to a run of a server on the same machine.
#[pyclass(frozen, module = "penstock._penstock")]
pub(crate) struct StreamClient {
    home: Home,
    client: Client,
    held: Held,
    max_held: usize,
    /// Batches that arrived while the loop held too many, or while a signal interrupted the call; several if several threads
    /// called `next`.
    waiting: Mutex<VecDeque<Streamed>>,
    /// Number of the last batch delivered, until it is acknowledged.
    out: Mutex<Option<u64>>,
    end: OnceLock<bool>,
    is_closed: AtomicBool,
}

#[pymethods]
impl StreamClient {
    /// Connects to the socket of a run with the secret of the run.
    #[new]
    fn new(py: Python<'_>, socket: PathBuf, secret: &str, max_held: usize) -> PyResult<Self> {
        let client = py.detach(|| Client::connect(&socket, secret)).map_err(|error| failed(&error))?;
        Ok(Self {
            home: Home::here(),
            client,
            held: Held::default(),
            max_held,
            waiting: Mutex::default(),
            out: Mutex::default(),
            end: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Acknowledges the last batch, so that it is never delivered again, and returns the next one with its number and true if it
    /// was delivered to an earlier consumer; `None` after the last. Waits without the GIL, and handles Ctrl-C, which loses no
    /// batch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(u64, bool, Batch)>> {
        self.home.check()?;
        self.acknowledge(py)?;
        let waiting = locked(&self.waiting).pop_front();
        let Some(taken) = waiting.map_or_else(|| self.take(py), |taken| Ok(Some(taken)))? else {
            return Ok(None);
        };
        // An interrupted caller never sees this batch; its next call returns it.
        match py.check_signals().and_then(|()| self.held.lease(py, self.max_held)) {
            Ok(lease) => {
                *locked(&self.out) = Some(taken.seq);
                Ok(Some((taken.seq, taken.redelivered, Batch::new(taken.contents, lease))))
            }
            Err(error) => {
                locked(&self.waiting).push_front(taken);
                Err(error)
            }
        }
    }

    /// True once the server has closed the connection or ended.
    #[getter]
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// True if all batches of the run were acknowledged; `None` before the end of the stream.
    #[getter]
    fn is_whole(&self) -> Option<bool> {
        self.end.get().copied()
    }

    /// Maximum number of batches delivered and not acknowledged.
    #[getter]
    fn ahead(&self) -> usize {
        self.client.welcome().ahead
    }
}

impl StreamClient {
    /// Errors of a server that has ended or closed the stream are reported by the next `take`.
    fn acknowledge(&self, py: Python<'_>) -> PyResult<()> {
        let Some(number) = locked(&self.out).take() else { return Ok(()) };
        match py.detach(|| self.client.acknowledge(number)) {
            Ok(()) | Err(ClientError::Closed | ClientError::Socket(_)) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<Streamed>> {
        loop {
            let received = py.detach(|| self.client.next(SLICE)).map_err(|error| {
                self.is_closed.fetch_or(matches!(error, ClientError::Closed), Ordering::Release);
                failed(&error)
            });
            match received? {
                Received::Batch(batch) => return Ok(Some(batch)),
                Received::Nothing => py.check_signals()?,
                Received::End(end) => {
                    self.end.get_or_init(|| end.whole);
                    return match end.error {
                        Some(error) => Err(StreamError::new_err(error)),
                        None => Ok(None),
                    };
                }
            }
        }
    }
}

/// Token of the server that this user runs at `url`, if there is one.
#[pyfunction]
pub(crate) fn announced_token(url: &str) -> Option<String> {
    penstock_cli::announced_token(url)
}

fn failed(error: &dyn std::error::Error) -> PyErr {
    StreamError::new_err(with_causes(error))
}
