use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules::{Fails, Recipe, Rules, Work, Written};
use super::settings::{Settings, tasked_stage};
use crate::amount;
use crate::plan::Unit;
use crate::policy::OnError;
use crate::spec::{Millis, Name, Share};

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

/// Duration of the tasks of `sleep`, and the resource they occupy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SleepPlan {
    /// Mean duration of a task.
    pub mean: Duration,
    /// Maximum deviation from the mean, as a share of the mean; for the shape `uniform` only.
    pub jitter: f64,
    /// Distribution of the times.
    pub shape: SleepShape,
    /// Resource that a task occupies.
    pub on: SleepOn,
    /// Share of tasks that fail on purpose, 0.0 to 1.0.
    pub fail_rate: f64,
}

impl Sleep {
    pub(super) fn plan(&self) -> SleepPlan {
        SleepPlan {
            mean: self.mean_ms.duration(),
            jitter: self.jitter.get(),
            shape: self.shape,
            on: self.on,
            fail_rate: self.fail_rate.get(),
        }
    }
}

impl Written for Sleep {
    fn settings(&self) -> Settings<'_> {
        self.all_settings()
    }

    fn prepare_for_replay(&mut self, on_error: OnError, _store: Option<&Name>) {
        self.fail_by(on_error);
    }

    fn fails(&self) -> Fails {
        if self.fail_rate.get() > 0.0 { Fails::Samples } else { Fails::Nothing }
    }
}

impl Rules for SleepPlan {
    fn work(&self) -> Work {
        match self.on {
            SleepOn::Async => Work::Waiting,
            SleepOn::Thread => Work::Sleeping,
        }
    }

    fn takes(&self) -> &'static [Unit] {
        &[Unit::Samples, Unit::Batches, Unit::Collated]
    }

    /// Its times change no batch, unlike the rate and the seed of its failures.
    fn recipe(&self) -> Recipe<'_> {
        Recipe {
            omits: &["mean_ms", "jitter", "shape", "on"],
            is_seeded: true,
            has_order: true,
            ..Recipe::default()
        }
    }

    fn stated_times(&self) -> Option<SleepPlan> {
        Some(*self)
    }

    fn in_words(&self) -> String {
        format!("sleeps {} on average", amount::duration(self.mean.as_secs_f64()))
    }
}
