//! The consumers of the document.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{Ahead, Millis, Name, Share, WaitS};

/// Consumer that drains the sink queue: the training loop, or a replacement for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Consumer {
    /// Drops every item at once, to measure the pipeline's maximum speed.
    Discard(Discard),
    /// Waits after every item, like a training step.
    Simulate(Simulate),
    /// Writes every collated batch as a safetensors file.
    Files(Files),
    /// Passes every collated batch to a training loop in another process of the same machine.
    Stream(Stream),
}

/// Drops every item at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Discard {}

/// Waits after every item.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Simulate {
    /// Mean time of a training step, in milliseconds.
    pub step_ms: Millis,
    /// Maximum deviation of a step from the mean, as a share of the mean.
    #[serde(default)]
    pub jitter: Share,
}

/// Writes every collated batch as `PREFIX/batch-00000000.safetensors`, numbered in order of arrival; a file is complete or
/// absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Store that the files are written to.
    pub store: Name,
    /// Folder of the files in the store; the whole store when empty.
    #[serde(default)]
    pub prefix: String,
}

/// Passes every collated batch to a training loop in another process of the same machine, through shared memory. A batch is
/// delivered again until it is acknowledged. Python: `penstock.connect(url).stream(run)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Maximum number of batches delivered and not acknowledged yet.
    #[serde(default)]
    pub ahead: Ahead,
    /// Longest time that a batch waits while no reader is connected, in seconds; then the run fails. A connected reader has no
    /// time limit.
    #[serde(default)]
    pub wait_s: WaitS,
}

impl Files {
    /// Folder of the files in the store, without a trailing `/`.
    pub fn folder(&self) -> &str {
        self.prefix.strip_suffix('/').unwrap_or(&self.prefix)
    }
}

impl Consumer {
    /// Store that the consumer writes to, if it writes to one.
    pub(crate) fn store(&self) -> Option<&Name> {
        match self {
            Self::Files(files) => Some(&files.store),
            Self::Discard(_) | Self::Simulate(_) | Self::Stream(_) => None,
        }
    }
}

impl Default for Consumer {
    fn default() -> Self {
        Self::Discard(Discard {})
    }
}
