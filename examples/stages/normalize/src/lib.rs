//! Normalises an image for training: bytes to floating-point numbers, channels last to channels first.

use penstock_guest::prelude::*;

/// Params that a pipeline may set, for `(value / 255 - mean) / std` in every channel.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Mean to subtract, one number per channel, or one for all; values are from 0 to 1.
    #[param(default = [0.485, 0.456, 0.406])]
    pub mean: Vec<f32>,
    /// Standard deviation to divide by, one number per channel, or one for all; never 0.
    #[param(default = [0.229, 0.224, 0.225])]
    pub std: Vec<f32>,
}

/// The stage, with checked settings.
#[derive(Debug)]
pub struct Normalize(Settings);

/// Converts the u8 tensor `image`, [height, width, channels], to float32, [channels, height, width]: subtracts the mean of
/// every channel and divides by its standard deviation. The defaults are those of ImageNet.
#[stage(wants("image"), makes("image"), removes())]
impl SampleStage for Normalize {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        let (means, deviations) = (settings.mean.len(), settings.std.len());
        ensure!(
            means.min(deviations) > 0 && (means == deviations || means == 1 || deviations == 1),
            "`mean` has {means} numbers and `std` {deviations}; use the same number for both, or one for all channels"
        );
        scales(settings, means.max(deviations))?;
        Ok(Self(settings.clone()))
    }

    fn process(&mut self, item: Item) -> Result<Outcome> {
        normalize(item, &self.0).map(Outcome::Keep)
    }
}

pub fn normalize(mut item: Item, settings: &Settings) -> Result<Item> {
    let image = item.tensor::<u8>("image")?;
    let [height, width, channels] = image.dimensions().context("`image` is not [height, width, channels]")?;
    let scales = scales(settings, channels)?;
    let mut planes = Tensor::<f32>::zeros([channels as u32, height as u32, width as u32]);
    to_planes(image.as_slice(), &scales, planes.as_mut_slice());
    item.set("image", planes);
    Ok(item)
}

/// Conversion of the bytes of one channel: `byte * factor + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// 1 / (255 * standard deviation).
    pub factor: f32,
    /// -mean / standard deviation.
    pub offset: f32,
}

/// Scale of every channel. Fails if the number of means or deviations is neither 1 nor `channels`, or if a deviation is 0.
pub fn scales(settings: &Settings, channels: usize) -> Result<Vec<Scale>> {
    let of = |name: &str, numbers: &[f32], channel: usize| match numbers {
        [one] => Ok(*one),
        many if many.len() == channels => Ok(many[channel]),
        other => Err(Error::new(format_args!(
            "`{name}` has {} numbers, but the image has {channels} channels",
            other.len()
        ))),
    };
    (0..channels)
        .map(|channel| {
            let (mean, std) = (of("mean", &settings.mean, channel)?, of("std", &settings.std, channel)?);
            ensure!(std.is_normal(), "`std` of channel {channel} is {std}, which cannot be a divisor");
            Ok(Scale { factor: 1.0 / (255.0 * std), offset: -mean / std })
        })
        .collect()
}

/// Scales `pixels`, [height x width, channels], into `planes`, [channels, height x width]; one scale per channel.
pub fn to_planes(pixels: &[u8], scales: &[Scale], planes: &mut [f32]) {
    match *scales {
        [red, green, blue] => colour_to_planes(pixels, [red, green, blue], planes),
        _ => any_to_planes(pixels, scales, planes),
    }
}

/// Number of pixels processed between two checks of the deadline; see the chunk functions of the SDK for the reason.
const CHUNK: usize = 32;

fn colour_to_planes(pixels: &[u8], scales: [Scale; 3], planes: &mut [f32]) {
    let size = planes.len() / 3;
    let (red, rest) = planes.split_at_mut(size);
    let (green, blue) = rest.split_at_mut(size);
    let (chunks, rest) = pixels.as_chunks::<{ 3 * CHUNK }>();
    let ((red, red_rest), (green, green_rest), (blue, blue_rest)) =
        (red.as_chunks_mut::<CHUNK>(), green.as_chunks_mut::<CHUNK>(), blue.as_chunks_mut::<CHUNK>());
    for (((pixels, red), green), blue) in chunks.iter().zip(red).zip(green).zip(blue) {
        scale_channel::<0>(pixels, scales[0], red);
        scale_channel::<1>(pixels, scales[1], green);
        scale_channel::<2>(pixels, scales[2], blue);
    }
    for (channel, (plane, scale)) in [red_rest, green_rest, blue_rest].into_iter().zip(scales).enumerate() {
        for (pixel, out) in rest.chunks_exact(3).zip(plane) {
            *out = f32::from(pixel[channel]) * scale.factor + scale.offset;
        }
    }
}

#[inline(always)]
fn scale_channel<const CHANNEL: usize>(pixels: &[u8; 3 * CHUNK], scale: Scale, plane: &mut [f32; CHUNK]) {
    for (at, out) in plane.iter_mut().enumerate() {
        *out = f32::from(pixels[3 * at + CHANNEL]) * scale.factor + scale.offset;
    }
}

fn any_to_planes(pixels: &[u8], scales: &[Scale], planes: &mut [f32]) {
    let channels = scales.len();
    if channels == 0 || planes.is_empty() {
        return;
    }
    let size = planes.len() / channels;
    for ((channel, scale), plane) in scales.iter().enumerate().zip(planes.chunks_exact_mut(size)) {
        for (pixel, out) in pixels.chunks_exact(channels).zip(plane) {
            *out = f32::from(pixel[channel]) * scale.factor + scale.offset;
        }
    }
}

#[cfg(test)]
mod tests;
