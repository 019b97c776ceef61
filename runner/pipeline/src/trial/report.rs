use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::item::Sample;
use penstock_types::manifest::Mode;
use penstock_types::run::FailureClass;
use penstock_types::spec::{DeadlineMs, MemoryMib};
use penstock_wasm::{LogLevel, LogLine, LogLines, Module};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::compare::compare;
use super::field::MadeField;
use super::settings::TrialSettings;

/// Factor from the most memory seen to the suggested limit.
const MEMORY_MARGIN: f64 = 1.5;
/// Factor from the longest CPU time seen to the suggested deadline: machines and samples differ.
const TIME_MARGIN: f64 = 10.0;
/// Step of the suggested memory, in MiB.
const MEMORY_STEP_MIB: u32 = 16;
/// Shortest suggested deadline, in milliseconds.
const LEAST_DEADLINE_MS: u32 = 10;

/// What a module did with a few samples.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TrialReport {
    /// The module's name.
    pub module: String,
    /// Its version.
    pub version: String,
    /// `sha256:` and its digest.
    pub digest: String,
    /// What it is called with.
    pub mode: Mode,
    /// What it was set up with.
    pub params: Map<String, Value>,
    /// What it was allowed.
    pub limits: TrialLimits,
    /// How often each sample was tried; the times of a call are the medians.
    pub repeat: u32,
    /// What the first instance's start took, `init` included.
    pub start: StartTrial,
    /// Every call, in the order of the samples.
    pub calls: Vec<CallTrial>,
    /// What a stateful module gave in the end; `null` for the others.
    pub finish: Option<CallTrial>,
    /// Sums of its counters over the first time that all samples were tried.
    pub counters: BTreeMap<String, f64>,
    /// What it logged in that time.
    pub logs: Vec<ModuleLine>,
    /// Lines left out because there were too many at a time.
    pub logs_dropped: u64,
    /// Fields that it wants and no sample has.
    pub missing_fields: Vec<String>,
    /// Names of the fields that the samples have.
    pub input_fields: Vec<String>,
    /// Samples that did not always become the same; `null` when each was tried once.
    pub differences: Option<Vec<Difference>>,
    /// Limits that would do for what was seen.
    pub suggested: Suggestion,
}

/// What a module is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TrialLimits {
    /// CPU time for one sample, in milliseconds.
    pub deadline_ms: u32,
    /// Memory of one instance, in MiB.
    pub memory_mib: u32,
}

/// What the start of an instance took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct StartTrial {
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Time by the clock, in seconds.
    pub wall_s: f64,
    /// Memory it had then, in bytes.
    pub memory_bytes: u64,
}

/// One call: one sample, or the samples of one batch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallTrial {
    /// What became of each sample.
    pub samples: Vec<SampleTrial>,
    /// CPU time of the call with copying in and out, in seconds.
    pub cpu_s: f64,
    /// Time by the clock, in seconds.
    pub wall_s: f64,
    /// The most memory that the instance had until the call's end, in bytes. An instance never gives any back.
    pub memory_bytes: u64,
}

/// What became of one sample.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SampleTrial {
    /// Its key; `finish` for what a stateful module gives in the end.
    pub key: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// Bytes of its fields that went into the module.
    pub bytes_in: u64,
    /// Bytes of the fields that came out.
    pub bytes_out: u64,
    /// The samples that came out, without the fields that were carried past the module.
    pub made: Vec<MadeSample>,
}

/// What became of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It goes on.
    Kept,
    /// It was left out on purpose.
    Dropped,
    /// Others came out in its place, or along with it.
    Many,
    /// It stays inside.
    Held,
    /// It, or the module, is at fault.
    Failed,
}

/// Why a sample failed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Failure {
    /// Whose fault it is.
    pub class: FailureClass,
    /// What was found.
    pub message: String,
    /// Samples held inside that were lost with it.
    pub held_lost: u64,
}

/// A sample that came out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MadeSample {
    /// Its key.
    pub key: String,
    /// Its fields.
    pub fields: Vec<MadeField>,
}

/// A line that the module logged.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModuleLine {
    /// How much it matters.
    pub level: LogLevel,
    /// What it says, printable.
    pub message: String,
}

/// A sample that did not always become the same.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Difference {
    /// The sample's key.
    pub key: String,
    /// What it depends on.
    pub cause: DifferenceCause,
    /// What differs, e.g. ``field `text` ``.
    pub what: String,
    /// What an instance made of it that had seen nothing else: a digest, or a word.
    pub fresh: String,
    /// What another time gave.
    pub other: String,
}

/// What a sample's result depends on beside the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceCause {
    /// What the instance had seen before.
    State,
    /// Nothing that the host knows of: two instances that had seen nothing differ.
    Chance,
}

/// Limits that would do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Suggestion {
    /// CPU time for one sample, in milliseconds.
    pub deadline_ms: u32,
    /// Memory of one instance, in MiB.
    pub memory_mib: u32,
    /// The longest CPU time seen, for one sample on average over its call, in seconds.
    pub longest_cpu_s: f64,
    /// The most memory seen, in bytes.
    pub most_memory_bytes: u64,
}

/// One pass over all samples.
#[derive(Default)]
pub(super) struct Pass {
    /// True if each sample (of a stateful module, the first) met a new instance.
    pub(super) is_fresh: bool,
    /// In the order of the samples, for any order of calls.
    pub(super) calls: Vec<CallTrial>,
    pub(super) finish: Option<CallTrial>,
    pub(super) start: StartTrial,
    pub(super) counters: BTreeMap<String, f64>,
    pub(super) logs: LogLines,
}

/// Combines all passes; the first of them is as in a run.
pub(super) fn report(
    module: &Module,
    settings: &TrialSettings,
    samples: &[Sample],
    passes: Vec<Pass>,
) -> TrialReport {
    let manifest = module.manifest();
    let differences = (settings.repeat > 1).then(|| compare(&passes));
    let suggested = suggestion(&passes);
    let medians = medians(&passes);
    let mut first = passes.into_iter().next().expect("there is a first pass");
    for (call, times) in first.calls.iter_mut().chain(&mut first.finish).zip(medians) {
        (call.cpu_s, call.wall_s) = times;
    }
    let input_fields: BTreeSet<&str> =
        samples.iter().flat_map(|sample| &sample.fields).map(|field| &*field.name).collect();
    let wanted = manifest.fields(&settings.params).wants.into_iter().flatten();
    let wanted = wanted.filter(|want| !want.is_optional).map(|want| want.field);
    let logs = first.logs.lines.into_iter();
    TrialReport {
        module: manifest.name.clone(),
        version: manifest.version.clone(),
        digest: module.digest().to_owned(),
        mode: manifest.mode,
        params: settings.params.clone(),
        limits: TrialLimits { deadline_ms: settings.deadline.get(), memory_mib: settings.memory.get() },
        repeat: settings.repeat,
        start: first.start,
        calls: first.calls,
        finish: first.finish,
        counters: first.counters,
        logs: logs.map(|LogLine { level, message, .. }| ModuleLine { level, message }).collect(),
        logs_dropped: first.logs.dropped,
        missing_fields: wanted.filter(|name| !input_fields.contains(name.as_str())).collect(),
        input_fields: input_fields.into_iter().map(str::to_owned).collect(),
        differences,
        suggested,
    }
}

/// Median CPU and wall-clock times of each call of the first pass, and of `finish`, over all passes with instances of the
/// same age.
fn medians(passes: &[Pass]) -> Vec<(f64, f64)> {
    let calls = |pass: &'_ Pass| -> Vec<(f64, f64)> {
        pass.calls.iter().chain(&pass.finish).map(|call| (call.cpu_s, call.wall_s)).collect()
    };
    let alike: Vec<_> = passes.iter().filter(|pass| pass.is_fresh == passes[0].is_fresh).map(calls).collect();
    let of_call = |number: usize| {
        let times = || alike.iter().map(|calls| calls[number]);
        (median(times().map(|(cpu_s, _)| cpu_s)), median(times().map(|(_, wall_s)| wall_s)))
    };
    (0..alike[0].len()).map(of_call).collect()
}

/// The middle one, or the mean of the two in the middle. There is at least one.
fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    f64::midpoint(times[(times.len() - 1) / 2], times[times.len() / 2])
}

fn suggestion(passes: &[Pass]) -> Suggestion {
    let calls = || passes.iter().flat_map(|pass| pass.calls.iter().chain(&pass.finish));
    let start = passes.iter().map(|pass| pass.start.memory_bytes);
    let most_memory_bytes = calls().map(|call| call.memory_bytes).chain(start).max().unwrap_or(0);
    let longest_cpu_s = calls().map(|call| call.cpu_s / call.samples.len().max(1) as f64).fold(0.0, f64::max);
    let mib = (most_memory_bytes as f64 * MEMORY_MARGIN / f64::from(1 << 20)).ceil() as u32;
    Suggestion {
        deadline_ms: round_up((longest_cpu_s * 1e3 * TIME_MARGIN).ceil() as u32)
            .clamp(LEAST_DEADLINE_MS, DeadlineMs::MOST),
        memory_mib: mib.next_multiple_of(MEMORY_STEP_MIB).clamp(MEMORY_STEP_MIB, MemoryMib::MOST),
        longest_cpu_s,
        most_memory_bytes,
    }
}

/// The next number that is 1, 2 or 5 times a power of ten.
fn round_up(number: u32) -> u32 {
    let powers = (0..9).map(|power| 10_u32.pow(power));
    powers
        .flat_map(|power| [power, 2 * power, 5 * power])
        .find(|round| *round >= number)
        .unwrap_or(DeadlineMs::MOST)
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Dropped => "dropped",
            Self::Many => "many",
            Self::Held => "held",
            Self::Failed => "failed",
        }
    }
}

impl TrialReport {
    /// All samples, and those that a stateful module returned in the end.
    pub fn samples(&self) -> impl Iterator<Item = &SampleTrial> {
        self.calls.iter().chain(&self.finish).flat_map(|call| &call.samples)
    }

    /// True if no sample failed and all passes agree.
    pub fn is_good(&self) -> bool {
        let failed = self.samples().any(|sample| sample.outcome == Outcome::Failed);
        !failed && self.differences.as_ref().is_none_or(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_round_numbers() {
        assert_eq!([0, 1, 3, 11, 500, 501].map(round_up), [1, 1, 5, 20, 500, 1000]);
    }

    fn call(cpu_s: f64, wall_s: f64) -> CallTrial {
        CallTrial { samples: Vec::new(), cpu_s, wall_s, memory_bytes: 20 << 20 }
    }

    fn pass(cpu_s: [f64; 2], is_fresh: bool) -> Pass {
        Pass { calls: cpu_s.map(|cpu_s| call(cpu_s, 10.0 * cpu_s)).into(), is_fresh, ..Pass::default() }
    }

    #[test]
    fn a_call_takes_the_median_of_passes_like_the_first() {
        let passes = [
            pass([4.0, 1.0], false),
            pass([9.0, 9.0], true),
            pass([2.0, 3.0], false),
            pass([3.0, 2.0], false),
        ];
        assert_eq!(medians(&passes), [(3.0, 30.0), (2.0, 20.0)]);
        // Of an even number there is none in the middle.
        assert_eq!(medians(&passes[..3]), [(3.0, 30.0), (2.0, 20.0)]);
    }

    #[test]
    fn what_a_stateful_module_gives_in_the_end_takes_the_medians_too() {
        let finished =
            |cpu_s, wall_s| Pass { finish: Some(call(cpu_s, wall_s)), is_fresh: true, ..Pass::default() };
        let passes = [finished(4.0, 5.0), finished(1.0, 9.0), finished(2.0, 6.0)];
        assert_eq!(medians(&passes), [(2.0, 6.0)]);
    }

    #[test]
    fn the_suggestion_leaves_room_above_the_most_that_was_seen() {
        let suggested = suggestion(&[pass([0.010, 0.030], false), pass([0.020, 0.0], true)]);
        // 1.5 x 20 MiB in steps of 16 MiB; 10 x 30 ms, rounded up.
        assert_eq!((suggested.memory_mib, suggested.deadline_ms), (32, 500));
        assert_eq!(suggestion(&[pass([0.0, 0.0], false)]).deadline_ms, 10);
    }
}
