//! The registry of runs as the server uses it: real runs, real modules, real files.
#![allow(clippy::unwrap_used, reason = "tests")]

mod admission;
mod benchmarks;
mod figures;
mod kept;
mod killed;
mod letters;
mod live;
mod migrated;
mod modules;
mod owners;
mod quota;
mod support;
mod tags;
mod trouble;
mod windows;
