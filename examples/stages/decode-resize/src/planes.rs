//! Normalised planes: the output `f32`, with the same numbers as the stage `normalize` makes of the output `u8`.

use penstock_guest::prelude::*;

use crate::Settings;

/// Conversion of the bytes of one channel: `byte * factor + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// 1 / (255 * standard deviation).
    pub(crate) factor: f32,
    /// -mean / standard deviation.
    pub(crate) offset: f32,
}

/// Scales of red, green and blue. Fails if the number of means or deviations is neither 1 nor 3, or if a deviation is 0.
pub(crate) fn scales(settings: &Settings) -> Result<[Scale; 3]> {
    let of_channels = |name: &str, numbers: &[f32]| match *numbers {
        [one] => Ok([one; 3]),
        [red, green, blue] => Ok([red, green, blue]),
        _ => Err(Error::new(format_args!(
            "`{name}` has {} numbers; use one, or one per channel: 3",
            numbers.len()
        ))),
    };
    let (means, deviations) = (of_channels("mean", &settings.mean)?, of_channels("std", &settings.std)?);
    for (channel, std) in deviations.iter().enumerate() {
        ensure!(std.is_normal(), "`std` of channel {channel} is {std}, which cannot be a divisor");
    }
    Ok(std::array::from_fn(|channel| {
        let (mean, std) = (means[channel], deviations[channel]);
        Scale { factor: 1.0 / (255.0 * std), offset: -mean / std }
    }))
}

/// Scales `pixels`, [height x width, 3], into `planes`, [3, height x width].
pub(crate) fn to_planes(pixels: &[u8], scales: &[Scale; 3], planes: &mut [f32]) {
    let size = planes.len() / 3;
    if size == 0 {
        return;
    }
    for ((channel, scale), plane) in scales.iter().enumerate().zip(planes.chunks_exact_mut(size)) {
        for (pixel, out) in pixels.as_chunks::<3>().0.iter().zip(plane) {
            *out = f32::from(pixel[channel]) * scale.factor + scale.offset;
        }
    }
}
