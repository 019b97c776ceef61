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

    /// Whether results of such a stage take no more memory than what they are made of.
    pub fn keeps_size(self) -> bool {
        match self {
            Self::Collate | Self::Transfer | Self::Sleep | Self::Aggregate | Self::Disaggregate => true,
            Self::Fetch | Self::Wasm => false,
        }
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

/// How many failures are too many: the run then ends as failed.
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
}

/// Tasks after which a failure rate is looked at for the first time.
pub const RATE_NEEDS_TASKS: u64 = 100;

/// A rate of 0 would refuse the first failure, which `"on_error": "fail"` says better and at once.
fn read_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let rate = read_number(deserializer, 0.0, 1.0)?;
    if rate > 0.0 {
        Ok(rate)
    } else {
        Err(D::Error::invalid_value(Unexpected::Unsigned(0), &"a number above 0 and up to 1"))
    }
}
