//! Is data loading the bottleneck, where, and what would remove it: a sentence, the figures that prove it, and settings.
//!
//! A verdict follows from shares of time. The consumer that waits for less than 5 % of it is the limit. Otherwise one walks
//! from the sink queue up, as long as readers wait: the most upstream queue of that run names what feeds it. Readiness says
//! less: it counts a queue as empty whether or not anybody wants an item, so that a queue in front of an aggregate, which
//! collects in bursts, is never always ready. What was found this way is held against how much of its slots' time every
//! stage is in use: by the utilisation law that share is largest at the limit, whatever waits at random elsewhere. When
//! the consumer itself is in use the most and yet waits, items come in bursts.

mod advice;
mod diagnosis;
mod judge;
mod shape;
mod slots;
#[cfg(test)]
mod tests;
mod words;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::advice::{Advice, Goal, Setting};
pub use self::diagnosis::Diagnosis;
use self::judge::Look;
pub use self::shape::PipelineShape;
pub(crate) use self::shape::StageWork;
pub use self::slots::{SlotUse, ThreadUse};
use crate::run::FailureGroup;
use crate::series::Row;
use crate::stats::{QueueFigures, TaskFigures};

/// What one stretch of time measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Its begin, in seconds since the run's start.
    pub from_s: f64,
    /// Its end, in seconds since the run's start.
    pub to_s: f64,
    /// What the stages did in it, first to last.
    pub stages: &'a [TaskFigures],
    /// What the queues did in it, first to last: at the exit of the source, of every stage, and of the sink.
    pub queues: &'a [QueueFigures],
    /// Samples that the consumer took in it; `None` where they were not counted.
    pub samples: Option<u64>,
    /// Whether the consumer had got an item before.
    pub is_warm: bool,
    /// Whether the run is over.
    pub is_over: bool,
    /// What failed, most frequent first, where it is known.
    pub failures: &'a [FailureGroup],
}

/// What limits a pipeline in one stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// What kind of limit it is.
    pub kind: VerdictKind,
    /// Seed question number one: is data loading the bottleneck?
    pub answer: Answer,
    /// Id of the stage that the sentence names, or of the source; `null` when it names none.
    pub stage: Option<String>,
    /// All of it in one sentence.
    pub sentence: String,
    /// The figures that prove it, a line each.
    pub evidence: Vec<String>,
    /// What would remove the limit, most effective first; then what could be saved.
    pub advice: Vec<Advice>,
    /// Begin of the time it is about, in seconds since the run's start. Warm-up is left out where there was enough time after it.
    pub from_s: f64,
    /// End of that time, in seconds since the run's start.
    pub to_s: f64,
    /// Items that the consumer took per second.
    pub rate: Option<f64>,
    /// Items per second that it could have taken: what it takes when it never waits. `null` when it does nothing but wait.
    pub demand: Option<f64>,
    /// Share of time in which the consumer waited for an item, 0.0 to 1.0.
    pub consumer_wait: Option<f64>,
    /// What the slots did, by stage; stages that only move samples are left out.
    pub slots: Vec<SlotUse>,
    /// What the worker threads did; `null` when no stage needs one.
    pub threads: Option<ThreadUse>,
}

/// A stretch of a run in which one verdict held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerdictSpan {
    /// Its begin, in seconds since the run's start.
    pub from_s: f64,
    /// Its end, in seconds since the run's start; so far, while it goes on.
    pub to_s: f64,
    /// What kind of limit it was.
    pub kind: VerdictKind,
    /// Id of the stage, or of the source.
    pub stage: Option<String>,
    /// The sentence, with the figures last measured.
    pub sentence: String,
}

/// What kind of limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The consumer: loading keeps up with it.
    Consumer,
    /// The consumer, which waits all the same: items come in bursts that the queues do not hold. Without a consumer that
    /// does something: bursts keep every stage waiting for another.
    Variance,
    /// One stage gives less than the others.
    Stage,
    /// A stage that reads from a store.
    Storage,
    /// The source.
    Source,
    /// The worker threads: tasks wait for one.
    Threads,
    /// The permits of a store: a stage reads from it, and all of them are taken, by this run or by others.
    Permits,
    /// Samples fail, and what they cost is missing.
    Failures,
    /// Nothing waits long enough to be felt.
    NothingWaits,
    /// Nothing was delivered yet, or too little to tell.
    TooLittle,
}

/// Is data loading the bottleneck?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The consumer waits for data.
    Yes,
    /// The consumer is the limit.
    No,
    /// No: nothing waits long enough to be felt.
    NothingWaits,
    /// Too little was delivered.
    Unknown,
}

impl Verdict {
    /// Verdict on a pipeline of this shape.
    pub fn of(shape: &PipelineShape, measured: Measured<'_>) -> Self {
        Look::at(shape, measured).verdict()
    }

    /// Verdict on the sums of an interval. `is_warm` and `is_over` as in [`Measured`].
    pub fn of_row(
        shape: &PipelineShape,
        row: &Row,
        (is_warm, is_over): (bool, bool),
        failures: &[FailureGroup],
    ) -> Self {
        shape.measured(row, (is_warm, is_over), failures, |measured| Self::of(shape, measured))
    }
}

impl VerdictSpan {
    /// The limit in two or three words, for a line that has no room for the sentence.
    pub fn in_short(&self) -> String {
        let stage = self.stage.as_deref().unwrap_or("none");
        match self.kind {
            VerdictKind::Consumer => "the consumer".to_owned(),
            VerdictKind::Variance => format!("bursts at {stage}"),
            VerdictKind::Stage | VerdictKind::Storage | VerdictKind::Source => stage.to_owned(),
            VerdictKind::Threads => "worker threads".to_owned(),
            VerdictKind::Permits => format!("permits for {stage}"),
            VerdictKind::Failures => format!("failures at {stage}"),
            VerdictKind::NothingWaits => "none".to_owned(),
            VerdictKind::TooLittle => "not known yet".to_owned(),
        }
    }
}

impl Answer {
    /// The answer in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Yes => "yes: the consumer waits for data",
            Self::No => "no: the consumer is the limit",
            Self::NothingWaits => "no: nothing waits long enough to be felt",
            Self::Unknown => "unknown: too little was delivered",
        }
    }
}

impl From<VerdictKind> for Answer {
    fn from(kind: VerdictKind) -> Self {
        match kind {
            VerdictKind::Consumer => Self::No,
            VerdictKind::NothingWaits => Self::NothingWaits,
            VerdictKind::TooLittle => Self::Unknown,
            _ => Self::Yes,
        }
    }
}
