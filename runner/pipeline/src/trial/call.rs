use std::time::Duration;

use penstock_engine::item::{Item, Sample};
use penstock_engine::ports::{Failed, Fault, Items, Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::manifest::Mode;
use penstock_types::run::FailureClass;
use penstock_wasm::{Module, StageFactory, StageSettings};
use rustix::time::{ClockId, clock_gettime};

use super::field::made_field;
use super::report::{CallTrial, Failure, MadeSample, Outcome, SampleTrial, StartTrial};
use super::settings::TrialSettings;

/// One instance of a module, with its costs.
pub(super) struct TrialGuest {
    pub(super) factory: StageFactory,
    op: Box<dyn ThreadOp>,
    stop: StopFlag,
    pub(super) start: StartTrial,
    held: u64,
    /// Set if the last call ended the instance.
    pub(super) is_broken: bool,
}

impl TrialGuest {
    pub(super) fn start(module: &Module, settings: &TrialSettings, stop: &StopFlag) -> Result<Self, Fault> {
        let memory_bytes = u64::from(settings.memory.get()) << 20;
        let factory = module.stage(StageSettings {
            name: module.manifest().name.clone(),
            params: settings.params.clone().into(),
            deadline: Duration::from_millis(settings.deadline.get().into()),
            memory_bytes,
            output_bytes: u64::from(settings.output.get()) << 20,
            held_bytes: memory_bytes,
            assets: settings.assets.clone(),
            document_seed: settings.seed,
        });
        let (op, [cpu_s, wall_s]) = timed(|| factory.build(stop));
        let start = StartTrial { cpu_s, wall_s, memory_bytes: factory.memory_peak() };
        Ok(Self { factory, op: op?, stop: stop.clone(), start, held: 0, is_broken: false })
    }

    /// Calls the module with a sample or a batch. `all` are the samples of the trial by index; `shown` is the number of tensor
    /// bytes that may still be reported.
    pub(super) fn call(&mut self, samples: &[Sample], all: &[Sample], shown: &mut u64) -> CallTrial {
        let item = match (self.mode(), samples) {
            (Mode::Sample | Mode::Stateful, [sample]) => Item::Sample(sample.clone()),
            _ => Item::Batch(samples.to_vec()),
        };
        let held = self.held;
        let (output, times) = self.measured(|op, stop| op.apply(item, stop));
        let stayed = self.held > held || output.dropped == 0;
        let is_stateful = self.mode() == Mode::Stateful;
        let (mut made, mut failed) = (samples_of(output.items), output.failed);
        let trials = samples.iter().map(|sample| {
            let own = |origin: u64| is_stateful || origin == sample.origin.index;
            let own_made: Vec<Sample> = made.extract_if(.., |made| own(made.origin.index)).collect();
            let own_failed: Vec<Failed> =
                failed.extract_if(.., |failed| own(failed.sample.origin.index)).collect();
            let mut trial = self.trial(&sample.key, own_made, own_failed, all, shown);
            trial.bytes_in = self.bytes_in(sample);
            if is_stateful && trial.outcome == Outcome::Dropped && stayed {
                trial.outcome = Outcome::Held;
            }
            trial
        });
        let samples = trials.collect();
        self.called(samples, times)
    }

    /// Requests the samples that the module holds.
    pub(super) fn finish(&mut self, all: &[Sample], shown: &mut u64) -> CallTrial {
        let (output, times) = self.measured(|op, stop| op.finish(stop));
        let trial = self.trial("finish", samples_of(output.items), output.failed, all, shown);
        self.called(vec![trial], times)
    }

    fn measured(&mut self, call: impl FnOnce(&mut dyn ThreadOp, &StopFlag) -> Output) -> (Output, [f64; 2]) {
        let (output, times) = timed(|| call(self.op.as_mut(), &self.stop));
        self.held = output.held;
        self.is_broken = output.failed.iter().any(|failed| failed.fault.class != FailureClass::Data);
        (output, times)
    }

    fn called(&self, samples: Vec<SampleTrial>, [cpu_s, wall_s]: [f64; 2]) -> CallTrial {
        CallTrial { samples, cpu_s, wall_s, memory_bytes: self.factory.memory_peak() }
    }

    /// Result of the sample `key`. The first failure belongs to this sample; any others belong to held samples.
    fn trial(
        &self,
        key: &str,
        made: Vec<Sample>,
        failed: Vec<Failed>,
        all: &[Sample],
        shown: &mut u64,
    ) -> SampleTrial {
        let made: Vec<MadeSample> = made.iter().map(|sample| self.made(sample, all, shown)).collect();
        let outcome = match (failed.as_slice(), made.as_slice()) {
            ([_, ..], _) => Outcome::Failed,
            ([], []) => Outcome::Dropped,
            ([], [one]) if one.key == key => Outcome::Kept,
            ([], _) => Outcome::Many,
        };
        SampleTrial {
            key: key.to_owned(),
            outcome,
            failure: failed.first().map(|first| Failure {
                class: first.fault.class,
                message: first.fault.message.to_string(),
                held_lost: failed.len() as u64 - 1,
            }),
            bytes_in: 0,
            bytes_out: made
                .iter()
                .map(|sample| sample.fields.iter().map(|field| field.bytes).sum::<u64>())
                .sum(),
            made,
        }
    }

    fn made(&self, sample: &Sample, all: &[Sample], shown: &mut u64) -> MadeSample {
        let input = usize::try_from(sample.origin.index).ok().and_then(|index| all.get(index));
        let is_carried = |name: &str| {
            !self.is_wanted(name) && input.and_then(|input| input.field(name)) == sample.field(name)
        };
        let own: Vec<_> = sample.fields.iter().filter(|field| !is_carried(&field.name)).collect();
        let fields = own.into_iter().map(|field| made_field(field, shown)).collect();
        MadeSample { key: sample.key.to_string(), fields }
    }

    fn bytes_in(&self, sample: &Sample) -> u64 {
        let crossing = sample.fields.iter().filter(|field| self.is_wanted(&field.name));
        crossing.map(|field| field.value.bytes()).sum()
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.factory.wants().is_none_or(|wants| wants.iter().any(|wanted| wanted == name))
    }

    fn mode(&self) -> Mode {
        self.factory.module().manifest().mode
    }
}

fn samples_of(items: Items) -> Vec<Sample> {
    match items {
        Items::None => Vec::new(),
        Items::One(item) => item.into_samples(),
        Items::Many(items) => items.into_iter().flat_map(Item::into_samples).collect(),
    }
}

/// Result of a call, with the CPU time of this thread and the wall-clock time that it took, in seconds.
fn timed<T>(call: impl FnOnce() -> T) -> (T, [f64; 2]) {
    let now = || [ClockId::ThreadCPUTime, ClockId::Monotonic].map(clock);
    let before = now();
    let result = call();
    let after = now();
    (result, [0, 1].map(|one| after[one].saturating_sub(before[one]).as_secs_f64()))
}

fn clock(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().expect("these clocks count up from zero")
}
