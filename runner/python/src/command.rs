//! The command `penstock`, and the child process that compiles modules: both run this library in a separate interpreter.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use penstock_wasm::{CompilerProcess, compile_on_request};
use pyo3::prelude::*;

/// Python program that compiles one module and exits; its argument is the path of this library.
const COMPILE: &str = "import sys; from importlib.machinery import ExtensionFileLoader as L; \
    from importlib.util import spec_from_file_location as S, module_from_spec as M; \
    s = S('_penstock', sys.argv[1], loader=L('_penstock', sys.argv[1])); m = M(s); s.loader.exec_module(m); \
    sys.exit(m.compile_module())";

/// Environment variable with the search path of an interpreter's shared libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Configuration of an interpreter that compiles a module with this library.
pub(crate) fn compiler(interpreter: PathBuf, library: PathBuf) -> CompilerProcess {
    CompilerProcess {
        environment: env::var_os(LIBRARY_PATH).map(|path| (LIBRARY_PATH.into(), path)).into_iter().collect(),
        ..CompilerProcess::new(
            interpreter,
            ["-I".into(), "-c".into(), COMPILE.into(), library.into_os_string()],
        )
    }
}

/// Compiles one module, read from standard input. Returns the exit code.
#[pyfunction]
pub(crate) fn compile_module() -> u8 {
    u8::from(compile_on_request() != ExitCode::SUCCESS)
}

/// Executes a command line of `penstock` and returns the exit code. Requires a separate process: it changes limits and signals,
/// and may end the process.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>, interpreter: PathBuf, library: PathBuf) -> u8 {
    py.detach(|| penstock_cli::main(arguments, Some(compiler(interpreter, library))))
}
