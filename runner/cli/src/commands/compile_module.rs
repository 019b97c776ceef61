use std::sync::OnceLock;

use penstock_types::config::CompileBounds;
use penstock_wasm::{CompileLimits, Compiler, CompilerProcess};

/// The name of the hidden subcommand.
const NAME: &str = "compile-module";
/// This very program, even where its file was replaced or removed meanwhile: a compiler of another build would make code
/// that this one does not take.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Program of the children that compile modules, set at the start of the process.
static PROCESS: OnceLock<CompilerProcess> = OnceLock::new();

/// Has modules compiled by `other`, or by this program again.
pub(crate) fn start_with(other: Option<CompilerProcess>) {
    PROCESS.get_or_init(|| other.unwrap_or_else(this_program));
}

/// A child that compiles modules within these bounds.
pub(crate) fn compiler(bounds: &CompileBounds) -> Compiler {
    let process = PROCESS.get_or_init(this_program).clone();
    Compiler::Child(CompilerProcess { limits: CompileLimits::from(bounds), ..process })
}

fn this_program() -> CompilerProcess {
    CompilerProcess::new(THIS_PROGRAM, [NAME])
}
