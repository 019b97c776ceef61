//! The pipeline engine: bounded, measured queues and the rules by which items move between them.
#![warn(missing_docs)]

pub mod clock;
pub mod consumers;
pub mod graph;
pub mod item;
pub mod ops;
pub mod ports;
pub mod range;
mod record;
pub mod running;
mod schedule;
mod shared;
mod tasks;
pub mod timer;
mod worker;

pub use schedule::Failure;
