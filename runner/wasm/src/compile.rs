//! Compilation of checked bytes to machine code, in this process or in a child process that may crash.
//!
//! Some modules make compilers take minutes and gigabytes, or crash, and the gate cannot recognise all such modules. The kernel
//! enforces limits on the child process and restricts it to computing; a crash of the child does not affect this process.

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

use crate::component::{ModuleKind, component};
use crate::error::ModuleError;

pub use worker::compile_on_request;

pub(crate) use queue::{CompilePermits, Sharing};

/// Stack of the compiling thread, in bytes. Cranelift recurses on nested code, as deeply as the gate allows.
const COMPILER_STACK_BYTES: usize = 16 << 20;

#[derive(Clone, Debug, Default)]
pub enum Compiler {
    /// Compiles in this process: for tests, and for embedders that trust their modules.
    #[default]
    InProcess,
    /// Compiles in a child process with limits.
    Child(CompilerProcess),
}

/// Program that compiles one module and exits, and its limits.
#[derive(Clone, Debug)]
pub struct CompilerProcess {
    /// Path of a program that calls [`compile_on_request`].
    pub program: PathBuf,
    /// Command-line arguments with which the program is started, so that it calls [`compile_on_request`].
    pub arguments: Vec<OsString>,
    /// Environment variables that the program needs to start; the program inherits no other variables.
    pub environment: Vec<(OsString, OsString)>,
    pub limits: CompileLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Limit of the child's address space, in bytes. The child's threads take a few hundred MiB of it.
    pub memory_bytes: u64,
    /// Limit of the CPU time of all threads of the child, rounded up to whole seconds.
    pub cpu: Duration,
    /// Limit of wall-clock time, which ends a child that hangs without using CPU time.
    pub wall: Duration,
    pub code_bytes: u64,
}

impl CompilerProcess {
    /// Describes a program that is started with these arguments and no environment variables, with the default limits.
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
    /// Compiles an upload that passed the gate. `engine_digest` identifies the form of code that `engine` needs.
    pub(crate) fn compile(
        &self,
        engine: &Engine,
        engine_digest: &[u8; 32],
        bytes: &[u8],
        kind: ModuleKind,
    ) -> Result<Vec<u8>, ModuleError> {
        match self {
            Self::InProcess => apart(|| {
                let component = component(kind, bytes)?;
                engine.precompile_component(&component).map_err(|error| refused(&format!("{error:#}")))
            })?,
            Self::Child(process) => process::compile(process, Some(engine_digest), bytes, kind),
        }
    }

    /// Checks that an upload that passed the gate can be compiled. A core module must be encoded as a component, which reads all
    /// of the module's types. Reading types recurses without a bound, so an untrusted module needs a child process.
    pub(crate) fn look(&self, bytes: &[u8], kind: ModuleKind) -> Result<(), ModuleError> {
        match (self, kind) {
            (_, ModuleKind::Component) => Ok(()),
            (Self::InProcess, ModuleKind::Core) => apart(|| component(kind, bytes).map(drop))?,
            (Self::Child(process), ModuleKind::Core) => {
                process::compile(process, None, bytes, kind).map(drop)
            }
        }
    }
}

/// Reasons why work on the compiler thread failed.
#[derive(Debug, thiserror::Error)]
enum Apart {
    #[error("cannot start the compiler thread: {0}")]
    NoThread(std::io::Error),
    #[error("the compiler panicked: {0}")]
    Panicked(String),
}

impl From<Apart> for ModuleError {
    fn from(error: Apart) -> Self {
        refused(&error.to_string())
    }
}

/// Runs the work on a separate thread with a large stack: reading untrusted bytes may recurse deeply or panic, which must not end
/// the caller's thread.
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
            Apart::Panicked(message.unwrap_or("no message").to_owned())
        })
    })
}

fn refused(reason: &str) -> ModuleError {
    ModuleError::Compile { reason: printable(reason, 1000) }
}
