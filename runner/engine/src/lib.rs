//! The pipeline engine: bounded, measured queues and the rules by which items move between them.
#![warn(missing_docs)]

pub mod item;
pub mod ports;
pub mod range;
