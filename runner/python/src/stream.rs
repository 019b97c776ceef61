//! The batches of a server's run, in shared memory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use penstock_stream::client::{Batch as Streamed, Client, Received, StreamError as ClientError};
use penstock_types::text::with_causes;
use pyo3::prelude::*;

use crate::batch::{Batch, Held};
use crate::errors::StreamError;
use crate::process::{Home, SLICE, locked};

/// A connection to a run of a server on the same machine.
#[pyclass(frozen, module = "penstock._penstock")]
pub(crate) struct StreamClient {
    home: Home,
    client: Client,
    held: Held,
    max_held: usize,
    /// Batches that came when the loop held too many, or did not want them after all, since a signal came; several when several
    /// threads asked.
    waiting: Mutex<VecDeque<Streamed>>,
    /// Number of the last batch that was given, as long as it is not acknowledged.
    out: Mutex<Option<u64>>,
    end: OnceLock<bool>,
    is_closed: AtomicBool,
}

#[pymethods]
impl StreamClient {
    /// Connects to the socket of a run with the run's secret.
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

    /// Says that the last batch is done with, so that it is never given to anybody again, and gives the next one with its number
    /// and whether an earlier consumer was given it; `None` when there are no more. Waits without Python's lock, and answers
    /// Ctrl-C, which costs no batch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(u64, bool, Batch)>> {
        self.home.check()?;
        self.acknowledge(py)?;
        let waiting = locked(&self.waiting).pop_front();
        let Some(taken) = waiting.map_or_else(|| self.take(py), |taken| Ok(Some(taken)))? else {
            return Ok(None);
        };
        // Whoever is interrupted now never sees it, and asks again.
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

    /// Whether the server has closed the connection, or is gone.
    #[getter]
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether all batches of the run were acknowledged; `None` as long as the stream goes on.
    #[getter]
    fn is_whole(&self) -> Option<bool> {
        self.end.get().copied()
    }

    /// Batches that may be out and not acknowledged.
    #[getter]
    fn ahead(&self) -> usize {
        self.client.ahead()
    }
}

impl StreamClient {
    /// When the server is gone, or has ended the stream, what is taken next tells.
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

fn failed(error: &dyn std::error::Error) -> PyErr {
    StreamError::new_err(with_causes(error))
}
