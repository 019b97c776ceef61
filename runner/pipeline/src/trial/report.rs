use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::item::Sample;
use penstock_types::manifest::Mode;
use penstock_types::run::FailureClass;
use penstock_types::spec::{DeadlineMs, MemoryMib};
use penstock_wasm::{LogLevel, LogLine, LogLines, Module};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use strum::IntoStaticStr;

use super::compare::compare;
use super::field::MadeField;
use super::settings::TrialSettings;

/// Factor from the highest measured memory to the suggested limit.
const MEMORY_MARGIN: f64 = 1.5;
/// Factor from the longest measured CPU time to the suggested deadline: machines and samples differ.
const TIME_MARGIN: f64 = 10.0;
/// Step of the suggested memory limit, in MiB.
const MEMORY_STEP_MIB: u32 = 16;
/// Shortest suggested deadline, in milliseconds.
const LEAST_DEADLINE_MS: u32 = 10;

/// Result of trying a module on a few samples.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TrialReport {
    /// Name of the module.
    pub module: String,
    /// Version of the module.
    pub version: String,
    /// Digest of the module: `sha256:` and 64 hex digits.
    pub digest: String,
    /// Unit of work of one call.
    pub mode: Mode,
    /// Parameters of the module.
    pub params: Map<String, Value>,
    /// Limits of the module in the trial.
    pub limits: TrialLimits,
    /// Number of times that each sample was tried. The times of a call are medians over these tries.
    pub repeat: u32,
    /// Costs of starting the first instance, including `init`.
    pub start: StartTrial,
    /// All calls, in the order of the samples.
    pub calls: Vec<CallTrial>,
    /// Call of `finish` of a stateful module; `null` for other modes.
    pub finish: Option<CallTrial>,
    /// Sums of the module's counters over the first pass.
    pub counters: BTreeMap<String, f64>,
    /// Lines that the module logged in the first pass.
    pub logs: Vec<ModuleLine>,
    /// Number of log lines left out, because too many came at a time.
    pub logs_dropped: u64,
    /// Fields that the module wants and no sample has.
    pub missing_fields: Vec<String>,
    /// Names of all fields in the samples.
    pub input_fields: Vec<String>,
    /// Samples with different results between passes; `null` with a single pass.
    pub differences: Option<Vec<Difference>>,
    /// Limits suggested by the measurements.
    pub suggested: Suggestion,
}

/// Limits of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TrialLimits {
    /// CPU time limit for one sample, in milliseconds.
    pub deadline_ms: u32,
    /// Memory limit of one instance, in MiB.
    pub memory_mib: u32,
}

/// Costs of starting an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct StartTrial {
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Wall-clock time, in seconds.
    pub wall_s: f64,
    /// Memory of the instance after the start, in bytes.
    pub memory_bytes: u64,
}

/// One call: one sample, or the samples of one batch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallTrial {
    /// Result of each sample in the call.
    pub samples: Vec<SampleTrial>,
    /// CPU time of the call, including copies in and out, in seconds.
    pub cpu_s: f64,
    /// Wall-clock time of the call, in seconds.
    pub wall_s: f64,
    /// Peak memory of the instance until the end of the call, in bytes. The memory of an instance never shrinks.
    pub memory_bytes: u64,
}

/// Result of one sample.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SampleTrial {
    /// Key of the sample; `finish` for the final samples of a stateful module.
    pub key: String,
    /// Result for the sample: kept, dropped, replaced, held or failed.
    pub outcome: Outcome,
    /// Failure of the sample; `null` if it did not fail.
    pub failure: Option<Failure>,
    /// Size of the sample's fields that were copied into the module, in bytes.
    pub bytes_in: u64,
    /// Size of the fields that the module returned, in bytes.
    pub bytes_out: u64,
    /// Output samples, without the fields that bypass the module.
    pub made: Vec<MadeSample>,
}

/// Outcome of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Outcome {
    /// Returned by the module as one sample with the same key.
    Kept,
    /// Removed on purpose by the module.
    Dropped,
    /// Replaced by several samples, or by one sample with another key.
    Many,
    /// Held by a stateful module.
    Held,
    /// Failed, because of the sample or of the module.
    Failed,
}

/// Failure of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Failure {
    /// Cause of the failure.
    pub class: FailureClass,
    /// Description of the problem.
    pub message: String,
    /// Number of held samples that were lost together with this sample.
    pub held_lost: u64,
}

/// An output sample of the module.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MadeSample {
    /// Key of the sample.
    pub key: String,
    /// Fields of the sample.
    pub fields: Vec<MadeField>,
}

/// A line that the module logged.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModuleLine {
    /// Severity of the line.
    pub level: LogLevel,
    /// Text of the line, made printable.
    pub message: String,
}

/// A sample whose results differ between passes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Difference {
    /// Key of the sample.
    pub key: String,
    /// Cause of the difference.
    pub cause: DifferenceCause,
    /// Property that differs, e.g. ``field `text` ``.
    pub what: String,
    /// Value of the property from a new instance.
    pub fresh: String,
    /// Value of the property from another pass.
    pub other: String,
}

/// Cause of different results for the same sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceCause {
    /// State that the instance kept from earlier samples.
    State,
    /// No known cause: two new instances returned different results.
    Chance,
}

/// Suggested limits for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Suggestion {
    /// CPU time limit for one sample, in milliseconds.
    pub deadline_ms: u32,
    /// Memory limit of one instance, in MiB.
    pub memory_mib: u32,
    /// Longest measured CPU time per sample, averaged over its call, in seconds.
    pub longest_cpu_s: f64,
    /// Highest measured memory, in bytes.
    pub most_memory_bytes: u64,
}

#[derive(Default)]
pub(super) struct Pass {
    /// Set if every call used a new instance, or, for a stateful module, if the pass began with a new instance.
    pub(super) is_fresh: bool,
    /// Calls in the order of the samples, regardless of the order of execution.
    pub(super) calls: Vec<CallTrial>,
    pub(super) finish: Option<CallTrial>,
    pub(super) start: StartTrial,
    pub(super) counters: BTreeMap<String, f64>,
    pub(super) logs: LogLines,
}

/// Combines all passes; the first pass uses instances as a run does.
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

/// Median CPU and wall-clock times of each call of the first pass, and of `finish`, over all passes that used instances in the
/// same way.
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

/// Median of at least one value. For an even number of values, the mean of the two middle ones.
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

/// Next number that is 1, 2 or 5 times a power of ten.
fn round_up(number: u32) -> u32 {
    let powers = (0..9).map(|power| 10_u32.pow(power));
    powers
        .flat_map(|power| [power, 2 * power, 5 * power])
        .find(|round| *round >= number)
        .unwrap_or(DeadlineMs::MOST)
}

impl Outcome {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl TrialReport {
    /// All samples, including those that a stateful module returned in `finish`.
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
        // Two passes used instances like the first one, so each median is the mean of two values.
        assert_eq!(medians(&passes[..3]), [(3.0, 30.0), (2.0, 20.0)]);
    }

    #[test]
    fn finish_takes_the_medians_too() {
        let finished =
            |cpu_s, wall_s| Pass { finish: Some(call(cpu_s, wall_s)), is_fresh: true, ..Pass::default() };
        let passes = [finished(4.0, 5.0), finished(1.0, 9.0), finished(2.0, 6.0)];
        assert_eq!(medians(&passes), [(2.0, 6.0)]);
    }

    #[test]
    fn the_suggestion_leaves_room_above_the_measured_maximum() {
        let suggested = suggestion(&[pass([0.010, 0.030], false), pass([0.020, 0.0], true)]);
        // 1.5 x 20 MiB in steps of 16 MiB; 10 x 30 ms, rounded up.
        assert_eq!((suggested.memory_mib, suggested.deadline_ms), (32, 500));
        assert_eq!(suggestion(&[pass([0.0, 0.0], false)]).deadline_ms, 10);
    }
}
