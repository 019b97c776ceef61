//! The command `penstock`, and the child that compiles modules: both are this library in an interpreter of their own.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use penstock_wasm::{CompilerProcess, compile_on_request};
use pyo3::prelude::*;

/// Program with which a Python interpreter compiles one module and exits; its argument is the path of this library.
const COMPILE: &str = "import sys; from importlib.machinery import ExtensionFileLoader as L; \
    from importlib.util import spec_from_file_location as S, module_from_spec as M; \
    s = S('_penstock', sys.argv[1], loader=L('_penstock', sys.argv[1])); m = M(s); s.loader.exec_module(m); \
    sys.exit(m.compile_module())";

/// Variable with the folders of an interpreter's shared libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// An interpreter that compiles a module with this library.
pub(crate) fn compiler(interpreter: PathBuf, library: PathBuf) -> CompilerProcess {
    CompilerProcess {
        environment: env::var_os(LIBRARY_PATH).map(|path| (LIBRARY_PATH.into(), path)).into_iter().collect(),
        ..CompilerProcess::new(
            interpreter,
            ["-I".into(), "-c".into(), COMPILE.into(), library.into_os_string()],
        )
    }
}

/// Compiles the one module that is asked for on standard input. Returns the exit code.
#[pyfunction]
pub(crate) fn compile_module() -> u8 {
    u8::from(compile_on_request() != ExitCode::SUCCESS)
}

/// Executes a command line of `penstock` and returns the exit code. The process is the command's own: it changes limits and signals, and
/// may end it.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>, interpreter: PathBuf, library: PathBuf) -> u8 {
    py.detach(|| penstock_cli::main(arguments, Some(compiler(interpreter, library))))
}
