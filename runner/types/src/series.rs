//! What is kept of a run over time: rows of exact sums, and series of figures made of them.
//!
//! A row holds whole numbers only, so rows can be merged in any way and give what the whole would have given. Figures are
//! made last. Rows come in levels: 250 ms, and each further one 16 times as wide, with the least and the greatest that
//! any of the finest rows in it had.

mod live;
mod metric;
mod row;
mod thin;
mod timeline;
mod times;

pub use live::{LiveSample, TaskTimes, TimeBucket};
pub use metric::Metric;
pub use row::{Row, Spread};
pub use thin::{Buckets, Series, SeriesColumn, Thinned};
pub use timeline::{Timeline, TimelineEvent, TimelineEventKind};
pub use times::{RowTimes, Timed};

/// How wide rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// 250 ms.
    Finest,
    /// 4 s.
    Middle,
    /// 64 s.
    Coarsest,
}

impl Level {
    /// All of them, finest first.
    pub const ALL: [Self; 3] = [Self::Finest, Self::Middle, Self::Coarsest];

    /// Length of a row, in nanoseconds.
    pub const fn width(self) -> u64 {
        const FINEST: u64 = 250_000_000;
        match self {
            Self::Finest => FINEST,
            Self::Middle => 16 * FINEST,
            Self::Coarsest => 256 * FINEST,
        }
    }

    /// Its number in the history, 0 for the finest.
    pub fn number(self) -> u8 {
        self as u8
    }
}
