//! Native part of the Python package `penstock`: checks and runs pipelines in this process; a training loop reads their batches
//! without a copy. The public API is in `python/penstock`.

mod batch;
mod checked;
mod command;
mod dlpack;
mod errors;
mod logs;
mod output;
mod pipeline;
mod process;
mod stream;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
#[pyo3(name = "_penstock")]
fn penstock(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<pipeline::Loader>()?;
    module.add_class::<pipeline::Running>()?;
    module.add_class::<stream::StreamClient>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<batch::Array>()?;
    module.add_function(wrap_pyfunction!(pipeline::headspace_of, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::merge_states, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::verdict_in_words, module)?)?;
    module.add_function(wrap_pyfunction!(stream::announced_token, module)?)?;
    module.add_function(wrap_pyfunction!(command::compile_module, module)?)?;
    module.add_function(wrap_pyfunction!(command::main, module)?)?;
    let py = module.py();
    module.add("PenstockError", py.get_type::<errors::PenstockError>())?;
    module.add("InvalidPipeline", py.get_type::<errors::InvalidPipeline>())?;
    module.add("RunFailed", py.get_type::<errors::RunFailed>())?;
    module.add("BatchesHeld", py.get_type::<errors::BatchesHeld>())?;
    module.add("ForkError", py.get_type::<errors::ForkError>())?;
    module.add("StreamError", py.get_type::<errors::StreamError>())?;
    Ok(())
}
