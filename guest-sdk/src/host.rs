//! What a stage may ask of the runner: log lines, counters, assets.

use crate::error::{Error, Result};

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For the author of the stage.
    Debug,
    /// Worth knowing, expected.
    Info,
    /// Unexpected, but handled.
    Warn,
    /// Something is lost or wrong.
    Error,
}

/// Writes a line to the run's log, under the stage's name. The runner bounds length and rate.
pub fn log(level: Level, message: &str) {
    backend::log(level, message);
}

/// Adds to a counter that the stage declares with `counters(...)`; the runner refuses the names of others.
pub fn count(name: &str, delta: f64) {
    backend::count(name, delta);
}

/// The bytes of an asset that the pipeline document names for this stage under `assets`. Fails when it names none so.
///
/// It is copied into the module on every call: read it once, in `new` of a batch or stateful stage.
pub fn asset(name: &str) -> Result<Vec<u8>> {
    backend::asset(name).map_err(Error::new)
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

#[cfg(target_family = "wasm")]
use crate::export::host as backend;
#[cfg(not(target_family = "wasm"))]
use crate::testing as backend;
