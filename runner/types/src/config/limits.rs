//! Limits of what strangers upload, and of what a server runs.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

use super::TimeSpan;
use crate::spec::{DeadlineMs, MemoryMib, OutputMib, Percent};

/// Limits of modules, of compiling them, of runs and of clients. A setting that is missing is as built in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sizes and counts of a module, looked at before it is compiled.
    pub modules: GateBounds,
    /// What compiling one module may use.
    pub compile: CompileBounds,
    /// What runs of a server may be.
    pub runs: RunBounds,
    /// Shares and quotas of one client of a server.
    pub clients: ClientBounds,
    /// Size of a server's data directory, in MiB; no bound when missing.
    pub disk_mib: Option<NonZeroU32>,
}

/// How large and how deep a module may be. Counts are over all core modules of a component. The built-in bounds leave room for
/// codecs and for interpreters: CPython and SpiderMonkey builds are 12-18 MB.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateBounds {
    /// Size of an upload, in bytes.
    pub module_bytes: u64,
    /// Functions.
    pub functions: u64,
    /// Size of the body of one function, in bytes.
    pub body_bytes: u64,
    /// Locals of one function, parameters not counted.
    pub locals: u64,
    /// Targets of one `br_table`.
    pub branch_targets: u64,
    /// Blocks open at a time in one function.
    pub nesting: u64,
    /// Imports.
    pub imports: u64,
    /// Exports.
    pub exports: u64,
    /// Globals.
    pub globals: u64,
    /// Data segments.
    pub data_segments: u64,
    /// Element segments, which fill tables.
    pub element_segments: u64,
    /// Types.
    pub types: u64,
    /// Entries one table starts with.
    pub table_entries: u64,
    /// Bytes one memory starts with. The stage's own limit is looked at when it starts.
    pub memory_bytes: u64,
    /// Length of the name of an import or export, in bytes.
    pub name_bytes: u64,
    /// Core modules in a component.
    pub core_modules: u64,
    /// Components within components.
    pub component_depth: u64,
    /// Types, instances, aliases, imports, exports and functions that components define of their own.
    pub component_items: u64,
    /// Versions of modules that a server keeps, of all modules together.
    pub versions: u64,
}

/// What compiling one module may use, in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileBounds {
    /// Address space, in MiB. A few hundred of it are taken by threads.
    pub memory_mib: NonZeroU32,
    /// CPU time over all threads, in seconds.
    pub cpu_s: NonZeroU32,
    /// Time by the clock on the wall, in seconds: for what hangs, not for what works on a busy machine.
    pub wall_s: NonZeroU32,
    /// Size of the machine code, in MiB.
    pub code_mib: NonZeroU32,
}

/// What runs may use of the machine at a time, all together. A run that does not fit waits until others have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Worker threads; four for each core, but at least 32, when missing.
    pub threads: Option<NonZeroU32>,
    /// Memory of instances and queues, in MiB; three quarters of what the system lets it use when missing.
    pub memory_mib: Option<NonZeroU32>,
}

/// What runs of a server may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunBounds {
    /// Runs that wait for their turn at a time; more are refused.
    pub queued: NonZeroU32,
    /// Memory one instance of a module may ask for, in MiB.
    pub instance_memory_mib: NonZeroU32,
    /// Data that a module may ask to make of one sample, in MiB.
    pub output_mib: NonZeroU32,
    /// CPU time one sample may ask for, in milliseconds.
    pub deadline_ms: NonZeroU32,
    /// Tasks of all stages together that a run may have at a time: the sum of their `concurrency`.
    pub concurrency: NonZeroU32,
    /// Assets of all modules of a run together, in MiB.
    pub assets_mib: NonZeroU32,
    /// Dead letters that are kept of one run, in MiB; what comes on top is counted.
    pub dead_letters_mib: NonZeroU32,
    /// Runs that are kept; of more, the oldest that are over go with all that is kept of them.
    pub kept: NonZeroU32,
    /// Longest time of a run from its start to its end; a longer one is stopped and fails. No bound when missing.
    pub max_time: Option<TimeSpan>,
    /// Longest time that a run waits for its start; then it fails.
    pub max_wait: TimeSpan,
}

/// Shares and quotas of one client of a server, which leave something for other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientBounds {
    /// Share of what other clients leave that one client may have, in per cent: of the budget of runs, of the places of runs that
    /// wait, and of the places in which modules are compiled and tried and documents are checked. A client that has none of it may
    /// have any part that is free.
    pub share_percent: Percent,
    /// Runs of one client that wait or are alive; bound by the share alone when missing.
    pub runs: Option<NonZeroU32>,
}

impl Default for GateBounds {
    fn default() -> Self {
        Self {
            module_bytes: 32 << 20,
            functions: 40_000,
            body_bytes: 256 << 10,
            locals: 4_000,
            branch_targets: 4_000,
            nesting: 512,
            imports: 4_096,
            exports: 16_384,
            globals: 1_000,
            data_segments: 8_000,
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
        Self { memory_mib: least(2048), cpu_s: least(20), wall_s: least(120), code_mib: least(256) }
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
