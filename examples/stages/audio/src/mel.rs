//! Mel scales, and filters on them.

use penstock_guest::prelude::*;

use crate::lanes::Lanes;

/// Formula for the pitch of a frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Scale {
    /// Linear up to 1000 Hz, logarithmic above: M. Slaney, "Auditory Toolbox, version 2", 1998; librosa's default.
    Slaney,
    /// 2595 log10(1 + f / 700): S. Young et al., "The HTK Book", 2006, section 5.4; torchaudio's default.
    Htk,
}

/// Height of the filters' triangles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Height {
    /// Equal areas: the height is 2 over the width in Hz. librosa's default.
    Area,
    /// Height 1; torchaudio's default.
    One,
}

/// Overlapping triangular filters over the frequencies of a spectrum.
#[derive(Clone, Debug)]
pub(crate) struct Filters(Vec<Filter>);

/// One triangle: `weights` for the frequencies from `first` on.
#[derive(Clone, Debug)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

impl Scale {
    /// Pitch of a frequency in Hz.
    pub fn mel(self, hertz: f64) -> f64 {
        match self {
            Self::Slaney if hertz < Self::BEND => hertz / Self::PER_MEL,
            Self::Slaney => Self::BEND / Self::PER_MEL + (hertz / Self::BEND).ln() / Self::step(),
            Self::Htk => 2595.0 * (1.0 + hertz / 700.0).log10(),
        }
    }

    /// Frequency in Hz of a pitch.
    pub fn hertz(self, mel: f64) -> f64 {
        match self {
            Self::Slaney if mel < Self::BEND / Self::PER_MEL => mel * Self::PER_MEL,
            Self::Slaney => Self::BEND * ((mel - Self::BEND / Self::PER_MEL) * Self::step()).exp(),
            Self::Htk => 700.0 * (10_f64.powf(mel / 2595.0) - 1.0),
        }
    }

    /// Upper end of the linear part of Slaney's scale, in Hz.
    const BEND: f64 = 1000.0;
    /// Hz per mel in the linear part.
    const PER_MEL: f64 = 200.0 / 3.0;

    /// Increase of the frequency's logarithm per mel above the linear part: 27 mels are a factor of 6.4.
    fn step() -> f64 {
        6.4_f64.ln() / 27.0
    }
}

impl Filters {
    /// Creates `count` filters between two frequencies, for a spectrum of `bins` frequencies that are `apart` Hz apart.
    pub(crate) fn new(
        scale: Scale,
        height: Height,
        count: usize,
        range: std::ops::Range<f64>,
        bins: usize,
        apart: f64,
    ) -> Self {
        let (low, high) = (scale.mel(range.start), scale.mel(range.end));
        let corner = |at: usize| scale.hertz(low + (high - low) * at as f64 / (count + 1) as f64);
        let filter = |number: usize| {
            let (left, top, right) = (corner(number), corner(number + 1), corner(number + 2));
            let most = match height {
                Height::Area => 2.0 / (right - left),
                Height::One => 1.0,
            };
            let weight = |bin: usize| {
                let hertz = bin as f64 * apart;
                (((hertz - left) / (top - left)).min((right - hertz) / (right - top)).max(0.0) * most) as f32
            };
            let first = (0..bins).find(|&bin| weight(bin) > 0.0).unwrap_or(bins);
            let weights = (first..bins).map(weight).take_while(|&weight| weight > 0.0).collect();
            Filter { first, weights }
        };
        Self((0..count).map(filter).collect())
    }

    /// Number of filters that cover no frequency of the spectrum because they are too narrow.
    pub(crate) fn empty(&self) -> usize {
        self.0.iter().filter(|filter| filter.weights.is_empty()).count()
    }

    /// Weighted sum of a spectrum for each filter.
    pub(crate) fn apply<'a>(&'a self, spectrum: &'a [Lanes]) -> impl Iterator<Item = Lanes> + 'a {
        self.0.iter().map(|filter| {
            let under = &spectrum[filter.first..][..filter.weights.len()];
            under.iter().zip(&filter.weights).fold(Lanes::ZERO, |sum, (&power, &weight)| sum + power * weight)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scales_agree_with_their_sources() {
        // By construction, 1000 Hz are 15 mel on Slaney's scale, and nearly 1000 mel on the HTK scale.
        for (scale, hertz, mel) in
            [(Scale::Slaney, 500.0, 7.5), (Scale::Slaney, 1000.0, 15.0), (Scale::Slaney, 6400.0, 42.0)]
        {
            assert!((scale.mel(hertz) - mel).abs() < 1e-9, "{hertz} Hz");
        }
        assert!((Scale::Htk.mel(1000.0) - 1000.0).abs() < 0.02);
        for scale in [Scale::Slaney, Scale::Htk] {
            for hertz in [0.0, 20.0, 999.0, 1000.0, 1001.0, 7600.0] {
                assert!((scale.hertz(scale.mel(hertz)) - hertz).abs() < 1e-6, "{scale:?}, {hertz} Hz");
            }
        }
    }

    #[test]
    fn neighbouring_triangles_of_height_one_add_up_to_one() {
        let filters = Filters::new(Scale::Htk, Height::One, 20, 0.0..8000.0, 257, 8000.0 / 256.0);
        assert_eq!(filters.empty(), 0);
        let mut sums = [0.0; 257];
        for filter in &filters.0 {
            for (sum, weight) in sums[filter.first..].iter_mut().zip(&filter.weights) {
                *sum += weight;
            }
        }
        // Neighbours overlap, except on the rising side of the first triangle and on the falling side of the last.
        let top = |number: f64| Scale::Htk.hertz(Scale::Htk.mel(8000.0) * number / 21.0) / (8000.0 / 256.0);
        let shared = top(1.0).ceil() as usize..top(20.0) as usize;
        assert!(shared.len() > 200 && sums[shared].iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }
}
