//! Enumerations in the settings of a stage: order, and handling of failures.

use schemars::JsonSchema;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

pub use crate::kinds::StageKindName;
use crate::spec::read_number;
pub use crate::spec::{Capacity, Concurrency};

/// Order in which a stage passes its results on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Order in which tasks complete.
    #[default]
    Completion,
    /// Order in which items came in.
    Input,
}

/// Handling of a sample that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Counts and logs the failure and leaves the sample out.
    #[default]
    Skip,
    /// Writes the sample to the dead letters with its input and its error, to be replayed.
    DeadLetter,
    /// Ends the run as failed; samples that are already processed are still delivered.
    Fail,
}

/// Handling of tensors that differ in shape within one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ragged {
    /// Fails the run, with any `on_error`.
    #[default]
    Fail,
    /// Pads each tensor with zeros to the largest size of each dimension; the field `NAME.shape` (int64, `[samples, dimensions]`)
    /// holds the original sizes. Every tensor field with at least one dimension gets such a field, so that all batches have the
    /// same fields.
    Pad,
    /// Turns tensor fields with at least one dimension into lists of tensors, which stay in host memory.
    List,
    /// Fails the samples whose shapes differ from `shape`, or else from the most frequent shape in the batch; `on_error` applies to
    /// them.
    Skip,
}

/// Handling of samples whose fields differ from those of their data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mismatch {
    /// Fails the run, with any `on_error`.
    #[default]
    Fail,
    /// Fails the samples that differ; `on_error` applies to them.
    Skip,
}

/// Limit of failures, beyond which the run ends as failed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum FailureLimit {
    /// Number of failed samples that is still permitted.
    Count(u64),
    /// Share of failed tasks that is still permitted, above 0.0 and up to 1.0; checked after 100 tasks and at the end.
    Rate(
        #[serde(deserialize_with = "read_rate")]
        #[schemars(range(min = 0.0, max = 1.0))]
        f64,
    ),
    /// Default without a setting in the document: [`USUAL_RATE`] of the samples, checked after [`USUAL_NEEDS_SAMPLES`] samples, and at
    /// the end of each epoch if [`USUAL_NEEDS_FAILURES`] of its samples failed.
    #[serde(skip)]
    Usual,
}

/// Number of tasks after which a failure rate is checked for the first time.
pub const RATE_NEEDS_TASKS: u64 = 100;
/// Share of failed samples that a run may have by default.
pub const USUAL_RATE: f64 = 0.05;
/// Number of samples after which [`USUAL_RATE`] is checked.
pub const USUAL_NEEDS_SAMPLES: u64 = 1_000;
/// Number of failed samples from which on [`USUAL_RATE`] is checked at the end of an epoch.
pub const USUAL_NEEDS_FAILURES: u64 = 10;

impl FailureLimit {
    /// Limit of a run whose document sets none.
    #[expect(clippy::unnecessary_wraps, reason = "a document may set the limit to `null`")]
    pub(crate) fn usual() -> Option<Self> {
        Some(Self::Usual)
    }

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(crate) fn is_usual(limit: &Option<Self>) -> bool {
        *limit == Self::usual()
    }
}

/// Reads a rate above 0. A rate of 0 would end the run at the first failure, for which `"on_error": "fail"` is the clearer
/// setting.
fn read_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let rate = read_number(deserializer, 0.0, 1.0)?;
    if rate > 0.0 {
        Ok(rate)
    } else {
        Err(D::Error::invalid_value(Unexpected::Unsigned(0), &"a number above 0 and up to 1"))
    }
}
