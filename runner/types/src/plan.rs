//! The checked pipeline: all names are resolved, every stage has an id, and no fault is left to find before the run.

mod check;
mod explain;
mod faults;
mod fields;
mod flow;
mod items;
mod known;
mod recipe;
mod route;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::fault::Pointer;
use crate::kinds::Fails;
use crate::policy::{Capacity, Concurrency, FailureLimit, OnError, Order};
use crate::routes::{RoutePart, RouteSpan};
use crate::spec::{Consumer, Route, Source};
use crate::traversal::TraversalSettings;
use crate::tune::Tune;

pub use self::check::{Draft, LEAST_SAMPLE_BYTES};
pub use self::faults::Faults;
pub use self::fields::{BYTES_FIELD, Fields, LABEL_FIELD};
pub use self::flow::{Epoch, Flow, Unit};
pub use self::known::{Known, ModuleFacts, StoreFacts};
pub use self::settings::LiveSetting;
pub use crate::kinds::{
    AggregatePlan, Batching, CollatePlan, Device, FetchPlan, Moving, PathPlan, RoutePlan, SleepPlan,
    StageKind, WasmPlan,
};

/// A pipeline that is checked and can be built. Only [`Plan::check`] and [`Plan::draft`] create it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// Name of the pipeline.
    pub name: String,
    /// Seed of all randomness.
    pub seed: u64,
    /// Set if the document keeps the order of the input in all stages.
    pub deterministic: bool,
    /// Number of worker threads; `None` for the number of the machine's cores.
    pub threads: Option<u32>,
    /// Changes of settings that the run makes itself.
    pub tune: Tune,
    /// Length of a measuring window.
    pub interval: Duration,
    /// Memory held between ops, in bytes: in queues, in slots, in incomplete batches, and by the source.
    pub buffer_bytes: u64,
    /// Source of the samples; stage 0.
    pub source: SourcePlan,
    /// The stages, numbered from 1. The stages of a route stand before it: each path with its gate, then its stages.
    pub stages: Vec<StagePlan>,
    /// Fields of the samples that reach the sink.
    pub fields: Fields,
    /// Last stage, which feeds the sink queue.
    pub sink: SinkPlan,
    /// Consumer that drains the sink queue.
    pub consumer: Consumer,
    /// Limit of failures over all stages, beyond which the run fails.
    pub max_failures: Option<FailureLimit>,
    /// Document without the settings that cannot change the batches: equal recipes over the same data make the same batches.
    pub recipe: Value,
    /// Settings that let the order of batches differ from run to run; when empty, a second run makes the same batches.
    pub unordered: Vec<Pointer>,
}

/// Plan of the source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePlan {
    /// Id of the source, always `0:src`.
    pub id: StageId,
    /// Source as written in the document.
    pub spec: Source,
    /// Order and range in which the entries are visited.
    pub traversal: TraversalSettings,
    /// Capacity of the queue behind the source, in items.
    pub queue: Capacity,
    /// Items that the source produces.
    pub flow: Flow,
}

/// Plan of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// Position and name of the stage.
    pub id: StageId,
    /// Place of the stage in the document, e.g. `/stages/1/wasm`; for a gate, the place of its path.
    pub place: Pointer,
    /// Name from which the stage's random numbers are seeded: its own name, or `x#1` for the second stage named `x`, which draws
    /// other numbers than the first.
    pub seeded_as: String,
    /// Kind of the stage, with its settings.
    pub kind: StageKind,
    /// Capacity of the queue behind the stage, in items.
    pub queue: Capacity,
    /// Number of tasks that may run at a time.
    pub concurrency: Concurrency,
    /// Order in which results are passed on.
    pub order: Order,
    /// Handling of a sample that failed.
    pub on_error: OnError,
    /// Limit of failures in this stage, beyond which the run fails.
    pub max_failures: Option<FailureLimit>,
    /// What can fail in the stage.
    pub fails: Fails,
    /// Items that the stage produces.
    pub flow: Flow,
}

/// The last stage: moves finished items into the sink queue.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkPlan {
    /// Position after all stages, and the name `sink`.
    pub id: StageId,
    /// Capacity of the sink queue, in items.
    pub queue: Capacity,
}

/// Id of one stage of a pipeline: its position, from 0 for the source, and its name. Written `2:download`; in a path of a route
/// `3:route/image/1:decode`, and `3:route/image` for the gate of the path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId {
    position: u32,
    /// Part between the position and the name, e.g. `route/image/1:`; empty for stages outside of routes.
    within: String,
    name: String,
}

impl StageId {
    /// Creates the id of the stage at `position`.
    pub(crate) fn new(position: usize, name: impl Into<String>) -> Self {
        let position = u32::try_from(position).expect("a pipeline has at most 256 stages");
        Self { position, within: String::new(), name: name.into() }
    }

    /// Id of the gate of a path of this route.
    pub(crate) fn path(&self, name: &str) -> Self {
        Self { within: format!("{}{}/", self.within, self.name), name: name.to_owned(), ..*self }
    }

    /// Id of the stage at `position`, from 1, in the path of this gate.
    pub(crate) fn stage(&self, position: usize, name: impl Into<String>) -> Self {
        Self { within: format!("{}{}/{position}:", self.within, self.name), name: name.into(), ..*self }
    }

    /// Parses an id in its written form, e.g. `2:download`; `None` if it is invalid.
    pub fn parse(written: &str) -> Option<Self> {
        let (position, rest) = written.split_once(':')?;
        let (within, name) = rest.split_at(rest.rfind(['/', ':']).map_or(0, |end| end + 1));
        let id = Self { position: position.parse().ok()?, within: within.to_owned(), name: name.to_owned() };
        (id.to_string() == written && !name.is_empty()).then_some(id)
    }

    /// Position in the pipeline, 0 for the source; for stages of a path, that of the outermost route.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Name without the position, e.g. `download`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Place of the stage in the document, without its kind, e.g. `/stages/1` or `/stages/2/route/paths/image/0`.
    pub fn place(&self) -> Pointer {
        let written = self.to_string();
        let parts = written.split('/').enumerate();
        parts.fold(Pointer::ROOT.key("stages"), |place, (number, part)| match number % 2 {
            0 => {
                let position = part.split(':').next().and_then(|position| position.parse::<usize>().ok());
                place.index(position.unwrap_or(1).saturating_sub(1))
            }
            _ => Route::place(part, &place.key("route")),
        })
    }

    /// Id of the queue behind the stage, e.g. `2:download_queue`.
    pub fn queue_id(&self) -> String {
        format!("{self}_queue")
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.position, self.within, self.name)
    }
}

impl Serialize for StageId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Plan {
    /// Source, stages and sink, each with the capacity of the queue behind it.
    pub fn nodes(&self) -> impl Iterator<Item = (&StageId, Capacity)> {
        let stages = self.stages.iter().map(|stage| (&stage.id, stage.queue));
        let (source, sink) = ((&self.source.id, self.source.queue), (&self.sink.id, self.sink.queue));
        std::iter::once(source).chain(stages).chain([sink])
    }

    /// Places of the routes among the nodes of the pipeline.
    pub fn routes(&self) -> Vec<RouteSpan> {
        let part = |stage: &StagePlan| match &stage.kind {
            StageKind::Path(path) => Some(RoutePart::Gate(path.route)),
            StageKind::Route(route) => Some(RoutePart::Join(route.route)),
            _ => None,
        };
        RouteSpan::all(self.stages.iter().map(part))
    }
}

impl StagePlan {
    /// Text for display: `2:download[12]`, or `2:download` with a concurrency of 1.
    pub fn label(&self) -> String {
        stage_label(&self.id.to_string(), self.concurrency.get())
    }
}

/// Text for display of a stage with this id and concurrency: `2:download[12]`, or `2:download` with a concurrency of 1.
pub fn stage_label(id: &str, concurrency: u32) -> String {
    match concurrency {
        1 => id.to_owned(),
        tasks => format!("{id}[{tasks}]"),
    }
}
