//! The pipeline engine: bounded, measured queues and the rules by which items move between them.
#![warn(missing_docs)]

pub mod consumers;
pub mod item;
pub mod ops;
pub mod ports;
pub mod timer;
pub mod range;
pub mod clock;
mod schedule;
pub mod graph;
mod record;
pub mod running;
mod shared;
mod tasks;
mod worker;

pub use schedule::Failure;
