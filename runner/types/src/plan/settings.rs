//! Settings that can change in a run.

use super::{Plan, StageKind};
use crate::fault::Pointer;
use crate::policy::{Capacity, Concurrency};
use crate::spec::Threads;

/// A setting of a plan that can change in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LiveSetting {
    /// Concurrency of the stage at this place in [`Plan::stages`].
    Concurrency(usize),
    /// Capacity of the queue behind the node with this number: the stages from 1, then the sink. That of a route is the capacity of the
    /// queues at the gates of its paths, too.
    Queue(usize),
    /// Number of worker threads that take jobs.
    Threads,
}

impl LiveSetting {
    /// Settings of a plan that can change in a run, in the order of the document, the number of threads last.
    pub fn all(plan: &Plan) -> impl Iterator<Item = Self> {
        let sink = plan.stages.len() + 1;
        let stages = plan.stages.iter().enumerate().flat_map(|(place, stage)| {
            let (is_gate, may_grow) =
                (matches!(stage.kind, StageKind::Path(_)), stage.kind.rules().may_grow());
            [may_grow.then_some(Self::Concurrency(place)), (!is_gate).then_some(Self::Queue(place + 1))]
        });
        stages.flatten().chain([Self::Queue(sink), Self::Threads])
    }

    /// The setting at this place in the document; `None` if it cannot change in a run.
    pub fn at(plan: &Plan, pointer: &str) -> Option<Self> {
        Self::all(plan).find(|setting| setting.pointer(plan).as_str() == pointer)
    }

    /// Place of the setting in the document.
    pub fn pointer(self, plan: &Plan) -> Pointer {
        match self {
            Self::Concurrency(place) => plan.stages[place].place.key("concurrency"),
            Self::Queue(node) => match plan.stages.get(node - 1) {
                Some(stage) => stage.place.key("queue"),
                None => Pointer::ROOT.key("sink").key("queue"),
            },
            Self::Threads => Pointer::ROOT.key("threads"),
        }
    }

    /// Id of the stage or queue; `None` for the number of threads.
    pub fn id(self, plan: &Plan) -> Option<String> {
        match self {
            Self::Concurrency(place) => Some(plan.stages[place].id.to_string()),
            Self::Queue(node) => plan.nodes().nth(node).map(|(id, _)| id.queue_id()),
            Self::Threads => None,
        }
    }

    /// Value of the setting; `None` for the number of threads if the document leaves it to the machine.
    pub fn value(self, plan: &Plan) -> Option<u32> {
        match self {
            Self::Concurrency(place) => Some(plan.stages[place].concurrency.get()),
            Self::Queue(node) => plan.nodes().nth(node).map(|(_, capacity)| capacity.get()),
            Self::Threads => plan.threads,
        }
    }

    /// Maximum value that a document may have.
    pub fn most(self) -> u32 {
        match self {
            Self::Concurrency(_) => Concurrency::MOST,
            Self::Queue(_) => Capacity::MOST,
            Self::Threads => Threads::MOST,
        }
    }

    /// Changes the setting of a plan. Returns false if the value is outside of what a document may have.
    pub fn set(self, plan: &mut Plan, value: u32) -> bool {
        match self {
            Self::Concurrency(place) => {
                Concurrency::new(value).map(|value| plan.stages[place].concurrency = value).is_some()
            }
            Self::Queue(node) => Capacity::new(value).map(|value| plan.set_queue(node, value)).is_some(),
            Self::Threads => Threads::new(value).map(|value| plan.threads = Some(value.get())).is_some(),
        }
    }

    /// Nodes whose queues have this setting; none for other settings.
    pub fn queues(self, plan: &Plan) -> Vec<usize> {
        let Self::Queue(node) = self else { return Vec::new() };
        let route =
            match node.checked_sub(1).and_then(|place| plan.stages.get(place)).map(|stage| &stage.kind) {
                Some(StageKind::Route(route)) => Some(route.route),
                _ => None,
            };
        let is_gate = |kind: &StageKind| matches!(kind, StageKind::Path(path) if Some(path.route) == route);
        let gates = plan.stages.iter().enumerate().filter(|(_, stage)| is_gate(&stage.kind));
        gates.map(|(place, _)| place + 1).chain([node]).collect()
    }
}

impl Plan {
    fn set_queue(&mut self, node: usize, capacity: Capacity) {
        for node in LiveSetting::Queue(node).queues(self) {
            match self.stages.get_mut(node - 1) {
                Some(stage) => stage.queue = capacity,
                None => self.sink.queue = capacity,
            }
        }
    }
}
