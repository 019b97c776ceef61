use penstock_types::config::CompileBounds;
use penstock_wasm::{CompileLimits, Compiler, CompilerProcess};

/// The name of the hidden subcommand.
const NAME: &str = "compile-module";
/// This very program, even where its file was replaced or removed meanwhile: a compiler of another build would make code
/// that this one does not take.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Modules are compiled by a child that is this program again.
pub(crate) fn compiler(bounds: &CompileBounds) -> Compiler {
    let limits = CompileLimits::from(bounds);
    Compiler::Child(CompilerProcess { limits, ..CompilerProcess::new(THIS_PROGRAM, [NAME]) })
}
