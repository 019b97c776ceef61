//! The rules of a stage, whatever its kind: callers ask for these properties instead of naming kinds.

use serde::{Deserialize, Serialize};

use super::aggregate::AggregatePlan;
use super::settings::Settings;
use super::sleep::SleepPlan;
use crate::fault::Pointer;
use crate::manifest::Manifest;
use crate::plan::{Faults, Fields, Flow, Known, Unit};
use crate::policy::OnError;
use crate::spec::Name;

/// Rules of a planned stage. They are asked when a document is checked, predicted or explained, never per item.
pub trait Rules {
    /// Activity of its tasks.
    fn work(&self) -> Work;

    /// Way in which it moves samples, if it only moves them.
    fn moving(&self) -> Option<Moving> {
        None
    }

    /// Units that it accepts.
    fn takes(&self) -> &'static [Unit] {
        &[Unit::Samples]
    }

    /// Items behind the stage, and true if they are certain even if it does not accept the ones before it.
    fn gives(&self, before: Flow) -> (Flow, bool) {
        (before, false)
    }

    /// Names of the fields that it may change; `None` if it may change all. `module` is the manifest of the module that it runs.
    fn changes(&self, _module: Option<&Manifest>) -> Option<Vec<String>> {
        Some(Vec::new())
    }

    /// Settings that can change a byte of a batch.
    fn recipe(&self) -> Recipe<'_> {
        Recipe { has_order: self.work() != Work::Moving, ..Recipe::default() }
    }

    /// What it does, in words.
    fn in_words(&self) -> String;

    /// Limits of its tasks, in words, if it has limits.
    fn limits_in_words(&self) -> Option<String> {
        None
    }

    /// Name of the store that its tasks read from, if they read from one.
    fn store(&self) -> Option<&str> {
        None
    }

    /// Field of a sample that contains the key of the object that is read from the store; `None` for the key of the sample.
    fn object(&self) -> Option<&str> {
        None
    }

    /// Times that the document states for its tasks, if they only wait.
    fn stated_times(&self) -> Option<SleepPlan> {
        None
    }

    /// Name of its tasks in words.
    fn tasks_in_words(&self) -> &'static str {
        "tasks"
    }

    /// Upper bounds for its memory, apart from its items.
    fn memory(&self) -> Memory {
        Memory::default()
    }

    /// True if its op keeps samples between calls, so that there is one instance of it.
    fn is_stateful(&self) -> bool {
        false
    }

    /// True if results take no more memory than their inputs.
    fn keeps_size(&self) -> bool {
        true
    }

    /// True if each sample leaves the stage as one sample, unless it fails.
    fn keeps_count(&self) -> bool {
        true
    }

    /// Number of samples or tasks that can overtake one another in the stage.
    fn abreast(&self, concurrency: u32) -> u32 {
        concurrency
    }

    /// True if the concurrency can change: moving stages have no tasks, and a stateful one has one at a time.
    fn may_grow(&self) -> bool {
        self.work() != Work::Moving && !self.is_stateful()
    }

    /// Reason why the stage cannot stand in a path of a route, which keeps the order of the input if `keeps_order` is set; and the remedy.
    fn misfit_in_route(&self, _keeps_order: bool) -> Option<(String, &'static str)> {
        None
    }
}

/// Rules of a stage as written in a document.
pub(crate) trait Written {
    /// Settings that stages of all kinds have.
    fn settings(&self) -> Settings<'_>;

    /// Stores that the stage names, without those of the stages in its paths.
    fn stores(&self) -> Vec<&Name> {
        Vec::new()
    }

    /// Name in statistics, if it differs from the kind.
    fn usual_name<'a>(&self, _known: &Known<'a>) -> Option<&'a str> {
        None
    }

    /// True if a stage without a name of its own may be called `name` in dead letters; `kind` is its kind.
    fn may_be_called(&self, name: &str, kind: &str) -> bool {
        name == kind
    }

    /// Subject of a sentence about the stage, if it is not its kind.
    fn subject(&self) -> Option<String> {
        None
    }

    /// What can fail in it.
    fn fails(&self) -> Fails {
        Fails::Samples
    }

    /// Changes the settings to those of a run over the stage's dead letters, in which no number of failures is too high. `store` is that of
    /// the source, which the dead letters replace.
    fn prepare_for_replay(&mut self, on_error: OnError, store: Option<&Name>);

    /// Effect on the batches in which later samples stand.
    fn batching(&self) -> Batching {
        Batching::Keeps
    }

    /// Checks that samples have the fields that it needs. Returns the fields behind it.
    fn fields(&self, _faults: &mut Faults<'_>, _place: &Pointer, before: Fields) -> Fields {
        before
    }
}

/// Activity of a stage's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Moving samples only; such a stage has no tasks and is never the limit itself.
    Moving,
    /// Reading from a store.
    Storage,
    /// Waiting for something other than a store, without a worker thread.
    Waiting,
    /// Computing on a worker thread.
    Computing,
    /// Occupying a worker thread without computing.
    Sleeping,
}

impl Work {
    /// True if the activity needs a worker thread.
    pub fn is_on_thread(self) -> bool {
        matches!(self, Self::Computing | Self::Sleeping)
    }
}

/// Effect of a stage on batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Collects samples into new batches.
    Begins,
    /// Converts batches to a form that later stages may need.
    Converts,
    /// Passes on single samples.
    Ends,
    /// Passes on batches and samples as they come.
    Keeps,
}

/// Way in which a stage without tasks moves samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// Collects samples into batches.
    Aggregate(AggregatePlan),
    /// Splits batches into samples.
    Disaggregate,
    /// Takes the samples of one path of a route.
    Gate {
        /// Number of the route in the plan, from 0.
        route: usize,
    },
    /// Joins the paths of a route.
    Join {
        /// Number of the route in the plan, from 0.
        route: usize,
    },
}

/// What can fail in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// No sample.
    Nothing,
    /// Single samples.
    Samples,
    /// Samples of a batch, which must stand in one again to be replayed.
    OfABatch,
    /// Samples for which a route has no path.
    OfARoute,
}

/// Upper bounds for the memory of a stage, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory of one instance of the op, if each worker thread has one; the setting `memory_mib`.
    pub instance: Option<u64>,
    /// Memory of a task beside its items.
    pub task: u64,
}

/// Settings of a stage that determine the bytes of batches, beside those that stages of all kinds have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recipe<'a> {
    /// Members that cannot change a byte of a batch.
    pub(crate) omits: &'static [&'static str],
    /// Set if results depend on the name that seeds random numbers.
    pub(crate) is_seeded: bool,
    /// Digest of the module that it runs.
    pub digest: Option<&'a str>,
    /// Set if results may come in another order than their inputs.
    pub(crate) has_order: bool,
}

/// Reason and remedy for a stage that takes no single samples, in a route.
pub(crate) fn only_behind_route(subject: &str) -> (String, &'static str) {
    (format!("{subject}, but a route carries single samples"), "put it behind the route")
}
