//! From checked bytes to machine code: in this process, or in a child that may die of it.
//!
//! Compilers can be made to take minutes and gigabytes, and to crash, by modules that the gate cannot tell from others. A
//! child process has limits that the kernel holds, can do nothing but compute, and takes nothing with it when it ends.

mod confine;
mod frame;
mod process;
mod queue;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use penstock_types::config::CompileBounds;
use penstock_types::text::printable;
use wasmtime::Engine;

use crate::component::ModuleKind;
use crate::component::encode;
use crate::error::ModuleError;

pub use worker::compile_on_request;

pub(crate) use queue::{CompilePermits, Sharing};

/// Stack of the compiling thread, in bytes: Cranelift recurses on deeply nested code, within what the gate lets through.
const COMPILER_STACK_BYTES: usize = 16 << 20;

#[derive(Clone, Debug, Default)]
pub enum Compiler {
    /// In this process: for tests, and for embedders who trust their modules.
    #[default]
    InProcess,
    /// In a child process with limits.
    Child(CompilerProcess),
}

/// The program that compiles one module and exits, and its limits.
#[derive(Clone, Debug)]
pub struct CompilerProcess {
    /// A program that calls [`compile_on_request`].
    pub program: PathBuf,
    /// Arguments that make it do so.
    pub arguments: Vec<OsString>,
    /// Variables that it needs to start; it gets nothing else of our environment.
    pub environment: Vec<(OsString, OsString)>,
    pub limits: CompileLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Address space of the child, in bytes. A few hundred MiB of it are taken by its threads.
    pub memory_bytes: u64,
    /// CPU time over all its threads; counted in whole seconds, rounded up.
    pub cpu: Duration,
    /// Wall-clock time: for a child that hangs, not for one that works.
    pub wall: Duration,
    pub code_bytes: u64,
}

impl CompilerProcess {
    /// This program with these arguments, without an environment, and with the usual limits.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            limits: CompileLimits::default(),
        }
    }
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self::from(&CompileBounds::default())
    }
}

impl From<&CompileBounds> for CompileLimits {
    fn from(bounds: &CompileBounds) -> Self {
        Self {
            memory_bytes: u64::from(bounds.memory_mib.get()) << 20,
            cpu: Duration::from_secs(bounds.cpu_s.get().into()),
            wall: Duration::from_secs(bounds.wall_s.get().into()),
            code_bytes: u64::from(bounds.code_mib.get()) << 20,
        }
    }
}

impl Compiler {
    /// Machine code for an upload that passed the gate. `engine_digest` identifies the code that `engine` needs.
    pub(crate) fn compile(
        &self,
        engine: &Engine,
        engine_digest: &[u8; 32],
        bytes: &[u8],
        kind: ModuleKind,
    ) -> Result<Vec<u8>, ModuleError> {
        match self {
            Self::InProcess => apart(|| {
                let component;
                let binary = match kind {
                    ModuleKind::Component => bytes,
                    ModuleKind::Core => {
                        component = encode(bytes)?;
                        &component
                    }
                };
                engine.precompile_component(binary).map_err(|error| refused(&format!("{error:#}")))
            })?,
            Self::Child(process) => process::compile(process, Some(engine_digest), bytes, kind),
        }
    }

    /// Checks that an upload that passed the gate can be compiled: a core module has to become a component, which reads
    /// all of its types. Reading them recurses without a bound, so an untrusted module needs a child.
    pub(crate) fn look(&self, bytes: &[u8], kind: ModuleKind) -> Result<(), ModuleError> {
        match (self, kind) {
            (_, ModuleKind::Component) => Ok(()),
            (Self::InProcess, ModuleKind::Core) => apart(|| encode(bytes))?.map(drop),
            (Self::Child(process), ModuleKind::Core) => {
                process::compile(process, None, bytes, kind).map(drop)
            }
        }
    }
}

/// Reasons why work on the compiler thread failed.
#[derive(Debug, thiserror::Error)]
enum Apart {
    #[error("no thread for the compiler: {0}")]
    NoThread(std::io::Error),
    #[error("the compiler panicked on it: {0}")]
    Panicked(String),
}

impl From<Apart> for ModuleError {
    fn from(error: Apart) -> Self {
        refused(&error.to_string())
    }
}

/// Runs the work on a thread with a large stack: reading untrusted bytes may recurse or panic, and neither may end the
/// caller.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Apart> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("compile-module".into())
            .stack_size(COMPILER_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(Apart::NoThread)?;
        thread.join().map_err(|panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            Apart::Panicked(message.unwrap_or("it did not say why").to_owned())
        })
    })
}

fn refused(reason: &str) -> ModuleError {
    ModuleError::Compile { reason: printable(reason, 1000) }
}
