//! The pipeline document as written.

mod bounds;
mod consumer;
mod json;
mod json_size;
mod read;
mod reader;
mod reading;
mod route;
mod set;
mod table;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use bounds::read_number;
pub use bounds::{
    BatchSize, BufferMib, Capacity, Concurrency, DeadlineMs, DeviceName, FreeGib, Gib, IntervalS, MemoryMib,
    Millis, ModuleRef, Name, ObjectKey, OutputMib, Percent, Reads, STD_PREFIX, Share, TableCharacter,
    Threads,
};
pub use consumer::{Consumer, Discard, Files, Simulate, Stream};
pub use json::{JsonBounds, MAX_DEPTH, MAX_DOCUMENT_BYTES, parse, parse_within};
pub use json_size::JsonSize;
pub use read::{read_all, read_value};
pub use reading::{FillValue, Links, OnDamage, Suffix, SuffixOf, WhenMissing};
pub use route::MAX_ROUTE_DEPTH;
pub use set::{parse_setting, set};
pub use table::{TableForm, TextEncoding};
pub(crate) use table::{double_quote, is_double_quote};

pub use crate::fault::MAX_FAULTS;
pub use crate::kinds::{
    Aggregate, Asset, Collate, Disaggregate, ELSE, Fetch, ROUTE_FIELD, Route, RouteBy, Sleep, SleepOn,
    SleepShape, Stage, Transfer, Wasm,
};
use crate::policy::FailureLimit;
pub use crate::sources::{
    By, ColumnType, ComparedValue, Comparison, IndexSource, KeyPart, LabelOrigin, LabelTable, ListSource,
    MdsSource, Missing, MixPart, MixSource, Operator, ParquetSource, Place, RangeSource, RecordDecoding,
    RecordForm, Records, RecordsSource, Source, SourceRules, SourceSettings, Table, TableSource, TarSource,
    TfrecordSource,
};
use crate::tune::Tune;

/// Maximum number of stages of one pipeline.
pub const MAX_STAGES: usize = 256;

/// A pipeline document: the source of samples, the stages that process them, and the consumer that drains them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Penstock pipeline")]
pub struct Spec {
    /// Name of the pipeline.
    #[serde(default = "default_name")]
    pub name: Name,
    /// Seed of all randomness: the same seed produces the same samples for any number of threads and ranks.
    #[serde(default)]
    pub seed: u64,
    /// Keeps the order of the input in all stages, as `"order": "input"` in each does, so that a second run makes the same batches in
    /// the same order. No stage may have `"order": "completion"` then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub deterministic: bool,
    /// Worker threads, shared by the stages that compute; the number of the machine's cores when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Threads>,
    /// Changes of concurrency and queues that the run makes itself while it is measured.
    #[serde(default, skip_serializing_if = "Tune::is_off")]
    pub tune: Tune,
    /// Length of a measuring window, in seconds.
    #[serde(default)]
    pub interval_s: IntervalS,
    /// Memory held between ops, in MiB: items in queues, results waiting for a queue, samples of incomplete batches, keys of the
    /// source.
    #[serde(default)]
    pub buffer_mib: BufferMib,
    /// Source of the samples.
    pub source: Source,
    /// Stages that samples pass, in order; may be empty.
    #[serde(default)]
    #[schemars(length(max = MAX_STAGES))]
    pub stages: Vec<Stage>,
    /// Settings of the last stage, which feeds the queue of the consumer.
    #[serde(default)]
    pub sink: Sink,
    /// Consumer that drains the sink queue.
    #[serde(default)]
    pub consumer: Consumer,
    /// Limit of failed samples over all stages. When missing here and in all stages: 5 % of the samples, checked after the first
    /// 1,000. `null` permits any number; an epoch in which every sample fails ends the run all the same.
    #[serde(default = "FailureLimit::usual", skip_serializing_if = "FailureLimit::is_usual")]
    pub max_failures: Option<FailureLimit>,
}

/// The JSON Schema (draft 2020-12) of the pipeline document, made from the types that read it.
pub fn schema() -> Value {
    schemars::schema_for!(Spec).to_value()
}

/// The last stage: moves finished items into the queue that the consumer drains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sink {
    /// Items the sink queue may hold.
    pub queue: Capacity,
}

impl Default for Sink {
    fn default() -> Self {
        Self { queue: Capacity::new(3).expect("3 is within bounds") }
    }
}

fn default_name() -> Name {
    Name::new("pipeline").expect("`pipeline` is a name")
}
