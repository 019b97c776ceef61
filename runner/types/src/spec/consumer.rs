//! The consumers of the document.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{Ahead, Millis, Name, Share, WaitS};

/// What drains the sink queue: the training loop, or what stands in for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Consumer {
    /// Drops every item at once, to see how fast the pipeline can be.
    Discard(Discard),
    /// Waits after every item, as a training step of that length would.
    Simulate(Simulate),
    /// Writes every collated batch as a safetensors file.
    Files(Files),
    /// Hands every collated batch to a training loop in another process of the same machine.
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
    /// How far steps stray from the mean, as a share of it.
    #[serde(default)]
    pub jitter: Share,
}

/// Writes every collated batch as `PREFIX/batch-00000000.safetensors`, numbered as they come, each whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// The store they are written to.
    pub store: Name,
    /// The folder they lie in; the whole store when empty.
    #[serde(default)]
    pub prefix: String,
}

/// Hands every collated batch to a training loop in another process of the same machine, in shared memory, again and again until
/// it is acknowledged: `penstock.connect(url).stream(run)` in Python.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Batches that may be handed out and not acknowledged yet.
    #[serde(default)]
    pub ahead: Ahead,
    /// Longest that a batch waits while nobody is connected to take it, in seconds; then the run fails. Whoever is connected may
    /// take as long as it wants.
    #[serde(default)]
    pub wait_s: WaitS,
}

impl Consumer {
    /// The store it writes to.
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
