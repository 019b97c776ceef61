//! Shared types of Penstock: pure, serialisable, without clock, I/O or threads.
#![warn(missing_docs)]

pub mod amount;
pub mod config;
pub mod data_set;
mod defaults;
pub mod dtype;
pub mod failure;
pub mod fault;
pub mod figures;
pub mod kinds;
pub mod ledger;
pub mod left_out;
pub mod machine;
pub mod manifest;
pub mod param_schema;
pub mod plan;
pub mod policy;
pub mod profile;
pub mod resume;
pub mod routes;
pub mod run;
pub mod series;
pub mod sources;
pub mod spec;
pub mod stats;
pub mod tags;
pub mod text;
pub mod traversal;
pub mod tune;
pub mod varint;
pub mod verdict;
