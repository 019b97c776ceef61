//! Functions of the runner for stages: log lines, counters, assets.

use crate::error::{Error, Result};

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for the author of the stage.
    Debug,
    /// Normal event that is worth recording.
    Info,
    /// Unexpected event that was handled.
    Warn,
    /// Loss of data, or an error.
    Error,
}

/// Writes a line to the run's log, under the stage's name. The runner limits the length and the rate of lines.
pub fn log(level: Level, message: &str) {
    backend::log(level, message);
}

/// Adds to a counter that the stage declares with `counters(...)`; the runner rejects other names.
pub fn count(name: &str, delta: f64) {
    backend::count(name, delta);
}

/// Returns the bytes of an asset that the pipeline document lists under `assets` of this stage. Fails if the document lists no
/// asset of that name.
///
/// Each call copies the asset into the module: read it once, in `new` of a batch or stateful stage.
pub fn asset(name: &str) -> Result<Vec<u8>> {
    backend::asset(name).map_err(Error::new)
}

/// Memory of an instance whose stage does not set `memory_mib`, in bytes.
pub const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// Returns the memory that the instance may have, in bytes: `memory_mib` of the stage. Data that needs more fails better with a reason of
/// the stage than with the runner's.
pub fn memory_limit() -> u64 {
    backend::memory_limit()
}

/// Logs a formatted line at debug level.
#[macro_export]
macro_rules! debug {
    ($($message:tt)+) => { $crate::log($crate::Level::Debug, &::std::format!($($message)+)) };
}

/// Logs a formatted line at info level.
#[macro_export]
macro_rules! info {
    ($($message:tt)+) => { $crate::log($crate::Level::Info, &::std::format!($($message)+)) };
}

/// Logs a formatted line at warn level.
#[macro_export]
macro_rules! warn {
    ($($message:tt)+) => { $crate::log($crate::Level::Warn, &::std::format!($($message)+)) };
}

/// Logs a formatted line at error level.
#[macro_export]
macro_rules! error {
    ($($message:tt)+) => { $crate::log($crate::Level::Error, &::std::format!($($message)+)) };
}

/// Imports of the module, in WebAssembly builds.
#[cfg(target_family = "wasm")]
mod backend {
    use super::Level;
    use crate::bindings::penstock::stage::host;
    pub(super) use crate::bindings::penstock::stage::host::{asset, count, memory_limit};

    pub(super) fn log(level: Level, message: &str) {
        let level = match level {
            Level::Debug => host::Level::Debug,
            Level::Info => host::Level::Info,
            Level::Warn => host::Level::Warn,
            Level::Error => host::Level::Error,
        };
        host::log(level, message);
    }
}

/// Substitute for the runner in native builds, one per thread; see [`crate::testing`].
#[cfg(not(target_family = "wasm"))]
pub(crate) mod backend {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::Level;

    #[derive(Default)]
    pub(crate) struct HostState {
        pub(crate) lines: Vec<(Level, String)>,
        pub(crate) counters: BTreeMap<String, f64>,
        pub(crate) assets: BTreeMap<String, Vec<u8>>,
        /// Limit that a test has set.
        pub(crate) memory_limit: Option<u64>,
    }

    thread_local! {
        pub(crate) static HOST: RefCell<HostState> = RefCell::default();
    }

    pub(super) fn log(level: Level, message: &str) {
        HOST.with_borrow_mut(|host| host.lines.push((level, message.to_owned())));
    }

    pub(super) fn count(name: &str, delta: f64) {
        HOST.with_borrow_mut(|host| *host.counters.entry(name.to_owned()).or_default() += delta);
    }

    pub(super) fn asset(name: &str) -> Result<Vec<u8>, String> {
        HOST.with_borrow(|host| host.assets.get(name).cloned())
            .ok_or_else(|| format!("no asset `{name}`: set it with testing::set_asset"))
    }

    pub(super) fn memory_limit() -> u64 {
        HOST.with_borrow(|host| host.memory_limit).unwrap_or(crate::DEFAULT_MEMORY_BYTES)
    }
}
