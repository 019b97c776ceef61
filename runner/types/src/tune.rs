//! Tuning: settings that a run changes by itself, and the record of each change.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::defaults::is_default;
use crate::fault::Pointer;

/// Changes of settings that a run makes itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Tune {
    /// Settings stay as they are.
    #[default]
    Off,
    /// Settings that would raise the rate are recorded, and stay as they are.
    Suggest,
    /// Concurrency and queues change while the run is measured: a change is kept only if the rate rises. Stages with `"order": "input"` make
    /// the same batches, in the same order, as without tuning.
    Apply,
}

impl Tune {
    pub(crate) fn is_off(&self) -> bool {
        is_default(self)
    }
}

/// A change of one setting of a run, and what it brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingChange {
    /// Time of the change, in seconds since the start of the run.
    pub at_s: f64,
    /// End of the measurement of the change, or the time at which it was undone, in seconds since the start of the run; `null` until
    /// then, and for changes that are not measured.
    pub until_s: Option<f64>,
    /// Place of the setting in the document.
    #[schemars(with = "String")]
    pub pointer: Pointer,
    /// Value before the change.
    pub from: u32,
    /// Value after the change.
    pub to: u32,
    /// Reason of the change, in words: for the tuner, what limited the run.
    pub evidence: String,
    /// Items per second that the consumer took before the change.
    pub before: Option<f64>,
    /// Items per second that were predicted with the change, and with the earlier changes of the same trial.
    pub predicted: Option<f64>,
    /// Items per second that the consumer took with the change.
    pub measured: Option<f64>,
    /// Outcome of the change.
    pub outcome: ChangeOutcome,
}

/// A setting of a run that can change while it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingNow {
    /// Place of the setting in the document.
    #[schemars(with = "String")]
    pub pointer: Pointer,
    /// Id of the stage or queue; `null` for the number of threads.
    pub id: Option<String>,
    /// Value that holds.
    pub value: u32,
    /// Maximum value.
    pub most: u32,
}

/// Outcome of a change of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ChangeOutcome {
    /// The change was set by a user.
    Set,
    /// The change would raise the rate; the run only suggests.
    Suggested,
    /// The change is being measured.
    Trying,
    /// The rate rose, and the change stays.
    Kept,
    /// The rate did not rise, or memory was short: the setting has its earlier value again.
    Undone,
}

impl SettingChange {
    /// Value that the change gave its setting at a time in seconds since the start of the run; `None` if it gave none.
    pub fn value_at(&self, at_s: f64) -> Option<u32> {
        let is_over = self.until_s.is_some_and(|until_s| until_s <= at_s);
        match self.outcome {
            ChangeOutcome::Suggested => None,
            _ if self.at_s > at_s => None,
            ChangeOutcome::Undone if is_over => Some(self.from),
            _ => Some(self.to),
        }
    }

    /// True if the change stays; one that is still being measured may not.
    pub fn holds(&self) -> bool {
        matches!(self.outcome, ChangeOutcome::Set | ChangeOutcome::Kept)
    }
}

/// Time of the last change between two times, in seconds since the start of the run: what was measured between these was measured with
/// several values.
pub fn last_change(changes: &[SettingChange], from_s: f64, to_s: f64) -> Option<f64> {
    let changes = changes.iter().filter(|change| change.outcome != ChangeOutcome::Suggested);
    let undone = |change: &SettingChange| change.until_s.filter(|_| change.outcome == ChangeOutcome::Undone);
    let times = changes.flat_map(|change| [Some(change.at_s), undone(change)]).flatten();
    times.filter(|at_s| from_s < *at_s && *at_s < to_s).reduce(f64::max)
}

/// The change in one line, e.g. `/stages/1/fetch/concurrency 1 -> 8: kept, 41.2 -> 160.8 items/s (predicted 163.0)`.
impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, from, to, before, predicted, measured, .. } = self;
        let outcome: &'static str = self.outcome.into();
        write!(f, "{pointer} {from} -> {to}: {outcome}")?;
        match (before, measured) {
            (Some(before), Some(measured)) => write!(f, ", {before:.1} -> {measured:.1} items/s")?,
            (Some(before), None) => write!(f, ", {before:.1} items/s before")?,
            (None, _) => {}
        }
        predicted.iter().try_for_each(|predicted| write!(f, " (predicted {predicted:.1})"))
    }
}
