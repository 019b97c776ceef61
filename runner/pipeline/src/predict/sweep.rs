use std::cell::Cell;
use std::cmp::Ordering;

use penstock_engine::predict::{Extent, predict};
use penstock_types::fault::Pointer;
use penstock_types::plan::{Plan, StageKind};
use penstock_types::policy::{Capacity, Concurrency};
use schemars::JsonSchema;
use serde::Serialize;

use super::baseline::rate as rate_of;
use super::{Baseline, Machine, PredictError, scenario};
use crate::memory::{instances_mib, settings_mib};

/// Number of events in one prediction of a sweep: gives about one percent of accuracy, since a sweep makes hundreds of
/// predictions.
const EVENTS: usize = 20_000;
/// Minimum gain of one change over another that counts, since the error of predictions may be as large as this.
const GAIN: f64 = 0.01;
/// Share of the rate by which a smaller setting may be slower and still count as equally fast.
const SLACK: f64 = 0.005;
/// Maximum number of changes that a sweep makes one after another.
const STEPS: usize = 40;
/// Maximum number of predictions in a sweep, which then ends with its results so far.
const PREDICTIONS: u32 = 1_500;

#[derive(Clone, Copy, Debug)]
pub struct SweepBudget {
    pub threads: u32,
    /// Memory in MiB of all instances of modules (one on each thread) and of objects being fetched.
    pub memory_mib: u64,
    /// Maximum concurrency of a stage.
    pub concurrency: u32,
    /// Maximum capacity of a queue, in items.
    pub queue: u32,
}

/// Settings that make a pipeline faster, or equally fast with fewer resources.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Proposal {
    /// Settings to change together.
    pub changes: Vec<Change>,
    /// Items per second that the consumer would take with these settings.
    pub rate: f64,
    /// Ratio of `rate` to the rate without changes.
    pub gain: f64,
    /// Total number of worker threads.
    pub threads: u32,
    /// Memory limit of all instances of modules together, in MiB.
    pub memory_mib: u64,
}

/// Change of one setting of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Change {
    /// Place of the setting in the document.
    #[schemars(with = "String")]
    pub pointer: Pointer,
    /// Current value of the setting.
    pub from: u32,
    /// Proposed value of the setting.
    pub to: u32,
}

#[derive(Clone)]
struct Setting {
    plan: Plan,
    machine: Machine,
    rate: f64,
}

type Rate<'a> = dyn Fn(&Plan, Machine) -> Result<f64, PredictError> + 'a;

/// Proposes a few sets of changes of concurrency, threads and queues within a budget, cheapest first; each is faster than the
/// ones before, and by more than twice the error of the model. Empty when the consumer is the limit, or no change helps.
pub fn sweep(
    plan: &Plan,
    baseline: Option<&Baseline>,
    machine: Machine,
    budget: SweepBudget,
) -> Result<Vec<Proposal>, PredictError> {
    let recording = baseline.map(|baseline| &baseline.recording);
    let machine = Machine { foreign_cores: Some(machine.foreign_cores(baseline)), ..machine };
    let least_gain = baseline.and_then(Baseline::least_gain).unwrap_or(GAIN).max(GAIN);
    let made = Cell::new(0);
    // Beyond the maximum number of predictions, no candidate counts as better.
    let rate = |plan: &Plan, machine: Machine| -> Result<f64, PredictError> {
        if made.replace(made.get() + 1) >= PREDICTIONS {
            return Ok(0.0);
        }
        let predicted = predict(scenario(plan, recording, machine)?, Extent::Events(EVENTS));
        Ok(rate_of(&predicted))
    };
    let start = Setting { plan: plan.clone(), machine, rate: rate(plan, machine)? };
    let mut best = start.clone();
    let mut found: Vec<Setting> = Vec::new();
    for _ in 0..STEPS {
        let mut next: Option<Setting> = None;
        for mut candidate in neighbours(&best, budget) {
            candidate.rate = rate(&candidate.plan, candidate.machine)?;
            if next.as_ref().is_none_or(|next| preference(&candidate, next) == Ordering::Greater) {
                next = Some(candidate);
            }
        }
        match next {
            Some(next) if next.rate > best.rate * (1.0 + GAIN) => best = next,
            _ => break,
        }
        found.push(best.clone());
    }
    let mut proposals: Vec<Proposal> = Vec::new();
    for setting in found {
        let trimmed = trimmed(setting, &start, &rate)?;
        let proposal = proposal(&trimmed, &start);
        let is_worth_it = proposals.last().is_none_or(|last| proposal.rate > last.rate * (1.0 + GAIN));
        let is_certain = proposal.gain > 1.0 + least_gain;
        if is_worth_it && is_certain && !proposal.changes.is_empty() {
            proposals.push(proposal);
        }
    }
    Ok(proposals)
}

/// Prefers the faster setting, or the cheaper one if both are equally fast.
fn preference(one: &Setting, other: &Setting) -> Ordering {
    let (least, most) = (one.rate.min(other.rate), one.rate.max(other.rate));
    if most > least * (1.0 + SLACK) {
        return one.rate.total_cmp(&other.rate);
    }
    cost(other).cmp(&cost(one))
}

/// Cost of a setting: threads count most, then tasks, then slots in queues.
fn cost(setting: &Setting) -> (u32, u32, u32) {
    let stages = &setting.plan.stages;
    (
        setting.machine.threads,
        stages.iter().map(|stage| stage.concurrency.get()).sum(),
        stages.iter().map(|stage| stage.queue.get()).sum(),
    )
}

/// Settings one step away from `setting`: a stage with more tasks (and threads for them), more threads, or a deeper queue; and
/// all stages with twice as many tasks, since several stages may be the limit together.
fn neighbours(setting: &Setting, budget: SweepBudget) -> Vec<Setting> {
    let mut found = Vec::new();
    let threads = setting.machine.threads;
    let mut add = |plan: Plan, threads: u32| {
        let machine = Machine { threads, ..setting.machine };
        let next = Setting { plan, machine, rate: 0.0 };
        if threads <= budget.threads && settings_mib(&next.plan, threads) <= budget.memory_mib {
            found.push(next);
        }
    };
    for (place, stage) in setting.plan.stages.iter().enumerate() {
        if let Some(tasks) = stage.kind.rules().may_grow().then(|| stage.concurrency.get()) {
            for more in [tasks + 1, tasks * 2] {
                let Some(concurrency) = Concurrency::new(more.min(budget.concurrency).max(tasks)) else {
                    continue;
                };
                let more = concurrency.get();
                let mut plan = setting.plan.clone();
                plan.stages[place].concurrency = concurrency;
                if stage.kind.rules().work().is_on_thread() {
                    add(plan.clone(), threads + (more - tasks));
                }
                add(plan, threads);
            }
        }
        // The queues of a route have one setting for all of its paths.
        let is_of_route = matches!(stage.kind, StageKind::Path(_) | StageKind::Route(_));
        let Some(queue) = Capacity::new((stage.queue.get() * 2).min(budget.queue.max(stage.queue.get())))
            .filter(|_| !is_of_route)
        else {
            continue;
        };
        let mut plan = setting.plan.clone();
        plan.stages[place].queue = queue;
        add(plan, threads);
    }
    let mut all = setting.plan.clone();
    for stage in all.stages.iter_mut().filter(|stage| stage.kind.rules().may_grow()) {
        let tasks = stage.concurrency.get();
        let more = (tasks * 2).min(budget.concurrency).max(tasks);
        stage.concurrency = Concurrency::new(more).unwrap_or(stage.concurrency);
    }
    add(all.clone(), threads);
    if all.stages.iter().any(|stage| stage.kind.rules().work().is_on_thread()) {
        add(all.clone(), (threads * 2).min(budget.threads));
        add(setting.plan.clone(), threads + 1);
        add(setting.plan.clone(), (threads * 2).min(budget.threads));
    }
    found
}

/// Reverts every change that is not needed to keep the rate.
fn trimmed(mut setting: Setting, start: &Setting, rate: &Rate<'_>) -> Result<Setting, PredictError> {
    let enough = setting.rate * (1.0 - SLACK);
    for place in 0..setting.plan.stages.len() {
        let was = &start.plan.stages[place];
        let mut plan = setting.plan.clone();
        plan.stages[place].queue = was.queue;
        if plan != setting.plan && rate(&plan, setting.machine)? >= enough {
            setting.plan = plan;
        }
        let with = |tasks: u32| {
            let mut plan = setting.plan.clone();
            plan.stages[place].concurrency = Concurrency::new(tasks).unwrap_or(was.concurrency);
            plan
        };
        let now = setting.plan.stages[place].concurrency.get();
        let least =
            least(was.concurrency.get(), now, |tasks| Ok(rate(&with(tasks), setting.machine)? >= enough))?;
        setting.plan = with(least);
    }
    let with = |threads| Machine { threads, ..setting.machine };
    let threads = least(start.machine.threads, setting.machine.threads, |threads| {
        Ok(rate(&setting.plan, with(threads))? >= enough)
    })?;
    setting.machine = with(threads);
    // If the sweep has used up its predictions, `rate` returns 0; the actual rate is at least `enough`.
    setting.rate = rate(&setting.plan, setting.machine)?.max(enough);
    Ok(setting)
}

/// Smallest sufficient number from `from` to `to`; `to` is sufficient, and so is every number above a sufficient one.
fn least(
    mut from: u32,
    mut to: u32,
    is_enough: impl Fn(u32) -> Result<bool, PredictError>,
) -> Result<u32, PredictError> {
    while from < to {
        let middle = from.midpoint(to);
        if is_enough(middle)? {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    Ok(to)
}

fn proposal(setting: &Setting, start: &Setting) -> Proposal {
    let mut changes = Vec::new();
    for (now, was) in setting.plan.stages.iter().zip(&start.plan.stages) {
        let settings = [
            ("concurrency", was.concurrency.get(), now.concurrency.get()),
            ("queue", was.queue.get(), now.queue.get()),
        ];
        for (name, from, to) in settings.into_iter().filter(|(_, from, to)| from != to) {
            changes.push(Change { pointer: now.place.key(name), from, to });
        }
    }
    let (from, to) = (start.machine.threads, setting.machine.threads);
    if from != to {
        changes.push(Change { pointer: Pointer::ROOT.key("threads"), from, to });
    }
    Proposal {
        changes,
        rate: setting.rate,
        gain: if start.rate > 0.0 { setting.rate / start.rate } else { 1.0 },
        threads: to,
        memory_mib: instances_mib(&setting.plan, to),
    }
}
