//! Search for the number of accelerators that a store can feed. Each simulated accelerator takes a batch, computes for a fixed
//! time, and then takes the next batch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;
use std::time::Duration;

use penstock_types::stats::Tick;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::load::{BenchError, Consume, Surroundings};
use crate::record::{Load, LoadTimes};
use crate::report::LoadReport;
use crate::spec::{AcceleratorSpec, PageCache, WarmUp};
use crate::subject::Subject;

/// Default minimum utilisation, as MLPerf Storage requires for most workloads.
const UTILISATION: f64 = 0.9;
/// Minimum and maximum duration of a trial; within these limits, a trial lasts `STEPS` steps.
const TRIAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));
const STEPS: u32 = 20;
/// Minimum number of steps of each accelerator in a trial, even if the trial then exceeds its maximum duration. Only the steps
/// after the first one are measured.
const LEAST_STEPS: u32 = 4;
/// Number of passes of a trial with a cold cache, so large that the trial always reaches its duration first.
const PASSES: u32 = 1_000_000;
const TRIALS: usize = 16;
const MOST: u32 = 100_000;
const MOST_ITEMS: f64 = 5e6;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    pub workload: &'static str,
    pub accelerator: &'static str,
    /// Mean size of a sample, in bytes.
    pub sample_bytes: u64,
    /// Number of samples in a step.
    pub batch_size: u32,
    /// Computing time of a step, in seconds.
    pub step_s: f64,
    pub utilisation: f64,
}

/// Workloads of MLPerf Storage up to v3.0, with the step times for which DLIO sleeps.
const PRESETS: [Preset; 10] = [
    Preset::new("unet3d", "a100", 146_600_628, 7, 0.636, 0.9),
    Preset::new("unet3d", "h100", 146_600_628, 7, 0.323, 0.9),
    Preset::new("unet3d", "b200", 146_600_628, 7, 0.162, 0.9),
    Preset::new("resnet50", "a100", 114_660, 400, 0.435, 0.9),
    Preset::new("resnet50", "h100", 114_660, 400, 0.224, 0.9),
    Preset::new("cosmoflow", "a100", 2_828_486, 1, 0.00551, 0.7),
    Preset::new("cosmoflow", "h100", 2_828_486, 1, 0.0035, 0.7),
    Preset::new("retinanet", "b200", 322_957, 24, 0.04755, 0.85),
    Preset::new("flux", "b200", 2_164_832, 48, 1.35, 0.9),
    Preset::new("dlrm", "b200", 761, 16384, 0.000_375, 0.7),
];

/// Number of accelerators that a store can feed, and the trials that found it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratorReport {
    /// Name of the preset, or `own` if the document sets the step time itself.
    pub accelerator: String,
    /// Number of samples in a step.
    pub batch_size: u32,
    /// Computing time of a step, in seconds.
    pub step_s: f64,
    /// Minimum share of its time that each accelerator must compute, 0.0 to 1.0.
    pub utilisation: f64,
    /// Label of the load that fed the accelerators.
    pub load: String,
    /// Largest number of accelerators that reached the minimum utilisation; 0 if not even a single accelerator reached it.
    pub supported: u32,
    /// Trials in the order in which they ran. A number of accelerators that missed the minimum utilisation was tried twice.
    pub trials: Vec<AcceleratorTrial>,
    /// Bytes per second that one accelerator of each known workload demands, and an estimate, from bytes per second alone, of the number of accelerators that the fastest load feeds.
    pub presets: Vec<PresetNeed>,
}

/// One trial with a fixed number of accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratorTrial {
    pub accelerators: u32,
    /// Mean share of time that the accelerators computed, 0.0 to 1.0; each accelerator's first step is not measured.
    pub utilisation: f64,
    /// Samples per second that the accelerators took.
    pub samples_per_s: f64,
    pub steps: u64,
}

/// Bytes per second that a known workload demands, compared with the measured rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PresetNeed {
    /// Workload and accelerator, e.g. `resnet50/h100`.
    pub name: String,
    /// Mean size of a sample, in bytes.
    pub sample_bytes: u64,
    /// Megabytes (10^6 bytes) per second that one accelerator consumes at the minimum utilisation of the workload.
    pub needs_mb_per_s: f64,
    /// Number of accelerators that the bytes per second of the fastest load can feed. This is an estimate: larger samples are
    /// often read at more bytes per second.
    pub supported_by_bytes: f64,
}

impl Preset {
    const fn new(
        workload: &'static str,
        accelerator: &'static str,
        sample_bytes: u64,
        batch_size: u32,
        step_s: f64,
        utilisation: f64,
    ) -> Self {
        Self { workload, accelerator, sample_bytes, batch_size, step_s, utilisation }
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.workload, self.accelerator)
    }

    /// Bytes per second that one accelerator consumes at the minimum utilisation.
    fn needs(&self) -> f64 {
        self.sample_bytes as f64 * f64::from(self.batch_size) / self.step_s * self.utilisation
    }
}

pub fn presets() -> impl Iterator<Item = &'static Preset> {
    PRESETS.iter()
}

pub fn preset(name: &str) -> Option<&'static Preset> {
    presets().find(|preset| preset.name() == name)
}

struct Wanted {
    name: String,
    batch_size: u32,
    step: Duration,
    utilisation: f64,
}

impl Wanted {
    fn of(spec: &AcceleratorSpec, batch_size: u32) -> Self {
        let preset = spec.preset.as_deref().and_then(preset);
        let own = spec.batch_size.map(NonZeroU32::get);
        let batch_size = own.or(preset.map(|preset| preset.batch_size)).unwrap_or(batch_size);
        // A preset's step time scales with the number of samples.
        let of_preset =
            |preset: &Preset| preset.step_s * f64::from(batch_size) / f64::from(preset.batch_size);
        let step_s = spec.step_ms.map(|step| step.get() / 1e3).or(preset.map(of_preset));
        Self {
            name: preset.map_or_else(|| "own".to_owned(), Preset::name),
            batch_size,
            step: Duration::from_secs_f64(step_s.unwrap_or_default()),
            utilisation: spec.utilisation.or(preset.map(|preset| preset.utilisation)).unwrap_or(UTILISATION),
        }
    }
}

/// Simulated accelerators. An accelerator takes a batch once it is free. Its step starts when both the accelerator and the batch
/// are ready, even if the simulation handles the batch later. A batch with fewer samples takes proportionally less time.
pub(crate) struct Fleet {
    step_ns: u64,
    batch_size: u32,
    /// Time at which each accelerator becomes free, and the number of the accelerator.
    free: BinaryHeap<Reverse<(u64, usize)>>,
    made: Vec<Steps>,
    samples: u64,
    first: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Steps {
    count: u64,
    /// End of the accelerator's first step, in nanoseconds.
    first_end: u64,
    /// Computing time of the accelerator after its first step, in nanoseconds.
    computed_ns: u64,
}

impl Fleet {
    pub(crate) fn new(accelerators: u32, step: Duration, batch_size: u32) -> Self {
        let step_ns = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        let free = (0..accelerators as usize).map(|number| Reverse((0, number))).collect();
        let made = vec![Steps::default(); accelerators as usize];
        Self { step_ns, batch_size, free, made, samples: 0, first: None }
    }

    /// Hands over a batch that became ready at time `ready`; returns the time at which the next accelerator becomes free.
    pub(crate) fn take(&mut self, ready: Tick, samples: usize) -> Tick {
        let Some(Reverse((free, number))) = self.free.pop() else { return ready };
        let step = u128::from(self.step_ns) * samples as u128 / u128::from(self.batch_size.max(1));
        let step = u64::try_from(step).unwrap_or(u64::MAX);
        let end = free.max(ready.nanos()).saturating_add(step);
        let made = &mut self.made[number];
        match made.count {
            0 => made.first_end = end,
            _ => made.computed_ns += step,
        }
        made.count += 1;
        self.first.get_or_insert(ready.nanos());
        self.samples += samples as u64;
        self.free.push(Reverse((end, number)));
        Tick::from_nanos(self.free.peek().map_or(end, |Reverse((free, _))| *free))
    }

    /// Shifts all times by `length`, so that the pause does not count as waiting.
    fn pause(&mut self, length: Duration) {
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let later = |at: u64| at.saturating_add(length);
        let free = self.free.drain().map(|Reverse((free, number))| Reverse((later(free), number)));
        self.free = free.collect();
        self.made.iter_mut().for_each(|made| made.first_end = later(made.first_end));
        self.first = self.first.map(later);
    }

    fn trial(&self) -> AcceleratorTrial {
        let (mut computed, mut lived, mut last) = (0.0, 0.0, 0);
        for Reverse((end, number)) in &self.free {
            let made = self.made[*number];
            last = last.max(*end);
            if made.count > 1 {
                computed += made.computed_ns as f64;
                lived += (end - made.first_end) as f64;
            }
        }
        // An accelerator that got fewer than two batches counts as unused.
        let fed = self.made.iter().filter(|made| made.count > 1).count() as f64;
        let share = if lived > 0.0 { computed / lived } else { 0.0 };
        let seconds = (last.saturating_sub(self.first.unwrap_or(last)) as f64 * 1e-9).max(1e-9);
        AcceleratorTrial {
            accelerators: u32::try_from(self.made.len()).unwrap_or(u32::MAX),
            utilisation: share * fed / self.made.len().max(1) as f64,
            samples_per_s: self.samples as f64 / seconds,
            steps: self.made.iter().map(|made| made.count).sum(),
        }
    }
}

struct OnTrial<'a> {
    surroundings: &'a Surroundings,
    fleet: Fleet,
    /// Duration of the trial from its first batch, without pauses.
    length: Duration,
    end: Option<Tick>,
}

impl Consume for OnTrial<'_> {
    fn take(&mut self, ready: Tick, samples: usize) -> bool {
        let free = self.fleet.take(ready, samples);
        let now = self.surroundings.clock.now();
        let end = *self.end.get_or_insert_with(|| now.after(self.length));
        self.surroundings.wait_until(free.min(end));
        self.surroundings.clock.now() < end
    }

    fn pause(&mut self, length: Duration) {
        self.fleet.pause(length);
        self.end = self.end.map(|end| end.after(length));
    }
}

pub(crate) fn feeding(spec: &AcceleratorSpec, load: &Load) -> Load {
    let batch_size = Wanted::of(spec, load.batch_size).batch_size;
    Load { batch_size, persistent: true, ..load.clone() }
}

pub(crate) fn search(
    surroundings: &Surroundings,
    subject: &Subject,
    load: &Load,
    cell: &LoadReport,
    spec: &AcceleratorSpec,
    on_trial: &mut dyn FnMut(u32),
) -> Result<AcceleratorReport, BenchError> {
    let wanted = Wanted::of(spec, load.batch_size);
    let load = feeding(spec, load);
    let mut trials: Vec<AcceleratorTrial> = Vec::new();
    // Number of accelerators that the measured rate would feed; the search starts with this number.
    let guess =
        cell.items_per_s * wanted.step.as_secs_f64() / f64::from(wanted.batch_size) / wanted.utilisation;
    let guess = if guess.is_finite() { guess.clamp(1.0, f64::from(MOST)) as u32 } else { MOST };
    let supported = most_of(guess, |number| {
        on_trial(number);
        let trial = fed(surroundings, subject, &load, &wanted, number, cell.items_per_s)?;
        trials.push(trial);
        Ok(trial.utilisation >= wanted.utilisation)
    })?;
    let measured = cell.mb_per_s;
    let presets = presets().map(|preset| {
        let needs_mb_per_s = preset.needs() / 1e6;
        PresetNeed {
            name: preset.name(),
            sample_bytes: preset.sample_bytes,
            needs_mb_per_s,
            supported_by_bytes: measured / needs_mb_per_s,
        }
    });
    Ok(AcceleratorReport {
        accelerator: wanted.name,
        batch_size: wanted.batch_size,
        step_s: wanted.step.as_secs_f64(),
        utilisation: wanted.utilisation,
        load: format!("{}, batch {}", load.label(), wanted.batch_size),
        supported,
        presets: presets.collect(),
        trials,
    })
}

/// Largest number of accelerators that can be fed, searched from `guess`; 0 if not even one can be fed. A number that fails is
/// tried a second time, since a single stall of the machine or the store would otherwise halve the result.
fn most_of<E>(guess: u32, mut feeds: impl FnMut(u32) -> Result<bool, E>) -> Result<u32, E> {
    let (mut most, mut too_many) = (0, None::<u32>);
    let mut next = guess;
    for _ in 0..TRIALS {
        if feeds(next)? || feeds(next)? {
            most = most.max(next)
        } else {
            too_many = Some(too_many.map_or(next, |too| too.min(next)))
        }
        next = match too_many {
            Some(too_many) if most + 1 >= too_many => break,
            Some(too_many) if most == 0 => (too_many / 2).max(1),
            Some(too_many) => most + ((too_many - most) / 2).max(1),
            None if most >= MOST => break,
            None => most.saturating_add((most / 4).max(1)).min(MOST),
        };
    }
    Ok(most)
}

fn fed(
    surroundings: &Surroundings,
    subject: &Subject,
    load: &Load,
    wanted: &Wanted,
    number: u32,
    rate: f64,
) -> Result<AcceleratorTrial, BenchError> {
    let length = (wanted.step * STEPS).clamp(TRIAL.0, TRIAL.1).max(wanted.step * LEAST_STEPS);
    let (subject, passes) = match surroundings.cache {
        // A single pass with more items than can be read in `length`, since loaders pause between passes.
        PageCache::Warm => {
            let items = (rate * length.as_secs_f64() * 3.0).min(MOST_ITEMS);
            (subject.going_round(items as usize), 1)
        }
        // Many passes instead of repeated reads within one pass, since a repeated read would find its object in the cache. Each
        // pass starts without prefetched batches, like an epoch; for small sets, this start-up is a large part of the time.
        PageCache::Cold => (subject.clone(), PASSES),
    };
    let fleet = Fleet::new(number, wanted.step, wanted.batch_size);
    let mut on_trial = OnTrial { surroundings, fleet, length, end: None };
    let times = LoadTimes { warm_up: WarmUp::default(), passes };
    surroundings.check(surroundings.run(&subject, load, &times, &mut on_trial).how)?;
    Ok(on_trial.fleet.trial())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_accelerator_that_waits_half_the_time_is_half_used() {
        let mut fleet = Fleet::new(1, Duration::from_millis(10), 4);
        for batch in 0..5 {
            assert_eq!(fleet.take(at(batch * 20), 4), at(batch * 20 + 10));
        }
        let trial = fleet.trial();
        assert_eq!((trial.utilisation, trial.steps), (0.5, 5));
        assert!((trial.samples_per_s - 20.0 / 0.09).abs() < 1e-9);
    }

    #[test]
    fn ready_batches_keep_all_accelerators_busy() {
        let mut fleet = Fleet::new(3, Duration::from_millis(10), 1);
        for _ in 0..12 {
            fleet.take(at(0), 1);
        }
        assert_eq!(fleet.trial().utilisation, 1.0);
        let mut starved = Fleet::new(3, Duration::from_millis(10), 1);
        starved.take(at(0), 1);
        assert_eq!(starved.trial().utilisation, 0.0);
    }

    #[test]
    fn a_batch_with_fewer_samples_takes_proportionally_less_time() {
        let mut fleet = Fleet::new(1, Duration::from_millis(8), 4);
        assert_eq!([fleet.take(at(0), 4), fleet.take(at(0), 1)], [at(8), at(10)]);
        // The accelerator is free at 10 ms, waits until 14 ms, and computes for 2 + 2 ms of the 8 ms after the end of the first
        // step.
        assert_eq!(fleet.take(at(14), 1), at(16));
        assert_eq!(fleet.trial().utilisation, 0.5);
    }

    #[test]
    fn a_pause_does_not_count_as_waiting() {
        let trial = |pause: u64| {
            let mut fleet = Fleet::new(2, Duration::from_millis(10), 4);
            for batch in 0..4 {
                fleet.take(at(batch), 4);
            }
            fleet.pause(Duration::from_millis(pause));
            // Both accelerators are idle when these batches arrive.
            for batch in 0..4 {
                fleet.take(at(pause + 40 + batch), 4);
            }
            fleet.trial()
        };
        let trial_without = trial(0);
        assert!(trial_without.utilisation < 0.75, "{trial_without:?}");
        assert_eq!(trial(1_000), trial_without);
    }

    #[test]
    fn the_largest_number_is_found_though_one_trial_of_each_fails() {
        for most in [0, 1, 2, 7, 30] {
            for guess in [1, 4, 8, 25] {
                let mut tried = Vec::new();
                let found = most_of::<()>(guess, |number| {
                    let is_first = !tried.contains(&number);
                    tried.push(number);
                    Ok(!is_first && number <= most)
                });
                assert_eq!(found, Ok(most), "from {guess}: {tried:?}");
            }
        }
        assert_eq!(most_of(4, |_| Err("gone")), Err("gone"));
    }

    #[test]
    fn needs_agree_with_the_rules_of_mlperf_storage() {
        let needs = |name| preset(name).unwrap().needs() / preset(name).unwrap().utilisation / 1e6;
        assert!((needs("unet3d/h100") - 3180.0).abs() < 10.0, "{}", needs("unet3d/h100"));
        assert!((needs("resnet50/h100") - 205.0).abs() < 1.0);
        assert!((needs("retinanet/b200") - 163.0).abs() < 1.0);
    }
}
