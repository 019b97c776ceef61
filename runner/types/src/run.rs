//! What a run looks like from outside.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose fault a failed sample is. Each class has its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    /// The data's: a stage looked at the sample and refused it.
    Data,
    /// The stage's: it trapped, panicked, ran out of memory or missed its deadline.
    Bug,
    /// The stage's: what it gave back breaks the contract (wrong count, bad tensor, too much).
    Contract,
    /// The storage's: an object is missing, or could not be read after all retries.
    Storage,
}

impl FailureClass {
    /// The word used in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Bug => "bug",
            Self::Contract => "contract",
            Self::Storage => "storage",
        }
    }
}
