//! The stages of the document, one type per kind.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::IntoStaticStr;

use super::bounds::{
    BatchSize, Capacity, Concurrency, DeadlineMs, DeviceName, MemoryMib, Millis, ModuleRef, Name, ObjectKey,
    OutputMib, Share,
};
use super::route::Route;
use crate::policy::{FailureLimit, Mismatch, OnError, Order, Ragged};

/// One stage: takes items from the queue before it and puts its results into the queue behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Stage {
    /// Collects samples into batches.
    Aggregate(Aggregate),
    /// Reads the object that each sample's key names.
    Fetch(Fetch),
    /// Splits batches into samples.
    Disaggregate(Disaggregate),
    /// Runs a WebAssembly module.
    Wasm(Wasm),
    /// Stacks the fields of the samples of a batch.
    Collate(Collate),
    /// Copies batches to the training device.
    Transfer(Transfer),
    /// Waits without changing its items, to try out the behaviour of a pipeline.
    Sleep(Sleep),
    /// Sends each sample down one of several paths.
    Route(Route),
}

/// Declares a stage whose tasks may run concurrently and may fail: its own fields, then the fields shared by all such stages.
/// (serde's `flatten` could share the fields, but cannot reject unknown ones.)
macro_rules! tasked_stage {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Name of the stage in statistics; its kind, or the name of its module, when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub name: Option<Name>,
            /// Maximum number of items in the queue after the stage.
            #[serde(default)]
            pub queue: Capacity,
            /// Number of tasks that may run at a time.
            #[serde(default)]
            pub concurrency: Concurrency,
            /// Order in which results are passed on.
            #[serde(default)]
            pub order: Order,
            /// Handling of a sample that failed.
            #[serde(default)]
            pub on_error: OnError,
            /// Limit of failures in this stage, beyond which the run fails; no limit when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_failures: Option<FailureLimit>,
        }

        impl $name {
            /// Returns the fields that all stages share.
            pub(crate) fn settings(&self) -> Settings<'_> {
                Settings {
                    name: self.name.as_ref(),
                    queue: self.queue,
                    concurrency: self.concurrency,
                    order: self.order,
                    on_error: self.on_error,
                    max_failures: self.max_failures,
                }
            }
        }
    };
}

/// Collects samples into batches; a batch never contains samples of two epochs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// Number of samples in a batch.
    pub size: BatchSize,
    /// Discards the last batch of an epoch when it is not full.
    #[serde(default)]
    pub drop_last: bool,
    /// Name of the stage in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Maximum number of items in the queue after the stage.
    #[serde(default)]
    pub queue: Capacity,
}

/// Splits batches into samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disaggregate {
    /// Name of the stage in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Maximum number of items in the queue after the stage.
    #[serde(default)]
    pub queue: Capacity,
}

tasked_stage! {
    /// Reads the object that each sample's key, or one of its fields, names. The objects of a batch are read concurrently; each read may fail alone.
    Fetch {
        /// Store to read from; the store of the source when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<Name>,
        /// Field whose text is the key of the object; the key of the sample when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        object: Option<String>,
    }
}

tasked_stage! {
    /// Runs a WebAssembly module on the worker threads of the run.
    Wasm {
        /// Reference to the module: `name`, `name@version-or-alias` or `sha256:...`; the modules of the program are `std/name`.
        module: ModuleRef,
        /// Parameters of the module; its manifest has their JSON Schema.
        #[serde(default)]
        params: Map<String, Value>,
        /// CPU time the module may use for one sample, in milliseconds.
        #[serde(default)]
        deadline_ms: DeadlineMs,
        /// Memory that one instance of the module may use, in MiB.
        #[serde(default)]
        memory_mib: MemoryMib,
        /// Data the module may return for one sample, over all samples made from it, in MiB. A call that returns more fails.
        #[serde(default, skip_serializing_if = "is_usual_output")]
        #[schemars(extend("default" = OutputMib::default()))]
        output_mib: OutputMib,
        /// Objects that the module may read by name: vocabularies, tables.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        assets: BTreeMap<Name, Asset>,
    }
}

impl Wasm {
    fn stores(&self) -> impl Iterator<Item = &Name> {
        self.assets.values().map(|asset| &asset.store)
    }
}

/// True for the default, which is not serialized, so that the recipes of existing folders stay equal.
fn is_usual_output(output: &OutputMib) -> bool {
    *output == OutputMib::default()
}

/// An object that a module may read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asset {
    /// Store that holds the object.
    pub store: Name,
    /// Key of the object in the store.
    pub key: ObjectKey,
}

tasked_stage! {
    /// Stacks every field over the samples of a batch.
    Collate {
        /// Handling of tensors that differ in shape within a batch.
        #[serde(default, skip_serializing_if = "Ragged::is_usual")]
        #[schemars(extend("default" = Ragged::default()))]
        ragged: Ragged,
        /// Shapes of tensor fields, e.g. `{"image": [3, 224, 224]}`, with `"ragged": "skip"`: samples of other shapes fail. Without
        /// it, the most frequent shape of each batch decides.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        shape: BTreeMap<String, Vec<u32>>,
        /// Handling of samples whose fields differ from those of the data set in presence or type.
        #[serde(default, skip_serializing_if = "Mismatch::is_usual")]
        #[schemars(extend("default" = Mismatch::default()))]
        mismatch: Mismatch,
    }
}

tasked_stage! {
    /// Copies batches to the training device.
    Transfer {
        /// `auto` (the first device found, otherwise the host), `host`, or `cuda:N`.
        #[serde(default = "default_device")]
        device: DeviceName,
    }
}

tasked_stage! {
    /// Waits without changing its items, to try out the behaviour of a pipeline.
    Sleep {
        /// Mean time of a task, in milliseconds.
        mean_ms: Millis,
        /// Maximum deviation from the mean, as a share of the mean; for the shape `uniform` only.
        #[serde(default)]
        jitter: Share,
        /// Distribution of the times.
        #[serde(default)]
        shape: SleepShape,
        /// Resource that a task occupies while it waits.
        #[serde(default)]
        on: SleepOn,
        /// Share of tasks that fail on purpose, 0.0 to 1.0.
        #[serde(default)]
        fail_rate: Share,
    }
}

/// Distribution of the times of `sleep`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SleepShape {
    /// Uniform between mean x (1 - jitter) and mean x (1 + jitter).
    #[default]
    Uniform,
    /// Exponential: many short times and few long ones, like the response times of a busy server.
    Exponential,
}

/// Resource that a task of `sleep` occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SleepOn {
    /// No thread, like a download that waits for its server.
    #[default]
    Async,
    /// One worker thread, like decoding.
    Thread,
}

/// Fields that all stages have, of any kind.
pub(crate) struct Settings<'a> {
    pub(crate) name: Option<&'a Name>,
    pub(crate) queue: Capacity,
    pub(crate) concurrency: Concurrency,
    pub(crate) order: Order,
    pub(crate) on_error: OnError,
    pub(crate) max_failures: Option<FailureLimit>,
}

impl Stage {
    /// Kind of the stage, as written in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Name in the document; `None` when the stage is named after its kind or module.
    pub fn name(&self) -> Option<&Name> {
        self.settings().name
    }

    /// Stores that the stage reads from by name, without those of the stages in its paths.
    pub(crate) fn stores(&self) -> Vec<&Name> {
        match self {
            Self::Fetch(stage) => stage.store.iter().collect(),
            Self::Wasm(stage) => stage.stores().collect(),
            Self::Route(route) => route.module().into_iter().flat_map(Wasm::stores).collect(),
            Self::Aggregate(_)
            | Self::Disaggregate(_)
            | Self::Collate(_)
            | Self::Transfer(_)
            | Self::Sleep(_) => Vec::new(),
        }
    }

    pub(crate) fn settings(&self) -> Settings<'_> {
        match self {
            Self::Aggregate(stage) => Settings::of_rebatching(stage.name.as_ref(), stage.queue),
            Self::Disaggregate(stage) => Settings::of_rebatching(stage.name.as_ref(), stage.queue),
            Self::Fetch(stage) => stage.settings(),
            Self::Wasm(stage) => stage.settings(),
            Self::Collate(stage) => stage.settings(),
            Self::Transfer(stage) => stage.settings(),
            Self::Sleep(stage) => stage.settings(),
            Self::Route(stage) => stage.settings(),
        }
    }
}

impl<'a> Settings<'a> {
    /// Settings of a rebatching stage, which runs in one loop, keeps the order and cannot fail.
    fn of_rebatching(name: Option<&'a Name>, queue: Capacity) -> Self {
        Self {
            name,
            queue,
            concurrency: Concurrency::default(),
            order: Order::Input,
            on_error: OnError::Skip,
            max_failures: None,
        }
    }
}

fn default_device() -> DeviceName {
    DeviceName::new("auto").expect("`auto` is a device")
}
