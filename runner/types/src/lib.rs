//! The words of Penstock as types: pure, serialisable, without clock, I/O or threads.
#![warn(missing_docs)]

pub mod ledger;
pub mod manifest;
pub mod policy;
pub mod run;
pub mod stats;
pub mod traversal;
