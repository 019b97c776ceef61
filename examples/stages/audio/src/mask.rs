//! Masks of SpecAugment: D. Park et al., "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition", 2019.

use std::ops::Range;

use penstock_guest::prelude::*;

use crate::Settings;

/// Replaces random ranges of frames and of filters, as `TimeMasking` and `FrequencyMasking` of torchaudio do.
pub(crate) fn apply(mel: &mut Tensor<f32>, settings: &Settings, rng: &mut Rng) {
    let &[frames, mels] = mel.shape() else { return };
    let (frames, mels) = (frames as usize, mels as usize);
    let values = mel.as_mut_slice();
    for _ in 0..settings.time_masks {
        let masked = range(frames, settings.time_mask, rng);
        values[masked.start * mels..masked.end * mels].fill(settings.mask_value);
    }
    for _ in 0..settings.frequency_masks {
        let masked = range(mels, settings.frequency_mask, rng);
        values.chunks_exact_mut(mels).for_each(|frame| frame[masked.clone()].fill(settings.mask_value));
    }
}

/// A range within `size` of at most `most` elements, which is evenly distributed: first its length, then its start.
fn range(size: usize, most: u32, rng: &mut Rng) -> Range<usize> {
    let length = (rng.unit() * f64::from(most)).min(size as f64);
    let start = (rng.unit() * (size as f64 - length)) as usize;
    start..(start + length as usize).min(size)
}
