//! Why a sandbox cannot be made, and why bytes are not a stage module.

use std::path::PathBuf;

use crate::compile::CompileLimit;

/// Why a sandbox cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The machine refuses what the instance pool asks for.
    #[error(
        "cannot reserve memory for {instances} instances: {instances} x {slot_gib} GiB = {total_gib} GiB of address \
         space are needed; allow fewer instances, or raise the address space limit (`ulimit -v`)"
    )]
    Pool {
        /// Instances asked for.
        instances: u32,
        /// Address space of one instance's memory and its guard, in GiB.
        slot_gib: u64,
        /// Address space of all of them, in GiB.
        total_gib: u64,
        /// What the allocator said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The cache directory cannot be used.
    #[error("cannot use `{}` as compile cache: {reason}", path.display())]
    Cache {
        /// The directory.
        path: PathBuf,
        /// What was found and what would do.
        reason: String,
        /// What the system said, if it was asked.
        #[source]
        source: Option<std::io::Error>,
    },
    /// The thread that counts time for running guests did not start.
    #[error("cannot start the sandbox's timer thread")]
    Thread(#[source] std::io::Error),
    /// The host's own functions do not fit the contract, or the engine refuses its settings.
    #[error("cannot set up the WebAssembly engine")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why bytes are not a stage module this sandbox runs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The bytes are something else than WebAssembly.
    #[error("not a WebAssembly module: {found}")]
    NotWasm {
        /// What they are, and what would do.
        found: String,
    },
    /// The bytes end too early.
    #[error("the module is truncated: it ends after {bytes} bytes, before it is complete; upload it again")]
    Truncated {
        /// How many bytes there are.
        bytes: usize,
    },
    /// The bytes start as WebAssembly but cannot be read or do not validate.
    #[error("the module is not valid WebAssembly: {reason}")]
    Invalid {
        /// What the validator found, with the offset.
        reason: String,
    },
    /// A core module without the WIT types that wit-bindgen embeds.
    #[error(
        "a core module without WIT types: nothing says which functions it offers; build it with `penstock-guest` or \
         wit-bindgen for the world `penstock:stage/stage@0.1.0`, and do not strip custom sections"
    )]
    NoTypes,
    /// The contract's export is missing or has other functions.
    #[error("the module does not export `penstock:stage/transform@0.1.0`: {found}")]
    Export {
        /// What it exports instead, and what would do.
        found: String,
    },
    /// It wants what the sandbox does not give.
    #[error("the module imports {found}")]
    Import {
        /// Which interfaces, and what would do.
        found: String,
    },
    /// The manifest is missing, unreadable or breaks a rule.
    #[error("{reason}")]
    Manifest {
        /// What was found and what would do.
        reason: String,
    },
    /// It is larger or deeper than the gate lets through.
    #[error("the module has {found} {what}{place}, the limit is {limit} (`limits.modules.{bound}`)")]
    Gate {
        /// What was counted, with its unit.
        what: &'static str,
        /// The operator's setting that bounds it.
        bound: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
        /// Where, e.g. ` in function 7`; empty for the whole module.
        place: String,
    },
    /// It cannot be compiled.
    #[error("the module cannot be compiled: {reason}")]
    Compile {
        /// What the compiler said.
        reason: String,
    },
    /// Compiling it takes more than is allowed.
    #[error(
        "compiling the module {limit}; split its largest functions and leave out what it does not use, or have the \
         operator allow more (`limits.compile.{}`)", limit.setting()
    )]
    CompileLimit {
        /// What is exceeded.
        limit: CompileLimit,
    },
    /// It was not compiled, and is not at fault: loading it again may do.
    #[error("the module was not compiled, through no fault of its own: {reason}")]
    Compiler {
        /// What happened to the compiling process.
        reason: String,
    },
}
