//! Errors of creating a sandbox, and of loading bytes as a stage module.

use std::path::PathBuf;
use std::time::Duration;

/// Reasons why a sandbox cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    #[error(
        "cannot reserve memory for {instances} instances: {instances} x {slot_gib} GiB = {total_gib} GiB of address \
         space are needed; allow fewer instances, or raise the address space limit (`ulimit -v`)"
    )]
    Pool {
        instances: u32,
        /// Address space for one instance's memories, in GiB.
        slot_gib: u64,
        total_gib: u64,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot use `{}` as compile cache: {reason}", path.display())]
    Cache { path: PathBuf, reason: String, source: Option<std::io::Error> },
    #[error("cannot start the sandbox's timer thread")]
    Thread(#[source] std::io::Error),
    /// The host's own functions do not match the contract, or the engine rejects its settings.
    #[error("cannot set up the WebAssembly engine")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Reasons why bytes are not a stage module that this sandbox runs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    #[error("not a WebAssembly module: {found}")]
    NotWasm { found: String },
    #[error("the module is truncated: it ends after {bytes} bytes, before it is complete; upload it again")]
    Truncated { bytes: usize },
    #[error("the module is not valid WebAssembly: {reason}")]
    Invalid { reason: String },
    #[error(
        "a core module without WIT types, which declare its functions; build it with `penstock-guest` or \
         wit-bindgen for the world `penstock:stage/stage@0.1.0`, and do not strip custom sections"
    )]
    NoTypes,
    /// The export that the contract requires is missing, or its functions differ from the contract.
    #[error("the module does not export `penstock:stage/transform@0.1.0`: {found}")]
    Export { found: String },
    #[error("the module imports {found}")]
    Import { found: String },
    /// The manifest is missing, unreadable or breaks a rule.
    #[error("{reason}")]
    Manifest { reason: String },
    #[error("the module has {found} {what}{place}, the limit is {limit} (`limits.modules.{bound}`)")]
    Gate {
        what: &'static str,
        /// Name of the operator's setting that bounds the count.
        bound: &'static str,
        found: u64,
        limit: u64,
        /// Location in the module, e.g. ` in function 7`; empty for the whole module.
        place: String,
    },
    #[error("the module cannot be compiled: {reason}")]
    Compile { reason: String },
    #[error(
        "compiling the module {limit}; split its largest functions and remove unused code, or have the \
         operator raise the limit (`limits.compile.{}`)", limit.setting()
    )]
    CompileLimit { limit: CompileLimit },
    /// The compiler failed for a reason other than the module; loading the module again may succeed.
    #[error("the compiler failed, through no fault of the module: {reason}")]
    Compiler { reason: String },
}

/// A limit that a compilation exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileLimit {
    #[error("needs more than {} MiB of memory", mib(*.0))]
    Memory(u64),
    #[error("needs more than {} s of CPU time", .0.as_secs_f64())]
    Cpu(Duration),
    #[error("takes longer than {} s", .0.as_secs_f64())]
    Wall(Duration),
    #[error("produces more than {} MiB of machine code", mib(*.0))]
    Code(u64),
}

impl CompileLimit {
    /// Name of the operator's setting in `limits.compile`.
    fn setting(self) -> &'static str {
        match self {
            Self::Memory(_) => "memory_mib",
            Self::Cpu(_) => "cpu_s",
            Self::Wall(_) => "wall_s",
            Self::Code(_) => "code_mib",
        }
    }
}

/// Converts a number of bytes to MiB, rounded up, for messages.
pub(crate) fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
