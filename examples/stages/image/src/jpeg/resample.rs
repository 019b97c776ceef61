//! Resizing of planes to the pixels of the result.
//!
//! A strip of eight rows of the result is computed at a time. Vertically, sixteen adjacent pixels of a row are resized at
//! once. For the horizontal pass the eight rows are transposed, so that eight numbers with the same weights are adjacent
//! again.
//!
//! Numbers have 16 bits: the pixel minus 128, times 256. The weights add up to at most one, so sums cannot overflow.

use bytemuck::cast;
use wide::{f32x4, i16x8, i32x4, i32x8, u8x16, u16x8};

use super::Pixels;
use super::axis::Axis;
use super::eight;
use super::scan::Plane;
use crate::output::Scale;

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
    /// Transposed rows: for every column, the values of the eight rows.
    columns: Vec<i16x8>,
    /// Resized columns of every layer.
    resized: [Vec<i16x8>; 3],
}

/// Resizes the layers, one or three, to red, green and blue, in the form that the result has. With `is_ycc`, three layers are Y, Cb
/// and Cr, whose colours are converted.
pub(super) fn resample(layers: &[Layer], is_ycc: bool, strips: &mut Strips, result: &mut Pixels) {
    let (width, height) = (layers[0].across.starts.len(), layers[0].down.starts.len());
    for top in (0..height).step_by(ROWS) {
        let count = ROWS.min(height - top);
        for (layer, out) in layers.iter().zip(&mut strips.resized) {
            let stride = layer.plane.stride;
            strips.rows.resize(ROWS * stride, 0);
            for (row, out) in strips.rows.chunks_exact_mut(stride).take(count).enumerate() {
                resize_row(layer, top + row, out);
            }
            turn_round(&strips.rows, stride, &mut strips.columns);
            // Columns after the last one fill a group of eight, and are not written.
            out.resize(width.next_multiple_of(8), i16x8::splat(0));
            resize_columns(layer, &strips.columns, &mut out[..width]);
        }
        let [first, blueness, redness] = &strips.resized;
        let groups = match layers.len() {
            1 => (first, first, first),
            _ => (first, blueness, redness),
        };
        let groups = groups.0.as_chunks().0.iter().zip(groups.1.as_chunks().0).zip(groups.2.as_chunks().0);
        for (at, ((first, blueness), redness)) in groups.enumerate() {
            let channels = match layers.len() {
                1 => [first; 3].map(|grey| eight(|at| to_pixels(grey[at]))),
                _ if is_ycc => colours(first, blueness, redness),
                _ => [first, blueness, redness].map(|colour| eight(|at| to_pixels(colour[at]))),
            };
            match result {
                Pixels::Bytes(bytes) => {
                    to_bytes(&mut bytes[top * width * 3..][..count * width * 3], width, 8 * at, &channels)
                }
                Pixels::Planes(planes, scales) => {
                    let size_of_plane = width * height;
                    for ((plane, channel), scale) in
                        planes.chunks_exact_mut(size_of_plane).zip(&channels).zip(scales)
                    {
                        to_plane(&mut plane[top * width..][..count * width], width, 8 * at, channel, *scale);
                    }
                }
            }
        }
    }
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
pub(super) fn times_256(pixels: &[i8; 16]) -> [i16x8; 2] {
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

/// Resizes the columns of a strip: every result is a weighted mean of some columns of the layer.
fn resize_columns(layer: &Layer, columns: &[i16x8], out: &mut [i16x8]) {
    match layer.across.taps {
        1 => sum_columns::<1>(layer, columns, out),
        2 => sum_columns::<2>(layer, columns, out),
        3 => sum_columns::<3>(layer, columns, out),
        4 => sum_columns::<4>(layer, columns, out),
        5 => sum_columns::<5>(layer, columns, out),
        _ => {
            for (at, out) in out.iter_mut().enumerate() {
                let (start, weights) = layer.across.of(at);
                let columns = &columns[start - layer.plane.left..][..weights.len()];
                let parts =
                    columns.iter().zip(weights).map(|(column, &weight)| column.mul_scale_round_n(weight));
                *out = parts.fold(i16x8::splat(0), |sum, part| sum + part);
            }
        }
    }
}

#[inline(always)]
fn sum_columns<const TAPS: usize>(layer: &Layer, columns: &[i16x8], out: &mut [i16x8]) {
    let (starts, left) = (&layer.across.starts, layer.plane.left);
    for ((start, weights), out) in starts.iter().zip(layer.across.weights.as_chunks::<TAPS>().0).zip(out) {
        let columns: &[i16x8; TAPS] = columns[start - left..].first_chunk().expect("the window has all taps");
        let mut sum = columns[0].mul_scale_round_n(weights[0]);
        for tap in 1..TAPS {
            sum += columns[tap].mul_scale_round_n(weights[tap]);
        }
        *out = sum;
    }
}

/// Converts Y, Cb and Cr to red, green and blue, by the rule of JFIF, for eight columns. Saturation clips colours that are too bright
/// or too dark, since the range of the numbers is that of pixels.
#[inline(always)]
fn colours(brightness: &[i16x8; 8], blueness: &[i16x8; 8], redness: &[i16x8; 8]) -> [[i16x8; 8]; 3] {
    let part = |of: i16x8, share: f64| of.mul_scale_round_n((share * 32768.0) as i16);
    let red = eight(|at| brightness[at].saturating_add(redness[at]).saturating_add(part(redness[at], 0.402)));
    // Both parts may exceed the range together, so half of them is subtracted from half of the brightness.
    let green = eight(|at| {
        let parts = part(blueness[at], 0.172_068) + part(redness[at], 0.357_068);
        let half: i16x8 = brightness[at] >> 1;
        let half = half.saturating_sub(parts);
        half.saturating_add(half)
    });
    let blue =
        eight(|at| brightness[at].saturating_add(blueness[at]).saturating_add(part(blueness[at], 0.772)));
    [eight(|at| to_pixels(red[at])), eight(|at| to_pixels(green[at])), eight(|at| to_pixels(blue[at]))]
}

/// Writes up to eight columns to up to eight rows, from column `left` on.
#[inline(always)]
fn to_bytes(rows: &mut [u8], width: usize, left: usize, [red, green, blue]: &[[i16x8; 8]; 3]) {
    // Eight pixels of a row are 24 bytes, from 24 columns that are transposed eight by eight.
    let columns = eight(|at| [red[at], green[at], blue[at]]);
    let [first, second, third] = cast::<[[i16x8; 3]; 8], [[i16x8; 8]; 3]>(columns).map(transpose);
    for (row, out) in rows.chunks_exact_mut(width * 3).enumerate() {
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

/// Writes up to eight normalised columns of one channel to up to eight rows, from column `left` on.
#[inline(always)]
fn to_plane(rows: &mut [f32], width: usize, left: usize, columns: &[i16x8; 8], scale: Scale) {
    let pixels = transpose(*columns);
    let (factor, offset) = (f32x4::splat(scale.factor), f32x4::splat(scale.offset));
    for (pixels, row) in pixels.iter().zip(rows.chunks_exact_mut(width)) {
        let [low, high] = cast::<i32x8, [i32x4; 2]>(i32x8::from_i16x8(*pixels))
            .map(|pixels| (pixels.round_float() * factor + offset).to_array());
        match row[left..].as_chunks_mut::<4>().0 {
            [first, second, ..] => (*first, *second) = (low, high),
            _ => {
                for (out, pixel) in row[left..].iter_mut().zip(low.into_iter().chain(high)) {
                    *out = pixel;
                }
            }
        }
    }
}

/// Converts numbers to pixels, 0 to 255.
#[inline(always)]
fn to_pixels(numbers: i16x8) -> i16x8 {
    (numbers.saturating_add(i16x8::splat(128)) >> 8) + i16x8::splat(128)
}
