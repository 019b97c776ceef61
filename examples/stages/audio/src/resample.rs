//! Conversion of sample rates.

use std::f64::consts::PI;
use std::ops::Range;
use std::rc::Rc;

use penstock_guest::prelude::*;

use crate::wav::MOST_SAMPLES;

/// Number of zero crossings of the filter on each side of its middle; `lowpass_filter_width` of torchaudio.
const CROSSINGS: f64 = 6.0;

/// Cut-off frequency, as a part of half the lower rate; `rolloff` of torchaudio.
const ROLLOFF: f64 = 0.99;

/// Maximum number of weights of a conversion.
const MOST_WEIGHTS: usize = 4 << 20;

/// Number of conversions that are kept for later clips.
const KEPT: usize = 4;

/// Conversions from other rates, kept for later clips.
#[derive(Debug, Default)]
pub(crate) struct Resamplers(Vec<((u32, u32), Rc<Resampler>)>);

/// Conversion between two rates by a windowed sinc filter (J. Smith, "Digital Audio Resampling Home Page"), with the weights of
/// `torchaudio.functional.resample` at its defaults.
#[derive(Debug)]
struct Resampler {
    /// Both rates, divided by their greatest common divisor.
    from: usize,
    to: usize,
    /// Weights of each of the `to` phases of an output.
    phases: Vec<Phase>,
}

/// Weights of the inputs from `first` on, counted from the start of the output's group of `from` inputs.
#[derive(Debug)]
struct Phase {
    first: isize,
    weights: Vec<f32>,
}

impl Resamplers {
    /// The samples at the rate `to`.
    pub(crate) fn resample(&mut self, samples: Vec<f32>, from: u32, to: u32) -> Result<Vec<f32>> {
        if from == to || samples.is_empty() {
            return Ok(samples);
        }
        let kept = self.0.iter().find(|(rates, _)| *rates == (from, to));
        let resampler = match kept {
            Some((_, resampler)) => resampler.clone(),
            None => {
                let made = Rc::new(Resampler::new(from, to)?);
                self.0.truncate(KEPT - 1);
                self.0.insert(0, ((from, to), made.clone()));
                made
            }
        };
        resampler.resample(&samples)
    }
}

impl Resampler {
    fn new(from: u32, to: u32) -> Result<Self> {
        let divisor = common_divisor(from, to);
        let (from, to) = ((from / divisor) as usize, (to / divisor) as usize);
        // Frequencies are relative to the rates after division.
        let cut_off = from.min(to) as f64 * ROLLOFF;
        let reach = CROSSINGS * from as f64 / cut_off;
        let weights = to.saturating_mul(2 * reach.ceil() as usize + 2);
        ensure!(
            weights <= MOST_WEIGHTS,
            "samples at {} per second cannot be converted to {}: the rates have no large common divisor; use a rate near it",
            from * divisor as usize,
            to * divisor as usize
        );
        let phase = |phase: usize| {
            let middle = phase as f64 / to as f64 * from as f64;
            let inputs: Range<isize> =
                (middle - reach).ceil() as isize..(middle + reach).floor() as isize + 1;
            let weight = |input: isize| {
                let time = (input as f64 / from as f64 - phase as f64 / to as f64) * cut_off;
                let time = time.clamp(-CROSSINGS, CROSSINGS);
                let window = (time * PI / CROSSINGS / 2.0).cos().powi(2);
                let sinc = if time == 0.0 { 1.0 } else { (time * PI).sin() / (time * PI) };
                (sinc * window * cut_off / from as f64) as f32
            };
            Phase { first: inputs.start, weights: inputs.map(weight).collect() }
        };
        Ok(Self { from, to, phases: (0..to).map(phase).collect() })
    }

    fn resample(&self, samples: &[f32]) -> Result<Vec<f32>> {
        let length = (samples.len() as u64 * self.to as u64).div_ceil(self.from as u64);
        ensure!(
            length <= MOST_SAMPLES as u64,
            "the clip has {length} samples after the conversion of its rate, more than the limit of {MOST_SAMPLES}"
        );
        let mut resampled = Vec::with_capacity(length as usize);
        for output in 0..length as usize {
            let Phase { first, weights } = &self.phases[output % self.to];
            let first = (output / self.to * self.from) as isize + first;
            // The clip is silent before its start and after its end.
            let skipped = first.min(0).unsigned_abs().min(weights.len());
            let inputs = samples.get(first.max(0) as usize..).unwrap_or_default();
            resampled.push(dot(inputs, &weights[skipped..]));
        }
        Ok(resampled)
    }
}

/// Sum of products over the common length; four sums, so that they do not wait for each other.
fn dot(inputs: &[f32], weights: &[f32]) -> f32 {
    let count = inputs.len().min(weights.len());
    let (inputs, inputs_rest) = inputs[..count].as_chunks::<4>();
    let (weights, weights_rest) = weights[..count].as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (inputs, weights) in inputs.iter().zip(weights) {
        for ((sum, input), weight) in sums.iter_mut().zip(inputs).zip(weights) {
            *sum += input * weight;
        }
    }
    let rest: f32 = inputs_rest.iter().zip(weights_rest).map(|(input, weight)| input * weight).sum();
    sums.iter().sum::<f32>() + rest
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
