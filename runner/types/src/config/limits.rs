//! Limits of uploaded modules and of the runs of a server.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

use super::TimeSpan;
use crate::spec::{DeadlineMs, MemoryMib, OutputMib, Percent};

/// Limits of modules, of their compilation, of runs and of clients. A missing setting has its built-in default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sizes and counts of a module, checked before it is compiled.
    pub modules: GateBounds,
    /// Resources that the compilation of one module may use.
    pub compile: CompileBounds,
    /// Limits of the runs of a server.
    pub runs: RunBounds,
    /// Shares and quotas of one client of a server.
    pub clients: ClientBounds,
    /// Maximum size of a server's data directory, in MiB; no limit when missing.
    pub disk_mib: Option<NonZeroU32>,
}

/// Maximum size and complexity of a module. Counts are over all core modules of a component. The built-in bounds suffice for
/// codecs and for interpreters: a stage in Python is 18 MB, with a function of 427 kB.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateBounds {
    /// Maximum size of an upload, in bytes.
    pub module_bytes: u64,
    /// Maximum number of functions in all modules.
    pub functions: u64,
    /// Maximum size of the body of one function, in bytes.
    pub body_bytes: u64,
    /// Maximum number of locals of one function, without its parameters.
    pub locals: u64,
    /// Maximum number of targets of one `br_table`.
    pub branch_targets: u64,
    /// Maximum nesting of blocks in one function.
    pub nesting: u64,
    /// Maximum number of imports in all modules.
    pub imports: u64,
    /// Maximum number of exports in all modules.
    pub exports: u64,
    /// Maximum number of globals in all modules.
    pub globals: u64,
    /// Maximum number of data segments in all modules.
    pub data_segments: u64,
    /// Maximum number of element segments, which fill tables, in all modules.
    pub element_segments: u64,
    /// Maximum number of types in all modules.
    pub types: u64,
    /// Maximum initial number of entries of one table.
    pub table_entries: u64,
    /// Maximum initial size of one memory, in bytes. The memory limit of a stage is checked when the stage starts.
    pub memory_bytes: u64,
    /// Maximum length of the name of an import or export, in bytes.
    pub name_bytes: u64,
    /// Maximum number of core modules in a component.
    pub core_modules: u64,
    /// Maximum nesting of components within components.
    pub component_depth: u64,
    /// Maximum number of types, instances, aliases, imports, exports and functions that components define themselves.
    pub component_items: u64,
    /// Maximum number of module versions that a server keeps, over all modules.
    pub versions: u64,
}

/// Resources that the compilation of one module, in a separate process, may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileBounds {
    /// Maximum address space of the process, in MiB. Its threads take a few hundred MiB.
    pub memory_mib: NonZeroU32,
    /// Maximum CPU time over all threads, in seconds.
    pub cpu_s: NonZeroU32,
    /// Maximum wall-clock time, in seconds: a limit for a process that hangs, not for a process that is slow on a busy machine.
    pub wall_s: NonZeroU32,
    /// Maximum size of the machine code, in MiB.
    pub code_mib: NonZeroU32,
}

/// Resources that all runs together may use at a time. A run that does not fit waits until others have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Worker threads; when missing, four for each core, but at least 32.
    pub threads: Option<NonZeroU32>,
    /// Memory of instances and queues, in MiB; when missing, three quarters of the memory available to the server, less where documents
    /// and answers would not fit beside that.
    pub memory_mib: Option<NonZeroU32>,
}

/// Limits of the runs of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunBounds {
    /// Maximum number of waiting runs; further runs are rejected.
    pub queued: NonZeroU32,
    /// Maximum memory that a document may set for one instance of a module, in MiB.
    pub instance_memory_mib: NonZeroU32,
    /// Maximum size of the data that a document may let a module return for one sample, in MiB.
    pub output_mib: NonZeroU32,
    /// Maximum CPU time that a document may set for one sample, in milliseconds.
    pub deadline_ms: NonZeroU32,
    /// Maximum number of tasks of one run at a time over all stages: the sum of their `concurrency`.
    pub concurrency: NonZeroU32,
    /// Maximum size of the assets of all modules of a run together, in MiB.
    pub assets_mib: NonZeroU32,
    /// Maximum size of the dead letters kept of one run, in MiB; further dead letters are only counted.
    pub dead_letters_mib: NonZeroU32,
    /// Maximum number of runs that are kept; when there are more, the oldest finished runs are deleted with all their data.
    pub kept: NonZeroU32,
    /// Longest time of a run from its start to its end; a longer run is stopped and fails. No limit when missing.
    pub max_time: Option<TimeSpan>,
    /// Longest time that a run waits for its start; then the run fails.
    pub max_wait: TimeSpan,
}

/// Shares and quotas of one client of a server, which reserve resources for other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientBounds {
    /// Share, in per cent, that one client may use of the resources left by other clients: the budget of runs, the queue of
    /// waiting runs, and the slots in which modules are compiled and tried and documents are checked. A client that uses none of
    /// a resource may take any free part of it.
    pub share_percent: Percent,
    /// Maximum number of waiting and active runs of one client; when missing, only the share limits them.
    pub runs: Option<NonZeroU32>,
}

impl Default for GateBounds {
    fn default() -> Self {
        Self {
            module_bytes: 32 << 20,
            functions: 40_000,
            body_bytes: 512 << 10,
            locals: 4_000,
            branch_targets: 4_000,
            nesting: 1_024,
            imports: 4_096,
            exports: 16_384,
            globals: 1_000,
            data_segments: 65_536,
            element_segments: 8_000,
            types: 4_000,
            table_entries: 20_000,
            memory_bytes: 4 << 30,
            name_bytes: 1_024,
            core_modules: 64,
            component_depth: 8,
            component_items: 20_000,
            versions: 1_000,
        }
    }
}

impl Default for CompileBounds {
    fn default() -> Self {
        Self { memory_mib: least(2048), cpu_s: least(60), wall_s: least(120), code_mib: least(256) }
    }
}

impl Default for RunBounds {
    fn default() -> Self {
        Self {
            queued: least(100),
            instance_memory_mib: least(MemoryMib::MOST),
            output_mib: least(OutputMib::MOST),
            deadline_ms: least(DeadlineMs::MOST),
            concurrency: least(4_096),
            assets_mib: least(256),
            dead_letters_mib: least(1024),
            kept: least(10_000),
            max_time: None,
            max_wait: TimeSpan(Duration::from_secs(24 * 3600)),
        }
    }
}

fn least(bound: u32) -> NonZeroU32 {
    NonZeroU32::new(bound).expect("the built-in bounds are not zero")
}
