//! Exceptions of the package.

use std::fmt::Display;

use penstock_types::text::with_causes;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(penstock, PenstockError, PyException, "Base class of all errors of Penstock.");
create_exception!(
    penstock,
    InvalidPipeline,
    PenstockError,
    "The document, a store or a module is invalid; the message lists all faults with their places."
);
create_exception!(penstock, RunFailed, PenstockError, "A run ended early; the message states the reason.");
create_exception!(
    penstock,
    BatchesHeld,
    PenstockError,
    "The training loop holds the maximum number of batches, so that the next one cannot be delivered."
);
create_exception!(
    penstock,
    ForkError,
    PenstockError,
    "This process was forked from one that runs pipelines, whose threads do not exist after a fork. Use `spawn`."
);
create_exception!(
    penstock,
    StreamError,
    PenstockError,
    "The stream of a server's run cannot be read; the message states the reason."
);

/// Exception with the message of an error and its causes.
pub(crate) fn failed(error: impl std::error::Error) -> PyErr {
    PenstockError::new_err(with_causes(&error))
}

/// Combines all faults of a pipeline into an exception, one line each.
pub(crate) fn invalid(faults: &[impl Display]) -> PyErr {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    InvalidPipeline::new_err(format!("the pipeline cannot run as written, {count}:\n{}", lines.join("\n")))
}
