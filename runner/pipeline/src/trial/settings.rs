use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use penstock_types::spec::{DeadlineMs, MemoryMib, OutputMib};
use serde_json::{Map, Value};

#[derive(Clone, Debug)]
pub struct TrialSettings {
    pub params: Map<String, Value>,
    /// CPU time for one sample.
    pub deadline: DeadlineMs,
    /// Memory of one instance.
    pub memory: MemoryMib,
    /// Data that one sample may become.
    pub output: OutputMib,
    pub assets: BTreeMap<String, Bytes>,
    /// In place of the document's seed.
    pub seed: u64,
    /// Samples of one call to a module of mode `batch`; other modes take one.
    pub batch: usize,
    /// Passes over each sample. From 2 on, differences between passes are reported.
    pub repeat: u32,
    /// Bytes of output tensors whose elements are reported, all together.
    pub shown_bytes: u64,
}

impl TrialSettings {
    pub(super) fn deadline(&self) -> Duration {
        Duration::from_millis(u64::from(self.deadline.get()))
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.memory.get()) << 20
    }

    pub(super) fn output_bytes(&self) -> u64 {
        u64::from(self.output.get()) << 20
    }
}
