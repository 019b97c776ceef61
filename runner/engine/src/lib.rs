//! The pipeline engine: bounded, measured queues and the rules by which items move between them.
//!
//! A [`graph::Graph`] is a pipeline ready to run; [`graph::Graph::start`] turns it into a [`running::Running`]. Its core is
//! a pure state machine, the schedule, behind one lock: the thread that reports an event (a worker with a result, a
//! finished read, the consumer) moves every item that can move, so that no item waits for a separate scheduler thread.
//! Sources, ops and consumers plug in through [`ports`].

pub mod chunk;
pub mod clock;
pub mod codec;
pub mod consumers;
mod dispatch;
pub mod element;
pub mod gathered;
pub mod graph;
mod handed;
pub mod item;
pub mod lock;
pub mod memory;
pub mod mixed;
pub mod notes;
pub mod numbered;
pub mod ops;
pub mod parts;
pub mod ports;
pub mod predict;
pub mod private;
pub mod range;
mod record;
pub mod route;
pub mod running;
mod schedule;
pub mod share;
pub mod stage_work;
pub mod timer;
pub mod typed;
mod wake;
mod worker;
