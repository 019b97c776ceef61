//! Predicts the behaviour of a pipeline before it runs, or with other settings than those of a recorded run.
//!
//! The engine predicts with its own schedule; this module supplies the times: from the document (`sleep`, `simulate`), or from a
//! recorded run.

mod baseline;
mod recording;
mod sweep;

use std::time::Duration;

use penstock_engine::consumers::Simulate;
use penstock_engine::ops::SleepTimes;
use penstock_engine::predict::{
    Extent, OpPlace, OpTimes, Prediction, RecordedTimes, Scenario, ScenarioOp, StepTimes, predict,
};
use penstock_engine::range::RangeSource;
use penstock_engine::stage_work::StageWork;
use penstock_types::kinds::Work;
use penstock_types::machine::MachineFigures;
use penstock_types::plan::{Plan, StageKind, StagePlan};
use penstock_types::profile::Profile;
use penstock_types::run::{QueueRecord, StageRecord};
use penstock_types::spec::Consumer;
use penstock_types::traversal::Traversal;
use penstock_types::verdict::{Measured, PipelineShape, Verdict};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

pub use self::baseline::Baseline;
use self::baseline::{NoGain, calibrate, computing_share, rate};
pub(crate) use self::recording::IntervalSums;
use self::recording::RecordedStage;
pub use self::recording::{Recording, RecordingError};
pub use self::sweep::{Change, Proposal, SweepBudget, sweep};
use crate::assemble::{chain, routes, stage_node};
use crate::runner::cores;

/// Default number of events of a prediction: gives half a percent of accuracy within a fraction of a second.
const EVENTS: usize = 150_000;
/// Number of events in one prediction of a tuner, which makes some dozens while the run goes on.
const TUNE_EVENTS: usize = 8_000;
/// Length assumed for a source of unknown length: more samples than any prediction takes.
const ENDLESS: u64 = 1 << 50;

pub const MOST_CORES: f64 = 4096.0;

#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub threads: u32,
    pub cores: f64,
    /// Cores that other work would use if it had them; if missing, as in the recorded run, or 0 without one.
    pub foreign_cores: Option<f64>,
}

impl Machine {
    fn foreign_cores(self, baseline: Option<&Baseline>) -> f64 {
        self.foreign_cores.or_else(|| baseline.map(|baseline| baseline.foreign_cores)).unwrap_or(0.0)
    }

    /// Figures of the machine as predicted, with `used` cores of the ops.
    fn figures(self, foreign: f64, used: f64) -> MachineFigures {
        MachineFigures {
            cores: self.cores.ceil() as u32,
            process_cores: used,
            busy_cores: Some((used + foreign).min(self.cores)),
            ..MachineFigures::default()
        }
    }
}

/// Predicted behaviour of a pipeline.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PredictReport {
    /// Predicted limit of the pipeline.
    pub verdict: Verdict,
    /// Items that the consumer would take per second.
    pub rate: Option<f64>,
    /// Samples that the consumer would take per second.
    pub samples_per_s: Option<f64>,
    /// Start of the measured interval, in seconds since the start of the run: queues fill before it.
    pub t0_s: f64,
    /// End of the measured interval, in seconds since the start of the run.
    pub t1_s: f64,
    /// Number of worker threads.
    pub threads: u32,
    /// Number of cores that the ops share with other work.
    pub cores: f64,
    /// Number of cores that other work would use if it had them.
    pub foreign_cores: f64,
    /// Items that the consumer would take per second if no other work used the cores; `null` if other work does not slow the
    /// ops down.
    pub rate_on_free_cores: Option<f64>,
    /// Stages with predicted figures, in the same form as in the snapshot of a run.
    pub stages: Vec<StageRecord>,
    /// Queues with predicted figures, in the same form as in the snapshot of a run.
    pub queues: Vec<QueueRecord>,
    /// Rate of the recorded run; `null` without a recording.
    pub recorded: Option<RecordedRate>,
    /// Relative error of the model: `predicted / measured - 1` for the rate of the recorded run with its own settings; `null`
    /// without a recording, or if it has no rate.
    pub model_error: Option<f64>,
    /// Ratio of `rate` to the predicted rate of the recorded run; `null` without a recording, and if it differs from 1 by no more
    /// than twice the error of the model.
    pub gain: Option<f64>,
    /// Reason why a prediction from a recording has no `gain`, in words.
    pub no_gain: Option<String>,
    /// Assumptions of the prediction, in words.
    pub assumptions: Vec<String>,
}

/// Rate of a recorded run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RecordedRate {
    /// Items that the consumer of the recorded run took per second.
    pub rate: Option<f64>,
    /// Samples that the consumer of the recorded run took per second.
    pub samples_per_s: Option<f64>,
    /// Number of worker threads of the recorded run.
    pub threads: u32,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    #[error(
        "the time of {} is unknown: record a run of the pipeline (`penstock run FILE --out DIR`) and pass it with `--from DIR`",
        .0.join(", ")
    )]
    Unknown(Vec<String>),
    #[error(
        "the share of the samples in each path of {} is unknown: record a run of the pipeline (`penstock run FILE --out DIR`) and pass it \
         with `--from DIR`",
        .0.join(", ")
    )]
    Shares(Vec<String>),
    /// The document of the recorded run has no plan here, for this reason.
    #[error("{0}")]
    NoPlan(String),
    #[error(
        "its settings changed while it was measured, last at {0:.1} s, so its rate belongs to none of them"
    )]
    Changed(f64),
}

/// Predicts a run of a plan, with the times of a recorded run where the document has none. The prediction covers the first `span`
/// of the run, or, without `span`, an interval after the warm-up.
pub fn predict_plan(
    plan: &Plan,
    baseline: Option<&Baseline>,
    machine: Machine,
    span: Option<Duration>,
) -> Result<PredictReport, PredictError> {
    let extent = span.map_or(Extent::Events(EVENTS), Extent::For);
    let recording = baseline.map(|baseline| &baseline.recording);
    let foreign_cores = machine.foreign_cores(baseline);
    let with = |foreign_cores| -> Result<Prediction, PredictError> {
        let machine = Machine { foreign_cores: Some(foreign_cores), ..machine };
        Ok(predict(scenario(plan, recording, machine)?, extent))
    };
    let Prediction { window, items, samples, .. } = with(foreign_cores)?;
    let stages: Vec<_> = window.stages.iter().map(|stage| stage.task.clone()).collect();
    let used = stages.iter().filter(|stage| stage.elapsed_s > 0.0);
    let used = used.map(|stage| stage.cpu_s.unwrap_or(0.0) / stage.elapsed_s).sum();
    let figures = machine.figures(foreign_cores, used);
    let measured = Measured {
        from_s: window.t0_s,
        to_s: window.t1_s,
        stages,
        queues: window.queues.iter().map(|queue| queue.figures.clone()).collect(),
        samples: Some(samples),
        is_warm: window.t0_s > 0.0,
        is_over: false,
        failures: &[],
        machine: Some(&figures),
    };
    let rate_of_items = window.queues.last().and_then(|queue| queue.figures.qps);
    let shape = PipelineShape::of(plan, machine.threads, Some(machine.cores.ceil() as u32));
    let waits_for_cores = foreign_cores > 0.0 && computing_share(plan, &window.stages) < 1.0;
    let gain = baseline.zip(rate_of_items).map(|(baseline, rate)| match span {
        None => baseline.gain(rate),
        Some(_) => Err(NoGain::Cold),
    });
    Ok(PredictReport {
        verdict: Verdict::of(&shape, measured),
        rate: rate_of_items,
        // Derived from the rate of items, so that the two rates differ only by the mean number of samples per item.
        samples_per_s: rate_of_items.map(|rate| rate * samples as f64 / items.max(1) as f64),
        t0_s: window.t0_s,
        t1_s: window.t1_s,
        threads: machine.threads,
        cores: machine.cores,
        foreign_cores,
        rate_on_free_cores: if waits_for_cores { Some(rate(&with(0.0)?)) } else { None },
        stages: window.stages,
        queues: window.queues,
        recorded: recording.map(|recording| RecordedRate {
            rate: recording.rate(),
            samples_per_s: recording.snapshot.samples_per_s,
            threads: recording.snapshot.threads,
        }),
        model_error: baseline.and_then(Baseline::model_error),
        gain: gain.as_ref().and_then(|gain| gain.as_ref().ok().copied()),
        no_gain: gain.and_then(Result::err).map(|reason| reason.to_string()),
        assumptions: assumptions(plan, recording, machine, foreign_cores),
    })
}

/// Times that an interval of a run has measured, from which the rate with other settings is predicted.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    recording: Recording,
    machine: Machine,
}

impl Times {
    pub(crate) fn of_interval(
        plan: &Plan,
        document: &Value,
        (threads, cores): (u32, f64),
        sums: &IntervalSums,
        measured: Option<MachineFigures>,
    ) -> Self {
        let recording = Recording::of_interval(plan, document, threads, sums, measured);
        let foreign_cores = Some(recording.others_cores());
        Self { recording, machine: Machine { threads, cores, foreign_cores } }
    }

    /// The same, with the slowdown of ops of `plan`, which was measured, by each other.
    #[must_use]
    pub(crate) fn with_profile(mut self, plan: &Plan, profile: Option<&Profile>) -> Self {
        if let Some(profile) = profile {
            self.recording = self.recording.with_profile(profile, plan, cores());
            let foreign = self.machine.foreign_cores(None);
            // Without times of all stages there are no predictions at all.
            calibrate(plan, &mut self.recording, self.machine, foreign).ok();
        }
        self
    }

    /// Items per second behind the node with the number `node`; `None` if a time is not known.
    pub(crate) fn rate(&self, plan: &Plan, node: usize) -> Option<f64> {
        self.rate_within(plan, node, TUNE_EVENTS)
    }

    /// Same as [`Self::rate`], from a prediction with this number of events.
    pub(crate) fn rate_within(&self, plan: &Plan, node: usize, events: usize) -> Option<f64> {
        let predicted = predict(self.scenario(plan).ok()?, Extent::Events(events));
        predicted.window.queues.get(node)?.figures.qps
    }

    /// The same with ops of the stage at `place` that take the time divided by `factor`.
    pub(crate) fn faster(&self, place: usize, factor: f64) -> Self {
        let mut faster = self.clone();
        faster.recording.speed_up(place, factor);
        faster
    }

    /// The same on another number of threads.
    pub(crate) fn on_threads(&self, threads: u32) -> Self {
        Self { machine: Machine { threads, ..self.machine }, ..self.clone() }
    }

    pub(crate) fn scenario(&self, plan: &Plan) -> Result<Scenario, PredictError> {
        scenario(plan, Some(&self.recording), self.machine)
    }

    /// Highest rate at the sink that a sweep with this memory and these maxima of concurrency and queues finds, without more threads.
    pub(crate) fn best_rate(
        &self,
        plan: &Plan,
        memory_mib: u64,
        (concurrency, queue): (u32, u32),
    ) -> Result<f64, PredictError> {
        let baseline = Baseline::unmeasured(self.recording.clone());
        let budget = SweepBudget { threads: self.machine.threads, memory_mib, concurrency, queue };
        let proposals = sweep(plan, Some(&baseline), self.machine, budget)?;
        let end = plan.stages.len() + 1;
        let now = || self.rate_within(plan, end, EVENTS).unwrap_or(0.0);
        Ok(proposals.last().map_or_else(now, |best| best.rate))
    }
}

fn scenario(plan: &Plan, recording: Option<&Recording>, machine: Machine) -> Result<Scenario, PredictError> {
    let mut unknown = Vec::new();
    let mut stages = Vec::with_capacity(plan.stages.len());
    for stage in &plan.stages {
        let recorded = recording.and_then(|recording| recording.stage(&stage.seeded_as, stage.kind.name()));
        match work(plan, stage, recorded) {
            Some(work) => stages.push(stage_node(stage, work)),
            None => unknown.push(format!("stage `{}`", stage.id)),
        }
    }
    let consumer = consumer(plan, recording);
    if consumer.is_none() {
        unknown.push("the consumer `files`".to_owned());
    }
    let (Some(consumer), true) = (consumer, unknown.is_empty()) else {
        return Err(PredictError::Unknown(unknown));
    };
    let routes = routes(plan, |route, stage| {
        let choice = recording.and_then(|recording| recording.choice(route, stage, plan.seed));
        if choice.is_none() {
            unknown.push(format!("`{}`", stage.id));
        }
        choice
    });
    let Some(routes) = routes else { return Err(PredictError::Shares(unknown)) };
    let count = plan.source.spec.rules().count();
    let traversal =
        Traversal::new(count.unwrap_or(ENDLESS), plan.source.traversal).expect("a plan's shard was checked");
    Ok(Scenario {
        source: Box::new(RangeSource::new(traversal)),
        // A source whose count is known without reading takes no time.
        source_time: match count {
            Some(_) => Duration::ZERO,
            None => recording.map_or(Duration::ZERO, Recording::source_time),
        },
        chain: chain(plan, stages, routes),
        consumer,
        threads: machine.threads as usize,
        cores: machine.cores,
        foreign_cores: machine.foreign_cores.unwrap_or(0.0),
    })
}

/// Work of a stage; `None` if its times are unknown.
fn work(
    plan: &Plan,
    stage: &StagePlan,
    recorded: Option<RecordedStage<'_>>,
) -> Option<StageWork<ScenarioOp>> {
    let op = |times, place, yields| {
        let (concurrency, order) = (stage.concurrency, stage.order);
        let contention = recorded.as_ref().and_then(|recorded| recorded.contended);
        let contention = contention.map(|contended| contended.by_cores.clone()).unwrap_or_default();
        StageWork::Op(ScenarioOp { times, place, concurrency, order, yields, contention })
    };
    let as_recorded = |place: OpPlace| {
        let recorded = recorded.as_ref()?;
        let mean_s = recorded.mean_s(place);
        let mut times = RecordedTimes::new(recorded.times, mean_s, plan.seed, &stage.seeded_as);
        // The reads of a batch run concurrently, so an op on a larger batch takes no longer than on a smaller one.
        if let OpPlace::Thread { .. } = place {
            times.batch = Some(recorded.samples_per_task()).filter(|samples| *samples > 0.0);
        }
        Some(op(OpTimes::Recorded(times), place, recorded.yields()))
    };
    if let Some(moving) = StageWork::moving(&stage.kind) {
        return Some(moving);
    }
    let place = place(&stage.kind);
    let Some(stated) = stage.kind.rules().stated_times() else { return as_recorded(place) };
    let late = recorded.map_or(Duration::ZERO, |recorded| recorded.late());
    let times = OpTimes::Sleep { times: SleepTimes::new(stated, plan.seed, &stage.seeded_as), late };
    Some(op(times, place, 1.0))
}

fn place(kind: &StageKind) -> OpPlace {
    let (work, stateful) = (kind.rules().work(), kind.rules().is_stateful());
    if !work.is_on_thread() {
        return OpPlace::Task;
    }
    OpPlace::Thread { computing: if work == Work::Computing { 1.0 } else { 0.0 }, stateful }
}

fn consumer(plan: &Plan, recording: Option<&Recording>) -> Option<StepTimes> {
    Some(match &plan.consumer {
        Consumer::Discard(_) => StepTimes::Every(Duration::ZERO),
        Consumer::Simulate(simulate) => {
            let late = recording.map_or(Duration::ZERO, |recording| recording.late_steps());
            StepTimes::Simulate { steps: Simulate::new(simulate, plan.seed), late }
        }
        Consumer::Files(_) | Consumer::Stream(_) => StepTimes::Every(recording?.step_time()),
    })
}

fn assumptions(
    plan: &Plan,
    recording: Option<&Recording>,
    machine: Machine,
    foreign_cores: f64,
) -> Vec<String> {
    let rules = || plan.stages.iter().map(|stage| stage.kind.rules());
    let computes = rules().any(|rules| rules.work() == Work::Computing);
    let reads = rules()
        .any(|rules| matches!(rules.work(), Work::Storage | Work::Waiting) && rules.stated_times().is_none());
    let mut assumed = Vec::new();
    if recording.is_some() {
        assumed.push("times are drawn from the recorded ones, independently of each other".to_owned());
    } else {
        assumed.push("`sleep` and `simulate` take exactly what the document says".to_owned());
    }
    if computes {
        let others = if foreign_cores < 0.05 {
            "no other work uses them".to_owned()
        } else {
            format!("other work would use {foreign_cores:.1} of them if it had them")
        };
        assumed.push(format!("computing stages share {} cores, and {others}", machine.cores));
        assumed.push(match recording.is_some_and(Recording::has_contention) {
            true => "a core in use slows the others down as the profile has measured, whatever runs on it"
                .to_owned(),
            false => "a core is as fast while others are in use (`penstock profile` measures it)".to_owned(),
        });
        assumed.extend(recording.map_or(&[][..], |recording| &recording.doubts).iter().cloned());
        assumed.push("times of batches are proportional to their size".to_owned());
    }
    if reads {
        assumed.push("the storage is as fast with more concurrent reads".to_owned());
    }
    assumed.push("`buffer_mib` is never the limit".to_owned());
    assumed
}
