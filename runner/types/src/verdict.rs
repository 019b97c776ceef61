//! Answers whether data loading is the bottleneck, where, and which settings help: a sentence, evidence and advice.
//!
//! A verdict follows from shares of time. A consumer that waits for less than 5 % of the time is the limit. Otherwise the search
//! goes from the sink queue upstream, as long as readers wait: the stage in front of the most upstream queue of that sequence is
//! the suspect. Readiness is a weaker signal: it counts a queue as empty even if its reader does not wait, so that a queue in
//! front of an aggregate, which collects in bursts, is never ready all the time. The suspect is then compared with the share of
//! time in which the slots of every stage are in use: by the utilisation law that share is largest at the limit, even with random
//! waits elsewhere. Shares are of the whole interval, so that a part that ended early does not count for the rest. When the consumer
//! itself has the highest share and yet waits, and the suspect waits for room at times, items come in bursts.

mod advice;
mod diagnosis;
mod judge;
mod room;
mod shape;
mod slots;
#[cfg(test)]
mod tests;
mod tried;
mod words;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

pub use self::advice::{Advice, Goal, Setting};
pub use self::diagnosis::Diagnosis;
use self::judge::Look;
pub use self::shape::PipelineShape;
pub use self::slots::{SlotUse, ThreadUse};
use crate::failure::FailureGroup;
use crate::machine::MachineFigures;
use crate::stats::{QueueFigures, TaskFigures};

/// Measurements of one interval of a run.
#[derive(Clone, Debug)]
pub struct Measured<'a> {
    /// Start of the interval, in seconds since the start of the run.
    pub from_s: f64,
    /// End of the interval, in seconds since the start of the run.
    pub to_s: f64,
    /// Figures of the stages in the interval, first to last.
    pub stages: Vec<TaskFigures>,
    /// Figures of the queues in the interval, first to last: at the exit of the source, of every stage, and of the sink.
    pub queues: Vec<QueueFigures>,
    /// Samples that the consumer took in the interval; `None` where samples were not counted.
    pub samples: Option<u64>,
    /// Set if the consumer had got an item before the interval.
    pub is_warm: bool,
    /// Set if the run has ended.
    pub is_over: bool,
    /// Failures, most frequent first; empty where they are not known.
    pub failures: &'a [FailureGroup],
    /// Usage of process and machine in about this interval; `None` where it is not known.
    pub machine: Option<&'a MachineFigures>,
}

/// Limiting factor of a pipeline in one interval, with evidence and advice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Kind of the limit.
    pub kind: VerdictKind,
    /// Answer to the question: is data loading the bottleneck?
    pub answer: Answer,
    /// Id of the stage or source that the sentence names; `null` when it names none.
    pub stage: Option<String>,
    /// Summary in one sentence.
    pub sentence: String,
    /// Figures that support the verdict, one per line.
    pub evidence: Vec<String>,
    /// Settings that would remove the limit, most effective first; then possible savings.
    pub advice: Vec<Advice>,
    /// Start of the measured interval, in seconds since the start of the run. Excludes the warm-up if the time after it was
    /// sufficient.
    pub from_s: f64,
    /// End of the measured interval, in seconds since the start of the run.
    pub to_s: f64,
    /// Items that the consumer took per second.
    pub rate: Option<f64>,
    /// Items per second that the consumer would take if it never waited; `null` when the consumer only waits.
    pub demand: Option<f64>,
    /// Share of time in which the consumer waited for an item, 0.0 to 1.0.
    pub consumer_wait: Option<f64>,
    /// Use of the slots, by stage; stages that only move samples are left out.
    pub slots: Vec<SlotUse>,
    /// Use of the worker threads; `null` when no stage needs one.
    pub threads: Option<ThreadUse>,
}

/// Period of a run in which one verdict held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerdictSpan {
    /// Start of the period, in seconds since the start of the run.
    pub from_s: f64,
    /// End of the period, in seconds since the start of the run; the end of the latest window while the period continues.
    pub to_s: f64,
    /// Kind of the limit.
    pub kind: VerdictKind,
    /// Id of the limiting stage or source.
    pub stage: Option<String>,
    /// Sentence of the verdict, with the figures measured last.
    pub sentence: String,
}

/// Kind of the limit of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VerdictKind {
    /// The consumer is the limit: loading keeps up with it.
    Consumer,
    /// Items come in bursts that the queues do not absorb, so that the consumer, which would be the limit, waits. If the consumer
    /// takes no time for an item: bursts make every stage wait for other stages.
    Variance,
    /// One stage is slower than the others.
    Stage,
    /// A stage that reads from a store is the limit.
    Storage,
    /// The source is the limit.
    Source,
    /// Tasks wait for worker threads.
    Threads,
    /// The permits of a store are all taken, by this run or by others, and a stage that reads from it waits.
    Permits,
    /// Samples fail, and the time spent on them is lost.
    Failures,
    /// No part waits long enough to matter.
    NothingWaits,
    /// No or too few items were delivered for a verdict.
    TooLittle,
}

/// Answer to the question: is data loading the bottleneck?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Yes: the consumer waits for data.
    Yes,
    /// No: the consumer is the limit.
    No,
    /// No: no part waits long enough to matter.
    NothingWaits,
    /// Unknown: too few items were delivered.
    Unknown,
}

impl Verdict {
    /// Judges a pipeline of this shape by its measurements.
    pub fn of(shape: &PipelineShape, measured: Measured<'_>) -> Self {
        Look::at(shape, measured).verdict()
    }
}

/// The sentence, the evidence and the advice, as in the report of a run.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.evidence.iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        for (goal, title) in [(Goal::Rate, "What would help:"), (Goal::Saving, "What could be saved:")] {
            let mut advice = self.advice.iter().filter(|advice| advice.goal == goal).peekable();
            if advice.peek().is_some() {
                write!(f, "\n{title}")?;
            }
            advice.try_for_each(|advice| write!(f, "\n  {advice}"))?;
        }
        Ok(())
    }
}

impl VerdictKind {
    /// Name of the kind in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl VerdictSpan {
    /// The limit in two or three words, for a line that is too short for the sentence.
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
    /// The answer as a short text for users.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Yes => "yes: the consumer waits for data",
            Self::No => "no: the consumer is the limit",
            Self::NothingWaits => "no: no part waits long enough to matter",
            Self::Unknown => "unknown: too little was delivered",
        }
    }
}
