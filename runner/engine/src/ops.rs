//! The ops that need no module: stacking batches, handing them to the host, and taking time.

mod collate;
mod random;
mod sleep;
mod transfer;

pub use collate::{Collate, CollateFactory};
pub(crate) use random::Random;
pub(crate) use sleep::origin;
pub use sleep::{SleepFactory, SleepTask, SleepTimes};
pub use transfer::HostTransfer;
