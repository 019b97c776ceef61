//! Resizing of planes to the pixels of the result.
//!
//! A strip of eight rows of the result is computed at a time. Vertically, sixteen adjacent pixels of a row are resized at
//! once. For the horizontal pass the eight rows are transposed, so that eight numbers with the same weights are adjacent
//! again.
//!
//! Numbers have 16 bits: the pixel minus 128, times 256. The weights add up to at most one, so sums cannot overflow.

use bytemuck::cast;
use wide::{i16x8, u8x16, u16x8};

use super::axis::Axis;
use super::scan::Plane;

/// Number of rows computed at a time.
const ROWS: usize = 8;

/// One component, with its resizing axes.
pub(super) struct Layer<'a> {
    /// Pixels of the component.
    pub(super) plane: &'a Plane,
    /// Vertical resizing of the component.
    pub(super) down: &'a Axis,
    /// Horizontal resizing of the component.
    pub(super) across: &'a Axis,
}

/// Buffers for a strip, reused from one image to the next.
#[derive(Default)]
pub(super) struct Strips {
    /// Vertically resized rows, one after the other.
    rows: Vec<i16>,
    /// Transposed rows of every layer: for every column, the values of the eight rows.
    columns: [Vec<i16x8>; 3],
}

/// Resizes the layers, one or three, and converts their colours to red, green and blue: u8, [size, size, 3], rows first.
pub(super) fn resample(layers: &[Layer], size: usize, strips: &mut Strips) -> Vec<u8> {
    let mut image = vec![0; size * size * 3];
    for (strip, rows) in image.chunks_mut(ROWS * size * 3).enumerate() {
        let count = rows.len() / (size * 3);
        for (layer, columns) in layers.iter().zip(&mut strips.columns) {
            let stride = layer.plane.stride;
            strips.rows.resize(ROWS * stride, 0);
            for (row, out) in strips.rows.chunks_exact_mut(stride).take(count).enumerate() {
                resize_row(layer, strip * ROWS + row, out);
            }
            turn_round(&strips.rows, stride, columns);
        }
        match layers {
            [grey] => {
                let grey = (grey, &*strips.columns[0]);
                to_rows(rows, size, |output| [column(grey, output); 3]);
            }
            [brightness, blueness, redness] => {
                let [b, u, v] = &strips.columns;
                let (b, u, v) = ((brightness, &**b), (blueness, &**u), (redness, &**v));
                to_rows(rows, size, |output| {
                    colours(column(b, output), column(u, output), column(v, output))
                });
            }
            _ => {}
        }
    }
    image
}

/// Computes one row of the vertically resized plane, for all its columns.
fn resize_row(layer: &Layer, output: usize, out: &mut [i16]) {
    let (start, weights) = layer.down.of(output);
    let plane = layer.plane;
    let rows = &plane.pixels[(start - plane.top) * plane.stride..][..weights.len() * plane.stride];
    // The most common numbers of taps have their own functions, without an inner loop.
    match *weights {
        [a] => sum_rows(rows, [a], out),
        [a, b] => sum_rows(rows, [a, b], out),
        [a, b, c] => sum_rows(rows, [a, b, c], out),
        [a, b, c, d] => sum_rows(rows, [a, b, c, d], out),
        [a, b, c, d, e] => sum_rows(rows, [a, b, c, d, e], out),
        _ => {
            out.fill(0);
            for (row, &weight) in rows.chunks_exact(out.len()).zip(weights) {
                add_row(row, weight, out);
            }
        }
    }
}

#[inline(always)]
fn sum_rows<const TAPS: usize>(rows: &[i8], weights: [i16; TAPS], out: &mut [i16]) {
    let mut rest = rows;
    let rows: [&[[i8; 16]]; TAPS] = std::array::from_fn(|_| {
        let (row, below) = rest.split_at(out.len());
        rest = below;
        row.as_chunks().0
    });
    let weights = weights.map(i16x8::splat);
    let (out, _) = out.as_chunks_mut::<16>();
    for (at, out) in out.iter_mut().enumerate() {
        let mut sums = [i16x8::splat(0); 2];
        for tap in 0..TAPS {
            let pixels = times_256(&rows[tap][at]);
            sums[0] += pixels[0].mul_scale_round(weights[tap]);
            sums[1] += pixels[1].mul_scale_round(weights[tap]);
        }
        *out = cast(sums);
    }
}

fn add_row(row: &[i8], weight: i16, out: &mut [i16]) {
    let weight = i16x8::splat(weight);
    for (pixels, out) in row.as_chunks().0.iter().zip(out.as_chunks_mut::<16>().0) {
        let pixels = times_256(pixels);
        let sums = cast::<[i16; 16], [i16x8; 2]>(*out);
        *out =
            cast([sums[0] + pixels[0].mul_scale_round(weight), sums[1] + pixels[1].mul_scale_round(weight)]);
    }
}

#[inline(always)]
fn times_256(pixels: &[i8; 16]) -> [i16x8; 2] {
    let (zero, pixels) = (u8x16::splat(0), cast::<[i8; 16], u8x16>(*pixels));
    [cast(u8x16::unpack_low(zero, pixels)), cast(u8x16::unpack_high(zero, pixels))]
}

/// Transposes eight rows into columns of eight.
fn turn_round(rows: &[i16], stride: usize, columns: &mut Vec<i16x8>) {
    columns.resize(stride, i16x8::splat(0));
    let mut rest = rows;
    let rows: [&[[i16; 8]]; ROWS] = std::array::from_fn(|_| {
        let (row, below) = rest.split_at(stride);
        rest = below;
        row.as_chunks().0
    });
    for (at, columns) in columns.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *columns = transpose(std::array::from_fn(|row| i16x8::from(rows[row][at])));
    }
}

#[inline(always)]
fn transpose(rows: [i16x8; 8]) -> [i16x8; 8] {
    cast(u16x8::transpose(cast(rows)))
}

/// Computes one column of the strip: a weighted mean of some columns of the layer.
#[inline(always)]
fn column((layer, columns): (&Layer, &[i16x8]), output: usize) -> i16x8 {
    let (start, weights) = layer.across.of(output);
    let columns = &columns[start - layer.plane.left..][..weights.len()];
    let tap = |at: usize| columns[at].mul_scale_round_n(weights[at]);
    match weights.len() {
        1 => tap(0),
        2 => tap(0) + tap(1),
        3 => tap(0) + tap(1) + tap(2),
        4 => tap(0) + tap(1) + tap(2) + tap(3),
        taps => (0..taps).map(tap).fold(i16x8::splat(0), |sum, tap| sum + tap),
    }
}

/// Converts Y, Cb and Cr to red, green and blue, by the rule of JFIF. Saturation clips colours that are too bright or too
/// dark, since the range of the numbers is that of pixels.
#[inline(always)]
fn colours(brightness: i16x8, blueness: i16x8, redness: i16x8) -> [i16x8; 3] {
    let part = |of: i16x8, share: f64| of.mul_scale_round_n((share * 32768.0) as i16);
    let red = brightness.saturating_add(redness).saturating_add(part(redness, 0.402));
    let green = brightness.saturating_sub(part(blueness, 0.344_136).saturating_add(part(redness, 0.714_136)));
    let blue = brightness.saturating_add(blueness).saturating_add(part(blueness, 0.772));
    [red, green, blue]
}

/// Writes up to eight rows of the result from its columns.
#[inline(always)]
fn to_rows(rows: &mut [u8], size: usize, column: impl Fn(usize) -> [i16x8; 3]) {
    for left in (0..size).step_by(8) {
        // Eight pixels of a row are 24 bytes, from 24 columns that are transposed eight by eight.
        let columns = std::array::from_fn(|at| column((left + at).min(size - 1)));
        let columns = cast::<[[i16x8; 3]; 8], [[i16x8; 8]; 3]>(columns);
        let [first, second, third] = columns.map(|columns| transpose(columns.map(to_pixels)));
        for (row, out) in rows.chunks_exact_mut(size * 3).enumerate() {
            let start = u8x16::narrow_i16x8(first[row], second[row]).to_array();
            let [end, _] = cast::<u8x16, [[u8; 8]; 2]>(u8x16::narrow_i16x8(third[row], third[row]));
            let out = &mut out[3 * left..];
            if let Some(out) = out.first_chunk_mut::<24>() {
                out[..16].copy_from_slice(&start);
                out[16..].copy_from_slice(&end);
            } else {
                for (out, pixel) in out.iter_mut().zip(start.into_iter().chain(end)) {
                    *out = pixel;
                }
            }
        }
    }
}

/// Converts numbers to pixels.
#[inline(always)]
fn to_pixels(numbers: i16x8) -> i16x8 {
    (numbers.saturating_add(i16x8::splat(128)) >> 8) + i16x8::splat(128)
}
