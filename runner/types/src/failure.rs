//! Samples that failed: causes, single failures and groups of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// Failures of the same stage, class and message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureGroup {
    /// Id of the stage in which the samples failed.
    pub stage: String,
    /// Cause of the failures.
    pub class: FailureClass,
    /// Description of the problem.
    pub message: String,
    /// Number of samples that failed.
    pub count: u64,
    /// Keys of up to five of the samples: the first ones in the order of the source.
    pub first_keys: Vec<String>,
}

/// One failed sample: a line of `errors.ndjson`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureRecord {
    /// Id of the stage in which the sample failed.
    pub stage: String,
    /// Key of the sample.
    pub key: String,
    /// Number of the pass over the source, from 0.
    pub epoch: u32,
    /// Position of the sample in the unshuffled source, from 0.
    pub index: u64,
    /// Cause of the failure.
    pub class: FailureClass,
    /// Description of the problem.
    pub message: String,
    /// Treatment of the failed sample.
    pub disposition: Disposition,
}

/// Treatment of a failed sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// Left out of the results.
    Skipped,
    /// Written to the dead letters with its input.
    DeadLettered,
}

/// Cause of a failed sample. Each class is counted separately.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum FailureClass {
    /// The data: a stage examined the sample and rejected it.
    Data,
    /// A bug in the stage: it trapped, panicked, ran out of memory or missed its deadline.
    Bug,
    /// A bug in the stage: its result violates the contract (wrong count, invalid tensor, too much data).
    Contract,
    /// The storage: an object is missing, or could not be read after all retries.
    Storage,
}

impl FailureClass {
    /// All variants, in order.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Name of the class in JSON and in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
