//! Colours of all decoded pixels, as libjpeg computes them: chroma is interpolated to full resolution and rounded, and colours are
//! cut to their range before they are resized.

use std::ops::Range;

use bytemuck::cast;
use wide::{i8x16, i16x8, i16x16, i32x4, i32x8, u8x16};

use super::resample::times_256;
use super::scan::Plane;

/// Half-resolution chroma that is needed for the pixels of a range.
pub(super) fn half(range: &Range<usize>, inputs: usize) -> Range<usize> {
    (range.start / 2).saturating_sub(1)..((range.end - 1) / 2 + 2).min(inputs)
}

/// One component of chroma, and its size in pixels.
pub(super) struct Chroma<'a> {
    pub(super) plane: &'a Plane,
    pub(super) width: usize,
    pub(super) height: usize,
    /// True if the component has half the resolution of the image.
    pub(super) half_across: bool,
    pub(super) half_down: bool,
}

/// Rows of one component of chroma, reused from one row to the next.
#[derive(Default)]
pub(super) struct Rows {
    /// Sums of two rows, with a pixel more on both sides.
    sums: Vec<i16>,
    /// Row of the component, interpolated to the resolution of the image.
    row: Vec<i8>,
}

/// Converts the rows of Y, Cb and Cr to planes of red, green and blue, which have the place and the stride of the plane of Y.
pub(super) fn convert(
    luma: &Plane,
    chroma: &[Chroma; 2],
    rows: Range<usize>,
    buffers: &mut [Rows; 2],
    colours: &mut [Plane; 3],
) {
    for plane in colours.iter_mut() {
        (plane.left, plane.top, plane.stride) = (luma.left, luma.top, luma.stride);
        plane.pixels.resize(luma.pixels.len(), 0);
    }
    for row in rows {
        let start = (row - luma.top) * luma.stride;
        let [blueness, redness] = buffers;
        let blueness = chroma[0].row(row, luma, blueness);
        let redness = chroma[1].row(row, luma, redness);
        let [red, green, blue] = colours;
        let [red, green, blue] =
            [red, green, blue].map(|plane| plane.pixels[start..][..luma.stride].as_chunks_mut().0);
        let brightness = luma.pixels[start..][..luma.stride].as_chunks().0;
        for (at, brightness) in brightness.iter().enumerate() {
            [red[at], green[at], blue[at]] = rgb(brightness, &blueness[at], &redness[at]);
        }
    }
}

impl Chroma<'_> {
    /// The interpolated row, from the first column of the plane of Y.
    fn row<'a>(&'a self, row: usize, luma: &Plane, rows: &'a mut Rows) -> &'a [[i8; 16]] {
        let plane = self.plane;
        let line = |row: usize| &plane.pixels[(row - plane.top) * plane.stride..][..plane.stride];
        let (near, next) = match (self.half_down, row % 2) {
            (false, _) => (row, row),
            (true, 0) => (row / 2, (row / 2).saturating_sub(1)),
            (true, _) => (row / 2, (row / 2 + 1).min(self.height - 1)),
        };
        let Rows { sums, row: out } = rows;
        if !self.half_across {
            if !self.half_down {
                return line(near).as_chunks().0;
            }
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
            let sum = |at: usize| match self.half_down {
                true => near[at] + near[at] + near[at] + next[at],
                false => near[at],
            };
            *out = cast([sum(0), sum(1)]);
        }
        // The image continues with its pixels at the edges.
        sums[0] = sums[1];
        let end = self.width - plane.left;
        if end <= plane.stride {
            sums[end + 1] = sums[end];
        }
        // The plane of Y may end with up to 16 columns more, all of them beyond the image.
        out.resize(2 * plane.stride + 16, 0);
        let (even, odd, shift) = if self.half_down { (8, 7, 4) } else { (1, 2, 2) };
        let (even, odd) = (i16x8::splat(even), i16x8::splat(odd));
        for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().take(plane.stride / 8).enumerate() {
            let from = &sums[8 * at..8 * at + 10];
            let eight = |start: usize| i16x8::from(*from[start..].first_chunk::<8>().expect("ten sums"));
            let three = eight(1) + eight(1) + eight(1);
            let (first, second) = ((three + eight(0) + even) >> shift, (three + eight(2) + odd) >> shift);
            // Both are bytes; the second follows the first.
            *out = cast((first & i16x8::splat(255)) | (second << 8));
        }
        out[luma.left - 2 * plane.left..].as_chunks().0
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

#[inline(always)]
fn wide_pixels(pixels: &[i8; 16]) -> [i16x8; 2] {
    times_256(pixels).map(|pixels| pixels >> 8)
}

#[inline(always)]
fn narrow(pixels: [i16x8; 2]) -> [i8; 16] {
    cast(i8x16::from_i16x16_saturate(cast::<[i16x8; 2], i16x16>(pixels)))
}
