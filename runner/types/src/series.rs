//! History of a run over time: rows of exact sums, and series of figures computed from them.
//!
//! A row contains whole numbers only, so merged rows give exactly the figures of the whole interval. Figures are computed from
//! the merged rows. Rows come in levels: 250 ms, and each further level 16 times as wide, with the minimum and the maximum over
//! the finest rows inside each row.

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

/// Time resolution of stored rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Rows of 250 ms.
    Finest,
    /// Rows of 4 s.
    Middle,
    /// Rows of 64 s.
    Coarsest,
}

impl Level {
    /// All levels, finest first.
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

    /// Number of the level in the history, 0 for the finest.
    pub fn number(self) -> u8 {
        self as u8
    }
}
