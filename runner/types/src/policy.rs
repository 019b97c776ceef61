//! The small words of a stage's settings: how many, in which order, and what a failure means.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many items a queue may hold; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Capacity(NonZeroU32);

/// How many tasks of one stage may be alive at a time; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Concurrency(NonZeroU32);

/// In which order a stage passes its results on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As tasks complete.
    #[default]
    Completion,
    /// As the items came in.
    Input,
}

/// What becomes of a sample that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It is counted, logged and left out.
    #[default]
    Skip,
    /// It is kept aside with its input and its error, to be replayed.
    DeadLetter,
    /// The run ends as failed; what is already made is still delivered.
    Fail,
}

/// How many failures are too many: the run then ends as failed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum FailureLimit {
    /// More than this many failed samples.
    Count(u64),
    /// More than this share of tasks failed, 0.0 to 1.0; looked at after 100 tasks and at the end.
    Rate(f64),
}

/// Tasks after which a failure rate is looked at for the first time.
pub const RATE_NEEDS_TASKS: u64 = 100;

impl Capacity {
    /// A capacity of `items`; `None` for zero.
    pub fn new(items: u32) -> Option<Self> {
        NonZeroU32::new(items).map(Self)
    }

    /// The number of items.
    pub fn get(self) -> usize {
        self.0.get() as usize
    }
}

impl Concurrency {
    /// One task at a time.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// A concurrency of `tasks`; `None` for zero.
    pub fn new(tasks: u32) -> Option<Self> {
        NonZeroU32::new(tasks).map(Self)
    }

    /// The number of tasks.
    pub fn get(self) -> usize {
        self.0.get() as usize
    }
}
