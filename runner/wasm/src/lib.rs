//! The sandbox: runs stage modules, which are strangers' code, within limits of memory, CPU time, stack and output.
//!
//! Bytes become a [`Module`] by [`Sandbox::load`] (checked, made a component, compiled or mapped from the cache), a
//! module becomes a [`StageFactory`] by [`Module::stage`], and the engine builds one op of it per worker thread. Guests
//! see three host functions and nothing else: no files, no clock, no network, no WASI.

mod bindings;
mod cache;
mod code;
mod compile;
mod component;
mod convert;
mod counters;
mod error;
mod gate;
mod held;
mod instance;
mod limits;
mod linker;
mod log;
mod module;
mod op;
mod sandbox;
pub mod seed;
mod signature;
mod stage;
mod text;
mod ticker;
mod trap;

pub use compile::{CompileLimits, Compiler, CompilerProcess, compile_on_request};
pub use component::ModuleKind;
pub use error::{CompileLimit, ModuleError, SandboxError};
pub use limits::WORKER_STACK_BYTES;
pub use log::{LogLevel, LogLine, LogLines};
pub use module::{Compilation, Module, ModuleReport};
pub use sandbox::{Sandbox, SandboxSettings, inspect};
pub use stage::{StageFactory, StageSettings};
