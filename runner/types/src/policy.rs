//! The small words of a stage's settings: how many, in which order, and what a failure means.

use schemars::JsonSchema;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use strum::IntoStaticStr;

use crate::spec::read_number;
pub use crate::spec::{Capacity, Concurrency};

/// Kind of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum StageKindName {
    /// Collects samples into batches.
    Aggregate,
    /// Takes batches apart.
    Disaggregate,
    /// Reads objects from a store.
    Fetch,
    /// Calls a module.
    Wasm,
    /// Stacks the samples of a batch.
    Collate,
    /// Copies batches to a device.
    Transfer,
    /// Waits.
    Sleep,
}

impl StageKindName {
    /// The word in the document.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

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

/// Treatment of tensors that differ in shape within one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ragged {
    /// The run fails, whatever `on_error` says.
    #[default]
    Fail,
    /// Zeros fill each tensor up to the largest size of each dimension; the field `NAME.shape` (int64, `[samples, dimensions]`) keeps
    /// the sizes before. Every tensor field with at least one dimension gets one, so that all batches have the same fields.
    Pad,
    /// Tensor fields with at least one dimension become lists of tensors, which stay in the memory of the host.
    List,
    /// Samples whose shapes differ from those of most others in the batch fail, as `on_error` says.
    Skip,
}

impl Ragged {
    /// True for the default, which is not written, so that recipes of existing folders stay equal: a run that completes with it makes
    /// the batches that `skip`, the former behaviour, makes.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// Limit of failures, beyond which the run ends as failed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum FailureLimit {
    /// More than this many failed samples.
    Count(u64),
    /// More than this share of tasks failed, above 0.0 and up to 1.0; looked at after 100 tasks and at the end.
    Rate(
        #[serde(deserialize_with = "read_rate")]
        #[schemars(range(min = 0.0, max = 1.0))]
        f64,
    ),
    /// [`USUAL_RATE`] of the samples, looked at after [`USUAL_NEEDS_SAMPLES`] of them: the limit of a run whose document says nothing.
    #[serde(skip)]
    Usual,
}

/// Tasks after which a failure rate is looked at for the first time.
pub const RATE_NEEDS_TASKS: u64 = 100;
/// Share of failed samples that a run may have unless its document says otherwise.
pub const USUAL_RATE: f64 = 0.05;
/// Samples after which that share is looked at.
pub const USUAL_NEEDS_SAMPLES: u64 = 1_000;

impl FailureLimit {
    /// The limit of a run whose document says nothing.
    #[expect(clippy::unnecessary_wraps, reason = "a document may say that there is none")]
    pub(crate) fn usual() -> Option<Self> {
        Some(Self::Usual)
    }

    #[expect(clippy::ref_option, reason = "serde gives it so")]
    pub(crate) fn is_usual(limit: &Option<Self>) -> bool {
        *limit == Self::usual()
    }
}

/// A rate of 0 would refuse the first failure, which `"on_error": "fail"` says better and at once.
fn read_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let rate = read_number(deserializer, 0.0, 1.0)?;
    if rate > 0.0 {
        Ok(rate)
    } else {
        Err(D::Error::invalid_value(Unexpected::Unsigned(0), &"a number above 0 and up to 1"))
    }
}
