//! From checked bytes to machine code.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::ModuleError;
use crate::text::printable;

/// Stack of the compiling thread, in bytes: Cranelift recurses on deeply nested code, within what the gate lets through.
const COMPILER_STACK_BYTES: usize = 16 << 20;

/// Compiles a component on a thread of its own and waits for it.
pub(crate) fn compile(engine: &Engine, component: &[u8]) -> Result<Component, ModuleError> {
    let failed = |reason: String| ModuleError::Compile { reason: printable(&reason, 1000) };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("compile-module".into())
            .stack_size(COMPILER_STACK_BYTES)
            .spawn_scoped(scope, || Component::from_binary(engine, component))
            .map_err(|error| failed(format!("no thread for the compiler: {error}")))?
            .join()
            .map_err(|_| failed("the compiler panicked".into()))?
            .map_err(|error| failed(format!("{error:#}")))
    })
}
