//! Settings of one stage of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

#[derive(Clone, Debug)]
pub struct StageSettings {
    /// Name of the stage, which is a part of every sample's seed and of every log line.
    pub name: String,
    /// Parameters, passed to the guest's `init` as JSON.
    pub params: serde_json::Value,
    /// Limit of the CPU time for one sample. The limit of a call with several samples is the sum of their limits; the limit for
    /// starting an instance is ten times this limit, but at least one second. The limit of wall-clock time is ten times that of
    /// CPU time. Limits are checked at every tick of 1 ms.
    pub deadline: Duration,
    /// Memory limit of one instance, in bytes.
    pub memory_bytes: u64,
    /// Maximum size of the results of one sample in bytes, over all of its children. A call returns at most 1 GiB in total.
    pub output_bytes: u64,
    /// Maximum size of the held samples, in bytes, that a stateful stage remembers outside of its guest; when exceeded, the
    /// oldest samples are dropped.
    pub held_bytes: u64,
    /// Files that the guest may read, by name.
    pub assets: BTreeMap<String, Bytes>,
    pub document_seed: u64,
}
