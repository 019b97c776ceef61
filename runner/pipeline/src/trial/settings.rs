use std::collections::BTreeMap;

use bytes::Bytes;
use penstock_types::spec::{DeadlineMs, MemoryMib, OutputMib};
use serde_json::{Map, Value};

#[derive(Clone, Debug)]
pub struct TrialSettings {
    pub params: Map<String, Value>,
    /// CPU time limit for one sample.
    pub deadline: DeadlineMs,
    /// Memory limit of one instance.
    pub memory: MemoryMib,
    /// Limit of the data returned for one sample.
    pub output: OutputMib,
    pub assets: BTreeMap<String, Bytes>,
    /// Seed that replaces the document's.
    pub seed: u64,
    /// Number of samples in one call to a module of mode `batch`; in other modes, a call has one sample.
    pub batch: usize,
    /// Number of passes over each sample. From 2 on, differences between passes are reported.
    pub repeat: u32,
    /// Maximum total size of output tensors whose elements are reported, in bytes.
    pub shown_bytes: u64,
}
