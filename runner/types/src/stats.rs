//! Measurements of a run: pure meters that receive the time from the caller, and figures computed from their sums.
//!
//! A meter only ever adds to sums. Figures of any interval come from the difference of two readings of those sums, so windows can
//! be merged and no average is averaged again. An open interval (an empty queue, a wait that has not ended) counts up to the
//! moment of the reading.

mod book;
mod cache;
mod figures;
mod histogram;
mod queue;
mod stage;
mod sums;
mod tick;

pub use book::BookRow;
pub use cache::StoreCacheFigures;
pub use figures::{QueueFigures, SlotShares, TaskFigures, per_second, share};
pub use histogram::Histogram;
pub use queue::{QueueMeter, QueueRow, QueueSums};
pub use stage::{Slot, StageMeter, TaskRow, TaskSums};
pub use tick::Tick;
