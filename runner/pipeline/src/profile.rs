//! Measures each stage of a pipeline alone, with a growing number of ops at a time, on inputs that a short run has recorded.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::consumers::Discard;
use penstock_engine::item::Item;
use penstock_engine::range::RangeSource;
use penstock_engine::running::StopReason;
use penstock_types::plan::{Plan, StagePlan};
use penstock_types::policy::{Capacity, Concurrency, OnError, Order};
use penstock_types::profile::{CompanyPoint, Profile, ProfileInputs, ProfilePoint, StageProfile};
use penstock_types::run::{RunSnapshot, RunState, StageRecord};
use penstock_types::spec::Consumer;
use penstock_types::traversal::{Traversal, TraversalSettings};
use penstock_types::tune::Tune;
use penstock_wasm::StageFactory;
use tokio::runtime::Handle;

use crate::prepare::Prepared;
use crate::run::Run;
use crate::runner::{RunEnds, StartError, cores};
use crate::tap::{Recorded, Tap};
use crate::tune::median;

/// Number of measurements of each point; the point is their median. The points of a stage are measured in turn.
const ROUNDS: usize = 3;
/// Share by which the rate has to rise for twice as many waiting ops to be tried next.
const WORTH_MORE: f64 = 1.05;
/// Ops of each slot before a measurement begins, and in it at least.
const WARM_UP_OPS: u64 = 2;
/// Time between two looks at a run.
const POLL: Duration = Duration::from_millis(5);
/// Longest wait for the ops of one measurement, beyond its duration.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct ProfileSettings {
    /// Stages to measure, by id or name; all if empty.
    pub stages: Vec<String>,
    /// Numbers of ops at a time to measure for stages that compute; 1, 2, 4, ... up to `most_threads` if empty.
    pub at_a_time: Vec<u32>,
    pub most_threads: u32,
    /// Largest number of waiting ops at a time that is tried.
    pub most_waiting: u32,
    /// Duration of the run that records the inputs.
    pub record: Duration,
    /// Duration of the measurement of one point, over all rounds.
    pub span: Duration,
    /// Memory for all recorded inputs, in bytes.
    pub memory_bytes: u64,
}

impl ProfileSettings {
    /// Default for [`Self::most_waiting`].
    pub const MOST_WAITING: u32 = 256;
}

/// Measurement that is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileStep<'a> {
    /// The run that records the inputs.
    Recording,
    /// One stage alone.
    Alone { stage: &'a str, at_a_time: u32, round: usize },
}

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("there is no stage `{wanted}` with an op; those are {}", .found.join(", "))]
    NoSuchStage { wanted: String, found: Vec<String> },
    #[error("no stage has an op: there is nothing to measure")]
    NoOp,
    #[error("no stage got an input in {0} s; record for longer")]
    NoInput(f64),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the measurement was stopped")]
    Stopped,
    /// A run failed.
    #[error("{0}")]
    Run(String),
}

/// Measures the stages, and calls `on_start` when a run of a measurement has started.
pub fn profile(
    prepared: &Prepared,
    runtime: &Handle,
    settings: &ProfileSettings,
    on_start: &mut dyn FnMut(ProfileStep<'_>, &Run),
) -> Result<Profile, ProfileError> {
    let wanted = wanted(&prepared.plan, &settings.stages)?;
    let share = settings.memory_bytes / wanted.len() as u64;
    let taps: BTreeMap<String, Arc<Tap>> =
        wanted.iter().map(|stage| (stage.id.to_string(), Arc::new(Tap::recording(share)))).collect();
    let company = recorded(prepared, runtime, taps.clone(), settings.record, on_start)?;
    let mut profile = Profile {
        name: prepared.plan.name.clone(),
        cores: cores(),
        threads: company.threads,
        recorded_s: company.elapsed_s,
        stages: Vec::new(),
        without_inputs: Vec::new(),
    };
    for stage in wanted {
        let id = stage.id.to_string();
        let recorded = taps[&id].recorded();
        if recorded.items.is_empty() {
            profile.without_inputs.push(id);
            continue;
        }
        let Recorded { items, inputs } = recorded;
        let items = Arc::new(items);
        let mut alone = Alone { prepared, runtime, stage, items, inputs, bytes_out: 0.0, memory: None };
        let points = alone.points(settings, on_start)?;
        profile.stages.push(alone.evaluate(points, company.stages.iter().find(|record| record.id == id)));
    }
    if profile.stages.is_empty() {
        return Err(ProfileError::NoInput(settings.record.as_secs_f64()));
    }
    Ok(profile)
}

/// Stages with an op that `named` selects, in the order of the pipeline.
fn wanted<'a>(plan: &'a Plan, named: &[String]) -> Result<Vec<&'a StagePlan>, ProfileError> {
    let with_op: Vec<&StagePlan> = plan.stages.iter().filter(|stage| has_op(stage)).collect();
    let is = |stage: &StagePlan, wanted: &str| stage.id.to_string() == wanted || stage.id.name() == wanted;
    if let Some(wanted) = named.iter().find(|wanted| !with_op.iter().any(|stage| is(stage, wanted))) {
        let found = with_op.iter().map(|stage| format!("`{}`", stage.id)).collect();
        return Err(ProfileError::NoSuchStage { wanted: wanted.clone(), found });
    }
    let is_wanted = |stage: &&StagePlan| named.is_empty() || named.iter().any(|wanted| is(stage, wanted));
    let wanted: Vec<_> = with_op.into_iter().filter(is_wanted).collect();
    if wanted.is_empty() { Err(ProfileError::NoOp) } else { Ok(wanted) }
}

fn has_op(stage: &StagePlan) -> bool {
    stage.kind.rules().moving().is_none()
}

/// Runs the pipeline as it is, with a consumer that takes no time, while the taps record.
fn recorded(
    prepared: &Prepared,
    runtime: &Handle,
    taps: BTreeMap<String, Arc<Tap>>,
    span: Duration,
    on_start: &mut dyn FnMut(ProfileStep<'_>, &Run),
) -> Result<RunSnapshot, ProfileError> {
    let mut whole = Prepared { taps, ..prepared.clone() };
    whole.plan.tune = Tune::Off;
    let ends = RunEnds { consumer: Some(Box::new(Discard)), ..RunEnds::default() };
    let run = runtime.block_on(whole.start(None, ends))?;
    on_start(ProfileStep::Recording, &run);
    run.handle.wait_for(span);
    ended(run)
}

/// Ends a run and returns its snapshot, or the reason why it is of no use.
fn ended(run: Run) -> Result<RunSnapshot, ProfileError> {
    run.handle.stop(StopReason::TimeIsUp);
    let snapshot = run.wait().snapshot;
    match snapshot.state {
        RunState::Stopped => Err(ProfileError::Stopped),
        RunState::Failed => Err(ProfileError::Run(snapshot.error.unwrap_or_default())),
        _ => Ok(snapshot),
    }
}

/// A stage that is measured alone.
struct Alone<'a> {
    prepared: &'a Prepared,
    runtime: &'a Handle,
    stage: &'a StagePlan,
    items: Arc<Vec<Item>>,
    inputs: ProfileInputs,
    /// Bytes of the values that a sample leaves the op as.
    bytes_out: f64,
    /// Highest memory of one instance of the module.
    memory: Option<u64>,
}

/// Sums of one measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    ops: u64,
    failed_samples: u64,
    elapsed_s: f64,
    busy_s: f64,
    cpu_s: Option<f64>,
}

impl Alone<'_> {
    fn computes(&self) -> bool {
        self.stage.kind.rules().work().is_on_thread()
    }

    /// Measures the points: all numbers of ops in each round, or, for ops that wait, as many as raise the rate.
    fn points(
        &mut self,
        settings: &ProfileSettings,
        on_start: &mut dyn FnMut(ProfileStep<'_>, &Run),
    ) -> Result<Vec<(u32, Vec<Slice>)>, ProfileError> {
        let mut measured: Vec<(u32, Vec<Slice>)> = Vec::new();
        let span = settings.span / ROUNDS as u32;
        if !self.computes() {
            let mut before = 0.0;
            let mut at_a_time = 1;
            while at_a_time <= settings.most_waiting {
                let rounds = (1..=ROUNDS).map(|round| self.slice(at_a_time, round, span, on_start));
                let slices = rounds.collect::<Result<Vec<_>, _>>()?;
                let rate = median(slices.iter().map(Slice::rate));
                measured.push((at_a_time, slices));
                if rate < WORTH_MORE * before {
                    break;
                }
                (before, at_a_time) = (rate, at_a_time * 2);
            }
            return Ok(measured);
        }
        let is_single = self.stage.kind.rules().is_stateful();
        let numbers = if is_single { vec![1] } else { numbers(&settings.at_a_time, settings.most_threads) };
        measured.extend(numbers.into_iter().map(|number| (number, Vec::new())));
        for round in 1..=ROUNDS {
            for (at_a_time, slices) in &mut measured {
                slices.push(self.slice(*at_a_time, round, span, on_start)?);
            }
        }
        Ok(measured)
    }

    /// Runs the stage with this number of ops at a time, for `span` after each slot has been warmed up.
    fn slice(
        &mut self,
        at_a_time: u32,
        round: usize,
        span: Duration,
        on_start: &mut dyn FnMut(ProfileStep<'_>, &Run),
    ) -> Result<Slice, ProfileError> {
        let id = self.stage.id.to_string();
        let tap = Arc::new(Tap::giving(self.items.clone()));
        let plan = alone(&self.prepared.plan, self.stage, at_a_time);
        let taps = BTreeMap::from([(id.clone(), tap.clone())]);
        let alone = Prepared { plan, taps, ..self.prepared.clone() };
        let ends = RunEnds {
            source: Some(Box::new(RangeSource::new(endless()))),
            consumer: Some(Box::new(Discard)),
            ..RunEnds::default()
        };
        let run = self.runtime.block_on(alone.start(None, ends))?;
        on_start(ProfileStep::Alone { stage: &id, at_a_time, round }, &run);
        let enough = WARM_UP_OPS * u64::from(at_a_time);
        let begin = Slice::after(&run, enough, Duration::ZERO);
        let end = Slice::after(&run, begin.ops + enough, span);
        let memory = run.facts().guests().get(&id).map(StageFactory::memory_peak);
        ended(run)?;
        self.memory = self.memory.max(memory);
        self.bytes_out = tap.bytes_out();
        if end.ops == begin.ops {
            let waited = PATIENCE.as_secs();
            return Err(ProfileError::Run(format!("stage `{id}`: no op was completed within {waited} s")));
        }
        Ok(end.since(&begin))
    }

    fn evaluate(self, measured: Vec<(u32, Vec<Slice>)>, record: Option<&StageRecord>) -> StageProfile {
        let (stage, inputs) = (self.stage, self.inputs);
        let samples_per_item = inputs.samples as f64 / inputs.items as f64;
        let first: Vec<f64> = measured[0].1.iter().map(Slice::cost_s).collect();
        let points = measured.iter().map(|(at_a_time, slices)| ProfilePoint {
            at_a_time: *at_a_time,
            ops: slices.iter().map(|slice| slice.ops).sum(),
            failed_samples: slices.iter().map(|slice| slice.failed_samples).sum(),
            samples_per_s: median(slices.iter().map(Slice::rate)) * samples_per_item,
            op_s: median(slices.iter().map(Slice::op_s)),
            cpu_s: self.computes().then(|| median(slices.iter().map(Slice::cost_s))),
            cores: self.computes().then(|| median(slices.iter().map(Slice::cores))),
            slowdown: median(slices.iter().zip(&first).map(|(slice, first)| ratio(slice.cost_s(), *first))),
        });
        let points: Vec<ProfilePoint> = points.collect();
        let company = record.map(Slice::of).filter(|slice| slice.ops > 0).map(|slice| CompanyPoint {
            at_a_time: slice.busy_s / slice.elapsed_s,
            samples_per_s: slice.rate() * samples_per_item,
            op_s: slice.op_s(),
            cpu_s: self.computes().then(|| slice.cost_s()),
            slowdown: ratio(slice.cost_s(), median(first.iter().copied())),
        });
        StageProfile {
            id: stage.id.to_string(),
            name: stage.id.name().to_owned(),
            kind: stage.kind.name(),
            computes: self.computes(),
            inputs,
            knee: StageProfile::knee_of(&points),
            cpu_s_per_1000: points[0].cpu_s.map(|cpu_s| cpu_s / samples_per_item * 1e3),
            bytes_in_per_1000: self.items.iter().map(Item::value_bytes).sum::<u64>() as f64
                / inputs.samples as f64
                * 1e3,
            bytes_out_per_1000: self.bytes_out * 1e3,
            memory_bytes: self.memory,
            points,
            company,
        }
    }
}

impl Slice {
    fn of(record: &StageRecord) -> Self {
        let task = &record.task;
        Self {
            ops: task.num_tasks,
            failed_samples: task.failed_samples,
            elapsed_s: task.elapsed_s,
            busy_s: task.busy_s,
            cpu_s: task.cpu_s,
        }
    }

    /// Sums of the run at the first end of an op after `span` has passed and it has made `ops` ops, or after some patience, or at its end.
    /// Between two ends of ops, as much work was begun as ended, however long an op takes.
    fn after(run: &Run, mut ops: u64, span: Duration) -> Self {
        let begin = run.handle.view().elapsed;
        let (mut passed, mut has_passed) = (Duration::ZERO, false);
        loop {
            let is_over = run.handle.wait_for(span.saturating_sub(passed).max(POLL));
            let now = run.handle.view();
            passed = now.elapsed.saturating_sub(begin);
            // The run has one stage only.
            let slice = now.stages.first().map(Self::of).unwrap_or_default();
            if passed >= span && !std::mem::replace(&mut has_passed, true) {
                ops = ops.max(slice.ops + 1);
            }
            if is_over || passed >= span && slice.ops >= ops || passed >= span + PATIENCE {
                return slice;
            }
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            ops: self.ops - before.ops,
            failed_samples: self.failed_samples - before.failed_samples,
            elapsed_s: self.elapsed_s - before.elapsed_s,
            busy_s: self.busy_s - before.busy_s,
            cpu_s: self.cpu_s.map(|cpu_s| cpu_s - before.cpu_s.unwrap_or(0.0)),
        }
    }

    /// Ops per second.
    fn rate(&self) -> f64 {
        self.ops as f64 / self.elapsed_s
    }

    fn op_s(&self) -> f64 {
        self.busy_s / self.ops as f64
    }

    /// CPU time of an op; the time of one that waits.
    fn cost_s(&self) -> f64 {
        self.cpu_s.map_or(self.op_s(), |cpu_s| cpu_s / self.ops as f64)
    }

    fn cores(&self) -> f64 {
        self.cpu_s.unwrap_or(0.0) / self.elapsed_s
    }
}

/// The plans of the measurements that take most, one for each stage with an op.
pub fn widest(plan: &Plan, most_threads: u32, most_waiting: u32) -> impl Iterator<Item = Plan> {
    let with_op = plan.stages.iter().filter(|stage| has_op(stage));
    with_op.map(move |stage| {
        let computes = stage.kind.rules().work().is_on_thread();
        alone(plan, stage, if computes { most_threads } else { most_waiting })
    })
}

/// The plan with this stage only, behind a source that never ends.
fn alone(plan: &Plan, stage: &StagePlan, at_a_time: u32) -> Plan {
    let mut plan = plan.clone();
    let queue = Capacity::new(at_a_time.saturating_mul(2)).unwrap_or_default();
    plan.tune = Tune::Off;
    plan.max_failures = None;
    plan.source.queue = queue;
    plan.threads = Some(if stage.kind.rules().work().is_on_thread() { at_a_time } else { 1 });
    plan.consumer = Consumer::default();
    plan.stages = vec![StagePlan {
        concurrency: Concurrency::new(at_a_time).unwrap_or_default(),
        queue,
        order: Order::Completion,
        on_error: OnError::Skip,
        max_failures: None,
        ..stage.clone()
    }];
    plan
}

fn endless() -> Traversal {
    Traversal::new(u64::MAX >> 2, TraversalSettings::IN_ORDER).expect("all of a range is a part of it")
}

/// Numbers of ops at a time: 1, with which the others are compared, and those that are wanted, or 2, 4, ... and `most`.
fn numbers(wanted: &[u32], most: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = match wanted.is_empty() {
        true => {
            (0..32).map(|power| 1_u32 << power).take_while(|number| *number < most).chain([most]).collect()
        }
        false => wanted.iter().copied().chain([1]).collect(),
    };
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Ratio of two times; 1 where the clock was too coarse for the second one.
fn ratio(time: f64, first: f64) -> f64 {
    if first > 0.0 { time / first } else { 1.0 }
}
