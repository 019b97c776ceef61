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
use crate::policy::{FailureLimit, OnError, Order, Ragged};

/// One stage: takes items from the queue before it and puts items into a queue of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Stage {
    /// Collects samples into batches.
    Aggregate(Aggregate),
    /// Reads the object each sample names.
    Fetch(Fetch),
    /// Takes batches apart into samples.
    Disaggregate(Disaggregate),
    /// Runs an uploaded module.
    Wasm(Wasm),
    /// Stacks the fields of a batch's samples.
    Collate(Collate),
    /// Brings batches to the device that trains.
    Transfer(Transfer),
    /// Takes time and changes nothing, to try out how a pipeline behaves.
    Sleep(Sleep),
}

/// Declares a stage whose tasks may run side by side and may fail: its own fields, then those all such stages have.
/// (serde's `flatten` would do the same but cannot refuse unknown fields.)
macro_rules! tasked_stage {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// What the stage is called in statistics; its kind, or its module's name, when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub name: Option<Name>,
            /// Items the queue at the stage's exit may hold.
            #[serde(default)]
            pub queue: Capacity,
            /// Tasks alive at a time.
            #[serde(default)]
            pub concurrency: Concurrency,
            /// In which order results are passed on.
            #[serde(default)]
            pub order: Order,
            /// What becomes of a sample that failed.
            #[serde(default)]
            pub on_error: OnError,
            /// How many failures of this stage are too many; any number will do when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_failures: Option<FailureLimit>,
        }

        impl $name {
            /// What all stages have.
            fn settings(&self) -> Settings<'_> {
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

/// Collects samples into batches; epochs never share one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// Samples of a batch.
    pub size: BatchSize,
    /// Whether an epoch's last batch is left out when it is not full.
    #[serde(default)]
    pub drop_last: bool,
    /// What the stage is called in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Items the queue at the stage's exit may hold.
    #[serde(default)]
    pub queue: Capacity,
}

/// Takes batches apart into samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disaggregate {
    /// What the stage is called in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Items the queue at the stage's exit may hold.
    #[serde(default)]
    pub queue: Capacity,
}

tasked_stage! {
    /// Reads the object each sample's key names. A batch is read concurrently and answered sample by sample.
    Fetch {
        /// The store to read from; the source's when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<Name>,
    }
}

tasked_stage! {
    /// Runs an uploaded module on the run's worker threads.
    Wasm {
        /// The module: `name`, `name@version-or-alias` or `sha256:...`.
        module: ModuleRef,
        /// What the module is set up with; its manifest says what it takes.
        #[serde(default)]
        params: Map<String, Value>,
        /// CPU time it may use for one sample, in milliseconds.
        #[serde(default)]
        deadline_ms: DeadlineMs,
        /// Memory one instance may use, in MiB.
        #[serde(default)]
        memory_mib: MemoryMib,
        /// Data it may make of one sample, over all its children, in MiB. A call that gives back more fails.
        #[serde(default, skip_serializing_if = "is_usual_output")]
        #[schemars(extend("default" = OutputMib::default()))]
        output_mib: OutputMib,
        /// Objects it may ask for by name: vocabularies, tables.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        assets: BTreeMap<Name, Asset>,
    }
}

/// True for the default, which is not written, so that recipes of existing folders stay equal.
fn is_usual_output(output: &OutputMib) -> bool {
    *output == OutputMib::default()
}

/// An object that a module may ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asset {
    /// The store it lies in.
    pub store: Name,
    /// Its key.
    pub key: ObjectKey,
}

tasked_stage! {
    /// Stacks every field over the samples of a batch.
    Collate {
        /// Treatment of tensors that differ in shape within a batch.
        #[serde(default, skip_serializing_if = "Ragged::is_usual")]
        #[schemars(extend("default" = Ragged::default()))]
        ragged: Ragged,
    }
}

tasked_stage! {
    /// Brings batches to the device that trains.
    Transfer {
        /// `auto` (the first device there is, else the host), `host`, or `cuda:N`.
        #[serde(default = "default_device")]
        device: DeviceName,
    }
}

tasked_stage! {
    /// Takes time and changes nothing, to try out how a pipeline behaves.
    Sleep {
        /// Mean time of a task, in milliseconds.
        mean_ms: Millis,
        /// How far times stray from the mean, as a share of it; for the uniform shape only.
        #[serde(default)]
        jitter: Share,
        /// How times are distributed.
        #[serde(default)]
        shape: SleepShape,
        /// What a task occupies while it sleeps.
        #[serde(default)]
        on: SleepOn,
        /// Share of tasks that fail on purpose.
        #[serde(default)]
        fail_rate: Share,
    }
}

/// How the times of `sleep` are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SleepShape {
    /// All alike between mean x (1 - jitter) and mean x (1 + jitter).
    #[default]
    Uniform,
    /// Many short, few long ones: what queues at a busy server look like.
    Exponential,
}

/// What a task of `sleep` occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SleepOn {
    /// Nothing, as a download that waits for its server.
    #[default]
    Async,
    /// A worker thread, as decoding does.
    Thread,
}

/// What all stages have, whatever their kind.
pub(crate) struct Settings<'a> {
    pub(crate) name: Option<&'a Name>,
    pub(crate) queue: Capacity,
    pub(crate) concurrency: Concurrency,
    pub(crate) order: Order,
    pub(crate) on_error: OnError,
    pub(crate) max_failures: Option<FailureLimit>,
}

impl Stage {
    /// The word for its kind, as in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// What the document calls it; `None` when it goes by its kind or its module.
    pub fn name(&self) -> Option<&Name> {
        self.settings().name
    }

    /// The stores that it names.
    pub(crate) fn stores(&self) -> Vec<&Name> {
        match self {
            Self::Fetch(stage) => stage.store.iter().collect(),
            Self::Wasm(stage) => stage.assets.values().map(|asset| &asset.store).collect(),
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
        }
    }
}

impl<'a> Settings<'a> {
    /// Rebatching is one loop that keeps the order and has nothing that could fail.
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
