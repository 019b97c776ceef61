use std::sync::OnceLock;

use penstock_types::config::CompileBounds;
use penstock_wasm::{CompileLimits, Compiler, CompilerProcess};

const NAME: &str = "compile-module";
/// Path of the running program, even if its file has been replaced or removed since: another build would compile code that this
/// program does not accept.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Program of the child processes that compile modules, set at the start of the process.
static PROCESS: OnceLock<CompilerProcess> = OnceLock::new();

/// Sets `other`, or this program, as the compiler of modules.
pub(crate) fn start_with(other: Option<CompilerProcess>) {
    PROCESS.get_or_init(|| other.unwrap_or_else(|| CompilerProcess::new(THIS_PROGRAM, [NAME])));
}

/// Compiler that runs in a child process within these bounds.
pub(crate) fn compiler(bounds: &CompileBounds) -> Compiler {
    let process = PROCESS.get().expect("`start_with` was called first").clone();
    Compiler::Child(CompilerProcess { limits: CompileLimits::from(bounds), ..process })
}
