//! Colours of all decoded pixels, as libjpeg computes them: components are interpolated to full resolution and rounded, and colours
//! are cut to their range before they are resized.

use std::ops::Range;

use bytemuck::cast;
use wide::{i8x16, i16x8, i16x16, i32x4, i32x8, u8x16};

use super::header::{Colours, Component, Frame};
use super::resample::times_256;
use super::scan::Plane;

/// Resolution of a component beside that of the image.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    /// Size of the component in pixels.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Number of the image's pixels for one of the component, 1 to 4.
    pub(super) across: usize,
    pub(super) down: usize,
    /// True if libjpeg interpolates the component to the resolution of the image; it repeats the pixels of others.
    is_interpolated: bool,
}

impl Sampling {
    pub(super) fn new(frame: &Frame, component: &Component) -> Self {
        let (across, down) = (frame.most_across() / component.across, frame.most_down() / component.down);
        let width = frame.width.div_ceil(across);
        let is_interpolated = match (across, down) {
            (1, 2) => true,
            (2, 1 | 2) => width > 2,
            _ => false,
        };
        Self { width, height: frame.height.div_ceil(down), across, down, is_interpolated }
    }

    /// Columns of the component that are needed for these of the image.
    pub(super) fn columns(&self, of_image: &Range<usize>) -> Range<usize> {
        self.part(of_image, self.across, self.width)
    }

    /// Rows of the component that are needed for these of the image.
    pub(super) fn rows(&self, of_image: &Range<usize>) -> Range<usize> {
        self.part(of_image, self.down, self.height)
    }

    fn part(&self, of_image: &Range<usize>, sampling: usize, length: usize) -> Range<usize> {
        let (first, last) = (of_image.start / sampling, (of_image.end - 1) / sampling);
        match self.is_interpolated && sampling == 2 {
            true => first.saturating_sub(1)..(last + 2).min(length),
            false => first..last + 1,
        }
    }
}

/// One component, decoded at its own resolution.
pub(super) struct Samples<'a> {
    pub(super) plane: &'a Plane,
    pub(super) sampling: Sampling,
}

/// Rows of one component, reused from one row to the next.
#[derive(Default)]
pub(super) struct Rows {
    /// Sums of two rows, with a pixel more on both sides.
    sums: Vec<i16>,
    /// Row of the component at the resolution of the image.
    row: Vec<i8>,
}

/// Converts rows of one to four components to planes of red, green and blue, which have their place and stride.
pub(super) fn convert(
    samples: &[Samples],
    from: Colours,
    rows: Range<usize>,
    buffers: &mut [Rows; 4],
    colours: &mut [Plane; 3],
) {
    for row in rows {
        let mut parts: [&[[i8; 16]]; 4] = [&[]; 4];
        for ((part, samples), buffers) in parts.iter_mut().zip(samples).zip(buffers.iter_mut()) {
            *part = samples.row(row, colours[0].left, buffers);
        }
        let colours = colours
            .each_mut()
            .map(|plane| plane.pixels[(row - plane.top) * plane.stride..][..plane.stride].as_chunks_mut().0);
        let [first, second, third, black] = parts;
        match from {
            Colours::Ycc => fill(colours, |at| rgb(&first[at], &second[at], &third[at])),
            Colours::Ycck => fill(colours, |at| inked(rgb(&first[at], &second[at], &third[at]), &black[at])),
            Colours::Cmyk => fill(colours, |at| {
                // The stored amounts are inverted.
                inked([first[at], second[at], third[at]].map(|ink| ink.map(|ink| !ink)), &black[at])
            }),
            Colours::Rgb => fill(colours, |at| [first[at], second[at], third[at]]),
            Colours::Grey => fill(colours, |at| [first[at]; 3]),
        }
    }
}

#[inline(always)]
fn fill([red, green, blue]: [&mut [[i8; 16]]; 3], pixels: impl Fn(usize) -> [[i8; 16]; 3]) {
    for at in 0..red.len() {
        [red[at], green[at], blue[at]] = pixels(at);
    }
}

impl Samples<'_> {
    /// The row at the resolution of the image, from the column `left` of the image on.
    fn row<'a>(&'a self, row: usize, left: usize, rows: &'a mut Rows) -> &'a [[i8; 16]] {
        let (plane, sampling) = (self.plane, self.sampling);
        let line = |row: usize| &plane.pixels[(row - plane.top) * plane.stride..][..plane.stride];
        let Rows { sums, row: out } = rows;
        let near = row / sampling.down;
        if !sampling.is_interpolated {
            if sampling.across == 1 {
                return line(near).as_chunks().0;
            }
            out.resize(sampling.across * plane.stride + 16, 0);
            for (pixel, out) in line(near).iter().zip(out.chunks_exact_mut(sampling.across)) {
                out.fill(*pixel);
            }
            return out[left - sampling.across * plane.left..].as_chunks().0;
        }
        let half_down = sampling.down == 2;
        let next = match (half_down, row % 2) {
            (false, _) => near,
            (true, 0) => near.saturating_sub(1),
            (true, _) => (near + 1).min(sampling.height - 1),
        };
        if sampling.across == 1 {
            out.resize(plane.stride, 0);
            let bias = i16x8::splat(1 + (row % 2) as i16);
            let (near, next) = (line(near).as_chunks::<16>().0, line(next).as_chunks::<16>().0);
            for ((near, next), out) in near.iter().zip(next).zip(out.as_chunks_mut::<16>().0) {
                let (near, next) = (wide_pixels(near), wide_pixels(next));
                let sum = |at: usize| (near[at] + near[at] + near[at] + next[at] + bias) >> 2;
                *out = narrow([sum(0), sum(1)]);
            }
            return out.as_chunks().0;
        }
        // Sums of the rows with a weight of 4 in total, or 1 if the rows have the full resolution.
        sums.resize(plane.stride + 2, 0);
        let (near, next) = (line(near).as_chunks::<16>().0, line(next).as_chunks::<16>().0);
        for ((near, next), out) in near.iter().zip(next).zip(sums[1..].as_chunks_mut::<16>().0) {
            let (near, next) = (wide_pixels(near), wide_pixels(next));
            let sum = |at: usize| match half_down {
                true => near[at] + near[at] + near[at] + next[at],
                false => near[at],
            };
            *out = cast([sum(0), sum(1)]);
        }
        // The image continues with its pixels at the edges.
        sums[0] = sums[1];
        let end = sampling.width - plane.left;
        if end <= plane.stride {
            sums[end + 1] = sums[end];
        }
        // The planes of colours may end with up to 16 columns more, all of them beyond the image.
        out.resize(2 * plane.stride + 16, 0);
        let (even, odd, shift) = if half_down { (8, 7, 4) } else { (1, 2, 2) };
        let (even, odd) = (i16x8::splat(even), i16x8::splat(odd));
        for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().take(plane.stride / 8).enumerate() {
            let from = &sums[8 * at..8 * at + 10];
            let eight = |start: usize| i16x8::from(*from[start..].first_chunk::<8>().expect("ten sums"));
            let three = eight(1) + eight(1) + eight(1);
            let (first, second) = ((three + eight(0) + even) >> shift, (three + eight(2) + odd) >> shift);
            // Both are bytes; the second follows the first.
            *out = cast((first & i16x8::splat(255)) | (second << 8));
        }
        out[left - 2 * plane.left..].as_chunks().0
    }
}

/// Converts sixteen pixels by the rule of JFIF. Every result is equal to libjpeg's.
#[inline(always)]
fn rgb(brightness: &[i8; 16], blueness: &[i8; 16], redness: &[i8; 16]) -> [[i8; 16]; 3] {
    // Shares of blueness and redness in green, in units of 2^-16; that of redness is larger by 1, which does not fit.
    const GREEN: [i16; 2] = [-22554, 18734];
    let [blue_bytes, red_bytes] = [blueness, redness].map(|pixels| cast::<[i8; 16], u8x16>(*pixels));
    let pairs = [u8x16::unpack_low(blue_bytes, red_bytes), u8x16::unpack_high(blue_bytes, red_bytes)];
    let weights = cast::<[[i16; 2]; 4], i16x8>([GREEN; 4]);
    let share = |pairs: i16x8| (pairs.dot(weights) + i32x4::splat(1 << 23)) >> 24;
    let [brightness, blueness, redness] = [brightness, blueness, redness].map(wide_pixels);
    let green = |at: usize| {
        let shares = times_256(&cast(pairs[at])).map(share);
        brightness[at] - redness[at] + i16x8::from_i32x8_saturate(cast::<[i32x4; 2], i32x8>(shares))
    };
    // The factors 1.402 and 1.772, with the rounding of libjpeg.
    let red = |at: usize| brightness[at] + redness[at] + redness[at].mul_scale_round_n(13173);
    let blue = |at: usize| brightness[at] + blueness[at] + blueness[at].mul_scale_round_n(25297);
    [narrow([red(0), red(1)]), narrow([green(0), green(1)]), narrow([blue(0), blue(1)])]
}

/// Red, green and blue of a white page under three inks and black, as Pillow computes them. `black` is inverted, as in files.
#[inline(always)]
fn inked(inks: [[i8; 16]; 3], black: &[i8; 16]) -> [[i8; 16]; 3] {
    let byte = |pixel: i8| u16::from(pixel as u8 ^ 128);
    inks.map(|ink| {
        std::array::from_fn(|at| {
            let light = byte(black[at]);
            // Rounded division by 255.
            let product = byte(ink[at]) * light + 128;
            ((light - ((product + (product >> 8)) >> 8)) as u8 ^ 128) as i8
        })
    })
}

#[inline(always)]
fn wide_pixels(pixels: &[i8; 16]) -> [i16x8; 2] {
    times_256(pixels).map(|pixels| pixels >> 8)
}

#[inline(always)]
fn narrow(pixels: [i16x8; 2]) -> [i8; 16] {
    cast(i8x16::from_i16x16_saturate(cast::<[i16x8; 2], i16x16>(pixels)))
}
