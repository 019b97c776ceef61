//! Findings of a tuned run: its changes, how far it is from the predicted best, and what else would help.

use penstock_types::kinds::Work;
use penstock_types::run::RunSnapshot;
use penstock_types::tune::SettingChange;
use schemars::JsonSchema;
use serde::Serialize;

use super::live::document_of;
use super::tuner::Measurement;
use super::{MAX_QUEUE, MAX_TASKS};
use crate::memory::tuned_mib;
use crate::predict::Times;
use crate::run::RunFacts;
use crate::runner::cores;

/// Smallest gain that is worth a line.
const GAIN: f64 = 0.03;
/// Factor by which a stage is faster in [`TuneReport::what_would_help`].
const FASTER: f64 = 2.0;

/// Maxima of concurrency and queues that a tuner tries.
const MAXIMA: (u32, u32) = (MAX_TASKS, MAX_QUEUE);

/// Result of a tuned run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TuneReport {
    /// Number of worker threads.
    pub threads: u32,
    /// Items per second that the consumer took before the first change.
    pub rate_before: Option<f64>,
    /// Items per second that the consumer took with the settings at the end.
    pub rate: Option<f64>,
    /// Highest predicted rate of concurrency and queues on these threads; `null` if too little was measured.
    pub predicted_best: Option<f64>,
    /// True if the run was measured for long enough to change settings, or to leave them as they are.
    pub is_judged: bool,
    /// Changes of settings, oldest first.
    pub changes: Vec<SettingChange>,
    /// Limit of the run at the end, in one sentence.
    pub limit: String,
    /// Changes that no tuner can make, with the predicted rate of each, the best one first.
    pub what_would_help: Vec<WhatWouldHelp>,
}

/// A change beyond concurrency and queues.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WhatWouldHelp {
    /// The change, in words.
    pub change: String,
    /// Items per second that the consumer would take.
    pub rate: f64,
}

/// Sums up a tuned run.
pub fn tuned(facts: &RunFacts, snapshot: &RunSnapshot) -> TuneReport {
    let settings = &facts.settings;
    let (changes, latest) = (settings.changes(), settings.latest());
    let average = snapshot.queues.last().and_then(|sink| sink.figures.qps);
    let rate = latest.as_ref().map(|latest| latest.rate).or(average);
    let limit = match &latest {
        Some(latest) => latest.verdict.sentence.clone(),
        None => snapshot.verdict.as_ref().map_or_else(String::new, |verdict| verdict.sentence.clone()),
    };
    let predicted = latest.as_ref().and_then(|latest| predicted(facts, latest));
    let (predicted_best, what_would_help) = predicted.unzip();
    TuneReport {
        threads: snapshot.threads,
        rate_before: changes.iter().find_map(|change| change.before).or(rate),
        rate,
        predicted_best,
        is_judged: settings.has_judged(),
        changes,
        limit,
        what_would_help: what_would_help.unwrap_or_default(),
    }
}

/// The highest predicted rate, and what would raise it. Rates are relative to the measured one, so that the error of the model cancels.
fn predicted(facts: &RunFacts, latest: &Measurement) -> Option<(f64, Vec<WhatWouldHelp>)> {
    let plan = facts.settings.plan();
    let threads = plan.threads.unwrap_or(1);
    let (document, on) = (document_of(&plan), (threads, f64::from(cores())));
    let times = Times::of_interval(&plan, &document, on, &latest.sums, latest.machine);
    let times = times.with_profile(&plan, facts.settings.profile());
    let now = times.rate(&plan, plan.stages.len() + 1).filter(|now| *now > 0.0)?;
    let measured = |predicted: f64| predicted / now * latest.rate;
    let best = times.best_rate(&plan, tuned_mib(&facts.plan, threads), MAXIMA).ok()?;
    let mut found: Vec<WhatWouldHelp> = Vec::new();
    let mut add = |change: String, predicted: Option<f64>| {
        let rate = predicted.filter(|rate| *rate > now.max(best) * (1.0 + GAIN));
        found.extend(rate.map(|rate| WhatWouldHelp { change, rate: measured(rate) }));
    };
    let memory = tuned_mib(&facts.plan, threads.saturating_mul(2));
    if plan.stages.iter().any(|stage| stage.kind.rules().work().is_on_thread()) {
        add(
            format!("{} threads instead of {threads}", threads * 2),
            times.on_threads(threads * 2).best_rate(&plan, memory, MAXIMA).ok(),
        );
    }
    for (place, stage) in plan.stages.iter().enumerate() {
        let what = match stage.kind.rules().work() {
            Work::Moving => continue,
            Work::Storage => "a store from which it reads twice as fast",
            Work::Computing => "a module that takes half the time",
            Work::Waiting | Work::Sleeping => "an op that takes half the time",
        };
        add(
            format!("`{}` with {what}", stage.id),
            times.faster(place, FASTER).best_rate(&plan, memory, MAXIMA).ok(),
        );
    }
    found.sort_by(|one, other| other.rate.total_cmp(&one.rate));
    Some((measured(best.max(now)), found))
}
