//! From checked bytes to machine code.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::component::encode;
use crate::error::ModuleError;
use crate::module::ModuleKind;
use crate::text::printable;

/// Stack of the compiling thread, in bytes: Cranelift recurses on deeply nested code, within what the gate lets through.
const COMPILER_STACK_BYTES: usize = 16 << 20;

/// Compiles an upload that passed the gate, on a thread of its own, and waits for it.
pub(crate) fn compile(engine: &Engine, bytes: &[u8], kind: ModuleKind) -> Result<Component, ModuleError> {
    apart(|| {
        let compiled = match kind {
            ModuleKind::Component => Component::from_binary(engine, bytes),
            ModuleKind::Core => Component::from_binary(engine, &encode(bytes)?),
        };
        compiled.map_err(|error| failed(&format!("{error:#}")))
    })
}

/// Whether a core module can be made a component, which reads all of it.
pub(crate) fn check_encoding(core: &[u8]) -> Result<(), ModuleError> {
    apart(|| encode(core).map(drop))
}

/// Does the work on a thread with a large stack: what reads a stranger's bytes may recurse or panic, and neither may end
/// the caller.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, ModuleError> + Send) -> Result<T, ModuleError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("compile-module".into())
            .stack_size(COMPILER_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(&format!("no thread for the compiler: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(failed("the compiler panicked on it")))
    })
}

fn failed(reason: &str) -> ModuleError {
    ModuleError::Compile { reason: printable(reason, 1000) }
}
