//! Tests of the sandbox through its public API, with misbehaving guests built by `make guests`.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case should say where")]

mod bombs;
mod cache;
mod carried;
mod compile;
mod failures;
mod modes;
mod stop;
mod support;
mod uploads;
