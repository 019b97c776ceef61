//! Computation of a clip's log-mel spectrogram from its samples.

use std::f64::consts::TAU;

use penstock_guest::prelude::*;

use crate::Settings;
use crate::fft::Fft;
use crate::lanes::{Complex, LANES, Lanes};
use crate::mel::Filters;
use crate::wav::MOST_SAMPLES;
use crate::{Edges, Logarithm, Output};

/// Number of frames transformed at a time: two real signals make one complex one.
const GROUP: usize = 2 * LANES;
/// Maximum number of values in a spectrogram.
const MOST_NUMBERS: usize = 8 << 20;

/// Values precomputed from the settings, and working buffers.
#[derive(Debug)]
pub struct Spectrogram {
    settings: Settings,
    fft: Fft,
    window: Vec<f32>,
    filters: Filters,
    values: Vec<Complex>,
    work: Vec<Complex>,
    /// Power spectra of the first and of the second half of a group's frames.
    power: [Vec<Lanes>; 2], // [n_fft / 2 + 1]
}

impl Spectrogram {
    /// Creates the spectrogram. Fails if the settings contradict each other.
    pub fn new(settings: &Settings) -> Result<Self> {
        let length = settings.n_fft as usize;
        let bins = length / 2 + 1;
        let rate = f64::from(settings.sample_rate);
        let (low, high) = (f64::from(settings.f_min), settings.f_max.map_or(rate / 2.0, f64::from));
        ensure!(
            (0.0..high).contains(&low) && high <= rate / 2.0,
            "`f_min` is {low} and `f_max` {high} Hz; use 0 <= f_min < f_max <= {}",
            rate / 2.0
        );
        let floor = settings.floor;
        ensure!(
            floor.is_normal() && floor > 0.0,
            "`floor` is {floor}: use a value above 0, because the logarithm of silence is taken"
        );
        let count = settings.n_mels as usize;
        let filters = Filters::new(
            settings.mel_scale,
            settings.filter_height,
            count,
            low..high,
            bins,
            rate / length as f64,
        );
        let empty = filters.empty();
        if empty > 0 {
            penstock_guest::warn!(
                "{empty} of {count} filters fall between the frequencies of a spectrum of {length}, so their values are \
                 constant; use a larger `n_fft` or a smaller `n_mels`"
            );
        }
        let this = Self {
            fft: Fft::new(length).context("`n_fft`")?,
            window: window(settings)?,
            filters,
            values: vec![Complex::ZERO; length],
            work: vec![Complex::ZERO; length],
            power: [vec![Lanes::ZERO; bins], vec![Lanes::ZERO; bins]],
            settings: settings.clone(),
        };
        // If all clips are padded or cut to one length, that length is checked once, here.
        if let Some(count) = this.filled() {
            let least = this.least();
            ensure!(
                count <= MOST_SAMPLES,
                "`seconds` is {count} samples, more than the limit of {MOST_SAMPLES}"
            );
            if settings.output == Output::Mel {
                ensure!(count >= least, "`seconds` is {count} samples, but {least} are needed");
                this.frames(count).context("`seconds`")?;
            }
        }
        Ok(this)
    }

    /// Settings of the spectrogram.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Spectrogram of a clip: [frames, n_mels]. Fails if the clip is too short for one frame, or has too
    /// many frames.
    pub fn of(&mut self, samples: Vec<f32>) -> Result<Tensor<f32>> {
        let Settings { hop, n_mels: mels, .. } = self.settings;
        let (hop, mels, length) = (hop as usize, mels as usize, self.window.len());
        let least = self.least();
        ensure!(
            samples.len() >= least,
            "the clip has {} samples, but {least} are needed; set `seconds` to pad it",
            samples.len()
        );
        let frames = self.frames(samples.len())?;
        let mut signal = match self.settings.edges {
            Edges::Reflect => reflected(&samples, length / 2),
            Edges::None => samples,
        };
        // Silence pads the last group to its full number of frames.
        signal.resize((frames.next_multiple_of(GROUP) - 1) * hop + length, 0.0);
        let mut spectrogram = Tensor::<f32>::zeros([frames as u32, mels as u32]);
        for (group, out) in spectrogram.as_mut_slice().chunks_mut(GROUP * mels).enumerate() {
            self.load(&signal[group * GROUP * hop..]);
            self.fft.transform(&mut self.values, &mut self.work);
            self.separate();
            if self.settings.power == 1 {
                self.power.iter_mut().flatten().for_each(|power| *power = power.sqrt());
            }
            for (power, out) in self.power.iter().zip(out.chunks_mut(LANES * mels)) {
                for (mel, energies) in self.filters.apply(power).enumerate() {
                    for (frame, energy) in out.chunks_exact_mut(mels).zip(energies.to_array()) {
                        frame[mel] = energy;
                    }
                }
            }
        }
        let Settings { floor, log, top_db, .. } = self.settings;
        let values = spectrogram.as_mut_slice();
        if log != Logarithm::None {
            let scale = log.scale();
            penstock_guest::update_chunks::<32, f32>(values, |energy| ln(energy.max(floor)) * scale);
        }
        if let Some(distance) = top_db {
            let least = values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - distance;
            penstock_guest::update_chunks::<32, f32>(values, |value| value.max(least));
        }
        Ok(spectrogram)
    }

    /// Number of samples to which every clip is cut or padded; `None` if clips keep their length.
    pub(crate) fn filled(&self) -> Option<usize> {
        let Settings { seconds, sample_rate, .. } = self.settings;
        seconds.map(|seconds| (f64::from(seconds) * f64::from(sample_rate)).round() as usize)
    }

    /// Minimum number of samples for one frame.
    fn least(&self) -> usize {
        let length = self.window.len();
        match self.settings.edges {
            Edges::Reflect => length / 2 + 1,
            Edges::None => length,
        }
    }

    /// Number of frames of a clip that is long enough for at least one. Fails if the spectrogram would be too large.
    fn frames(&self, samples: usize) -> Result<usize> {
        let (length, mels) = (self.window.len(), self.settings.n_mels as usize);
        let signal = match self.settings.edges {
            Edges::Reflect => samples + length / 2 * 2,
            Edges::None => samples,
        };
        let frames = (signal - length) / self.settings.hop as usize + 1;
        ensure!(
            frames.saturating_mul(mels) <= MOST_NUMBERS,
            "the clip is too long: {frames} frames of {mels} values exceed the limit of {MOST_NUMBERS} values"
        );
        Ok(frames)
    }

    /// Copies the frames at the start of `signal`, multiplied by the window, into the lanes: the first half as the real, the
    /// second as the imaginary parts.
    fn load(&mut self, signal: &[f32]) {
        let (hop, length) = (self.settings.hop as usize, self.window.len());
        let frames: [&[f32]; GROUP] = std::array::from_fn(|frame| &signal[frame * hop..][..length]);
        for (at, (value, &weight)) in self.values.iter_mut().zip(&self.window).enumerate() {
            value.re = Lanes::new(std::array::from_fn(|lane| frames[lane][at] * weight));
            value.im = Lanes::new(std::array::from_fn(|lane| frames[LANES + lane][at] * weight));
        }
    }

    /// Computes the power spectra of two real signals from the transform Z of the first plus i times the second, which are
    /// (Z(k) + conj Z(-k)) / 2 and (Z(k) - conj Z(-k)) / 2i.
    fn separate(&mut self) {
        let [first, second] = &mut self.power;
        let squares = |re: Lanes, im: Lanes| re * re + im * im;
        let mirrored = std::iter::once(&self.values[0]).chain(self.values[1..].iter().rev());
        for (((plus, minus), first), second) in self.values.iter().zip(mirrored).zip(first).zip(second) {
            *first = squares(plus.re + minus.re, plus.im - minus.im) * 0.25;
            *second = squares(plus.im + minus.im, minus.re - plus.re) * 0.25;
        }
    }
}

impl Logarithm {
    /// Factor that converts a natural logarithm to this kind of logarithm.
    fn scale(self) -> f32 {
        match self {
            Self::Natural | Self::None => 1.0,
            Self::Log10 => std::f32::consts::LOG10_E,
            Self::Decibel => 10.0 * std::f32::consts::LOG10_E,
        }
    }
}

/// Window of a frame: Hann's, in the middle of zeros if it is shorter than the frame.
fn window(settings: &Settings) -> Result<Vec<f32>> {
    let frame = settings.n_fft as usize;
    let length = settings.win_length.map_or(frame, |length| length as usize);
    ensure!(length <= frame, "`win_length` is {length}, more than `n_fft`, {frame}");
    let mut window = vec![0.0; frame];
    window[(frame - length) / 2..][..length].copy_from_slice(&hann(length));
    Ok(window)
}

/// Hann window in its periodic form, whose end is the start of the next period.
fn hann(length: usize) -> Vec<f32> {
    (0..length).map(|at| (0.5 - 0.5 * (TAU * at as f64 / length as f64).cos()) as f32).collect()
}

/// The samples, extended on both sides by `edge` samples that are mirrored at the first and the last sample, which are not
/// repeated.
fn reflected(samples: &[f32], edge: usize) -> Vec<f32> {
    let before = samples[1..=edge].iter().rev();
    let after = samples[samples.len() - 1 - edge..samples.len() - 1].iter().rev();
    before.chain(samples).chain(after).copied().collect()
}

/// Natural logarithm of a number that is above 0 and not denormal, to 2 units in the last place or 1e-7.
///
/// Unlike the library function, this one is vectorised, and returns the same bits on every machine. With x = m 2^e and m near 1,
/// ln m = 2 artanh t for t = (m - 1) / (m + 1), whose series converges quickly for |t| < 0.18.
#[inline(always)]
fn ln(x: f32) -> f32 {
    /// Bits of sqrt(1/2) as `f32`: m is at least sqrt(1/2) and less than sqrt(2).
    const LEAST: u32 = 0x3f35_04f3;
    let exponent = (x.to_bits().wrapping_sub(LEAST) as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((exponent << 23) as u32));
    let t = (m - 1.0) / (m + 1.0);
    let square = t * t;
    let series = 2.0 / 3.0 + square * (2.0 / 5.0 + square * (2.0 / 7.0 + square * (2.0 / 9.0)));
    exponent as f32 * std::f32::consts::LN_2 + (2.0 * t + t * square * series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_agrees_with_the_library() {
        let mut x = 1e-37_f32;
        while x < 1e38 {
            let (found, expected) = (ln(x), x.ln());
            assert!(
                (found - expected).abs() <= 1e-7 + expected.abs() * 2.4e-7,
                "ln {x}: {found}, not {expected}"
            );
            x *= 1.0007;
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn edges_mirror_without_repeating_the_first_and_the_last_sample() {
        assert_eq!(reflected(&[1.0, 2.0, 3.0, 4.0], 3), [4.0, 3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]);
        assert_eq!(reflected(&[1.0, 2.0], 1), [2.0, 1.0, 2.0, 1.0]);
    }
}
