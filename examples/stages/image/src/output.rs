//! The steps on floating-point numbers, and the result.

use penstock_guest::prelude::*;

use crate::image::{Image, flip_across, flip_down};
use crate::params::Layout;
use crate::step::{Filling, Rect, Size, Step};

/// Conversion of the bytes of one channel: `byte * factor + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub factor: f32,
    pub offset: f32,
}

/// Scales of all channels of leading steps that treat each number separately, and the remaining steps.
pub(crate) fn scales(steps: &[Step]) -> Result<([Scale; 3], &[Step])> {
    // Means and deviations are applied in double precision, and rounded once.
    let mut scales = [(1.0, 0.0); 3];
    let mut rest = steps;
    while let [step @ (Step::ToFloat { .. } | Step::Normalize { .. }), after @ ..] = rest {
        match step {
            Step::Normalize { mean, std } => {
                for (channel, (factor, offset)) in scales.iter_mut().enumerate() {
                    let (mean, std) = (f64::from(of(mean, channel)), f64::from(of(std, channel)));
                    *factor /= std;
                    *offset = (*offset - mean) / std;
                }
            }
            Step::ToFloat { scale: true } => scales = [(1.0 / 255.0, 0.0); 3],
            _ => {}
        }
        rest = after;
    }
    Ok((scales.map(|(factor, offset)| Scale { factor: factor as f32, offset: offset as f32 }), rest))
}

fn of(numbers: &[f32], channel: usize) -> f32 {
    numbers[if numbers.len() == 1 { 0 } else { channel }]
}

/// Writes the scaled bytes of an image, in this layout.
pub(crate) fn to_floats(image: &Image, scales: &[Scale; 3], layout: Layout, out: &mut [f32]) {
    let size = image.size.pixels();
    match (image.channels, layout) {
        (1, _) => scale(&image.pixels, scales[0], out),
        (_, Layout::Hwc) => {
            for (pixel, out) in image.pixels.as_chunks::<3>().0.iter().zip(out.as_chunks_mut::<3>().0) {
                *out = std::array::from_fn(|at| f32::from(pixel[at]) * scales[at].factor + scales[at].offset);
            }
        }
        (_, Layout::Chw) => {
            /// Number of pixels processed between two checks of the deadline.
            const CHUNK: usize = 32;
            let (chunks, rest) = image.pixels.as_chunks::<{ 3 * CHUNK }>();
            for ((channel, scale), plane) in scales.iter().enumerate().zip(out.chunks_exact_mut(size)) {
                let (plane, plane_rest) = plane.as_chunks_mut::<CHUNK>();
                for (pixels, plane) in chunks.iter().zip(plane) {
                    for (at, out) in plane.iter_mut().enumerate() {
                        *out = f32::from(pixels[3 * at + channel]) * scale.factor + scale.offset;
                    }
                }
                for (pixel, out) in rest.as_chunks::<3>().0.iter().zip(plane_rest) {
                    *out = f32::from(pixel[channel]) * scale.factor + scale.offset;
                }
            }
        }
    }
}

fn scale(bytes: &[u8], scale: Scale, out: &mut [f32]) {
    penstock_guest::map_chunks::<64, u8, f32>(bytes, out, |byte| {
        f32::from(byte) * scale.factor + scale.offset
    });
}

/// The bytes of the image in this layout.
pub(crate) fn to_layout(image: Image, layout: Layout) -> Vec<u8> {
    if image.channels == 1 || layout == Layout::Hwc {
        return image.pixels;
    }
    let mut out = vec![0; image.pixels.len()];
    for (channel, plane) in out.chunks_exact_mut(image.size.pixels()).enumerate() {
        for (pixel, out) in image.pixels.as_chunks::<3>().0.iter().zip(plane) {
            *out = pixel[channel];
        }
    }
    out
}

pub(crate) fn shape(size: Size, channels: usize, layout: Layout) -> [u32; 3] {
    match layout {
        Layout::Chw => [channels as u32, size.height, size.width],
        Layout::Hwc => [size.height, size.width, channels as u32],
    }
}

/// Numbers in the layout of the result.
pub(crate) struct Floats<'a> {
    pub size: Size,
    pub channels: usize,
    pub layout: Layout,
    pub numbers: &'a mut [f32],
}

impl Floats<'_> {
    /// Applies a step that keeps the size.
    pub(crate) fn apply(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Normalize { mean, std } => self.update(Rect::whole(self.size), |channel, number| {
                *number = (*number - of(mean, channel)) / of(std, channel);
            }),
            Step::Erase { part, filling: Filling::Values(values) } => {
                ensure!(
                    values.len() == 1 || values.len() == self.channels,
                    "`value` has {} numbers for {} channels; use one, or one per channel",
                    values.len(),
                    self.channels
                );
                self.update(*part, |channel, number| *number = of(values, channel));
            }
            Step::Erase { part, filling: Filling::Noise(seed) } => {
                let mut rng = Rng::from_seed(*seed);
                self.update(*part, |_, number| *number = normal(&mut rng));
            }
            Step::FlipHorizontal => {
                let depth = self.depth();
                flip_across(self.numbers, self.size.width as usize * depth, depth);
            }
            Step::FlipVertical => {
                let stride = self.size.width as usize * self.depth();
                let planes = self.numbers.chunks_exact_mut(stride * self.size.height as usize);
                planes.for_each(|plane| flip_down(plane, stride));
            }
            _ => {}
        }
        Ok(())
    }

    /// Number of adjacent numbers of one pixel.
    fn depth(&self) -> usize {
        if self.layout == Layout::Hwc { self.channels } else { 1 }
    }

    /// Changes the numbers of a part, with their channels.
    fn update(&mut self, part: Rect, mut change: impl FnMut(usize, &mut f32)) {
        let depth = self.depth();
        let stride = self.size.width as usize * depth;
        let columns = part.left as usize * depth..(part.left + part.width) as usize * depth;
        for (plane, numbers) in self.numbers.chunks_exact_mut(stride * self.size.height as usize).enumerate()
        {
            for row in numbers.chunks_exact_mut(stride).skip(part.top as usize).take(part.height as usize) {
                for (at, number) in row[columns.clone()].iter_mut().enumerate() {
                    change(if depth == 1 { plane } else { at % depth }, number);
                }
            }
        }
    }
}

/// Normally distributed number with mean 0 and deviation 1 (Box and Muller).
fn normal(rng: &mut Rng) -> f32 {
    let distance = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    (distance * (std::f64::consts::TAU * rng.unit()).cos()) as f32
}
