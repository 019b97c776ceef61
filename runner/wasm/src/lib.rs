//! The sandbox: runs stage modules, which are untrusted code, within limits of memory, CPU time, stack and output.
//!
//! Bytes become a [`Module`] by [`Sandbox::load`] (checked, turned into a component, compiled or read from the cache), a module
//! becomes a [`StageFactory`] by [`Module::stage`], and the engine builds one op per worker thread with this factory. Guests see
//! three host functions and nothing else: no files, no clock, no network, no WASI. A core module built for WASI preview1 is given
//! closed functions in its place.

mod cache;
mod compile;
mod component;
mod convert;
mod counters;
mod described;
mod error;
mod gate;
mod held;
mod instance;
mod limits;
mod linker;
mod log;
mod module;
mod op;
mod preview1;
mod sandbox;
pub mod seed;
mod settings;
mod signature;
mod stage;
mod ticker;
mod trap;

pub use compile::{CompileLimits, Compiler, CompilerProcess, compile_on_request};
pub use component::ModuleKind;
pub use described::with_manifest;
pub use error::{CompileLimit, ModuleError, SandboxError};
pub use limits::WORKER_STACK_BYTES;
pub use log::{LogLevel, LogLine, LogLines};
pub use module::{Compilation, Module, ModuleReport};
pub use sandbox::{Sandbox, SandboxSettings, inspect};
pub use settings::StageSettings;
pub use stage::StageFactory;

/// The contract as Rust types, generated from the WIT. Private, because no generated type is part of this crate's API.
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../guest-sdk/wit",
        world: "stage",
        // Samples are passed as borrows of the engine's bytes; only results own their data.
        ownership: Borrowing { duplicate_if_necessary: true },
        imports: { default: trappable },
    });

    /// What modules with a state export in addition.
    pub(crate) mod saving {
        wasmtime::component::bindgen!({ path: "../../guest-sdk/wit", world: "saving" });
    }
}
