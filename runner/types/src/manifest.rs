//! What a stage module says of itself, readable without running it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the WASM custom section that holds a [`Manifest`] as JSON.
pub const MANIFEST_SECTION: &str = "penstock.manifest";

/// Most counters one module may declare.
pub const MAX_COUNTERS: usize = 16;

/// What a stage module says of itself. The guest SDK writes it into the custom section
/// `penstock.manifest`; a module without that section is not a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The module's name, e.g. `decode-resize`.
    pub name: String,
    /// Its own version, e.g. `1.2.0`.
    pub version: String,
    /// What it does, in a sentence or a paragraph.
    #[serde(default)]
    pub doc: String,
    /// What it is called with.
    #[serde(default)]
    pub mode: Mode,
    /// Fields that cross into the module; `null` means all of them. The others are carried past it.
    #[serde(default)]
    pub wants: Option<Vec<String>>,
    /// Fields it makes or replaces; for readers and for checks, not enforced per sample.
    #[serde(default)]
    pub makes: Vec<String>,
    /// Counters it may add to, at most 16.
    #[serde(default)]
    pub counters: Vec<String>,
    /// JSON Schema of `params`; `null` when it takes none.
    #[serde(default)]
    pub params: Option<serde_json::Value>,
}

/// What a module's `process` is called with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One sample a call; any number of instances.
    #[default]
    Sample,
    /// All samples of one batch a call; any number of instances.
    Batch,
    /// One sample a call, one instance, which may hold samples back until the epoch ends.
    Stateful,
}

impl Mode {
    /// The word in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Batch => "batch",
            Self::Stateful => "stateful",
        }
    }
}
