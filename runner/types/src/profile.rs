//! Profiles: what each stage of a pipeline can do alone, with 1, 2, 4, ... ops at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::plural;
use crate::fault::listed;
use crate::plan::Plan;
use crate::policy::StageKindName;

/// Share of the highest rate from which more ops at a time are not worthwhile.
const NEAR_THE_MOST: f64 = 0.95;

/// Measurements of the stages of a pipeline, each alone on inputs that a run of the pipeline has recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// Name of the pipeline.
    pub name: String,
    /// Number of cores of the machine.
    pub cores: u32,
    /// Number of worker threads of the run that recorded the inputs.
    pub threads: u32,
    /// Duration of the run that recorded the inputs, in seconds.
    pub recorded_s: f64,
    /// Stages that were measured, in the order of the pipeline.
    pub stages: Vec<StageProfile>,
    /// Ids of stages with an op to which no input came in the time of the recording.
    pub without_inputs: Vec<String>,
}

/// Measurements of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageProfile {
    /// Id of the stage.
    pub id: String,
    /// Name of the stage.
    pub name: String,
    /// Kind of the stage.
    pub kind: StageKindName,
    /// True if the op runs on a worker thread; otherwise it waits, and needs none.
    pub computes: bool,
    /// Inputs of the measurements.
    pub inputs: ProfileInputs,
    /// Measurements by the number of ops at a time, fewest first.
    pub points: Vec<ProfilePoint>,
    /// Smallest number of ops at a time with at least 95 % of the highest rate.
    pub knee: u32,
    /// The stage in the run that recorded the inputs, beside the other stages.
    pub company: Option<CompanyPoint>,
    /// CPU time of the ops for 1,000 samples, one op at a time, in seconds; `null` for stages whose ops wait.
    pub cpu_s_per_1000: Option<f64>,
    /// Bytes of the values of 1,000 samples that come in.
    pub bytes_in_per_1000: f64,
    /// Bytes of the values that 1,000 samples leave as.
    pub bytes_out_per_1000: f64,
    /// Highest memory of one instance of the module, in bytes; `null` for stages without one.
    pub memory_bytes: Option<u64>,
}

/// Inputs that were recorded for a stage. Measurements take them in turn, again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileInputs {
    /// Number of items: samples or batches.
    pub items: u64,
    /// Number of samples in the items.
    pub samples: u64,
    /// Bytes that the items take in memory.
    pub bytes: u64,
    /// True if more inputs came than the memory for them holds: the first ones were kept.
    pub is_full: bool,
}

/// Figures of a stage alone with a certain number of ops at a time: medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfilePoint {
    /// Number of ops at a time.
    pub at_a_time: u32,
    /// Ops that were measured, in all rounds.
    pub ops: u64,
    /// Samples that failed in the measurements.
    pub failed_samples: u64,
    /// Samples that the stage takes per second.
    pub samples_per_s: f64,
    /// Mean time of an op, in seconds.
    pub op_s: f64,
    /// Mean CPU time of an op, in seconds; `null` for stages whose ops wait.
    pub cpu_s: Option<f64>,
    /// Mean number of cores that the ops used; `null` for stages whose ops wait.
    pub cores: Option<f64>,
    /// Factor by which an op takes longer than with the fewest ops at a time: its CPU time where it computes, which waits for a core do not
    /// raise, and its time elsewhere.
    pub slowdown: f64,
}

/// Figures of a stage in a run of the whole pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompanyPoint {
    /// Mean number of ops of the stage at a time.
    pub at_a_time: f64,
    /// Samples that the stage took per second.
    pub samples_per_s: f64,
    /// Mean time of an op, in seconds.
    pub op_s: f64,
    /// Mean CPU time of an op, in seconds; `null` for stages whose ops wait.
    pub cpu_s: Option<f64>,
    /// Factor by which an op takes longer than alone with the fewest ops at a time, as in the points.
    pub slowdown: f64,
}

impl Profile {
    /// Reasons why the profile says less about a run of `plan` on a machine with `cores` than its measurements do, in words.
    pub fn doubts(&self, plan: &Plan, cores: u32) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.name != plan.name {
            doubts
                .push(format!("the profile is one of the pipeline `{}`, not of `{}`", self.name, plan.name));
        }
        if self.cores != cores {
            let measured = plural(self.cores.into(), "core");
            doubts.push(format!("the profile was measured on {measured}, and the machine has {cores}"));
        }
        // One measurement alone does not tell how ops slow each other down.
        let is_known = |stage: &StageProfile| stage.points.len() > 1;
        let is_unknown = |id: &String| !self.stages.iter().any(|stage| stage.id == *id && is_known(stage));
        let computing = plan.stages.iter().filter(|stage| stage.kind.rules().work().is_on_thread());
        let unknown: Vec<String> = computing.map(|stage| stage.id.to_string()).filter(is_unknown).collect();
        if !unknown.is_empty() {
            let unknown = listed(unknown.iter().map(String::as_str));
            doubts.push(format!(
                "the profile has no figures of {unknown} with several ops at a time: these count as never slowed down"
            ));
        }
        doubts
    }
}

impl StageProfile {
    /// Smallest number of ops at a time that reaches nearly the highest rate of `points`.
    pub fn knee_of(points: &[ProfilePoint]) -> u32 {
        let most = points.iter().map(|point| point.samples_per_s).fold(0.0, f64::max);
        let near = points.iter().find(|point| point.samples_per_s >= NEAR_THE_MOST * most);
        near.map_or(1, |point| point.at_a_time)
    }

    /// Slowdown of an op of the stage while more cores are in use.
    pub fn contention(&self) -> Contention {
        Contention::new(self.points.iter().filter_map(|point| Some((point.cores?, point.slowdown))))
    }
}

/// Factors by which an op computes slower, by the number of cores in use: cores share caches, memory, and often execution units.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contention {
    /// Cores in use, in ascending order, with the factor for each.
    points: Vec<(f64, f64)>,
}

impl Contention {
    /// Creates a curve through these points of (cores in use, factor). Points that are not positive numbers are left out.
    pub fn new(points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let is_usable = |(cores, factor): &(f64, f64)| {
            [cores, factor].into_iter().all(|number| number.is_finite() && *number > 0.0)
        };
        let mut points: Vec<_> = points.into_iter().filter(is_usable).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self { points }
    }

    /// Factor while this many cores are in use, from a straight line between the nearest points, or that of the nearest point beyond them; 1
    /// without points.
    pub fn at(&self, cores: f64) -> f64 {
        let above = self.points.partition_point(|(point, _)| *point < cores);
        match (above.checked_sub(1).and_then(|below| self.points.get(below)), self.points.get(above)) {
            (Some((from, low)), Some((to, high))) => low + (high - low) * (cores - from) / (to - from),
            (Some((_, factor)), None) | (None, Some((_, factor))) => *factor,
            (None, None) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_between_two_points_is_on_the_line_between_them() {
        let curve = Contention::new([(4.0, 2.0), (1.0, 1.0), (2.0, 1.2), (f64::NAN, 9.0), (3.0, 0.0)]);
        let at = |cores| (curve.at(cores) * 1e6).round() / 1e6;
        assert_eq!([0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 64.0].map(at), [1.0, 1.0, 1.1, 1.2, 1.6, 2.0, 2.0]);
        assert!((Contention::default().at(3.0) - 1.0).abs() < 1e-12);
        let doubled = Contention::new([(2.0, 1.5), (2.0, 1.7)]);
        assert!([1.0, 2.0, 3.0].iter().all(|cores| (1.5..=1.7).contains(&doubled.at(*cores))));
    }

    #[test]
    fn the_knee_is_where_more_at_a_time_brings_little() {
        let point = |at_a_time, samples_per_s| ProfilePoint {
            at_a_time,
            samples_per_s,
            ops: 1,
            failed_samples: 0,
            op_s: 0.001,
            cpu_s: None,
            cores: None,
            slowdown: 1.0,
        };
        assert_eq!(StageProfile::knee_of(&[point(1, 100.0), point(2, 190.0), point(4, 199.0)]), 2);
        assert_eq!(StageProfile::knee_of(&[point(1, 100.0)]), 1);
        assert_eq!(StageProfile::knee_of(&[]), 1);
    }
}
