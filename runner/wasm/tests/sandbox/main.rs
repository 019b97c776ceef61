//! The sandbox as the engine sees it: real guests, built by `make guests`, that do what no guest should.
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
