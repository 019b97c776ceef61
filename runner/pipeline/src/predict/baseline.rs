//! A recorded run as the model sees it, with which predictions of other settings are compared.

use penstock_engine::predict::{Extent, Prediction, predict};
use penstock_types::kinds::Work;
use penstock_types::plan::Plan;
use penstock_types::run::StageRecord;

use super::recording::{Recording, core_share};
use super::{EVENTS, Machine, PredictError, scenario};

/// Number of events in one prediction of the search for the share of others.
const SEARCH_EVENTS: usize = 20_000;
/// Number of predictions of that search, each of which halves the range.
const SEARCH_STEPS: u32 = 9;
/// Number of predictions in which the slowdowns of the recorded run settle: each begins with those of the one before.
const CALIBRATIONS: u32 = 3;
/// Difference of shares of time that the search ignores.
const SAME: f64 = 0.01;
/// Share of all cores in use from which work has to wait for a core.
const BUSY: f64 = 0.85;
/// Smallest change of a rate that counts, since predictions are no more accurate even where the model is exact.
const RESOLUTION: f64 = 0.005;

/// A recorded run with the prediction of its own rate.
#[derive(Clone, Debug)]
pub struct Baseline {
    pub(super) recording: Recording,
    /// Cores that other work would have used during the run if it had had them.
    pub(super) foreign_cores: f64,
    rate: Result<f64, PredictError>,
}

/// Reasons why a predicted rate is not compared with that of the recorded run.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoGain {
    #[error("The gain is known for a run that has warmed up.")]
    Cold,
    #[error("The recorded run cannot be predicted: {0}")]
    Unpredicted(PredictError),
    #[error("The recorded run has no rate, since it delivered nothing: record a run that takes longer.")]
    NoRate,
    #[error("The recorded run is predicted to deliver nothing: there is no rate to compare with.")]
    Nothing,
    #[error("The predicted rate is that of the recorded run as predicted.")]
    Same,
    #[error(
        "The predicted rate differs by {:.1} % from that of the recorded run as predicted, which is not more than the error of predictions \
         of this run ({:.1} %).",
        .by * 100.0, .least * 100.0
    )]
    WithinError { by: f64, least: f64 },
}

impl Baseline {
    /// Models a recorded run by the plan of its own document, on a machine with `cores` cores. If that document has no plan here,
    /// `plan` is the reason, and predictions have no gain.
    pub fn new(mut recording: Recording, plan: Result<Plan, PredictError>, cores: f64) -> Self {
        let machine = Machine { threads: recording.snapshot.threads, cores, foreign_cores: None };
        let others = recording.others_cores();
        let model = |plan: Plan| -> Result<(f64, f64), PredictError> {
            let plan = &plan;
            calibrate(plan, &mut recording, machine, others)?;
            let foreign = foreign_cores(plan, &recording, machine, others)?;
            calibrate(plan, &mut recording, machine, foreign)?;
            let machine = Machine { foreign_cores: Some(foreign), ..machine };
            let predicted = predict(scenario(plan, Some(&recording), machine)?, Extent::Events(EVENTS));
            Ok((foreign, rate(&predicted)))
        };
        let (foreign_cores, rate) = match plan.and_then(model) {
            Ok((foreign, rate)) => (foreign, Ok(rate)),
            Err(reason) => (others, Err(reason)),
        };
        Self { recording, foreign_cores, rate }
    }

    /// A recorded run whose own rate is not compared.
    pub(super) fn unmeasured(recording: Recording) -> Self {
        let foreign_cores = recording.others_cores();
        Self { recording, foreign_cores, rate: Err(PredictError::NoPlan(String::new())) }
    }

    /// Relative error of the model: `predicted / measured - 1` for the rate of the recorded run; `None` if either is unknown.
    pub fn model_error(&self) -> Option<f64> {
        let measured = self.recording.rate().filter(|rate| *rate > 0.0)?;
        Some(self.rate.as_ref().ok()? / measured - 1.0)
    }

    /// Smallest change of the rate, as a share, that is more than the error of the model: twice its error for the recorded run.
    pub(super) fn least_gain(&self) -> Option<f64> {
        Some((2.0 * self.model_error()?.abs()).max(RESOLUTION))
    }

    /// Ratio of a predicted rate to the predicted rate of the recorded run, or the reason why it is not known.
    pub(super) fn gain(&self, rate: f64) -> Result<f64, NoGain> {
        let modelled = self.rate.clone().map_err(NoGain::Unpredicted)?;
        let least = self.least_gain().ok_or(NoGain::NoRate)?;
        let gain = rate / modelled;
        let by = (gain - 1.0).abs();
        match gain.is_finite() {
            false => Err(NoGain::Nothing),
            true if by > least => Ok(gain),
            true if by < 1e-9 => Err(NoGain::Same),
            true => Err(NoGain::WithinError { by, least }),
        }
    }
}

/// Items that the consumer takes per second.
pub(super) fn rate(prediction: &Prediction) -> f64 {
    prediction.window.queues.last().and_then(|queue| queue.figures.qps).unwrap_or(0.0)
}

/// Share of the time of computing ops in which they had a core; 1 if none has run. The records are those of the stages of `plan`.
pub(super) fn computing_share(plan: &Plan, records: &[StageRecord]) -> f64 {
    let stages = plan.stages.iter().zip(records);
    let computing = stages.filter(|(stage, _)| stage.kind.rules().work() == Work::Computing);
    core_share(computing.map(|(_, record)| record)).unwrap_or(1.0)
}

/// Finds how much slower the recorded ops were than alone, if they were profiled: as much as the ops of the model are with the settings of the
/// recorded run.
pub(super) fn calibrate(
    plan: &Plan,
    recording: &mut Recording,
    machine: Machine,
    foreign: f64,
) -> Result<(), PredictError> {
    let rounds = if recording.has_contention() { CALIBRATIONS } else { 0 };
    for _ in 0..rounds {
        let machine = Machine { foreign_cores: Some(foreign), ..machine };
        let predicted = predict(scenario(plan, Some(recording), machine)?, Extent::Events(SEARCH_EVENTS));
        recording.set_slowdowns(plan, &predicted.slowdowns);
    }
    Ok(())
}

/// Cores that others would use if they had them: those that they used, unless ops waited for a core longer, or less, than with
/// these. Then it is the number with which the ops of the model wait as long as those of the run.
fn foreign_cores(
    plan: &Plan,
    recording: &Recording,
    machine: Machine,
    others: f64,
) -> Result<f64, PredictError> {
    let measured = computing_share(plan, &recording.snapshot.stages);
    let share = |foreign| -> Result<f64, PredictError> {
        let machine = Machine { foreign_cores: Some(foreign), ..machine };
        let predicted = predict(scenario(plan, Some(recording), machine)?, Extent::Events(SEARCH_EVENTS));
        Ok(computing_share(plan, &predicted.window.stages))
    };
    let with_others = share(others)?;
    let (mut low, mut high) = match with_others - measured {
        near if near.abs() < SAME => return Ok(others),
        less if less < 0.0 => (0.0, others),
        _ if recording.busy_share().is_some_and(|busy| busy < BUSY) => return Ok(others),
        // With this number, even a single op would have a core for less of its time.
        _ => (others, machine.cores / measured.max(SAME)),
    };
    for _ in 0..SEARCH_STEPS {
        let middle = f64::midpoint(low, high);
        if share(middle)? > measured {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(f64::midpoint(low, high))
}
