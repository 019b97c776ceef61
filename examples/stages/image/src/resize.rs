//! Resizing with the arithmetic of Pillow: columns and rows one after the other, with bytes in between.

use std::ops::Range;

use crate::filter::{Line, Weights};
use crate::image::Image;
use crate::step::{Rect, Resizing, Size};
use crate::view::View;

/// Number of fractional bits of Pillow's weights.
const BITS: u32 = 22;

/// The image at another size.
pub(crate) fn resize(image: &Image, resizing: Resizing) -> Image {
    view(image, &whole(image.size, resizing), 1)
}

/// View of a whole image of this size at another size.
pub(crate) fn whole(size: Size, resizing: Resizing) -> View {
    View { resize: Some(resizing), window: Rect::whole(resizing.size), ..View::whole(size) }
}

/// Memory that a view of an image takes, in bytes, with the image, whose pixels have `bytes_per_pixel`.
pub(crate) fn memory(image: Size, bytes_per_pixel: u64, view: &View) -> u64 {
    /// Bytes of the weights of an input: at most six, each of them twice.
    const OF_INPUT: u64 = 72;
    let [from, to] =
        [view.crop.size(), view.size()].map(|size| [u64::from(size.width), u64::from(size.height)]);
    let between = if rows_first(view, 1) { from[0] * to[1] } else { to[0] * from[1] };
    let weights = OF_INPUT * (from[0] + from[1] + to[0] + to[1]);
    bytes_per_pixel * image.pixels() as u64 + 3 * (between + to[0] * to[1]) + weights
}

/// The part of the image that the view names. Lengths of the view's crop refer to an image that is larger by `reduction`.
pub(crate) fn view(image: &Image, view: &View, reduction: u32) -> Image {
    let Size { width, height } = image.size;
    let [columns, rows] = Line::of(view, width as usize, height as usize, reduction as usize);
    let antialias = view.resize.is_none_or(|resize| resize.antialias);
    let [across, down] = [columns, rows].map(|line| {
        let weights = line.weights();
        Taps::new(&weights, if antialias { BITS } else { short_bits(&weights) })
    });
    let size = view.size();
    let pixels = match image.channels {
        1 => passes::<1>(image, &across, &down, rows_first(view, reduction)),
        _ => passes::<3>(image, &across, &down, rows_first(view, reduction)),
    };
    Image { size, channels: image.channels, pixels }
}

/// True if rows are resized first, as Pillow does since version 13 where this removes more than twice as many rows as the other
/// order removes columns; torchvision, which resizes without `antialias`, never does. Bytes in between are cut to their range, so the order shows at sharp edges.
fn rows_first(View { crop, resize, .. }: &View, reduction: u32) -> bool {
    resize.is_some_and(|Resizing { size, antialias, .. }| {
        let removed = |from: u32, to: u32| from.div_ceil(reduction).saturating_sub(to);
        antialias && removed(crop.height, size.height) > 2 * removed(crop.width, size.width)
    })
}

fn passes<const CHANNELS: usize>(image: &Image, across: &Taps, down: &Taps, rows_first: bool) -> Vec<u8> {
    let part = across.first * CHANNELS..across.end * CHANNELS;
    let rows: Vec<&[u8]> =
        image.rows().skip(down.first).take(down.end - down.first).map(|row| &row[part.clone()]).collect();
    if rows_first {
        let low = resize_rows(&rows, part.len(), down);
        resize_columns::<CHANNELS>(low.chunks_exact(part.len()), across)
    } else {
        let stride = across.spans.len() * CHANNELS;
        let narrow = resize_columns::<CHANNELS>(rows.iter().copied(), across);
        resize_rows(&narrow.chunks_exact(stride).collect::<Vec<_>>(), stride, down)
    }
}

/// Fractional bits of torchvision's weights without `antialias`: as many as let the largest weight fit into 16 bits with its sign.
fn short_bits(weights: &Weights) -> u32 {
    let largest = weights.shares.iter().copied().fold(0.0, f64::max);
    let fits = |bits: &u32| (0.5 + largest * f64::from(2_u32 << bits)) as u32 >= 1 << 15;
    (0..BITS).find(fits).unwrap_or(BITS)
}

/// Inputs of each output with whole weights, in units of 2^-`bits`; the single weight `[1]` stands for a copy.
struct Taps {
    bits: u32,
    spans: Vec<(usize, usize)>,
    weights: Vec<i32>,
    /// First of all inputs, and the end of them.
    first: usize,
    end: usize,
}

impl Taps {
    fn new(weights: &Weights, bits: u32) -> Self {
        let spans = weights.spans.iter().map(|span| (span.start, span.len())).collect();
        let whole = |&share: &f64| (share * f64::from(1 << bits)).round() as i32;
        let mut whole: Vec<i32> = weights.shares.iter().map(whole).collect();
        let mut at = 0;
        for span in &weights.spans {
            if span.len() == 1 {
                whole[at] = 1;
            }
            at += span.len();
        }
        Self {
            bits,
            spans,
            weights: whole,
            first: weights.spans.iter().map(|span| span.start).min().unwrap_or(0),
            end: weights.spans.iter().map(|span| span.end).max().unwrap_or(0),
        }
    }

    /// Inputs, counted from the first of all, and weights of every output.
    fn iter(&self) -> impl Iterator<Item = (Range<usize>, &[i32])> {
        let mut rest = self.weights.as_slice();
        self.spans.iter().map(move |&(start, count)| {
            let (weights, after) = rest.split_at(count);
            rest = after;
            (start - self.first..start - self.first + count, weights)
        })
    }
}

/// Resizes the columns of rows that start with the first input.
fn resize_columns<'a, const CHANNELS: usize>(
    rows: impl ExactSizeIterator<Item = &'a [u8]>,
    across: &Taps,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * across.spans.len() * CHANNELS);
    for row in rows {
        let (row, _) = row.as_chunks::<CHANNELS>();
        for (span, weights) in across.iter() {
            let pixels = &row[span];
            if let ([1], [pixel]) = (weights, pixels) {
                out.extend_from_slice(pixel);
                continue;
            }
            let mut sums = [1 << (across.bits - 1); CHANNELS];
            for (pixel, &weight) in pixels.iter().zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(value) * weight;
                }
            }
            out.extend(sums.map(|sum| to_byte(sum, across.bits)));
        }
    }
    out
}

/// Resizes rows of this many bytes, of which the first is the first input.
fn resize_rows(rows: &[&[u8]], stride: usize, down: &Taps) -> Vec<u8> {
    let mut pixels = vec![0; stride * down.spans.len()];
    let mut sums = vec![0; stride];
    for ((span, weights), out) in down.iter().zip(pixels.chunks_exact_mut(stride)) {
        let rows = &rows[span];
        if let ([1], [row]) = (weights, rows) {
            out.copy_from_slice(row);
            continue;
        }
        sums.fill(1 << (down.bits - 1));
        for (row, &weight) in rows.iter().zip(weights) {
            add_row(row, weight, &mut sums);
        }
        penstock_guest::map_chunks::<32, i32, u8>(&sums, out, |sum| to_byte(sum, down.bits));
    }
    pixels
}

fn add_row(row: &[u8], weight: i32, sums: &mut [i32]) {
    let (rows, row_rest) = row.as_chunks::<32>();
    let (chunks, rest) = sums.as_chunks_mut::<32>();
    for (row, sums) in rows.iter().zip(chunks) {
        for at in 0..32 {
            sums[at] += i32::from(row[at]) * weight;
        }
    }
    for (&value, sum) in row_rest.iter().zip(rest) {
        *sum += i32::from(value) * weight;
    }
}

fn to_byte(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}
