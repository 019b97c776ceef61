//! What Python code can catch.

use std::fmt::Display;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(penstock, PenstockError, PyException, "Anything that Penstock cannot do.");
create_exception!(
    penstock,
    InvalidPipeline,
    PenstockError,
    "The document, a store or a module cannot be used; the message tells all that is wrong, and where."
);
create_exception!(penstock, RunFailed, PenstockError, "A run ended early; the message says why.");
create_exception!(
    penstock,
    BatchesHeld,
    PenstockError,
    "The training loop keeps so many batches that there is no memory for the next one."
);
create_exception!(
    penstock,
    ForkError,
    PenstockError,
    "This process was forked from one whose threads run pipelines; its own threads do not. Use `spawn`."
);
create_exception!(
    penstock,
    StreamError,
    PenstockError,
    "The stream of a server's run cannot be read; the message says why."
);

/// All faults of a pipeline, a line each.
pub(crate) fn invalid(faults: &[impl Display]) -> PyErr {
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    InvalidPipeline::new_err(format!("the pipeline cannot run as written, {count}:\n{}", lines.join("\n")))
}
